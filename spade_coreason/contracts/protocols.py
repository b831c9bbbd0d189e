"""Structural Protocols of an agent, its session and its response.

Seed: Agent Behavior Protocols, Active Memory Interface.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

from .events import CloudEvent, GraphEvent
from .manifest import AgentDefinition
from .request import AgentRequest, Identity
from .session import Interaction


@runtime_checkable
class SessionHandle(Protocol):
    """The session that `assist` receives: the active memory of one conversation."""

    @property
    def session_id(self) -> str:
        """The id of the session: a UUID as text, the same after a restart."""
        ...

    @property
    def identity(self) -> Identity:
        """The sender of the request: bare JID, name, and the role "user" or "agent"."""
        ...

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """Return the most recent `limit` turns in chronological order, leaving out the newest `offset` turns."""
        ...

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """Return at most `limit` texts about `query`, best match first.

        Texts that score below `threshold` (0 to 1) are left out. Raise StoreError if storage cannot be read.
        """
        ...

    async def store(self, key: str, value: Any) -> None:
        """Store a variable (any JSON value) across turns and restarts, for this conversation and for this person.

        Raise ValueError if `value` is not JSON.
        """
        ...

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a variable: that of this conversation, else that of this person with the agent, else `default`."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """The receiver of an agent's internal events."""

    @abstractmethod
    def emit(self, event: CloudEvent[Any] | GraphEvent) -> Awaitable[None]:
        """Record an event with the turn (CloudEvents 1.0). Raise RuntimeError once `assist` has returned."""
        ...

    @abstractmethod
    def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> Awaitable[None]:
        """Log a line, and record it as a CloudEvent. `level` is a name of Python's logging, such as INFO.

        Raise RuntimeError once `assist` has returned.
        """
        ...

    @abstractmethod
    def audit(self, actor: str, action: str, resource: str, success: bool) -> Awaitable[None]:
        """Append an entry to the audit trail; it is durable when the call returns.

        Raise StoreError if it cannot be stored, and RuntimeError once `assist` has returned.
        """
        ...


@runtime_checkable
class StreamHandle(Protocol):
    """One stream of text. It is active until it is closed or aborted.

    `write` then raises RuntimeError; closing or aborting it again does nothing.
    """

    @property
    def stream_id(self) -> str:
        """The id of the stream: a UUID as text."""
        ...

    @property
    def is_active(self) -> bool:
        """True while the stream can be written to."""
        ...

    async def write(self, chunk: str) -> None:
        """Send a piece of text. Its spaces and line breaks are preserved."""
        ...

    async def close(self) -> None:
        """End the stream."""
        ...

    async def abort(self, reason: str) -> None:
        """End the stream early; the response continues. `reason` is sent to programs and recorded."""
        ...


@runtime_checkable
class ResponseHandler(EventSink, Protocol):
    """The reply to one request: an agent sends its parts here. Every method raises RuntimeError once `assist` has returned."""

    @abstractmethod
    def thought(self, content: str, status: str = "IN_PROGRESS") -> Awaitable[None]:
        """Send a thought: a text about what the agent is doing. `status` is IN_PROGRESS or COMPLETE."""
        ...

    @abstractmethod
    def markdown(self, content: str) -> Awaitable[None]:
        """Send a text in CommonMark, of any length."""
        ...

    @abstractmethod
    def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> Awaitable[None]:
        """Send data, a JSON object. `view_hint` is TABLE, JSON, LIST or KEY_VALUE.

        Raise ValueError or TypeError for any other value.
        """
        ...

    @abstractmethod
    def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> Awaitable[None]:
        """Report that the request failed. The sender of the request reads `message`; `details` stay in the process."""
        ...

    @abstractmethod
    def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Awaitable[StreamHandle]:
        """Open a stream, whose pieces form one text. Any number of streams may be open at once.

        Streams still open when `assist` returns are closed then.
        """
        ...


@runtime_checkable
class AgentInterface(Protocol):
    """An agent: a manifest and one coroutine."""

    @property
    @abstractmethod
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        ...

    @abstractmethod
    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Process one request, and send the reply through `response`."""
        ...


@runtime_checkable
class LifecycleInterface(Protocol):
    """Optional methods of an agent that opens and closes resources. Plain functions run in a thread; coroutines are awaited."""

    def startup(self) -> Any:
        """Open resources before the first request."""
        ...

    def shutdown(self) -> Any:
        """Close resources after the last request."""
        ...
