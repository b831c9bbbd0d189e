"""What a person reads of an answer: text with its styling, streams while they grow, and signs of what is going on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from spade_coreason import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.codec.decode import decode
from spade_coreason.codec.encoders.base import PresentationOptions, ReplyEncoder
from spade_coreason.codec.encoders.factory import encoder_for
from spade_coreason.codec.namespaces import DATA_FORM
from spade_coreason.codec.signals import encode_displayed, encode_receipt
from spade_coreason.codec.xml import clean
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
def test_what_people_read_of_an_event(ask: Callable[[], InboundRequest], event: TurnEvent, text: str | None) -> None:
    assert [text_of(stanza) for stanza in make_encoder(ask()).encode(event)] == ([] if text is None else [text])


def test_a_stream_is_one_message_at_its_end() -> None:
    speaker = make_encoder(person_request())
    assert encode_all(speaker, StreamStarted("s"), StreamChunk("s", 0, " It "), StreamChunk("s", 1, "rains. ")) == []
    assert [text_of(stanza) for stanza in speaker.encode(StreamEnded("s"))] == ["It rains."]


SHOWN = "*Weather*\n\n*Berlin* is sunny (https://example.org/a_b_c).\n\n```\n°C  wet\n7   no\n```"


@pytest.mark.parametrize("ask", [person_request, spade_request])
def test_markdown_is_shown_with_message_styling_however_it_is_cut(ask: Callable[[], InboundRequest]) -> None:
    chunks = [StreamChunk("s", number, character) for number, character in enumerate(STYLED)]
    stanzas = encode_all(make_encoder(ask()), text_event(STYLED), StreamStarted("s"), *chunks, StreamEnded("s"))
    assert [text_of(stanza) for stanza in stanzas] == [SHOWN, SHOWN]


def test_what_breaks_off_behind_code_leaves_the_code_whole() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "```\nx\n```"), StreamAborted("s", "why"))
    assert [text_of(stanza) for stanza in encode_all(make_encoder(person_request()), *events)] == [
        "```\nx\n```\n… (interrupted: why)"
    ]


def test_streams_that_interleave_are_a_message_each() -> None:
    speaker = make_encoder(person_request())
    opened: tuple[TurnEvent, ...] = (
        StreamStarted("a"),
        StreamStarted("b"),
        StreamChunk("a", 0, "a1"),
        StreamChunk("b", 0, "b1"),
        StreamChunk("a", 1, "a2"),
    )
    assert encode_all(speaker, *opened) == []
    assert [text_of(stanza) for stanza in encode_all(speaker, StreamEnded("b"), StreamEnded("a"))] == ["b1", "a1a2"]


def test_of_a_stream_that_breaks_off_the_beginning_is_shown() -> None:
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
    chance = random.Random(seed)
    for _ in range(3):
        text = "".join(chance.choices('ab &<>"\\é\N{ROCKET}\x00\ud800\n. ', k=chance.randrange(30_000)))
        stanzas = make_encoder(ask(), 10_000).encode(text_event(text))
        assert "".join("".join(map(text_of, stanzas)).split()) == "".join(clean(text).split())
        assert longest_bytes(stanzas or [""]) <= 10_000


def test_people_get_no_form() -> None:
    [stanza] = make_encoder(person_request()).encode(BlockEmitted(DataBlock(data={"a": 1}, view_hint="KEY_VALUE")))
    assert parse_stanza(stanza).find(DATA_FORM) is None


# Streams that grow


REPLACE = "{urn:xmpp:message-correct:0}replace"
HINT = "{urn:xmpp:hints}"


def replaced(stanza: str) -> str | None:
    """The id of the message that a stanza corrects."""
    element = parse_stanza(stanza).find(REPLACE)
    return None if element is None else element.get("id")


def hints(stanza: str) -> list[str]:
    return [child.tag.removeprefix(HINT) for child in parse_stanza(stanza) if child.tag.startswith(HINT)]


def growing(**how: Any) -> ReplyEncoder:
    return encoder_for(person_request(inner=CHAT_STATE), KEY, AGENT, 65_536, PresentationOptions(has_live_messages=True, **how))


def test_a_stream_is_shown_with_message_styling_while_it_grows() -> None:
    speaker = growing()
    speaker.encode(StreamStarted("s"))
    shown: list[str] = []
    for number, chunk in enumerate(("It is **sun", "ny** in *Berlin*", " now")):
        speaker.encode(StreamChunk("s", number, chunk))
        shown += map(text_of, speaker.encode_update("s"))
    assert shown == ["It is **sun", "It is *sunny* in _Berlin_", "It is *sunny* in _Berlin_ now"]
    assert [text_of(stanza) for stanza in speaker.encode_cancelled()] == ["It is *sunny* in _Berlin_ now… (taken back)"]


def test_what_a_stream_said_is_replaced_also_where_it_is_shown() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "The password is"))
    replaced_by = StreamAborted("s", "kept back", "I **keep** it.")
    assert [text_of(stanza) for stanza in encode_all(make_encoder(person_request()), *events, replaced_by)] == ["I *keep* it."]
    growing_voice = growing()
    encode_all(growing_voice, *events)
    [shown] = growing_voice.encode_update("s")
    [last] = growing_voice.encode(replaced_by)
    assert (text_of(last), replaced(last), hints(last)) == ("I *keep* it.", parse_stanza(shown).get("id"), ["store"])


def test_a_stream_grows_in_one_message_and_only_its_last_version_is_kept() -> None:
    growing_voice = growing()
    growing_voice.encode(StreamStarted("s"))
    assert growing_voice.encode_update("s") == []
    versions = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        assert growing_voice.encode(StreamChunk("s", seq, chunk)) == []
        [version] = growing_voice.encode_update("s")
        versions.append(version)
        assert growing_voice.encode_update("s") == []  # nothing more than before
    assert [text_of(version) for version in versions] == ["It", "It is", "It is sunny"]
    first = parse_stanza(versions[0]).get("id")
    assert [replaced(version) for version in versions] == [None, first, first]
    assert all(hints(version) == ["no-store", "no-copy"] for version in versions)
    assert all(parse_stanza(version).find(COMPOSING) is not None for version in versions)
    [last] = growing_voice.encode(StreamEnded("s"))
    assert (text_of(last), replaced(last), hints(last)) == ("It is sunny", first, ["store"])
    assert parse_stanza(last).find(ACTIVE) is not None
    ids = [parse_stanza(stanza).get("id") for stanza in (*versions, last)]
    assert len(set(ids)) == 4
    assert parse_stanza(last).get("to") == ALICE


def test_streams_that_grow_at_once_stay_separate_messages() -> None:
    growing_voice = growing()
    for name in "ab":
        growing_voice.encode(StreamStarted(name))
    growing_voice.encode(StreamChunk("a", 0, "one"))
    [of_a] = growing_voice.encode_update("a")
    growing_voice.encode(StreamChunk("b", 0, "two"))
    growing_voice.encode(StreamChunk("a", 1, " more"))
    [again], [of_b] = growing_voice.encode_update("a"), growing_voice.encode_update("b")
    assert replaced(again) == parse_stanza(of_a).get("id") != parse_stanza(of_b).get("id")
    assert replaced(of_b) is None
    [end_of_b] = growing_voice.encode(StreamEnded("b"))
    [end_of_a] = growing_voice.encode(StreamAborted("a", "why"))
    assert (text_of(end_of_b), replaced(end_of_b)) == ("two", parse_stanza(of_b).get("id"))
    assert (text_of(end_of_a), replaced(end_of_a)) == ("one more… (interrupted: why)", parse_stanza(of_a).get("id"))


def test_a_stream_of_which_nothing_was_shown_is_one_plain_message() -> None:
    growing_voice = growing()
    growing_voice.encode(StreamStarted("s"))
    growing_voice.encode(StreamChunk("s", 0, "quick"))
    [stanza] = growing_voice.encode(StreamEnded("s"))
    assert (text_of(stanza), replaced(stanza), hints(stanza)) == ("quick", None, [])


def test_what_runs_again_corrects_what_the_first_run_showed() -> None:
    first_run, second_run = growing(), growing(is_rerun=True)
    for run in (first_run, second_run):
        run.encode(StreamStarted("s"))
        run.encode(StreamChunk("s", 0, "It"))
    [shown] = first_run.encode_update("s")
    [again] = second_run.encode_update("s")
    assert replaced(again) == parse_stanza(shown).get("id") != parse_stanza(again).get("id")
    [last] = second_run.encode(StreamEnded("s"))
    assert replaced(last) == parse_stanza(shown).get("id")


def test_for_a_device_that_knows_the_last_version_only_each_corrects_the_one_before() -> None:
    growing_voice = growing(find_chained_device=lambda: "profanity.1")
    growing_voice.encode(StreamStarted("s"))
    stanzas = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        growing_voice.encode(StreamChunk("s", seq, chunk))
        stanzas += growing_voice.encode_update("s")
    stanzas += growing_voice.encode(StreamEnded("s"))
    assert [replaced(stanza) for stanza in stanzas] == [None, *(parse_stanza(stanza).get("id") for stanza in stanzas[:-1])]


@pytest.mark.parametrize("now", [None, "profanity.2"])
def test_who_has_another_device_since_gets_the_whole_text_which_corrects_nothing(now: str | None) -> None:
    devices: list[str | None] = ["profanity.1"]
    growing_voice = growing(find_chained_device=lambda: devices[-1])
    growing_voice.encode(StreamStarted("s"))
    growing_voice.encode(StreamChunk("s", 0, "It "))
    assert len(growing_voice.encode_update("s")) == 1
    devices.append(now)
    growing_voice.encode(StreamChunk("s", 1, "is"))
    assert growing_voice.encode_update("s") == []
    [last] = growing_voice.encode(StreamEnded("s"))
    assert (text_of(last), replaced(last)) == ("It is", None)


def test_what_runs_again_corrects_nothing_where_the_last_version_is_not_known() -> None:
    second_run = growing(find_chained_device=lambda: "profanity.1", is_rerun=True)
    second_run.encode(StreamStarted("s"))
    second_run.encode(StreamChunk("s", 0, "It"))
    [first] = second_run.encode_update("s")
    [last] = second_run.encode(StreamEnded("s"))
    assert (replaced(first), replaced(last)) == (None, parse_stanza(first).get("id"))


def test_what_grows_never_exceeds_a_stanza_and_the_end_is_whole() -> None:
    growing_voice = encoder_for(person_request(), KEY, AGENT, 10_000, PresentationOptions(has_live_messages=True))
    growing_voice.encode(StreamStarted("s"))
    words = [f"word-{number} " for number in range(5_000)]
    stanzas = []
    for seq, word in enumerate(words):
        growing_voice.encode(StreamChunk("s", seq, word))
        if seq % 500 == 0:
            stanzas += growing_voice.encode_update("s")
    end = growing_voice.encode(StreamEnded("s"))
    assert longest_bytes([*stanzas, *end]) <= 10_000
    assert text_of(stanzas[-1]).endswith(" …")
    assert " ".join(text_of(part) for part in end).split() == "".join(words).split()
    assert [replaced(part) is not None for part in end] == [True, *[False] * (len(end) - 1)]


# Typing


def test_typing_is_shown_only_to_who_shows_it() -> None:
    assert not make_encoder(person_request()).shows_typing
    assert make_encoder(person_request()).encode_composing() is None


def test_typing_ends_with_the_answer() -> None:
    speaker = make_encoder(person_request(inner=CHAT_STATE, thread="t"))
    assert speaker.shows_typing
    composing = parse_stanza(speaker.encode_composing() or "")
    assert (composing.get("to"), composing.findtext(THREAD), composing.find(BODY)) == (ALICE, "t", None)
    assert composing.find(COMPOSING) is not None
    assert decode(composing) is None
    [answer] = speaker.encode(text_event("hi"))
    assert parse_stanza(answer).find(ACTIVE) is not None
    assert speaker.encode(Completed("conversation", "active")) == []


@pytest.mark.parametrize("last", [Completed("conversation", "active"), Failed("broken", 500, True, is_reported=True)])
def test_typing_ends_with_a_turn_that_says_nothing(last: TurnEvent) -> None:
    speaker = make_encoder(person_request(inner=CHAT_STATE))
    speaker.encode_composing()
    [stanza] = speaker.encode(last)
    assert parse_stanza(stanza).find(ACTIVE) is not None
    assert parse_stanza(stanza).find(BODY) is None
    assert speaker.encode(last) == []


def test_typing_that_leads_to_no_answer_is_taken_back() -> None:
    typing_voice = make_encoder(person_request(inner=CHAT_STATE))
    assert typing_voice.encode_paused() is None
    assert typing_voice.encode_composing() is not None
    taken_back = typing_voice.encode_paused()
    assert taken_back is not None
    assert parse_stanza(taken_back).find("{http://jabber.org/protocol/chatstates}paused") is not None


# Markers and receipts


def test_a_marker_names_the_message() -> None:
    incoming = decode_request(message(body("hi") + "<markable xmlns='urn:xmpp:chat-markers:0'/>", id="<'&\">"))
    assert incoming.wants_displayed_marker
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
