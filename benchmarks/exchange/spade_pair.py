"""Two SPADE agents as in SPADE's manual: one behaviour answers, one for each conversation asks. Nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spade.agent import Agent
from spade.behaviour import CyclicBehaviour, OneShotBehaviour
from spade.message import Message
from spade.template import Template

from .pair import TIMEOUT_S, AskInConversation, Place, ask_in_turn


class Echo(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
    """Answers every message with its own text."""

    async def run(self) -> None:
        """Answer the next message."""
        message = await self.receive(timeout=60)
        if message is not None:
            await self.send(message.make_reply())


class Ask(OneShotBehaviour):  # type: ignore[misc]  # as above
    """Asks one question after the other. Its template is the thread of its conversation."""

    def __init__(self, jid: str, thread: str, numbers: range) -> None:
        super().__init__()
        self._jid = jid
        self._thread = thread
        self._numbers = numbers
        self.latencies_ms: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Ask, and tell how long each took."""
        try:
            self.latencies_ms.set_result(await ask_in_turn(self._ask, self._numbers))
        except Exception as error:  # noqa: BLE001 - SPADE only logs it, and the round would never end
            self.latencies_ms.set_exception(error)

    async def _ask(self, text: str) -> str:
        # SPADE sends a thread only beside metadata, and messages in its manual have a performative.
        metadata = {"performative": "query-ref"}
        await self.send(Message(to=self._jid, body=text, thread=self._thread, metadata=metadata))
        reply = await self.receive(timeout=TIMEOUT_S)
        return "" if reply is None else str(reply.body)


@asynccontextmanager
async def answerer(place: Place) -> AsyncIterator[str]:
    """Run the agent that answers; yield its JID."""
    async with _online(place) as agent:
        agent.add_behaviour(Echo())
        yield str(agent.jid)


@asynccontextmanager
async def asker(place: Place) -> AsyncIterator[AskInConversation]:
    """Run the agent that asks."""
    async with _online(place) as agent:

        async def ask(conversation: int, numbers: range) -> list[float]:
            thread = f"conversation-{conversation}"
            behaviour = Ask(place.address, thread, numbers)
            agent.add_behaviour(behaviour, Template(thread=thread))
            return await behaviour.latencies_ms

        yield ask


@asynccontextmanager
async def _online(place: Place) -> AsyncIterator[Any]:
    class LocalAgent(Agent):  # type: ignore[misc]  # as above
        async def _async_connect(self) -> None:
            # SPADE only connects to the host of the JID's domain.
            online = asyncio.Event()
            self.client.add_event_handler("session_start", lambda _: online.set())
            self.client.add_event_handler("message", self._message_received)
            self.client.enable_direct_tls = False
            self.client.connect(host=place.host, port=place.port)
            await online.wait()

    jid, password = place.accounts[0]
    agent = LocalAgent(f"{jid}/agent", password, port=place.port)
    await agent.start(auto_register=False)
    try:
        yield agent
    finally:
        await agent.stop()
