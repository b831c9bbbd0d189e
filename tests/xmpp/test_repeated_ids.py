"""Clients that number their messages from 1 at each start: every message is answered, and a copy only once."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.hosting import Echo, OnlineAgent, Tunnel, run_agent, texts
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import SERVER_KINDS, GetServer
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.muc.test_rooms import Person, new_room, wait_until_joined

STARTS = 10
PREFIX = "heard: "
"""Without it, each message would look like an echo of the last answer."""
ORIGIN_ID = "<origin-id xmlns='urn:xmpp:sid:0' id='%s'/>"
DELAY = "<delay xmlns='urn:xmpp:delay' stamp='2026-11-20T10:00:00Z'/>"


@pytest.fixture(
    params=[
        pytest.param((kind, archive), marks=[pytest.mark.release] if kind == "ejabberd" else [])
        for kind in SERVER_KINDS
        for archive in (False, True)
    ],
    ids=str,
)
def any_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server, without an archive and with one; the test runs on Prosody, and on ejabberd before a release."""
    kind, archive = request.param
    return get_server(kind, archive=True) if archive else get_server(kind)


@pytest.fixture
def has_archive(request: pytest.FixtureRequest) -> bool:
    """True if `any_server` has an archive."""
    return bool(request.node.callspec.params["any_server"][1])


class CountingClient:
    """A client of one account that counts its messages from 1 at each start, and says nothing else about them."""

    def __init__(self, server: XmppServer, account: tuple[str, str]) -> None:
        self._server, self._account = server, account

    @asynccontextmanager
    async def start(self, resource: str = "psi") -> AsyncIterator[StockClient]:
        async with StockClient(*self._account, self._server, resource=resource, plugins=("xep_0199",)) as client:
            yield client
            await client.xmpp.plugin["xep_0199"].ping(client.xmpp.boundjid.domain, timeout=TIMEOUT_S)  # it has all


async def wait_for_next_second() -> None:
    """Wait for the next whole second: Prosody marks a message that it stores with no more."""
    await asyncio.sleep(1.05 - time.time() % 1)


def heard(answers: list[Any]) -> list[str]:
    """Return the texts that the agent answered."""
    return [text.removeprefix(PREFIX) for text in texts(answers)]


def assert_all_new(agent: OnlineAgent, count: int) -> None:
    """Assert that so many requests were run, each as one of its own."""
    requests = agent.agent.requests
    assert len(requests) == len({request.request_id for request in requests}) == count


async def test_a_client_that_counts_from_1_at_each_start_is_answered(any_server: XmppServer, tmp_path: Path) -> None:
    client, answers = CountingClient(any_server, await any_server.account()), []
    async with run_agent(Echo(prefix=PREFIX), any_server, tmp_path) as agent:
        for number in range(STARTS):
            async with client.start() as alice:
                for stanza_id in ("1", "2"):
                    alice.send("yes", agent.jid, id=stanza_id)
                    answers.append(await alice.answer())
            if number == STARTS // 2:
                await agent.restart()
        assert heard(answers) == ["yes"] * 2 * STARTS
        assert len({answer["id"] for answer in answers}) == 2 * STARTS
        assert_all_new(agent, 2 * STARTS)


@pytest.mark.parametrize("starts", [3, pytest.param(10, marks=pytest.mark.release)])
async def test_messages_with_the_same_id_to_an_agent_that_is_away_are_answered(
    any_server: XmppServer, has_archive: bool, tmp_path: Path, starts: int
) -> None:
    client = CountingClient(any_server, await any_server.account())
    async with run_agent(Echo(prefix=PREFIX), any_server, tmp_path) as agent:
        if has_archive:
            await eventually(lambda: agent.host.archive.is_caught_up)
        async with client.start() as alice:
            alice.send("yes", agent.jid, id="1")
            assert (await alice.answer())["body"] == "heard: yes"
        await agent.stop()
        agent.agent.requests.clear()
        for _ in range(starts):
            await wait_for_next_second()
            async with client.start() as alice:
                alice.send("yes", agent.jid, id="1")
        await agent.start()
        async with client.start() as alice:
            alice.send("yes", agent.jid, id="1")
            await eventually(lambda: len(agent.agent.requests) == starts + 1)
            alice.send("last", agent.jid, id="2")
            while (await alice.answer())["body"] != "heard: last":
                pass
        assert_all_new(agent, starts + 2)


async def test_two_devices_may_use_the_same_ids(any_server: XmppServer, tmp_path: Path) -> None:
    client = CountingClient(any_server, await any_server.account())
    async with (
        run_agent(Echo(prefix=PREFIX), any_server, tmp_path) as agent,
        client.start("desk") as desk,
        client.start("phone") as phone,
    ):
        desk.send("ok", agent.jid, id="1")
        phone.send("ok", agent.jid, id="1")
        assert heard([await desk.answer() for _ in range(2)]) == ["ok", "ok"]
        await agent.stop()
        for device in (desk, phone):
            await wait_for_next_second()
            device.send("ok", agent.jid, id="1")
        await agent.start()
        assert heard([await desk.answer() for _ in range(2)]) == ["ok", "ok"]
        assert_all_new(agent, 4)


