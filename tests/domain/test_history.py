"""The turns that are held in memory, and are parsed only when they are read."""

from __future__ import annotations

import json
import logging
from uuid import uuid4
from weakref import WeakSet

import pytest

from spade_coreason.domain.history import RecentTurns, StoredTurn, parse_turns
from tests.support.errors import ExpectedErrors


def turn(number: int) -> str:
    return json.dumps(
        {"interaction_id": str(uuid4()), "input": {"query": f"question {number}"}, "output": {"text": str(number)}}
    )


def test_a_turn_is_read_once_and_one_that_cannot_be_read_is_missing(
    caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a stored turn cannot be read")
    stored = [StoredTurn("no turn"), StoredTurn(turn(1)), StoredTurn(turn(2)), StoredTurn("nor this")]
    with caplog.at_level(logging.ERROR):
        assert [one.output["text"] for one in parse_turns(stored)] == ["1", "2"]
        assert parse_turns(stored)[0] is parse_turns(stored[:2])[0]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a stored turn cannot be read (7 characters)",
        "a stored turn cannot be read (8 characters)",
    ]


def test_a_turn_is_parsed_only_when_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert parse_turns([StoredTurn("no turn"), StoredTurn(turn(1))][1:])[0].input == {"query": "question 1"}
    assert caplog.records == []


def test_marking_a_turn_makes_another_one() -> None:
    stored = StoredTurn(json.dumps({**json.loads(turn(1)), "meta": {"channel": "person"}}))
    [marked] = parse_turns([stored.with_meta("over_limit", 7)])
    assert marked.meta == {"channel": "person", "over_limit": 7}
    assert parse_turns([stored])[0].meta == {"channel": "person"}


def recent_turns(*numbers: int) -> RecentTurns:
    return RecentTurns([StoredTurn(str(number)) for number in numbers])


def numbers_of(turns: RecentTurns) -> list[int]:
    return [int(turn.text) for turn in turns]


@pytest.mark.parametrize("window", [1, 2, 7, 20])
def test_a_snapshot_of_the_turns_stays_unchanged_while_turns_follow_and_leave(window: int) -> None:
    snapshots, turns = [], recent_turns()
    for number in range(50):
        turns = turns.with_appended(StoredTurn(str(number)))
        turns.truncate(window)
        snapshots.append(turns)
    for number, one in enumerate(snapshots):
        assert numbers_of(one) == list(range(number + 1))[-window:]
        assert (len(one), int(one[-1].text), int(one[0].text)) == (min(window, number + 1), number, numbers_of(one)[0])
        assert [turn.text for turn in one[-2:]] == [str(n) for n in numbers_of(one)[-2:]]


def test_different_turns_can_be_appended_to_the_same_turns() -> None:
    before = recent_turns(1, 2)
    lost, stored = before.with_appended(StoredTurn("3")), before.with_appended(StoredTurn("4"))
    assert [numbers_of(one) for one in (before, lost, stored)] == [[1, 2], [1, 2, 3], [1, 2, 4]]
    with pytest.raises(IndexError):
        before[2]


class WatchedTurn(StoredTurn):
    """A stored turn that takes weak references."""


def test_turns_that_left_the_window_are_released() -> None:
    turns, alive = recent_turns(), WeakSet[WatchedTurn]()
    for number in range(100):
        turn = WatchedTurn(str(number))
        alive.add(turn)
        turns = turns.with_appended(turn)
        turns.truncate(10)
    assert 10 <= len(alive) <= 16
    turns.truncate(20)
    assert numbers_of(turns) == list(range(90, 100))
