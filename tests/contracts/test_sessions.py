"""Turns, session states and memory policies: immutable values, every change a new one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from spade_coreason.contracts import (
    AgentRuntimeConfig,
    AttachedFile,
    ContentPart,
    Interaction,
    LineageMetadata,
    MemoryConfig,
    MemoryStrategy,
    MultiModalInput,
    SessionState,
)

WINDOW = MemoryStrategy.SLIDING_WINDOW
UNPRUNED_STRATEGIES = [MemoryStrategy.TOKEN_BUFFER, MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE]


def turn(number: int) -> Interaction:
    return Interaction(input={"query": f"question {number}"}, output={"text": f"answer {number}"})


def state_of(turns: int, **fields: Any) -> SessionState:
    return SessionState(agent_id="a@x", user_id="u@x", history=[turn(n) for n in range(turns)], **fields)


# Interaction


def test_an_interaction_needs_only_its_input() -> None:
    one = Interaction(input="hi")
    assert isinstance(one.interaction_id, UUID)
    assert one.id == one.interaction_id
    assert one.timestamp.tzinfo is UTC
    assert (one.output, one.events, one.meta, one.lineage) == ({}, [], {}, None)


@pytest.mark.parametrize("value", ["text", 3, 0.5, True, None, [1, "two"], {"query": "hi", "deep": [{"a": None}]}])
def test_an_input_is_any_json_value_and_survives_json(value: object) -> None:
    one = Interaction(input=value)
    assert one.input == value
    assert type(one.input) is type(value)
    assert Interaction.model_validate_json(one.to_json(exclude_none=False)) == one


@pytest.mark.parametrize("value", [object(), {"a": object()}, {1: "one"}, {1, 2}])
def test_an_input_that_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Interaction(input=value)


def test_an_input_of_several_parts_survives_json() -> None:
    photo = AttachedFile(id="file-1", mime_type="image/png")
    given = MultiModalInput(parts=[ContentPart(text="what is this?", attachments=[photo]), ContentPart(text="and this?")])
    one = Interaction(input=given)

    assert one.input is given
    assert Interaction.model_validate_json(one.to_json()) == one
    assert Interaction.model_validate_json(one.model_dump_json()) == one
    assert Interaction.model_validate(one.dump()) == one


@pytest.mark.parametrize(
    "payload",
    [
        {"parts": [{"text": "hi"}], "query": 3},
        {"parts": [{"text": "hi"}]},
        {"parts": [{"kind": "text", "text": "hi"}]},
        {"parts": ["engine", "wheel"]},
        {"parts": 2},
    ],
)
def test_a_payload_that_happens_to_have_parts_stays_as_it_is(payload: dict[str, Any]) -> None:
    one = Interaction(input=payload)
    assert one.input == payload
    assert Interaction.model_validate_json(one.to_json()).input == payload


def test_parts_have_text_or_attachments_or_both() -> None:
    part = ContentPart()
    assert (part.text, part.attachments) == (None, [])
    assert AttachedFile(id="f").mime_type is None
    with pytest.raises(ValidationError, match="id"):
        AttachedFile.model_validate({"mime_type": "text/plain"})
    with pytest.raises(ValidationError, match="parts"):
        MultiModalInput.model_validate({})


def test_lineage_is_optional_in_both_of_its_parts() -> None:
    assert LineageMetadata().dump() == {}
    lineage = LineageMetadata(root_request_id="r", parent_interaction_id="p")
    assert Interaction(input="hi", lineage=lineage).dump()["lineage"] == {
        "root_request_id": "r",
        "parent_interaction_id": "p",
    }


# SessionState


def test_a_session_state_begins_empty_and_now() -> None:
    before = datetime.now(UTC)
    state = SessionState(agent_id="a@x", user_id="u@x")
    assert UUID(state.id)
    assert (state.history, state.variables) == ([], {})
    assert before <= state.created_at <= state.updated_at <= datetime.now(UTC)


@pytest.mark.parametrize("missing", ["agent_id", "user_id"])
def test_a_session_has_an_agent_and_a_user(missing: str) -> None:
    given = {"agent_id": "a@x", "user_id": "u@x"}
    del given[missing]
    with pytest.raises(ValidationError, match=missing):
        SessionState.model_validate(given)


def test_a_session_state_cannot_be_changed() -> None:
    state = state_of(1)
    for name in SessionState.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(state, name, None)
    with pytest.raises(ValidationError, match="frozen"):
        state.history[0].output = {}  # type: ignore[misc]  # the point of the test


def test_adding_a_turn_gives_a_new_state_and_leaves_the_old_one() -> None:
    state = state_of(2, variables={"name": "Ada"})
    unchanged = state.model_copy(deep=True)
    new = turn(2)
    after = state.add_interaction(new)

    assert after is not state
    assert after.history == [*state.history, new]
    assert after.updated_at > state.updated_at
    assert (after.id, after.agent_id, after.user_id) == (state.id, state.agent_id, state.user_id)
    assert (after.created_at, after.variables) == (state.created_at, state.variables)
    assert state == unchanged


def test_variables_written_in_a_new_state_are_not_seen_in_the_old_one() -> None:
    state = state_of(3, variables={"city": "Valencia"})
    state.add_interaction(turn(3)).variables["city"] = "Berlin"
    state.prune(WINDOW, 1).variables["city"] = "Berlin"
    assert state.variables == {"city": "Valencia"}


def test_turns_are_shared_between_states_not_copied_or_validated_again() -> None:
    state = state_of(20)
    assert all(a is b for a, b in zip(state.add_interaction(turn(20)).history, state.history, strict=False))
    assert all(a is b for a, b in zip(state.prune(WINDOW, 20).history, state.history, strict=True))


def test_updated_at_is_strictly_later_even_if_the_clock_stands_still_or_goes_back() -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    first = state_of(3, updated_at=tomorrow)
    second = first.add_interaction(turn(3))
    third = second.prune(WINDOW, 2)
    assert tomorrow < second.updated_at < third.updated_at < tomorrow + timedelta(seconds=1)


def test_a_thousand_changes_in_a_row_have_a_thousand_times() -> None:
    states = [SessionState(agent_id="a@x", user_id="u@x")]
    for _ in range(1000):
        states.append(states[-1].prune(WINDOW, 5))
    times = [state.updated_at for state in states]
    assert all(earlier < later for earlier, later in pairwise(times))


def test_a_state_with_a_time_without_zone_can_be_changed_too() -> None:
    state = state_of(1, updated_at=datetime(2026, 1, 9, 12))
    assert state.add_interaction(turn(1)).updated_at > state.updated_at


def test_a_session_state_survives_json() -> None:
    state = state_of(3, variables={"a": [1, None, {"b": "ñ"}]})
    assert SessionState.model_validate_json(state.to_json()) == state


# prune


def test_the_window_of_the_seeds_example_keeps_the_last_five_of_ten() -> None:
    state = state_of(10)
    new_state = state.prune(strategy=MemoryStrategy.SLIDING_WINDOW, limit=5)
    assert len(state.history) == 10
    assert new_state.history == state.history[-5:]
    assert new_state.updated_at > state.updated_at


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (9, 9), (10, 10), (11, 10), (1000, 10), (0, 0), (-1, 0), (-5, 0)])
def test_a_window_keeps_the_newest_turns_up_to_its_limit_and_none_for_no_limit(limit: int, kept: int) -> None:
    state = state_of(10)
    assert state.prune(WINDOW, limit).history == state.history[10 - kept :]


def test_the_strategy_all_returns_the_same_object() -> None:
    state = state_of(10)
    assert state.prune(MemoryStrategy.ALL, 1) is state


@pytest.mark.parametrize("strategy", UNPRUNED_STRATEGIES)
def test_a_strategy_that_needs_an_engine_leaves_the_state_as_it_is(strategy: MemoryStrategy) -> None:
    state = state_of(10)
    assert state.prune(strategy, 1) is state


def test_a_strategy_may_be_named_by_its_text_and_an_unknown_one_is_an_error() -> None:
    state = state_of(3)
    assert len(state.prune("sliding_window", 2).history) == 2  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ValueError, match="slidng_window"):
        state.prune("slidng_window", 2)  # type: ignore[arg-type]  # the point of the test


# Memory policies


def test_the_strategies_are_the_five_of_the_seed() -> None:
    assert [str(s) for s in MemoryStrategy] == ["all", "sliding_window", "token_buffer", "summary", "vector_store"]
    assert MemoryStrategy.ALL == "all"  # type: ignore[comparison-overlap]  # the point of the test


def test_by_default_memory_is_a_window_of_twenty_turns() -> None:
    assert MemoryConfig().dump() == {"strategy": "sliding_window", "limit": 20}


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_greater_than_zero(limit: int) -> None:
    with pytest.raises(ValidationError, match="limit"):
        MemoryConfig(limit=limit)


@pytest.mark.parametrize("prompt", [None, ""])
def test_a_summary_needs_its_prompt(prompt: str | None) -> None:
    with pytest.raises(ValueError, match="summary_prompt is required when strategy is SUMMARY"):
        MemoryConfig(strategy=MemoryStrategy.SUMMARY, summary_prompt=prompt)


def test_only_the_summary_strategy_needs_a_prompt() -> None:
    assert MemoryConfig(strategy="summary", summary_prompt="Shorter.").summary_prompt == "Shorter."
    for strategy in MemoryStrategy:
        if strategy is not MemoryStrategy.SUMMARY:
            assert MemoryConfig(strategy=strategy).summary_prompt is None


def test_the_seeds_example_of_a_memory_policy() -> None:
    config = AgentRuntimeConfig(memory=MemoryConfig(strategy=MemoryStrategy.SLIDING_WINDOW, limit=20))
    assert config.memory is not None
    assert config.memory.limit == 20


def test_an_interaction_id_that_is_given_stays() -> None:
    known = uuid4()
    assert Interaction(interaction_id=known, input="hi").id == known
