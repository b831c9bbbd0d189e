"""What a message says about its origin, read from its stanza."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.domain.duplicates import NO_EVIDENCE, Evidence
from spade_coreason.domain.messages import InboundRequest, RequestBatch
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.evidence import Receiver
from spade_coreason.xmpp.codec.muc import read_room_message
from tests.support.foreign_stanzas import AGENT, body, container, form, message

NINE = 1_764_147_600_000_000  # 2025-11-26T09:00:00Z
ORIGIN = "7bd6c0cd-0b8b-4b39"


def stanza_id(value: str, by: str = AGENT) -> str:
    return f"<stanza-id xmlns='urn:xmpp:sid:0' by='{by}' id='{value}'/>"


def origin_id(value: str) -> str:
    return f"<origin-id xmlns='urn:xmpp:sid:0' id='{value}'/>"


def delay(stamp: str) -> str:
    return f"<delay xmlns='urn:xmpp:delay' stamp='{stamp}'/>"


def evidence_of(inner: str, receiver: Receiver | None = None) -> Evidence:
    decoded = decode(message(body("yes") + inner), receiver or Receiver(AGENT))
    assert isinstance(decoded, InboundRequest)
    return decoded.evidence


@pytest.mark.parametrize(
    ("inner", "evidence"),
    [
        ("", NO_EVIDENCE),
        (stanza_id("a"), Evidence("a")),
        (stanza_id("forged") + stanza_id("a"), Evidence("a")),
        (stanza_id("a", "somebody@else.example"), NO_EVIDENCE),
        (stanza_id("a" * 1025), NO_EVIDENCE),
        (origin_id(ORIGIN), Evidence("", ORIGIN)),
        (origin_id("1"), NO_EVIDENCE),
        (origin_id("a" * 1025), NO_EVIDENCE),
        (delay("2025-11-26T09:00:00Z"), Evidence("", "", NINE)),
        (delay("2025-11-26T10:00:00.5+01:00"), Evidence("", "", NINE + 500_000)),
        (delay("2025-11-26T09:00:07Z") + delay("2025-11-26T09:00:00Z"), Evidence("", "", NINE)),
        (delay("yesterday") + delay(""), NO_EVIDENCE),
    ],
)
def test_ids_that_are_unique_and_the_earliest_time_are_evidence(inner: str, evidence: Evidence) -> None:
    assert evidence_of(inner) == evidence


def test_what_was_acknowledged_for_good_has_a_copy_in_the_archive_only() -> None:
    receiver = Receiver(AGENT, acknowledged=(5, 7))
    assert evidence_of(delay("2025-11-26T09:00:00Z"), receiver) == Evidence("", "", NINE, (5, 7))
    assert evidence_of(delay("2025-11-26T09:00:00Z") + stanza_id("a"), receiver) == Evidence("a", "", NINE)
    assert evidence_of("", receiver) is NO_EVIDENCE


def test_other_requests_without_an_id_of_their_own_have_evidence_too() -> None:
    of_spade = decode(message(body("yes") + form({"performative": "request"}) + stanza_id("a")), Receiver(AGENT))
    assert isinstance(of_spade, InboundRequest)
    assert (of_spade.channel, of_spade.evidence) == ("spade", Evidence("a"))
    unnamed = {"specversion": "1.0", "type": "ai.coreason.request", "source": "x", "id": "1", "data": {"payload": {}}}
    of_program = decode(message(container([unnamed, unnamed]) + stanza_id("a")), Receiver(AGENT))
    assert isinstance(of_program, RequestBatch)
    assert [request.evidence for request in of_program.requests if isinstance(request, InboundRequest)] == [Evidence("a")] * 2


def test_in_a_room_the_last_id_by_the_room_counts() -> None:
    room = "room@muc.example.org"
    text = (
        f"<message xmlns='jabber:client' type='groupchat' from='{room}/Alice' id='1'>{body('Echo: yes')}"
        f"{stanza_id('forged', room)}{stanza_id('a', room)}{origin_id(ORIGIN)}</message>"
    )
    read = read_room_message(fromstring(text))
    assert read is not None
    assert (read.room_id, read.evidence) == ("a", Evidence("a", ORIGIN))


@pytest.mark.parametrize("evidence", [Evidence("a"), Evidence("", ORIGIN, NINE), NO_EVIDENCE])
def test_stored_evidence_is_read_back_without_what_only_a_newer_version_knows(evidence: Evidence) -> None:
    stored = evidence.dump()
    assert Evidence.load(stored) == evidence
    assert Evidence.load(stored.replace("]", ',"more"]')) == evidence
