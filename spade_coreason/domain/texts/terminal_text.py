"""Text of others for a terminal: escapes in labels, and running text that restores the direction of the terminal.

There are two kinds of text. A label is an address, a name, an identifier, a log line or an error message: it must look like
what it is, so each hidden character is shown as an escape. Running text is what people and agents write: control characters
are removed, and the marks of Hebrew, Arabic and Persian stay. It ends every change of direction that it began, so that the
lines after it are read as usual (Unicode Standard Annex 9).
"""

from __future__ import annotations

import re

_EMOJI = "[\u203c\u2049\u2122\u2139\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"

# Controls (C0, C1), soft hyphen, joiners, marks of direction, separators of lines, fillers, variation selectors, tags and lone
# surrogates. An emoji keeps the joiners and selectors that belong to it.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
    f"|(?<!{_EMOJI})\ufe0f|(?<!{_EMOJI})(?<!{_EMOJI}\ufe0f)\u200d"
)

_CONTROLS: dict[int, str | None] = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {*b"\n\t"})
_CONTROLS |= {0x2028: "\n", 0x2029: "\n"}  # a terminal shows the separators of lines and paragraphs as nothing

_EMBEDDING_END, _ISOLATE_END = "\u202c", "\u2069"
_ENDS = dict.fromkeys("\u202a\u202b\u202d\u202e", _EMBEDDING_END) | dict.fromkeys("\u2066\u2067\u2068", _ISOLATE_END)
_CHANGES_OF_DIRECTION = re.compile("[\n\u202a-\u202e\u2066-\u2069]")


def escape_label(text: str) -> str:
    r"""Return a label with each hidden character as an escape, such as \u202e. A line break is one of them, too."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_lines(text: str) -> str:
    """Return several labels, a line each, as `escape_label` does."""
    return "\n".join(map(escape_label, text.split("\n")))


def escape_json(text: str) -> str:
    r"""Return JSON with each hidden character in its strings as \uXXXX. Its value stays the same."""
    return _HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else _json_escape(found[0]), text)


def changes_direction(text: str) -> bool:
    """Return True if a text may be shown in another order than it has."""
    return any(character in text for character in _ENDS)


def clean_running_text(text: str) -> str:
    """Return running text that is safe for a terminal, with its line breaks and tabs; see `DirectionRestorer`."""
    restorer = DirectionRestorer()
    return restorer.feed(remove_controls(text)) + restorer.end()


def remove_controls(text: str) -> str:
    """Remove the control characters of running text, except line breaks and tabs."""
    return text.translate(_CONTROLS)


class DirectionRestorer:
    """Running text that arrives in pieces: each line ends the embeddings and isolates that it began."""

    def __init__(self) -> None:
        self._ends: list[str] = []
        self._isolate_count = 0

    def feed(self, text: str) -> str:
        """Return the next piece, with the missing ends before each line break."""
        return _CHANGES_OF_DIRECTION.sub(self._replace, text)

    def end(self) -> str:
        """Return the missing ends of the last line."""
        ends = "".join(reversed(self._ends))
        self._ends.clear()
        self._isolate_count = 0
        return ends

    def _replace(self, found: re.Match[str]) -> str:
        character = found[0]
        if character == "\n":
            return self.end() + character
        if character in _ENDS:
            self._ends.append(_ENDS[character])
            self._isolate_count += _ENDS[character] == _ISOLATE_END
        elif character == _EMBEDDING_END:
            if self._ends and self._ends[-1] == _EMBEDDING_END:  # it does not reach out of an isolate
                self._ends.pop()
        elif self._isolate_count:
            self._isolate_count -= 1
            while self._ends.pop() != _ISOLATE_END:  # an isolate ends the embeddings that began in it
                pass
        return character


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
