"""What an agent says, as the other side reads it: text for a person, events for a program, SPADE's form for a SPADE agent."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import Element

import pytest

from spade_coreason import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.codec import (
    Completed,
    Failed,
    Incoming,
    Malformed,
    Manner,
    Refused,
    Reply,
    Said,
    SaidText,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
    Voice,
    decode,
    displayed,
    malformed_answer,
    named,
    receipt,
    request_stanza,
    voice_for,
)
from spade_coreason.codec.namespaces import DATA_FORM, FORM_FIELD, FORM_ITEM, FORM_REPORTED, FORM_TITLE, FORM_VALUE
from spade_coreason.codec.person_voice import PersonVoice
from spade_coreason.codec.program_voice import ProgramVoice
from spade_coreason.codec.spade_voice import SpadeVoice
from spade_coreason.codec.xml import clean, wire_size
from spade_coreason.peers import OpenRequests, PeerEvent
from spade_coreason.values import replace
from tests.codec.stanzas import (
    ACTIVE,
    AGENT,
    ALICE,
    BODY,
    COMPOSING,
    DEVICE,
    KEY,
    ORIGIN_ID,
    REQUEST_ID,
    THREAD,
    body,
    envelope,
    event_of,
    fields_of,
    form,
    message,
    person,
    program,
    read,
    request,
    spade,
    text_of,
)

LIMIT = 65_536
BLOCK_ID = UUID("5f0c6a3e-0000-5000-8000-00000000000b")
CHAT_STATE = "<active xmlns='http://jabber.org/protocol/chatstates'/>"


def voice(incoming: Incoming, limit: int = LIMIT, key: UUID = KEY) -> Voice:
    return voice_for(incoming, key, AGENT, limit)


def says(text: str) -> SaidText:
    return SaidText(text, 1)


def all_of(speaker: Voice, *events: TurnEvent) -> list[str]:
    """Everything that `events` become."""
    return [stanza for event in events for stanza in speaker.say(event)]


TURN: tuple[TurnEvent, ...] = (
    Said(ThinkingBlock(id=BLOCK_ID, content="Looking out of the window…")),
    says("**Sunny**"),
    StreamStarted("s1", "Weather"),
    StreamChunk("s1", 0, "It is "),
    StreamChunk("s1", 1, "sunny. "),
    StreamEnded("s1"),
    Said(DataBlock(id=BLOCK_ID, data={"°C": 7}, view_hint="KEY_VALUE", title="Berlin")),
    Completed("conversation", "active"),
)
LANGUAGES: dict[str, Callable[[], Incoming]] = {"person": person, "program": program, "spade": spade}
each_language = pytest.mark.parametrize("ask", LANGUAGES.values(), ids=LANGUAGES)


@pytest.mark.parametrize(("ask", "kind"), [(person, PersonVoice), (program, ProgramVoice), (spade, SpadeVoice)])
def test_one_is_answered_in_the_language_one_asked_in(ask: Callable[[], Incoming], kind: type) -> None:
    assert type(voice(ask())) is kind


# All languages


@each_language
def test_an_answer_that_comes_back_asks_nothing(ask: Callable[[], Incoming]) -> None:
    """No storm: whoever hosts an agent as we do never takes it for a request."""
    failures = (Said(UserErrorBlock(user_message="no")), Failed("no", 500, True), Refused("no", 429, 60.0))
    stanzas = all_of(voice(ask()), *TURN, *failures, says("x&\N{ROCKET}" * 50_000))
    assert len(stanzas) > 6
    assert not [stanza for stanza in stanzas if isinstance(decode(read(stanza)), Incoming | Malformed)]


@each_language
def test_a_turn_that_runs_again_gives_the_same_ids(ask: Callable[[], Incoming]) -> None:
    turn = (*TURN, says("long " * 50_000))
    first, again = ([read(stanza).get("id") for stanza in all_of(voice(ask()), *turn)] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)


@each_language
def test_another_request_another_text_and_another_place_have_other_ids(ask: Callable[[], Incoming]) -> None:
    ids = {
        read(voice(ask(), key=key).say(says(text))[0]).get("id")
        for key in (KEY, UUID(int=KEY.int + 1))
        for text in ("one", "two", "a\ud800")
    }
    ids |= {read(stanza).get("id") for stanza in all_of(voice(ask()), says("one"), says("one"))}
    assert len(ids) == 7


@each_language
def test_the_thread_is_echoed(ask: Callable[..., Incoming]) -> None:
    for stanza in all_of(voice(ask(thread="<&> t")), *TURN):
        assert read(stanza).findtext(THREAD) == "<&> t"
    assert all(read(stanza).find(THREAD) is None for stanza in all_of(voice(ask()), *TURN))


def test_a_person_is_answered_on_the_branch_of_the_thread_they_asked_on() -> None:
    asked = request(
        message(body("hi") + "<active xmlns='http://jabber.org/protocol/chatstates'/><thread parent='&lt;'>b</thread>")
    )
    stanzas = [*all_of(voice(asked), *TURN), displayed(Incoming.from_json(asked.to_json()))]
    assert len(stanzas) > 3
    for stanza in stanzas:
        thread = read(stanza).find(THREAD)
        assert thread is not None
        assert (thread.text, thread.get("parent")) == ("b", "<")


@each_language
def test_what_xml_forbids_is_removed(ask: Callable[[], Incoming]) -> None:
    hostile = "".join(map(chr, range(32))) + "</body><message to='x'>&#0;]]>\x7f\x85\ud800\ufffe\uffff"
    events = (
        says(hostile),
        Said(DataBlock(data={hostile: hostile}, title=hostile)),
        StreamStarted("s", hostile),
        StreamChunk("s", 0, hostile),
        StreamAborted("s", hostile),
        StreamStarted("r", hostile),
        StreamAborted("r", "why", hostile),
        Failed(hostile, 500, True, hostile),
        Refused(hostile, 429),
    )
    for stanza in all_of(voice(ask()), *events):
        element = read(stanza)
        content = "".join(element.itertext())
        assert element.tag == "{jabber:client}message"
        assert clean(content) == content
        assert "message to" in content


@pytest.mark.parametrize("nothing", ["", " \n", "\x00", "\ud800\ufffe", " \x1b "])
@pytest.mark.parametrize("ask", [person, spade])
def test_no_empty_message_is_sent(ask: Callable[[], Incoming], nothing: str) -> None:
    """Text of forbidden characters only was one."""
    events = (says(nothing), StreamStarted("s"), StreamChunk("s", 0, nothing), StreamEnded("s"))
    assert all_of(voice(ask()), *events, Failed(nothing, 500, True)) == []


# No stanza too long

HEAVY = ["x", "&", "<", '"', "\\", "\n", "é", "\N{ROCKET}", "\x00", "\x01", "\ufffe", "word. ", "a\r\n", '&\N{ROCKET}\\"\n']


def longest(stanzas: list[str]) -> int:
    return max(len(stanza.encode()) for stanza in stanzas)


@pytest.mark.parametrize(
    ("mark", "limit"),
    [*((mark, 10_000) for mark in HEAVY), *((mark, LIMIT) for mark in ("x", "&", '"', "\N{ROCKET}", "\x01"))],
    ids=ascii,
)
@each_language
def test_no_stanza_is_too_long(ask: Callable[..., Incoming], mark: str, limit: int) -> None:
    text = "begin " + mark * (limit // max(wire_size(mark), 1)) + " end"
    events = (
        says(text),
        Said(DataBlock(data={text: [text]}, title="Data")),
        Said(DataBlock(data={text: [text]}, view_hint="KEY_VALUE", title=text)),
        Said(DataBlock(data={"a": text[:3000], "b": [text[:500]]}, view_hint="KEY_VALUE", title="Data")),
        Said(DataBlock(data={"columns": ["a"], "rows": [{"a": part} for part in text[:3000]]}, view_hint="TABLE")),
        StreamStarted("s"),
        StreamChunk("s", 0, text),
        StreamAborted("s", text),
        StreamStarted("r"),
        StreamAborted("r", "why", text),
        Said(UserErrorBlock(user_message=text)),
        Failed(text, 500, True),
        Refused(text, 429),
    )
    assert longest(all_of(voice(ask(thread="thread"), limit), *events)) <= limit


@pytest.mark.parametrize("mark", ["x", "&", '"', "\N{ROCKET}"])
@pytest.mark.parametrize(
    "inner",
    [body("hi"), envelope(), body("hi") + form({}), body("hi") + form({"_thread_node": "?" * 1024})],
    ids=["person", "program", "spade", "thread in the form"],
)
def test_the_longest_ids_threads_and_addresses_leave_room(inner: str, mark: str) -> None:
    """In SPADE's form the thread stands twice; its second place was not counted."""
    absurd = mark * 1024
    inner = inner.replace("?" * 1024, absurd.replace("&", "&amp;").replace('"', "&quot;"))
    thread = None if "_thread_node" in inner else absurd
    incoming = request(message(inner, id=absurd, thread=thread, sender=f"{ALICE}/{absurd}"))
    stanzas = all_of(voice(incoming), says("x" * 70_000), says("&" * 14_000))
    assert len(stanzas) >= 4
    assert longest(stanzas) <= LIMIT
    assert longest([receipt(incoming)]) <= LIMIT


