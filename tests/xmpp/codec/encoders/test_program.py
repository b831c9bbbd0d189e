"""Replies to a program: a CloudEvent for each part, fragments of long events."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree.ElementTree import Element

import pytest

from spade_coreason.contracts import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    MalformedRequest,
    Refused,
    ReplyBatch,
    ReplyEvent,
    RequestContext,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
    derive_part_id,
)
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peer_answers import PeerEvent
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.encoders.program import encode_malformed_reply
from spade_coreason.xmpp.codec.namespaces import DATA_FORM
from tests.support.encoders import HEAVY, LIMIT, STYLED, encode_all, longest_bytes, make_encoder, text_event
from tests.support.foreign_stanzas import (
    AGENT,
    ALICE,
    BODY,
    DEVICE,
    KEY,
    ORIGIN_ID,
    REQUEST_ID,
    THREAD,
    decode_request,
    envelope,
    event_of,
    message,
    parse_stanza,
    program_request,
)
from tests.support.transports import request_stanza


def origin_of(message: Element) -> str | None:
    origin = message.find(ORIGIN_ID)
    return None if origin is None else origin.get("id")


def test_a_program_gets_events_at_the_full_jid() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    [stanza] = encode_all(make_encoder(program_request(thread="t")), text_event("hi"))
    element, event = parse_stanza(stanza), event_of(stanza)
    assert (element.get("to"), element.find(BODY)) == (DEVICE, None)
    assert event["id"] == element.get("id") == origin_of(element)
    assert before < datetime.fromisoformat(event.pop("time")) <= datetime.now(UTC)
    assert event == {
        "specversion": "1.0",
        "type": "ai.coreason.block.markdown",
        "source": f"xmpp:{AGENT}",
        "id": element.get("id"),
        "datacontenttype": "application/json",
        "requestid": REQUEST_ID,
        "data": {"id": str(derive_part_id(KEY, 1)), "block_type": "MARKDOWN", "content": "hi"},
    }


STREAM = {"stream_id": "s"}
EVENTS: list[tuple[TurnEvent, str, dict[str, Any]]] = [
    (BlockEmitted(ThinkingBlock(content="hm")), "block.thought", {"content": "hm", "status": "IN_PROGRESS"}),
    (BlockEmitted(DataBlock(data={"n": 1}, view_hint="LIST")), "block.data", {"data": {"n": 1}, "view_hint": "LIST"}),
    (
        BlockEmitted(UserErrorBlock(user_message="no", code=503)),
        "block.error",
        {"user_message": "no", "code": 503, "recoverable": False},
    ),
    (StreamStarted("s", "Weather"), "stream.start", {**STREAM, "title": "Weather"}),
    (StreamChunk("s", 3, " It"), "stream.chunk", {**STREAM, "seq": 3, "chunk": " It"}),
    (StreamEnded("s"), "stream.end", STREAM),
    (StreamAborted("s", "why"), "stream.abort", {**STREAM, "reason": "why"}),
    (StreamAborted("s", "why", "no"), "stream.abort", {**STREAM, "reason": "why", "replacement": "no"}),
    (Completed("c", "completed"), "request.completed", {"conversation_id": "c", "state": "completed"}),
    (
        Failed("broken", 500, True, "1f2e", is_reported=True),
        "request.failed",
        {"message": "broken", "code": 500, "recoverable": True, "incident": "1f2e"},
    ),
    (Refused("no", 429, 60.0), "request.refused", {"message": "no", "code": 429, "retry_after_s": 60.0}),
]


@pytest.mark.parametrize(("event", "kind", "data"), EVENTS, ids=[kind for _, kind, _ in EVENTS])
def test_every_event_is_a_cloud_event_to_a_program(event: TurnEvent, kind: str, data: dict[str, Any]) -> None:
    [stanza] = encode_all(make_encoder(program_request()), event)
    written = event_of(stanza)
    assert written["type"] == f"ai.coreason.{kind}"
    assert data.items() <= written["data"].items()
    decoded = decode(parse_stanza(stanza))
    assert isinstance(decoded, ReplyEvent)
    assert decoded == ReplyEvent(AGENT, REQUEST_ID, kind, written["id"], written["data"], decoded.characters)
    assert decoded.characters == len(json.dumps(written, separators=(",", ":"), ensure_ascii=False))


def test_events_travel_together_to_a_program_that_accepts_batches() -> None:
    request = replace(program_request(thread="t"), context=RequestContext(accepts_batches=True))
    events = (StreamStarted("s"), StreamChunk("s", 0, "hi <&>"), StreamEnded("s"), Completed("c", "completed"))
    encoder = make_encoder(request)
    assert [encoder.encode(event) for event in events] == [[], [], [], []]
    [stanza] = encoder.flush()
    assert encoder.flush() == []
    element = parse_stanza(stanza)
    batch = decode(element)
    assert isinstance(batch, ReplyBatch)
    single = [event_of(one) for one in encode_all(make_encoder(program_request(thread="t")), *events)]
    assert [event.type for event in batch.events] == ["stream.start", "stream.chunk", "stream.end", "request.completed"]
    assert [(event.event_id, event.data) for event in batch.events] == [(event["id"], event["data"]) for event in single]
    assert element.get("id") == origin_of(element) == batch.events[-1].event_id
    assert element.findtext(THREAD) == "t"


@pytest.mark.parametrize("piece", HEAVY, ids=ascii)
def test_no_batch_is_longer_than_a_stanza(piece: str) -> None:
    request = replace(program_request(), context=RequestContext(accepts_batches=True))
    for length in (10, 1_000, 3_000, 8_000, 30_000):
        encoder = make_encoder(request, 32_768)
        chunks = [StreamChunk("s", seq, piece * (length // len(piece) + 1)) for seq in range(12)]
        stanzas = encode_all(encoder, *chunks, Completed("c", "active"))
        assert longest_bytes(stanzas) <= 32_768
        assert sum(stanza.count("request.completed") for stanza in stanzas) == 1


def test_a_long_stream_is_sent_in_pieces_of_some_thousand_characters() -> None:
    encoder = make_encoder(replace(program_request(), context=RequestContext(accepts_batches=True)))
    sent = [encoder.encode(StreamChunk("s", seq, "word " * 20)) for seq in range(200)]
    batches = [decode(parse_stanza(stanza)) for stanzas in sent for stanza in stanzas]
    assert 10 < len(batches) < 40
    seqs = [event.data["seq"] for batch in batches if isinstance(batch, ReplyBatch) for event in batch.events]
    assert seqs == list(range(len(seqs)))


def test_only_a_program_that_wants_thoughts_gets_them() -> None:
    assert not make_encoder(program_request()).shows_thoughts
    assert make_encoder(replace(program_request(), context=RequestContext(wants_thoughts=True))).shows_thoughts


@pytest.mark.parametrize("thoughts", [["looking at 10:00"], ["looking at 10:01"], ["hm", "hm", "well"]])
def test_thoughts_change_no_id_of_later_events(thoughts: list[str]) -> None:
    plain, thinking = make_encoder(program_request()), make_encoder(program_request())
    for thought in thoughts:
        encode_all(thinking, BlockEmitted(ThinkingBlock(content=thought)))
    expected = [event_of(encode_all(plain, event)[0])["id"] for event in (text_event("one"), text_event("two"))]
    [first] = encode_all(thinking, text_event("one"))
    between = encode_all(thinking, BlockEmitted(ThinkingBlock(content="between")))
    [second] = encode_all(thinking, text_event("two"))
    assert [event_of(stanza)["id"] for stanza in (first, second)] == expected
    assert event_of(between[0])["id"] not in expected


def test_a_program_sees_no_typing() -> None:
    assert not make_encoder(program_request()).shows_typing
    assert make_encoder(program_request()).encode_composing() is None


def test_a_request_without_an_id_of_its_own_is_answered_under_ours() -> None:
    [stanza] = encode_all(make_encoder(decode_request(message(envelope()))), text_event("hi"))
    assert event_of(stanza)["requestid"] == str(KEY)


def test_a_program_gets_markdown_as_it_is() -> None:
    block, _, chunk = encode_all(
        make_encoder(program_request()), text_event(STYLED), StreamStarted("s"), StreamChunk("s", 0, STYLED)
    )
    assert event_of(block)["data"]["content"] == event_of(chunk)["data"]["chunk"] == STYLED


@pytest.mark.parametrize(
    "block",
    [
        DataBlock(data={"a": 1}),
        DataBlock(
            data={"city": "<&'>", "°C": 7.5, "tags": ["a", 1], "wind": None}, view_hint="KEY_VALUE", title="Berlin & more"
        ),
        DataBlock(data={"columns": ["city", "°C"], "rows": [{"city": "Berlin", "°C": 7}]}, view_hint="TABLE"),
    ],
    ids=lambda block: block.view_hint,
)
def test_data_is_sent_in_the_event_alone(block: DataBlock) -> None:
    [stanza] = encode_all(make_encoder(program_request()), BlockEmitted(block))
    assert parse_stanza(stanza).find(DATA_FORM) is None
    assert event_of(stanza)["data"]["data"] == block.data
    assert isinstance(decode(parse_stanza(stanza)), ReplyEvent)


def test_characters_that_xml_forbids_are_sent_in_json() -> None:
    [stanza] = encode_all(make_encoder(program_request()), StreamChunk("s", 0, "\x00\x1b\r\n\ud800"))
    assert event_of(stanza)["data"]["chunk"] == "\x00\x1b\r\n?"


async def receive(stanzas: list[str], jid: str = AGENT) -> list[PeerEvent]:
    """Receive `stanzas` as the program that asked; the last one ends the request."""
    requests = OpenRequests()

    def arrive() -> None:
        for stanza in stanzas:
            reply = decode(parse_stanza(stanza))
            assert isinstance(reply, ReplyEvent)
            requests.receive(reply)

    return [event async for event in requests.events(jid, REQUEST_ID, 5.0, arrive)]


@pytest.mark.parametrize("piece", HEAVY, ids=ascii)
async def test_an_event_that_is_too_long_arrives_whole(piece: str) -> None:
    encoder = make_encoder(program_request(), 10_000)
    text = "begin " + piece * (30_000 // len(piece)) + " end"
    stanzas = encode_all(encoder, text_event(text), StreamChunk("s", 0, text), Completed("c", "active"))
    block, chunk, last = await receive(stanzas)
    arrived = text.replace("\ufffe", "")  # JSON writes the other forbidden ones as ASCII
    assert block == PeerEvent(
        "block.markdown", {"id": str(derive_part_id(KEY, 1)), "block_type": "MARKDOWN", "content": arrived}
    )
    assert chunk == PeerEvent("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": arrived})
    assert last.type == "request.completed"
    assert len(stanzas) >= 2 * len(arrived.encode()) // 10_000 + 1


def test_fragments_name_their_event_index_and_count() -> None:
    stanzas = encode_all(make_encoder(program_request(thread="t"), 10_000), text_event("x" * 30_000))
    events = [event_of(stanza) for stanza in stanzas]
    count = len(stanzas)
    assert count > 3
    assert {event["type"] for event in events} == {"ai.coreason.fragment"}
    assert [(event["data"]["index"], event["data"]["count"]) for event in events] == [
        (number, count) for number in range(count)
    ]
    [event_id] = {event["data"]["event_id"] for event in events}
    assert [event["id"] for event in events] == [f"{event_id}.{number}" for number in range(count)]
    assert [parse_stanza(stanza).get("id") for stanza in stanzas] == [event["id"] for event in events]
    assert [origin_of(parse_stanza(stanza)) for stanza in stanzas] == [event["id"] for event in events]
    assert {event["requestid"] for event in events} == {REQUEST_ID}
    whole = json.loads("".join(event["data"]["chunk"] for event in events))
    assert (whole["id"], whole["type"], whole["data"]["content"]) == (event_id, "ai.coreason.block.markdown", "x" * 30_000)


@pytest.mark.parametrize("seed", range(3))
async def test_fragments_of_any_text_arrive_in_any_order_and_more_than_once(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        text = "".join(rng.choices('ab &<>"\\é\N{ROCKET}\x00\r\n. ', k=rng.randrange(30_000)))
        encoder = make_encoder(program_request(), 10_000)
        fragments = encode_all(encoder, StreamChunk("s", 0, text))
        rng.shuffle(fragments)
        chunk, _ = await receive(fragments * 2 + encode_all(encoder, Completed("c", "active")))
        assert chunk.data["chunk"] == text
        assert longest_bytes(fragments) <= 10_000


# To whoever asks what cannot be read


@pytest.mark.parametrize(("request_id", "answered_id"), [(REQUEST_ID, REQUEST_ID), (None, "m1")])
async def test_a_malformed_request_is_answered_under_its_own_id(request_id: str | None, answered_id: str) -> None:
    malformed = decode(message(envelope([], request_id=request_id), id="m1", thread="t"))
    assert isinstance(malformed, MalformedRequest)
    [stanza] = encode_malformed_reply(malformed, AGENT, LIMIT)
    event = event_of(stanza)
    assert (parse_stanza(stanza).get("to"), parse_stanza(stanza).findtext(THREAD)) == (DEVICE, "t")
    assert (event["type"], event["requestid"]) == ("ai.coreason.request.failed", answered_id)
    assert event["data"] == {
        "message": "not a request: data.payload is no object",
        "code": 400,
        "recoverable": False,
        "incident": None,
    }
    assert isinstance(decode(parse_stanza(stanza)), ReplyEvent)


def test_the_id_of_a_malformed_request_does_not_become_a_stanza_id_of_ours() -> None:
    malformed = decode(message(envelope([]), id="'/><presence type='unavailable'"))
    assert isinstance(malformed, MalformedRequest)
    [stanza] = encode_malformed_reply(malformed, AGENT, LIMIT)
    assert "presence" not in (parse_stanza(stanza).get("id") or "")
    assert event_of(stanza)["requestid"] == malformed.stanza_id


# Requests of ours


def test_a_request_stanza_names_its_recipient_thread_and_source() -> None:
    stanza = request_stanza(
        f"{AGENT}/<'&>", {"payload": {"query": "<&>"}}, source=f"xmpp:{ALICE}", thread="<t>", stanza_id="<'&\">"
    )
    element, event = parse_stanza(stanza), event_of(stanza)
    assert (element.get("to"), element.get("id"), element.findtext(THREAD)) == (f"{AGENT}/<'&>", "<'&\">", "<t>")
    assert origin_of(element) == "<'&\">"
    assert (event["specversion"], event["type"], event["source"]) == ("1.0", "ai.coreason.request", f"xmpp:{ALICE}")
    assert (event["id"], event["data"]) == ("<'&\">", {"payload": {"query": "<&>"}})
