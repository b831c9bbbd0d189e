"""The messages that a language model is shown in a turn, shortened in a fixed order to its token limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..contracts import Interaction
from ..domain.texts.translation import N_
from ..exceptions import CoReasonError
from .model.completion import CARRIED
from .pictures import NO_PICTURES, LoadedPictures
from .prompts import (
    Message,
    content_pictures,
    content_texts,
    render_passages,
    render_summary,
    render_turns,
    without_pictures,
)

_TOKENS_PER_MESSAGE = 4
"""Tokens of a message beside its text, as OpenAI's models count."""
_UNSHORTENED_CHARACTERS = 200
_CUT_NOTE = "\n(cut here: there is no room for more)"


class ContextTooLongError(CoReasonError):
    """The parts that must be shown exceed the model's limit."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            N_(
                "This is too long for my language model: it has {number} tokens, and at most {limit} are accepted."
                " Please send less.",
                number=tokens,
                limit=limit,
            )
        )
        self.tokens = tokens
        self.limit = limit


class Context:
    """The messages of a turn: `head`, stored facts, the session's window, `passages`, and `tail`, to which each round adds.

    `remembered` is empty or ends with the seed's system message. Its newest facts get a fourth of `limit` at most. Each of the
    `pictures` that turns and tail show counts `picture_tokens`.
    """

    def __init__(
        self,
        head: Sequence[Message],
        remembered: Sequence[Mapping[str, Any]],
        window: Sequence[Interaction],
        count_tokens: Callable[[str], int],
        limit: int,
        pictures: LoadedPictures = NO_PICTURES,
        picture_tokens: int = 0,
    ) -> None:
        self.tail: list[Message] = []
        self.passages: list[str] = []
        self._head = list(head)
        self._notices = [dict(message) for message in remembered[:-1]]
        heading, *facts = remembered[-1]["content"].split("\n") if remembered else [""]
        self._heading = heading
        self._facts = _select_newest(facts, count_tokens, limit // 4)
        self._summary = render_summary(window)
        self._turns = render_turns(window, pictures)
        self._count_tokens = count_tokens
        self._limit = limit
        self._picture_tokens = picture_tokens

    def messages(self, request_fields: str = "") -> list[Message]:
        """Build the messages that fit, beside the `request_fields` of the request.

        Parts are dropped in this order: the oldest turns, their summary, the passages that fit least, the first reasoning, the
        first results of tools, the oldest facts. ContextTooLongError if the remaining parts exceed the limit.
        """
        shown = self._all_messages()
        texts = [request_fields, *(text for message in shown for text in _message_texts(message))]
        if max_tokens_of(texts) + self._count_picture_tokens(shown) <= self._limit:
            return shown  # most contexts need no counting
        savings = self._drop_least_important()
        while (excess := self.count_message_tokens(shown) + self._count_tokens(request_fields) - self._limit) > 0:
            while excess > 0:
                if (saved := next(savings, None)) is None:
                    raise ContextTooLongError(self._limit + excess, self._limit)
                excess -= saved
            shown = self._all_messages()
        return shown

    def shorten(self) -> bool:
        """Drop parts that have a third of the tokens, or as much as can be dropped. False if nothing can be."""
        tokens = self.count_message_tokens(self._all_messages()) // 3
        saved = 0
        for saving in self._drop_least_important():
            saved += saving
            if saved >= tokens:
                break
        return saved > 0

    def drop_pictures(self) -> None:
        """Replace all pictures by a note, for a server that refuses them."""
        self.tail[:] = map(without_pictures, self.tail)
        self._turns = [[without_pictures(message) for message in turn] for turn in self._turns]

    def _all_messages(self) -> list[Message]:
        remembered: list[Message] = []
        if self._facts:
            remembered = [*self._notices, {"role": "system", "content": "\n".join([self._heading, *self._facts])}]
        turns = [message for turn in self._turns for message in turn]
        return [*self._head, *remembered, *self._summary, *turns, *render_passages(self.passages), *self.tail]

    def _drop_least_important(self) -> Iterator[int]:
        """Drop one part after the other, and yield the tokens that each saves."""
        while self._turns:
            yield self.count_message_tokens(self._turns.pop(0))
        while self._summary:
            yield self.count_message_tokens([self._summary.pop()])
        while self.passages:
            yield self._count_tokens(self.passages.pop())
        for message in self.tail:
            yield from self._drop_reasoning(message)
        for message in self.tail:
            yield from self._shorten_message(message)
        while self._facts:
            yield self._count_tokens(self._facts.pop(0))

    def _drop_reasoning(self, message: Message) -> Iterator[int]:
        """Empty the texts that a message carries for its model. Its fields stay, and so do signatures: servers check them."""
        for name, value in message.get(CARRIED, {}).get("fields", {}).items():
            if isinstance(value, str) and len(value) > _UNSHORTENED_CHARACTERS:
                message[CARRIED]["fields"][name] = ""
                yield self._count_tokens(value)

    def _shorten_message(self, message: Message) -> Iterator[int]:
        """Shorten the results of tools by half, again and again, and drop the arguments of their calls."""
        for call in message.get("tool_calls", ()):
            if len(arguments := call["function"]["arguments"]) > _UNSHORTENED_CHARACTERS:
                call["function"]["arguments"] = "{}"
                yield self._count_tokens(arguments)
        while message["role"] == "tool" and len(text := message["content"]) > _UNSHORTENED_CHARACTERS:
            message["content"] = f"{text[: len(text) // 2]}{_CUT_NOTE}"
            yield self._count_tokens(text) - self._count_tokens(message["content"])

    def count_message_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Count the tokens of messages."""
        return count_message_tokens(messages, self._count_tokens) + self._count_picture_tokens(messages)

    def _count_picture_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return self._picture_tokens * sum(len(content_pictures(message.get("content"))) for message in messages)


def count_message_tokens(messages: Sequence[Mapping[str, Any]], count_tokens: Callable[[str], int]) -> int:
    """Count the tokens of the texts of messages."""
    return sum(_TOKENS_PER_MESSAGE + sum(count_tokens(text) for text in _message_texts(message)) for message in messages)


def max_tokens_of(texts: Iterable[str]) -> int:
    """Return the most tokens that texts can have, a message each: no text has more tokens than bytes."""
    return sum(_TOKENS_PER_MESSAGE + 4 * len(text) for text in texts)


def _select_newest(facts: Sequence[str], count_tokens: Callable[[str], int], max_tokens: int) -> list[str]:
    """Select the newest facts that fit, in their order."""
    if max_tokens_of(facts) <= max_tokens:
        return list(facts)
    selected: list[str] = []
    for fact in reversed(facts):
        tokens = count_tokens(fact) + 1
        if tokens <= max_tokens:
            selected.append(fact)
            max_tokens -= tokens
        elif selected:  # skip newest facts that are too large by themselves
            break
    return selected[::-1]


def _message_texts(message: Mapping[str, Any]) -> list[str]:
    texts = content_texts(message.get("content"))
    for call in message.get("tool_calls", ()):
        texts += [call["function"]["name"], call["function"]["arguments"]]
    if (carried := message.get(CARRIED)) is not None:
        texts += [value if isinstance(value, str) else json.dumps(value) for value in carried["fields"].values()]
        texts += [json.dumps(fields) for fields in carried["calls"] if fields]
    return texts
