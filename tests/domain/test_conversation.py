"""Every row of the table of conversations, and what may not happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spade_coreason import ConversationState
from spade_coreason.domain.conversation import (
    TRANSITIONS,
    Life,
    Rules,
    Verdict,
    begin,
    end,
    fail,
    idle,
    pause,
    receive,
    succeed,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules(max_interactions=3, cooldown=timedelta(seconds=300), timeout=timedelta(hours=1), max_failures=2)
ENDED = [ConversationState.COMPLETED, ConversationState.TIMEOUT, ConversationState.ERROR]


def in_state(state: ConversationState, count: int = 2, quiet_until: datetime | None = None) -> Life:
    return Life(state, count, NOW, NOW, 0, quiet_until)


def test_a_message_counts() -> None:
    received = receive(begin(NOW), NOW, RULES)
    assert (received.verdict, received.life.interaction_count, received.ended) == (Verdict.RUN, 1, None)


def test_the_last_message_of_an_episode_is_answered_and_the_one_after_gets_the_notice() -> None:
    last = receive(in_state(ConversationState.ACTIVE, 2), NOW, RULES)
    assert last.verdict is Verdict.RUN
    after = receive(last.life, NOW, RULES)
    assert after.verdict is Verdict.NOTICE
    assert after.life.state is after.ended is ConversationState.MAX_INTERACTIONS_REACHED


def test_a_refused_conversation_is_silent_after_one_notice() -> None:
    refused = receive(in_state(ConversationState.ACTIVE, 3), NOW, RULES).life
    for second in (1, 100, 299):
        again = receive(refused, NOW + timedelta(seconds=second), RULES)
        assert (again.verdict, again.life) == (Verdict.SILENCE, refused)


def test_after_the_cooldown_a_new_episode_begins() -> None:
    refused = receive(in_state(ConversationState.ACTIVE, 3), NOW, RULES).life
    received = receive(refused, NOW + timedelta(seconds=300), RULES)
    assert received.verdict is Verdict.RUN
    assert (received.life.state, received.life.interaction_count) == (ConversationState.ACTIVE, 1)


@pytest.mark.parametrize("state", ENDED)
def test_a_message_after_the_end_opens_a_new_episode(state: ConversationState) -> None:
    received = receive(in_state(state), NOW + timedelta(days=1), RULES)
    assert received.verdict is Verdict.RUN
    assert (received.life.state, received.life.interaction_count) == (ConversationState.ACTIVE, 1)
    assert received.life.created_at == NOW


def test_zero_is_no_limit() -> None:
    life = in_state(ConversationState.ACTIVE, 1_000_000)
    assert receive(life, NOW, Rules(max_interactions=0)).verdict is Verdict.RUN


def test_an_active_conversation_times_out() -> None:
    life = in_state(ConversationState.ACTIVE)
    assert idle(life, NOW + timedelta(minutes=59), RULES) is life
    assert idle(life, NOW + timedelta(hours=1), RULES).state is ConversationState.TIMEOUT


def test_a_message_that_comes_before_the_timeout_was_noticed_ends_the_old_episode_first() -> None:
    received = receive(in_state(ConversationState.ACTIVE), NOW + timedelta(hours=2), RULES)
    assert (received.ended, received.verdict) == (ConversationState.TIMEOUT, Verdict.RUN)
    assert received.life.interaction_count == 1


@pytest.mark.parametrize("state", [*ENDED, ConversationState.MAX_INTERACTIONS_REACHED])
def test_an_ended_conversation_stays_as_it_is(state: ConversationState) -> None:
    life = in_state(state)
    assert idle(life, NOW + timedelta(days=99), RULES) is life
    assert end(life).state is state


def test_several_failures_in_a_row_end_in_error() -> None:
    once = fail(in_state(ConversationState.ACTIVE), RULES)
    assert once.state is ConversationState.ACTIVE
    assert fail(once, RULES).state is ConversationState.ERROR
    assert fail(succeed(once), RULES).state is ConversationState.ACTIVE


def test_the_agent_may_end_it() -> None:
    assert end(in_state(ConversationState.ACTIVE)).state is ConversationState.COMPLETED


def test_an_echo_is_paused_as_if_it_had_reached_its_limit() -> None:
    paused = pause(in_state(ConversationState.ACTIVE), NOW, RULES)
    assert paused.verdict is Verdict.NOTICE
    assert paused.life.state is ConversationState.MAX_INTERACTIONS_REACHED
    assert receive(paused.life, NOW, RULES).verdict is Verdict.SILENCE


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(ConversationState)
