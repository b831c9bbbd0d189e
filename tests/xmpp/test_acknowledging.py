"""What a server does not ask about is acknowledged all the same, or it would be delivered again after the session's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import prosody as prosody_server
from tests.servers.clients import StockClient
from tests.servers.requirements import require
from tests.servers.server import XmppServer
from tests.waiting import eventually
from tests.xmpp.hosting import Echo, Hosted, hosted


@pytest.fixture(scope="module")
def seldom_asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[XmppServer]:
    """A Prosody that asks for an acknowledgement after fifty stanzas."""
    require("Prosody", prosody_server.installed())
    with prosody_server.prosody(tmp_path_factory.mktemp("seldom-asking"), unasked=50) as server:
        yield server


async def say_three(alice: StockClient, agent: Hosted) -> None:
    """Without ids, so that nobody could tell when they come again."""
    for number in range(3):
        alice.send(f"{number}", agent.jid, id="")
        await alice.answer()


async def test_soon_while_the_agent_runs(seldom_asking: XmppServer, tmp_path: Path) -> None:
    async with (
        hosted(Echo(), seldom_asking, tmp_path) as agent,
        StockClient(*await seldom_asking.account(), seldom_asking) as alice,
    ):
        client = agent.host.connection.client
        acknowledgements: list[str] = []
        send_raw = client.send_raw

        def watched(data: Any) -> None:
            if "<a " in str(data):
                acknowledgements.append(str(data))
            send_raw(data)

        client.send_raw = watched
        await say_three(alice, agent)
        await eventually(lambda: bool(acknowledgements))
        assert len(acknowledgements) == 1  # for all three
        client.sm.sm_id = None  # a new session, as after the end of the process
        client.abort()
        await eventually(lambda: agent.host.connection.sessions == 2, 10)
        assert await alice.ask("last", agent.jid) == "last"
        assert [request.payload["query"] for request in agent.agent.requests] == ["0", "1", "2", "last"]


async def test_at_once_when_the_agent_stops(seldom_asking: XmppServer, tmp_path: Path) -> None:
    async with (
        hosted(Echo(), seldom_asking, tmp_path) as agent,
        StockClient(*await seldom_asking.account(), seldom_asking) as alice,
    ):
        await say_three(alice, agent)
        await agent.stop()
        await agent.start()
        assert await alice.ask("last", agent.jid) == "last"
        assert [request.payload["query"] for request in agent.agent.requests] == ["0", "1", "2", "last"]
