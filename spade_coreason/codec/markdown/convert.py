"""Markdown as plain text with Message Styling (XEP-0393)."""

from __future__ import annotations

import re

# Longer texts are logs and dumps, and the parser reads some ten thousand lines a second.
_MAX_CHARACTERS = 100_000
# Each costs the parser as much as a word; no text that somebody reads has as many.
_MAX_BRACKETS = 5_000
# At the beginning of a line. An expression that begins with a character is found soon.
_LINE_MARK = re.compile(r"\n[ \t]*(?:[-+#=]|\d+[.)])")


def style_markdown(markdown: str) -> str:
    """`markdown` as a person reads it in a chat: `**x**` is `*x*`, `[text](url)` is `text (url)`, a table is aligned.

    What is no Markdown stays as it is, to the character. That goes further than CommonMark: indented lines are no code, HTML,
    entities, backslashes and link definitions are text, a line that is not indented belongs to no list and no quote above it,
    and a rule or an underlined heading stands between blank lines. Where a mark would be ambiguous it is left out, and what
    rather is a formula or a name (`2**3**4`, `__init__`, `*.py,*.txt`) keeps its characters. A language behind the beginning
    of a code block is dropped. A text of more than 100,000 characters, or 5,000 brackets, comes back
    as it is.
    """
    if not _has_marks(markdown) or len(markdown) > _MAX_CHARACTERS or markdown.count("[") > _MAX_BRACKETS:
        return markdown
    from .blocks import render_blocks

    text = markdown.replace("\r\n", "\n").replace("\r", "\n") if "\r" in markdown else markdown
    shown = render_blocks(text)
    return markdown if shown == text else shown


def _has_marks(text: str) -> bool:
    """Whether there is something that may be Markdown; else nothing changes, and the parser is not even imported."""
    # One after the other they cost a fiftieth of what an expression for all of them does.
    if "*" in text or "_" in text or "`" in text or "[" in text or "|" in text or "<" in text or ">" in text:
        return True
    return "~" in text or "://" in text or _LINE_MARK.search("\n" + text) is not None
