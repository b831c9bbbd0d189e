"""What came in is acknowledged when it is durable, asked for or not: what is not is delivered again, and nothing else."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.hosting import Echo, OnlineAgent, Tunnel, run_agent
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually

Pool = Callable[[str], XmppServer]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Servers, each started when it is wanted first: "prosody", "seldom" is one that asks after fifty stanzas, "ejabberd"."""
    with ExitStack() as stack:

        @cache
        def server(kind: str) -> XmppServer:
            directory = tmp_path_factory.mktemp(kind)
            if kind == "ejabberd":
                require("ejabberd", ejabberd_server.installed())
                return stack.enter_context(ejabberd_server.ejabberd(directory))
            require("Prosody", prosody_server.installed())
            unasked, archive = (50, False) if kind == "seldom" else (50, True) if kind == "managed" else (None, False)
            return stack.enter_context(prosody_server.prosody(directory, unasked=unasked, archive=archive))

        yield server


@pytest.fixture
def seldom(pool: Pool) -> XmppServer:
    """A Prosody that asks for an acknowledgement after fifty stanzas."""
    return pool("seldom")


@pytest.fixture
def managed(pool: Pool) -> XmppServer:
    """One that has an archive too, as the one that `up` starts."""
    return pool("managed")


@pytest.fixture(params=["prosody", "seldom", "ejabberd"])
def each_server(request: pytest.FixtureRequest, pool: Pool) -> XmppServer:
    """The test runs on each of them."""
    return pool(request.param)


def asked(agent: OnlineAgent) -> list[str]:
    return [request.payload["query"] for request in agent.agent.requests]


async def say_three(alice: StockClient, agent: OnlineAgent) -> None:
    """Without ids, so that nobody could tell when they come again."""
    for number in range(3):
        alice.send(f"{number}", agent.jid, id="")
        await alice.answer()


def sent_by(agent: OnlineAgent, element: str) -> list[int]:
    """Each `h` that the agent sends in such elements, from now on."""
    client = agent.host.connection.client
    sent: list[int] = []
    send_raw = client.send_raw

    def watched(data: Any) -> None:
        sent.extend(int(h) for h in re.findall(rf"<{element} [^>]*\bh=['\"](\d+)", str(data)))
        send_raw(data)

    client.send_raw = watched
    return sent


@contextmanager
def locked(agent: OnlineAgent) -> Iterator[None]:
    """Nobody can write to the database meanwhile."""
    with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def held(agent: OnlineAgent) -> int:
    """A message has come in that is not durable yet; its number in the session."""
    sm = agent.host.connection.client.stream_management
    await eventually(lambda: any(not durable.done() for _, durable in sm._pending))
    return next(number for number, durable in sm._pending if not durable.done())


async def test_soon_while_the_agent_runs(seldom: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), seldom, tmp_path) as agent, StockClient(*await seldom.account(), seldom) as alice:
        connection = agent.host.connection
        sent = sent_by(agent, "a")
        await say_three(alice, agent)
        await eventually(lambda: sent[-1:] == [connection.client.stream_management.handled])
        assert await connection.wait_until_acknowledged(5.0)  # the server has read that
        connection.client.stream_management.sm_id = None  # a new session, as after the end of the process
        connection.client.abort()
        await eventually(lambda: connection.session_count == 2)
        assert await alice.ask("last", agent.jid) == "last"
        assert asked(agent) == ["0", "1", "2", "last"]


async def test_presences_and_iqs_too(seldom: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), seldom, tmp_path) as agent:
        sm = agent.host.connection.client.stream_management
        await eventually(lambda: sm.handled > 0 and sm._last_sent_count == sm.handled)


async def test_at_once_when_the_agent_stops(seldom: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), seldom, tmp_path) as agent, StockClient(*await seldom.account(), seldom) as alice:
        await say_three(alice, agent)
        await agent.stop()
        await agent.start()
        assert await alice.ask("last", agent.jid) == "last"
        assert asked(agent) == ["0", "1", "2", "last"]


async def test_what_is_durable_beside_what_is_not_yet(seldom: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), seldom, tmp_path) as agent, StockClient(*await seldom.account(), seldom) as alice:
        sm = agent.host.connection.client.stream_management
        assert await alice.ask("before", agent.jid) == "before"
        with locked(agent):
            alice.send("first", agent.jid)
            number = await held(agent)
            await eventually(lambda: sm._last_sent_count == number - 1)
            alice.send("second", agent.jid)
            await eventually(lambda: len(sm._pending) == 2)
        assert {(await alice.answer())["body"], (await alice.answer())["body"]} == {"first", "second"}
        await eventually(lambda: not sm._pending and sm._last_sent_count == sm.handled)


async def test_a_resumption_acknowledges_nothing_that_is_not_durable(each_server: XmppServer, tmp_path: Path) -> None:
    async with (
        Tunnel(each_server) as tunnel,
        run_agent(Echo(), each_server, tmp_path, port=tunnel.port, timings=ConnectionTimings(resumption_wait_s=0.1)) as agent,
        StockClient(*await each_server.account(), each_server) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        await agent.settled()
        connection = agent.host.connection
        resumed = sent_by(agent, "resume")
        with locked(agent):
            alice.send("hold this", agent.jid)
            number = await held(agent)
            tunnel.cut()
            await eventually(lambda: connection.resumption_count == 1)
            assert await held(agent) == number  # it came again
        assert resumed == [number - 1]
        assert (await alice.answer())["body"] == "hold this"
        assert await alice.ask("last", agent.jid) == "last"
        assert asked(agent) == ["before", "hold this", "last"]


async def resumes(agent: OnlineAgent) -> None:
    """The agent has logged in again, and is about to resume its session."""
    client = agent.host.connection.client
    await eventually(lambda: "mechanisms" in client.features and client.transport is not None)


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_resumption_waits_for_what_is_being_stored(each_server: XmppServer, tmp_path: Path, cuts: int) -> None:
    async with (
        Tunnel(each_server) as tunnel,
        run_agent(
            Echo(), each_server, tmp_path, port=tunnel.port, timings=ConnectionTimings(resumption_wait_s=PATIENCE_S)
        ) as agent,
        StockClient(*await each_server.account(), each_server) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        connection = agent.host.connection
        resumed = sent_by(agent, "resume")
        with locked(agent):
            alice.send("hold this", agent.jid, id="")
            number = await held(agent)
            for _ in range(cuts):  # the second while it waits
                tunnel.cut()
                await eventually(lambda: not agent.host.is_alive())
                await resumes(agent)
            assert resumed == []
        assert (await alice.answer())["body"] == "hold this"
        await eventually(lambda: connection.state == "online")
        assert len(resumed) == 1
        assert resumed[0] >= number
        assert connection.client.stream_management.enabled_in
        assert await alice.ask("last", agent.jid) == "last"
        assert connection.resumption_count == 1
        assert asked(agent) == ["before", "hold this", "last"]


async def test_by_the_archive_a_killed_agent_knows_what_comes_again(managed: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), managed, tmp_path) as agent, StockClient(*await managed.account(), managed) as alice:
        await say_three(alice, agent)
        await agent.vanish()
        await agent.start()
        alice.send("last", agent.jid)
        heard: list[str] = []
        while "last" not in heard:  # an answer that the server had not acknowledged is sent again, with its id
            heard.append((await alice.answer())["body"])
        assert asked(agent) == ["0", "1", "2", "last"]
