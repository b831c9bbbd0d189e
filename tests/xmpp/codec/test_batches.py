"""Batches: several messages to one recipient as one, and what their receiver reads."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from spade_coreason.contracts import AgentRequest
from spade_coreason.domain.messages import (
    MAX_ID_CHARACTERS,
    InboundRequest,
    MalformedRequest,
    ReplyBatch,
    RequestBatch,
    RequestContext,
)
from spade_coreason.runtime.intake.repeated_requests import identify
from spade_coreason.xmpp.codec.batches import build_batch, read_batch_part
from spade_coreason.xmpp.codec.cloud_events import EventStanzaWriter, EventWriter, retraction_stanza
from spade_coreason.xmpp.codec.decode import decode
from tests.support.foreign_stanzas import AGENT, DEVICE, MARKER, body, container, decode_request, message, parse_stanza
from tests.support.transports import request_stanza

CONTEXT = RequestContext(
    hops=2, root_sender="carol@example.org", chain=("a@b", "c@d"), accepts_batches=True, wants_thoughts=True
)


def dump(text: str, number: int = 1) -> dict[str, Any]:
    ids = {"request_id": UUID(int=number), "session_id": UUID(int=7)}
    return AgentRequest.model_validate({**ids, "payload": {"query": text}, "metadata": {"a": [1.5, None]}}).dump()


def request(text: str, number: int = 1, thread: str | None = "t", *, reads_batches: bool = True) -> str:
    stanza_id = str(UUID(int=number))
    return request_stanza(
        AGENT,
        dump(text, number),
        source=f"xmpp:{DEVICE}",
        thread=thread,
        stanza_id=stanza_id,
        context=CONTEXT,
        reads_batches=reads_batches,
    )


def reply(*texts: str, accepts_batches: bool = True, prefix: str = "key", to: str = DEVICE) -> str:
    """Return the one message of a reply."""
    writer = EventStanzaWriter(
        to=to,
        source=f"xmpp:{AGENT}",
        thread="t",
        id_prefix=prefix,
        request_id="r",
        stanza_bytes=65_536,
        accepts_batches=accepts_batches,
    )
    for text in texts:
        assert writer.add("block.markdown", {"content": text}) == []
    [stanza] = writer.flush()
    return stanza


def batch_of(*stanzas: str) -> str:
    parts = [read_batch_part(stanza) for stanza in stanzas]
    return build_batch(AGENT, [part for part in parts if part is not None])


def event(id: Any = "e", thread: Any = "t", **other: Any) -> dict[str, Any]:
    """Build a request as an entry of a batch; `None` leaves an attribute out."""
    fields = {"id": id, "thread": thread, "data": {"payload": {"query": "hi"}}, "type": "ai.coreason.request", **other}
    return {name: value for name, value in fields.items() if value is not None}


def read(*entries: Any, **where: Any) -> tuple[InboundRequest | MalformedRequest, ...]:
    """Decode a batch of requests."""
    decoded = decode(message(container(list(entries)), **where))
    assert isinstance(decoded, RequestBatch), decoded
    return decoded.requests


def read_request(entry: Any, **where: Any) -> InboundRequest:
    [request] = read(entry, **where)
    assert isinstance(request, InboundRequest), request
    return request


ODD = "it's <b>&amp;</b> \"]</json>\" '><json xmlns='urn:xmpp:json:0'>[ é🎈 \x00\n"

# What we send


@pytest.mark.parametrize("thread", ["t", None, ODD])
def test_an_array_of_one_request_is_read_as_the_request_alone(thread: str | None) -> None:
    alone = decode_request(parse_stanza(request(ODD, thread=thread, reads_batches=False)))
    decoded = decode(parse_stanza(request(ODD, thread=thread)))
    assert isinstance(decoded, RequestBatch)
    [one] = decoded.requests
    assert isinstance(one, InboundRequest)
    assert (one.stanza_id, one.thread, one.payload, one.metadata, one.request_id, one.context, one.owner) == (
        alone.stanza_id,
        alone.thread,
        alone.payload,
        alone.metadata,
        alone.request_id,
        alone.context,
        alone.owner,
    )
    assert identify(AGENT, one) == identify(AGENT, alone)


def test_a_batch_of_requests_is_read_as_each_of_them_in_their_order() -> None:
    singles = [request(f"{number} {ODD}", number, thread) for number, thread in enumerate(["t", None, ODD, "t"])]
    stanza = parse_stanza(batch_of(*singles))
    batch = decode(stanza)
    assert isinstance(batch, RequestBatch)
    alone = [decode(parse_stanza(single)) for single in singles]
    assert list(batch.requests) == [entry for one in alone if isinstance(one, RequestBatch) for entry in one.requests]
    assert stanza.get("id") == " ".join(str(UUID(int=number)) for number in range(4))
    assert [child.tag for child in stanza] == ["{urn:xmpp:json:0}json"]


def test_a_batch_of_replies_has_the_events_of_all_and_the_mark_of_a_reply() -> None:
    stanza = parse_stanza(batch_of(reply("one", ODD, prefix="a"), reply("three", prefix="b")))
    batch = decode(stanza)
    assert isinstance(batch, ReplyBatch)
    assert [event.data["content"] for event in batch.events] == ["one", ODD, "three"]
    assert [event.event_id.partition("-")[0] for event in batch.events] == ["a", "a", "b"]
    assert stanza.get("id") == batch.events[-1].event_id
    assert decode(parse_stanza(reply("one"))) is not None


@pytest.mark.parametrize(
    "stanza",
    [
        request("alone", reads_batches=False),
        reply("alone", accepts_batches=False),
        retraction_stanza(AGENT, "1"),
        f"<message to='{AGENT}' id='1'>{body(ODD)}</message>",
        f"<message to='{AGENT}' id='1'>{body('x')}{container([event()])}</message>",
        f"<message to='{AGENT}' id='1'>{container(['[', ODD])[:-7]}</message>",
        f"<message to='{AGENT}' id='1'><thread>'>&lt;json xmlns='urn:xmpp:json:0'>[</thread></message>",
        "",
    ],
)
def test_other_messages_are_no_part_of_a_batch(stanza: str) -> None:
    assert read_batch_part(stanza) is None


# What we read


def test_each_request_of_a_batch_has_its_own_id_and_thread_or_the_thread_of_the_message() -> None:
    first, second, third = read(event("a", "one"), event("b"), event("c", None), id="x", thread="outer")
    assert [(one.stanza_id, one.thread) for one in (first, second, third)] == [("a", "one"), ("b", "t"), ("c", "outer")]
    assert read_request({**event(), "thread": None}, thread="outer").thread is None


def test_the_key_of_a_request_in_a_batch_is_that_of_the_same_request_alone() -> None:
    payloads: list[dict[str, Any]] = [{"query": "hi"}, {"n": [1.0, 1e300, 10**30, "é\u2028"]}, {}]
    for data in [{"payload": payload, "metadata": None} for payload in payloads]:
        fields = {"type": "ai.coreason.request", "id": "e", "hops": 2, "data": data}
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        alone = decode_request(message(container(text), id="e", thread="t"))
        together = read_request({**fields, "thread": "t"}, id="x")
        assert together.content == alone.content
        assert identify(AGENT, together) == identify(AGENT, alone)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (event(data={"payload": 7}), "data.payload is no object"),
        (event(data={"payload": {}, "request_id": "x"}), "an id in data is no UUID"),
        (event(data=None), "data.payload is no object"),
        (7, "mixes requests with other events"),
        (None, "mixes requests with other events"),
        ([event()], "mixes requests with other events"),
        (event(type="ai.coreason.block.markdown", requestid="r"), "mixes requests with other events"),
        (event(id=None), "an id or a thread is not a text"),
        (event(id=""), "an id or a thread is not a text"),
        (event(id=7), "an id or a thread is not a text"),
        (event(id="x" * (MAX_ID_CHARACTERS + 1)), "an id or a thread is not a text"),
        (event(id="a\x00b"), "an id or a thread is not a text"),
        (event(thread=""), "an id or a thread is not a text"),
        (event(thread=["t"]), "an id or a thread is not a text"),
        (event(thread="x" * (MAX_ID_CHARACTERS + 1)), "an id or a thread is not a text"),
        (event(thread="\x00"), "an id or a thread is not a text"),
        (event(thread="\ufffe"), "an id or a thread is not a text"),
    ],
    ids=str,
)
def test_a_malformed_entry_costs_itself_only(entry: Any, problem: str) -> None:
    first, malformed, last = read(event("a"), entry, event("z", "x" * MAX_ID_CHARACTERS), id="outer")
    assert isinstance(first, InboundRequest)
    assert isinstance(last, InboundRequest)
    assert (first.stanza_id, last.stanza_id) == ("a", "z")
    assert isinstance(malformed, MalformedRequest)
    assert problem in malformed.problem
    assert (malformed.sender, malformed.stanza_id) == (DEVICE, "outer" if "data" not in problem else "e")


def test_a_message_has_64_requests_at_most() -> None:
    assert len(read(*[event(str(number)) for number in range(64)])) == 64
    decoded = decode(message(container([event(str(number)) for number in range(65)]), id="outer"))
    assert decoded == MalformedRequest(DEVICE, "outer", None, "the JSON container holds more than 64 requests")


def test_an_array_that_begins_with_a_reply_is_a_batch_of_replies() -> None:
    answer = {"type": "ai.coreason.block.markdown", "requestid": "r", "id": "e", "data": {"content": "x"}}
    decoded = decode(message(container([answer, event(), answer])))
    assert isinstance(decoded, ReplyBatch)
    assert [reply.event_id for reply in decoded.events] == ["e", "e"]


@pytest.mark.parametrize("entries", [[event()], [event(), event("f")]])
def test_a_batch_of_requests_that_is_marked_as_a_reply_asks_nothing(entries: list[Any]) -> None:
    assert decode(message(container(entries) + MARKER)) is None


@pytest.mark.parametrize("entries", [[], [[]], [None, event()], [{"type": "org.example"}, event()]])
def test_an_array_that_begins_with_neither_is_no_batch(entries: list[Any]) -> None:
    decoded = decode(message(container(entries)))
    assert isinstance(decoded, MalformedRequest)
    assert decoded.problem == "the JSON container holds no CloudEvent of a request"


def test_a_sender_names_nobody_else_in_a_batch() -> None:
    """The attributes of an event say nothing about who sent it: the server has written the sender on the message."""
    forged = event(source="xmpp:bob@example.org/desk", sender="bob@example.org", owner="bob@example.org", requestid="r")
    decoded = read_request(forged)
    assert (decoded.sender, decoded.owner, decoded.room.address) == (DEVICE, "alice@example.org", "")
    assert "sender" not in decoded.metadata


def test_a_writer_of_events_without_a_form_of_messages_cannot_be_made() -> None:
    class Formless(EventWriter):
        def readdress(self, content: str, recipient: str) -> str:
            return content

    with pytest.raises(TypeError, match="write"):
        Formless(to=AGENT, source=AGENT, thread=None, id_prefix="", request_id="", stanza_bytes=10_000)  # type: ignore[abstract]
