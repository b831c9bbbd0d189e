"""The inside of a paragraph: as text with the marks of XEP-0393 (`*strong*`, `_emphasis_`, `~struck~`, code), or as runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from markdown_it.token import Token

from .grammar import parse_spans
from .rules import is_spaceless

STRONG = "*"
EMPHASIS = "_"
EVERY_MARK = frozenset("*_~`")

_MARK_START = re.compile(r"[*_~`\[<]|&[#\w]+;")
_MARKS = {"**": "*", "__": "*", "*": "_", "_": "_", "~~": "~"}
_CODE = "`"
# Spans that are nested deeper keep the characters they are written with.
_MAX_DEPTH = 8
_MAY_STAND_BEFORE = re.compile(r"[\s(\[{<\"'«“‘„‚¿¡–—*_~]?")
_CONTINUES = re.compile(r"[^\s\w]?\w")
_DUNDER = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*")  # __init__; an agent writes **strong**
_FORMULA = re.compile(r"[!-~]|[!-/:-~]*[0-9][!-~]*")
_TARGET = re.compile(r"[./#:]")
_ADDRESS = re.compile(r"(?:https?|ftps?|xmpp|mailto|tel|geo|sip):.", re.IGNORECASE)


class TextRun(NamedTuple):
    """A piece of text and the marks around it: a set of `*` (strong), `_` (emphasis), `~` (struck) and a back tick (code)."""

    text: str
    marks: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Span:
    markup: str
    before: str
    link: Token | None = None
    runs: list[TextRun] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of its runs."""
        return "".join([run.text for run in self.runs])

    @property
    def last_character(self) -> str:
        """The character before the next run."""
        return self.runs[-1].text[-1:] if self.runs else self.before


_RenderMarked: TypeAlias = Callable[[_Span, str, list[_Span]], list[TextRun]]
"""A function that returns the runs of a span in marks: the span, the characters after it, and the spans around it."""


def render_spans(text: str, excluded_marks: Collection[str] = ()) -> str:
    """Render `text` with the marks of XEP-0393, except `excluded_marks`."""
    if _MARK_START.search(text) is None:
        return text

    def render_marked(span: _Span, after: str, around: list[_Span]) -> list[TextRun]:
        outside = {*excluded_marks, *(_MARKS.get(each.markup, "") for each in around[: _MAX_DEPTH + 1])}
        return [TextRun(_render_marked(span, after, outside))]

    return _parse(text, render_marked, lambda token: TextRun(_render_code(token, excluded_marks))).text


def parse_runs(text: str) -> list[TextRun]:
    """Parse `text` into runs, for a screen that shows their marks as styles. The address of a link follows its text."""
    if _MARK_START.search(text) is None:
        return [TextRun(text)]

    def mark_runs(span: _Span, after: str, around: list[_Span]) -> list[TextRun]:
        if _keeps_marks(span, after):
            return [TextRun(span.markup), *span.runs, TextRun(span.markup)]
        mark = _MARKS[span.markup]
        return [TextRun(run.text, run.marks | {mark}) for run in span.runs]

    return _parse(text, mark_runs, lambda token: TextRun(_code_content(token), frozenset(_CODE))).runs


def _parse(text: str, render_marked: _RenderMarked, render_code: Callable[[Token], TextRun]) -> _Span:
    """Parse `text` into the runs of a span."""
    tokens, outermost = parse_spans(text), _Span("", "")
    stack = [outermost]
    for token, after in zip(tokens, _next_characters(tokens), strict=True):
        inner = stack[-1]
        if token.type == "link_open":
            stack.append(_Span("", inner.last_character, token))
        elif token.type == "link_close":
            stack.pop()
            stack[-1].runs.append(TextRun(_render_link(inner)))
        elif token.nesting > 0 and len(stack) > _MAX_DEPTH:
            stack.append(inner)
            inner.runs.append(TextRun(token.markup))
        elif token.nesting > 0:
            stack.append(_Span(token.markup, inner.last_character))
        elif token.nesting < 0:
            stack.pop()
            is_text = stack[-1] is inner
            stack[-1].runs += [TextRun(token.markup)] if is_text else render_marked(inner, after, stack)
        elif token.content:
            inner.runs.append(render_code(token) if token.type == "code" else TextRun(token.content))
    return outermost


def wrap_in_mark(mark: str, text: str) -> str:
    """Put `mark` around each line of `text`, unless it would end too early or enclose no text."""
    if re.search(rf"\S{re.escape(mark)}", text):
        return text
    return "\n".join(_wrap_line(mark, line) for line in text.split("\n"))


def _wrap_line(mark: str, line: str) -> str:
    stripped = line.strip()
    if not any(character.isprintable() and character != mark for character in stripped):
        return line
    begin = line.index(stripped)
    return f"{line[:begin]}{mark}{stripped}{mark}{line[begin + len(stripped) :]}"


def _next_characters(tokens: list[Token]) -> list[str]:
    """Return for each token the two characters after it."""
    found: list[str] = []
    following = ""
    for token in reversed(tokens):
        found.append(following)
        if token.type == "link_close":
            following = " "  # the address follows
        elif token.content:
            following = (token.content[:2] + following)[:2]
    return found[::-1]


def _code_content(token: Token) -> str:
    content = token.content
    if len(token.markup) > 1 and len(content) > 2 and content[0] == content[-1] == " ":
        return content[1:-1]  # this is how code may begin with a back tick
    return content


def _render_code(token: Token, excluded_marks: Collection[str]) -> str:
    content = _code_content(token)
    if _CODE in excluded_marks:
        return content
    stripped = content.strip()
    if not stripped or "`" in stripped or stripped != content:
        return f"{token.markup}{token.content}{token.markup}"
    return f"`{stripped}`"


def _keeps_marks(span: _Span, after: str) -> bool:
    """Return True if the marks of a span are text: those of a name or a formula."""
    inner, markup, before = span.text, span.markup, span.before
    if markup == "__" and _DUNDER.fullmatch(inner):
        return True
    if markup == "*" and (not _MAY_STAND_BEFORE.fullmatch(before) or _CONTINUES.match(after)):
        return True
    return _is_letter(before) and _is_letter(after[:1]) and _FORMULA.fullmatch(inner) is not None


def _is_letter(character: str) -> bool:
    """Return True for a letter or digit of a script in which spaces separate words."""
    return character.isalnum() and not is_spaceless(character)


def _render_marked(span: _Span, after: str, used_marks: Collection[str]) -> str:
    inner = span.text
    if _keeps_marks(span, after):
        return f"{span.markup}{inner}{span.markup}"
    mark = _MARKS[span.markup]
    # XEP-0393: a mark begins after a blank, and may end before a letter. A script without spaces has no blank to offer.
    is_in_word = span.before.isalnum() or is_spaceless(span.before) or _is_letter(after[:1])
    return inner if is_in_word or mark in used_marks else wrap_in_mark(mark, inner)


def _render_link(span: _Span) -> str:
    assert span.link is not None
    text, url = span.text, str(span.link.attrs.get("href", ""))
    if span.link.markup == "autolink":
        return url.replace("&amp;", "&") if url == text and _ADDRESS.match(url) else f"<{text}>"
    if span.before.isalnum() or not _TARGET.search(url):
        return str(span.link.meta["source"])  # list[index](argument)
    title = span.link.attrs.get("title")
    target = f'{url} "{title}"' if title else url
    if text == url.removeprefix("mailto:") and not title:
        return text
    if not text.strip() or text == url:
        return target
    return f"{text} ({target})"
