"""Replies on every channel: their ids, their thread, and the length of their stanzas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from spade_coreason.contracts import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    MalformedRequest,
    Refused,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
)
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.encoders.chat import ChatEncoder
from spade_coreason.xmpp.codec.encoders.program import CloudEventEncoder, encode_malformed_reply
from spade_coreason.xmpp.codec.encoders.spade import SpadeEncoder
from spade_coreason.xmpp.codec.receipts_and_notices import encode_displayed, encode_receipt
from spade_coreason.xmpp.codec.xml import clean, wire_size
from tests.support.encoders import HEAVY, LIMIT, encode_all, longest_bytes, make_encoder, text_event
from tests.support.foreign_stanzas import (
    AGENT,
    ALICE,
    KEY,
    THREAD,
    body,
    decode_request,
    envelope,
    form,
    message,
    parse_stanza,
    person_request,
    program_request,
    spade_request,
)

BLOCK_ID = UUID("5f0c6a3e-0000-5000-8000-00000000000b")
TURN: tuple[TurnEvent, ...] = (
    BlockEmitted(ThinkingBlock(id=BLOCK_ID, content="Looking out of the window…")),
    text_event("**Sunny**"),
    StreamStarted("s1", "Weather"),
    StreamChunk("s1", 0, "It is "),
    StreamChunk("s1", 1, "sunny. "),
    StreamEnded("s1"),
    BlockEmitted(DataBlock(id=BLOCK_ID, data={"°C": 7}, view_hint="KEY_VALUE", title="Berlin")),
    Completed("conversation", "active"),
)
CHANNELS: dict[str, Callable[[], InboundRequest]] = {
    "person": person_request,
    "program": program_request,
    "spade": spade_request,
}
each_channel = pytest.mark.parametrize("make_request", CHANNELS.values(), ids=CHANNELS)


@pytest.mark.parametrize(
    ("make_request", "kind"),
    [(person_request, ChatEncoder), (program_request, CloudEventEncoder), (spade_request, SpadeEncoder)],
)
def test_the_channel_of_a_request_decides_its_encoder(make_request: Callable[[], InboundRequest], kind: type) -> None:
    assert type(make_encoder(make_request())) is kind


# All languages


@each_channel
def test_a_reply_that_comes_back_is_not_taken_for_a_request(make_request: Callable[[], InboundRequest]) -> None:
    """Prevent storms: another platform like ours never takes a reply for a request."""
    failures = (BlockEmitted(UserErrorBlock(user_message="no")), Failed("no", 500, True), Refused("no", 429, 60.0))
    stanzas = encode_all(make_encoder(make_request()), *TURN, *failures, text_event("x&\N{ROCKET}" * 50_000))
    assert len(stanzas) > 6
    assert not [stanza for stanza in stanzas if isinstance(decode(parse_stanza(stanza)), InboundRequest | MalformedRequest)]


@each_channel
def test_a_turn_that_runs_again_gives_the_same_ids(make_request: Callable[[], InboundRequest]) -> None:
    turn = (*TURN, text_event("long " * 50_000))
    first, again = (
        [parse_stanza(stanza).get("id") for stanza in encode_all(make_encoder(make_request()), *turn)] for _ in range(2)
    )
    assert first == again
    assert len(set(first)) == len(first)


@each_channel
def test_ids_differ_by_request_text_and_position(make_request: Callable[[], InboundRequest]) -> None:
    ids = {
        parse_stanza(encode_all(make_encoder(make_request(), key=key), text_event(text))[0]).get("id")
        for key in (KEY, UUID(int=KEY.int + 1))
        for text in ("one", "two", "a\ud800")
    }
    ids |= {
        parse_stanza(stanza).get("id")
        for stanza in encode_all(make_encoder(make_request()), text_event("one"), text_event("one"))
    }
    assert len(ids) == 7


@each_channel
def test_the_thread_is_echoed(make_request: Callable[..., InboundRequest]) -> None:
    for stanza in encode_all(make_encoder(make_request(thread="<&> t")), *TURN):
        assert parse_stanza(stanza).findtext(THREAD) == "<&> t"
    assert all(parse_stanza(stanza).find(THREAD) is None for stanza in encode_all(make_encoder(make_request()), *TURN))


def test_a_person_is_answered_on_the_branch_of_the_thread_they_asked_on() -> None:
    incoming = decode_request(
        message(body("hi") + "<active xmlns='http://jabber.org/protocol/chatstates'/><thread parent='&lt;'>b</thread>")
    )
    stanzas = [*encode_all(make_encoder(incoming), *TURN), encode_displayed(InboundRequest.from_json(incoming.to_json()))]
    assert len(stanzas) > 3
    for stanza in stanzas:
        thread = parse_stanza(stanza).find(THREAD)
        assert thread is not None
        assert (thread.text, thread.get("parent")) == ("b", "<")


@each_channel
def test_characters_that_xml_forbids_are_removed(make_request: Callable[[], InboundRequest]) -> None:
    hostile = "".join(map(chr, range(32))) + "</body><message to='x'>&#0;]]>\x7f\x85\ud800\ufffe\uffff"
    events = (
        text_event(hostile),
        BlockEmitted(DataBlock(data={hostile: hostile}, title=hostile)),
        StreamStarted("s", hostile),
        StreamChunk("s", 0, hostile),
        StreamAborted("s", hostile),
        StreamStarted("r", hostile),
        StreamAborted("r", "why", hostile),
        Failed(hostile, 500, True, hostile),
        Refused(hostile, 429),
    )
    for stanza in encode_all(make_encoder(make_request()), *events):
        element = parse_stanza(stanza)
        content = "".join(element.itertext())
        assert element.tag == "{jabber:client}message"
        assert clean(content) == content
        assert "message to" in content


@pytest.mark.parametrize("empty_text", ["", " \n", "\x00", "\ud800\ufffe", " \x1b "])
@pytest.mark.parametrize("make_request", [person_request, spade_request])
def test_no_empty_message_is_sent(make_request: Callable[[], InboundRequest], empty_text: str) -> None:
    """Text of forbidden characters only was one."""
    events = (text_event(empty_text), StreamStarted("s"), StreamChunk("s", 0, empty_text), StreamEnded("s"))
    assert encode_all(make_encoder(make_request()), *events, Failed(empty_text, 500, True)) == []


# No stanza too long


@pytest.mark.parametrize(
    ("character", "limit"),
    [
        *((character, 10_000) for character in HEAVY),
        *((character, LIMIT) for character in ("x", "&", '"', "\N{ROCKET}", "\x01")),
    ],
    ids=ascii,
)
@each_channel
def test_no_stanza_is_too_long(make_request: Callable[..., InboundRequest], character: str, limit: int) -> None:
    text = "begin " + character * (limit // max(wire_size(character), 1)) + " end"
    events = (
        text_event(text),
        BlockEmitted(DataBlock(data={text: [text]}, title="Data")),
        BlockEmitted(DataBlock(data={text: [text]}, view_hint="KEY_VALUE", title=text)),
        BlockEmitted(DataBlock(data={"a": text[:3000], "b": [text[:500]]}, view_hint="KEY_VALUE", title="Data")),
        BlockEmitted(DataBlock(data={"columns": ["a"], "rows": [{"a": part} for part in text[:3000]]}, view_hint="TABLE")),
        StreamStarted("s"),
        StreamChunk("s", 0, text),
        StreamAborted("s", text),
        StreamStarted("r"),
        StreamAborted("r", "why", text),
        BlockEmitted(UserErrorBlock(user_message=text)),
        Failed(text, 500, True),
        Refused(text, 429),
    )
    assert longest_bytes(encode_all(make_encoder(make_request(thread="thread"), limit), *events)) <= limit


@pytest.mark.parametrize("character", ["x", "&", '"', "\N{ROCKET}"])
@pytest.mark.parametrize(
    "inner",
    [body("hi"), envelope(), body("hi") + form({}), body("hi") + form({"_thread_node": "?" * 1024})],
    ids=["person", "program", "spade", "thread in the form"],
)
def test_the_longest_ids_threads_and_addresses_leave_room(inner: str, character: str) -> None:
    """In SPADE's form the thread stands twice; its second place was not counted."""
    longest = character * 1024
    inner = inner.replace("?" * 1024, longest.replace("&", "&amp;").replace('"', "&quot;"))
    thread = None if "_thread_node" in inner else longest
    incoming = decode_request(message(inner, id=longest, thread=thread, sender=f"{ALICE}/{longest}"))
    stanzas = encode_all(make_encoder(incoming), text_event("x" * 70_000), text_event("&" * 14_000))
    assert len(stanzas) >= 4
    assert longest_bytes(stanzas) <= LIMIT
    assert longest_bytes([encode_receipt(incoming)]) <= LIMIT


