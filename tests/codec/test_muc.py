"""What is said in a chat room, and to whom; and what a room says of who is in it."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.codec.decode import decode
from spade_coreason.codec.encoders.base import PresentationOptions
from spade_coreason.codec.encoders.factory import encoder_for
from spade_coreason.codec.muc import (
    extract_question,
    private_request,
    read_invitation,
    read_presence,
    read_room_message,
    room_request,
)
from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import Completed, InboundRequest, TextEmitted
from spade_coreason.domain.value import replace
from spade_coreason.xmpp.muc.membership import RoomState, decide_after_leaving, decide_after_refusal
from spade_coreason.xmpp.muc.room import Room, RoomConfig
from tests.support.foreign_stanzas import AGENT, KEY, message

ROOM = "tea@muc.example.org"
USER = "xmlns='http://jabber.org/protocol/muc#user'"
OLD = "<delay xmlns='urn:xmpp:delay' {} stamp='2026-01-01T00:00:00Z'/>"
QUOTE = "<reply xmlns='urn:xmpp:reply:0' id='{}'/><fallback xmlns='urn:xmpp:fallback:0' for='urn:xmpp:reply:0'>{}</fallback>"


def said(text: str, inner: str = "", nick: str = "Alice", **settings: Any) -> Any:
    return read_room_message(message(f"<body>{text}</body>{inner}", type="groupchat", sender=f"{ROOM}/{nick}", **settings))


def room(**settings: Any) -> Room:
    return Room(RoomConfig(ROOM, "Echo", **settings))


def presence(inner: str, nick: str = "Alice", kind: str = "") -> Any:
    return read_presence(fromstring(f"<presence xmlns='jabber:client' from='{ROOM}/{nick}' {kind}>{inner}</presence>"))


@pytest.mark.parametrize("text", ["Echo: tea?", "echo, tea?", "@Echo tea?", "@ECHO: tea?", "  Echo : tea?", "@Echo, tea?"])
def test_who_begins_with_the_name_addresses_it(text: str) -> None:
    assert extract_question("Echo", text) == "tea?"


@pytest.mark.parametrize("text", ["Echo tea?", "hi Echo: tea?", "Echoes: tea?", "Echo-2: tea?", "@Echo-2 tea?", "> Echo: tea?"])
def test_who_only_names_it_does_not_address_it(text: str) -> None:
    assert extract_question("Echo", text) is None


def test_of_two_with_almost_the_same_name_the_one_is_meant_whose_name_stands_there() -> None:
    assert extract_question("Echo", "echo: tea?", ["echo"]) is None
    assert extract_question("Echo", "Echo: tea?", ["echo"]) == "tea?"
    assert extract_question("Echo", "@Echo Bot tea?", ["Echo Bot"]) is None


def test_a_name_is_no_pattern() -> None:
    assert extract_question("E.*(", "Echo: tea?") is None
    assert extract_question("E.*(", "e.*(: tea?") == "tea?"


@pytest.mark.parametrize("stamp", [f"from='{ROOM}'", "from='muc.example.org'", ""])
def test_what_was_said_before_is_no_request(stamp: str) -> None:
    tea = room()
    tea.mark_current()
    assert tea.extract_question(said("Echo: tea?", OLD.format(stamp))) is None


def test_a_message_that_waited_for_a_resumption_is_one() -> None:
    tea = room()
    late = said("Echo: tea?", OLD.format("from='example.org'"))
    assert tea.extract_question(late) is None  # who knows, before the history has ended
    tea.mark_current()
    assert tea.extract_question(late) == "tea?"


def test_a_reply_to_its_own_message_is_a_request_without_the_quote() -> None:
    tea = room()
    tea.extract_question(said("Alice: yes", nick="Echo", id="own"))
    part = "<body start='0' end='6'/>"
    assert tea.extract_question(said("> yes\nreally?", QUOTE.format("own", part))) == "really?"
    assert tea.extract_question(said("> yes\nreally?", QUOTE.format("another", part))) is None


@pytest.mark.parametrize("part", ["", "<body/>", "<body start='9' end='1'/>", "<body start='x' end='-1'/>"])
def test_a_malformed_quote_stays_where_it_is(part: str) -> None:
    assert said("> yes\nreally?", QUOTE.format("own", part)).text == "> yes\nreally?"


def test_an_agent_is_heard_where_it_addresses_and_only_so_often() -> None:
    mark = "<answer xmlns='urn:spade-coreason:answer:0'/>"
    tea = room(answers="all", agent_turns=2)
    assert tea.extract_question(said("hello", mark, "Bot")) is None
    assert [tea.extract_question(said("Echo: go on", mark, "Bot")) for _ in range(3)] == ["go on", "go on", None]
    assert tea.extract_question(said("hello")) == "hello"
    assert tea.extract_question(said("Echo: go on", mark, "Bot")) == "go on"


def test_a_thousand_in_a_room_are_no_trouble() -> None:
    tea = room()
    for number in range(1000):
        tea.handle_presence(presence("", f"user{number}"))
    assert tea.extract_question(said("Echo: tea?", nick="user7")) == "tea?"
    assert tea.extract_question(said("user7: tea?", nick="user8")) is None


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
def test_what_says_nothing_is_no_utterance(inner: str) -> None:
    assert read_room_message(message(inner, type="groupchat", sender=f"{ROOM}/Alice")) is None


def test_the_room_itself_says_nothing() -> None:
    assert read_room_message(message("<body>Echo: x</body>", type="groupchat", sender=ROOM)) is None


def test_the_conversation_of_a_room_is_the_rooms_and_its_key_the_occupants() -> None:
    requests = [room_request(ROOM, said("Echo: tea?", nick=nick), "tea?", None) for nick in ("Alice", "Bob")]
    assert {request.owner for request in requests} == {ROOM}
    assert len({derive_inbox_key(AGENT, r.owner, r.stanza_id, r.content) for r in requests}) == 2
    again = InboundRequest.from_json(requests[0].to_json())
    assert again == replace(requests[0], content="")


def test_an_answer_to_a_room_names_once_who_asked() -> None:
    request = room_request(ROOM, said("Echo: tea?", thread="t"), "tea?", None)
    voice = encoder_for(request, KEY, AGENT, 65_536, PresentationOptions(has_live_messages=True))
    stanzas = [fromstring(_in_stream(s)) for text in ("Yes.", "Green.") for s in voice.encode(TextEmitted(text, 1))]
    assert [stanza.findtext("{jabber:client}body") for stanza in stanzas] == ["Alice: Yes.", "Green."]
    assert {(s.get("to"), s.get("type"), s.findtext("{jabber:client}thread")) for s in stanzas} == {(ROOM, "groupchat", "t")}
    assert (voice.shows_typing, voice.has_live_messages) == (False, False)
    assert voice.encode(Completed("c", "active")) == []


def _in_stream(stanza: str) -> str:
    return stanza.replace("<message", "<message xmlns='jabber:client'", 1)


def test_a_private_message_is_answered_where_its_occupant_is() -> None:
    incoming = decode(message(f"<body>tea?</body><x {USER}/>", sender=f"{ROOM}/Alice"), in_room=True)
    assert isinstance(incoming, InboundRequest)
    request = private_request(incoming, f"{ROOM}/visit-1", f"{ROOM}/visit-1", None)
    [stanza] = encoder_for(request, KEY, AGENT, 65_536).encode(TextEmitted("Yes.", 1))
    assert fromstring(stanza).get("to") == f"{ROOM}/visit-1"
    assert (request.owner, request.metadata["nickname"]) == (f"{ROOM}/visit-1", "Alice")


def test_a_private_message_of_a_room_that_it_is_not_in_is_no_request() -> None:
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


def test_who_makes_up_an_occupant_id_is_not_believed() -> None:
    tea = room()
    wears = "<occupant-id xmlns='urn:xmpp:occupant-id:0' id='{}'/>"
    tea.handle_presence(presence(wears.format("alices"), "Alice"))
    tea.handle_presence(presence(wears.format("alices"), "Mallory"))
    assert tea.register_private_sender("Alice") != tea.register_private_sender("Mallory")  # the room says nothing of such ids
    tea.has_occupant_ids = True
    assert tea.register_private_sender("Alice") == tea.register_private_sender("Mallory")


def test_only_a_room_that_somebody_named_is_believed_who_is_in_it() -> None:
    tea = room()
    tea.handle_presence(presence(f"<x {USER}><item jid='alice@example.org/phone'/></x>"))
    assert tea.jid_of("Alice") is None
    seat = tea.register_private_sender("Alice")
    assert seat is not None
    assert seat.is_ephemeral
    tea.is_trusted = True
    seat = tea.register_private_sender("Alice")
    assert seat is not None
    assert seat.owner == "alice@example.org"


def test_another_name_is_no_other_visit() -> None:
    tea = room()
    tea.handle_presence(presence(""))
    seat = tea.register_private_sender("Alice")
    assert seat is not None
    renamed = f"<x {USER}><item nick='Alicia'/><status code='303'/></x>"
    assert tea.handle_presence(presence(renamed, kind="type='unavailable'")) is None
    assert tea.find_nick(seat.address) == "Alicia"
    assert tea.handle_presence(presence("", "Alicia", "type='unavailable'")) == seat
    assert tea.find_nick(seat.address) is None


@pytest.mark.parametrize(
    ("inner", "state", "comes_again"),
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
def test_what_follows_from_leaving(inner: str, state: RoomState, comes_again: bool) -> None:
    seen = presence(f"<x {USER}>{inner}</x>", kind="type='unavailable'")
    then = decide_after_leaving(seen, was_kicked=False, kick_pause_s=60, attempt=0)
    assert (then.state, then.retry_after_s is not None) == (state, comes_again)
    if state is RoomState.KICKED:
        assert decide_after_leaving(seen, was_kicked=True, kick_pause_s=60, attempt=0).retry_after_s is None


@pytest.mark.parametrize(
    ("condition", "state"),
    [("forbidden", RoomState.BANNED), ("gone", RoomState.DESTROYED), ("item-not-found", RoomState.AWAY), ("x", RoomState.AWAY)],
)
def test_what_follows_from_a_refusal(condition: str, state: RoomState) -> None:
    namespace = "urn:ietf:params:xml:ns:xmpp-stanzas"
    seen = presence(f"<error type='cancel'><{condition} xmlns='{namespace}'/></error>", kind="type='error'")
    assert (seen.kind, decide_after_refusal(seen.condition, 0).state) == ("error", state)
