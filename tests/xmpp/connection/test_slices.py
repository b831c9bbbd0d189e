"""What one sender sends has a bounded share of the event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosting import Echo, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

STANZAS = 20_000
PRESENCES = 900
DISCO = "<query xmlns='http://jabber.org/protocol/disco#info'/>"
REJECTED = "too many stanzas from one sender"


async def test_much_that_comes_at_once_is_handled_in_slices_and_in_order(embedded: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), embedded, tmp_path) as agent:
        # The embedded server counts no stanzas, so some may come that it has not sent.
        client, dropped = agent.host.connection.client, agent.gateway.dropped
        before = dropped["no request"]
        stanza = "<message xmlns='jabber:client' type='headline' from='mallory@localhost'><body>x</body></message>"
        client.data_received((stanza * STANZAS).encode())
        assert 0 < dropped["no request"] - before < STANZAS
        await eventually(lambda: dropped["no request"] - before == STANZAS)


@pytest.mark.parametrize("stanza", ["presence", "iq"])
async def test_a_storm_of_presences_or_queries_costs_its_sender_only(
    real_server: XmppServer, tmp_path: Path, stanza: str
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as mallory,
        StockClient(*await real_server.account(), real_server) as bob,
    ):
        for number in range(PRESENCES):
            query = f"<iq xmlns='jabber:client' to='{agent.jid}/agent' type='get' id='{number}'>{DISCO}</iq>"
            presence = f"<presence xmlns='jabber:client' to='{agent.jid}'><status>{number}</status></presence>"
            mallory.send_xml(query if stanza == "iq" else presence)
        rejected = agent.host.connection.rejected
        await eventually(lambda: rejected[REJECTED] > 0)
        assert await bob.ask("hello", agent.jid) == "hello"
        assert await mallory.ask("hello", agent.jid) == "hello"
        await eventually(lambda: rejected[REJECTED] >= PRESENCES / 5)
