"""The mark with which approvals begin, and the quotation of what agents write if it looks like one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .text import join_surrogates

MARK = "\U0001f512"
"""The sign before the first line of an approval: a padlock. Clients and terminals show it, and no letter looks like it."""

# All padlocks of Unicode. Its list of confusable characters (UTS #39, confusables.txt) has no other for any of them.
_LOOK_ALIKES = "\U0001f50f\U0001f510\U0001f512\U0001f513"
_BREAKS = "\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
# What turns the direction of a line, so that its end may be shown where others begin: marks, embeddings, Hebrew and Arabic.
_TURNS = "\u0590-\u08ff\u200f\u202b\u202e\u2067\u2068\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff"
# What may stand before the mark, which is the first sign of its line then: Markdown, numbers of lists, and what is not seen.
_MARKUP = r" \t!-@\[-`{-~"
_CONTROLS = "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\xa0\xad\u061c\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U0001d173-\U0001d17a"
_BLANKS = "\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u2027\u202a-\u206f\u2800\u3000\u3164\ufeff\uffa0"
_JOINED = "\u0300-\u036f\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U0001bca0-\U0001bca3\U000e0000-\U000e0fff"
_HEAD = _MARKUP + _CONTROLS + _BLANKS + _JOINED
_LOOK_ALIKE = re.compile(f"[{_LOOK_ALIKES}]|\ud83d[\udd0f-\udd13]")  # or its two halves, which are joined when they are sent
_BREAK = re.compile(f"[{_BREAKS}]")
_HEAD_END = re.compile(rf"(^|[{_BREAKS}])[{_HEAD}]*+\Z")
_TO_THE_RIGHT = "\u200e"
_TURNED = rf"(?!> {_TO_THE_RIGHT})(?=[^{_BREAKS}{_TURNS}]*+([{_TURNS}])[^{_BREAKS}{_LOOK_ALIKES}]*+[{_LOOK_ALIKES}])"
_FORGED = re.compile(rf"(^|[{_BREAKS}])(?:{_TURNED}|(?!> )(?=[{_HEAD}]*+[{_LOOK_ALIKES}]))")


def quote_forgeries(text: str, before: Sequence[str] = ()) -> str:
    """Return a text of an agent, in which each line that may look like the first one of an approval is a quotation.

    `before` are the pieces of the same text before it, as they were returned. A line of which a part was returned already is
    quoted from the mark on. A line that turns its direction also gets a mark that it is read from left to right.
    """
    if text.isascii() or not _LOOK_ALIKE.search(text):
        return text
    text, start = join_surrogates(text), 0
    for piece in reversed(before):
        if (end := _HEAD_END.search(piece)) is None:
            start = found.start() if (found := _BREAK.search(text)) else len(text)
            break
        if end[1]:
            break
    return text[:start] + _FORGED.sub(_quote, text[start:])


def _quote(found: re.Match[str]) -> str:
    return f"{found[1]}> {_TO_THE_RIGHT if found[2] else ''}"
