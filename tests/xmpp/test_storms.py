"""Machines that meet machines make no storm: answers are never answered, nor are errors, bounces and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from spade.agent import Agent
from spade.behaviour import CyclicBehaviour
from spade.message import Message

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.conversation import Rules
from spade_coreason.exceptions import PeerUnavailableError
from spade_coreason.runtime.policy import Policy
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import PATIENCE_S, eventually


class AnswersEverything(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """Sends back whatever comes in."""

    def __init__(self, first: Message | None = None) -> None:
        super().__init__()
        self.heard: list[str] = []
        self._first = first

    async def on_start(self) -> None:
        if self._first is not None:
            await self.send(self._first)

    async def run(self) -> None:
        message = await self.receive(timeout=PATIENCE_S)
        if message is not None:
            self.heard.append(message.body)
            await self.send(message.make_reply())


@asynccontextmanager
async def plain_spade(server: XmppServer, behaviour: CyclicBehaviour) -> AsyncIterator[Agent]:
    """A SPADE agent as anybody writes it, none of our code in it."""
    jid, password = await server.account()
    agent = Agent(jid, password, port=server.port, verify_security=False)
    agent.add_behaviour(behaviour)
    await asyncio.wait_for(agent.start(auto_register=False), PATIENCE_S)
    try:
        yield agent
    finally:
        behaviour.kill()
        await agent.stop()
        agent.client._run_out_filters.cancel()


async def _is_quiet(agent: OnlineAgent, server: XmppServer) -> None:
    """Somebody who asks now is answered, and nothing else happens before."""
    async with StockClient(*await server.account(), server) as bob:
        for number in range(3):
            assert await bob.ask(f"quiet {number}?", agent.jid) == f"quiet {number}?"


async def test_two_hosted_agents_do_not_answer_each_others_answers(our_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo("one"), our_server, tmp_path) as one, run_agent(Echo("two"), our_server, tmp_path) as two:
        await one.peers.tell(two.jid, "hello")
        await eventually(lambda: one.requests.dropped >= 2)
        # As text too: as if a person with the account of one had asked.
        one.host.send([f"<message to='{two.jid}' type='chat' id='p1'><body>hello, two</body></message>"])
        await eventually(lambda: one.gateway.dropped["no request"] >= 1)
        await _is_quiet(one, our_server)
        await _is_quiet(two, our_server)
        assert len(two.agent.requests) == 2 + 3
        assert len(one.agent.requests) == 0 + 3


async def test_a_plain_spade_agent_that_answers_everything_is_paused(our_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), our_server, tmp_path) as echo:
        behaviour = AnswersEverything(Message(to=echo.jid, body="and you?"))
        async with plain_spade(our_server, behaviour):
            await eventually(lambda: any("round in circles" in body for body in behaviour.heard))
            await _is_quiet(echo, our_server)
            heard, ran = len(behaviour.heard), len(echo.agent.requests) - 3
            assert 10 <= ran <= 12
            # Its answer to the notice was refused in silence, and that was all.
            await _is_quiet(echo, our_server)
            assert len(behaviour.heard) == heard == ran + 1


async def test_two_machines_that_never_repeat_are_bounded_by_max_interactions(our_server: XmppServer, tmp_path: Path) -> None:
    number = iter(range(1_000_000))

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(f"something new: {next(number)}")

    class Talks(AnswersEverything):
        async def run(self) -> None:
            message = await self.receive(timeout=PATIENCE_S)
            if message is not None:
                self.heard.append(message.body)
                await self.send(Message(to=str(message.sender), body=f"and also {len(self.heard)}"))

    policy = Policy(rules=Rules(max_interactions=25, cooldown=timedelta(seconds=60)))
    async with run_agent(FunctionAgent(assist), our_server, tmp_path, policy=policy) as agent:
        behaviour = Talks(Message(to=agent.jid, body="begin"))
        async with plain_spade(our_server, behaviour), StockClient(*await our_server.account(), our_server) as bob:
            await eventually(lambda: any("25 messages are the limit" in body for body in behaviour.heard))
            for _ in range(3):
                await bob.ask("quiet?", agent.jid)
            assert len(behaviour.heard) == 26


async def test_what_bounces_is_not_a_request_and_tells_who_asked(any_server: XmppServer, tmp_path: Path) -> None:
    # The embedded server returns what is for another server, and takes in silence what is for nobody.
    nobody = f"nobody-here@{'elsewhere.org' if any_server.kind == 'embedded' else any_server.domain}"
    async with run_agent(Echo(), any_server, tmp_path) as echo:
        with pytest.raises(PeerUnavailableError, match=f"{nobody} is not there"):
            await echo.peers.ask(nobody, "hello?", timeout=PATIENCE_S)
        # The bounce of a text has the body, on ejabberd.
        echo.host.send([f"<message to='{nobody}' type='chat' id='b'><body>hello?</body></message>"])
        await eventually(lambda: echo.requests.dropped >= 1)
        await _is_quiet(echo, any_server)
        assert len(echo.agent.requests) == 3


async def test_errors_headlines_and_room_messages_are_never_answered(our_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), our_server, tmp_path) as echo, StockClient(*await our_server.account(), our_server) as alice:
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


async def test_an_agent_answers_not_itself(our_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), our_server, tmp_path) as echo:
        echo.host.send([f"<message to='{echo.jid}' type='chat' id='self'><body>me?</body></message>"])
        await eventually(lambda: echo.gateway.dropped["from itself"] == 1)
        await _is_quiet(echo, our_server)
        assert len(echo.agent.requests) == 3


async def test_a_stranger_is_refused_once_and_then_hears_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    stranger = await real_server.account(domain=OTHER_DOMAIN)
    async with run_agent(Echo(), real_server, tmp_path) as echo, StockClient(*stranger, real_server) as mallory:
        assert "I may not talk with you" in await mallory.ask("let me in", echo.jid)
        for number in range(3):
            mallory.send(f"please {number}", echo.jid, thread=str(number))
        await eventually(lambda: echo.gateway.dropped["not admitted"] == 4)
        await _is_quiet(echo, real_server)
        assert mallory.messages.empty()
        assert len(echo.agent.requests) == 3
        await echo.restart()
        mallory.send("and now?", echo.jid)
        await eventually(lambda: echo.gateway.dropped["not admitted"] == 1)
        await _is_quiet(echo, real_server)
        assert mallory.messages.empty()
    async with (
        run_agent(Echo(), real_server, tmp_path, access=[OTHER_DOMAIN]) as open_house,
        StockClient(*stranger, real_server) as mallory,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await mallory.ask("let me in", open_house.jid) == "let me in"
        assert "I may not talk with you" in await alice.ask("and me?", open_house.jid)
    async with (
        run_agent(Echo(), real_server, tmp_path, access=[stranger[0]]) as for_one,
        StockClient(*stranger, real_server) as mallory,
    ):
        assert await mallory.ask("by name", for_one.jid) == "by name"
