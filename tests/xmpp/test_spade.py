"""Plain SPADE agents talk with hosted ones in their own form, and SPADE's behaviours work beside ours."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade.agent import Agent
from spade.behaviour import CyclicBehaviour, OneShotBehaviour
from spade.message import Message
from spade.template import Template

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.jid import bare_jid
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S


@asynccontextmanager
async def run_plain_spade_agent(server: XmppServer, behaviour: Any, template: Template | None = None) -> AsyncIterator[Agent]:
    """Run a SPADE agent without any code of the package."""
    jid, password = await server.account()
    agent = Agent(jid, password, port=server.port, verify_security=False)
    agent.add_behaviour(behaviour, template)
    await asyncio.wait_for(agent.start(auto_register=False), TIMEOUT_S)
    try:
        yield agent
    finally:
        behaviour.kill()
        await agent.stop()
        agent.client._run_out_filters.cancel()


class AskingBehaviour(OneShotBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """Sends one message and waits for a reply that matches its template."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self._message = message
        self.answer: Message | None = None

    async def run(self) -> None:
        await self.send(self._message)
        self.answer = await self.receive(timeout=TIMEOUT_S)


async def test_a_plain_spade_agent_is_answered_so_that_its_template_matches(local_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), local_server, tmp_path) as echo:
        request_metadata = {"performative": "request", "reply-with": "order-7", "ontology": "trade", "protocol": "fipa-request"}
        asking = AskingBehaviour(Message(to=echo.jid, body="a price, please", thread="deal-1", metadata=request_metadata))
        reply_metadata = {"performative": "inform", "in-reply-to": "order-7", "ontology": "trade"}
        # The embedded server gives no agent the resource that it asks for.
        sender = f"{echo.jid}/agent" if local_server.kind == "prosody" else None
        template = Template(sender=sender, thread="deal-1", metadata=reply_metadata)
        async with run_plain_spade_agent(local_server, asking, template) as plain:
            await asyncio.wait_for(asking.join(), TIMEOUT_S)
            assert asking.answer is not None
            assert asking.answer.body == "a price, please"
            assert asking.answer.get_metadata("protocol") == "fipa-request"
            [request] = echo.agent.requests
            assert request.metadata["conversation_id"] == "deal-1"
            assert request.metadata["performative"] == "request"
            assert request.metadata["channel"] == "spade"
            assert bare_jid(request.metadata["sender"]) == plain.jid.bare


async def test_a_failure_has_the_performative_failure(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("ValueError: no price")

    class FailingAgent(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            raise ValueError("no price")

    async with run_agent(FailingAgent(), prosody, tmp_path) as agent:
        asking = AskingBehaviour(Message(to=agent.jid, body="a price, please", metadata={"performative": "request"}))
        async with run_plain_spade_agent(prosody, asking, Template(metadata={"performative": "failure"})):
            await asyncio.wait_for(asking.join(), TIMEOUT_S)
            assert asking.answer is not None
            assert "Something went wrong" in asking.answer.body


class UploadingBehaviour(OneShotBehaviour):  # type: ignore[misc]  # as above
    """A behaviour that a user adds to a hosted agent."""

    link: str | None = None

    async def run(self) -> None:
        self.link = await self.upload_file("prices.txt", io.BytesIO(b"bread 3"))


async def test_a_behaviour_of_a_hosted_agent_uploads_as_in_spade(upload_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), upload_server, tmp_path) as agent:
        uploading = UploadingBehaviour()
        agent.host.add_behaviour(uploading)
        await asyncio.wait_for(uploading.join(), TIMEOUT_S)
        assert uploading.link is not None
        assert uploading.link.endswith("/prices.txt")


class ServingBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """A behaviour that a user adds to a hosted agent."""

    def __init__(self) -> None:
        super().__init__()
        self.received: asyncio.Queue[Message] = asyncio.Queue()

    async def run(self) -> None:
        message = await self.receive(timeout=TIMEOUT_S)
        if message is not None:
            self.received.put_nowait(message)
            reply = message.make_reply()
            reply.set_metadata("performative", "agree")
            reply.body = "from the behaviour"
            await self.send(reply)


async def test_a_behaviour_with_a_template_beside_ours(local_server: XmppServer, tmp_path: Path) -> None:
    serving = ServingBehaviour()

    def add(host: Agent) -> None:
        host.add_behaviour(serving, Template(metadata={"performative": "cfp"}))

    async with (
        run_agent(Echo(), local_server, tmp_path, prepare=add) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        asking = AskingBehaviour(Message(to=echo.jid, body="who offers?", thread="t1", metadata={"performative": "cfp"}))
        async with run_plain_spade_agent(local_server, asking, Template(metadata={"performative": "agree"})):
            await asyncio.wait_for(asking.join(), TIMEOUT_S)
            assert asking.answer is not None
            assert asking.answer.body == "from the behaviour"
        assert (await asyncio.wait_for(serving.received.get(), TIMEOUT_S)).thread == "t1"
        # What matches no template is answered by the agent, and what matches one is not answered twice.
        assert await alice.ask("and me?", echo.jid) == "and me?"
        assert [request.payload["query"] for request in echo.agent.requests] == ["and me?"]
        assert echo.gateway.dropped["claimed by a behaviour"] == 1


async def test_a_behaviour_without_a_template_hears_everything_beside_the_agent(prosody: XmppServer, tmp_path: Path) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()

    class ListeningBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            message = await self.receive(timeout=TIMEOUT_S)
            if message is not None:
                received.put_nowait(message.body)

    async with (
        run_agent(Echo(), prosody, tmp_path) as echo,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        echo.host.add_behaviour(ListeningBehaviour())  # to a running agent
        assert await alice.ask("hello", echo.jid, thread="t") == "hello"
        assert await asyncio.wait_for(received.get(), TIMEOUT_S) == "hello"


async def test_a_behaviour_that_fails_hurts_nobody(prosody: XmppServer, tmp_path: Path) -> None:
    class FailingBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            if await self.receive(timeout=TIMEOUT_S):
                raise ValueError("broken")

    class FailingTemplate(Template):  # type: ignore[misc]  # SPADE comes without types
        def match(self, message: Message) -> bool:
            raise ValueError("broken too")

    async with (
        run_agent(Echo(), prosody, tmp_path) as echo,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        echo.host.add_behaviour(FailingBehaviour())
        assert await alice.ask("one", echo.jid) == "one"
        echo.host.add_behaviour(FailingBehaviour(), FailingTemplate())
        assert await alice.ask("two", echo.jid) == "two"
        assert echo.host.is_alive()
        assert echo.host.connection.resumption_count == 0
