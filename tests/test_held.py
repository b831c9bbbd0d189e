"""The state of a session as it is held in memory: a SessionState whose turns nobody has to read."""

from __future__ import annotations

import json
import logging
from uuid import uuid4

import pytest

from spade_coreason import Interaction, MemoryStrategy, SessionState
from spade_coreason.held import HeldState, HeldTurn


def turn(number: int) -> str:
    return json.dumps(
        {"interaction_id": str(uuid4()), "input": {"query": f"question {number}"}, "output": {"text": str(number)}}
    )


def asked(state: SessionState) -> list[object]:
    return [one.input["query"] for one in state.history if isinstance(one.input, dict)]


def test_it_is_a_session_state_and_each_change_is_another_one() -> None:
    state = HeldState.of("s", "agent@localhost", "alice@localhost", [HeldTurn(turn(1)), HeldTurn(turn(2))])
    longer = state.with_turns((*state.history.held, HeldTurn(turn(3))))
    shorter = longer.prune(MemoryStrategy.SLIDING_WINDOW, 2)
    assert isinstance(shorter, SessionState)
    assert (shorter.id, shorter.agent_id, shorter.user_id) == ("s", "agent@localhost", "alice@localhost")
    assert [asked(one) for one in (state, longer, shorter)] == [
        ["question 1", "question 2"],
        ["question 1", "question 2", "question 3"],
        ["question 2", "question 3"],
    ]
    assert state.updated_at < longer.updated_at < shorter.updated_at
    assert isinstance(shorter.history[-1], Interaction)
    assert shorter.history[-1] is longer.history[2]
    assert asked(longer.prune(MemoryStrategy.SLIDING_WINDOW, 0)) == []
    with pytest.raises(ValueError, match="frozen"):
        state.history = longer.history  # type: ignore[misc]


def test_no_turn_is_read_until_somebody_looks_at_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        state = HeldState.of("s", "a@localhost", "b@localhost", [HeldTurn("no turn"), HeldTurn(turn(1)), HeldTurn("nor this")])
        kept = state.prune(MemoryStrategy.SLIDING_WINDOW, 2)
        assert (len(state.history), len(kept.history), caplog.records) == (3, 2, [])
        assert asked(kept) == ["question 1"]
    assert [record.getMessage().startswith("a stored turn cannot be read (8 characters)") for record in caplog.records] == [
        True
    ]
    with pytest.raises(LookupError):
        kept.history[1]
