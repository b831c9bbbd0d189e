"""Agents upload through their own server, and people get the link. A server that cannot or will not is a clear error."""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import pytest

from spade_coreason import AgentDefinition, AgentRequest, Files, Platform, ResponseHandler, SessionHandle, load_settings
from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.exceptions import UploadError
from spade_coreason.llm import LLMAgent
from spade_coreason.runtime import UploadWarnings, fetch
from spade_coreason.testing import PlatformLimits, Policy
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.uploads import Uploads
from tests.support.chat_completions import ChatCompletionsServer, text_answer
from tests.support.clock import LoopClock
from tests.support.hosting import FunctionAgent, endpoint_of, run_agent, run_platform, write_settings
from tests.support.picture_files import PICTURES
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.web_server import WebServer, page
from tests.xmpp.conftest import MAX_UPLOAD_BYTES

PROJECT = Path(__file__).parents[2]


class UploadingAgent:
    """An agent that uploads each query as a file."""

    def __init__(self, manifest: AgentDefinition, files: Files) -> None:
        self.manifest = manifest
        self.files = files

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(await self.files.upload("kept.txt", request.payload["query"].encode()))


class FileSession:
    """A session that can upload and fetch files: `async with FileSession(server) as files`."""

    def __init__(
        self,
        server: XmppServer,
        incoming_filter: Callable[[Any], Any] | None = None,
        trust: HttpsTrust | None = None,
    ) -> None:
        self._server = server
        self._trust = trust or endpoint_of(server).https_trust
        self._incoming_filter = incoming_filter
        """A filter of each stanza that comes in."""
        self._connection: Connection | None = None

    @property
    def uploads(self) -> Uploads:
        assert self._connection is not None
        return Uploads(self._connection.client, self._trust)

    async def __aenter__(self) -> Files:
        jid, password = await self._server.account()
        endpoint = endpoint_of(self._server)
        self._connection = Connection(Login(jid, password), endpoint, SessionHandler())
        if self._incoming_filter is not None:
            self._connection.client.add_filter("in", self._incoming_filter)
        await self._connection.open()
        return Files(self.uploads.upload, warnings=UploadWarnings())

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._connection is not None
        await self._connection.close()


async def test_a_file_is_uploaded_with_progress_and_fetched_as_it_was(upload_server: XmppServer) -> None:
    data, progress_calls = bytes(range(256)) * 700, []
    async with FileSession(upload_server) as files:
        url = await files.upload("Grüße & <b>.png", data, progress=lambda sent, total: progress_calls.append((sent, total)))
        fetched = await files.fetch(url, allow_private=True, types=("image/png",))
    assert fetched.data == data
    assert fetched.type == "image/png"
    assert progress_calls == [(65_536, 179_200), (131_072, 179_200), (179_200, 179_200)]


async def test_a_file_too_large_is_refused_before_it_is_sent(upload_server: XmppServer) -> None:
    async with FileSession(upload_server) as files:
        with pytest.raises(UploadError, match="it has 200,001 bytes, and the server accepts 200,000"):
            await files.upload("a.txt", b"x" * (MAX_UPLOAD_BYTES + 1))
        assert await files.upload("a.txt", b"x")


async def test_a_refusal_of_the_service_is_quoted(upload_server: XmppServer) -> None:
    def remove_limit(stanza: Any) -> Any:
        for form in stanza.xml.iter("{jabber:x:data}x"):
            for field in form.findall("{jabber:x:data}field[@var='max-file-size']"):
                form.remove(field)
                removed.append(field)
        return stanza

    removed: list[Element] = []
    async with FileSession(upload_server, remove_limit) as files:
        with pytest.raises(UploadError, match="it has 200,001 bytes, and the server accepts 200,000"):
            await files.upload("a.txt", b"x" * (MAX_UPLOAD_BYTES + 1))
        assert removed


async def test_newlines_in_the_headers_of_a_slot_are_taken_out(upload_server: XmppServer) -> None:
    """As XEP-0363, 4 requires: a server could add headers of its choice with them."""
    async with WebServer({"/a.txt": page(status="201 Created")}, "127.0.0.1") as web:

        def add_headers(stanza: Any) -> Any:
            for put in stanza.xml.iter("{urn:xmpp:http:upload:0}put"):
                put.set("url", f"http://127.0.0.1:{web.port}/a.txt")
                for name, text in (
                    ("Author\nization", "\n Basic\r\n YQ==\n"),
                    ("Cookie", "a=b\r\nX-Other: c"),
                    ("X-Other", "d"),
                ):
                    header = SubElement(put, "{urn:xmpp:http:upload:0}header", name=name)
                    header.text = text
            return stanza

        async with FileSession(upload_server, add_headers) as files:
            assert await files.upload("a.txt", b"x")
        [head] = web.requests
    lines = head.split("\r\n")
    assert [line for line in lines if line.startswith(("Authorization", "Cookie"))] == [
        "Authorization: Basic YQ==",
        "Cookie: a=bX-Other: c",
    ]
    assert not [line for line in lines if line.startswith("X-Other")]


