"""Blocks of a Markdown text as lines of plain text with Message Styling (XEP-0393)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from markdown_it.token import Token

from ....domain.texts.text import FENCE
from .grammar import parse_blocks
from .spans import EVERY_MARK, STRONG, render_spans, wrap_in_mark
from .tables import align_columns, fence_lines

_ITEM = re.compile(r"([ \t]*(?:[-*+]|[0-9]+[.)]))( {1,4}(?=\S)|\t+(?=\S)|)")
_QUOTED = re.compile(r"(?<![ \t])[ \t]*> ?")
_LANGUAGE = re.compile(r"[\w+#.-]*")


def render_blocks(text: str) -> str:
    """Render `text` with Message Styling. Text without Markdown stays the same."""
    lines = text.split("\n")
    return "\n".join(line.text for line in _render_children(parse_tree(text), lines))


def parse_tree(text: str) -> BlockNode:
    """Parse a text into a tree of blocks; the root has the range of all lines."""
    return BlockNode(Token("", "", 0, map=[0, text.count("\n") + 1]), _build_nodes(parse_blocks(text)))


class _Indent(Enum):
    """The position of a line in a list item."""

    TEXT = auto()  # under the text of the item
    LIST = auto()  # indented by two blanks more than the item
    MARGIN = auto()  # not indented: XEP-0393 recognises preformatted text only there


class _Line(NamedTuple):
    text: str
    indent: _Indent = _Indent.TEXT


@dataclass
class BlockNode:
    """A block and the blocks in it."""

    token: Token
    children: list[BlockNode] = field(default_factory=list)
    is_in_item: bool = False

    @property
    def range(self) -> tuple[int, int]:
        """The numbers of its first line and of the line after its last."""
        first, end = self.token.map or (0, 0)
        return first, end

    @property
    def source(self) -> list[str]:
        """Its lines as they were written."""
        return list(self.token.meta["source"])

    @property
    def is_closed(self) -> bool:
        """True for a block of code with a closing fence."""
        markup, last = self.token.markup, self.source[-1].strip()
        return len(self.source) > 1 and len(last) >= len(markup) and not last.strip(markup[0])

    @property
    def is_code(self) -> bool:
        """True for a fence that encloses code; False for an ornament, such as a row of tildes."""
        markup, info = self.token.markup, self.token.info.strip(" \t")
        return _LANGUAGE.fullmatch(info) is not None and not (len(markup) > 3 and markup[0] == "~" and not info)

    def marker_of(self, item: BlockNode) -> re.Match[str]:
        """Return the marker of an item of this list, and the gap after it, as the groups 1 and 2."""
        match = _ITEM.match(self.source[item.range[0] - self.range[0]])
        assert match is not None, self.source
        return match


def _build_nodes(tokens: Sequence[Token]) -> list[BlockNode]:
    stack = [BlockNode(Token("", "", 0))]
    for token in tokens:
        if token.nesting < 0:
            stack.pop()
            continue
        node = BlockNode(token, is_in_item=stack[-1].token.type == "list_item_open")
        stack[-1].children.append(node)
        if token.nesting > 0:
            stack.append(node)
    return stack[0].children


def _render_children(node: BlockNode, blank: Sequence[str] = ()) -> list[_Line]:
    """Render the children of `node`. All lines outside of them are blank."""
    next_line, end = node.range
    rendered: list[_Line] = []
    for child in node.children:
        first, after = child.range
        rendered += [_Line(blank[number] if blank else "") for number in range(next_line, first)]
        rendered += _RENDERERS[child.token.type](child)
        next_line = max(next_line, after)
    return rendered + [_Line(blank[number] if blank else "") for number in range(next_line, end)]


def _lines(texts: Sequence[str], indent: _Indent = _Indent.TEXT) -> list[_Line]:
    return [_Line(text, indent) for text in texts]


def _paragraph(node: BlockNode) -> list[_Line]:
    return _lines(render_spans(node.token.content).split("\n"))


def _heading(node: BlockNode) -> list[_Line]:
    text = render_spans(node.children[0].token.content, excluded_marks=STRONG)
    return _lines(wrap_in_mark(STRONG, text).split("\n") if text.strip() else node.source)


def _rule(node: BlockNode) -> list[_Line]:
    return [_Line("———")]


def _code(node: BlockNode) -> list[_Line]:
    if not node.is_closed or not node.is_code:
        return _lines(node.source, _Indent.MARGIN if node.token.markup[0] == FENCE[0] else _Indent.TEXT)
    return _lines(fence_lines(node.token.content.split("\n")[:-1]), _Indent.MARGIN)


def _table(node: BlockNode) -> list[_Line]:
    rows = [[render_spans(cell, excluded_marks=EVERY_MARK) for cell in row] for row in node.token.meta["rows"]]
    if not any(rows[0]):
        del rows[0]
    return _lines(fence_lines(align_columns(rows, node.token.meta["sides"])), _Indent.MARGIN)


def _quote(node: BlockNode) -> list[_Line]:
    inner_lines = [line.text for line in _render_children(node)]
    if inner_lines == [_QUOTED.sub("", line, count=1) for line in node.source]:
        return _lines(node.source)
    return _lines([f"> {line}".rstrip() for line in inner_lines])


def _list(node: BlockNode) -> list[_Line]:
    rendered: list[_Line] = []
    for item in node.children:
        match = node.marker_of(item)
        first_line = match.string
        marker = match[1].lstrip() if node.is_in_item else match[1]
        lines = _item(item, marker, match[2])
        if not first_line[match.end() :].strip():
            lines[0] = lines[0]._replace(text=marker + first_line[match.end(1) :])
        rendered += lines
    return rendered


def _item(node: BlockNode, marker: str, gap: str) -> list[_Line]:
    begin = len(marker) - len(marker.lstrip())
    indents = {_Indent.TEXT: " " * (len(marker) + len(gap or " ")), _Indent.LIST: " " * (begin + 2), _Indent.MARGIN: ""}
    inner_lines = _render_children(node)
    if inner_lines[0].indent is _Indent.MARGIN:
        inner_lines.insert(0, _Line(""))
    first, *others = inner_lines
    rendered = [_Line(f"{marker}{(gap or ' ') if first.text else ''}{first.text}", _Indent.LIST)]
    for text, indent in others:
        rendered.append(_Line(indents[indent] + text if text else "", indent if indent is _Indent.MARGIN else _Indent.LIST))
    return rendered


_RENDERERS: dict[str, Callable[[BlockNode], list[_Line]]] = {
    "paragraph": _paragraph,
    "heading_open": _heading,
    "hr": _rule,
    "fence": _code,
    "table": _table,
    "blockquote_open": _quote,
    "bullet_list_open": _list,
    "ordered_list_open": _list,
}
