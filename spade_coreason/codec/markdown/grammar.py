"""The grammar of the Markdown that agents write: markdown-it's, where it leaves plain text alone."""

from __future__ import annotations

from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.rules_block import StateBlock, blockquote, fence, heading, list_block
from markdown_it.token import Token

from .rules import (
    bare_url,
    code,
    escape,
    image,
    link,
    newline,
    no_indented_code,
    paragraph,
    setext_heading,
    table,
    thematic_break,
)

BlockRule = Callable[[StateBlock, int, int, bool], bool]

_MAX_DEPTH = 20  # levels; a list and its item are two. Beyond it is text.


def parse_blocks(text: str) -> list[Token]:
    """The blocks of a text. Where one begins, `meta["source"]` has its lines as they are, without what stands around it."""
    tokens: list[Token] = []
    _PARSER.block.parse(text, _PARSER, {}, tokens)
    return tokens


def parse_spans(text: str) -> list[Token]:
    """What stands in a paragraph. Where a link begins, `meta["source"]` has it as it is."""
    return _PARSER.inline.parse(text, _PARSER, {}, [])


class _Markdown(MarkdownIt):
    """Shows addresses as they were written."""

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link


class _Blocks(ParserBlock):
    """Loses nothing where it is nested too deep."""

    def tokenize(self, state: StateBlock, startLine: int, endLine: int) -> None:
        if state.level < _MAX_DEPTH:
            super().tokenize(state, startLine, endLine)
            return
        line = state.skipEmptyLines(startLine)
        while line < endLine and state.sCount[line] >= state.blkIndent:
            paragraph(state, line, endLine, False)
            line = state.skipEmptyLines(state.line)


def _with_source(rule: BlockRule) -> BlockRule:
    def remembered(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        first = len(state.tokens)
        found = rule(state, start, end, silent)
        if found and len(state.tokens) > first:
            source = state.getLines(start, state.line, state.blkIndent, False)
            state.tokens[first].meta["source"] = source.split("\n")
        return found

    return remembered


def _make_parser() -> MarkdownIt:
    parser = _Markdown("zero", {"maxNesting": 2 * _MAX_DEPTH})
    parser.block = _Blocks()
    inside = ["paragraph", "blockquote", "list"]
    rules: list[tuple[str, BlockRule, list[str]]] = [
        ("table", table, ["paragraph"]),
        ("code", no_indented_code, []),
        ("fence", fence, inside),
        ("blockquote", blockquote, inside),
        ("hr", thematic_break, ["list"]),
        ("list", list_block, ["paragraph", "blockquote"]),
        ("heading", heading, ["paragraph", "blockquote"]),
        ("lheading", setext_heading, []),
        ("paragraph", paragraph, []),
    ]
    for name, rule, ends in rules:
        parser.block.ruler.at(name, _with_source(rule), {"alt": ends})
    parser.block.ruler.enableOnly([name for name, _, _ in rules])
    inline = parser.inline.ruler
    for name, span in {"newline": newline, "escape": escape, "backticks": code, "link": link, "image": image}.items():
        inline.at(name, span)
    inline.at("linkify", bare_url)
    inline.enableOnly(
        ["text", "linkify", "newline", "escape", "backticks", "strikethrough", "emphasis", "link", "image", "autolink"]
    )
    parser.inline.ruler2.enableOnly(["balance_pairs", "strikethrough", "emphasis"])
    return parser


_PARSER = _make_parser()
