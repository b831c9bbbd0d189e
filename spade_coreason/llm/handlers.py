"""The methods that this platform adds to the seed's handlers, with a substitute for each where a handler lacks them."""

from __future__ import annotations

from ..contracts import Interaction, Response, ResponseHandler, Session, SessionHandle, Stream, StreamHandle

_SUBSTITUTE_TURNS = 20


async def load_window(session: SessionHandle) -> list[Interaction]:
    """Load the turns that the memory policy selects, or the newest ones of a session without a window."""
    return await session.window() if isinstance(session, Session) else await session.history(_SUBSTITUTE_TURNS)


def end_episode(session: SessionHandle) -> None:
    """End the episode of the conversation. A session of the seed has no episodes."""
    if isinstance(session, Session):
        session.end()


async def show_step(response: ResponseHandler, content: str) -> None:
    """Send a step, or a thought where there are no steps."""
    await (response.step(content) if isinstance(response, Response) else response.thought(content))


async def replace_stream(response: ResponseHandler, stream: StreamHandle, content: str, reason: str) -> None:
    """Replace the text of a stream. One that cannot be replaced is aborted, and `content` follows it."""
    if isinstance(stream, Stream):
        await stream.replace(content, reason)
    else:
        await stream.abort(reason)
        await response.markdown(content)
