"""Exceptions as values: an exception with those that led to it, each with its type, its text and its frames in the code."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ...exceptions import describe_text

Relation: TypeAlias = Literal["", "cause", "context", "beside", "group"]
"""The relation of an error to the one before it: raised from it (cause), raised while it was handled (context), in the same
group (beside), or the group that holds those before it."""

_RELATIONS: tuple[Relation, ...] = get_args(Relation)
_NONE, _CAUSE, _CONTEXT, _BESIDE, _GROUP = _RELATIONS

MAX_CHAINED_ERRORS = 10
MAX_TEXT_CHARACTERS = 2000
_MAX_NAME_CHARACTERS = 300
_MAX_FIRST_FRAMES = 10
_MAX_LAST_FRAMES = 30
_MAX_GROUP_DEPTH = 3

_PLATFORM_DIRECTORY = str(Path(__file__).parents[2])
_PACKAGE_DIRECTORIES = tuple(map(sysconfig.get_path, ("purelib", "platlib")))
_PYTHON_DIRECTORIES = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib")))


def _as_prefixes(*directories: str) -> tuple[str, ...]:
    return tuple(f"{directory}{os.sep}" for directory in directories)


_PLATFORM_PREFIXES = _as_prefixes(_PLATFORM_DIRECTORY)
_PACKAGE_PREFIXES = _as_prefixes(*_PACKAGE_DIRECTORIES)
_PYTHON_PREFIXES = (*_as_prefixes(*_PYTHON_DIRECTORIES), "<")


class StackFrame(NamedTuple):
    """A call on the way to an error. `is_own` is False for calls in the platform, the standard library and other packages."""

    file: str
    line: int
    function: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class ChainedError:
    """One exception of a chain.

    `type` has the module, unless it is a built-in. `frames` begin with the first call of the user's own code, the innermost
    last; `omitted` counts the frames that are left out after the first ten. `text` may quote a person.
    """

    type: str
    frames: tuple[StackFrame, ...]
    relation: Relation = ""
    omitted: int = 0
    text: str = ""

    @property
    def short_type(self) -> str:
        """The name of the type without its module."""
        return self.type.rpartition(".")[2]


ErrorChain: TypeAlias = tuple[ChainedError, ...]
"""The exceptions that led to an error in the order in which they were raised; the last is the error itself."""


def describe_error_chain(error: BaseException) -> ErrorChain:
    """Return an exception as a chain of limited size: at most ten errors, with 40 frames and 2,000 characters each."""
    return tuple(_describe(error, 0))[-MAX_CHAINED_ERRORS:]


def find_frame(chain: ErrorChain) -> StackFrame | None:
    """Return the last frame in the user's own code on the way to an error; else the frame that raised it."""
    own = (frame for error in reversed(chain) for frame in reversed(error.frames) if frame.is_own)
    return next(own, chain[-1].frames[-1] if chain and chain[-1].frames else None)


def describe_await(suspended: object) -> str:
    """Return where a suspended coroutine waits: its last call in the user's own code, and the innermost call.

    For example `assist (notes.py:41): Peers.ask`. It is empty for one that runs.
    """
    frames: list[StackFrame] = []
    while suspended is not None:
        frame = getattr(suspended, "cr_frame", None) or getattr(suspended, "ag_frame", None)
        if isinstance(frame, FrameType):
            frames.append(_read_frame(frame, frame.f_lineno))
        suspended = getattr(suspended, "cr_await", None) or getattr(suspended, "ag_await", None)
    own = next((frame for frame in reversed(frames) if frame.is_own), None)
    parts = [] if own is None else [f"{own.function} ({own.file.rpartition(os.sep)[2]}:{own.line})"]
    return ": ".join([*parts, *(frame.function for frame in frames[-1:] if frame is not own)])


def _describe(error: BaseException, depth: int) -> list[ChainedError]:
    chain: list[ChainedError] = []
    for each, relation in _walk_back(error)[::-1]:
        if isinstance(each, BaseExceptionGroup) and depth < _MAX_GROUP_DEPTH:
            for member in each.exceptions:
                if len(chain) >= MAX_CHAINED_ERRORS:
                    break
                first, *rest = _describe(member, depth + 1)
                chain += [replace(first, relation=_BESIDE) if chain else first, *rest]
            relation = _GROUP
        frames, omitted = _limit_frames(list(_find_frames(each.__traceback__)))
        chain.append(ChainedError(_shorten(_name_type(type(each))), frames, relation, omitted, _read_text(each)))
    return chain


