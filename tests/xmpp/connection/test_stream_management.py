"""A received stanza is acknowledged when it is durable, requested or not. Only what is not acknowledged is delivered again."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.hosting import Echo, OnlineAgent, Tunnel, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import GetServer
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

OPTIONS: dict[str, dict[str, Any]] = {"seldom": {"max_unacked": 50}, "managed": {"max_unacked": 50, "archive": True}}
"""Of a Prosody: "seldom" asks for an acknowledgement after fifty stanzas."""


@pytest.fixture
def few_requests_server(get_server: GetServer) -> XmppServer:
    """A Prosody that asks for an acknowledgement after fifty stanzas."""
    return get_server("prosody", **OPTIONS["seldom"])


@pytest.fixture
def managed_server(get_server: GetServer) -> XmppServer:
    """A Prosody like "seldom" that has an archive too, as the one that `up` starts."""
    return get_server("prosody", **OPTIONS["managed"])


@pytest.fixture(params=["prosody", "seldom", "ejabberd"])
def each_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server; the test runs on each of these three."""
    return get_server("prosody", **OPTIONS["seldom"]) if request.param == "seldom" else get_server(request.param)


def queries_of(agent: OnlineAgent) -> list[str]:
    return [request.payload["query"] for request in agent.agent.requests]


async def send_three_messages(alice: StockClient, agent: OnlineAgent) -> None:
    """Send three messages without ids, so that the agent could not recognise them if they came again."""
    for number in range(3):
        alice.send(f"{number}", agent.jid, id="")
        await alice.answer()


def record_counts(host: HostedAgent, element: str) -> list[int]:
    """Record each `h` that the agent sends in elements of this name from now on."""
    client = host.connection.client
    counts: list[int] = []
    send_raw = client.send_raw

    def record(data: Any) -> None:
        counts.extend(int(h) for h in re.findall(rf"<{element} [^>]*\bh=['\"](\d+)", str(data)))
        send_raw(data)

    client.send_raw = record
    return counts


@contextmanager
def locked_database(agent: OnlineAgent) -> Iterator[None]:
    """Lock the agent's database against writing during the block."""
    with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def wait_for_unstored_message(agent: OnlineAgent) -> int:
    """Wait until a message has come in that is not durable yet; return its number in the session."""
    sm = agent.host.connection.client.stream_management
    await eventually(lambda: any(not durable.is_done for _, durable in sm._pending))
    return next(number for number, durable in sm._pending if not durable.is_done)


async def test_messages_are_acknowledged_soon_while_the_agent_runs(few_requests_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), few_requests_server, tmp_path) as agent,
        StockClient(*await few_requests_server.account(), few_requests_server) as alice,
    ):
        connection = agent.host.connection
        counts = record_counts(agent.host, "a")
        await send_three_messages(alice, agent)
        await eventually(lambda: counts[-1:] == [connection.client.stream_management.handled])
        assert await connection.wait_until_acknowledged(5.0)  # the server has read that
        connection.client.stream_management.sm_id = None  # a new session, as after the end of the process
        connection.client.abort()
        await eventually(lambda: connection.session_count == 2)
        assert await alice.ask("last", agent.jid) == "last"
        assert queries_of(agent) == ["0", "1", "2", "last"]


async def test_presences_and_iqs_are_acknowledged_too(few_requests_server: XmppServer, tmp_path: Path) -> None:
    counts: list[list[int]] = []
    async with run_agent(
        Echo(), few_requests_server, tmp_path, prepare=lambda host: counts.append(record_counts(host, "a"))
    ) as agent:
        sm = agent.host.connection.client.stream_management
        await eventually(lambda: sm.handled > 0 and counts[0][-1:] == [sm.handled])


async def test_messages_are_acknowledged_at_once_when_the_agent_stops(few_requests_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), few_requests_server, tmp_path) as agent,
        StockClient(*await few_requests_server.account(), few_requests_server) as alice,
    ):
        await send_three_messages(alice, agent)
        await agent.stop()
        await agent.start()
        assert await alice.ask("last", agent.jid) == "last"
        assert queries_of(agent) == ["0", "1", "2", "last"]


