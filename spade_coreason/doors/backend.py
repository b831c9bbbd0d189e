"""The backend of an agent behind doors: the agent here (`LocalAgentBackend`), or one that another worker serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from ..contracts import AgentRequest, ErrorCode
from ..domain.identifiers import derive_request_key
from ..domain.texts.translation import use_language
from ..runtime import RequestState
from ..storage import AgentRepository, KnownRequest
from .caller import Caller
from .channel import NOT_STORED, DoorChannel, DoorEvent, DoorReply, make_refusal, make_request

_SILENCE_S = 5.0
"""The time after which a request that was refused without a word counts as refused."""

ListCommands: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]
"""A function that returns the commands that a person (a bare JID) may send, with what they do."""


class UnansweredRequest(NamedTuple):
    """A request that is not answered: when it came, whether it waits for a person's answer, and its JSON."""

    received_at: datetime
    is_parked: bool
    request: str


class CallerRequests(Protocol):
    """The requests of callers to one agent. It may be in another worker: arguments and results have types.

    A method that has to ask the agent raises ConnectionError while it does not run.
    """

    async def is_allowed(self, caller: Caller) -> bool:
        """Return True if a caller may ask now. What reads stored requests without asking the agent has to look here."""
        ...

    async def find_state(self, caller: Caller, request_id: UUID) -> RequestState | None:
        """Return the state of a request of a caller; None without one within seven days."""
        ...

    async def cancel(self, caller: Caller, request_id: UUID) -> bool:
        """Cancel a request of a caller that is not answered. Return False if there is none."""
        ...

    async def find(self, caller: Caller, request_id: UUID) -> KnownRequest | None:
        """Return a request of a caller as it is stored; None without one within seven days."""
        ...

    async def list_open(self, caller: Caller) -> list[UnansweredRequest]:
        """Return the requests of a caller that are not answered."""
        ...

    async def list_commands(self, caller: Caller, language: str | None) -> list[tuple[str, str]]:
        """Return the commands that a caller may send, with what they do, in a language (a tag of BCP 47)."""
        ...


class AgentBackend(Protocol):
    """An agent as doors ask it. A method that has to ask the agent raises ConnectionError while it does not run."""

    @property
    def requests(self) -> CallerRequests:
        """The requests of callers to the agent."""
        ...

    @property
    def is_open(self) -> bool:
        """True while the agent runs, or may be awaited."""
        ...

    async def is_paused(self) -> bool:
        """Return True while an operator has paused the agent. It stores what it is asked, and answers when the pause ends."""
        ...

    async def ask(
        self, caller: Caller, request: AgentRequest, thread: str | None, metadata: Mapping[str, Any], *, waits: bool
    ) -> DoorReply:
        """Put a request in, and return its reply. A request with a known id is not asked again: its reply is repeated.

        If it is refused, the first event says so. `waits` is that of `DoorReply`.
        """
        ...

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool = False) -> DoorReply | None:
        """Return the reply to an earlier request of a caller, from its beginning. None without one within seven days.

        If the request still runs, the rest follows. `waits` is that of `DoorReply`. An event `request.refused` concerns the
        fetch then, such as too many of them, and not the request.
        """
        ...


class LocalAgentBackend:
    """An agent of this process. While it does not run, the methods wait for it, at most for `wait_s` seconds.

    It is an `AgentBackend` and its own `CallerRequests`: both need the same channel.
    """

    def __init__(
        self,
        channel: DoorChannel,
        get_repository: Callable[[], AgentRepository],
        is_paused: Callable[[], bool],
        wait_s: float = 0.0,
        list_commands: ListCommands = lambda person: (),
    ) -> None:
        self._list_commands = list_commands
        self._channel = channel
        self._get_repository = get_repository
        self._is_paused = is_paused
        self._wait_s = wait_s

    @property
    def requests(self) -> CallerRequests:
        return self

    @property
    def is_running(self) -> bool:
        """True while the agent runs."""
        return self._channel.is_open

    @property
    def is_open(self) -> bool:
        return self._channel.is_open or self._wait_s > 0

    async def _wait(self) -> DoorChannel:
        if not self._channel.is_open and self._wait_s:
            await self._channel.wait_until_open(self._wait_s)
        return self._channel

    async def is_allowed(self, caller: Caller) -> bool:
        return (await self._wait()).gateway.is_allowed(caller.address)

    async def is_paused(self) -> bool:
        return self._is_paused()

    async def ask(
        self, caller: Caller, request: AgentRequest, thread: str | None, metadata: Mapping[str, Any], *, waits: bool
    ) -> DoorReply:
        channel = await self._wait()
        gateway = channel.gateway
        reply = channel.open_reply(caller, request.request_id, waits=waits)
        incoming = make_request(reply, dict(request.payload), thread, metadata, request)
        reply.stored = gateway.receive(incoming, channel=caller.channel)
        if reply.stored is None:
            asyncio.get_running_loop().call_later(_SILENCE_S, _refuse_silently, reply)
        else:
            reply.stored.on_failed(lambda _: reply.put(NOT_STORED))
        return reply

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool = False) -> DoorReply | None:
        channel = await self._wait()
        reply, is_known = channel.open_reply(caller, request_id, waits=waits), False
        try:
            is_known = await channel.repeat(reply)
        finally:
            if not is_known:
                reply.close()
        return reply if is_known else None

    async def find_state(self, caller: Caller, request_id: UUID) -> RequestState | None:
        return await (await self._wait()).gateway.find_state(caller.address, request_id, channel=caller.channel)

    async def cancel(self, caller: Caller, request_id: UUID) -> bool:
        channel = await self._wait()
        cancelled = channel.gateway.cancel_request(caller.address, request_id)
        if cancelled is None or not await cancelled:
            return False
        for reply in channel.find_replies(caller.address, request_id):
            reply.put(DoorEvent("request.cancelled", {}))
        return True

    async def find(self, caller: Caller, request_id: UUID) -> KnownRequest | None:
        await self._wait()  # its keys are known then
        key = derive_request_key(self._channel.agent, caller.address, request_id)
        return await self._get_repository().inbox.load_request(key.bytes, caller.address)

    async def list_open(self, caller: Caller) -> list[UnansweredRequest]:
        await self._wait()
        found = await self._get_repository().inbox.load_open_of(caller.address, caller.channel)
        return [UnansweredRequest(*each) for each in found]

    async def list_commands(self, caller: Caller, language: str | None) -> list[tuple[str, str]]:
        with use_language(language):
            return list(self._list_commands(caller.address))


def _refuse_silently(reply: DoorReply) -> None:
    if not reply.has_begun:
        reply.put(make_refusal("the request is refused", ErrorCode.TOO_MANY_REQUESTS, 60.0))
