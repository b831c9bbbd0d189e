"""Chat rooms: who is addressed by a message, and what a room reports about its occupants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal
from unicodedata import normalize
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import Completed, InboundRequest, TextEmitted
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.runtime.channels import PresentationOptions
from spade_coreason.xmpp.codec.addressing import extract_question
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.muc import (
    private_request,
    read_invitation,
    read_presence,
    read_room_message,
    room_request,
)
from spade_coreason.xmpp.muc.membership import RoomState, decide_after_leaving, decide_after_refusal
from spade_coreason.xmpp.muc.room import Room
from spade_coreason.xmpp.transport import encoder_for
from tests.support.foreign_stanzas import AGENT, KEY, message
from tests.support.profiling import count_calls

ROOM = "tea@muc.example.org"
USER = "xmlns='http://jabber.org/protocol/muc#user'"
DELAY = "<delay xmlns='urn:xmpp:delay' {} stamp='2026-01-01T00:00:00Z'/>"
QUOTE = "<reply xmlns='urn:xmpp:reply:0' id='{}'/><fallback xmlns='urn:xmpp:fallback:0' for='urn:xmpp:reply:0'>{}</fallback>"


def room_message(text: str, inner: str = "", nick: str = "Alice", **settings: Any) -> Any:
    return read_room_message(message(f"<body>{text}</body>{inner}", type="groupchat", sender=f"{ROOM}/{nick}", **settings))


def make_room(**settings: Any) -> Room:
    return Room(RoomConfig(ROOM, "Echo", **settings))


def presence(inner: str, nick: str = "Alice", kind: str = "") -> Any:
    return read_presence(fromstring(f"<presence xmlns='jabber:client' from='{ROOM}/{nick}' {kind}>{inner}</presence>"))


@pytest.mark.parametrize("text", ["Echo: tea?", "echo, tea?", "@Echo tea?", "@ECHO: tea?", "  Echo : tea?", "@Echo, tea?"])
def test_a_text_that_begins_with_the_name_addresses_the_agent(text: str) -> None:
    assert extract_question("Echo", text) == "tea?"


def test_a_command_in_a_room_begins_with_a_configured_character() -> None:
    slash, both = make_room(answers="command"), make_room(answers="command", command_prefixes=("/", "!"))
    assert [slash.extract_question(room_message(text)) for text in ("/help", "!help", "help")] == ["/help", None, None]
    assert [both.extract_question(room_message(text)) for text in ("/help", "!help", "help")] == ["/help", "!help", None]


@pytest.mark.parametrize("text", ["Echo tea?", "hi Echo: tea?", "Echoes: tea?", "Echo-2: tea?", "@Echo-2 tea?", "> Echo: tea?"])
def test_a_text_that_only_contains_the_name_does_not_address_the_agent(text: str) -> None:
    assert extract_question("Echo", text) is None


def test_of_two_similar_names_the_exact_one_is_addressed() -> None:
    assert extract_question("Echo", "echo: tea?", ["echo"]) is None
    assert extract_question("Echo", "Echo: tea?", ["echo"]) == "tea?"
    assert extract_question("Echo", "@Echo Bot tea?", ["Echo Bot"]) is None
    assert extract_question("Echo", "@Echo: tea?", ["@Echo"]) is None
    assert extract_question("Echo", "  Echo: tea?", [" Echo"]) is None
    assert extract_question("Echo", "Echo: tea?", [" Echo", " ", "Echo "]) == "tea?"
    assert extract_question(" Echo", "  Echo: tea?") == extract_question(" Echo", "@ Echo tea?") == "tea?"
    assert extract_question(" ", "  : tea?") == "tea?"


@pytest.mark.parametrize(
    "text", ["Écho: tea?", "É\u200ccho: tea?", "\u200f\u2067@Écho\u2069 tea?", "@écho\u200e, tea?", "Écho：tea?"]
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("nick", ["Écho", "E\u0301cho", "\u200eÉcho\u061c"])
def test_a_name_is_compared_without_marks_that_nobody_sees(nick: str, form: Literal["NFC", "NFD"], text: str) -> None:
    assert extract_question(nick, normalize(form, text)) == "tea?"


@pytest.mark.parametrize(
    "text", ["小明：茶は？", "小明，茶は？", "小明、茶は？", "＠小明　茶は？", "@小明： 茶は？", "小明،茶は？"]
)
def test_separators_of_other_scripts_end_a_name(text: str) -> None:
    assert extract_question("小明", text) == "茶は？"


def test_a_question_stays_as_it_was_written() -> None:
    question = "cafe\u0301 \u2067שלום\u2069 👩\u200d💻?"
    assert extract_question("Écho", f"Écho: {question}") == question


@pytest.mark.parametrize("text", ["E\u0301chos: tea?", "Écho\u0301: tea?", "Echo: tea?", "@Écho\u0301 tea?"])
def test_another_letter_makes_another_name(text: str) -> None:
    assert extract_question("Écho", text) is None


def test_a_name_that_only_looks_like_the_agents_is_another_occupants() -> None:
    look_alike = "Echo\u200e"
    assert extract_question("Echo", "Echo\u200e: tea?", [look_alike]) is None
    assert extract_question("Echo", "Echo: tea?", [look_alike]) == "tea?"
    assert extract_question("Écho", normalize("NFD", "@Écho Bot tea?"), ["Écho Bot"]) is None


REFERENCE = "<reference xmlns='urn:xmpp:reference:0' type='{type}' uri='{uri}' begin='{begin}' end='{end}'/>"


def mention(uri: str, begin: object = 0, end: object = 4, kind: str = "mention") -> str:
    return REFERENCE.format(type=kind, uri=uri, begin=begin, end=end)


def question_of(text: str, inner: str, nick: str = "Echo", others: Sequence[str] = ()) -> str | None:
    room = Room(RoomConfig(ROOM, nick), "echo@example.org")
    for other in others:
        room.handle_presence(presence("", other))
    return room.extract_question(room_message(text, inner))


OWN_URIS = [
    f"xmpp:{ROOM}/Echo",
    f"XMPP:{ROOM.upper()}/Echo?message",
    "xmpp:echo@example.org",
    "xmpp:Echo@Example.org/agent",
    "xmpp:Echo",
    "Echo",
]


@pytest.mark.parametrize("uri", OWN_URIS)
def test_a_mention_of_the_agent_addresses_it(uri: str) -> None:
    assert question_of("Echo tea?", mention(uri)) == "tea?"  # as converse.js sends "@Echo tea?"
    assert question_of("@Echo, tea?", mention(uri, 0, 5)) == "tea?"
    assert question_of("my friend: tea?", mention(uri, 0, 9)) == "tea?"
    assert question_of("What do you say, Echo?", mention(uri, 17, 21)) == "What do you say, Echo?"
    assert question_of("🎉🎉 Echo tea?", mention(uri, 3, 7)) == "🎉🎉 Echo tea?"


def test_a_mention_of_a_name_with_unusual_characters_addresses_the_agent() -> None:
    assert question_of("Tea Bot: now", mention(f"xmpp:{ROOM}/Tea%20Bot", 0, 7), "Tea Bot") == "now"
    assert question_of("Écho tea?", mention(f"xmpp:{ROOM}/E%CC%81cho"), "Écho") == "tea?"
    assert question_of("What? tea?", mention(f"xmpp:{ROOM}/What?", 0, 5), "What?") == "tea?"
    assert question_of("🤖🤖Bot tea?", mention(f"xmpp:{ROOM}/🤖🤖Bot", 0, 7), "🤖🤖Bot") == "tea?"  # counted as JavaScript does


@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("x", "y"), (-1, 4), (4, 0), (0, 0), (0, 9999), (2, 2), ("9" * 5000, "9" * 5001), ("²", "٤")]
)
def test_a_mention_with_a_bogus_range_addresses_the_agent_and_cuts_nothing_else(begin: object, end: object) -> None:
    assert question_of("Echo tea?", mention(OWN_URIS[0], begin, end)) == "tea?"
    assert question_of("tea for Echo?", mention(OWN_URIS[0], begin, end)) == "tea for Echo?"


def test_a_range_within_a_word_or_around_everything_cuts_nothing() -> None:
    assert question_of("teapot?", mention(OWN_URIS[0], 0, 3)) == "teapot?"
    assert question_of("tea time?", mention(OWN_URIS[0], 0, 9)) == "tea time?"


@pytest.mark.parametrize(
    "uri",
    [
        f"xmpp:{ROOM}/Bob",
        f"xmpp:{ROOM}/echo",
        f"xmpp:{ROOM}",
        "xmpp:other@muc.example.org/Echo",
        "xmpp:echo@example.net",
        "xmpp:bob@example.org/Echo",
        "xmpp:",
        "https://example.org/Echo",
        "%",
    ],
)
def test_a_mention_of_another_person_does_not_address_the_agent(uri: str) -> None:
    assert question_of("Echo tea?", mention(uri)) is None
    assert question_of("Echo: tea?", mention(uri)) is None  # the name is that of another person
    assert question_of("Echo: ask Bobby", mention(uri, 10, 15)) == "ask Bobby"


def test_a_mention_of_an_occupant_who_looks_like_the_agent_does_not_address_it() -> None:
    look_alike = "Echo\u200b"
    assert question_of("Echo tea?", mention(f"xmpp:{ROOM}/{look_alike}"), others=[look_alike]) is None
    assert question_of("Echo tea?", mention(f"xmpp:{ROOM}/{look_alike}")) == "tea?"


def test_a_reference_that_is_no_mention_does_not_address_the_agent() -> None:
    assert question_of("Echo tea?", mention(OWN_URIS[0], kind="data")) is None


def test_a_mention_in_a_quote_does_not_address_the_agent() -> None:
    quote = QUOTE.format("another", "<body start='0' end='11'/>")
    assert question_of("> Echo tea\nsure?", quote + mention(OWN_URIS[0], 2, 6)) is None
    assert question_of("> Echo tea\nEcho sure?", quote + mention(OWN_URIS[0], 11, 15)) == "sure?"


def test_a_mention_without_an_address_names_the_agent_by_its_text() -> None:
    nameless = "<reference xmlns='urn:xmpp:reference:0' type='mention' begin='0' end='5'/>"
    assert question_of("@Echo tea?", nameless) == "tea?"
    assert question_of("@Bob! Echo?", nameless) is None


def test_many_mentions_cost_little() -> None:
    many = mention(f"xmpp:{ROOM}/Bob", 6, 9) * 5000
    with count_calls() as calls:
        assert question_of("Echo: Bob", many) == "Bob"
    assert calls.total() < 100_000  # twenty for each


def test_a_name_is_no_regular_expression() -> None:
    assert extract_question("E.*(", "Echo: tea?") is None
    assert extract_question("E.*(", "e.*(: tea?") == "tea?"


@pytest.mark.parametrize("stamp", [f"from='{ROOM}'", "from='muc.example.org'", ""])
def test_a_message_of_the_room_history_is_no_request(stamp: str) -> None:
    room = make_room()
    room.mark_current()
    assert room.extract_question(room_message("Echo: tea?", DELAY.format(stamp))) is None


def test_a_message_delayed_by_a_resumption_is_a_request() -> None:
    room = make_room()
    delayed = room_message("Echo: tea?", DELAY.format("from='example.org'"))
    assert room.extract_question(delayed) is None  # who knows, before the history has ended
    room.mark_current()
    assert room.extract_question(delayed) == "tea?"


def test_a_reply_to_its_own_message_is_a_request_without_the_quote() -> None:
    room = make_room()
    room.extract_question(room_message("Alice: yes", nick="Echo", id="own"))
    part = "<body start='0' end='6'/>"
    assert room.extract_question(room_message("> yes\nreally?", QUOTE.format("own", part))) == "really?"
    assert room.extract_question(room_message("> yes\nreally?", QUOTE.format("another", part))) is None


@pytest.mark.parametrize("part", ["", "<body/>", "<body start='9' end='1'/>", "<body start='x' end='-1'/>"])
def test_a_malformed_quote_stays_in_the_text(part: str) -> None:
    assert room_message("> yes\nreally?", QUOTE.format("own", part)).text == "> yes\nreally?"


def test_another_agent_is_answered_only_if_it_addresses_the_agent_and_up_to_a_limit() -> None:
    mark = "<answer xmlns='urn:spade-coreason:answer:0'/>"
    room = make_room(answers="all", agent_turns=2)
    assert room.extract_question(room_message("hello", mark, "Bot")) is None
    assert [room.extract_question(room_message("Echo: go on", mark, "Bot")) for _ in range(3)] == ["go on", "go on", None]
    assert room.extract_question(room_message("hello")) == "hello"
    assert room.extract_question(room_message("Echo: go on", mark, "Bot")) == "go on"


def test_a_room_with_a_thousand_occupants_works() -> None:
    room = make_room()
    for number in range(1000):
        room.handle_presence(presence("", f"user{number}"))
    assert room.extract_question(room_message("Echo: tea?", nick="user7")) == "tea?"
    assert room.extract_question(room_message("user7: tea?", nick="user8")) is None


def test_the_names_of_a_thousand_occupants_cost_little() -> None:
    others = [f"user{number}" for number in range(1000)]
    with count_calls() as calls:
        assert extract_question("Echo", "Echo: tea?", others) == "tea?"
    assert calls.total() < 10 * len(others)  # compiling a regular expression takes a hundred


@pytest.mark.parametrize(
    "inner",
    [
        "<subject>Echo: x</subject>",
        "",
        "<body> </body>",
        "<body>Echo: x</body><reactions xmlns='urn:xmpp:reactions:0' id='1'><reaction>👍</reaction></reactions>",
        "<body>Echo: x</body><retract xmlns='urn:xmpp:message-retract:1' id='1'/>",
    ],
)
def test_a_stanza_without_a_new_text_is_no_room_message(inner: str) -> None:
    assert read_room_message(message(inner, type="groupchat", sender=f"{ROOM}/Alice")) is None


def test_a_message_of_the_room_itself_is_no_room_message() -> None:
    assert read_room_message(message("<body>Echo: x</body>", type="groupchat", sender=ROOM)) is None


def test_a_room_owns_its_conversation_and_the_inbox_key_depends_on_the_occupant() -> None:
    requests = [room_request(ROOM, room_message("Echo: tea?", nick=nick), "tea?", None) for nick in ("Alice", "Bob")]
    assert {request.owner for request in requests} == {ROOM}
    assert len({derive_inbox_key(AGENT, r.owner, r.stanza_id, r.content) for r in requests}) == 2
    again = InboundRequest.from_json(requests[0].to_json())
    assert again == replace(requests[0], content="")


def test_a_reply_to_a_room_names_the_asker_once() -> None:
    request = room_request(ROOM, room_message("Echo: tea?", thread="t"), "tea?", None)
    encoder = encoder_for(request, KEY, AGENT, 65_536, PresentationOptions(has_live_messages=True))
    stanzas = [fromstring(_with_namespace(s)) for text in ("Yes.", "Green.") for s in encoder.encode(TextEmitted(text, 1))]
    assert [stanza.findtext("{jabber:client}body") for stanza in stanzas] == ["Alice: Yes.", "Green."]
    assert {(s.get("to"), s.get("type"), s.findtext("{jabber:client}thread")) for s in stanzas} == {(ROOM, "groupchat", "t")}
    assert (encoder.shows_typing, encoder.has_live_messages) == (False, False)
    assert encoder.encode(Completed("c", "active")) == []


def _with_namespace(stanza: str) -> str:
    return stanza.replace("<message", "<message xmlns='jabber:client'", 1)


def test_a_private_message_is_answered_at_the_address_of_its_occupant() -> None:
    incoming = decode(message(f"<body>tea?</body><x {USER}/>", sender=f"{ROOM}/Alice"), in_room=True)
    assert isinstance(incoming, InboundRequest)
    request = private_request(incoming, f"{ROOM}/visit-1", f"{ROOM}/visit-1", None)
    [stanza] = encoder_for(request, KEY, AGENT, 65_536).encode(TextEmitted("Yes.", 1))
    assert fromstring(stanza).get("to") == f"{ROOM}/visit-1"
    assert (request.owner, request.metadata["nickname"]) == (f"{ROOM}/visit-1", "Alice")


def test_a_private_message_of_a_room_that_the_agent_is_not_in_is_no_request() -> None:
    assert decode(message(f"<body>tea?</body><x {USER}/>", sender=f"{ROOM}/Alice")) is None


def test_invitations_are_read() -> None:
    direct = read_invitation(message(f"<x xmlns='jabber:x:conference' jid='{ROOM}' password='p'/>"))
    assert direct is not None
    assert (direct.room, direct.password) == (ROOM, "p")
    mediated = read_invitation(message(f"<x {USER}><invite from='a@b'/><password>q</password></x>", sender=ROOM))
    assert mediated is not None
    assert (mediated.room, mediated.password) == (ROOM, "q")
    assert read_invitation(message("<body>hi</body>")) is None
    assert read_invitation(message("<x xmlns='jabber:x:conference'/>")) is None


def test_occupant_ids_count_only_in_rooms_that_support_them() -> None:
    room = make_room()
    occupant_id_xml = "<occupant-id xmlns='urn:xmpp:occupant-id:0' id='{}'/>"
    room.handle_presence(presence(occupant_id_xml.format("alices"), "Alice"))
    room.handle_presence(presence(occupant_id_xml.format("alices"), "Mallory"))
    assert room.register_private_sender("Alice") != room.register_private_sender("Mallory")  # the room says nothing of such ids
    room.has_occupant_ids = True
    assert room.register_private_sender("Alice") == room.register_private_sender("Mallory")


def test_real_jids_count_only_in_trusted_rooms() -> None:
    room = make_room()
    room.handle_presence(presence(f"<x {USER}><item jid='alice@example.org/phone'/></x>"))
    assert room.jid_of("Alice") is None
    sender = room.register_private_sender("Alice")
    assert sender is not None
    assert sender.is_ephemeral
    room.is_trusted = True
    sender = room.register_private_sender("Alice")
    assert sender is not None
    assert sender.owner == "alice@example.org"


def test_a_change_of_nickname_keeps_the_private_sender() -> None:
    room = make_room()
    room.handle_presence(presence(""))
    sender = room.register_private_sender("Alice")
    assert sender is not None
    renamed = f"<x {USER}><item nick='Alicia'/><status code='303'/></x>"
    assert room.handle_presence(presence(renamed, kind="type='unavailable'")) is None
    assert room.find_nick(sender.address) == "Alicia"
    assert room.handle_presence(presence("", "Alicia", "type='unavailable'")) == sender
    assert room.find_nick(sender.address) is None


@pytest.mark.parametrize(
    ("inner", "state", "is_retried"),
    [
        ("<status code='307'/>", RoomState.KICKED, True),
        ("<status code='301'/><status code='307'/>", RoomState.BANNED, False),
        ("<destroy/>", RoomState.DESTROYED, False),
        ("<status code='321'/>", RoomState.MEMBERS_ONLY, False),
        ("<status code='322'/>", RoomState.MEMBERS_ONLY, False),
        ("<status code='307'/><status code='333'/>", RoomState.AWAY, True),
        ("<status code='332'/>", RoomState.AWAY, True),
        ("<status code='x'/><item/>", RoomState.AWAY, True),
    ],
)
def test_the_reason_of_leaving_decides_the_state_and_the_retry(inner: str, state: RoomState, is_retried: bool) -> None:
    parsed = presence(f"<x {USER}>{inner}</x>", kind="type='unavailable'")
    decision = decide_after_leaving(parsed, was_kicked=False, kick_pause_s=60, attempt=0)
    assert (decision.state, decision.retry_after_s is not None) == (state, is_retried)
    if state is RoomState.KICKED:
        assert decide_after_leaving(parsed, was_kicked=True, kick_pause_s=60, attempt=0).retry_after_s is None


@pytest.mark.parametrize(
    ("condition", "state"),
    [("forbidden", RoomState.BANNED), ("gone", RoomState.DESTROYED), ("item-not-found", RoomState.AWAY), ("x", RoomState.AWAY)],
)
def test_the_condition_of_a_refusal_decides_the_state(condition: str, state: RoomState) -> None:
    namespace = "urn:ietf:params:xml:ns:xmpp-stanzas"
    parsed = presence(f"<error type='cancel'><{condition} xmlns='{namespace}'/></error>", kind="type='error'")
    assert (parsed.kind, decide_after_refusal(parsed.condition, 0).state) == ("error", state)


# Files in a room


LINK = "https://example.org/cat.png"
FILE = f"<x xmlns='jabber:x:oob'><url>{LINK}</url></x>"
MARKED = "<fallback xmlns='urn:xmpp:fallback:0' for='jabber:x:oob'>{}</fallback>"


def room_file(inner: str = "", nick: str = "Alice") -> Any:
    """A link without a body."""
    return read_room_message(message(FILE + inner, type="groupchat", sender=f"{ROOM}/{nick}"))


def test_a_file_without_a_text_is_for_the_agent_where_a_text_that_does_not_name_it_is() -> None:
    reply = QUOTE.format("own", "")
    by_agent = "<answer xmlns='urn:spade-coreason:answer:0'/>"
    for answers, expected in (("mention", None), ("command", None), ("all", LINK)):
        room = make_room(answers=answers)
        room.extract_question(room_message("Alice: yes", nick="Echo", id="own"))
        assert room.extract_question(room_file()) == expected
        assert room.extract_question(room_file(reply)) == LINK
        assert room.extract_question(room_file(reply + by_agent)) is None
        assert room.extract_question(room_file(nick="Echo")) is None
    assert room_file(nick="") is None


@pytest.mark.parametrize(
    ("text", "marked", "question"),
    [
        ("Echo: look", "", "look"),
        (f"Echo: {LINK}", "", LINK),
        (f"Echo: {LINK}", "<body start='6' end='99'/>", LINK),
        (f"Echo: look {LINK}", "<body start='11' end='99'/>", "look"),
    ],
)
def test_a_file_that_names_the_agent_is_an_attachment(text: str, marked: str, question: str) -> None:
    received = room_message(text, FILE + (MARKED.format(marked) if marked else ""))
    assert make_room().extract_question(received) == question
    request = room_request(ROOM, received, question, None)
    assert request.payload["query"] == question
    assert [one["url"] for one in request.payload["attachments"]] == [LINK]
    assert InboundRequest.from_json(request.to_json()) == replace(request, content="")
    assert request.content != room_request(ROOM, room_message(text), question, None).content


def test_a_file_in_a_private_message_is_an_attachment() -> None:
    for body in ("", "<body>look</body>"):
        incoming = decode(message(f"{body}{FILE}<x {USER}/>", sender=f"{ROOM}/Alice"), in_room=True)
        assert isinstance(incoming, InboundRequest)
        request = private_request(incoming, f"{ROOM}/visit-1", f"{ROOM}/visit-1", None)
        assert [one["url"] for one in request.payload["attachments"]] == [LINK]
