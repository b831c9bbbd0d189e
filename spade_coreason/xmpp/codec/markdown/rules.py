"""Rules for markdown-it that find the Markdown that agents mean, and leave plain text alone."""

from __future__ import annotations

import re
import unicodedata

from markdown_it.rules_block import StateBlock, hr, lheading
from markdown_it.rules_inline import StateInline, entity as markdown_it_entity, link as markdown_it_link
from markdown_it.rules_inline.state_inline import Scanned

_RULE = re.compile(r"([-*_])(?: ?\1){2}[ \t]*")

_UNDERLINE = re.compile(r"(?:={3,}|-{3,})[ \t]*")

_COLUMNS = re.compile(r"[^\s|].*[ \t]{2}\S|.*\t")

_DELIMITERS = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*(?:\|[ \t]*)?")

_CELL_END = re.compile(r"(?<!\\)\|")


def _line_text(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def _is_continued(state: StateBlock, line: int, end: int) -> bool:
    """True if the current block has this line. CommonMark also takes lines that are indented less than the block."""
    return line < end and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent


def paragraph(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a paragraph: lines with all the blanks around them."""
    outer, state.parentType = state.parentType, "paragraph"
    enders = state.md.block.ruler.getRules("paragraph")
    line = start + 1
    while _is_continued(state, line, end):
        if not state.is_code_block(line) and any(rule(state, line, end, True) for rule in enders):
            break
        line += 1
    state.parentType = outer
    state.line = line
    token = state.push("paragraph", "", 0)
    token.map = [start, line]
    token.content = state.getLines(start, line, state.blkIndent, False)
    return True


def table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table with all its cells. markdown-it's own rule drops cells without a head."""
    if not _is_continued(state, start + 1, end) or state.is_code_block(start):
        return False
    head, delimiters = _line_text(state, start), _line_text(state, start + 1)
    if "|" not in head or "|" not in delimiters or not _DELIMITERS.fullmatch(delimiters):
        return False
    rows = [_cells(head)]
    below = _cells(delimiters)
    if len(below) != len(rows[0]):
        return False
    if silent:
        return True
    line = start + 2
    while _is_continued(state, line, end) and "|" in (text := _line_text(state, line)):
        rows.append(_cells(text))
        line += 1
    state.line = line
    token = state.push("table", "", 0)
    token.map = [start, line]
    token.meta = {"rows": rows, "sides": [_alignment(cell) for cell in below]}
    return True


def _cells(line: str) -> list[str]:
    cells = _CELL_END.split(line.strip())
    if len(cells) > 1 and not cells[0]:
        del cells[0]
    if len(cells) > 1 and not cells[-1]:
        del cells[-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _alignment(delimiter: str) -> str:
    """Return the alignment of a column, in the notation of `format`."""
    if not delimiter.endswith(":"):
        return "<"
    return "^" if delimiter.startswith(":") else ">"


def no_indented_code(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Replace the rule for indented code, and find none.

    The rule must exist: then markdown-it finds no other block in lines that are indented that far.
    """
    return False


def _is_blank(state: StateBlock, line: int, end: int) -> bool:
    return line >= end or state.isEmpty(line)


def thematic_break(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a rule between blank lines. Elsewhere, or if it is longer, it belongs to a drawing."""
    if not _RULE.fullmatch(_line_text(state, start)) or not _is_blank(state, start + 1, end):
        return False
    return hr(state, start, end, silent)


def setext_heading(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse an underlined heading, but not the first line of a table without bars."""
    if not _is_continued(state, start + 1, end) or not _is_blank(state, start + 2, end):
        return False
    if not _UNDERLINE.fullmatch(_line_text(state, start + 1)) or _COLUMNS.match(_line_text(state, start)):
        return False
    return lheading(state, start, end, silent)


_ESCAPE = re.compile(r"\\[!-/:-@\[-`{-~]")

_TICKS = re.compile("`+")

# Chinese, Japanese, Korean, Thai, Lao, Burmese and Khmer, with the punctuation of these scripts.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe10-\ufe1f\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)

_NO_ENTITY = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufffd]")

_URL = re.compile(r"://(?:(?!&(?:lt|gt|quot|nbsp|#\w+);)[^\s<>\[\]`|])+", re.IGNORECASE)

_URL_END = "*_~)].,;:!?'\""


def is_spaceless(character: str) -> bool:
    """Return True for a character of a script that writes its words without spaces; False for ""."""
    return _SPACELESS.match(character) is not None and not character.isspace()


class SpanState(StateInline):
    """The state of the parser of spans. It finds bold text beside the punctuation of scripts without spaces.

    CommonMark takes `**` between punctuation and a letter for text, as in `**「重要」**です`. It expects a space there.
    """

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        before, after = self.src[start - 1 : start], self.src[end : min(end + 1, self.posMax)]
        if not canSplitWord or scanned.length < 2 or not (is_spaceless(before) or is_spaceless(after)):
            return scanned
        may_close = not before.isspace() and before != "" and unicodedata.category(before) not in ("Ps", "Pi")
        may_open = not after.isspace() and after != "" and unicodedata.category(after) not in ("Pe", "Pf")
        return Scanned(scanned.can_open or may_open, scanned.can_close or may_close, scanned.length)


def newline(state: StateInline, silent: bool) -> bool:
    """Parse the end of a line, without the blanks around it."""
    if state.src[state.pos] != "\n":
        return False
    if not silent:
        state.push("text", "", 0).content = "\n"
    state.pos += 1
    return True


def escape(state: StateInline, silent: bool) -> bool:
    r"""Parse a backslash and the character after it. Both stay text: `¯\_(ツ)_/¯`, `\(x\)`, `\\host`."""
    match = _ESCAPE.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("text", "", 0).content = match[0]
    state.pos = match.end()
    return True


def code(state: StateInline, silent: bool) -> bool:
    """Parse code within one line, as it is."""
    ticks = _TICKS.match(state.src, state.pos)
    if ticks is None:
        return False
    end = state.src.find("\n", state.pos)
    end = state.posMax if end < 0 else min(end, state.posMax)
    for closing in _TICKS.finditer(state.src, ticks.end(), max(end, ticks.end())):
        if len(closing[0]) == len(ticks[0]):
            if not silent:
                token = state.push("code", "", 0)
                token.content, token.markup = state.src[ticks.end() : closing.start()], ticks[0]
            state.pos = closing.end()
            return True
    if not silent:
        state.push("text", "", 0).content = ticks[0]
    state.pos = ticks.end()
    return True


def entity(state: StateInline, silent: bool) -> bool:
    """Parse an entity as its character. One for a control, or for a change of direction, stays as it was written."""
    if not markdown_it_entity(state, silent):
        return False
    if not silent and _NO_ENTITY.search(state.tokens[-1].content):
        state.tokens[-1].content = state.tokens[-1].markup
    return True


def bare_url(state: StateInline, silent: bool) -> bool:
    """Parse an address, in which no character is a mark."""
    match = _URL.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    address = match[0].rstrip(_URL_END) or "://"
    if not silent:
        state.push("text", "", 0).content = address.replace("&amp;", "&")
    state.pos += len(address)
    return True


def link(state: StateInline, silent: bool) -> bool:
    """Parse a link, and store how it was written, in case it turns out to be none."""
    first, start = len(state.tokens) + bool(state.pending), state.pos
    found = markdown_it_link(state, silent)
    if found and not silent:
        state.tokens[first].meta["source"] = state.src[start : state.pos]
    return found


def image(state: StateInline, silent: bool) -> bool:
    """Parse an image as a link. markdown-it's own rule recurses as deep as images are nested."""
    if not state.src.startswith("![", state.pos):
        return False
    first = len(state.tokens) + bool(state.pending)
    state.pos += 1
    if link(state, silent):
        if not silent:
            state.tokens[first].meta["source"] = "!" + state.tokens[first].meta["source"]
        return True
    state.pos -= 1
    return False
