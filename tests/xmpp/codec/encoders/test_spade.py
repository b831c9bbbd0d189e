"""Replies to a SPADE agent: text, and a form with the performative."""

from __future__ import annotations

from typing import Any

import pytest

from spade_coreason.contracts import DataBlock, UserErrorBlock
from spade_coreason.domain.messages import BlockEmitted, Failed, InboundRequest, Refused, TurnEvent
from tests.support.encoders import CHAT_STATE, LIMIT, longest_bytes, make_encoder, text_event
from tests.support.foreign_stanzas import (
    AGENT,
    BODY,
    DEVICE,
    THREAD,
    body,
    decode_request,
    fields_of,
    form,
    message,
    parse_stanza,
    spade_request,
)


def test_a_spade_agent_is_answered_with_spade_metadata_at_the_full_jid() -> None:
    [stanza] = make_encoder(
        spade_request({"performative": "request", "ontology": "weather", "_thread_node": "t"}, id="m1")
    ).encode(text_event("hi"))
    element = parse_stanza(stanza)
    assert (element.get("to"), element.get("type"), element.findtext(BODY)) == (DEVICE, "chat", "hi")
    assert element.findtext(THREAD) == "t"
    assert fields_of(stanza) == {"performative": "inform", "ontology": "weather", "in-reply-to": "m1", "_thread_node": "t"}


@pytest.mark.parametrize(
    ("event", "performative"),
    [
        (text_event("hi"), "inform"),
        (BlockEmitted(DataBlock(data={"n": 1})), "inform"),
        (BlockEmitted(UserErrorBlock(user_message="no")), "failure"),
        (Failed("no", 500, True), "failure"),
        (Refused("no", 429), "refuse"),
    ],
)
def test_the_performative_depends_on_the_outcome(event: TurnEvent, performative: str) -> None:
    encoder = make_encoder(spade_request({"performative": "request"}))
    assert [fields_of(stanza)["performative"] for stanza in encoder.encode(event)] == [performative]
    assert fields_of(encoder.encode(text_event("hi"))[0])["performative"] == "inform"


def test_every_part_of_a_long_failure_is_a_failure() -> None:
    parts = make_encoder(spade_request({"performative": "request"})).encode(Failed("long " * 30_000, 500, True))
    assert [fields_of(part)["performative"] for part in parts] == ["failure"] * 3


def test_reply_with_becomes_in_reply_to() -> None:
    fields = fields_of(make_encoder(spade_request({"reply-with": "r1"}, id="m1")).encode(text_event("hi"))[0])
    assert (fields["in-reply-to"], "reply-with" in fields) == ("r1", False)


def test_the_in_reply_to_of_a_request_is_not_repeated() -> None:
    """Without an id its own in-reply-to came back."""
    assert "in-reply-to" not in fields_of(
        make_encoder(spade_request({"in-reply-to": "old"}, id=None)).encode(text_event("hi"))[0]
    )
    assert (
        fields_of(make_encoder(spade_request({"in-reply-to": "old"}, id="m1")).encode(text_event("hi"))[0])["in-reply-to"]
        == "m1"
    )


def test_metadata_too_large_to_repeat_is_left_out() -> None:
    answer = make_encoder(spade_request({"a": "x" * 20_000, "performative": "request"}, thread="t")).encode(text_event("hi"))[0]
    assert fields_of(answer) == {"performative": "inform", "in-reply-to": "1", "_thread_node": "t"}


def test_metadata_survives_the_inbox() -> None:
    incoming = spade_request({"ontology": "weather", "reply-with": "r1"}, thread="t")
    assert make_encoder(InboundRequest.from_json(incoming.to_json())).encode(text_event("hi")) == make_encoder(incoming).encode(
        text_event("hi")
    )


def test_a_spade_agent_sees_no_typing() -> None:
    incoming = decode_request(message(body("hi") + form({}) + CHAT_STATE))
    assert not make_encoder(incoming).shows_typing
    assert make_encoder(incoming).encode_composing() is None


def test_the_templates_of_a_spade_agent_match(spade_classes: Any) -> None:
    hostile = "<&'\"> ]]>"
    [answer] = make_encoder(spade_request({"performative": "request", "ontology": hostile}, thread=hostile, id="m1")).encode(
        text_event(hostile)
    )
    received = spade_classes.Message.from_node(spade_classes.Stanza(xml=parse_stanza(answer)))
    metadata = {"performative": "inform", "in-reply-to": "m1", "ontology": hostile}
    assert spade_classes.Template(to=DEVICE, sender=AGENT, body=hostile, thread=hostile, metadata=metadata).match(received)
    assert not spade_classes.Template(metadata={"performative": "failure"}).match(received)


@pytest.mark.parametrize("mark", ["x", "&", '"', "\N{ROCKET}"])
@pytest.mark.parametrize("count", [10, 300, 2_000, 16_000])
def test_the_metadata_of_a_spade_agent_leaves_room(count: int, mark: str) -> None:
    large = mark * count
    for fields in ({"a": large}, {large: "a"}, {"reply-with": large}, {mark + str(n): mark for n in range(min(count, 300))}):
        assert longest_bytes(make_encoder(spade_request(fields, thread="t")).encode(text_event("x" * 70_000))) <= LIMIT