async def test_durable_messages_are_acknowledged_before_one_that_is_not(
    few_requests_server: XmppServer, tmp_path: Path
) -> None:
    counts: list[list[int]] = []
    async with (
        run_agent(Echo(), few_requests_server, tmp_path, prepare=lambda host: counts.append(record_counts(host, "a"))) as agent,
        StockClient(*await few_requests_server.account(), few_requests_server) as alice,
    ):
        sm, sent = agent.host.connection.client.stream_management, counts[0]
        assert await alice.ask("before", agent.jid) == "before"
        with locked_database(agent):
            alice.send("first", agent.jid)
            number = await wait_for_unstored_message(agent)
            await eventually(lambda: sent[-1:] == [number - 1])
            alice.send("second", agent.jid)
            await eventually(lambda: len(sm._pending) == 2)
        assert {(await alice.answer())["body"], (await alice.answer())["body"]} == {"first", "second"}
        await eventually(lambda: sent[-1:] == [sm.handled])


async def test_a_resumption_acknowledges_only_durable_messages(each_server: XmppServer, tmp_path: Path) -> None:
    async with (
        Tunnel(each_server) as tunnel,
        run_agent(Echo(), each_server, tmp_path, port=tunnel.port, timings=ConnectionTimings(resumption_wait_s=0.1)) as agent,
        StockClient(*await each_server.account(), each_server) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        await agent.settled()
        connection = agent.host.connection
        resumed = record_counts(agent.host, "resume")
        with locked_database(agent):
            alice.send("hold this", agent.jid)
            number = await wait_for_unstored_message(agent)
            tunnel.cut()
            await eventually(lambda: connection.resumption_count == 1)
            assert await wait_for_unstored_message(agent) == number  # it came again
        assert resumed == [number - 1]
        assert (await alice.answer())["body"] == "hold this"
        assert await alice.ask("last", agent.jid) == "last"
        assert queries_of(agent) == ["before", "hold this", "last"]


async def cut_until_resuming(tunnel: Tunnel, agent: OnlineAgent) -> None:
    """Cut the connection, and wait until the agent has logged in again and is about to resume its session."""
    client = agent.host.connection.client
    old_transport = client.transport
    tunnel.cut()
    await eventually(lambda: client.transport not in (None, old_transport) and "mechanisms" in client.features)


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_resumption_waits_for_messages_that_are_being_stored(
    each_server: XmppServer, tmp_path: Path, cuts: int
) -> None:
    async with (
        Tunnel(each_server) as tunnel,
        run_agent(
            Echo(), each_server, tmp_path, port=tunnel.port, timings=ConnectionTimings(resumption_wait_s=TIMEOUT_S)
        ) as agent,
        StockClient(*await each_server.account(), each_server) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        connection = agent.host.connection
        resumed = record_counts(agent.host, "resume")
        with locked_database(agent):
            alice.send("hold this", agent.jid, id="")
            number = await wait_for_unstored_message(agent)
            for _ in range(cuts):  # the second while it waits
                await cut_until_resuming(tunnel, agent)
            assert resumed == []
        assert (await alice.answer())["body"] == "hold this"
        await eventually(lambda: connection.state == "online")
        assert len(resumed) == 1
        assert resumed[0] >= number
        assert connection.client.stream_management.enabled_in
        assert await alice.ask("last", agent.jid) == "last"
        assert connection.resumption_count == 1
        assert queries_of(agent) == ["before", "hold this", "last"]


async def test_with_an_archive_a_killed_agent_recognises_redelivered_messages(
    managed_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Echo(), managed_server, tmp_path) as agent,
        StockClient(*await managed_server.account(), managed_server) as alice,
    ):
        await send_three_messages(alice, agent)
        await agent.crash()
        await agent.start()
        alice.send("last", agent.jid)
        answers: list[str] = []
        while "last" not in answers:  # an answer that the server had not acknowledged is sent again, with its id
            answers.append((await alice.answer())["body"])
        assert queries_of(agent) == ["0", "1", "2", "last"]
