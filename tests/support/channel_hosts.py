"""An agent with a channel of programs, behind one interface, so that a scenario runs on each channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import UUID, uuid4

from spade_coreason import AgentRequest, AgentTester
from spade_coreason.contracts import Interceptor
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.messages import Refused, Repeated
from spade_coreason.exceptions import PeerRefusedError
from spade_coreason.runtime import AgentRuntime, Channel
from spade_coreason.storage import AgentRepository, open_database
from spade_coreason.storage.backends.group_commit import Durability
from spade_coreason.testing import Policy
from tests.support.fetched_channel import NAME, FetchedChannel, texts_of
from tests.support.records import AGENT
from tests.support.runner import make_runtime
from tests.support.transports import make_transport

PROGRAM_JID = "program@localhost"


class ChannelHost(Protocol):
    """An agent that programs ask by one channel."""

    async def ask(self, query: str, request_id: UUID, thread: str = "t", sender: str = PROGRAM_JID) -> list[str]:
        """Ask, and return the texts of the reply. The first is "repeated" or "refused", if it is."""
        ...

    async def restart(self) -> None:
        """Stop without waiting for turns, and start again on the stored data."""
        ...


@asynccontextmanager
async def run_on_channels(
    url: str,
    agent: Any,
    channels: Mapping[str, Channel],
    policy: Policy | None = None,
    access: AccessPolicy | None = None,
    send: Callable[[list[str]], object] = lambda stanzas: None,
    durability: Durability = "off",
    interceptors: Sequence[Interceptor] = (),
) -> AsyncIterator[AgentRuntime]:
    """Run an agent on the database at a URL, with these channels beside XMPP, whose stanzas go to `send`, else nowhere."""
    database = await open_database(url, durability)
    network = make_transport(AGENT, send).network
    network = network._replace(channels={**network.channels, **channels})
    runtime = make_runtime(
        agent, AgentRepository(database, AGENT), network, policy, allow=None, access=access, interceptors=interceptors
    )
    await runtime.runner.open()
    runtime.runner.send_unsent()
    await runtime.open_channels()
    try:
        yield runtime
    finally:
        await runtime.runner.drain(0)
        await runtime.close_channels()
        await runtime.runner.close()
        await database.close()


class FetchedHost:
    """An agent with a `FetchedChannel`."""

    def __init__(self, url: str, agent: Any) -> None:
        self._url, self._agent = url, agent
        self.channel = FetchedChannel()

    async def __aenter__(self) -> FetchedHost:
        self._running = run_on_channels(self._url, self._agent, {NAME: self.channel})
        self.runtime = await self._running.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.__aexit__(None, None, None)

    async def restart(self) -> None:
        await self.__aexit__()
        await self.__aenter__()

    async def ask(self, query: str, request_id: UUID, thread: str = "t", sender: str = PROGRAM_JID) -> list[str]:
        events = [event async for event in self.channel.ask(sender, query, request_id, thread)]
        first = ["repeated"] if events[0]["type"] == Repeated.__name__ else []
        return ["refused"] if events[-1]["type"] == Refused.__name__ else first + texts_of(events)


class ProgramHost:
    """An agent that programs ask over XMPP."""

    def __init__(self, url: str, agent: Any) -> None:
        self._tester = AgentTester(agent, database=url)

    async def __aenter__(self) -> ProgramHost:
        await self._tester.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tester.__aexit__(None, None, None)

    async def restart(self) -> None:
        await self._tester.restart(0)

    async def ask(self, query: str, request_id: UUID, thread: str = "t", sender: str = PROGRAM_JID) -> list[str]:
        request = AgentRequest(session_id=uuid4(), request_id=request_id, payload={"query": query})
        try:
            events = [event async for event in self._tester.stream(request, user=sender, thread=thread)]
        except PeerRefusedError:
            return ["refused"]
        first = ["repeated"] if events[0].type == "request.repeated" else []
        return first + [event.data["content"] for event in events if event.type == "block.markdown"]


CHANNEL_HOSTS: dict[str, Callable[[str, Any], Any]] = {"program": ProgramHost, "fetched": FetchedHost}
