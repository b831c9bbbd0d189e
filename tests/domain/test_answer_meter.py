"""Answers in pieces: however they are cut, each event is checked alone and before it is read."""

from __future__ import annotations

import random

import pytest

from spade_coreason.domain.texts.answer_meter import AnswerMeter, AnswerTooLargeError

EVENTS = b"event: message\ndata: {}\n\n: a comment\r\n\r\ndata: 1\r\rid: 7\ndata: x\n\r\n\n\ndata: [DONE]\n\nnot the e"


def read(meter: AnswerMeter, data: bytes, sizes: list[int]) -> list[bytes]:
    """Return what is read of an answer that comes in pieces of these sizes, in turn."""
    parts = list[bytes]()
    begin = number = 0
    while begin < len(data):
        size = sizes[number % len(sizes)]
        parts += meter.divide(data[begin : begin + size])
        begin, number = begin + size, number + 1
    return [*parts, meter.end()]


@pytest.mark.parametrize("seed", range(20))
def test_events_are_read_one_by_one_and_nothing_is_lost(seed: int) -> None:
    sizes = random.Random(seed).choices(range(1, 40), k=50)
    parts = read(AnswerMeter(has_events=True, max_bytes=1000), EVENTS, sizes)
    assert b"".join(parts) == EVENTS
    assert all(part.count(b"data:") <= 1 for part in parts)
    assert parts[-1] == b"not the e"


def test_an_answer_without_events_is_read_at_its_end() -> None:
    meter = AnswerMeter(has_events=False, max_bytes=1000)
    assert list(meter.divide(b'{"a":\n\n')) == []
    assert list(meter.divide(b"1}")) == []
    assert meter.end() == b'{"a":\n\n1}'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"data: " + b"x" * 101, "100 bytes"),
        (b"data: " + b"x" * 101 + b"\n\n", "100 bytes"),
        (b"data: %s\n\n" % (b"x" * 60) * 10, "500 bytes"),
        (b"\n\n" * 21, "20 messages"),
        (b"data: x\n\n" * 21, "20 messages"),
        (b"data: [%s]\n\n" % b",".join([b"1"] * 12), "10 values"),
        (b"data: [1,1,1,1,1,\ndata: 1,1,1,1,1,1,1]\n\n", "10 values"),
    ],
)
@pytest.mark.parametrize("sizes", [[1], [7, 2], [1000]])
def test_each_limit_ends_the_answer(data: bytes, problem: str, sizes: list[int]) -> None:
    meter = AnswerMeter(True, max_bytes=100, max_values=10, max_events=20, max_answer_bytes=500)
    with pytest.raises(AnswerTooLargeError, match=f"^its answer has more than {problem}$"):
        read(meter, data, sizes)


@pytest.mark.parametrize(
    "hidden",
    [b': "\ndata: %s\n\n', b': "\rdata: %s\n\n', b'event: "\ndata: %s\n\n', ': "\u2028data: %s\u2028: "\n\n'.encode()],
)
def test_a_quote_in_another_line_hides_no_values(hidden: bytes) -> None:
    """Some readers of events end a line at U+2028."""
    with pytest.raises(AnswerTooLargeError, match="1,000 values"):
        read(AnswerMeter(True, 100_000, 1000), hidden % b"[%s]" % b",".join([b"1"] * 2000), [50])


def test_lines_without_end_in_one_event_are_no_work() -> None:
    with pytest.raises(AnswerTooLargeError, match="1,000 values"):
        read(AnswerMeter(True, 1_000_000), b":\n" * 2000 + b"\n", [64])


def test_marks_in_texts_are_no_values_of_an_event() -> None:
    event = b'event: message\ndata: {"text": "%s"}\n\n' % (b"a, b: [c], {d}" * 100)
    assert read(AnswerMeter(True, 10_000, 20), event * 5, [300]) == [*[event] * 5, b""]
