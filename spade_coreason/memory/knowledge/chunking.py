"""A document cut into passages: at headings, paragraphs, lines, sentences, words, in this order of preference. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_CHARACTERS = 1000
"""Of a passage: about 250 tokens, what small embedding models read of a text."""

_HEADING = re.compile(r"^(#{1,6})\s+(\S.*)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
# From the coarsest to the finest; the last cuts anywhere.
_BOUNDARIES = (r"\n\s*\n", r"\n", r"(?<=[.!?…。！？])\s*(?=\S)", r"\s+", "")


def split(text: str, *, is_markdown: bool = False, most: int = MOST_CHARACTERS) -> list[str]:
    """The passages of a text, none empty, none longer than `most` characters.

    Neighbours are joined while they fit, so that a list of short lines is one passage. In Markdown a heading begins a passage,
    and every passage begins with the headings above it, because by itself it would not say what it is about.
    """
    sections = _sections(text) if is_markdown else [("", text)]
    passages = []
    for heading, body in sections:
        above = f"{heading[: most // 2]}\n" if heading else ""
        parts = list(_joined(_pieces(body.strip("\n"), most - len(above), 0), most - len(above)))
        passages += [f"{above}{part}" for part in parts]
    return passages


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """The headings above, as one line, and the text below them."""
    above: list[tuple[int, str]] = []
    body: list[str] = []
    is_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
        heading = None if is_code else _HEADING.match(line)
        if heading is None:
            body.append(line)
            continue
        yield _path(above), "\n".join(body)
        level = len(heading[1])
        above = [
            *((depth, title) for depth, title in above if depth < level),
            (level, heading[2].rstrip().rstrip("#").rstrip()),
        ]
        body = []
    yield _path(above), "\n".join(body)


def _path(above: list[tuple[int, str]]) -> str:
    return " › ".join(title for _, title in above)


def _pieces(text: str, most: int, level: int) -> Iterator[str]:
    """Pieces that fit, each with what separates it from the next."""
    if len(text) <= most:
        if text:
            yield text
        return
    if level == len(_BOUNDARIES) - 1:
        for begin in range(0, len(text), most):
            yield text[begin : begin + most]
        return
    begin = 0
    for boundary in re.finditer(_BOUNDARIES[level], text):
        yield from _pieces(text[begin : boundary.end()], most, level + 1)
        begin = boundary.end()
    yield from _pieces(text[begin:], most, level + 1)


def _joined(pieces: Iterator[str], most: int) -> Iterator[str]:
    passage = ""
    for piece in pieces:
        if passage and len(passage) + len(piece.rstrip()) > most:
            if passage.strip():
                yield passage.strip()
            passage = ""
        passage += piece
    if passage.strip():
        yield passage.strip()
