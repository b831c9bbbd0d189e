"""Turns as they are held in memory, which nobody has to read."""

from __future__ import annotations

import json
import logging
from uuid import uuid4

import pytest

from spade_coreason.held import HeldTurn, read


def turn(number: int) -> str:
    return json.dumps(
        {"interaction_id": str(uuid4()), "input": {"query": f"question {number}"}, "output": {"text": str(number)}}
    )


def test_a_turn_is_read_once_and_one_that_cannot_be_read_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    held = [HeldTurn("no turn"), HeldTurn(turn(1)), HeldTurn(turn(2)), HeldTurn("nor this")]
    with caplog.at_level(logging.ERROR):
        assert [one.output["text"] for one in read(held)] == ["1", "2"]
        assert read(held)[0] is read(held[:2])[0]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a stored turn cannot be read (7 characters)",
        "a stored turn cannot be read (8 characters)",
    ]


def test_a_turn_is_not_read_for_being_held(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert read([HeldTurn("no turn"), HeldTurn(turn(1))][1:])[0].input == {"query": "question 1"}
    assert caplog.records == []


def test_a_marked_turn_is_another_one() -> None:
    held = HeldTurn(json.dumps({**json.loads(turn(1)), "meta": {"language": "person"}}))
    [marked] = read([held.marked("over_limit", 7)])
    assert marked.meta == {"language": "person", "over_limit": 7}
    assert read([held])[0].meta == {"language": "person"}
