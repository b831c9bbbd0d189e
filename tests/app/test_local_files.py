"""Files on the private Prosody of a platform, which a person's client and an agent exchange out of the box."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.request import urlopen

import pytest

from spade_coreason import Platform, load_settings
from spade_coreason.config import read_run_file
from spade_coreason.xmpp.servers.certificate import ensure_certificate
from spade_coreason.xmpp.servers.prosody import find_prosody
from tests.support.picture_files import PICTURES
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.web_server import WebServer, page

MIRROR = """
class Mirror:
    def __init__(self, manifest, files):
        self.manifest = manifest
        self.files = files

    async def assist(self, request, session, response):
        [attachment] = request.payload["attachments"]
        file = await self.files.fetch(attachment["url"])
        await response.markdown(await self.files.upload("mirrored.png", file.data[::-1], file.type))
"""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """The address of a local server, for a client."""

    host: str
    port: int
    ca_file: Path


@pytest.mark.servers
async def test_a_picture_of_a_person_reaches_an_agent_on_the_private_prosody_and_its_file_comes_back(tmp_path: Path) -> None:
    require("Prosody", find_prosody() is not None)
    (tmp_path / "mirror.py").write_text(MIRROR)
    (tmp_path / "platform.yaml").write_text(
        "server: {mode: prosody}\nagents: [{jid: mirror@localhost, agent: 'mirror:Mirror'}]\n"
    )
    picture = PICTURES["png"]
    async with Platform(load_settings(Path("platform.yaml"), tmp_path, {})):
        running = read_run_file(tmp_path / "data")
        assert running is not None
        assert running.guest is not None
        assert running.port is not None
        server = LocalAddress(running.host or "", running.port, Path(running.ca_file or ""))
        guest = running.guest
        async with StockClient(guest["jid"], guest["password"], server, plugins=["xep_0363"]) as alice:
            upload = alice.xmpp.plugin["xep_0363"].upload_file
            url = await upload(Path("dot.png"), input_file=BytesIO(picture), size=len(picture), content_type="image/png")
            assert url.startswith("http://127.0.0.1:")
            alice.send(url, "mirror@localhost", extra_xml=f"<x xmlns='jabber:x:oob'><url>{url}</url></x>")
            link = (await alice.answer())["body"]
        with await asyncio.to_thread(urlopen, link) as response:
            assert response.read() == picture[::-1]


READER = """
class Reader:
    def __init__(self, manifest, files):
        self.manifest = manifest
        self.files = files

    async def assist(self, request, session, response):
        try:
            file = await self.files.fetch(request.payload["query"], allow_private="127.0.0.1/32")
        except Exception as error:
            await response.markdown(str(error))
        else:
            await response.markdown(file.data.decode())
"""


async def test_an_agent_fetches_from_a_file_server_of_the_intranet_by_the_authority_of_the_configuration(
    prosody: XmppServer, tmp_path: Path
) -> None:
    (tmp_path / "reader.py").write_text(READER)
    certificate = ensure_certificate(tmp_path / "intranet", ("localhost",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    jid, password = await prosody.account()
    (tmp_path / "platform.yaml").write_text(
        f"server: {{mode: external, host: {prosody.host}, port: {prosody.port}, tls: {{ca_file: authorities.pem}}}}\n"
        f"agents: [{{jid: {jid}, password: '${{PASSWORD}}', agent: 'reader:Reader'}}]\n"
    )
    (tmp_path / "authorities.pem").write_bytes(prosody.ca_file.read_bytes())
    async with (
        WebServer({"/plan.txt": page(b"the plan")}, "127.0.0.1", tls=context) as intranet,
        Platform(load_settings(Path("platform.yaml"), tmp_path, {"PASSWORD": password})),
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        link = f"https://localhost:{intranet.port}/plan.txt"
        problem = await alice.ask(link, jid)
        assert "its certificate is not trusted (" in problem
        assert problem.endswith("; for an authority of your own, set server.tls.ca_file to its certificate")
        with (tmp_path / "authorities.pem").open("ab") as authorities:
            authorities.write(certificate.ca_file.read_bytes())
        assert await alice.ask(link, jid) == "the plan"
