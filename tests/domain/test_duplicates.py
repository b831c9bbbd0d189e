"""The rule that a message is a copy of an earlier one, as a table."""

from __future__ import annotations

import pytest

from spade_coreason.domain.duplicates import CLOCK_MARGIN, NO_EVIDENCE, Evidence, is_copy

RECEIVED_AT = 1_000_000_000
"""The time at which the earlier message was received."""
ORIGIN = "7bd6c0cd-0b8b-4b39"


def delayed(since: int, server_id: str = "", acknowledged: tuple[int, int] = (0, 0)) -> Evidence:
    return Evidence(server_id, "", since, acknowledged)


@pytest.mark.parametrize(
    ("earlier", "later", "is_same"),
    [
        # A client counts from 1 at each start, and says nothing else.
        (NO_EVIDENCE, NO_EVIDENCE, False),
        (delayed(5), NO_EVIDENCE, False),
        (Evidence("a"), NO_EVIDENCE, False),
        # Ids of the server.
        (Evidence("a"), Evidence("a"), True),
        (Evidence("a"), Evidence("b"), False),
        (Evidence("a"), delayed(5, "a"), True),
        (delayed(5, "a"), delayed(5, "b"), False),
        # Ids of the sender.
        (Evidence("", ORIGIN), Evidence("", ORIGIN), True),
        (Evidence("", ORIGIN), Evidence("", ORIGIN + "8"), False),
        (Evidence("a", ORIGIN), Evidence("b", ORIGIN), True),  # the client has sent it again
        (Evidence("", ORIGIN), NO_EVIDENCE, False),
        # Times.
        (delayed(5), delayed(5), True),
        (delayed(5), delayed(6), False),
        (NO_EVIDENCE, delayed(5), True),
        (NO_EVIDENCE, delayed(RECEIVED_AT + CLOCK_MARGIN), True),
        (NO_EVIDENCE, delayed(RECEIVED_AT + CLOCK_MARGIN + 1), False),
        (NO_EVIDENCE, delayed(5, acknowledged=(RECEIVED_AT, RECEIVED_AT + 1)), False),
        (NO_EVIDENCE, delayed(5, acknowledged=(RECEIVED_AT + 1, RECEIVED_AT + 2)), True),  # an earlier session
        (NO_EVIDENCE, delayed(5, acknowledged=(0, RECEIVED_AT)), True),  # received after the last acknowledgement
        (Evidence("a"), delayed(5), True),
        (NO_EVIDENCE, delayed(5, "a"), True),
        (Evidence("a"), delayed(5, "b"), False),
        # What the server repeats after a resumption.
        (NO_EVIDENCE, Evidence(is_replay=True), True),
        (Evidence("a"), Evidence("a", is_replay=True), True),
        (Evidence("a"), Evidence("b", is_replay=True), False),  # the earlier one of that name was yesterday's
    ],
)
def test_only_evidence_makes_a_message_a_copy(earlier: Evidence, later: Evidence, is_same: bool) -> None:
    assert is_copy(later, earlier, RECEIVED_AT) is is_same


@pytest.mark.parametrize("evidence", [NO_EVIDENCE, Evidence("a"), Evidence("", ORIGIN), delayed(5, 'a " ☂')])
def test_evidence_is_stored_as_text(evidence: Evidence) -> None:
    assert Evidence.load(evidence.dump()) == evidence


def test_most_messages_store_no_evidence() -> None:
    assert NO_EVIDENCE.dump() == ""
