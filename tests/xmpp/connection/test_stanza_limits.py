"""A stanza that is too deep, or at which a handler fails, is dropped alone. The stream and the other messages live on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from spade_coreason.xmpp.connection.stream_parser import (
    MAX_ATTRIBUTES,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_STANZA_BYTES,
    TOO_LONG,
    StreamReader,
    find_excess,
)
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.prosody import prosody
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

DEEP = 900


def nest(depth: int, tag: str = "a") -> str:
    """Return so many elements within each other."""
    return f"<{tag} xmlns='urn:deep'>" + f"<{tag}>" * (depth - 1) + f"</{tag}>" * depth


def attributes(count: int) -> str:
    return " ".join(f"a{number}='1'" for number in range(count))


def read_one(stanza: str) -> Element:
    [element] = StreamReader().read(f"<stream xmlns='jabber:client'>{stanza}".encode())
    return element


@pytest.mark.parametrize(
    ("stanza", "excess"),
    [
        (f"<iq>{nest(MAX_DEPTH - 1)}</iq>", ""),
        (f"<iq>{nest(MAX_DEPTH)}</iq>", f"more than {MAX_DEPTH} levels"),
        (f"<iq>{nest(DEEP)}</iq>", f"more than {MAX_DEPTH} levels"),
        (f"<message>{'<b/>' * (MAX_ELEMENTS - 1)}</message>", ""),
        (f"<message>{'<b/>' * MAX_ELEMENTS}</message>", f"more than {MAX_ELEMENTS} elements"),
        (f"<message><b {attributes(MAX_ATTRIBUTES)}/></message>", ""),
        (f"<message><b {attributes(MAX_ATTRIBUTES + 1)}/></message>", f"more than {MAX_ATTRIBUTES} attributes"),
    ],
)
def test_the_limits_are_exact(stanza: str, excess: str) -> None:
    assert find_excess(read_one(stanza)) == excess


KINDS = {
    "unknown": nest(DEEP),
    "ping": f"<ping xmlns='urn:xmpp:ping'>{nest(DEEP)}</ping>",
    "version": f"<query xmlns='jabber:iq:version'>{nest(DEEP)}</query>",
    "disco": f"<query xmlns='http://jabber.org/protocol/disco#info'>{nest(DEEP)}</query>",
    "command": f"<command xmlns='http://jabber.org/protocol/commands' node='x'>{nest(DEEP)}</command>",
}


async def ask_raw(client: StockClient, stanza_id: str, stanza: str) -> Any:
    """Send an IQ as text, and return the reply."""
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def receive(iq: Any) -> Any:
        if iq["id"] == stanza_id and not replied.done():
            replied.set_result(iq)
            return None
        return iq

    client.xmpp.add_filter("in", receive)
    try:
        client.xmpp.send_raw(stanza)
        return await asyncio.wait_for(replied, TIMEOUT_S)
    finally:
        client.xmpp.del_filter("in", receive)


@pytest.mark.parametrize("kind", ["get", "set"])
async def test_deep_requests_are_answered_without_their_payload_and_the_stream_lives_on(
    real_server: XmppServer, tmp_path: Path, kind: str
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
        StockClient(*await real_server.account(), real_server) as mallory,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        for name, payload in KINDS.items():
            to = str(agent.host.connection.client.boundjid.full)
            reply = await ask_raw(mallory, name, f"<iq type='{kind}' id='{name}' to='{to}'>{payload}</iq>")
            assert (reply["type"], reply["error"]["condition"]) == ("error", "service-unavailable")
            assert reply.xml.find("{urn:deep}a") is None
        assert agent.host.connection.rejected == {f"more than {MAX_DEPTH} levels": len(KINDS)}
        assert await alice.ask("after", agent.jid) == "after"
        assert (agent.host.connection.session_count, agent.host.connection.resumption_count) == (1, 0)


@pytest.mark.parametrize("tag", ["message", "presence"])
async def test_other_deep_stanzas_are_dropped(real_server: XmppServer, tmp_path: Path, tag: str) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as mallory,
    ):
        to = str(agent.host.connection.client.boundjid.full)
        kind = " type='chat'" if tag == "message" else ""
        mallory.xmpp.send_raw(f"<{tag} to='{to}'{kind}><body>deep</body>{nest(DEEP)}</{tag}>")
        await eventually(lambda: bool(agent.host.connection.rejected))
        assert agent.host.connection.rejected == {f"more than {MAX_DEPTH} levels": 1}
        assert await mallory.ask("after", agent.jid) == "after"
        assert (agent.host.connection.session_count, agent.host.connection.resumption_count) == (1, 0)
        assert [request.payload["query"] for request in agent.agent.requests] == ["after"]


@pytest.mark.servers
async def test_a_stanza_that_is_too_long_costs_itself_only(
    tmp_path: Path, start_server: Callable[[XmppServer], XmppServer]
) -> None:
    server = start_server(prosody(tmp_path / "server", stanza_bytes=4 * MAX_STANZA_BYTES))
    async with (
        run_agent(Echo(), server, tmp_path) as agent,
        StockClient(*await server.account(), server) as mallory,
    ):
        connection = agent.host.connection
        to = str(connection.client.boundjid.full)
        long = "x" * (MAX_STANZA_BYTES + 2**20)
        mallory.xmpp.send_raw(f"<message to='{to}' type='chat'><body>{long}</body></message>")
        reply = await ask_raw(mallory, "long", f"<iq type='get' id='long' to='{to}'><a xmlns='urn:long'>{long}</a></iq>")
        assert reply["error"]["condition"] == "service-unavailable"
        assert connection.rejected == {TOO_LONG: 2}
        assert await mallory.ask("after", agent.jid) == "after"
        await agent.settled()
        assert (connection.session_count, connection.resumption_count) == (1, 0)
        assert [request.payload["query"] for request in agent.agent.requests] == ["after"]


async def test_a_handler_that_fails_costs_its_stanza_only(
    real_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("was handled")

    def fail(stanza: Any) -> Any:
        if stanza["id"] == "fatal":
            raise RecursionError("maximum recursion depth exceeded")
        return stanza

    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as mallory,
    ):
        connection = agent.host.connection
        connection.client.add_filter("in", fail)
        to = str(connection.client.boundjid.full)
        reply = await ask_raw(mallory, "fatal", f"<iq type='get' id='fatal' to='{to}'><ping xmlns='urn:xmpp:ping'/></iq>")
        assert reply["error"]["condition"] == "service-unavailable"
        assert await mallory.ask("after", agent.jid) == "after"
        await agent.settled()
        assert (connection.session_count, connection.resumption_count) == (1, 0)
        assert connection.rejected == {"an internal error": 1}
