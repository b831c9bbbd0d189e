"""The grammar of the Markdown that agents write: markdown-it's, limited to rules that leave plain text alone."""

from __future__ import annotations

from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock, blockquote, fence, heading, list_block
from markdown_it.token import Token
from markdown_it.utils import EnvType

from .rules import (
    SpanState,
    bare_url,
    code,
    entity,
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

_MAX_DEPTH = 20  # levels; a list and its item are two. Deeper blocks are text.


def parse_blocks(text: str) -> list[Token]:
    """Parse the blocks of a text.

    The first token of a block has its original lines in `meta["source"]`, without the marks of the blocks around it.
    """
    tokens: list[Token] = []
    _PARSER.block.parse(text, _PARSER, {}, tokens)
    return tokens


def parse_spans(text: str) -> list[Token]:
    """Parse the text of a paragraph. The first token of a link has its original text in `meta["source"]`."""
    return _PARSER.inline.parse(text, _PARSER, {}, [])


class _Markdown(MarkdownIt):
    """Parser that keeps addresses as they were written."""

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link


class _Blocks(ParserBlock):
    """Parser of blocks that loses no text if they are nested too deep."""

    def tokenize(self, state: StateBlock, startLine: int, endLine: int) -> None:
        if state.level < _MAX_DEPTH:
            super().tokenize(state, startLine, endLine)
            return
        line = state.skipEmptyLines(startLine)
        while line < endLine and state.sCount[line] >= state.blkIndent:
            paragraph(state, line, endLine, False)
            line = state.skipEmptyLines(state.line)


class _Spans(ParserInline):
    """Parser of spans with a state of ours."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = SpanState(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _with_source(rule: BlockRule) -> BlockRule:
    def rule_with_source(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        first = len(state.tokens)
        found = rule(state, start, end, silent)
        if found and len(state.tokens) > first:
            source = state.getLines(start, state.line, state.blkIndent, False)
            state.tokens[first].meta["source"] = source.split("\n")
        return found

    return rule_with_source


def _make_parser() -> MarkdownIt:
    parser = _Markdown("zero", {"maxNesting": 2 * _MAX_DEPTH})
    parser.block, parser.inline = _Blocks(), _Spans()
    anywhere = ["paragraph", "blockquote", "list"]
    rules: list[tuple[str, BlockRule, list[str]]] = [
        ("table", table, ["paragraph"]),
        ("code", no_indented_code, []),
        ("fence", fence, anywhere),
        ("blockquote", blockquote, anywhere),
        ("hr", thematic_break, ["list"]),
        ("list", list_block, ["paragraph", "blockquote"]),
        ("heading", heading, ["paragraph", "blockquote"]),
        ("lheading", setext_heading, []),
        ("paragraph", paragraph, []),
    ]
    for name, rule, interrupts in rules:
        parser.block.ruler.at(name, _with_source(rule), {"alt": interrupts})
    parser.block.ruler.enableOnly([name for name, _, _ in rules])
    inline = parser.inline.ruler
    for name, span in {"newline": newline, "escape": escape, "backticks": code, "link": link, "image": image}.items():
        inline.at(name, span)
    inline.at("linkify", bare_url)
    inline.at("entity", entity)
    marks = ["strikethrough", "emphasis"]
    inline.enableOnly(["text", "linkify", "newline", "escape", "backticks", *marks, "link", "image", "autolink", "entity"])
    parser.inline.ruler2.enableOnly(["balance_pairs", *marks])
    return parser


_PARSER = _make_parser()