@pytest.mark.parametrize("mark", ["x", "&", '"', "\N{ROCKET}"])
def test_the_longest_id_that_an_answer_refers_to_leaves_room(mark: str) -> None:
    absurd = mark * 1024
    reply = "<reply xmlns='urn:xmpp:reply:0' id='1'/>"
    incoming = request(message(body("hi") + reply, id=absurd, thread=absurd, sender=f"{ALICE}/{absurd}"))
    incoming = replace(incoming, metadata={**incoming.metadata, "parent_thread": absurd})
    stanzas = all_of(voice(incoming), says("x" * 70_000))
    assert longest(stanzas) <= LIMIT
    assert ["<reply" in stanza for stanza in stanzas] == [True] + [False] * (len(stanzas) - 1)


@pytest.mark.parametrize("mark", ["x", "&", '"', "\N{ROCKET}"])
@pytest.mark.parametrize("count", [10, 300, 2_000, 16_000])
def test_the_metadata_of_a_spade_agent_leaves_room(count: int, mark: str) -> None:
    large = mark * count
    for fields in ({"a": large}, {large: "a"}, {"reply-with": large}, {mark + str(n): mark for n in range(min(count, 300))}):
        assert longest(voice(spade(fields, thread="t")).say(says("x" * 70_000))) <= LIMIT


