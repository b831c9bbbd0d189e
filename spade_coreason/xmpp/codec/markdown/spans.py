"""The inside of a paragraph: as text with the marks of XEP-0393 (`*strong*`, `_emphasis_`, `~struck~`, code), or as runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

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
    parts: list[str] = field(default_factory=list)
    runs: list[TextRun] = field(default_factory=list)  # of `parse_runs`

    @property
    def last_character(self) -> str:
        """The character before the next part."""
        return self.parts[-1][-1:] if self.parts else self.before


def render_spans(text: str, excluded_marks: Collection[str] = ()) -> str:
    """Render `text` with the marks of XEP-0393, except `excluded_marks`."""
    if _MARK_START.search(text) is None:
        return text
    tokens = parse_spans(text)
    outermost = _Span("", "")
    stack = [outermost]
    for token, after in zip(tokens, _next_characters(tokens), strict=True):
        inner = stack[-1]
        if token.type == "link_open":
            stack.append(_Span("", inner.last_character, token))
        elif token.type == "link_close":
            stack.pop()
            stack[-1].parts.append(_render_link(inner))
        elif token.nesting > 0 and len(stack) > _MAX_DEPTH:
            stack.append(inner)
            inner.parts.append(token.markup)
        elif token.nesting > 0:
            stack.append(_Span(token.markup, inner.last_character))
        elif token.nesting < 0:
            stack.pop()
            outside = {*excluded_marks, *(_MARKS.get(span.markup, "") for span in stack[: _MAX_DEPTH + 1])}
            stack[-1].parts.append(token.markup if stack[-1] is inner else _render_marked(inner, after, outside))
        elif token.content:
            inner.parts.append(_render_code(token, excluded_marks) if token.type == "code" else token.content)
    return "".join(outermost.parts)


def parse_runs(text: str) -> list[TextRun]:
    """Parse `text` into runs, for a screen that shows their marks as styles. The address of a link follows its text."""
    if _MARK_START.search(text) is None:
        return [TextRun(text)]
    tokens = parse_spans(text)
    outermost = _Span("", "")
    stack = [outermost]
    for token, after in zip(tokens, _next_characters(tokens), strict=True):
        inner = stack[-1]
        if token.type == "link_open":
            stack.append(_Span("", inner.last_character, token))
        elif token.type == "link_close":
            stack.pop()
            _append_runs(stack[-1], [TextRun(_render_link(inner))])
        elif token.nesting > 0 and len(stack) > _MAX_DEPTH:
            stack.append(inner)
            _append_runs(inner, [TextRun(token.markup)])
        elif token.nesting > 0:
            stack.append(_Span(token.markup, inner.last_character))
        elif token.nesting < 0:
            stack.pop()
            if stack[-1] is inner:
                _append_runs(inner, [TextRun(token.markup)])
            elif _keeps_marks(inner, after):
                _append_runs(stack[-1], [TextRun(inner.markup), *inner.runs, TextRun(inner.markup)])
            else:
                mark = _MARKS[inner.markup]
                _append_runs(stack[-1], [TextRun(run.text, run.marks | {mark}) for run in inner.runs])
        elif token.content:
            is_code = token.type == "code"
            run = TextRun(_code_content(token), frozenset(_CODE)) if is_code else TextRun(token.content)
            _append_runs(inner, [run])
    return outermost.runs


def _append_runs(span: _Span, runs: list[TextRun]) -> None:
    span.runs += runs
    span.parts += [run.text for run in runs if run.text]


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
    inner, markup, before = "".join(span.parts), span.markup, span.before
    if markup == "__" and _DUNDER.fullmatch(inner):
        return True
    if markup == "*" and (not _MAY_STAND_BEFORE.fullmatch(before) or _CONTINUES.match(after)):
        return True
    return _is_letter(before) and _is_letter(after[:1]) and _FORMULA.fullmatch(inner) is not None


def _is_letter(character: str) -> bool:
    """Return True for a letter or digit of a script in which spaces separate words."""
    return character.isalnum() and not is_spaceless(character)


def _render_marked(span: _Span, after: str, used_marks: Collection[str]) -> str:
    inner = "".join(span.parts)
    if _keeps_marks(span, after):
        return f"{span.markup}{inner}{span.markup}"
    mark = _MARKS[span.markup]
    # XEP-0393: a mark begins after a blank, and may end before a letter. A script without spaces has no blank to offer.
    is_in_word = span.before.isalnum() or is_spaceless(span.before) or _is_letter(after[:1])
    return inner if is_in_word or mark in used_marks else wrap_in_mark(mark, inner)


def _render_link(span: _Span) -> str:
    assert span.link is not None
    text, url = "".join(span.parts), str(span.link.attrs.get("href", ""))
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