async def test_a_file_goes_to_a_web_server_with_an_authority_of_its_own(upload_server: XmppServer, tmp_path: Path) -> None:
    certificate = ensure_certificate(tmp_path, ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)

    async with WebServer({"/a.txt": page(status="201 Created")}, "127.0.0.1", tls=context) as web:

        def lead_to_intranet(stanza: Any) -> Any:
            for put in stanza.xml.iter("{urn:xmpp:http:upload:0}put"):
                put.set("url", f"https://localhost:{web.port}/a.txt")
            return stanza

        async with FileSession(upload_server, lead_to_intranet) as files:
            with pytest.raises(UploadError, match=r": its certificate is not trusted \(unable to get local issuer") as caught:
                await files.upload("a.txt", b"x")
            assert "trusts its certificate (server.tls.ca_file; " in caught.value.remedy
            assert web.requests == []
        async with FileSession(upload_server, lead_to_intranet, HttpsTrust(certificate.ca_file)) as files:
            assert await files.upload("a.txt", b"x")
        [head] = web.requests
        assert head.startswith("PUT /a.txt ")


@pytest.mark.servers
async def test_a_quota_that_is_used_up_is_named(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    with prosody_server.prosody(tmp_path, max_upload_bytes=1000) as server:
        async with FileSession(server) as files:
            for _ in range(10):
                await files.upload("a.bin", b"x" * 1000)
            with pytest.raises(UploadError, match=r"refuses: resource-constraint \(Daily quota reached\)"):
                await files.upload("a.bin", b"x" * 1000)


async def test_a_server_without_the_service_is_named_with_the_remedy(real_server: XmppServer) -> None:
    async with FileSession(real_server) as files:
        with pytest.raises(UploadError, match=r"localhost has no service for files \(XEP-0363\)"):
            await files.upload("a.txt", b"x")


async def test_the_embedded_server_is_not_asked_for_a_service(embedded: XmppServer) -> None:
    async with FileSession(embedded) as files:
        with (
            LoopClock(),
            pytest.raises(UploadError, match="has no service for files; the embedded server has none"),
        ):  # it waits for no answer
            await files.upload("a.txt", b"x")


async def test_an_upload_that_the_caller_stops_is_an_error_and_the_next_one_works(upload_server: XmppServer) -> None:
    def stop(sent: int, total: int) -> None:
        raise InterruptedError

    async with FileSession(upload_server) as files:
        with pytest.raises(UploadError):
            await files.upload("a.txt", b"x" * MAX_UPLOAD_BYTES, progress=stop)
        assert await files.upload("a.txt", b"x")


async def test_an_address_that_does_not_answer_is_one_warning_with_the_remedy(
    upload_server: XmppServer, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = False

    def break_address(stanza: Any) -> Any:
        for put in stanza.xml.iter("{urn:xmpp:http:upload:0}put"):
            if is_broken:
                put.set("url", f"https://localhost:{closed_port}/a.txt")
        return stanza

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "uploaded" in record.getMessage()]

    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        closed_port = unused.getsockname()[1]
        session = FileSession(upload_server, break_address)
        async with session as files:
            assert await session.uploads.find_problem() is None
            with pytest.raises(UploadError, match="the server accepts 200,000"):
                await files.upload("a.txt", b"x" * (MAX_UPLOAD_BYTES + 1))
            assert warnings() == []  # the service works
            is_broken = True
            problem = await session.uploads.find_problem()
            assert problem is not None
            assert "the connection fails" in problem.problem
            for _ in range(2):
                with pytest.raises(UploadError, match="the connection fails"):
                    await files.upload("a.txt", b"x")
            [warning] = warnings()
            assert warning.startswith(
                f"files cannot be uploaded, so long answers are sent in several messages: {problem.problem}; "
            )
            assert f"check that this machine can reach https://localhost:{closed_port} and trusts its certificate" in warning
            is_broken = False
            assert await files.upload("a.txt", b"x")
            assert warnings()[1:] == ["files can be uploaded again"]


@pytest.mark.parametrize("over_bytes", [1000, 0])
async def test_a_platform_warns_once_at_its_start_that_its_server_keeps_no_files(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, over_bytes: int
) -> None:
    accounts = [await real_server.account() for _ in range(3)]
    agents = [{"jid": jid, "password": word, "agent": "tests.xmpp.test_uploads:UploadingAgent"} for jid, word in accounts]
    limits, data_dir = {"file_over_bytes": over_bytes, "grace_s": 1}, str(tmp_path / "data")
    settings = {"server": real_server.settings, "data_dir": data_dir, "limits": limits, "agents": agents}
    configuration = write_settings(tmp_path / "platform.yaml", settings)
    caplog.set_level("INFO")

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "files cannot be uploaded" in record.getMessage()]

    async with Platform(load_settings(configuration, PROJECT, {})):
        if over_bytes:
            await eventually(lambda: bool(warnings()))
    assert len(warnings()) == bool(over_bytes)
    if over_bytes:
        [warning] = warnings()
        assert warning.startswith(
            f"{real_server.domain}: files cannot be uploaded, so long answers are sent in several messages: "
        )
        assert "has no service for files (XEP-0363); Prosody has it as http_file_share" in warning
        assert warning.endswith("; enable it, or set limits.file_over_bytes to 0")


