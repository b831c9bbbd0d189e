"""Rules for markdown-it that find spans within a line, and leave plain text alone."""

from __future__ import annotations

import re

from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline import link as markdown_it_link

_ESCAPE = re.compile(r"\\[!-/:-@\[-`{-~]")
_TICKS = re.compile("`+")
_URL = re.compile(r"://[^\s<>\[\]`|]+")
_URL_END = "*_~)].,;:!?'\""


def newline(state: StateInline, silent: bool) -> bool:
    """The end of a line, and nothing of the blanks around it."""
    if state.src[state.pos] != "\n":
        return False
    if not silent:
        state.push("text", "", 0).content = "\n"
    state.pos += 1
    return True


def escape(state: StateInline, silent: bool) -> bool:
    r"""What stands behind a backslash marks nothing. Both stay: `¯\_(ツ)_/¯`, `\(x\)` and `\\host` are text."""
    match = _ESCAPE.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("text", "", 0).content = match[0]
    state.pos = match.end()
    return True


def code(state: StateInline, silent: bool) -> bool:
    """Code within one line, as it is."""
    ticks = _TICKS.match(state.src, state.pos)
    if ticks is None:
        return False
    end = state.src.find("\n", state.pos)
    end = state.posMax if end < 0 else min(end, state.posMax)
    for closing in _TICKS.finditer(state.src, ticks.end(), max(end, ticks.end())):
        if len(closing[0]) == len(ticks[0]):
            if not silent:
                token = state.push("code", "", 0)
                token.content, token.markup = state.src[ticks.end() : closing.start()], ticks[0]
            state.pos = closing.end()
            return True
    if not silent:
        state.push("text", "", 0).content = ticks[0]
    state.pos = ticks.end()
    return True


def address(state: StateInline, silent: bool) -> bool:
    """What stands in an address marks nothing."""
    match = _URL.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    address = match[0].rstrip(_URL_END) or "://"
    if not silent:
        state.push("text", "", 0).content = address
    state.pos += len(address)
    return True


def link(state: StateInline, silent: bool) -> bool:
    """A link that remembers how it was written, for where it turns out to be none."""
    first, start = len(state.tokens) + bool(state.pending), state.pos
    found = markdown_it_link(state, silent)
    if found and not silent:
        state.tokens[first].meta["source"] = state.src[start : state.pos]
    return found


def image(state: StateInline, silent: bool) -> bool:
    """As a link: markdown-it's own rule recurses as deep as images stand in images."""
    if not state.src.startswith("![", state.pos):
        return False
    first = len(state.tokens) + bool(state.pending)
    state.pos += 1
    if link(state, silent):
        if not silent:
            state.tokens[first].meta["source"] = "!" + state.tokens[first].meta["source"]
        return True
    state.pos -= 1
    return False
