"""The connections to an A2A agent: its card, addresses that are not allowed, proxies, headers, limits and failures."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import AgentInterface
from google.protobuf.json_format import MessageToDict
from starlette.responses import JSONResponse, PlainTextResponse, Response

from agents.a2a import RemoteA2AAgent
from agents.a2a.options import CARD_PATH, RemoteOptions
from agents.a2a.transport import PolicyTransport
from spade_coreason import AgentDefinition, AgentTester, ConfigError
from spade_coreason.cli.checks import check_settings
from spade_coreason.config import load_settings
from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.runtime import Files, PeerEvent
from spade_coreason.runtime.url_policy import UrlPolicy
from tests.support.a2a_server import JSONRPC, REST, A2AServer, make_card, run_a2a_server
from tests.support.certificates import sign_by_itself
from tests.support.no_uploads import refuse_upload
from tests.support.profiling import count_calls
from tests.support.proxy_server import ProxyServer
from tests.support.questions import code_of
from tests.support.wait import TIMEOUT_S, eventually
from tests.support.web_server import WebServer, page, redirect

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
RPC = "/rpc"
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def remote(url: str, **options: Any) -> partial[RemoteA2AAgent]:
    return partial(RemoteA2AAgent, **{"url": url, "allow_private": LOOPBACK, "poll_s": 0.02, "timeout_s": 2.0, **options})


def card_page(url: str, **fields: Any) -> bytes:
    """Build the page of a card whose agent is at a URL."""
    card = MessageToDict(make_card(url, [JSONRPC], streaming=False, **fields))
    return page(json.dumps(card).encode(), "Content-Type: application/json")


def message_page(text: str) -> bytes:
    """Build the page of an answer that is a message."""
    result = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}}
    return page(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())


def interface(url: str, version: str = "1.0", binding: str = JSONRPC) -> dict[str, Any]:
    return {"supported_interfaces": [AgentInterface(url=url, protocol_binding=binding, protocol_version=version)]}


async def problem_of(agent: Any, query: str = "say hello") -> tuple[str, bool]:
    """Return the error of an agent in place of an answer, and whether another try may succeed."""
    async with AgentTester(agent) as t:
        events: list[PeerEvent] = []
        with pytest.raises(PeerFailedError) as raised:
            await collect(t, query, events)
        [error] = [event.data for event in events if event.data.get("block_type") == "ERROR"]
        assert raised.value.problem == f"reports: {error['user_message']}"
        text = str(error["user_message"])
        prefixes = [f"The remote agent {name} cannot answer: " for name in ("Weather desk", "127.0.0.1", "127.0.0.3")]
        [prefix] = [prefix for prefix in prefixes if text.startswith(prefix)]
        return text.removeprefix(prefix).removesuffix("."), bool(error["recoverable"])


async def collect(t: AgentTester, query: str, events: list[PeerEvent]) -> None:
    async for event in t.stream(query, timeout=TIMEOUT_S):
        events.append(event)


def look_ups(server: A2AServer) -> list[str]:
    """Return the paths of the tasks that were fetched."""
    return [path for method, path, _ in server.requests if method == "GET" and path.startswith("/rest/tasks/")]


def id_of(value: object) -> str | None:
    return "page" if isinstance(value, bytes) else None


# The card


@pytest.mark.parametrize(
    ("card", "problem", "is_recoverable"),
    [
        (page(status="404 Not Found"), "its server answers HTTP 404", False),
        (page(status="401 Unauthorized"), "it refuses access (HTTP 401)", False),
        (page(status="502 Bad Gateway"), "it is not available now (HTTP 502)", True),
        (
            page(b"", "Retry-After: 90", status="503 Service Unavailable"),
            "it is not available now (HTTP 503); try again in 90 s",
            True,
        ),
        (redirect("http://127.0.0.4/card.json"), "it redirects (HTTP 302), which is not followed", False),
        (page(b"<html>"), "its answer is not A2A 1.0", False),
        (page(b"[]"), "its answer is not A2A 1.0", False),
        (page(b"[" * 5_000), "its answer is not A2A 1.0", False),
        (page(b"{}"), "it does not offer A2A 1.0 by JSON-RPC or HTTP+JSON, but nothing", False),
        (page(b'{"skills": 3}'), "its answer is not A2A 1.0", False),
        (page(b" " * 5_000_000), "its answer has more than 4,194,304 bytes", False),
        (
            page(gzip.compress(b"{}"), "Content-Encoding: gzip"),
            "it compresses its answer, although it was asked not to",
            False,
        ),
        (page(b"half", "Content-Length: 100"), "the connection fails", True),
        (
            card_page("http://127.0.0.3:1", **interface("http://127.0.0.3:8000/", "0.3.0")),
            "it does not offer A2A 1.0 by JSON-RPC or HTTP+JSON, but JSONRPC 0.3.0",
            False,
        ),
        (
            card_page("http://127.0.0.3:1", **interface("http://127.0.0.3:8000/", binding="GRPC")),
            "it does not offer A2A 1.0 by JSON-RPC or HTTP+JSON, but GRPC 1.0",
            False,
        ),
    ],
    ids=id_of,
)
async def test_a_card_that_is_no_use_is_an_error_of_one_line(card: bytes, problem: str, is_recoverable: bool) -> None:
    async with WebServer({CARD_PATH: card}) as web:
        assert await problem_of(remote(web.url(""))) == (problem, is_recoverable)


async def test_the_address_of_the_card_itself_is_used_as_it_is() -> None:
    async with run_a2a_server() as server, WebServer() as web:
        web.pages["/cards/weather.json?v=2"] = card_page(server.url)
        async with AgentTester(remote(web.url("/cards/weather.json?v=2"))) as t:
            assert await t.say("say hello") == ["hello"]


async def test_an_agent_that_is_down_is_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async with run_a2a_server() as server:
        port = server.port
    async with AgentTester(remote(server.url)) as t:
        assert t.agent.manifest.metadata.name == "127.0.0.1"
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        problem = "The remote agent 127.0.0.1 cannot answer: it cannot be reached."
        remedy = "check the address options.url, and whether the remote agent runs"
        assert warning == f"{t.jid}: {problem} ({remedy}) Its card is fetched again later."
        assert await t.say("say hello") == ["The remote agent 127.0.0.1 cannot answer: it cannot be reached."]
        async with run_a2a_server(port=port):
            assert await t.say("say hello") == ["hello"]
            [card] = t.runtimes[t.jid].parts.peers.finder.platform.list_for("other@localhost")
            assert card.name == "Weather desk"


async def test_the_log_names_the_agent_here_and_a_remedy(caplog: pytest.LogCaptureFixture) -> None:
    async with WebServer({CARD_PATH: page(status="404 Not Found")}) as web, AgentTester(remote(web.url(""))) as t:
        await t.say("say hello")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    problem = "The remote agent 127.0.0.3 cannot answer: its server answers HTTP 404. (check options.url: "
    assert [line.startswith(f"{t.jid}: {problem}") for line in warnings] == [True, True]


async def test_a_card_that_comes_byte_by_byte_holds_up_no_start(caplog: pytest.LogCaptureFixture) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    web = WebServer({CARD_PATH: drip})
    async with asyncio.timeout(TIMEOUT_S), web, AgentTester(remote(web.url(""), timeout_s=0.2)) as t:
        assert len(web.requests) == 1
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{t.jid}: The remote agent 127.0.0.3 cannot answer: it does not answer in time.")


async def test_an_agent_that_has_moved_is_found_by_its_card() -> None:
    async with WebServer() as web, AsyncExitStack() as stack:
        async with run_a2a_server() as server:
            web.pages[CARD_PATH] = card_page(server.url)
            t = await stack.enter_async_context(AgentTester(remote(web.url(""))))
            assert await t.say("say hello") == ["hello"]
        assert await t.say("say hello") == ["The remote agent Weather desk cannot answer: it cannot be reached."]
        async with run_a2a_server() as server:
            web.pages[CARD_PATH] = card_page(server.url)
            assert await t.say("say hello") == ["hello"]


async def test_a_manifest_that_is_given_is_not_replaced() -> None:
    manifest = AgentDefinition.simple("my weather", description="Mine")
    async with run_a2a_server() as server, AgentTester(remote(server.url), manifest=manifest) as t:
        assert await t.say("say hello") == ["hello"]
        assert t.agent.manifest == manifest


async def test_texts_of_a_card_are_shortened_and_have_no_hidden_characters() -> None:
    async with run_a2a_server() as server, WebServer() as web:
        fields = {"name": "Ev\u202eil\n\x07desk" + "x" * 200, "description": "a\n" * 3000, "version": "one"}
        web.pages[CARD_PATH] = card_page(server.url, **fields)
        async with AgentTester(remote(web.url(""))) as t:
            metadata = t.agent.manifest.metadata
            assert metadata.name.startswith("Ev\\u202eil \\x07desk") or metadata.name.startswith("Ev\\u202eil")
            assert (len(metadata.name), metadata.version) == (100, "0.0.0")
            assert len(t.agent.manifest.capabilities[0].description) == 1000


async def test_check_says_that_a_card_is_read_at_the_start(tmp_path: Path) -> None:
    agent = "spade_coreason.agents.a2a:RemoteA2AAgent"
    weather = {"jid": "weather@localhost", "agent": agent, "options": {"url": "https://agent.example"}}
    (tmp_path / "platform.yaml").write_text(json.dumps({"agents": [weather], "data_dir": str(tmp_path / "data")}))
    findings = await check_settings(load_settings(tmp_path / "platform.yaml", tmp_path, {}))
    [finding] = [finding for finding in findings if finding.subject == "weather@localhost"]
    assert (finding.verdict, finding.text) == ("good", f"{agent} (agent.example; its card is read at the start)")


# Addresses


async def test_a_private_address_is_refused_by_default() -> None:
    async with run_a2a_server() as server:
        problem = "its address is not allowed: 127.0.0.1 is not in the public internet"
        assert await problem_of(remote(server.url, allow_private=False)) == (problem, False)
        assert server.requests == []


async def test_a_name_of_a_private_address_is_refused_at_the_connection() -> None:
    async with run_a2a_server() as server:
        url = f"http://localhost:{server.port}"
        agent = remote(url, allow_private=["10.0.0.0/8"])
        async with AgentTester(agent) as t:
            [text] = await t.say("say hello")
        assert text.endswith("its address is not allowed: localhost is not in the public internet.")
        assert server.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_card_does_not_lead_to_an_address_that_is_not_allowed(host: str) -> None:
    async with run_a2a_server() as server, WebServer() as web:
        web.pages[CARD_PATH] = card_page(f"http://{host}:{server.port}")
        problem = f"its address is not allowed: {host} is not in the public internet"
        assert await problem_of(remote(web.url(""), allow_private=["127.0.0.3/32"])) == (problem, False)
        assert server.requests == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file:///etc/passwd", "only http and https links are"),
        ("http://me:word@127.0.0.3:8000/", "it names a user"),
        ("http://127.0.0.3:22/", "no web server is on port 22"),
        ("http://2130706433:8000/", "its host is an address in no usual form"),
    ],
)
async def test_a_card_names_web_addresses_only(url: str, problem: str) -> None:
    async with WebServer({CARD_PATH: card_page("", **interface(url))}) as web:
        assert await problem_of(remote(web.url(""), allow_private=True)) == (f"its address is not allowed: {problem}", False)


async def test_an_answer_that_redirects_is_not_followed() -> None:
    async with run_a2a_server() as server, WebServer() as web:
        web.pages = {CARD_PATH: card_page(web.url("")), RPC: redirect(f"{server.url}/rpc", "307 Temporary Redirect")}
        assert await problem_of(remote(web.url(""))) == ("it redirects (HTTP 307), which is not followed", False)
        assert server.requests == []


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.5", "127.0.0.3"]  # nothing listens on the first

    options = RemoteOptions(url="http://agent.example:1")
    async with WebServer({"/": page(b"hello")}) as web:
        transport = PolicyTransport(options, UrlPolicy(LOOPBACK, resolve), HttpsTrust())
        async with httpx.AsyncClient(transport=transport) as client:
            response = await client.get(f"http://agent.example:{web.port}/")
            assert (response.text, str(response.url)) == ("hello", f"http://agent.example:{web.port}/")
        assert f"host: agent.example:{web.port}" in web.requests[0].lower()
    assert asked == ["agent.example"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("localhost", "hello"),
        ("other.example", "The remote agent localhost cannot answer: its certificate is not trusted."),
    ],
)
async def test_the_certificate_has_the_name_of_the_host(name: str, answer: str, tmp_path: Path) -> None:
    certificate = sign_by_itself(tmp_path, name)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    files = Files(refuse_upload, trust=HttpsTrust(certificate.ca_file))
    async with WebServer(host="127.0.0.1", tls=context) as web:
        url = f"https://localhost:{web.port}"
        web.pages = {CARD_PATH: card_page(url), RPC: message_page("hello")}
        async with AgentTester(lambda: RemoteA2AAgent(files=files, url=url, allow_private=LOOPBACK)) as t:
            assert await t.say("hi") == [answer]


# Headers


async def test_headers_are_sent_to_the_agent_and_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("agents", "spade_coreason", "a2a.client", "httpx", "httpcore"):  # not the server, which logs all headers
        caplog.set_level(logging.DEBUG, name)
    async with run_a2a_server() as server:
        agent = remote(server.url, headers={"Authorization": "Bearer hush-hush"})
        async with AgentTester(agent) as t:
            await t.say("stream x")
            assert "hush-hush" not in repr(vars(t.agent))
    assert {headers.get("authorization") for _, _, headers in server.requests} == {"Bearer hush-hush"}
    assert {headers.get("a2a-version") for _, path, headers in server.requests if not path.endswith(".json")} == {"1.0"}
    assert "hush-hush" not in caplog.text


async def test_headers_are_not_sent_to_another_origin_that_the_card_names() -> None:
    async with run_a2a_server() as server, WebServer() as web:
        web.pages[CARD_PATH] = card_page(server.url)
        async with AgentTester(remote(web.url(""), headers={"Authorization": "Bearer hush-hush"})) as t:
            assert await t.say("say hello") == ["hello"]
        assert "hush-hush" in web.requests[0]
        assert [headers.get("authorization") for _, _, headers in server.requests] == [None]


@pytest.mark.parametrize(("headers", "answer"), [({}, "hello"), ({"X-Key": "hush-hush"}, "from here")])
async def test_of_two_interfaces_the_first_is_used_or_the_one_that_gets_the_headers(
    headers: Mapping[str, str], answer: str
) -> None:
    async with run_a2a_server() as other, WebServer() as web:
        both = [
            AgentInterface(url=url, protocol_binding=JSONRPC, protocol_version="1.0") for url in (other.url + RPC, web.url(RPC))
        ]
        web.pages = {CARD_PATH: card_page("", supported_interfaces=both), RPC: message_page("from here")}
        async with AgentTester(remote(web.url(""), headers=headers)) as t:
            assert await t.say("say hello") == [answer]


# Proxies


async def test_an_agent_is_asked_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with WebServer() as web:
        web.pages = {"http://agent.example:8000" + CARD_PATH: card_page("http://agent.example:8000")}
        web.pages[CARD_PATH] = card_page("http://agent.example:8000")
        async with run_a2a_server() as server, ProxyServer(server.url) as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
            async with AgentTester(remote(f"http://agent.example:{server.port}", allow_private=False)) as t:
                [text] = await t.say("say hello")
            # The card of the server names 127.0.0.1, which is another host than that of the option.
            assert text.endswith("its address is not allowed: through a proxy only agent.example is asked.")
            assert {way for way, _ in proxy.destinations} == {"forward"}


async def test_a_proxy_that_cannot_be_used_is_a_mistake_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://127.0.0.1:21")
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        RemoteA2AAgent(url="https://agent.example")


# Failures


@pytest.mark.parametrize(
    ("answer", "problem", "is_recoverable"),
    [
        (page(b"garbage"), "its answer is not A2A 1.0", False),
        (page(b"[1]"), "its answer is not A2A 1.0", False),
        (page(b'{"jsonrpc": "2.0", "id": 1}'), "its answer is not A2A 1.0", False),
        (page(b'{"jsonrpc": "2.0", "id": 1, "result": {"task": {"status": 5}}}'), "its answer is not A2A 1.0", False),
        (page(b'{"jsonrpc": "2.0", "id": 1, "result": {}}'), "its answer is not A2A 1.0", False),
        (
            page(b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no\\u0007 such thing"}}'),
            "it refuses this: no\\x07 such thing",
            False,
        ),
        (
            page(b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32009, "message": "1.0?"}}'),
            "it does not speak A2A 1.0",
            False,
        ),
        (page(status="500 Internal Server Error"), "it is not available now (HTTP 500)", True),
        (page(status="403 Forbidden"), "it refuses access (HTTP 403)", False),
        (page(b"", "Content-Length: 100"), "the connection fails", True),
        (page(b"x" * 5_000_000), "its answer has more than 4,194,304 bytes", False),
    ],
    ids=id_of,
)
async def test_an_answer_that_is_no_use_is_an_error_of_one_line(answer: bytes, problem: str, is_recoverable: bool) -> None:
    async with WebServer() as web:
        web.pages = {CARD_PATH: card_page(web.url("")), RPC: answer}
        assert await problem_of(remote(web.url(""))) == (problem, is_recoverable)
        assert [head.split(" ")[1] for head in web.requests].count(RPC) == 1  # it may have arrived


async def test_an_agent_that_says_nothing_is_left_after_its_time() -> None:
    async def say_nothing(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with WebServer() as web:
        web.pages = {CARD_PATH: card_page(web.url("")), RPC: say_nothing}
        assert await problem_of(remote(web.url(""), timeout_s=0.2)) == ("it does not answer in time", True)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_short_retry_after_is_waited_for(streaming: bool) -> None:
    async with run_a2a_server(streaming=streaming) as server, AgentTester(remote(server.url)) as t:
        server.refusals = [
            PlainTextResponse("busy", 429, {"Retry-After": "0"}),
            PlainTextResponse("busy", 503, {"Retry-After": "0"}),
        ]
        assert await t.say("say hello") == ["hello"]
        server.refusals = [PlainTextResponse("busy", 429, {"Retry-After": "3600"})]
        [text] = await t.say("say hello")
        assert text.endswith("it is not available now (HTTP 429); try again in 60 min.")
    assert [text for _, text, _ in server.executor.messages] == ["say hello"]


async def test_a_failure_while_a_task_is_followed_is_waited_for() -> None:
    async with run_a2a_server(streaming=False) as server, AgentTester(remote(server.url)) as t:
        asking = asyncio.create_task(t.ask("slow"))
        await eventually(lambda: len(server.requests) > 3)
        server.refusals = [PlainTextResponse("restarting", 502)] * 2
        await eventually(lambda: not server.refusals)
        server.executor.released.set()
        assert (await asking).text == "Begun. Done."


async def test_the_task_of_a_silent_stream_is_looked_up() -> None:
    async with run_a2a_server([REST]) as server, AgentTester(remote(server.url)) as t:
        asking = asyncio.create_task(t.ask("slow"))
        await eventually(lambda: asking.done() or bool(look_ups(server)))
        server.executor.released.set()
        assert (await asking).text == "Begun. Done."


async def test_a_piece_that_is_in_the_task_and_in_the_stream_that_was_joined_later_is_written_once() -> None:
    def task(text: str, state: str) -> dict[str, Any]:
        artifact = {"artifactId": "text", "parts": [{"text": text}]}
        return {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}, "artifacts": [artifact]}

    def stream(*events: dict[str, Any]) -> Response:
        lines = [f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': event})}\n\n" for event in events]
        return Response("".join(lines), media_type="text/event-stream")

    piece = {"taskId": "t", "contextId": "c", "artifact": {"artifactId": "text", "parts": [{"text": "Done."}]}, "append": True}
    end = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    fetched = [
        JSONResponse({"jsonrpc": "2.0", "id": 1, "result": task("Begun. Done.", state)})
        for state in ("WORKING", "WORKING", "COMPLETED")
    ]
    async with run_a2a_server([JSONRPC]) as server, AgentTester(remote(server.url)) as t:
        server.refusals = [
            stream({"task": task("Begun. ", "WORKING")}),
            fetched[0],
            stream({"task": task("Begun. Done.", "WORKING")}, {"artifactUpdate": piece}, {"statusUpdate": end}),
            *fetched[1:],
        ]
        assert (await t.ask("slow")).text == "Begun. Done."
        assert not server.refusals


@pytest.mark.parametrize("by", ["task", "artifactUpdate", "statusUpdate", "message", "look-up", "answer"])
async def test_an_event_of_another_task_is_refused_and_the_own_task_is_cancelled(by: str) -> None:
    def task(ident: str, state: str) -> dict[str, Any]:
        return {"id": ident, "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}}

    def stream(*events: dict[str, Any]) -> Response:
        lines = [f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': event})}\n\n" for event in events]
        return Response("".join(lines), media_type="text/event-stream")

    of_other = {"taskId": "other", "contextId": "c"}
    events: dict[str, dict[str, Any]] = {
        "task": {"task": task("other", "COMPLETED")},
        "artifactUpdate": {"artifactUpdate": {**of_other, "artifact": {"artifactId": "a", "parts": [{"text": "stolen"}]}}},
        "statusUpdate": {"statusUpdate": {**of_other, "status": {"state": "TASK_STATE_COMPLETED"}}},
        "message": {"message": {**of_other, "messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "stolen"}]}},
    }
    begun = {"task": task("t", "WORKING")}
    looked_up = JSONResponse({"jsonrpc": "2.0", "id": 1, "result": task("other", "COMPLETED")})
    async with run_a2a_server([JSONRPC]) as server, AgentTester(remote(server.url)) as t:
        code = ""
        if by == "look-up":
            server.refusals = [stream(begun), looked_up]
        elif by == "answer":
            server.refusals = [stream({"task": task("t", "INPUT_REQUIRED")})]
            code = code_of(await t.say("tea"))
            server.refusals = [stream({"task": task("other", "WORKING")})]
        else:
            server.refusals = [stream(begun, events[by])]
        count = len(server.requests) + len(server.refusals)
        said = await t.say(f"/answer {code} green" if by == "answer" else "tea")
        await t.settled()
        assert [*said, *t.unread()][-1].endswith("cannot answer: its answer belongs to another task.")
        await eventually(lambda: len(server.requests) > count)  # the last one cancels the task


@pytest.mark.parametrize("text", ["0 1 2 3 4", "another answer"])
@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("by_program", [True, False])
async def test_a_text_that_is_written_anew_under_another_id_takes_the_place_of_its_beginning(
    text: str, is_over: bool, by_program: bool
) -> None:
    def task(state: str, *artifacts: dict[str, Any]) -> dict[str, Any]:
        return {"id": "t", "contextId": "c", "status": {"state": f"TASK_STATE_{state}"}, "artifacts": artifacts}

    def artifact(ident: str, words: str) -> dict[str, Any]:
        return {"artifactId": ident, "parts": [{"text": words}]}

    def rpc(result: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "result": result}

    def stream(*events: dict[str, Any]) -> Response:
        return Response("".join(f"data: {json.dumps(rpc(event))}\n\n" for event in events), media_type="text/event-stream")

    first, rest = artifact("b", text[:6]), artifact("b", text[6:])
    done = JSONResponse(rpc(task("COMPLETED", artifact("b", text))))
    anew: list[dict[str, Any]] = [
        {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": first}},
        {"artifactUpdate": {"taskId": "t", "contextId": "c", "artifact": rest, "append": True, "lastChunk": True}},
    ]
    begun = [JSONResponse(rpc(task("WORKING"))), stream({"task": task("WORKING")}, *anew), done]
    async with run_a2a_server([JSONRPC]) as server, AgentTester(remote(server.url)) as t:
        server.refusals = [stream({"task": task("WORKING", artifact("a", "0 1 2 "))}), *([done] if is_over else begun)]
        if by_program:
            assert (await t.ask("slow")).text == text
        else:
            assert await t.say("slow") == [text]
        assert not server.refusals


async def test_an_agent_that_is_silent_when_its_task_is_looked_up_is_left_after_its_time() -> None:
    async def say_nothing(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with run_a2a_server([REST]) as server, AgentTester(remote(server.url)) as t:
        asking = asyncio.create_task(t.ask("slow"))
        await eventually(lambda: bool(server.executor.messages))
        server.refusals = [say_nothing] * 5
        with pytest.raises(PeerFailedError, match="it does not answer in time"):
            await asking
        assert len(look_ups(server)) <= 1


async def test_an_endless_stream_is_cut_off() -> None:
    event = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}
    line = f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': event})}\n\n".encode()

    async def stream(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + line)
        for _ in range(100):
            writer.write(b":" + b"x" * 1_000_000)
            await writer.drain()

    async with WebServer() as web:
        card = MessageToDict(make_card(web.url(""), [JSONRPC]))
        web.pages = {CARD_PATH: page(json.dumps(card).encode()), RPC: stream}
        assert await problem_of(remote(web.url(""))) == ("its answer has more than 4,194,304 bytes", False)


NUMBERS = {"x": [1] * 20_000}


@pytest.mark.parametrize("place", ["the card", "an answer", "an event", "an event in UTF-16"])
async def test_json_of_many_values_is_not_parsed(place: str) -> None:
    """The SDK takes microseconds for each value, and its reader of events decodes them as the answer says."""
    async with WebServer() as web:
        result = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": NUMBERS}]}}
        answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result})
        card = MessageToDict(make_card(web.url(""), [JSONRPC], streaming="event" in place))
        if place == "the card":
            card |= NUMBERS
        event, kind = f"data: {answer}\n\n".encode(), "Content-Type: text/event-stream"
        answers = {
            "an event": page(event, kind),
            "an event in UTF-16": page(f"data: {answer}\n\n".encode("utf-16"), f"{kind}; charset=utf-16"),
        }
        web.pages = {CARD_PATH: page(json.dumps(card).encode()), RPC: answers.get(place, page(answer.encode()))}
        with count_calls() as calls:
            problem, _ = await problem_of(remote(web.url("")))
        assert problem.startswith("its answer ")
        assert calls["_ConvertValueMessage"] < 1000


async def test_events_without_end_end_the_request_and_others_go_on() -> None:
    """Each event is read alone: between two of them the loop runs, also if they come at once."""
    artifact = {"artifactId": "a", "parts": [{"text": "x"}]}
    update = {"artifactUpdate": {"taskId": "t", "contextId": "c", "append": True, "artifact": artifact}}
    line = f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': update})}\n\n".encode()

    async def stream(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(line * 100)
                await writer.drain()

    async with WebServer() as web:
        card = MessageToDict(make_card(web.url(""), [JSONRPC]))
        web.pages = {CARD_PATH: page(json.dumps(card).encode()), RPC: stream}
        others = asyncio.create_task(count_turns_of_the_loop())
        assert await problem_of(remote(web.url(""))) == ("its answer has more than 10,000 messages", False)
        others.cancel()
        assert COUNTED["turns"] > 10_000


COUNTED = {"turns": 0}


async def count_turns_of_the_loop() -> None:
    """Count how often another task may go on."""
    COUNTED["turns"] = 0
    while True:
        await asyncio.sleep(0)
        COUNTED["turns"] += 1


async def test_an_answer_of_too_many_parts_is_cut_off() -> None:
    parts = [{"raw": "eA==", "filename": "x.txt"}] * 1200
    result = {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}}
    async with WebServer() as web:
        answer = page(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())
        web.pages = {CARD_PATH: card_page(web.url("")), RPC: answer}
        async with AgentTester(remote(web.url(""))) as t:
            with pytest.raises(PeerFailedError, match="its answer has more than 1,000 messages"):
                await t.ask("say hello")
            assert len(t.uploaded) == 1000


async def test_thoughts_without_end_are_not_shown_without_end() -> None:
    def event(status: dict[str, Any]) -> bytes:
        update = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}}
        return f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': update})}\n\n".encode()

    def thought(number: int) -> bytes:
        message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": f"thought {number}"}]}
        return event({"state": "TASK_STATE_WORKING", "message": message})

    stream = b"".join(map(thought, range(3000))) + event({"state": "TASK_STATE_COMPLETED"})
    async with WebServer() as web:
        card = MessageToDict(make_card(web.url(""), [JSONRPC]))
        web.pages = {CARD_PATH: page(json.dumps(card).encode()), RPC: page(stream, "Content-Type: text/event-stream")}
        async with AgentTester(remote(web.url(""))) as t:
            events: list[PeerEvent] = []
            await collect(t, "say hello", events)
    thoughts = [event.data["content"] for event in events if event.data.get("block_type") == "THOUGHT"]
    assert [thoughts.count("thought 999"), thoughts.count("thought 1000")] == [1, 0]


# Options


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"url": "agent.example"}, "options.url"),
        ({"url": "https://me:word@agent.example"}, "options.url"),
        ({"url": "https://agent.example", "poll_s": 0}, "options.poll_s"),
        ({"url": "https://agent.example", "allow_private": ["ten"]}, "options.allow_private"),
        ({"url": "https://agent.example", "headers": {"Authorization": 3}}, "options.headers"),
    ],
)
def test_a_wrong_option_is_named(options: Mapping[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RemoteA2AAgent(**options)
    assert raised.value.place.startswith(place)
    assert "word" not in str(raised.value)


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name in ('a2a', 'httpx') else find(name, *rest)\n"
        "from agents.a2a import RemoteA2AAgent\n"
        "try:\n    RemoteA2AAgent(url='https://agent.example')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "print([name for name in ('a2a', 'httpx', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("ConfigError options.url: agents elsewhere need the package a2a-sdk: pip install ")
    assert second == "[]"