async def test_a_client_that_counts_from_1_is_answered_in_a_room_and_in_private(any_server: XmppServer, tmp_path: Path) -> None:
    client, room = CountingClient(any_server, await any_server.account()), new_room()
    async with (
        StockClient(*await any_server.account(), any_server) as owner,
        run_agent(Echo(prefix=PREFIX), any_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)
        host = await Person(owner, room, "Host").enter()
        for number in range(STARTS):
            async with client.start() as alice:
                person = await Person(alice, room, "Alice").enter()
                alice.send("Echo: yes", room, type="groupchat", id="1")
                assert (await person.receive_from("Echo"))["body"].endswith("yes")
                alice.send("yes", f"{room}/Echo", id="2")
                assert (await alice.answer())["body"] == "heard: yes"
                alice.send_xml(f"<presence xmlns='jabber:client' to='{room}/Alice' type='unavailable'/>")
            await host.presence("Alice", "unavailable")
            if number == STARTS // 2:
                await agent.restart()
                await wait_until_joined(agent, room)
        assert_all_new(agent, 2 * STARTS)


async def test_a_message_with_a_long_origin_id_that_is_sent_again_is_answered_once(
    any_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(Echo(prefix=PREFIX), any_server, tmp_path) as agent,
        StockClient(*await any_server.account(), any_server) as alice,
    ):
        for origin_id, count in (("7bd6c0cd-0b8b-4b39", 1), ("7", 2)):
            for _ in range(2):
                alice.send("once", agent.jid, id="same", extra_xml=ORIGIN_ID % origin_id)
            alice.send("next", agent.jid)
            assert heard([await alice.answer() for _ in range(count + 1)]) == ["once"] * count + ["next"]
        await agent.restart()
        alice.send("once", agent.jid, id="same", extra_xml=ORIGIN_ID % "7bd6c0cd-0b8b-4b39")
        alice.send("next", agent.jid)
        assert (await alice.answer())["body"] == "heard: next"


@pytest.mark.parametrize("any_server", [("prosody", False), ("prosody", True), ("ejabberd", True)], ids=str, indirect=True)
async def test_an_id_of_the_server_that_a_sender_has_made_up_does_not_hide_a_message(
    any_server: XmppServer, has_archive: bool, tmp_path: Path
) -> None:
    """With an archive, the server's own id comes last. Without one, a sender can only hide messages of their own."""
    async with (
        run_agent(Echo(prefix=PREFIX), any_server, tmp_path) as agent,
        StockClient(*await any_server.account(), any_server) as alice,
    ):
        forged = f"<stanza-id xmlns='urn:xmpp:sid:0' by='{agent.jid}' id='forged'/>"
        for _ in range(2):
            alice.send("yes", agent.jid, id="1", extra_xml=forged)
        alice.send("next", agent.jid)
        count = 2 if has_archive else 1
        assert heard([await alice.answer() for _ in range(count + 1)]) == ["yes"] * count + ["next"]


@pytest.mark.parametrize("extra_xml", ["", DELAY], ids=["", "with a delay of the sender"])
async def test_what_the_server_repeats_after_a_resumption_is_answered_once(
    any_server: XmppServer, tmp_path: Path, extra_xml: str
) -> None:
    """Prosody adds no delay to what it repeats if the sender has supplied one."""
    timings = ConnectionTimings(resumption_wait_s=0.05)
    async with (
        Tunnel(any_server) as tunnel,
        StockClient(*await any_server.account(), any_server, plugins=("xep_0199",)) as alice,
        run_agent(Echo(prefix=PREFIX), any_server, tmp_path, port=tunnel.port, timings=timings) as agent,
    ):
        assert await alice.ask("before", agent.jid) == "heard: before"
        await agent.settled()
        with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("yes", agent.jid, id="1", extra_xml=extra_xml)
            await eventually(lambda: agent.runner.mailboxes.busy_count > 0)
            agent.cut()
            await eventually(lambda: agent.host.connection.resumption_count == 1)
            alice.send("yes", agent.jid, id="1")
            await alice.xmpp.plugin["xep_0199"].ping(f"{agent.jid}/agent", timeout=TIMEOUT_S)
        alice.send("next", agent.jid, id="2")
        answers = []
        while (answer := await alice.answer())["body"] != "heard: next":
            answers.append(answer)
        assert heard(answers) == ["yes", "yes"]
        assert [request.payload["query"] for request in agent.agent.requests] == ["before", "yes", "yes", "next"]
