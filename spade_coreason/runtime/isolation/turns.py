"""A turn, or a call of another method, that runs in the process of an agent: what it sends becomes calls of the response."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from ...contracts import AgentRequest, CloudEvent, Response, Session, Stream, read_graph_event
from ...domain.observability.tracing import TURN_TRACE
from ..turns.response import TurnResponse
from ..turns.steps import DurableStep, JournalAccess
from .frames import WINDOW_BYTES, Message, ProtocolError

MAX_REPLY_BYTES = 8 * 1024 * 1024
"""The most that one turn may send."""

_BLOCKS = frozenset({"thought", "step", "markdown", "ask", "data", "error", "log"})
_STREAM = frozenset({"write", "close", "abort", "replace"})


class _RemoteCall(NamedTuple):
    """A call of the response or the session. `call_id` is that of a call that waits for its answer."""

    name: str
    args: list[Any]
    size: int
    call_id: int | None


class TurnProcess(Protocol):
    """The process of a turn, as the turn uses it."""

    def send(self, message: Message) -> None:
        """Send a message to the process."""
        ...

    def answer(self, call_id: int, value: object, error: Exception | None) -> None:
        """Answer a call of the process with a value or an error."""
        ...

    def cancel(self, turn: OpenTurn) -> None:
        """Cancel a turn in the process."""
        ...

    def on_acknowledged(self, size: int) -> None:
        """Note that `size` bytes of replies were sent on."""
        ...


class _RecordedEvent:
    """An event that the process has written as JSON already."""

    def __init__(self, event: dict[str, Any]) -> None:
        self._event = event

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return self._event


class OpenTurn:
    """One turn in the process of an agent; without a session and a response it is a call of another method."""

    ORDERED = _BLOCKS | _STREAM | {"emit", "create_stream", "store", "end"}
    """The calls that are carried out in their order, within the turn."""

    def __init__(
        self,
        request: AgentRequest | None = None,
        session: Session | None = None,
        response: Response | None = None,
        journal: JournalAccess | None = None,
    ) -> None:
        self.id = 0
        self.request = request
        self.session = session
        self.response = response
        self.journal = journal
        self.trace = TURN_TRACE.get()
        self.steps: dict[tuple[str, int], DurableStep] = {}
        """The durable steps that the process has begun and not finished."""
        self.is_abandoned = False
        """True if nothing waits for the turn any more, although it has not ended."""
        self.is_ended = False
        self._value: object = None
        self._error: Exception | None = None
        self._has_cancelled = False
        self._failure: Exception | None = None
        """The error of a call of the response, which ends the turn."""
        self._calls: deque[_RemoteCall] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self._streams: list[Stream] = []
        self._total_bytes = 0
        self._unacknowledged_bytes = 0

    # Called by the process

    def put(self, name: str, args: list[Any], size: int, call_id: int | None) -> None:
        """Queue a call. ProtocolError if it is none, or the turn has ended."""
        if name not in self.ORDERED or not isinstance(args, list) or self.session is None or self.is_ended:
            raise ProtocolError(f"the call {name[:40]!r} out of turn")
        self._calls.append(_RemoteCall(name, args, size, call_id))
        self._wake()

    def end(self, value: object, error: Exception | None) -> None:
        """End the turn, after all calls before."""
        if self.is_ended:
            raise ProtocolError("a second end of a turn")
        self.is_ended, self._value, self._error = True, value, error
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    # Running

    async def run(self, process: TurnProcess) -> object:
        """Carry out what the turn sends until it ends, and return its result or raise its error.

        A cancellation is passed on. As in one process, the agent's code may then end in any way; if it does not end at all,
        its process is ended. An error of the response reaches the agent's code as a cancellation, and ends the turn.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                while self._calls:
                    await self._carry_out(self._calls.popleft(), process)
                if self.is_ended:
                    break
                self._wakeup = loop.create_future()
                await self._wakeup
            except asyncio.CancelledError:
                if not self._has_cancelled and not self.is_ended:
                    self._has_cancelled = True
                    process.cancel(self)
            finally:
                self._wakeup = None
        if self._failure is not None:
            raise self._failure
        if self._error is None:
            return self._value
        if self._has_cancelled and type(self._error).__name__ in ("CancelledError", "AgentProcessError"):
            raise asyncio.CancelledError
        raise self._error

    async def _carry_out(self, call: _RemoteCall, process: TurnProcess) -> None:
        self._total_bytes += call.size
        self._unacknowledged_bytes += call.size
        try:
            if self._failure is None and self._total_bytes > MAX_REPLY_BYTES:
                raise RuntimeError(f"a reply has more than {MAX_REPLY_BYTES:,} bytes, the limit")
            result = None if self._failure is not None else await self._apply(call.name, call.args)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the turn raises it, or the agent's code does
            if call.call_id is not None:
                process.answer(call.call_id, None, error)
            elif self._failure is None:
                self._failure = error
                process.cancel(self)
        else:
            if call.call_id is not None:
                process.answer(call.call_id, result, None)
        finally:
            process.on_acknowledged(call.size)
            if self._unacknowledged_bytes > WINDOW_BYTES // 4 and not self.is_ended:
                process.send(["acknowledged", self.id, self._unacknowledged_bytes])
                self._unacknowledged_bytes = 0

    async def _apply(self, name: str, args: list[Any]) -> object:
        response, session = self.response, self.session
        if session is not None and name == "store":
            key, value, scope = args
            await session.store(key, value, scope=scope) if scope is not None else await session.store(key, value)
        elif session is not None and name == "end":
            session.end()
        elif response is None:
            raise RuntimeError("a command has no response")
        elif name in _BLOCKS:
            await getattr(response, name)(*args)
        elif name in _STREAM:
            await getattr(self._streams[args[0]], name)(*args[1:])
        elif name == "emit":
            await response.emit(self._read_event(args[0]))
        else:
            stream = await response.create_stream(*args)
            self._streams.append(stream)
            return len(self._streams) - 1, stream.stream_id
        return None

    def _read_event(self, event: dict[str, Any]) -> Any:
        if isinstance(self.response, TurnResponse):
            return _RecordedEvent(event)
        with suppress(ValueError):
            return read_graph_event(event)
        return CloudEvent[Any].model_validate(event)
