"""The embedded server returns an error for a stanza that it cannot deliver. Neither it nor a session ends."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from slixmpp.exceptions import IqError

from spade_coreason.domain.rooms import RoomConfig
from tests.support.hosting import Echo, run_agent
from tests.support.processes import read_cpu_s
from tests.support.profiling import measure_cpu_s
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


async def test_an_agent_with_rooms_answers_on_a_server_without_rooms(
    embedded: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = "tea@muc.localhost"
    async with (
        StockClient(*await embedded.account(), embedded) as alice,
        run_agent(Echo(), embedded, tmp_path, rooms=[RoomConfig(room, "Echo")], invited_by=["*"]) as agent,
    ):
        await eventually(lambda: agent.host.rooms.states[room] == "away")
        alice.send(None, agent.jid, type="normal", extra_xml="<x xmlns='jabber:x:conference' jid='other@muc.localhost'/>")
        await eventually(lambda: agent.host.rooms.states.get("other@muc.localhost") == "away")
        assert await alice.ask("hello", agent.jid) == "hello"
        assert agent.host.connection.session_count == 1
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 2
        assert "not in the room tea@muc.localhost: away (remote-server-not-found)" in warnings[0]


@pytest.mark.parametrize("to", ["bob@elsewhere.org", "muc.localhost", "localhost", "{alice}/a/b", "nobody@@localhost"])
async def test_a_message_to_an_unreachable_address_is_returned(to: str, embedded: XmppServer) -> None:
    async with (
        StockClient(*await embedded.account(), embedded) as alice,
        StockClient(*await embedded.account(), embedded) as bob,
    ):
        ident = alice.send("hello?", to.format(alice=alice.jid))
        returned = await alice.message()
        assert (returned["type"], returned["id"]) == ("error", ident)
        alice.send("hello", bob.jid)
        assert (await bob.answer())["body"] == "hello"


async def test_a_question_to_a_server_that_it_cannot_reach_is_an_error(embedded: XmppServer) -> None:
    async with StockClient(*await embedded.account(), embedded, plugins=("xep_0092",)) as alice:
        with pytest.raises(IqError, match="remote-server-not-found"):
            await alice.xmpp.plugin["xep_0092"].get_version("muc.localhost", timeout=TIMEOUT_S)
        alice.send("note to myself", alice.jid)
        assert (await alice.answer())["body"] == "note to myself"


async def test_messages_to_an_account_that_is_away_wait_and_come_in_order(embedded: XmppServer) -> None:
    account = await embedded.account()
    async with StockClient(*await embedded.account(), embedded, plugins=("xep_0199",)) as alice:
        for ending in ("never online", "announced", "cut"):
            if ending != "never online":
                bob = StockClient(*account, embedded)
                await bob.connect()
                bob.cut() if ending == "cut" else await bob.close()
                await bob.disconnected.wait()
            for number in range(3):
                alice.send(f"{ending} {number}", account[0])
            alice.send(None, account[0], type="headline", extra_xml="<news xmlns='urn:example'/>")
            await alice.xmpp.plugin["xep_0199"].ping("localhost", timeout=TIMEOUT_S)  # the server has received them
            async with StockClient(*account, embedded) as bob:
                received = [await bob.message() for _ in range(3)]
                assert [message["body"] for message in received] == [f"{ending} {number}" for number in range(3)]
                assert {str(message["from"].bare) for message in received} == {alice.jid}
                assert all(message.xml.find("{urn:xmpp:delay}delay") is not None for message in received)
                alice.send("now", account[0])
                now = await bob.message()
                assert now["body"] == "now"
                assert now.xml.find("{urn:xmpp:delay}delay") is None


async def test_no_question_is_lost_while_an_agent_stops_and_starts_again(embedded: XmppServer, tmp_path: Path) -> None:
    agent = Echo()
    async with (
        StockClient(*await embedded.account(), embedded, plugins=("xep_0199",)) as alice,
        run_agent(agent, embedded, tmp_path) as online,
    ):
        for attempt in range(3):
            restarting = asyncio.create_task(online.restart())
            sent: set[str] = set()
            while not restarting.done():
                sent.add(question := f"{attempt}: {len(sent)}")
                alice.send(question, online.jid)
                await alice.xmpp.plugin["xep_0199"].ping("localhost", timeout=TIMEOUT_S)
            await restarting
            answered: set[str] = set()
            while answered != sent:
                answered.add(str((await alice.answer())["body"]))


async def test_an_account_costs_the_server_less_than_the_100_000_rounds_of_a_hash(embedded: XmppServer) -> None:
    hashes_s = 20 * measure_cpu_s(lambda: hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 100_000))
    before_s = read_cpu_s(embedded.pid)
    for _ in range(20):
        await embedded.account()
    assert read_cpu_s(embedded.pid) - before_s < hashes_s