@pytest.mark.parametrize("character", ["x", "&", '"', "\N{ROCKET}"])
def test_the_longest_id_that_an_answer_refers_to_leaves_room(character: str) -> None:
    longest = character * 1024
    reply = "<reply xmlns='urn:xmpp:reply:0' id='1'/>"
    incoming = decode_request(message(body("hi") + reply, id=longest, thread=longest, sender=f"{ALICE}/{longest}"))
    incoming = replace(incoming, metadata={**incoming.metadata, "parent_thread": longest})
    stanzas = encode_all(make_encoder(incoming), text_event("x" * 70_000))
    assert longest_bytes(stanzas) <= LIMIT
    assert ["<reply" in stanza for stanza in stanzas] == [True] + [False] * (len(stanzas) - 1)


@pytest.mark.parametrize("request_id", ["&" * 1024, "&" * 60_000, '"' * 60_000], ids=["&", "& too long", '" too long'])
def test_the_id_of_a_malformed_request_cannot_make_its_reply_too_long(request_id: str) -> None:
    """It was echoed in every fragment, at any length, and so broke the stream."""
    malformed = decode(message(envelope([], request_id=request_id), id="'" * 1024, thread="&" * 1024))
    assert isinstance(malformed, MalformedRequest)
    assert longest_bytes(encode_malformed_reply(malformed, AGENT, LIMIT)) <= LIMIT
