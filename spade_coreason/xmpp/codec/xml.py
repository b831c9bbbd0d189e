"""Text as XML character data: forbidden characters, escapes, size on the wire, and places to split it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...domain.texts.text import FENCE, join_surrogates

# All characters outside of XML 1.0, production [2]. Lone surrogates are among them; they cannot be encoded either.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# UTF-8: each of the 32 control characters is one byte, and such a byte is nothing else. Those that are forbidden become 0.
_CONTROLS_TO_0 = bytes(0 if byte < 32 and byte not in b"\t\n\r" else 1 for byte in range(256))
_NONCHARACTERS = "\ufffe".encode(), "\uffff".encode()

_BOUNDARIES = ("\n\n", "\n", ". ", " ")


_PREVIEW_BYTES = 1000


def clean(text: str) -> str:
    """Remove the characters that XML 1.0 forbids. Two halves of a character that meet are joined first."""
    return _FORBIDDEN.sub("", join_surrogates(text)) if _has_forbidden(text) else text


def _has_forbidden(text: str) -> bool:
    # The search by the expression costs five times as much.
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return True
    return 0 in data.translate(_CONTROLS_TO_0) or (not text.isascii() and any(bad in data for bad in _NONCHARACTERS))


def escape(text: str) -> str:
    """Return `text` as XML character data, without forbidden characters."""
    return escape_clean(clean(text))


def escape_clean(text: str) -> str:
    """Return `text` as XML character data. It must not contain forbidden characters."""
    if "&" in text or "<" in text or ">" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def escape_attribute(text: str) -> str:
    """Return `text` as the value of an attribute in single quotes."""
    text = escape(text).replace("'", "&apos;").replace('"', "&quot;")
    return text.replace("\n", "&#10;").replace("\t", "&#9;")


def wire_size(text: str) -> int:
    """Return the bytes that `text` takes as character data. Forbidden characters count as if they were sent."""
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    size += 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
    return size - text.count("\r\n") if "\r" in text else size


def split_text(text: str, limit_bytes: int, *, at_boundaries: bool = True) -> Iterator[str]:
    """Split `text` into parts of at most `limit_bytes` on the wire, in order.

    A part ends with a paragraph, line, sentence or word, if one ends in its last half. The white space there is dropped.
    Otherwise the cut is between two characters as a person sees them. A block of preformatted text (XEP-0393) that is cut
    ends in its part and begins again in the next. Without `at_boundaries` the joined parts are `text` again.
    """
    limit_bytes = max(limit_bytes, 16)  # one character always fits
    has_fences = at_boundaries and FENCE in text
    if has_fences:
        limit_bytes -= 2 * len(f"{FENCE}\n")
    begin, is_open = 0, False
    while begin < len(text):
        part = text[begin : begin + limit_bytes]
        while (size := wire_size(part)) > limit_bytes:
            part = part[: max(1, min(len(part) - 1, len(part) * limit_bytes // size))]
            if len(part) == 1:
                break
        end = begin + len(part)
        if at_boundaries and end < len(text):
            end = _find_boundary(text, begin, end)
        part = text[begin:end]
        begin = end
        if has_fences:
            part, is_open = _balance_fences(part, is_open, is_last=begin == len(text))
            if part:
                yield part
        elif not at_boundaries or part.strip():
            yield part.strip() if at_boundaries else part


def preview(text: str) -> str:
    """Return the first paragraphs of a long text, or the part of the first that is read at a glance."""
    first = next(split_text(text, _PREVIEW_BYTES), "")
    separator = "\n" if first.endswith(FENCE) else "\n\n"
    return f"{first}{separator}…" if first else ""


def _balance_fences(part: str, was_open: bool, is_last: bool) -> tuple[str, bool]:
    """Return a part with the fences that it lacks, and True if the next part begins within a block."""
    if not part.strip():
        return "", was_open
    lines, is_open = (part.rstrip().strip("\n") if was_open else part.strip()).split("\n"), was_open
    for line in lines:
        # Any text may follow the fence that opens a block, none the fence that closes it.
        if line.startswith(FENCE) and (not is_open or line.rstrip() == FENCE):
            is_open = not is_open
    if is_open and not is_last:
        if lines[-1].startswith(FENCE):
            lines.pop()  # it opens a block that has no line in this part
        else:
            lines.append(FENCE)
    if was_open:
        if lines[0].rstrip() == FENCE:
            del lines[0]  # the block had no line left
        else:
            lines.insert(0, FENCE)
    return "\n".join(lines).strip("\n"), is_open


def _find_boundary(text: str, begin: int, end: int) -> int:
    for mark in _BOUNDARIES:
        found = text.rfind(mark, begin + (end - begin) // 2, end)
        if found > begin:
            return found + len(mark)
    if text[begin : end + 1].isascii():
        return end
    from wcwidth import grapheme_boundary_before  # takes as long to import as the whole codec

    # An emoji or a letter may be made of several characters.
    whole = grapheme_boundary_before(text, end + 1)
    return whole if whole > begin else end