@pytest.mark.parametrize("named", ["&" * 1024, "&" * 60_000, '"' * 60_000], ids=["&", "& too long", '" too long'])
def test_the_id_of_a_wrong_request_cannot_make_its_answer_too_long(named: str) -> None:
    """It was echoed in every fragment, at any length, and so broke the stream."""
    malformed = decode(message(envelope([], request_id=named), id="'" * 1024, thread="&" * 1024))
    assert isinstance(malformed, Malformed)
    assert longest(malformed_answer(malformed, AGENT, LIMIT)) <= LIMIT


# To a person


@pytest.mark.parametrize("type", ["chat", "normal"])
def test_a_person_is_answered_at_the_bare_jid_with_an_origin_id(type: str) -> None:
    [stanza] = voice(person(type=type)).say(says("It is **sunny**."))
    element = read(stanza)
    assert (element.get("to"), element.get("type")) == (ALICE, type)
    assert element.findtext(BODY) == "It is *sunny*."
    origin = element.find(ORIGIN_ID)
    assert origin is not None
    assert origin.get("id") == element.get("id")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Said(ThinkingBlock(content="hm")), None),
        (says(" hi\n"), "hi"),
        (Said(DataBlock(data={"°C": 7}, view_hint="KEY_VALUE", title="Berlin")), "*Berlin*\n°C: 7"),
        (Said(UserErrorBlock(user_message="no weather", technical_details={"host": "10.0.0.7"})), "no weather"),
        (StreamStarted("s", "Weather"), None),
        (Completed("conversation", "active"), None),
        (Failed("broken", 500, True, "1f2e"), "broken"),
        (Failed("broken", 500, True, reported=True), None),
        (Refused("no", 429, 60.0), "no"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("ask", [person, spade])
def test_what_people_read_of_an_event(ask: Callable[[], Incoming], event: TurnEvent, text: str | None) -> None:
    assert [text_of(stanza) for stanza in voice(ask()).say(event)] == ([] if text is None else [text])


def test_a_stream_is_one_message_at_its_end() -> None:
    speaker = voice(person())
    assert all_of(speaker, StreamStarted("s"), StreamChunk("s", 0, " It "), StreamChunk("s", 1, "rains. ")) == []
    assert [text_of(stanza) for stanza in speaker.say(StreamEnded("s"))] == ["It rains."]


STYLED = "# Weather\n\n**Berlin** is [sunny](https://example.org/a_b_c).\n\n| °C | wet |\n|---|---|\n| 7 | no |"
SHOWN = "*Weather*\n\n*Berlin* is sunny (https://example.org/a_b_c).\n\n```\n°C  wet\n7   no\n```"


@pytest.mark.parametrize("ask", [person, spade])
def test_markdown_is_shown_with_message_styling_however_it_is_cut(ask: Callable[[], Incoming]) -> None:
    chunks = [StreamChunk("s", number, character) for number, character in enumerate(STYLED)]
    stanzas = all_of(voice(ask()), says(STYLED), StreamStarted("s"), *chunks, StreamEnded("s"))
    assert [text_of(stanza) for stanza in stanzas] == [SHOWN, SHOWN]


def test_a_stream_is_shown_with_message_styling_while_it_grows() -> None:
    speaker = growing()
    speaker.say(StreamStarted("s"))
    shown: list[str] = []
    for number, chunk in enumerate(("It is **sun", "ny** in *Berlin*", " now")):
        speaker.say(StreamChunk("s", number, chunk))
        shown += map(text_of, speaker.growth("s"))
    assert shown == ["It is **sun", "It is *sunny* in _Berlin_", "It is *sunny* in _Berlin_ now"]
    assert [text_of(stanza) for stanza in speaker.withdrawn()] == ["It is *sunny* in _Berlin_ now… (taken back)"]


def test_a_program_gets_markdown_as_it_is() -> None:
    block, _, chunk = all_of(voice(program()), says(STYLED), StreamStarted("s"), StreamChunk("s", 0, STYLED))
    assert event_of(block)["data"]["content"] == event_of(chunk)["data"]["chunk"] == STYLED


def test_what_breaks_off_behind_code_leaves_the_code_whole() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "```\nx\n```"), StreamAborted("s", "why"))
    assert [text_of(stanza) for stanza in all_of(voice(person()), *events)] == ["```\nx\n```\n… (interrupted: why)"]


def test_streams_that_interleave_are_a_message_each() -> None:
    speaker = voice(person())
    opened: tuple[TurnEvent, ...] = (
        StreamStarted("a"),
        StreamStarted("b"),
        StreamChunk("a", 0, "a1"),
        StreamChunk("b", 0, "b1"),
        StreamChunk("a", 1, "a2"),
    )
    assert all_of(speaker, *opened) == []
    assert [text_of(stanza) for stanza in all_of(speaker, StreamEnded("b"), StreamEnded("a"))] == ["b1", "a1a2"]


def test_of_a_stream_that_breaks_off_the_beginning_is_shown() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "It is "), StreamAborted("s", "the turn failed"))
    assert [text_of(stanza) for stanza in all_of(voice(person()), *events)] == ["It is… (interrupted: the turn failed)"]
    assert all_of(voice(person()), StreamStarted("s"), StreamAborted("s", "the turn failed")) == []


