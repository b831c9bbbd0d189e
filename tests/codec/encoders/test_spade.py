"""What a SPADE agent gets of an answer: text, and a form that says how it went."""

from __future__ import annotations

from typing import Any

import pytest

from spade_coreason import DataBlock, UserErrorBlock
from spade_coreason.domain.messages import BlockEmitted, Failed, InboundRequest, Refused, TurnEvent

from ...support.encoders import CHAT_STATE, LIMIT, longest, says, voice
from ...support.foreign_stanzas import AGENT, BODY, DEVICE, THREAD, body, fields_of, form, message, read, request, spade


def test_a_spade_agent_is_answered_in_kind_at_the_full_jid() -> None:
    [stanza] = voice(spade({"performative": "request", "ontology": "weather", "_thread_node": "t"}, id="m1")).encode(says("hi"))
    element = read(stanza)
    assert (element.get("to"), element.get("type"), element.findtext(BODY)) == (DEVICE, "chat", "hi")
    assert element.findtext(THREAD) == "t"
    assert fields_of(stanza) == {"performative": "inform", "ontology": "weather", "in-reply-to": "m1", "_thread_node": "t"}


@pytest.mark.parametrize(
    ("event", "performative"),
    [
        (says("hi"), "inform"),
        (BlockEmitted(DataBlock(data={"n": 1})), "inform"),
        (BlockEmitted(UserErrorBlock(user_message="no")), "failure"),
        (Failed("no", 500, True), "failure"),
        (Refused("no", 429), "refuse"),
    ],
)
def test_the_performative_says_how_it_went(event: TurnEvent, performative: str) -> None:
    speaker = voice(spade({"performative": "request"}))
    assert [fields_of(stanza)["performative"] for stanza in speaker.encode(event)] == [performative]
    assert fields_of(speaker.encode(says("hi"))[0])["performative"] == "inform"


def test_every_part_of_a_long_failure_is_a_failure() -> None:
    parts = voice(spade({"performative": "request"})).encode(Failed("long " * 30_000, 500, True))
    assert [fields_of(part)["performative"] for part in parts] == ["failure"] * 3


def test_reply_with_becomes_in_reply_to() -> None:
    fields = fields_of(voice(spade({"reply-with": "r1"}, id="m1")).encode(says("hi"))[0])
    assert (fields["in-reply-to"], "reply-with" in fields) == ("r1", False)


def test_what_a_request_answers_itself_is_not_what_we_answer() -> None:
    """Without an id its own in-reply-to came back."""
    assert "in-reply-to" not in fields_of(voice(spade({"in-reply-to": "old"}, id=None)).encode(says("hi"))[0])
    assert fields_of(voice(spade({"in-reply-to": "old"}, id="m1")).encode(says("hi"))[0])["in-reply-to"] == "m1"


def test_metadata_too_large_to_repeat_is_left_out() -> None:
    answer = voice(spade({"a": "x" * 20_000, "performative": "request"}, thread="t")).encode(says("hi"))[0]
    assert fields_of(answer) == {"performative": "inform", "in-reply-to": "1", "_thread_node": "t"}


def test_metadata_survives_the_inbox() -> None:
    incoming = spade({"ontology": "weather", "reply-with": "r1"}, thread="t")
    assert voice(InboundRequest.from_json(incoming.to_json())).encode(says("hi")) == voice(incoming).encode(says("hi"))


def test_a_spade_agent_sees_no_typing() -> None:
    incoming = request(message(body("hi") + form({}) + CHAT_STATE))
    assert not voice(incoming).shows_typing
    assert voice(incoming).encode_composing() is None


def test_the_templates_of_a_spade_agent_match(spades: Any) -> None:
    hostile = "<&'\"> ]]>"
    [answer] = voice(spade({"performative": "request", "ontology": hostile}, thread=hostile, id="m1")).encode(says(hostile))
    received = spades.Message.from_node(spades.Stanza(xml=read(answer)))
    metadata = {"performative": "inform", "in-reply-to": "m1", "ontology": hostile}
    assert spades.Template(to=DEVICE, sender=AGENT, body=hostile, thread=hostile, metadata=metadata).match(received)
    assert not spades.Template(metadata={"performative": "failure"}).match(received)


@pytest.mark.parametrize("mark", ["x", "&", '"', "\N{ROCKET}"])
@pytest.mark.parametrize("count", [10, 300, 2_000, 16_000])
def test_the_metadata_of_a_spade_agent_leaves_room(count: int, mark: str) -> None:
    large = mark * count
    for fields in ({"a": large}, {large: "a"}, {"reply-with": large}, {mark + str(n): mark for n in range(min(count, 300))}):
        assert longest(voice(spade(fields, thread="t")).encode(says("x" * 70_000))) <= LIMIT
