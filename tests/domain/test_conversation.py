"""Every transition of a conversation, and the ones that may not happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import (
    TRANSITIONS,
    ConversationStatus,
    Outcome,
    apply_idle_timeout,
    complete,
    decide_on_message,
    new_status,
    record_failure,
    record_success,
    refuse_echo,
)
from spade_coreason.testing import Rules

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules(max_interactions=3, cooldown_s=300, timeout_s=3600, max_failures=2)
ENDED = [ConversationState.COMPLETED, ConversationState.TIMEOUT, ConversationState.ERROR]


def in_state(state: ConversationState, count: int = 2, quiet_until: datetime | None = None) -> ConversationStatus:
    return ConversationStatus(state, count, NOW, NOW, 0, quiet_until)


def test_a_message_counts() -> None:
    received = decide_on_message(new_status(NOW), NOW, RULES)
    assert (received.outcome, received.status.interaction_count, received.ended_state) == (Outcome.RUN, 1, None)


def test_the_last_message_of_an_episode_is_answered_and_the_one_after_gets_the_notice() -> None:
    last = decide_on_message(in_state(ConversationState.ACTIVE, 2), NOW, RULES)
    assert last.outcome is Outcome.RUN
    after = decide_on_message(last.status, NOW, RULES)
    assert after.outcome is Outcome.NOTICE
    assert after.status.state is after.ended_state is ConversationState.MAX_INTERACTIONS_REACHED


def test_a_refused_conversation_is_silent_after_one_notice() -> None:
    refused = decide_on_message(in_state(ConversationState.ACTIVE, 3), NOW, RULES).status
    for second in (1, 100, 299):
        again = decide_on_message(refused, NOW + timedelta(seconds=second), RULES)
        assert (again.outcome, again.status) == (Outcome.SILENCE, refused)


def test_after_the_cooldown_a_new_episode_begins() -> None:
    refused = decide_on_message(in_state(ConversationState.ACTIVE, 3), NOW, RULES).status
    received = decide_on_message(refused, NOW + timedelta(seconds=300), RULES)
    assert received.outcome is Outcome.RUN
    assert (received.status.state, received.status.interaction_count) == (ConversationState.ACTIVE, 1)


@pytest.mark.parametrize("state", ENDED)
def test_a_message_after_the_end_opens_a_new_episode(state: ConversationState) -> None:
    received = decide_on_message(in_state(state), NOW + timedelta(days=1), RULES)
    assert received.outcome is Outcome.RUN
    assert (received.status.state, received.status.interaction_count) == (ConversationState.ACTIVE, 1)
    assert received.status.created_at == NOW


def test_zero_is_no_limit() -> None:
    status = in_state(ConversationState.ACTIVE, 1_000_000)
    assert decide_on_message(status, NOW, Rules(max_interactions=0)).outcome is Outcome.RUN


def test_an_active_conversation_times_out() -> None:
    status = in_state(ConversationState.ACTIVE)
    assert apply_idle_timeout(status, NOW + timedelta(minutes=59), RULES) is status
    assert apply_idle_timeout(status, NOW + timedelta(hours=1), RULES).state is ConversationState.TIMEOUT


def test_a_message_that_comes_before_the_timeout_was_noticed_ends_the_old_episode_first() -> None:
    received = decide_on_message(in_state(ConversationState.ACTIVE), NOW + timedelta(hours=2), RULES)
    assert (received.ended_state, received.outcome) == (ConversationState.TIMEOUT, Outcome.RUN)
    assert received.status.interaction_count == 1


@pytest.mark.parametrize("state", [*ENDED, ConversationState.MAX_INTERACTIONS_REACHED])
def test_an_ended_conversation_stays_as_it_is(state: ConversationState) -> None:
    status = in_state(state)
    assert apply_idle_timeout(status, NOW + timedelta(days=99), RULES) is status
    assert complete(status).state is state


def test_several_failures_in_a_row_end_in_error() -> None:
    once = record_failure(in_state(ConversationState.ACTIVE), RULES)
    assert once.state is ConversationState.ACTIVE
    assert record_failure(once, RULES).state is ConversationState.ERROR
    assert record_failure(record_success(once), RULES).state is ConversationState.ACTIVE


def test_the_agent_may_end_a_conversation() -> None:
    assert complete(in_state(ConversationState.ACTIVE)).state is ConversationState.COMPLETED


def test_an_echo_is_paused_as_if_it_had_reached_its_limit() -> None:
    paused = refuse_echo(in_state(ConversationState.ACTIVE), NOW, RULES)
    assert paused.outcome is Outcome.NOTICE
    assert paused.status.state is ConversationState.MAX_INTERACTIONS_REACHED
    assert decide_on_message(paused.status, NOW, RULES).outcome is Outcome.SILENCE


def test_every_state_has_transitions() -> None:
    assert set(TRANSITIONS) == set(ConversationState)
