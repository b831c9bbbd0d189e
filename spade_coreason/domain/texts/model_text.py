"""The text of a language model's message, without the thoughts that some servers put into it."""

from __future__ import annotations

from typing import Any, Literal

_OPENING, _CLOSING = "<think>", "</think>"


class ThoughtSplitter:
    """Split a text in pieces into its thoughts and the answer. Thoughts are a `<think>` block at the very beginning.

    Ollama, llama.cpp and vLLM without a reasoning parser send such blocks. A `<think>` further on is text. An unclosed block
    goes on to the end of the text.

    `is_unopened`: a chat template has begun the block already, so that a text up to a first `</think>` is a thought. The text
    is held back up to there. One without `</think>` is the answer.
    """

    def __init__(self, *, is_unopened: bool = False) -> None:
        self._is_unopened = is_unopened
        self._state: Literal["start", "unopened", "thought", "gap", "answer"] = "start"
        self._held: list[str] = []

    def feed(self, piece: str) -> tuple[str, str]:
        """Add a piece, and return what is known now: of the answer, and of the thoughts."""
        if self._state == "answer":
            return piece, ""
        if self._state == "start":
            return self._feed_start(piece)
        if self._state == "unopened":
            return self._feed_unopened(piece)
        if self._state == "thought":
            return self._feed_thought(piece)
        return self._feed_gap(piece), ""

    def end(self, *, is_truncated: bool = False) -> tuple[str, str]:
        """Return the rest. `is_truncated`: the text is incomplete; without a `</think>` its unopened block is, too."""
        rest = "".join(self._held)
        self._held = []
        is_thought = self._state == "thought" or (self._state == "unopened" and is_truncated)
        return ("", rest) if is_thought else (rest, "")

    def _feed_start(self, piece: str) -> tuple[str, str]:
        self._held.append(piece)
        if piece.isspace():
            return "", ""
        text = "".join(self._held)
        begin = text.lstrip()
        if begin.startswith(_OPENING):
            self._state, self._held = "thought", []
            return self._feed_thought(begin.removeprefix(_OPENING))
        if _OPENING.startswith(begin):
            self._held = [text]
            return "", ""
        self._held = []
        if self._is_unopened:
            self._state = "unopened"
            return self._feed_unopened(text)
        self._state = "answer"
        return text, ""

    def _feed_unopened(self, piece: str) -> tuple[str, str]:
        recent = piece
        for earlier in reversed(self._held):
            if len(recent) - len(piece) >= len(_CLOSING):
                break
            recent = earlier + recent
        self._held.append(piece)
        if _CLOSING not in recent:
            return "", ""
        thought, _, rest = "".join(self._held).partition(_CLOSING)
        self._state, self._held = "gap", []
        return self._feed_gap(rest), thought

    def _feed_thought(self, piece: str) -> tuple[str, str]:
        text = "".join([*self._held, piece])
        thought, closing, rest = text.partition(_CLOSING)
        if closing:
            self._state, self._held = "gap", []
            return self._feed_gap(rest), thought
        begin = text.rfind("<", max(0, len(text) - len(_CLOSING)))
        shown_end = begin if begin >= 0 and _CLOSING.startswith(text[begin:]) else len(text)
        self._held = [text[shown_end:]]
        return "", text[:shown_end]

    def _feed_gap(self, piece: str) -> str:
        """Leave out the whitespace after the block."""
        text = piece.lstrip()
        if text:
            self._state = "answer"
        return text


def split_content(content: Any) -> tuple[str, str]:
    """Split the content of a message or a delta into text and thoughts: a text, or a list of parts as Mistral's.

    Parts of other types are left out. TypeError if it is neither.
    """
    if isinstance(content, str) or not content:
        return content or "", ""
    if not isinstance(content, list):
        raise TypeError(f"where a text is to be, there is {type(content).__name__}")
    texts, thoughts = [], []
    for part in content:
        if not isinstance(part, dict):
            raise TypeError(f"where a part of a text is to be, there is {type(part).__name__}")
        if part.get("type") == "text":
            texts.append(require_text(part.get("text")))
        elif part.get("type") == "thinking":
            thoughts.append("".join(split_content(part.get("thinking"))))
    return "".join(texts), "".join(thoughts)


def remove_thoughts(content: Any, *, is_unopened: bool = False) -> str:
    """Return the text of a whole message without its thoughts. TypeError if its content is neither a text nor parts."""
    splitter = ThoughtSplitter(is_unopened=is_unopened)
    text, _ = splitter.feed(split_content(content)[0])
    return text + splitter.end()[0]


def require_text(value: Any) -> str:
    """Return a text that a server may leave out or send as null. TypeError if it is something else."""
    if value and not isinstance(value, str):
        raise TypeError(f"where a text is to be, there is {type(value).__name__}")
    return value or ""
