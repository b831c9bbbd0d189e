"""Interceptors: extensions on the way of each request, before it is stored and around the agent."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from .authoring import Response, Session, Stream
from .errors import ErrorCode
from .events import CloudEvent, GraphEvent
from .questions import PersonAnswer
from .request import AgentRequest


class ReceivedRequest(Protocol):
    """A request that has arrived. Do not change its payload or its metadata."""

    @property
    def channel(self) -> str:
        """The kind of the sender: "person", "program", "door", "spade" or "room"; "schedule" for a due time."""
        ...

    @property
    def sender(self) -> str:
        """The full JID of the sender."""
        ...

    @property
    def owner(self) -> str:
        """The bare JID of the sender. In a room: the room, or the occupant if the message is private."""
        ...

    @property
    def thread(self) -> str | None:
        """The thread of the message, or of the recent message that it replies to."""
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
    def chain(self) -> Sequence[str]:
        """The agents that the request has passed through (bare JIDs), the first one first, as the last of them reports it."""
        ...

    @property
    def root_sender(self) -> str:
        """The bare JID of the person it goes back to, if agents that are trusted passed it on; else ""."""
        ...

    @property
    def content(self) -> str:
        """The text or the JSON of the message, as it came; "" for a due time."""
        ...

    @property
    def request_id(self) -> UUID | None:
        """The id that a program has given to the request, or that of a due time."""
        ...


@dataclass(frozen=True, slots=True)
class Accept:
    """The request may be stored and answered."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is refused. It is neither stored nor answered.

    Programs are told each time. People, rooms and SPADE agents are told at most once a minute, and not at all if `tells_people`
    is False. `retry_after_s` is the time in seconds after which a retry may succeed; None if a retry is useless. Raise
    ValueError for an unknown code, an empty text, or a time that is not a number of seconds.
    """

    code: ErrorCode
    text: str
    """The text that the sender reads."""
    retry_after_s: float | None = None
    tells_people: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", ErrorCode(self.code))
        if not isinstance(self.text, str) or not self.text.strip():
            raise ValueError(f"the text of a refusal must be a text for the sender, not {self.text!r}")
        wait_s = self.retry_after_s
        if wait_s is not None and not (isinstance(wait_s, int | float) and math.isfinite(wait_s) and wait_s >= 0):
            raise ValueError(f"retry_after_s must be a number of seconds, not {wait_s!r}")


Next: TypeAlias = Callable[[AgentRequest, Session, Response], Awaitable[None]]
"""The rest of the chain: the next interceptor, and the agent's `assist` behind the last one."""


class Interceptor:
    """Base class of interceptors. Override one method or both.

    An exception in either method counts as a refusal or as a failed turn. It never lets a request pass.
    """

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        """Decide on a request that has arrived.

        It is called in the order of arrival, before the request is stored, and not again for a request that it has accepted. A
        refused request is not stored; if it arrives again, it is decided again. It runs in the event loop, so it must not wait.

        Due times of schedules are decided too, except those of `@every`. One that is refused waits for `retry_after_s`, else
        for a minute, and is decided again.
        """
        return Accept()

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        """Do something around the turn. Unless it awaits `next(request, session, response)`, the agent does not run."""
        await next(request, session, response)


class ResponseWrapper(Response):
    """Base class of wrapped responses: passes every call on to `response`. Override what your interceptor changes."""

    def __init__(self, response: Response) -> None:
        self.response = response

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Pass a thought on."""
        await self.response.thought(content, status)

    async def step(self, content: str) -> None:
        """Pass a step on."""
        await self.response.step(content)

    async def markdown(self, content: str) -> None:
        """Pass a text on."""
        await self.response.markdown(content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Pass a question on."""
        await self.response.ask(question, choices)

    async def ask_person(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        to: str | None = None,
        timeout: timedelta = timedelta(days=7),
    ) -> PersonAnswer:
        """Pass a question on, for which the turn waits."""
        return await self.response.ask_person(question, choices=choices, schema=schema, to=to, timeout=timeout)

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Pass data on."""
        await self.response.data(data, title, view_hint)

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Pass an error on."""
        await self.response.error(message, details, recoverable)

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Stream:
        """Open a stream of the wrapped response. A wrapper that changes texts has to change those of streams too."""
        return await self.response.create_stream(title, metadata)

    async def emit(self, event: CloudEvent[Any] | GraphEvent) -> None:
        """Pass an event on."""
        await self.response.emit(event)

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Pass a line of the log on."""
        await self.response.log(level, message, metadata)

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Pass an entry of the audit trail on."""
        await self.response.audit(actor, action, resource, success)
