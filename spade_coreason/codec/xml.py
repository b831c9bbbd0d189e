"""Text on its way into XML: what may stand there, what it costs on the wire, and where it may be cut."""

from __future__ import annotations

import re
from collections.abc import Iterator

# XML 1.0, production [2]: everything but these. Lone surrogates are among them, and could not be encoded either.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_BOUNDARIES = ("\n\n", "\n", ". ", " ")

_FENCE = "```"

_PREVIEW_BYTES = 1000


def clean(text: str) -> str:
    """`text` without the characters that XML 1.0 forbids."""
    # Nothing that is printable is forbidden. To ask costs a fraction of what the expression does, as `in` does below.
    return text if text.replace("\n", "").isprintable() else _FORBIDDEN.sub("", text)


def escape(text: str) -> str:
    """`text` as XML character data, forbidden characters removed."""
    return escape_clean(clean(text))


def escape_clean(text: str) -> str:
    """`text`, in which nothing is forbidden, as XML character data."""
    if "&" in text or "<" in text or ">" in text:
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def escape_attribute(text: str) -> str:
    """`text` as the value of an attribute in single quotes."""
    text = escape(text).replace("'", "&apos;").replace('"', "&quot;")
    return text.replace("\n", "&#10;").replace("\t", "&#9;")


def wire_size(text: str) -> int:
    """The bytes that `text` takes as character data."""
    escaped = escape(text)
    return len(escaped) if escaped.isascii() else len(escaped.encode())


def split_text(text: str, limit_bytes: int, *, at_boundaries: bool = True) -> Iterator[str]:
    """Parts of `text` in order, none over `limit_bytes` on the wire.

    Cut at the end of a paragraph, line, sentence or word where there is one in the last half of a part (and the white
    space there is dropped), else between two characters. A block of preformatted text (XEP-0393) that is cut ends in its part
    and begins again in the next. Not `at_boundaries`: the parts joined are `text` again.
    """
    limit_bytes = max(limit_bytes, 16)  # one character always fits
    has_fences = at_boundaries and _FENCE in text
    if has_fences:
        limit_bytes -= 2 * len(f"{_FENCE}\n")
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
    """The first paragraphs of a long text, or as much of the first as is read at a glance."""
    first = next(split_text(text, _PREVIEW_BYTES), "")
    between = "\n" if first.endswith(_FENCE) else "\n\n"
    return f"{first}{between}…" if first else ""


def _balance_fences(part: str, was_open: bool, is_last: bool) -> tuple[str, bool]:
    """A part with the fences that it lacks, and whether the next one begins within a block."""
    if not part.strip():
        return "", was_open
    lines, is_open = (part.rstrip().strip("\n") if was_open else part.strip()).split("\n"), was_open
    for line in lines:
        # Anything may stand behind the fence that opens a block, nothing behind the one that closes it.
        if line.startswith(_FENCE) and (not is_open or line.rstrip() == _FENCE):
            is_open = not is_open
    if is_open and not is_last:
        if lines[-1].startswith(_FENCE):
            lines.pop()  # it opens a block of which nothing stands here
        else:
            lines.append(_FENCE)
    if was_open:
        if lines[0].rstrip() == _FENCE:
            del lines[0]  # nothing was left of the block
        else:
            lines.insert(0, _FENCE)
    return "\n".join(lines).strip("\n"), is_open


def _find_boundary(text: str, begin: int, end: int) -> int:
    for mark in _BOUNDARIES:
        found = text.rfind(mark, begin + (end - begin) // 2, end)
        if found > begin:
            return found + len(mark)
    return end
