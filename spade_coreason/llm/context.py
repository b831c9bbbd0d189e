"""What a language model is shown in a turn, within its token limit: what is left out, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..contracts import Interaction
from ..exceptions import CoReasonError
from .prompts import Message, passages_shown, summary_shown, turns_shown

_A_MESSAGE = 4
"""Tokens that a message takes beside its text, as OpenAI's models count."""
_SHORT = 200
_NO_ROOM = "\n(cut here: there is no room for more)"


class ContextTooLong(CoReasonError):
    """What has to be shown is more than the model takes."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"this is too long for my language model: {tokens:,} tokens, and {limit:,} are the most; ask with less"
        )
        self.tokens = tokens
        self.limit = limit


class Context:
    """The messages of a turn: `head`, what was remembered, the session's window, `passages`, and `tail`, to which rounds add.

    `remembered` is empty or ends with the seed's system message, of which the newest facts have a fourth of `limit` at most.
    """

    def __init__(
        self,
        head: Sequence[Message],
        remembered: Sequence[Mapping[str, Any]],
        window: Sequence[Interaction],
        count: Callable[[str], int],
        limit: int,
    ) -> None:
        self.tail: list[Message] = []
        self.passages: list[str] = []
        self._head = list(head)
        self._notices = [dict(message) for message in remembered[:-1]]
        heading, *facts = remembered[-1]["content"].split("\n") if remembered else [""]
        self._heading = heading
        self._facts = _newest(facts, count, limit // 4)
        self._summary = summary_shown(window)
        self._turns = turns_shown(window)
        self._count = count
        self._limit = limit

    def messages(self, beside: str = "") -> list[Message]:
        """What there is room for with what the request says `beside` them; ContextTooLong where the rest is too much.

        Left out are, in this order: the oldest turns, their summary, the passages that fit least, what tools answered first,
        the oldest of what was remembered.
        """
        shown = self._shown()
        if most_tokens([beside, *(text for message in shown for text in _texts(message))]) <= self._limit:
            return shown  # most contexts need no counting
        ways = self._leave_out()
        while (over := self.tokens(shown) + self._count(beside) - self._limit) > 0:
            while over > 0:
                if (gained := next(ways, None)) is None:
                    raise ContextTooLong(self._limit + over, self._limit)
                over -= gained
            shown = self._shown()
        return shown

    def _shown(self) -> list[Message]:
        remembered: list[Message] = []
        if self._facts:
            remembered = [*self._notices, {"role": "system", "content": "\n".join([self._heading, *self._facts])}]
        turns = [message for turn in self._turns for message in turn]
        return [*self._head, *remembered, *self._summary, *turns, *passages_shown(self.passages), *self.tail]

    def _leave_out(self) -> Iterator[int]:
        """Leaves out one thing after the other, and says how many tokens that gains."""
        while self._turns:
            yield self.tokens(self._turns.pop(0))
        while self._summary:
            yield self.tokens([self._summary.pop()])
        while self.passages:
            yield self._count(self.passages.pop())
        for message in self.tail:
            yield from self._shorten(message)
        while self._facts:
            yield self._count(self._facts.pop(0))

    def _shorten(self, message: Message) -> Iterator[int]:
        """By half, and by half again: what a tool answered, and what it was called with."""
        for call in message.get("tool_calls", ()):
            if len(arguments := call["function"]["arguments"]) > _SHORT:
                call["function"]["arguments"] = "{}"
                yield self._count(arguments)
        while message["role"] == "tool" and len(text := message["content"]) > _SHORT:
            message["content"] = f"{text[: len(text) // 2]}{_NO_ROOM}"
            yield self._count(text) - self._count(message["content"])

    def tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """How many messages have."""
        return tokens_of(messages, self._count)


def tokens_of(messages: Sequence[Mapping[str, Any]], count: Callable[[str], int]) -> int:
    """How many tokens messages have."""
    return sum(_A_MESSAGE + sum(count(text) for text in _texts(message)) for message in messages)


def most_tokens(texts: Iterable[str]) -> int:
    """What texts have at most, a message each: no text has more tokens than bytes."""
    return sum(_A_MESSAGE + 4 * len(text) for text in texts)


def _newest(facts: Sequence[str], count: Callable[[str], int], room: int) -> list[str]:
    """Those that fit, the newest first, in their order."""
    if most_tokens(facts) <= room:
        return list(facts)
    kept: list[str] = []
    for fact in reversed(facts):
        tokens = count(fact) + 1
        if tokens <= room:
            kept.append(fact)
            room -= tokens
        elif kept:  # one that is too large by itself hides no others
            break
    return kept[::-1]


def _texts(message: Mapping[str, Any]) -> list[str]:
    texts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls", ()):
        texts += [call["function"]["name"], call["function"]["arguments"]]
    return texts
