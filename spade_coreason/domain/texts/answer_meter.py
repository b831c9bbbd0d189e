"""Answers of others that come in pieces, as JSON or as server-sent events: they are limited before anything is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .foreign_json import MAX_JSON_VALUES, TooManyValuesError, check_values
from .translation import N_

_EVENT_END = re.compile(rb"\n\r?\n|\n\r|\r\r")
_MAX_LINES = 1000
_BYTES = N_("its answer has more than {limit} bytes")
_MESSAGES = N_("its answer has more than {limit} messages")
_VALUES = N_("its answer has more than {limit} values")


class AnswerTooLargeError(ValueError):
    """An answer exceeds a limit. `problem` is the text with the place of the limit, to be translated."""

    def __init__(self, problem: str, limit: int) -> None:
        self.problem = problem
        self.limit = f"{limit:,}"
        super().__init__(problem.format(limit=self.limit))


@dataclass(slots=True)
class AnswerMeter:
    """The limits of one answer. Events are read one by one, so that others go on between them.

    `max_bytes` and `max_values` are those of one event, or of an answer that has none.
    """

    has_events: bool
    max_bytes: int
    max_values: int = MAX_JSON_VALUES
    max_events: int = 10_000
    max_answer_bytes: int = 2**25
    _pending: bytearray = field(default_factory=bytearray)
    _byte_count: int = 0
    _event_count: int = 0

    def divide(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that end in a piece. Raise AnswerTooLargeError at a limit."""
        begin, start = max(0, len(self._pending) - 2), 0
        self._pending += piece
        self._byte_count += len(piece)
        ends = [match.end() for match in _EVENT_END.finditer(self._pending, begin)] if self.has_events else []
        for end in ends:
            self._event_count += 1
            yield self._check(bytes(self._pending[start:end]))
            start = end
        del self._pending[:start]
        _require(len(self._pending), self.max_bytes, _BYTES)

    def end(self) -> bytes:
        """Return what follows the last event, or the whole answer."""
        return self._check(bytes(self._pending))

    def _check(self, data: bytes) -> bytes:
        _require(len(data), self.max_bytes, _BYTES)
        _require(self._byte_count, self.max_answer_bytes, _BYTES)
        _require(self._event_count, self.max_events, _MESSAGES)
        if self.has_events:
            _require(data.count(b"\n") + data.count(b"\r"), _MAX_LINES, _VALUES)
        try:
            check_values(data, self.max_values, is_event=self.has_events)
        except TooManyValuesError as error:
            raise AnswerTooLargeError(_VALUES, self.max_values) from error
        return data


def _require(count: int, limit: int, problem: str) -> None:
    if count > limit:
        raise AnswerTooLargeError(problem, limit)