def _walk_back(error: BaseException) -> list[tuple[BaseException, Relation]]:
    """Return an exception and those before it, the latest first, each with its relation to the one before it."""
    found: list[tuple[BaseException, Relation]] = []
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(found) < MAX_CHAINED_ERRORS:
        current, relation = following, _NONE
        seen.add(id(current))
        following = None
        if current.__cause__ is not None:
            following, relation = current.__cause__, _CAUSE
        elif current.__context__ is not None and not current.__suppress_context__:
            following, relation = current.__context__, _CONTEXT
        found.append((current, relation))
    if following is not None:  # it is left out
        found[-1] = found[-1][0], _NONE
    return found


def _find_frames(start: TracebackType | None) -> Iterable[StackFrame]:
    for frame, line in traceback.walk_tb(start):
        yield _read_frame(frame, line)


def _read_frame(frame: FrameType, line: int | None) -> StackFrame:
    code = frame.f_code
    is_own = not code.co_filename.startswith((*_PLATFORM_PREFIXES, *_PACKAGE_PREFIXES, *_PYTHON_PREFIXES))
    return StackFrame(_shorten(code.co_filename), line or 0, _shorten(code.co_qualname), is_own)


def _limit_frames(frames: Sequence[StackFrame]) -> tuple[tuple[StackFrame, ...], int]:
    """Leave out the frames before the user's own code, and some in the middle. Return the rest and the number of the latter."""
    if not any(frame.is_own for frame in frames):  # the code of the agent may be an installed package itself
        frames = [frame._replace(is_own=bool(find_package(frame.file))) for frame in frames]
    first_own = next((index for index, frame in enumerate(frames) if frame.is_own), max(0, len(frames) - _MAX_LAST_FRAMES))
    kept = tuple(frames[first_own:])
    omitted = max(0, len(kept) - _MAX_FIRST_FRAMES - _MAX_LAST_FRAMES)
    return (kept[:_MAX_FIRST_FRAMES] + kept[-_MAX_LAST_FRAMES:], omitted) if omitted else (kept, 0)


def find_package(file: str) -> str:
    """Return the top-level name of the installed package of a file; empty for a file of this package or of none."""
    prefix = next((prefix for prefix in _PACKAGE_PREFIXES if file.startswith(prefix)), None)
    if prefix is None or file.startswith(_PLATFORM_PREFIXES):
        return ""
    return file.removeprefix(prefix).partition(os.sep)[0].removesuffix(".py")


def _name_type(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _read_text(error: BaseException) -> str:
    try:
        notes: object = getattr(error, "__notes__", ())
        lines = [describe_text(error), *(map(str, notes) if isinstance(notes, list) else ())]
    except Exception:  # noqa: BLE001 - code of the user
        return "<its text cannot be read>"
    return "\n".join(lines)[:MAX_TEXT_CHARACTERS]


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else f"...{name[-_MAX_NAME_CHARACTERS:]}"


def dump_error_chain(chain: ErrorChain) -> list[dict[str, Any]]:
    """Return a chain as JSON, with the texts."""
    return [
        {
            "type": error.type,
            "places": [list(frame) for frame in error.frames],
            "relation": error.relation,
            "omitted": error.omitted,
            "text": error.text,
        }
        for error in chain
    ]


def load_error_chain(data: list[dict[str, Any]]) -> ErrorChain:
    """Return the chain of `dump_error_chain`, within the same limits. Any exception means that the data are no such chain."""
    chain: list[ChainedError] = []
    for fields in data[-MAX_CHAINED_ERRORS:]:
        frames = [
            StackFrame(_shorten(str(file)), int(line), _shorten(str(function)), bool(is_own))
            for file, line, function, is_own in fields["places"][-_MAX_FIRST_FRAMES - _MAX_LAST_FRAMES :]
        ]
        relation = next((known for known in _RELATIONS if known == fields["relation"]), _NONE)
        text = str(fields["text"])[:MAX_TEXT_CHARACTERS]
        chain.append(ChainedError(_shorten(str(fields["type"])), tuple(frames), relation, int(fields["omitted"]), text))
    return tuple(chain)


def format_frame(frame: StackFrame | None) -> str:
    """Format the file and line of a call; the empty string for None."""
    return f"{Path(frame.file).name}:{frame.line}" if frame is not None else ""
