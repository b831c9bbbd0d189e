"""What an agent is, and what it is given: structural Protocols (seed: Agent Behavior Protocols, Active Memory Interface)."""

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
    """The active memory of one conversation."""

    @property
    def session_id(self) -> str:
        """A UUID as text, the same after a restart."""
        ...

    @property
    def identity(self) -> Identity:
        """Who asks: their bare JID, their name, and whether it is a user or an agent."""
        ...

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """The most recent `limit` turns in chronological order, `offset` turns back from the newest."""
        ...

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """At most `limit` texts that speak of `query`, best first; of less than `threshold` (0 to 1) none. StoreError."""
        ...

    async def store(self, key: str, value: Any) -> None:
        """Keeps a variable (any JSON value) across turns and restarts: for this conversation, and for this person.

        ValueError for what is no JSON.
        """
        ...

    async def get(self, key: str, default: Any = None) -> Any:
        """A variable: that of this conversation, else that of this person with the agent, else `default`."""
        ...


@runtime_checkable
class EventSink(Protocol):
    """Where internal events go."""

    @abstractmethod
    def emit(self, event: CloudEvent[Any] | GraphEvent) -> Awaitable[None]:
        """Records an event with its turn (CloudEvents 1.0). RuntimeError when `assist` has returned."""
        ...

    @abstractmethod
    def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> Awaitable[None]:
        """Records a line as a CloudEvent, and logs it; `level` is a name of Python's logging, such as INFO. As `emit`."""
        ...

    @abstractmethod
    def audit(self, actor: str, action: str, resource: str, success: bool) -> Awaitable[None]:
        """Puts an entry into the audit trail, where it is durable then. StoreError where that cannot be; as `emit`."""
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
        """Says a piece of text; its spaces and line breaks are kept."""
        ...

    async def close(self) -> None:
        """Ends the stream."""
        ...

    async def abort(self, reason: str) -> None:
        """Ends the stream before its time; the response goes on. `reason` is for programs and the record."""
        ...


@runtime_checkable
class ResponseHandler(EventSink, Protocol):
    """Where an agent's answer goes. Nothing may be emitted after `assist` has returned."""

    @abstractmethod
    def thought(self, content: str, status: str = "IN_PROGRESS") -> Awaitable[None]:
        """Says what it is about; `status` is IN_PROGRESS or COMPLETE. RuntimeError after `assist`, as for all here."""
        ...

    @abstractmethod
    def markdown(self, content: str) -> Awaitable[None]:
        """Says a text in CommonMark, of any length."""
        ...

    @abstractmethod
    def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> Awaitable[None]:
        """Gives data (a JSON object); `view_hint` is TABLE, JSON, LIST or KEY_VALUE. Else a ValueError or TypeError."""
        ...

    @abstractmethod
    def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> Awaitable[None]:
        """Says that the request failed; whoever asked sees `message`, and `details` stay in the process."""
        ...

    @abstractmethod
    def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Awaitable[StreamHandle]:
        """Opens a stream, whose pieces are one text; any number may be open. What is left open is closed after `assist`."""
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