def test_what_a_stream_said_is_replaced_also_where_it_is_shown() -> None:
    events = (StreamStarted("s"), StreamChunk("s", 0, "The password is"))
    replaced_by = StreamAborted("s", "kept back", "I **keep** it.")
    assert [text_of(stanza) for stanza in all_of(voice(person()), *events, replaced_by)] == ["I *keep* it."]
    growing_voice = growing()
    all_of(growing_voice, *events)
    [shown] = growing_voice.growth("s")
    [last] = growing_voice.say(replaced_by)
    assert (text_of(last), replaced(last), hints(last)) == ("I *keep* it.", read(shown).get("id"), ["store"])


def test_typing_is_shown_only_to_who_shows_it() -> None:
    assert not voice(person()).shows_typing
    assert voice(person()).composing() is None


def test_typing_ends_with_the_answer() -> None:
    speaker = voice(person(inner=CHAT_STATE, thread="t"))
    assert speaker.shows_typing
    composing = read(speaker.composing() or "")
    assert (composing.get("to"), composing.findtext(THREAD), composing.find(BODY)) == (ALICE, "t", None)
    assert composing.find(COMPOSING) is not None
    assert decode(composing) is None
    [answer] = speaker.say(says("hi"))
    assert read(answer).find(ACTIVE) is not None
    assert speaker.say(Completed("conversation", "active")) == []


@pytest.mark.parametrize("last", [Completed("conversation", "active"), Failed("broken", 500, True, reported=True)])
def test_typing_ends_with_a_turn_that_says_nothing(last: TurnEvent) -> None:
    speaker = voice(person(inner=CHAT_STATE))
    speaker.composing()
    [stanza] = speaker.say(last)
    assert read(stanza).find(ACTIVE) is not None
    assert read(stanza).find(BODY) is None
    assert speaker.say(last) == []


