"""Markdown as lines for a terminal, with colours: no I/O.

The grammar is that of the XMPP codec, which leaves plain text alone: HTML and backslashes are text, and a link shows its
address. rich lays out paragraphs and tables.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.color import ColorSystem
from rich.console import Console, JustifyMethod
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ...domain.texts.terminal_text import clean_running_text, remove_controls
from ...xmpp import BlockNode, parse_runs, parse_tree

# A paragraph in a deep list has at least this width; its line is then wrapped once more, without an indent.
_MIN_COLUMNS = 8
# A table with less room for each column is shown as it was written.
_MIN_CELL_COLUMNS = 6
_MAX_RULE_COLUMNS = 40
_STYLES = {"*": Style(bold=True), "_": Style(italic=True), "~": Style(strike=True), "`": Style(color="cyan")}
_CODE, _BOLD, _DIM = _STYLES["`"], _STYLES["*"], Style(dim=True)
_ALIGNMENTS: dict[str, JustifyMethod] = {"<": "left", ">": "right", "^": "center"}


@dataclass(frozen=True, slots=True)
class RenderedMarkdown:
    """The lines of a text. Its last block may grow, the blocks before it are finished."""

    lines: list[str]
    finished_lines: int
    """The number of the lines before the last block."""
    finished_characters: int
    """The number of the characters of the text before the last block."""
    open_fence: str
    """The line that begins the last block, if that is code without an end; else an empty text."""


class MarkdownRenderer:
    """Renderer of Markdown. Without `is_unicode` it draws bullets and tables in ASCII."""

    def __init__(self, *, is_unicode: bool = True) -> None:
        self._is_unicode = is_unicode
        # Explicit values, so that rich reads none from the environment.
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="standard",
            width=80,
            height=25,
            highlight=False,
            legacy_windows=False,
            safe_box=True,
            _environ={},
        )
        self._renderers: dict[str, Callable[[BlockNode, int], list[Text]]] = {
            "paragraph": self._paragraph,
            "heading_open": self._heading,
            "hr": self._rule,
            "fence": self._code,
            "table": self._table,
            "blockquote_open": self._quote,
            "bullet_list_open": self._list,
            "ordered_list_open": self._list,
        }

    def render(self, text: str, columns: int) -> RenderedMarkdown:
        """Render `text` in lines of at most `columns` columns. A line has no style left open at its end."""
        root = parse_tree(text)
        lines: list[Text] = []
        next_line = finished_lines = 0
        for child in root.children:
            first, after = child.range
            lines += [Text()] * (first - next_line)
            finished_lines = len(lines)
            lines += self._fit(self._renderers[child.token.type](child, columns), columns)
            next_line = max(next_line, after)
        last = root.children[-1] if root.children else root
        source_lines = text.split("\n")
        return RenderedMarkdown(
            [self._encode(line) for line in lines],
            finished_lines,
            sum(len(line) + 1 for line in source_lines[: last.range[0]]),
            source_lines[last.range[0]] if last.token.type == "fence" and last.is_code and not last.is_closed else "",
        )

    def _children(self, node: BlockNode, columns: int) -> list[Text]:
        next_line, end = node.range
        lines: list[Text] = []
        for child in node.children:
            first, after = child.range
            lines += [Text()] * (first - next_line)
            lines += self._renderers[child.token.type](child, columns)
            next_line = max(next_line, after)
        return lines + [Text()] * (end - next_line)

    def _paragraph(self, node: BlockNode, columns: int) -> list[Text]:
        return self._wrap(_spans(node.token.content), columns)

    def _heading(self, node: BlockNode, columns: int) -> list[Text]:
        title = _spans(node.children[0].token.content)
        title.stylize(Style(bold=True, underline=node.token.tag == "h1"))
        return self._wrap(title, columns)

    def _rule(self, node: BlockNode, columns: int) -> list[Text]:
        return [Text(("─" if self._is_unicode else "-") * min(columns, _MAX_RULE_COLUMNS), _DIM)]

    def _code(self, node: BlockNode, columns: int) -> list[Text]:
        if not node.is_code:
            return self._wrap(_plain("\n".join(node.source)), columns)
        code = node.token.content.removesuffix("\n")
        return _indent(self._wrap(_plain(code, _CODE), columns - 2), Text("  "))

    def _table(self, node: BlockNode, columns: int) -> list[Text]:
        sides: Sequence[str] = node.token.meta["sides"]
        if len(sides) * _MIN_CELL_COLUMNS > columns:
            return self._wrap(_plain("\n".join(node.source)), columns)
        rows = [[_spans(cell) for cell in row] for row in node.token.meta["rows"]]
        shape = box.SIMPLE_HEAD if self._is_unicode else box.ASCII2
        table = Table(box=shape, show_edge=False, pad_edge=False, header_style=_BOLD, border_style=_DIM)
        for title, side in zip(rows[0], sides, strict=False):
            table.add_column(title, justify=_ALIGNMENTS[side], overflow="fold", min_width=2)
        for row in rows[1:]:
            table.add_row(*row)
        segments = self._console.render_lines(table, self._console.options.update(width=columns), pad=False)
        return [_from_segments(line) for line in segments]

    def _quote(self, node: BlockNode, columns: int) -> list[Text]:
        bar = "│ " if self._is_unicode else "> "
        return [Text.assemble((bar, _DIM), line) for line in self._children(node, columns - 2)]

    def _list(self, node: BlockNode, columns: int) -> list[Text]:
        lines: list[Text] = []
        for item in node.children:
            marker = node.marker_of(item)[1].strip()
            if marker in "-*+" and self._is_unicode:
                marker = "•"
            first = Text(f"{marker} ", _CODE)
            lines += _indent(self._children(item, columns - len(first)) or [Text()], first)
        return lines

    def _wrap(self, text: Text, columns: int) -> list[Text]:
        return list(text.wrap(self._console, max(columns, _MIN_COLUMNS), overflow="fold", tab_size=8)) or [Text()]

    def _fit(self, lines: Sequence[Text], columns: int) -> list[Text]:
        """Wrap the lines that an indent or an unusual character has made too long."""
        return [part for line in lines for part in ([line] if line.cell_len <= columns else line.wrap(self._console, columns))]

    def _encode(self, line: Text) -> str:
        line = line.copy()
        line.rstrip()
        pieces = (
            segment.style.render(segment.text, color_system=ColorSystem.STANDARD) if segment.style else segment.text
            for segment in line.render(self._console, end="")
        )
        return "".join(pieces) + clean_running_text(line.plain)[len(line.plain) :]


def _plain(text: str, style: Style | None = None) -> Text:
    # The text comes without control characters. A second look costs little, and no parser can bring them back.
    return Text(remove_controls(text), style or "", end="")


def _spans(text: str) -> Text:
    spans = Text(end="")
    for run in parse_runs(text):
        style = sum((_STYLES[mark] for mark in sorted(run.marks)), Style.null())
        spans.append(remove_controls(run.text), style)
    return spans


def _indent(lines: Sequence[Text], first: Text) -> list[Text]:
    """Put `first` before the first line, and as many blanks before the others."""
    return [Text.assemble(" " * len(first) if number else first, line) for number, line in enumerate(lines)]


def _from_segments(segments: Sequence[Segment]) -> Text:
    line = Text(end="")
    for segment in segments:
        line.append(segment.text, segment.style)
    line.rstrip()
    return line
