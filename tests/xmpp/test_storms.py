"""Machines that talk to machines cause no message storm: answers, errors, bounces and refusals are never answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from spade.agent import Agent
from spade.behaviour import CyclicBehaviour
from spade.message import Message

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import PeerUnavailableError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.testing import Policy, Rules
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S, eventually


class ReturningBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """Sends back every message."""

    def __init__(self, first: Message | None = None) -> None:
        super().__init__()
        self.received: list[str] = []
        self._first = first

    async def on_start(self) -> None:
        if self._first is not None:
            await self.send(self._first)

    async def run(self) -> None:
        message = await self.receive(timeout=TIMEOUT_S)
        if message is not None:
            self.received.append(message.body)
            await self.send(message.make_reply())


@asynccontextmanager
async def run_plain_spade_agent(server: XmppServer, behaviour: CyclicBehaviour) -> AsyncIterator[Agent]:
    """Run a SPADE agent without any code of the package."""
    jid, password = await server.account()
    agent = Agent(jid, password, port=server.port, verify_security=False)
    agent.add_behaviour(behaviour)
    await asyncio.wait_for(agent.start(auto_register=False), TIMEOUT_S)
    try:
        yield agent
    finally:
        behaviour.kill()
        await agent.stop()
        agent.client._run_out_filters.cancel()


async def _assert_quiet(agent: OnlineAgent, server: XmppServer) -> None:
    """Check that a new person is answered, and that nothing else happens before."""
    async with StockClient(*await server.account(), server) as bob:
        for number in range(3):
            assert await bob.ask(f"quiet {number}?", agent.jid) == f"quiet {number}?"


async def test_two_hosted_agents_do_not_answer_each_others_answers(local_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo("one"), local_server, tmp_path) as one, run_agent(Echo("two"), local_server, tmp_path) as two:
        await one.peers.tell(two.jid, "hello")
        await eventually(lambda: one.requests.dropped >= 2)
        # As text too: as if a person with the account of one had asked.
        one.host.send(
            [OutboundMessage(two.jid, f"<message to='{two.jid}' type='chat' id='p1'><body>hello, two</body></message>")]
        )
        await eventually(lambda: one.gateway.dropped["no request"] >= 1)
        await _assert_quiet(one, local_server)
        await _assert_quiet(two, local_server)
        assert len(two.agent.requests) == 2 + 3
        assert len(one.agent.requests) == 0 + 3


async def test_a_plain_spade_agent_that_answers_everything_is_paused(local_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), local_server, tmp_path) as echo:
        behaviour = ReturningBehaviour(Message(to=echo.jid, body="and you?"))
        async with run_plain_spade_agent(local_server, behaviour):
            await eventually(lambda: any("round in circles" in body for body in behaviour.received))
            await _assert_quiet(echo, local_server)
            received_count, turns = len(behaviour.received), len(echo.agent.requests) - 3
            assert 10 <= turns <= 12
            # Its answer to the notice was refused in silence, and that was all.
            await _assert_quiet(echo, local_server)
            assert len(behaviour.received) == received_count == turns + 1


async def test_two_machines_that_never_repeat_are_bounded_by_max_interactions(local_server: XmppServer, tmp_path: Path) -> None:
    number = iter(range(1_000_000))

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(f"something new: {next(number)}")

    class ChattingBehaviour(ReturningBehaviour):
        async def run(self) -> None:
            message = await self.receive(timeout=TIMEOUT_S)
            if message is not None:
                self.received.append(message.body)
                await self.send(Message(to=str(message.sender), body=f"and also {len(self.received)}"))

    policy = Policy(rules=Rules(max_interactions=25, cooldown_s=60))
    async with run_agent(FunctionAgent(assist), local_server, tmp_path, policy=policy) as agent:
        behaviour = ChattingBehaviour(Message(to=agent.jid, body="begin"))
        async with (
            run_plain_spade_agent(local_server, behaviour),
            StockClient(*await local_server.account(), local_server) as bob,
        ):
            await eventually(lambda: any("limited to 25 messages" in body for body in behaviour.received))
            for _ in range(3):
                await bob.ask("quiet?", agent.jid)
            assert len(behaviour.received) == 26


async def test_a_bounce_is_no_request_and_fails_the_call(any_server: XmppServer, tmp_path: Path) -> None:
    # The embedded server returns what is for another server, and takes in silence what is for nobody.
    nobody = f"nobody-here@{'elsewhere.org' if any_server.kind == 'embedded' else any_server.domain}"
    async with run_agent(Echo(), any_server, tmp_path) as echo:
        with pytest.raises(PeerUnavailableError, match=f"{nobody} is not available"):
            await echo.peers.ask(nobody, "hello?", timeout=TIMEOUT_S)
        # The bounce of a text has the body, on ejabberd.
        echo.host.send([OutboundMessage(nobody, f"<message to='{nobody}' type='chat' id='b'><body>hello?</body></message>")])
        await eventually(lambda: echo.requests.dropped >= 1)
        await _assert_quiet(echo, any_server)
        assert len(echo.agent.requests) == 3


async def test_errors_headlines_and_room_messages_are_never_answered(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        error = (
            "<error type='cancel'><service-unavailable xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
            "<x xmlns='jabber:x:data' type='form'><title>spade:x:metadata</title></x>"
        )
        alice.send("an error with a body", echo.jid, type="error", extra_xml=error)
        alice.send("an error without an error", echo.jid, type="error")
        alice.send("news", echo.jid, type="headline")
        alice.send("to a room", f"{echo.jid}/agent", type="groupchat")
        alice.send("marked as an answer", echo.jid, extra_xml="<answer xmlns='urn:spade-coreason:answer:0'/>")
        assert await alice.ask("a question", echo.jid) == "a question"
        assert [request.payload["query"] for request in echo.agent.requests] == ["a question"]


async def test_an_agent_answers_not_itself(local_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), local_server, tmp_path) as echo:
        echo.host.send(
            [OutboundMessage(echo.jid, f"<message to='{echo.jid}' type='chat' id='self'><body>me?</body></message>")]
        )
        await eventually(lambda: echo.gateway.dropped["from itself"] == 1)
        await _assert_quiet(echo, local_server)
        assert len(echo.agent.requests) == 3


async def test_a_stranger_is_refused_once_and_then_hears_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    stranger = await real_server.account(domain=OTHER_DOMAIN)
    async with run_agent(Echo(), real_server, tmp_path) as echo, StockClient(*stranger, real_server) as mallory:
        assert "You don't have access to me yet" in await mallory.ask("let me in", echo.jid)
        for number in range(3):
            mallory.send(f"please {number}", echo.jid, thread=str(number))
        await eventually(lambda: echo.gateway.dropped["not admitted"] == 4)
        await _assert_quiet(echo, real_server)
        assert mallory.messages.empty()
        assert len(echo.agent.requests) == 3
        await echo.restart()
        mallory.send("and now?", echo.jid)
        await eventually(lambda: echo.gateway.dropped["not admitted"] == 1)
        await _assert_quiet(echo, real_server)
        assert mallory.messages.empty()
    async with (
        run_agent(Echo(), real_server, tmp_path, access=[OTHER_DOMAIN]) as open_agent,
        StockClient(*stranger, real_server) as mallory,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await mallory.ask("let me in", open_agent.jid) == "let me in"
        assert "You don't have access to me yet" in await alice.ask("and me?", open_agent.jid)
    async with (
        run_agent(Echo(), real_server, tmp_path, access=[stranger[0]]) as agent_for_one,
        StockClient(*stranger, real_server) as mallory,
    ):
        assert await mallory.ask("by name", agent_for_one.jid) == "by name"
