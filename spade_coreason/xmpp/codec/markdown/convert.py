"""Markdown as plain text with Message Styling (XEP-0393)."""

from __future__ import annotations

import re

# Longer texts are logs and dumps. The parser reads some ten thousand lines a second.
_MAX_CHARACTERS = 100_000
# Each bracket costs the parser as much as a word. No text for people has as many.
_MAX_BRACKETS = 5_000
# A mark at the beginning of a line. The search is fast because the expression begins with a fixed character.
_LINE_MARK = re.compile(r"\n[ \t]*(?:[-+#=]|\d+[.)])")


def style_markdown(markdown: str) -> str:
    """Convert Markdown to Message Styling, for people who read it in a chat.

    `**x**` becomes `*x*`, `[text](url)` becomes `text (url)`, and tables are aligned. All other text stays as it is, to the
    character. More stays as text than in CommonMark:

    - Indented lines are no code.
    - HTML, backslashes and link definitions are text. An entity, such as `&lt;`, becomes its character, except in code.
    - A line that is not indented belongs to no list and no quote above it.
    - A rule or an underlined heading needs blank lines around it.

    A mark that would be ambiguous is left out. A formula or a name (`2**3**4`, `__init__`, `*.py,*.txt`) keeps its
    characters. The language after the opening fence of a code block is dropped. A text of more than 100,000 characters, or
    5,000 brackets, is returned as it is.
    """
    if len(markdown) > _MAX_CHARACTERS or not _has_marks(markdown) or markdown.count("[") > _MAX_BRACKETS:
        return markdown
    from .blocks import render_blocks

    text = markdown.replace("\r\n", "\n").replace("\r", "\n") if "\r" in markdown else markdown
    rendered = render_blocks(text)
    return markdown if rendered == text else rendered


def _has_marks(text: str) -> bool:
    """True if the text may contain Markdown. Otherwise it stays as it is, and the parser is not even imported."""
    # One after the other, these checks cost a fiftieth of one expression for all of them.
    if "*" in text or "_" in text or "`" in text or "[" in text or "|" in text or "<" in text or ">" in text:
        return True
    return "~" in text or "://" in text or ("&" in text and ";" in text) or _LINE_MARK.search("\n" + text) is not None
