"""What an agent is, and what it is given: structural Protocols (seed: Agent Behavior Protocols, Active Memory Interface)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

from .events import CloudEvent
from .graph import GraphEvent
from .identity import Identity
from .manifest import AgentDefinition
from .request import AgentRequest
from .session import Interaction


@runtime_checkable
class SessionHandle(Protocol):
    """The active memory of one conversation."""

    @property
    def session_id(self) -> str:
        """The id of the session, the same after a restart."""
        ...

    @property
    def identity(self) -> Identity:
        """Who asks."""
        ...

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """The most recent `limit` turns in chronological order, `offset` turns back from the newest."""
        ...

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """What is known about `query`, best first; `threshold` is 0 to 1."""
        ...

    async def store(self, key: str, value: Any) -> None:
        """Keeps a variable (any JSON value) across turns and restarts."""
        ...

    async def get(self, key: str, default: Any = None) -> Any:
        """A variable, or `default`."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """Where internal events go."""

    @abstractmethod
    def emit(self, event: CloudEvent[Any] | GraphEvent) -> Awaitable[None]:
        """Takes any event."""
        ...

    @abstractmethod
    def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> Awaitable[None]:
        """Takes a log line, wrapped in a CloudEvent."""
        ...

    @abstractmethod
    def audit(self, actor: str, action: str, resource: str, success: bool) -> Awaitable[None]:
        """Takes an audit entry."""
        ...


@runtime_checkable
class StreamHandle(Protocol):
    """One stream: open, active, then closed or aborted. `write` after that is a `RuntimeError`; a second end does nothing."""

    @property
    def stream_id(self) -> str:
        """A UUID."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether it can be written to."""
        ...

    async def write(self, chunk: str) -> None:
        """Emits a piece of text."""
        ...

    async def close(self) -> None:
        """Ends the stream."""
        ...

    async def abort(self, reason: str) -> None:
        """Ends the stream before its time; the response goes on."""
        ...


@runtime_checkable
class ResponseHandler(EventSink, Protocol):
    """Where an agent's answer goes. Nothing may be emitted after `assist` has returned."""

    @abstractmethod
    def thought(self, content: str, status: str = "IN_PROGRESS") -> Awaitable[None]:
        """Emits a thinking block."""
        ...

    @abstractmethod
    def markdown(self, content: str) -> Awaitable[None]:
        """Emits a markdown block."""
        ...

    @abstractmethod
    def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> Awaitable[None]:
        """Emits a data block; `view_hint` is TABLE, JSON, LIST or KEY_VALUE."""
        ...

    @abstractmethod
    def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> Awaitable[None]:
        """Emits an error that concerns the whole request."""
        ...

    @abstractmethod
    def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Awaitable[StreamHandle]:
        """Opens a stream."""
        ...


@runtime_checkable
class AgentInterface(Protocol):
    """An agent: a manifest, and one coroutine."""

    @property
    @abstractmethod
    def manifest(self) -> AgentDefinition:
        """What it is and can do."""
        ...

    @abstractmethod
    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Processes one request; the answer goes through `response`."""
        ...


@runtime_checkable
class LifecycleInterface(Protocol):
    """Optional: resources to open and close. Plain functions (run in a thread) or coroutines."""

    def startup(self) -> Any:
        """Before the first request."""
        ...

    def shutdown(self) -> Any:
        """After the last one."""
        ...