async def test_a_person_sends_a_link_and_gets_one_back(upload_server: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        [one] = request.payload["attachments"]
        fetched = await agent.files.fetch(one["url"], allow_private=True)
        url = await agent.files.upload(f"copy of {one['name']}", fetched.data.upper(), one["type"])
        await response.markdown(f"Here: {url}")

    agent: Any = FunctionAgent(assist)
    async with (
        run_agent(
            agent, upload_server, tmp_path, prepare=lambda host: setattr(agent, "files", Files(host.uploads.upload))
        ) as one,
        StockClient(*await upload_server.account(), upload_server) as alice,
        FileSession(upload_server) as alice_files,
    ):
        url = await alice_files.upload("note.txt", b"hello")
        alice.send(url, one.jid, extra_xml=f"<x xmlns='jabber:x:oob'><url>{url}</url></x>")
        answer = (await alice.answer())["body"]
        assert (await alice_files.fetch(answer.removeprefix("Here: "), allow_private=True)).data == b"HELLO"


async def test_a_model_sees_the_picture_that_a_person_has_uploaded(upload_server: XmppServer, tmp_path: Path) -> None:
    model = ChatCompletionsServer(text_answer("A dot."), text_answer("Black."))
    async with (
        model,
        run_agent(
            LLMAgent(
                AgentDefinition.simple("seer"), model="small", endpoint={"url": model.url}, pictures={"allow_private": True}
            ),
            upload_server,
            tmp_path,
        ) as one,
        StockClient(*await upload_server.account(), upload_server) as alice,
        FileSession(upload_server) as alice_files,
    ):
        url = await alice_files.upload("dot.png", PICTURES["png"])
        alice.send(url, one.jid, extra_xml=f"<x xmlns='jabber:x:oob'><url>{url}</url></x>")
        assert (await alice.answer())["body"] == "A dot."
        assert await alice.ask("What colour is it?", one.jid) == "Black."
    for request in model.requests:
        assert json.dumps(request["messages"]).count(b64encode(PICTURES["png"]).decode()) == 1


async def test_an_answer_too_long_for_the_server_comes_as_its_beginning_and_a_file(
    upload_server: XmppServer, tmp_path: Path
) -> None:
    text = "\n\n".join(["What there is to say:", *(f"Paragraph {number}." for number in range(2000))])

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(text)

    policy = Policy(limits=PlatformLimits(file_over_bytes=20_000, stanza_bytes=10_000))
    async with (
        run_agent(FunctionAgent(assist), upload_server, tmp_path, policy=policy) as agent,
        StockClient(*await upload_server.account(), upload_server, plugins=("xep_0066",)) as alice,
    ):
        beginning = await alice.ask("tell me", agent.jid)
        assert beginning.startswith("What there is to say:\n\nParagraph 0.\n\n")
        assert beginning.endswith(f"…\n\nThe whole answer ({len(text) / 1000:.0f} kB) is in this file:")
        file = await alice.answer()
        assert file["oob"]["url"] == file["body"]
        assert (await fetch(file["body"], allow_private=True)).data.decode() == text


async def test_where_the_server_keeps_no_files_a_long_answer_comes_in_several_messages(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("```\n" + "code of some kind\n" * 1500 + "```")

    policy = Policy(limits=PlatformLimits(file_over_bytes=20_000, stanza_bytes=10_000))
    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path, policy=policy) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        alice.send("tell me", agent.jid)
        parts = [(await alice.answer())["body"] for _ in range(4)]
        assert all(part.startswith("```\n") and part.endswith("\n```") for part in parts)
        assert sum(part.count("code of some kind") for part in parts) == 1500


async def test_an_agent_of_a_configuration_gets_files_by_the_parameters_name(upload_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_platform(upload_server, tmp_path, agent="tests.xmpp.test_uploads:UploadingAgent") as (_, jid),
        StockClient(*await upload_server.account(), upload_server) as alice,
    ):
        url = await alice.ask("remember the milk", jid)
        assert (await fetch(url, allow_private=True)).data == b"remember the milk"


async def test_an_export_is_a_file_for_the_person(upload_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_platform(upload_server, tmp_path, agent="tests.xmpp.test_uploads:UploadingAgent") as (_, jid),
        StockClient(*await upload_server.account(), upload_server, plugins=["xep_0050"]) as alice,
    ):
        await alice.ask("remember the milk", jid)
        stage = (await alice.xmpp.plugin["xep_0050"].send_command(f"{jid}/agent", "export"))["command"]
        link = stage["form"].get_fields()["link"]["value"]
        everything = json.loads((await fetch(link, allow_private=True)).data)
        assert everything["person"] == alice.jid
        assert everything["conversations"][0]["turns"][0]["input"] == {"query": "remember the milk"}
        line, link = (await alice.ask("/export", jid)).splitlines()
        assert "Anyone who has the link can read it" in line
        assert json.loads((await fetch(link, allow_private=True)).data)["person"] == alice.jid
