"""Tracebacks of stored and logged errors: the user's own code first, calls of libraries in one line."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from itertools import groupby

from ...domain.texts.error_chain import ChainedError, ErrorChain, StackFrame, format_frame
from ...domain.texts.terminal_text import escape_lines

_RELATIONS = {
    "cause": "The above exception was the direct cause of the following exception:",
    "context": "During handling of the above exception, another exception occurred:",
    "beside": "In the same group as the above exception:",
    "group": "The above exceptions are in this group:",
}


def format_traceback(chain: ErrorChain, *, shows_text: bool, shows_source: bool = False) -> str:
    """Format a chain of exceptions as Python does.

    `shows_text` adds the texts of the exceptions. `shows_source` adds lines of the code as it is now.
    """
    return escape_lines("\n".join(_format_lines(chain, shows_text, shows_source)))


def _format_lines(chain: ErrorChain, shows_text: bool, shows_source: bool) -> Iterator[str]:
    for error in chain:
        if error.relation:
            yield ""
            yield _RELATIONS[error.relation]
            yield ""
        if error.frames:
            yield "Traceback (most recent call last):"
            yield from _format_frames(error, shows_source)
        yield f"{error.type}: {error.text}" if shows_text and error.text else error.type


def _format_frames(error: ChainedError, shows_source: bool) -> Iterator[str]:
    for is_own, group in groupby(error.frames, lambda frame: frame.is_own):
        frames = list(group)
        if is_own:
            for frame in frames:
                yield f'  File "{frame.file}", line {frame.line}, in {frame.function}'
                source = linecache.getline(frame.file, frame.line).strip() if shows_source else ""
                if source:
                    yield f"    {source}"
        else:
            yield f"  ({_describe_calls(frames)})"
    if error.omitted:
        yield f"  ({error.omitted} more calls in between are omitted)"


def _describe_calls(frames: Sequence[StackFrame]) -> str:
    calls = "1 call" if len(frames) == 1 else f"{len(frames)} calls"
    return f"{calls} of libraries, to {frames[-1].function} at {format_frame(frames[-1])}"
