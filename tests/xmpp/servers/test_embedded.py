"""The embedded server returns an error for a stanza that it cannot deliver. Neither it nor a session ends."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from slixmpp.exceptions import IqError

from spade_coreason.xmpp.muc.room import RoomConfig
from tests.support.hosting import Echo, run_agent
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
