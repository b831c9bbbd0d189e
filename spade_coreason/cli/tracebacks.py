"""Tracebacks of stored and logged errors: the user's own code first, calls of libraries in one line."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from ..domain.error_chain import ChainedError, CodePlace, ErrorChain
from .console import strip_control_characters

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
    return strip_control_characters("\n".join(_format_lines(chain, shows_text, shows_source)))


def format_place(place: CodePlace | None) -> str:
    """Format the file and line of a call; the empty string for None."""
    return f"{Path(place.file).name}:{place.line}" if place is not None else ""


def _format_lines(chain: ErrorChain, shows_text: bool, shows_source: bool) -> Iterator[str]:
    for error in chain:
        if error.relation:
            yield ""
            yield _RELATIONS[error.relation]
            yield ""
        if error.places:
            yield "Traceback (most recent call last):"
            yield from _format_places(error, shows_source)
        yield f"{error.type}: {error.text}" if shows_text and error.text else error.type


def _format_places(error: ChainedError, shows_source: bool) -> Iterator[str]:
    for is_own, group in groupby(error.places, lambda place: place.is_own):
        places = list(group)
        if is_own:
            for place in places:
                yield f'  File "{place.file}", line {place.line}, in {place.function}'
                source = linecache.getline(place.file, place.line).strip() if shows_source else ""
                if source:
                    yield f"    {source}"
        else:
            yield f"  ({_describe_calls(places)})"
    if error.omitted:
        yield f"  ({error.omitted} more calls in between are omitted)"


def _describe_calls(places: Sequence[CodePlace]) -> str:
    calls = "1 call" if len(places) == 1 else f"{len(places)} calls"
    return f"{calls} of libraries, to {places[-1].function} at {format_place(places[-1])}"
