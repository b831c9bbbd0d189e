"""Mutated stanzas at a running agent: no handler fails, the stream lives on, and a stranger makes no request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

import pytest
from hypothesis import given

from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.testing import Policy
from spade_coreason.xmpp.muc.membership import RoomState
from tests.support.hosting import Echo, OnlineAgent, record_sent, run_agent
from tests.support.mutations import IQS, bounded, many_in_release, mutated
from tests.support.servers.clients import StockClient
from tests.support.servers.prosody import prosody
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

ROOM = "room@muc.localhost"
STRANGERS = ["mallory@localhost/x", "mallory@example.org", "localhost", "example.org/x"]


def receive(agent: OnlineAgent, stanza: Element, caplog: pytest.LogCaptureFixture) -> None:
    """Let the agent receive a stanza as from its server. Fail if a handler does."""
    connection = agent.host.connection
    connection.client.data_received(tostring(stanza))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert connection.rejected.keys() <= {"more than 64 levels", "too many stanzas from one sender"}
    assert connection.client.is_connected()


async def ask_among_others(alice: StockClient, question: str, agent: OnlineAgent) -> None:
    """Ask a question, and skip the answers to what the agent received before."""
    alice.send(question, agent.jid, thread=question)
    async with asyncio.timeout(TIMEOUT_S):
        while (await alice.answer())["body"] != question:
            pass


@pytest.mark.servers
@many_in_release
@pytest.mark.parametrize("tag", ["message", "presence", "iq"])
async def test_mutated_stanzas_do_no_harm(
    tmp_path: Path, start_server: Callable[[XmppServer], XmppServer], caplog: pytest.LogCaptureFixture, tag: str, count: int
) -> None:
    caplog.set_level(logging.ERROR, "slixmpp")  # it logs what its handlers raise, ours among them
    # The server does not know these stanzas. With stream management it would count them.
    server = start_server(prosody(tmp_path / "server", smacks=False))
    alice_jid, password = await server.account()
    async with (
        run_agent(Echo(), server, tmp_path, access=[alice_jid], rooms=[RoomConfig(ROOM, "echo", answers="all")]) as agent,
        StockClient(alice_jid, password, server) as alice,
    ):
        await eventually(lambda: agent.host.rooms.states[ROOM] is RoomState.JOINED)
        assert await alice.ask("before", agent.jid) == "before"

        @bounded(count)
        @given(mutated((tag,), STRANGERS, agent.jid))
        def check_strangers(stanza: Element) -> None:
            receive(agent, stanza, caplog)

        check_strangers()
        await ask_among_others(alice, "between", agent)
        assert [request.payload["query"] for request in agent.agent.requests] == ["before", "between"]

        known = [f"{alice_jid}/x", alice_jid, ROOM, f"{ROOM}/nick", agent.jid, f"{agent.jid}/agent", None]

        @bounded(count)
        @given(mutated((tag,), known, agent.jid))
        def check_others(stanza: Element) -> None:
            receive(agent, stanza, caplog)

        check_others()
        await ask_among_others(alice, "after", agent)
        assert agent.host.connection.session_count == 1
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.servers
@many_in_release
async def test_mutated_requests_of_those_who_may_make_them_are_answered_each_once(
    tmp_path: Path, start_server: Callable[[XmppServer], XmppServer], caplog: pytest.LogCaptureFixture, count: int
) -> None:
    caplog.set_level(logging.ERROR, "slixmpp")
    server = start_server(prosody(tmp_path / "server", smacks=False))
    alice_jid, password = await server.account()
    policy = Policy(operators=frozenset({alice_jid}))
    async with (
        run_agent(Echo(), server, tmp_path, access=[alice_jid], policy=policy) as agent,
        StockClient(alice_jid, password, server) as alice,
    ):
        sent, asked = record_sent(agent), list[str]()
        for number, part in enumerate(IQS):

            @bounded(count // 5)
            @given(mutated(("iq",), [f"{alice_jid}/x", agent.jid, None], agent.jid, part))
            def check(stanza: Element) -> None:
                stanza.set("id", f"asked-{len(asked)}-")
                if stanza.get("type") in ("get", "set"):
                    asked.append(stanza.get("id", ""))
                receive(agent, stanza, caplog)

            check()
            await ask_among_others(alice, f"after {number}", agent)
        answered = Counter(re.findall(r"<iq[^>]* id=.(asked-\d+-)", "".join(sent)))
        assert {name: answered[name] for name in asked if answered[name] != 1} == {}
        assert agent.host.connection.session_count == 1
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