def test_a_long_text_is_cut_between_words() -> None:
    words = [f"word{number}" for number in range(30_000)]
    parts = [text_of(stanza) for stanza in voice(person()).say(says(" ".join(words)))]
    assert len(parts) > 3
    assert " ".join(parts).split(" ") == words


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ask", [person, spade])
def test_the_parts_of_a_text_are_the_text(ask: Callable[[], Incoming], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(3):
        text = "".join(chance.choices('ab &<>"\\é\N{ROCKET}\x00\ud800\n. ', k=chance.randrange(30_000)))
        stanzas = voice(ask(), 10_000).say(says(text))
        assert "".join("".join(map(text_of, stanzas)).split()) == "".join(clean(text).split())
        assert longest(stanzas or [""]) <= 10_000


USES_CHAT_STATES = "<active xmlns='http://jabber.org/protocol/chatstates'/>"
REPLACE = "{urn:xmpp:message-correct:0}replace"
HINT = "{urn:xmpp:hints}"


def replaced(stanza: str) -> str | None:
    """The id of the message that a stanza corrects."""
    element = read(stanza).find(REPLACE)
    return None if element is None else element.get("id")


def hints(stanza: str) -> list[str]:
    return [child.tag.removeprefix(HINT) for child in read(stanza) if child.tag.startswith(HINT)]


def growing(**how: Any) -> Voice:
    return voice_for(person(inner=USES_CHAT_STATES), KEY, AGENT, 65_536, Manner(grows=True, **how))


def test_a_stream_grows_in_one_message_and_only_its_last_version_is_kept() -> None:
    growing_voice = growing()
    growing_voice.say(StreamStarted("s"))
    assert growing_voice.growth("s") == []
    versions = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        assert growing_voice.say(StreamChunk("s", seq, chunk)) == []
        [version] = growing_voice.growth("s")
        versions.append(version)
        assert growing_voice.growth("s") == []  # nothing more than before
    assert [text_of(version) for version in versions] == ["It", "It is", "It is sunny"]
    first = read(versions[0]).get("id")
    assert [replaced(version) for version in versions] == [None, first, first]
    assert all(hints(version) == ["no-store", "no-copy"] for version in versions)
    assert all(read(version).find(COMPOSING) is not None for version in versions)
    [last] = growing_voice.say(StreamEnded("s"))
    assert (text_of(last), replaced(last), hints(last)) == ("It is sunny", first, ["store"])
    assert read(last).find(ACTIVE) is not None
    ids = [read(stanza).get("id") for stanza in (*versions, last)]
    assert len(set(ids)) == 4
    assert read(last).get("to") == ALICE


def test_streams_that_grow_at_once_stay_separate_messages() -> None:
    growing_voice = growing()
    for name in "ab":
        growing_voice.say(StreamStarted(name))
    growing_voice.say(StreamChunk("a", 0, "one"))
    [of_a] = growing_voice.growth("a")
    growing_voice.say(StreamChunk("b", 0, "two"))
    growing_voice.say(StreamChunk("a", 1, " more"))
    [again], [of_b] = growing_voice.growth("a"), growing_voice.growth("b")
    assert replaced(again) == read(of_a).get("id") != read(of_b).get("id")
    assert replaced(of_b) is None
    [end_of_b] = growing_voice.say(StreamEnded("b"))
    [end_of_a] = growing_voice.say(StreamAborted("a", "why"))
    assert (text_of(end_of_b), replaced(end_of_b)) == ("two", read(of_b).get("id"))
    assert (text_of(end_of_a), replaced(end_of_a)) == ("one more… (interrupted: why)", read(of_a).get("id"))


def test_a_stream_of_which_nothing_was_shown_is_one_plain_message() -> None:
    growing_voice = growing()
    growing_voice.say(StreamStarted("s"))
    growing_voice.say(StreamChunk("s", 0, "quick"))
    [stanza] = growing_voice.say(StreamEnded("s"))
    assert (text_of(stanza), replaced(stanza), hints(stanza)) == ("quick", None, [])


def test_what_runs_again_corrects_what_the_first_run_showed() -> None:
    first_run, second_run = growing(), growing(is_rerun=True)
    for run in (first_run, second_run):
        run.say(StreamStarted("s"))
        run.say(StreamChunk("s", 0, "It"))
    [shown] = first_run.growth("s")
    [again] = second_run.growth("s")
    assert replaced(again) == read(shown).get("id") != read(again).get("id")
    [last] = second_run.say(StreamEnded("s"))
    assert replaced(last) == read(shown).get("id")


def test_for_a_device_that_knows_the_last_version_only_each_corrects_the_one_before() -> None:
    growing_voice = growing(chained_to=lambda: "profanity.1")
    growing_voice.say(StreamStarted("s"))
    stanzas = []
    for seq, chunk in enumerate(("It ", "is ", "sunny")):
        growing_voice.say(StreamChunk("s", seq, chunk))
        stanzas += growing_voice.growth("s")
    stanzas += growing_voice.say(StreamEnded("s"))
    assert [replaced(stanza) for stanza in stanzas] == [None, *(read(stanza).get("id") for stanza in stanzas[:-1])]


@pytest.mark.parametrize("now", [None, "profanity.2"])
def test_who_has_another_device_since_gets_the_whole_text_which_corrects_nothing(now: str | None) -> None:
    devices: list[str | None] = ["profanity.1"]
    growing_voice = growing(chained_to=lambda: devices[-1])
    growing_voice.say(StreamStarted("s"))
    growing_voice.say(StreamChunk("s", 0, "It "))
    assert len(growing_voice.growth("s")) == 1
    devices.append(now)
    growing_voice.say(StreamChunk("s", 1, "is"))
    assert growing_voice.growth("s") == []
    [last] = growing_voice.say(StreamEnded("s"))
    assert (text_of(last), replaced(last)) == ("It is", None)


def test_what_runs_again_corrects_nothing_where_the_last_version_is_not_known() -> None:
    second_run = growing(chained_to=lambda: "profanity.1", is_rerun=True)
    second_run.say(StreamStarted("s"))
    second_run.say(StreamChunk("s", 0, "It"))
    [first] = second_run.growth("s")
    [last] = second_run.say(StreamEnded("s"))
    assert (replaced(first), replaced(last)) == (None, read(first).get("id"))


def test_what_grows_never_exceeds_a_stanza_and_the_end_is_whole() -> None:
    growing_voice = voice_for(person(), KEY, AGENT, 10_000, Manner(grows=True))
    growing_voice.say(StreamStarted("s"))
    words = [f"word-{number} " for number in range(5_000)]
    stanzas = []
    for seq, word in enumerate(words):
        growing_voice.say(StreamChunk("s", seq, word))
        if seq % 500 == 0:
            stanzas += growing_voice.growth("s")
    end = growing_voice.say(StreamEnded("s"))
    assert longest([*stanzas, *end]) <= 10_000
    assert text_of(stanzas[-1]).endswith(" …")
    assert " ".join(text_of(part) for part in end).split() == "".join(words).split()
    assert [replaced(part) is not None for part in end] == [True, *[False] * (len(end) - 1)]


def test_typing_that_leads_to_no_answer_is_taken_back() -> None:
    typing_voice = voice(person(inner=USES_CHAT_STATES))
    assert typing_voice.paused() is None
    assert typing_voice.composing() is not None
    taken_back = typing_voice.paused()
    assert taken_back is not None
    assert read(taken_back).find("{http://jabber.org/protocol/chatstates}paused") is not None


def test_a_marker_names_the_message() -> None:
    incoming = request(message(body("hi") + "<markable xmlns='urn:xmpp:chat-markers:0'/>", id="<'&\">"))
    assert incoming.wants_marker
    element = read(displayed(incoming))
    marker = element.find("{urn:xmpp:chat-markers:0}displayed")
    assert marker is not None
    assert (element.get("to"), marker.get("id")) == (ALICE, "<'&\">")
    assert decode(element) is None


def test_a_receipt_names_the_message() -> None:
    incoming = request(message(body("hi"), id="<'&\">"))
    element = read(receipt(incoming))
    received = element.find("{urn:xmpp:receipts}received")
    assert received is not None
    assert (element.get("to"), received.get("id")) == (ALICE, "<'&\">")
    assert decode(element) is None


# To a program


def test_a_program_gets_events_at_the_full_jid() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    [stanza] = voice(program(thread="t")).say(says("hi"))
    element, event = read(stanza), event_of(stanza)
    assert (element.get("to"), element.find(BODY)) == (DEVICE, None)
    assert event["id"] == element.get("id")
    assert before < datetime.fromisoformat(event.pop("time")) <= datetime.now(UTC)
    assert event == {
        "specversion": "1.0",
        "type": "ai.coreason.block.markdown",
        "source": f"xmpp:{AGENT}",
        "id": element.get("id"),
        "datacontenttype": "application/json",
        "requestid": REQUEST_ID,
        "data": {"id": str(named(KEY, 1)), "block_type": "MARKDOWN", "content": "hi"},
    }


STREAM = {"stream_id": "s"}
EVENTS: list[tuple[TurnEvent, str, dict[str, Any]]] = [
    (Said(ThinkingBlock(content="hm")), "block.thought", {"content": "hm", "status": "IN_PROGRESS"}),
    (Said(DataBlock(data={"n": 1}, view_hint="LIST")), "block.data", {"data": {"n": 1}, "view_hint": "LIST"}),
    (
        Said(UserErrorBlock(user_message="no", code=503)),
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
        Failed("broken", 500, True, "1f2e", reported=True),
        "request.failed",
        {"message": "broken", "code": 500, "recoverable": True, "incident": "1f2e"},
    ),
    (Refused("no", 429, 60.0), "request.refused", {"message": "no", "code": 429, "retry_after_s": 60.0}),
]


@pytest.mark.parametrize(("event", "kind", "data"), EVENTS, ids=[kind for _, kind, _ in EVENTS])
def test_every_event_is_one_to_a_program(event: TurnEvent, kind: str, data: dict[str, Any]) -> None:
    [stanza] = voice(program()).say(event)
    written = event_of(stanza)
    assert written["type"] == f"ai.coreason.{kind}"
    assert data.items() <= written["data"].items()
    assert decode(read(stanza)) == Reply(AGENT, REQUEST_ID, kind, written["id"], written["data"])


@pytest.mark.parametrize("thoughts", [["looking at 10:00"], ["looking at 10:01"], ["hm", "hm", "well"]])
def test_thoughts_change_no_id_of_what_follows(thoughts: list[str]) -> None:
    plain, thinking = voice(program()), voice(program())
    for thought in thoughts:
        thinking.say(Said(ThinkingBlock(content=thought)))
    expected = [event_of(plain.say(event)[0])["id"] for event in (says("one"), says("two"))]
    [first] = thinking.say(says("one"))
    between = thinking.say(Said(ThinkingBlock(content="between")))
    [second] = thinking.say(says("two"))
    assert [event_of(stanza)["id"] for stanza in (first, second)] == expected
    assert event_of(between[0])["id"] not in expected


def test_a_program_sees_no_typing() -> None:
    assert not voice(program()).shows_typing
    assert voice(program()).composing() is None


def test_a_request_without_an_id_of_its_own_is_answered_under_ours() -> None:
    [stanza] = voice(request(message(envelope()))).say(says("hi"))
    assert event_of(stanza)["requestid"] == str(KEY)


def result_of(stanza: str) -> tuple[str | None, list[tuple[str, list[str]]], list[list[list[str]]]]:
    """Title, fields with their values, and rows of the data form beside an event."""
    result = read(stanza).find(DATA_FORM)
    assert result is not None
    assert result.get("type") == "result"

    def values(within: Element) -> list[str]:
        return [value.text or "" for value in within.findall(FORM_VALUE)]

    head = result.find(FORM_REPORTED)
    fields = [(field.get("var", ""), values(field)) for field in (result if head is None else head).findall(FORM_FIELD)]
    rows = [[values(field) for field in item.findall(FORM_FIELD)] for item in result.findall(FORM_ITEM)]
    return result.findtext(FORM_TITLE), fields, rows


def test_keys_and_values_are_a_form_to_a_program() -> None:
    data = {"city": "<&'>", "°C": 7.5, "wet": False, "tags": ["a", 1], "wind": None, "more": {"a": [1]}, "note": "x\ny"}
    [stanza] = voice(program()).say(Said(DataBlock(data=data, view_hint="KEY_VALUE", title="Berlin & more")))
    assert result_of(stanza) == (
        "Berlin & more",
        [
            ("city", ["<&'>"]),
            ("°C", ["7.5"]),
            ("wet", ["false"]),
            ("tags", ["a", "1"]),
            ("wind", []),
            ("more", ['{"a": [1]}']),
            ("note", ["x", "y"]),
        ],
        [],
    )
    types = {field.get("label"): field.get("type") for field in read(stanza).iter(FORM_FIELD)}
    assert (types["city"], types["tags"]) == ("text-single", "text-multi")
    assert event_of(stanza)["data"]["data"] == data
    assert isinstance(decode(read(stanza)), Reply)


def test_a_table_is_a_form_to_a_program() -> None:
    data = {"columns": ["city", "°C"], "rows": [{"city": "Berlin", "°C": 7}, {"city": "Rom", "secret": 1}]}
    [stanza] = voice(program()).say(Said(DataBlock(data=data, view_hint="TABLE")))
    assert result_of(stanza) == (None, [("city", []), ("°C", [])], [[["Berlin"], ["7"]], [["Rom"], []]])
    assert event_of(stanza)["data"]["data"] == data


@pytest.mark.parametrize(
    "block",
    [
        DataBlock(data={"a": 1}),
        DataBlock(data={"items": [1]}, view_hint="LIST"),
        DataBlock(data={}, view_hint="KEY_VALUE"),
        DataBlock(data={"": 1}, view_hint="KEY_VALUE"),
        DataBlock(data={"a": 1, "a\x00": 2}, view_hint="KEY_VALUE"),
        DataBlock(data={"a": 1}, view_hint="TABLE"),
        DataBlock(data={"columns": ["a", "a"], "rows": []}, view_hint="TABLE"),
        DataBlock(data={"performative": "request"}, view_hint="KEY_VALUE", title="spade:x:metadata"),
    ],
    ids=lambda block: f"{block.view_hint} {block.data}"[:40],
)
def test_what_is_no_form_goes_without(block: DataBlock) -> None:
    [stanza] = voice(program()).say(Said(block))
    assert read(stanza).find(DATA_FORM) is None
    assert event_of(stanza)["data"]["data"] == block.data


def test_a_form_that_has_no_room_is_left_out() -> None:
    def carried(length: int) -> list[bool]:
        block = DataBlock(data={"text": "x" * length}, view_hint="KEY_VALUE")
        return [read(stanza).find(DATA_FORM) is not None for stanza in voice(program(), 10_000).say(Said(block))]

    assert carried(3_000) == [True]
    assert carried(5_000) == [False]
    assert carried(20_000)[1:]
    assert not any(carried(20_000))


def test_people_get_no_form() -> None:
    [stanza] = voice(person()).say(Said(DataBlock(data={"a": 1}, view_hint="KEY_VALUE")))
    assert read(stanza).find(DATA_FORM) is None


def test_json_can_say_what_xml_cannot() -> None:
    [stanza] = voice(program()).say(StreamChunk("s", 0, "\x00\x1b\r\n\ud800"))
    assert event_of(stanza)["data"]["chunk"] == "\x00\x1b\r\n?"


async def heard(stanzas: list[str], jid: str = AGENT) -> list[PeerEvent]:
    """What whoever asked gets of `stanzas`, the last of which ends the request."""
    requests = OpenRequests()

    def arrive() -> None:
        for stanza in stanzas:
            reply = decode(read(stanza))
            assert isinstance(reply, Reply)
            requests.deliver(reply)

    return [event async for event in requests.events(jid, REQUEST_ID, 5.0, arrive)]


@pytest.mark.parametrize("mark", HEAVY, ids=ascii)
async def test_an_event_that_is_too_long_arrives_whole(mark: str) -> None:
    speaker = voice(program(), 10_000)
    text = "begin " + mark * (30_000 // len(mark)) + " end"
    said = all_of(speaker, says(text), StreamChunk("s", 0, text), Completed("c", "active"))
    block, chunk, last = await heard(said)
    arrived = text.replace("\ufffe", "")  # JSON writes the other forbidden ones as ASCII
    assert block == PeerEvent("block.markdown", {"id": str(named(KEY, 1)), "block_type": "MARKDOWN", "content": arrived})
    assert chunk == PeerEvent("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": arrived})
    assert last.type == "request.completed"
    assert len(said) >= 2 * len(arrived.encode()) // 10_000 + 1


def test_fragments_say_what_they_are_parts_of() -> None:
    stanzas = voice(program(thread="t"), 10_000).say(says("x" * 30_000))
    events = [event_of(stanza) for stanza in stanzas]
    count = len(stanzas)
    assert count > 3
    assert {event["type"] for event in events} == {"ai.coreason.fragment"}
    assert [(event["data"]["index"], event["data"]["count"]) for event in events] == [
        (number, count) for number in range(count)
    ]
    [event_id] = {event["data"]["event_id"] for event in events}
    assert [event["id"] for event in events] == [f"{event_id}.{number}" for number in range(count)]
    assert [read(stanza).get("id") for stanza in stanzas] == [event["id"] for event in events]
    assert {event["requestid"] for event in events} == {REQUEST_ID}
    whole = json.loads("".join(event["data"]["chunk"] for event in events))
    assert (whole["id"], whole["type"], whole["data"]["content"]) == (event_id, "ai.coreason.block.markdown", "x" * 30_000)


@pytest.mark.parametrize("seed", range(3))
async def test_fragments_of_any_text_arrive_in_any_order_and_more_than_once(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(3):
        text = "".join(chance.choices('ab &<>"\\é\N{ROCKET}\x00\r\n. ', k=chance.randrange(30_000)))
        speaker = voice(program(), 10_000)
        fragments = speaker.say(StreamChunk("s", 0, text))
        chance.shuffle(fragments)
        chunk, _ = await heard(fragments * 2 + speaker.say(Completed("c", "active")))
        assert chunk.data["chunk"] == text
        assert longest(fragments) <= 10_000


# To a SPADE agent


def test_a_spade_agent_is_answered_in_kind_at_the_full_jid() -> None:
    [stanza] = voice(spade({"performative": "request", "ontology": "weather", "_thread_node": "t"}, id="m1")).say(says("hi"))
    element = read(stanza)
    assert (element.get("to"), element.get("type"), element.findtext(BODY)) == (DEVICE, "chat", "hi")
    assert element.findtext(THREAD) == "t"
    assert fields_of(stanza) == {"performative": "inform", "ontology": "weather", "in-reply-to": "m1", "_thread_node": "t"}


@pytest.mark.parametrize(
    ("event", "performative"),
    [
        (says("hi"), "inform"),
        (Said(DataBlock(data={"n": 1})), "inform"),
        (Said(UserErrorBlock(user_message="no")), "failure"),
        (Failed("no", 500, True), "failure"),
        (Refused("no", 429), "refuse"),
    ],
)
def test_the_performative_says_how_it_went(event: TurnEvent, performative: str) -> None:
    speaker = voice(spade({"performative": "request"}))
    assert [fields_of(stanza)["performative"] for stanza in speaker.say(event)] == [performative]
    assert fields_of(speaker.say(says("hi"))[0])["performative"] == "inform"


def test_every_part_of_a_long_failure_is_a_failure() -> None:
    parts = voice(spade({"performative": "request"})).say(Failed("long " * 30_000, 500, True))
    assert [fields_of(part)["performative"] for part in parts] == ["failure"] * 3


def test_reply_with_becomes_in_reply_to() -> None:
    fields = fields_of(voice(spade({"reply-with": "r1"}, id="m1")).say(says("hi"))[0])
    assert (fields["in-reply-to"], "reply-with" in fields) == ("r1", False)


def test_what_a_request_answers_itself_is_not_what_we_answer() -> None:
    """Without an id its own in-reply-to came back."""
    assert "in-reply-to" not in fields_of(voice(spade({"in-reply-to": "old"}, id=None)).say(says("hi"))[0])
    assert fields_of(voice(spade({"in-reply-to": "old"}, id="m1")).say(says("hi"))[0])["in-reply-to"] == "m1"


def test_metadata_too_large_to_repeat_is_left_out() -> None:
    answer = voice(spade({"a": "x" * 20_000, "performative": "request"}, thread="t")).say(says("hi"))[0]
    assert fields_of(answer) == {"performative": "inform", "in-reply-to": "1", "_thread_node": "t"}


def test_metadata_survives_the_inbox() -> None:
    incoming = spade({"ontology": "weather", "reply-with": "r1"}, thread="t")
    assert voice(Incoming.from_json(incoming.to_json())).say(says("hi")) == voice(incoming).say(says("hi"))


def test_a_spade_agent_sees_no_typing() -> None:
    incoming = request(message(body("hi") + form({}) + CHAT_STATE))
    assert not voice(incoming).shows_typing
    assert voice(incoming).composing() is None


def test_the_templates_of_a_spade_agent_match(spades: Any) -> None:
    hostile = "<&'\"> ]]>"
    [answer] = voice(spade({"performative": "request", "ontology": hostile}, thread=hostile, id="m1")).say(says(hostile))
    received = spades.Message.from_node(spades.Stanza(xml=read(answer)))
    metadata = {"performative": "inform", "in-reply-to": "m1", "ontology": hostile}
    assert spades.Template(to=DEVICE, sender=AGENT, body=hostile, thread=hostile, metadata=metadata).match(received)
    assert not spades.Template(metadata={"performative": "failure"}).match(received)


# To whoever asks what cannot be read


@pytest.mark.parametrize(("named", "known_as"), [(REQUEST_ID, REQUEST_ID), (None, "m1")])
async def test_a_wrong_request_is_answered_under_the_id_it_gave(named: str | None, known_as: str) -> None:
    malformed = decode(message(envelope([], request_id=named), id="m1", thread="t"))
    assert isinstance(malformed, Malformed)
    [stanza] = malformed_answer(malformed, AGENT, LIMIT)
    event = event_of(stanza)
    assert (read(stanza).get("to"), read(stanza).findtext(THREAD)) == (DEVICE, "t")
    assert (event["type"], event["requestid"]) == ("ai.coreason.request.failed", known_as)
    assert event["data"] == {
        "message": "not a request: data.payload is no object",
        "code": 400,
        "recoverable": False,
        "incident": None,
    }
    assert isinstance(decode(read(stanza)), Reply)


def test_the_id_of_a_wrong_request_cannot_become_ours() -> None:
    malformed = decode(message(envelope([]), id="'/><presence type='unavailable'"))
    assert isinstance(malformed, Malformed)
    [stanza] = malformed_answer(malformed, AGENT, LIMIT)
    assert "presence" not in (read(stanza).get("id") or "")
    assert event_of(stanza)["requestid"] == malformed.stanza_id


# Requests of ours


def test_a_request_of_ours_says_where_it_goes() -> None:
    stanza = request_stanza(
        f"{AGENT}/<'&>", {"payload": {"query": "<&>"}}, source=f"xmpp:{ALICE}", thread="<t>", stanza_id="<'&\">"
    )
    element, event = read(stanza), event_of(stanza)
    assert (element.get("to"), element.get("id"), element.findtext(THREAD)) == (f"{AGENT}/<'&>", "<'&\">", "<t>")
    assert (event["specversion"], event["type"], event["source"]) == ("1.0", "ai.coreason.request", f"xmpp:{ALICE}")
    assert (event["id"], event["data"]) == ("<'&\">", {"payload": {"query": "<&>"}})
