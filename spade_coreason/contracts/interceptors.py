"""Interceptors: code of yours on the way of each request, before it is stored and around the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from .authoring import Response, Session
from .errors import ErrorCode
from .request import AgentRequest


class ReceivedRequest(Protocol):
    """A request that has arrived. Do not change its payload or its metadata."""

    @property
    def channel(self) -> str:
        """The kind of the sender: "person", "program", "spade" or "room"."""
        ...

    @property
    def sender(self) -> str:
        """The full JID of the sender."""
        ...

    @property
    def owner(self) -> str:
        """The owner of the conversation: the bare JID of the sender, or a room, or the occupant of one who writes privately."""
        ...

    @property
    def thread(self) -> str | None:
        """The thread of the message, if it has one."""
        ...

    @property
    def payload(self) -> Mapping[str, Any]:
        """The payload, as in `AgentRequest`. The text of a person is its "query"."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that the message has. The platform adds some before the turn."""
        ...

    @property
    def hops(self) -> int:
        """The number of agents that have passed the request on."""
        ...

    @property
    def request_id(self) -> UUID | None:
        """The id that a program has given to the request."""
        ...


@dataclass(frozen=True, slots=True)
class Accept:
    """The request may be stored and answered."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is refused. It is neither stored nor answered.

    A program is told each time, a person at most once a minute. `retry_after_s` is the time in seconds after which a retry may
    succeed; None if a retry is useless.
    """

    code: ErrorCode
    text: str
    """The text that the sender reads."""
    retry_after_s: float | None = None


Next: TypeAlias = Callable[[AgentRequest, Session, Response], Awaitable[None]]
"""The rest of the chain: the next interceptor, and the agent's `assist` behind the last one."""


class Interceptor:
    """Base class of interceptors. Override one method or both.

    An exception in either method counts as a refusal or as a failed turn. It never lets a request pass.
    """

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        """Decide on a request that has arrived.

        It is called in the order of arrival, once for each new request before it is stored. Requests that come again, or run
        again after a restart, were decided before. It runs in the event loop, so it must not wait for anything.
        """
        return Accept()

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        """Do something around the turn. Unless it awaits `next(request, session, response)`, the agent does not run."""
        await next(request, session, response)
