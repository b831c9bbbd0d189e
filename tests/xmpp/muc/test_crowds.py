"""A crowded room on a real server: the memory that it costs, and that occupants who leave are forgotten.

`make chaos` sets OCCUPANTS=998, with the agent and Alice a thousand; then it takes minutes, for everybody hears of everybody.
"""

from __future__ import annotations

import gc
import os
import secrets
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from spade_coreason.domain.rooms import RoomConfig
from tests.support.hosting import Echo, run_agent
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.crowd import HOST, ComponentEndpoint, Crowd
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person

OCCUPANTS = int(os.environ.get("OCCUPANTS", "120"))
ROOM_TIMEOUT_S = 60 + OCCUPANTS
BYTES_AN_OCCUPANT = 1_000


@pytest.mark.servers
@pytest.mark.timeout(60 + 4 * ROOM_TIMEOUT_S)
@pytest.mark.parametrize("kind", ["prosody", pytest.param("ejabberd", marks=pytest.mark.release)])
async def test_in_a_crowd_the_agent_answers_people_who_address_it_and_forgets_those_who_leave(
    kind: str, start_server: Callable[[XmppServer], XmppServer], tmp_path: Path
) -> None:
    module = {"prosody": prosody_server, "ejabberd": ejabberd_server}[kind]
    require({"prosody": "Prosody", "ejabberd": "ejabberd"}[kind], module.installed())
    endpoint = ComponentEndpoint()
    make = prosody_server.prosody if kind == "prosody" else ejabberd_server.ejabberd
    server = start_server(make(tmp_path / kind, crowd=endpoint))
    name, echo = f"room-{secrets.token_hex(3)}@muc.localhost", Echo()
    async with (
        StockClient(*await server.account(), server) as client,
        Crowd(endpoint) as crowd,
        run_agent(echo, server, tmp_path, rooms=[RoomConfig(name, "Echo")], access=(HOST, "localhost")) as agent,
    ):
        await eventually(lambda: agent.host.rooms.states.get(name) == "joined")
        room = agent.host.rooms.by_jid[name]

        tracemalloc.start()
        try:
            await crowd.join(name, OCCUPANTS, ROOM_TIMEOUT_S)
            await eventually(lambda: len(room.occupants) == OCCUPANTS, ROOM_TIMEOUT_S)
            await eventually(lambda: _measure_held() < OCCUPANTS * BYTES_AN_OCCUPANT + 20_000)  # a moment before, it read more
        finally:
            tracemalloc.stop()

        alice = await Person(client, name, "Alice").enter()
        for number in range(20):  # each comes to everybody
            crowd.say(name, number, "what does Echo: say?")
        alice.say("Echo: hello")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: hello"
        crowd.whisper(name, "Echo", 7, "psst")
        await eventually(lambda: [request.payload["query"] for request in echo.requests] == ["hello", "psst"])

        crowd.leave(name, *range(OCCUPANTS))
        await eventually(lambda: list(room.occupants) == ["Alice"], ROOM_TIMEOUT_S)
        assert len(room._nick_by_address) <= 1
        assert agent.host.peer_features._devices == {}
        assert [jid for jid in agent.host.client.client_roster if HOST in jid or name in jid] == []
        assert agent.host.connection.session_count == 1


def _measure_held() -> int:
    """Return the bytes that the package holds. Stanzas that were read are garbage."""
    gc.collect()
    ours = [tracemalloc.Filter(True, "*/spade_coreason/*")]
    return sum(entry.size for entry in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))
