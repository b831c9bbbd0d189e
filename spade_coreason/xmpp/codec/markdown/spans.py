"""The inside of a paragraph as text with the marks of XEP-0393: `*strong*`, `_emphasis_`, `~struck~`, code in back ticks."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from markdown_it.token import Token

from .grammar import parse_spans

STRONG = "*"
EMPHASIS = "_"
EVERY_MARK = frozenset("*_~`")

_MARK_START = re.compile(r"[*_~`\[<]")
_MARKS = {"**": "*", "__": "*", "*": "_", "_": "_", "~~": "~"}
# Spans that are nested deeper keep the characters they are written with.
_MAX_DEPTH = 8
_MAY_STAND_BEFORE = re.compile(r"[\s(\[{<\"'«“‘„‚¿¡–—*_~]?")
_CONTINUES = re.compile(r"[^\s\w]?\w")
_DUNDER = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*")  # __init__; an agent writes **strong**
_FORMULA = re.compile(r"[!-~]|[!-~]*[0-9][!-~]*")
_TARGET = re.compile(r"[./#:]")
_ADDRESS = re.compile(r"(?:https?|ftps?|xmpp|mailto|tel|geo|sip):.", re.IGNORECASE)


@dataclass(slots=True)
class _Span:
    markup: str
    before: str
    link: Token | None = None
    parts: list[str] = field(default_factory=list)

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


def _render_code(token: Token, excluded_marks: Collection[str]) -> str:
    content = token.content
    if len(token.markup) > 1 and len(content) > 2 and content[0] == content[-1] == " ":
        content = content[1:-1]  # this is how code may begin with a back tick
    if "`" in excluded_marks:
        return content
    stripped = content.strip()
    if not stripped or "`" in stripped or stripped != content:
        return f"{token.markup}{token.content}{token.markup}"
    return f"`{stripped}`"


def _render_marked(span: _Span, after: str, used_marks: Collection[str]) -> str:
    inner, markup, before = "".join(span.parts), span.markup, span.before
    raw = f"{markup}{inner}{markup}"
    in_word, continues = before.isalnum(), after[:1].isalnum()
    if markup == "__" and _DUNDER.fullmatch(inner):
        return raw
    if markup == "*" and (not _MAY_STAND_BEFORE.fullmatch(before) or _CONTINUES.match(after)):
        return raw
    if in_word or continues:
        return raw if in_word and continues and _FORMULA.fullmatch(inner) else inner
    mark = _MARKS[markup]
    return inner if mark in used_marks else wrap_in_mark(mark, inner)


def _render_link(span: _Span) -> str:
    assert span.link is not None
    text, url = "".join(span.parts), str(span.link.attrs.get("href", ""))
    if span.link.markup == "autolink":
        return url if url == text and _ADDRESS.match(url) else f"<{text}>"
    if span.before.isalnum() or not _TARGET.search(url):
        return str(span.link.meta["source"])  # list[index](argument)
    title = span.link.attrs.get("title")
    target = f'{url} "{title}"' if title else url
    if text == url.removeprefix("mailto:") and not title:
        return text
    if not text.strip() or text == url:
        return target
    return f"{text} ({target})"
