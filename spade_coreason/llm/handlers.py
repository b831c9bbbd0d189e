"""The methods that this platform adds to the seed's handlers, with a substitute for each where a handler lacks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from uuid import uuid4

from ..contracts import Interaction, ResponseHandler, RiskLevel, SessionHandle, Stream, StreamHandle
from ..contracts.authoring import OnUncertain
from ..domain.texts.json_text import dump_json
from ..runtime import MAX_RESULT_BYTES, ApprovalCall, ApprovalDecision

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
    async def run_once(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any: ...


class TurnApprovals(Protocol):
    """The approvals of one turn, as tools use them."""

    @property
    def from_risk(self) -> RiskLevel | None:
        """The risk from which the settings require an approval. None: from none on."""
        ...

    async def decide(
        self, calls: Sequence[ApprovalCall], approvers: str | None, timeout: timedelta | None = None
    ) -> list[ApprovalDecision]:
        """Ask for the approval of calls, all at once, and return the decisions in their order."""
        ...


@runtime_checkable
class _WithApprovals(Protocol):
    @property
    def open_approvals(self) -> Callable[[], TurnApprovals]: ...


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


def open_approvals(session: SessionHandle) -> TurnApprovals | None:
    """Return the approvals of a turn; None if no one can be asked, as in a session of the seed."""
    return session.open_approvals() if isinstance(session, _WithApprovals) else None


async def run_once(
    session: SessionHandle,
    name: str,
    function: Callable[[str], Awaitable[T]],
    *args: str,
    on_uncertain: OnUncertain = "retry",
) -> T:
    """Run a durable step: `function` gets its idempotency key, and returns a JSON value. `args` tell what it does.

    A result that is too large to be stored is made again by a later run, with the same key; with `on_uncertain` "fail" it is
    None then. A session of the seed has no durable steps, so the function runs each time.
    """
    if not isinstance(session, _WithSteps):
        return await function(str(uuid4()))
    results: list[T] = []

    async def run(*args: str, idempotency_key: str) -> dict[str, Any]:
        results.append(result := await function(idempotency_key))
        is_small = len(dump_json(result).encode()) <= MAX_RESULT_BYTES - _RESERVED_BYTES
        return {"result": result} if is_small else {"key": idempotency_key}

    options = {} if on_uncertain == "retry" else {"on_uncertain": on_uncertain}
    stored = await session.run_once(name, run, *args, **options)
    if results:
        return results[0]
    if "result" in stored or on_uncertain == "fail":
        return cast(T, stored.get("result"))
    return await function(stored["key"])


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
