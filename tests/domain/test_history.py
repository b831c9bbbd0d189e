"""Turns as they are held in memory, which nobody has to read."""

from __future__ import annotations

import json
import logging
from uuid import uuid4

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
    held = [StoredTurn("no turn"), StoredTurn(turn(1)), StoredTurn(turn(2)), StoredTurn("nor this")]
    with caplog.at_level(logging.ERROR):
        assert [one.output["text"] for one in parse_turns(held)] == ["1", "2"]
        assert parse_turns(held)[0] is parse_turns(held[:2])[0]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a stored turn cannot be read (7 characters)",
        "a stored turn cannot be read (8 characters)",
    ]


def test_a_turn_is_not_read_for_being_held(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert parse_turns([StoredTurn("no turn"), StoredTurn(turn(1))][1:])[0].input == {"query": "question 1"}
    assert caplog.records == []


def test_a_marked_turn_is_another_one() -> None:
    held = StoredTurn(json.dumps({**json.loads(turn(1)), "meta": {"channel": "person"}}))
    [marked] = parse_turns([held.with_meta("over_limit", 7)])
    assert marked.meta == {"channel": "person", "over_limit": 7}
    assert parse_turns([held])[0].meta == {"channel": "person"}


def held(*numbers: int) -> RecentTurns:
    return RecentTurns([StoredTurn(str(number)) for number in numbers])


def texts(turns: RecentTurns) -> list[int]:
    return [int(turn.text) for turn in turns]


@pytest.mark.parametrize("most", [1, 2, 7, 20])
def test_what_a_session_shows_stays_as_it_is_while_turns_follow_and_leave(most: int) -> None:
    seen, turns = [], held()
    for number in range(50):
        turns = turns.with_appended(StoredTurn(str(number)))
        turns.truncate(most)
        seen.append(turns)
    for number, one in enumerate(seen):
        assert texts(one) == list(range(number + 1))[-most:]
        assert (len(one), int(one[-1].text), int(one[0].text)) == (min(most, number + 1), number, texts(one)[0])
        assert [turn.text for turn in one[-2:]] == [str(n) for n in texts(one)[-2:]]


def test_two_may_follow_the_same_turns_as_after_one_that_was_not_stored() -> None:
    before = held(1, 2)
    lost, stored = before.with_appended(StoredTurn("3")), before.with_appended(StoredTurn("4"))
    assert [texts(one) for one in (before, lost, stored)] == [[1, 2], [1, 2, 3], [1, 2, 4]]
    with pytest.raises(IndexError):
        before[2]


def test_what_leaves_is_let_go_soon() -> None:
    turns = held()
    for number in range(100):
        turns = turns.with_appended(StoredTurn(str(number)))
        turns.truncate(10)
    assert len(turns._shared) <= 16
    turns.truncate(20)
    assert texts(turns) == list(range(90, 100))
