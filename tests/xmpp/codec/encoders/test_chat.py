"""Replies to a person: styled text, live streams, typing notifications, markers and receipts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from spade_coreason.contracts import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Refused,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
)
from spade_coreason.runtime import ReplyEncoder
from spade_coreason.runtime.channels import PresentationOptions
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.receipts_and_notices import encode_displayed, encode_receipt
from spade_coreason.xmpp.codec.xml import clean
from spade_coreason.xmpp.transport import encoder_for
from tests.support.encoders import CHAT_STATE, STYLED, encode_all, longest_bytes, make_encoder, text_event
from tests.support.foreign_stanzas import (
    ACTIVE,
    AGENT,
    ALICE,
    BODY,
    COMPOSING,
    KEY,
    ORIGIN_ID,
    THREAD,
    body,
    decode_request,
    message,
    parse_stanza,
    person_request,
    spade_request,
    text_of,
)


@pytest.mark.parametrize("type", ["chat", "normal"])
def test_a_person_is_answered_at_the_bare_jid_with_an_origin_id(type: str) -> None:
    [stanza] = make_encoder(person_request(type=type)).encode(text_event("It is **sunny**."))
    element = parse_stanza(stanza)
    assert (element.get("to"), element.get("type")) == (ALICE, type)
    assert element.findtext(BODY) == "It is *sunny*."
    origin = element.find(ORIGIN_ID)
    assert origin is not None
    assert origin.get("id") == element.get("id")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BlockEmitted(ThinkingBlock(content="hm")), None),
        (text_event(" hi\n"), "hi"),
        (BlockEmitted(DataBlock(data={"°C": 7}, view_hint="KEY_VALUE", title="Berlin")), "*Berlin*\n°C: 7"),
        (BlockEmitted(UserErrorBlock(user_message="no weather", technical_details={"host": "10.0.0.7"})), "no weather"),
        (StreamStarted("s", "Weather"), None),
        (Completed("conversation", "active"), None),
        (Failed("broken", 500, True, "1f2e"), "broken"),
        (Failed("broken", 500, True, is_reported=True), None),
        (Refused("no", 429, 60.0), "no"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("ask", [person_request, spade_request])
def test_an_event_is_shown_to_people_as_text(ask: Callable[[], InboundRequest], event: TurnEvent, text: str | None) -> None:
    assert [text_of(stanza) for stanza in make_encoder(ask()).encode(event)] == ([] if text is None else [text])


def test_a_stream_is_one_message_at_its_end() -> None:
    encoder = make_encoder(person_request())
    assert encode_all(encoder, StreamStarted("s"), StreamChunk("s", 0, " It "), StreamChunk("s", 1, "rains. ")) == []
    assert [text_of(stanza) for stanza in encoder.encode(StreamEnded("s"))] == ["It rains."]


EXPECTED_STYLING = "*Weather*\n\n*Berlin* is sunny (https://example.org/a_b_c).\n\n```\n°C  wet\n7   no\n```"


@pytest.mark.parametrize("ask", [person_request, spade_request])
def test_markdown_is_shown_with_message_styling_however_it_is_cut(ask: Callable[[], InboundRequest]) -> None:
    chunks = [StreamChunk("s", number, character) for number, character in enumerate(STYLED)]
    stanzas = encode_all(make_encoder(ask()), text_event(STYLED), StreamStarted("s"), *chunks, StreamEnded("s"))
    assert [text_of(stanza) for stanza in stanzas] == [EXPECTED_STYLING, EXPECTED_STYLING]


def test_a_stream_aborted_after_a_code_block_keeps_the_block_whole() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "```\nx\n```"), StreamAborted("s", "why"))
    assert [text_of(stanza) for stanza in encode_all(make_encoder(person_request()), *events)] == [
        "```\nx\n```\n… (interrupted: why)"
    ]


def test_streams_that_interleave_are_a_message_each() -> None:
    encoder = make_encoder(person_request())
    events: tuple[TurnEvent, ...] = (
        StreamStarted("a"),
        StreamStarted("b"),
        StreamChunk("a", 0, "a1"),
        StreamChunk("b", 0, "b1"),
        StreamChunk("a", 1, "a2"),
    )
    assert encode_all(encoder, *events) == []
    assert [text_of(stanza) for stanza in encode_all(encoder, StreamEnded("b"), StreamEnded("a"))] == ["b1", "a1a2"]


def test_the_beginning_of_an_aborted_stream_is_shown() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "It is "), StreamAborted("s", "the turn failed"))
    assert [text_of(stanza) for stanza in encode_all(make_encoder(person_request()), *events)] == [
        "It is… (interrupted: the turn failed)"
    ]
    assert encode_all(make_encoder(person_request()), StreamStarted("s"), StreamAborted("s", "the turn failed")) == []


def test_a_long_text_is_cut_between_words() -> None:
    words = [f"word{number}" for number in range(30_000)]
    parts = [text_of(stanza) for stanza in make_encoder(person_request()).encode(text_event(" ".join(words)))]
    assert len(parts) > 3
    assert " ".join(parts).split(" ") == words


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ask", [person_request, spade_request])
def test_the_parts_of_a_text_are_the_text(ask: Callable[[], InboundRequest], seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        text = "".join(rng.choices('ab &<>"\\é\N{ROCKET}\x00\ud800\n. ', k=rng.randrange(30_000)))
        stanzas = make_encoder(ask(), 10_000).encode(text_event(text))
        assert "".join("".join(map(text_of, stanzas)).split()) == "".join(clean(text).split())
        assert longest_bytes(stanzas or [""]) <= 10_000


# Streams that grow


REPLACE = "{urn:xmpp:message-correct:0}replace"
HINT = "{urn:xmpp:hints}"


def corrected_id(stanza: str) -> str | None:
    """The id of the message that a stanza corrects."""
    element = parse_stanza(stanza).find(REPLACE)
    return None if element is None else element.get("id")


def hints(stanza: str) -> list[str]:
    return [child.tag.removeprefix(HINT) for child in parse_stanza(stanza) if child.tag.startswith(HINT)]


def live_encoder(**options: Any) -> ReplyEncoder:
    return encoder_for(
        person_request(inner=CHAT_STATE), KEY, AGENT, 65_536, PresentationOptions(has_live_messages=True, **options)
    )


def test_a_stream_is_shown_with_message_styling_while_it_grows() -> None:
    encoder = live_encoder()
    encoder.encode(StreamStarted("s"))
    shown: list[str] = []
    for number, chunk in enumerate(("It is **sun", "ny** in *Berlin*", " now")):
        encoder.encode(StreamChunk("s", number, chunk))
        shown += map(text_of, encoder.encode_update("s"))
    assert shown == ["It is **sun", "It is *sunny* in _Berlin_", "It is *sunny* in _Berlin_ now"]
    assert [text_of(stanza) for stanza in encoder.encode_cancelled()] == ["It is *sunny* in _Berlin_ now… (taken back)"]


def test_an_emoji_that_is_not_whole_is_shown_with_the_next_version() -> None:
    encoder = live_encoder()
    encoder.encode(StreamStarted("s"))
    shown: list[str] = []
    for number, chunk in enumerate(("Hi 👩", "\u200d", "💻 🇩", "🇪")):
        encoder.encode(StreamChunk("s", number, chunk))
        shown += map(text_of, encoder.encode_update("s"))
    assert shown == ["Hi 👩", "Hi 👩", "Hi 👩\u200d💻", "Hi 👩\u200d💻 🇩🇪"]
    assert [text_of(stanza) for stanza in encoder.encode(StreamEnded("s"))] == ["Hi 👩\u200d💻 🇩🇪"]


def test_the_text_of_a_stream_is_replaced_also_if_it_was_shown() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "The password is"))
    replaced_by = StreamAborted("s", "kept back", "I **keep** it.")
    assert [text_of(stanza) for stanza in encode_all(make_encoder(person_request()), *events, replaced_by)] == ["I *keep* it."]
    encoder = live_encoder()
    encode_all(encoder, *events)
    [shown] = encoder.encode_update("s")
    [last] = encoder.encode(replaced_by)
    assert (text_of(last), corrected_id(last), hints(last)) == ("I *keep* it.", parse_stanza(shown).get("id"), ["store"])


def test_a_stream_grows_in_one_message_and_only_its_last_version_is_kept() -> None:
    encoder = live_encoder()
    encoder.encode(StreamStarted("s"))
    assert encoder.encode_update("s") == []
    versions = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        assert encoder.encode(StreamChunk("s", seq, chunk)) == []
        [version] = encoder.encode_update("s")
        versions.append(version)
        assert encoder.encode_update("s") == []  # nothing more than before
    assert [text_of(version) for version in versions] == ["It", "It is", "It is sunny"]
    first = parse_stanza(versions[0]).get("id")
    assert [corrected_id(version) for version in versions] == [None, first, first]
    assert all(hints(version) == ["no-store", "no-copy"] for version in versions)
    assert all(parse_stanza(version).find(COMPOSING) is not None for version in versions)
    [last] = encoder.encode(StreamEnded("s"))
    assert (text_of(last), corrected_id(last), hints(last)) == ("It is sunny", first, ["store"])
    assert parse_stanza(last).find(ACTIVE) is not None
    ids = [parse_stanza(stanza).get("id") for stanza in (*versions, last)]
    assert len(set(ids)) == 4
    assert parse_stanza(last).get("to") == ALICE


def test_streams_that_grow_at_once_stay_separate_messages() -> None:
    encoder = live_encoder()
    for name in "ab":
        encoder.encode(StreamStarted(name))
    encoder.encode(StreamChunk("a", 0, "one"))
    [update_a] = encoder.encode_update("a")
    encoder.encode(StreamChunk("b", 0, "two"))
    encoder.encode(StreamChunk("a", 1, " more"))
    [second_update_a], [update_b] = encoder.encode_update("a"), encoder.encode_update("b")
    assert corrected_id(second_update_a) == parse_stanza(update_a).get("id") != parse_stanza(update_b).get("id")
    assert corrected_id(update_b) is None
    [end_of_b] = encoder.encode(StreamEnded("b"))
    [end_of_a] = encoder.encode(StreamAborted("a", "why"))
    assert (text_of(end_of_b), corrected_id(end_of_b)) == ("two", parse_stanza(update_b).get("id"))
    assert (text_of(end_of_a), corrected_id(end_of_a)) == ("one more… (interrupted: why)", parse_stanza(update_a).get("id"))


def test_a_stream_that_was_not_shown_before_its_end_is_one_plain_message() -> None:
    encoder = live_encoder()
    encoder.encode(StreamStarted("s"))
    encoder.encode(StreamChunk("s", 0, "quick"))
    [stanza] = encoder.encode(StreamEnded("s"))
    assert (text_of(stanza), corrected_id(stanza), hints(stanza)) == ("quick", None, [])


def test_a_rerun_corrects_the_message_of_the_first_run() -> None:
    first_run, second_run = live_encoder(), live_encoder(is_rerun=True)
    for run in (first_run, second_run):
        run.encode(StreamStarted("s"))
        run.encode(StreamChunk("s", 0, "It"))
    [shown] = first_run.encode_update("s")
    [again] = second_run.encode_update("s")
    assert corrected_id(again) == parse_stanza(shown).get("id") != parse_stanza(again).get("id")
    [last] = second_run.encode(StreamEnded("s"))
    assert corrected_id(last) == parse_stanza(shown).get("id")


def test_for_a_device_that_knows_only_the_last_version_each_corrects_the_one_before() -> None:
    encoder = live_encoder(find_chained_device=lambda: "profanity.1")
    encoder.encode(StreamStarted("s"))
    stanzas = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        encoder.encode(StreamChunk("s", seq, chunk))
        stanzas += encoder.encode_update("s")
    stanzas += encoder.encode(StreamEnded("s"))
    assert [corrected_id(stanza) for stanza in stanzas] == [None, *(parse_stanza(stanza).get("id") for stanza in stanzas[:-1])]


@pytest.mark.parametrize("now", [None, "profanity.2"])
def test_after_a_change_of_device_the_whole_text_is_sent_without_a_correction(now: str | None) -> None:
    devices: list[str | None] = ["profanity.1"]
    encoder = live_encoder(find_chained_device=lambda: devices[-1])
    encoder.encode(StreamStarted("s"))
    encoder.encode(StreamChunk("s", 0, "It "))
    assert len(encoder.encode_update("s")) == 1
    devices.append(now)
    encoder.encode(StreamChunk("s", 1, "is"))
    assert encoder.encode_update("s") == []
    [last] = encoder.encode(StreamEnded("s"))
    assert (text_of(last), corrected_id(last)) == ("It is", None)


def test_a_rerun_corrects_nothing_if_the_last_version_is_unknown() -> None:
    second_run = live_encoder(find_chained_device=lambda: "profanity.1", is_rerun=True)
    second_run.encode(StreamStarted("s"))
    second_run.encode(StreamChunk("s", 0, "It"))
    [first] = second_run.encode_update("s")
    [last] = second_run.encode(StreamEnded("s"))
    assert (corrected_id(first), corrected_id(last)) == (None, parse_stanza(first).get("id"))


def test_a_live_message_never_exceeds_a_stanza_and_its_end_is_complete() -> None:
    encoder = encoder_for(person_request(), KEY, AGENT, 10_000, PresentationOptions(has_live_messages=True))
    encoder.encode(StreamStarted("s"))
    words = [f"word-{number} " for number in range(5_000)]
    stanzas = []
    for seq, word in enumerate(words):
        encoder.encode(StreamChunk("s", seq, word))
        if seq % 500 == 0:
            stanzas += encoder.encode_update("s")
    end = encoder.encode(StreamEnded("s"))
    assert longest_bytes([*stanzas, *end]) <= 10_000
    assert text_of(stanzas[-1]).endswith(" …")
    assert " ".join(text_of(part) for part in end).split() == "".join(words).split()
    assert [corrected_id(part) is not None for part in end] == [True, *[False] * (len(end) - 1)]


# Typing


def test_typing_is_shown_only_to_clients_that_send_chat_states() -> None:
    assert not make_encoder(person_request()).shows_typing
    assert make_encoder(person_request()).encode_composing() is None


def test_typing_ends_with_the_answer() -> None:
    encoder = make_encoder(person_request(inner=CHAT_STATE, thread="t"))
    assert encoder.shows_typing
    composing = parse_stanza(encoder.encode_composing() or "")
    assert (composing.get("to"), composing.findtext(THREAD), composing.find(BODY)) == (ALICE, "t", None)
    assert composing.find(COMPOSING) is not None
    assert decode(composing) is None
    [answer] = encoder.encode(text_event("hi"))
    assert parse_stanza(answer).find(ACTIVE) is not None
    assert encoder.encode(Completed("conversation", "active")) == []


@pytest.mark.parametrize("last", [Completed("conversation", "active"), Failed("broken", 500, True, is_reported=True)])
def test_typing_ends_with_a_turn_that_says_nothing(last: TurnEvent) -> None:
    encoder = make_encoder(person_request(inner=CHAT_STATE))
    encoder.encode_composing()
    [stanza] = encoder.encode(last)
    assert parse_stanza(stanza).find(ACTIVE) is not None
    assert parse_stanza(stanza).find(BODY) is None
    assert encoder.encode(last) == []


def test_typing_without_a_reply_ends_with_paused() -> None:
    encoder = make_encoder(person_request(inner=CHAT_STATE))
    assert encoder.encode_paused() is None
    assert encoder.encode_composing() is not None
    taken_back = encoder.encode_paused()
    assert taken_back is not None
    assert parse_stanza(taken_back).find("{http://jabber.org/protocol/chatstates}paused") is not None


# Markers and receipts


def test_a_marker_names_the_message() -> None:
    incoming = decode_request(message(body("hi") + "<markable xmlns='urn:xmpp:chat-markers:0'/>", id="<'&\">"))
    assert incoming.headers.wants_displayed_marker
    element = parse_stanza(encode_displayed(incoming))
    marker = element.find("{urn:xmpp:chat-markers:0}displayed")
    assert marker is not None
    assert (element.get("to"), marker.get("id")) == (ALICE, "<'&\">")
    assert decode(element) is None


def test_a_receipt_names_the_message() -> None:
    incoming = decode_request(message(body("hi"), id="<'&\">"))
    element = parse_stanza(encode_receipt(incoming))
    received = element.find("{urn:xmpp:receipts}received")
    assert received is not None
    assert (element.get("to"), received.get("id")) == (ALICE, "<'&\">")
    assert decode(element) is None
