"""Passages of a document, cut at headings, paragraphs, lines, sentences or words, in this order of preference. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_CHARACTERS = 1000
"""The maximum length of a passage: about 250 tokens, which small embedding models can read."""

_HEADING = re.compile(r"^(#{1,6})\s+(\S.*)$")
_FENCE = re.compile(r"^\s*(```|~~~)")
# From the coarsest to the finest. The last one cuts anywhere.
_BOUNDARIES = (r"\n\s*\n", r"\n", r"(?<=[.!?…。！？])\s*(?=\S)", r"\s+", "")


def split_passages(text: str, *, is_markdown: bool = False, max_characters: int = MAX_CHARACTERS) -> list[str]:
    """Cut a text into passages. None is empty, and none is longer than `max_characters` characters.

    Neighbouring pieces are joined while they fit, so that a list of short lines is one passage. In Markdown a heading starts a
    passage. Every passage begins with the headings above it, since without them its subject would be unknown.
    """
    sections = _split_sections(text) if is_markdown else [("", text)]
    passages = []
    for heading, body in sections:
        prefix = f"{heading[: max_characters // 2]}\n" if heading else ""
        room = max_characters - len(prefix)
        passages += [f"{prefix}{part}" for part in _join_pieces(_split_pieces(body.strip("\n"), room, 0), room)]
    return passages


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sections of a Markdown text: the headings above it as one line, and its text."""
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
        yield _join_headings(above), "\n".join(body)
        level = len(heading[1])
        above = [
            *((depth, title) for depth, title in above if depth < level),
            (level, heading[2].rstrip().rstrip("#").rstrip()),
        ]
        body = []
    yield _join_headings(above), "\n".join(body)


def _join_headings(headings: list[tuple[int, str]]) -> str:
    return " › ".join(title for _, title in headings)


def _split_pieces(text: str, max_characters: int, level: int) -> Iterator[str]:
    """Yield pieces that fit, each with its separator from the next."""
    if len(text) <= max_characters:
        if text:
            yield text
        return
    if level == len(_BOUNDARIES) - 1:
        for begin in range(0, len(text), max_characters):
            yield text[begin : begin + max_characters]
        return
    begin = 0
    for boundary in re.finditer(_BOUNDARIES[level], text):
        yield from _split_pieces(text[begin : boundary.end()], max_characters, level + 1)
        begin = boundary.end()
    yield from _split_pieces(text[begin:], max_characters, level + 1)


def _join_pieces(pieces: Iterator[str], max_characters: int) -> Iterator[str]:
    passage = ""
    for piece in pieces:
        if passage and len(passage) + len(piece.rstrip()) > max_characters:
            if passage.strip():
                yield passage.strip()
            passage = ""
        passage += piece
    if passage.strip():
        yield passage.strip()
