"""The methods that this platform adds to the seed's handlers, with a substitute for each where a handler lacks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, runtime_checkable
from uuid import uuid4

from ..contracts import Interaction, ResponseHandler, SessionHandle, Stream, StreamHandle
from ..domain.texts.json_text import dump_json
from ..runtime import MAX_RESULT_BYTES

T = TypeVar("T")

_SUBSTITUTE_TURNS = 20
_RESERVED_BYTES = 1024  # of a stored result, for what stands around it


# Each has one method: a wrapper of a session or a response may lack those that a later version has added.


@runtime_checkable
class _WithWindow(Protocol):
    async def window(self) -> list[Interaction]: ...


@runtime_checkable
class _WithEnd(Protocol):
    def end(self) -> None: ...


@runtime_checkable
class _WithSteps(Protocol):
    async def run_once(self, name: str, function: Callable[..., Any], *args: Any) -> Any: ...


@runtime_checkable
class _WithStep(Protocol):
    async def step(self, content: str) -> None: ...


async def load_window(session: SessionHandle) -> list[Interaction]:
    """Load the turns that the memory policy selects, or the newest ones of a session without a window."""
    return await session.window() if isinstance(session, _WithWindow) else await session.history(_SUBSTITUTE_TURNS)


def end_episode(session: SessionHandle) -> None:
    """End the episode of the conversation. A session of the seed has no episodes."""
    if isinstance(session, _WithEnd):
        session.end()


async def run_once(session: SessionHandle, name: str, function: Callable[[str], Awaitable[T]], *args: str) -> T:
    """Run a durable step: `function` gets its idempotency key, and returns a JSON value. `args` tell what it does.

    A result that is too large to be stored is made again by a later run, with the same key. A session of the seed has no
    durable steps, so the function runs each time.
    """
    if not isinstance(session, _WithSteps):
        return await function(str(uuid4()))
    results: list[T] = []

    async def run(*args: str, idempotency_key: str) -> dict[str, Any]:
        results.append(result := await function(idempotency_key))
        is_small = len(dump_json(result).encode()) <= MAX_RESULT_BYTES - _RESERVED_BYTES
        return {"result": result} if is_small else {"key": idempotency_key}

    stored = await session.run_once(name, run, *args)
    if results:
        return results[0]
    result: T = stored["result"] if "result" in stored else await function(stored["key"])
    return result


async def show_step(response: ResponseHandler, content: str) -> None:
    """Send a step, or a thought where there are no steps."""
    await (response.step(content) if isinstance(response, _WithStep) else response.thought(content))


async def replace_stream(response: ResponseHandler, stream: StreamHandle, content: str, reason: str) -> None:
    """Replace the text of a stream. One that cannot be replaced is aborted, and `content` follows it."""
    if isinstance(stream, Stream):
        await stream.replace(content, reason)
    else:
        await stream.abort(reason)
        await response.markdown(content)
