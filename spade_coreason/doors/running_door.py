"""An agent as doors ask it: here (`LocalDoor`), or in another worker, which answers as a `RunningDoor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from ..contracts import AgentRequest
from ..domain.identifiers import derive_request_key
from ..domain.texts.translation import use_language
from ..runtime import RequestState
from ..storage import AgentRepository, KnownRequest
from .caller import Caller
from .channel import DoorChannel, DoorReply

ListCommands: TypeAlias = Callable[[str], Iterable[tuple[str, str]]]
"""A function that returns the commands that a person (a bare JID) may send, with what they do."""


class UnansweredRequest(NamedTuple):
    """A request that is not answered: when it came, whether it waits for a person's answer, and its JSON."""

    received_at: datetime
    is_parked: bool
    request: str


class DoorQueries(Protocol):
    """The methods of a door whose arguments and results become JSON. None of `RunningAgent` has the same name."""

    async def is_allowed(self, caller: Caller) -> bool:
        """Return True if a caller may ask now."""
        ...

    async def find_state(self, caller: Caller, request_id: UUID) -> RequestState | None:
        """Return the state of a request of a caller, or None."""
        ...

    async def cancel(self, caller: Caller, request_id: UUID) -> bool:
        """Cancel a request of a caller that is not answered. Return False if there is none."""
        ...

    async def find_request(self, caller: Caller, request_id: UUID) -> KnownRequest | None:
        """Return a request of a caller as it is stored; None without one within seven days."""
        ...

    async def list_open(self, caller: Caller) -> list[UnansweredRequest]:
        """Return the requests of a caller that are not answered."""
        ...

    async def list_commands(self, caller: Caller, language: str | None) -> list[tuple[str, str]]:
        """Return the commands that a caller may send, with what they do, in a language (a tag of BCP 47)."""
        ...


class AgentDoor(DoorQueries, Protocol):
    """An agent as doors ask it. A method that has to ask the agent raises ConnectionError while it does not run."""

    @property
    def is_open(self) -> bool:
        """True while the agent runs."""
        ...

    async def is_paused(self) -> bool:
        """Return True while an operator has paused the agent."""
        ...

    async def ask(
        self, caller: Caller, request: AgentRequest, thread: str | None, metadata: Mapping[str, Any], *, waits: bool
    ) -> DoorReply:
        """Put a request in, and return its reply."""
        ...

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool) -> DoorReply | None:
        """Return the reply to an earlier request of a caller. None without such a request."""
        ...


class LocalDoor:
    """An agent of this process (`AgentDoor`). While it does not run, its methods wait for it, at most for `wait_s` seconds."""

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
    def is_running(self) -> bool:
        """True while the agent runs."""
        return self._channel.is_open

    @property
    def is_open(self) -> bool:
        """True while the agent runs, or may be awaited."""
        return self._channel.is_open or self._wait_s > 0

    async def _wait(self) -> DoorChannel:
        if not self._channel.is_open and self._wait_s:
            await self._channel.wait_until_open(self._wait_s)
        return self._channel

    async def is_allowed(self, caller: Caller) -> bool:
        return (await self._wait()).is_allowed(caller)

    async def is_paused(self) -> bool:
        return self._is_paused()

    async def ask(
        self, caller: Caller, request: AgentRequest, thread: str | None, metadata: Mapping[str, Any], *, waits: bool
    ) -> DoorReply:
        return (await self._wait()).ask(caller, request, thread, metadata, waits=waits)

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool) -> DoorReply | None:
        return await (await self._wait()).fetch(caller, request_id, waits=waits)

    async def find_state(self, caller: Caller, request_id: UUID) -> RequestState | None:
        return await (await self._wait()).find_state(caller, request_id)

    async def cancel(self, caller: Caller, request_id: UUID) -> bool:
        return await (await self._wait()).cancel(caller, request_id)

    async def find_request(self, caller: Caller, request_id: UUID) -> KnownRequest | None:
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


class Reader(NamedTuple):
    """The place where a reply is read in another worker: the id of that worker, its mailbox, and a key."""

    worker: int
    mailbox: str
    key: str


class Accepted(NamedTuple):
    """A worker and its mailbox, from which the events of a reply come.

    `is_new` is False for a request that was stored before, and None for one that is refused.
    """

    worker: int
    mailbox: str
    is_new: bool | None


class RunningDoor(DoorQueries, Protocol):
    """The door of an agent, as another worker asks its worker."""

    async def ask_door(
        self,
        reader: Reader,
        caller: Caller,
        request: AgentRequest,
        thread: str | None,
        metadata: dict[str, Any],
        waits: bool,
        traceparent: str,
    ) -> Accepted:
        """Put a request in, and send its reply to a reader. It is stored then, unless it is refused.

        `traceparent` is the header of the HTTP request; "" without one.
        """
        ...

    async def fetch_at_door(self, reader: Reader, caller: Caller, request_id: UUID, waits: bool) -> Accepted | None:
        """Send the reply to an earlier request to a reader. Return None without such a request."""
        ...
