"""Decoding a stanza: a request on one of three channels, a reply to a request of ours, a bounce, or nothing for us."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from spade_coreason.contracts import AgentRequest, ClientCapabilities
from spade_coreason.domain.channel_kinds import DOOR, DUE_IN_ROOM, ROOM
from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import (
    RESERVED_METADATA,
    ROOM_HEADERS,
    Bounce,
    EarlierRuns,
    EncryptedMessage,
    InboundRequest,
    MalformedRequest,
    MessageHeaders,
    ReplyEvent,
    RequestContext,
    RoomOrigin,
)
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.transport import encoder_for
from tests.support.foreign_stanzas import (
    AGENT,
    ALICE,
    DEVICE,
    KEY,
    MARKER,
    PARENT_ID,
    REQUEST_ID,
    ROOT_ID,
    body,
    container,
    decode_request,
    envelope,
    form,
    message,
    parse_stanza,
    person_request,
    program_request,
    spade_request,
)
from tests.support.requests import build_incoming
from tests.support.transports import request_stanza

RECEIPT_REQUEST = "<request xmlns='urn:xmpp:receipts'/>"
STANZA_ERRORS = "urn:ietf:params:xml:ns:xmpp-stanzas"

# From a person


@pytest.mark.parametrize(
    "text", ["hi", " hi\n", "שלום", "👩‍👩‍👧‍👦", "<b>&amp;</b> ]]>", "/me waves", "\u200b", '{"type": "ai.coreason.request"}']
)
def test_the_body_of_a_person_is_the_query(text: str) -> None:
    incoming = person_request(text)
    assert incoming.payload == {"query": text}
    assert (incoming.channel, incoming.sender, incoming.stanza_id, incoming.thread) == ("person", DEVICE, "1", None)
    assert (incoming.request_id, incoming.context.root_request_id, dict(incoming.metadata)) == (None, None, {})


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\x85\u00a0\u2003\u2028"])
def test_an_empty_body_is_no_request(text: str) -> None:
    assert decode(message(body(text))) is None


def test_a_body_with_markup_in_it_is_its_text() -> None:
    assert decode_request(message("<body>a<b xmlns='urn:x'>b</b>c</body>")).payload == {"query": "abc"}


def test_of_several_bodies_the_first_counts() -> None:
    inner = "<body xml:lang='de'>hallo</body><body xml:lang='en'>hello</body>"
    assert decode_request(message(inner)).payload == {"query": "hallo"}


def test_the_owner_is_the_bare_jid_and_the_sender_the_full_one() -> None:
    incoming = decode_request(message(body("hi"), sender=f"{ALICE}/a/b"))
    assert (incoming.sender, incoming.owner) == (f"{ALICE}/a/b", ALICE)


@pytest.mark.parametrize("thread", ["t", "a b", "<&>", "x" * 1024])
def test_a_thread_is_kept(thread: str) -> None:
    assert person_request(thread=thread).thread == thread


def test_the_parent_of_a_thread_is_read() -> None:
    asked = decode_request(message(body("hi") + "<thread parent='trunk'>branch</thread>"))
    assert (asked.thread, asked.metadata["parent_thread"]) == ("branch", "trunk")
    too_long = decode_request(message(body("hi") + f"<thread parent='{'x' * 1025}'>branch</thread>"))
    assert (too_long.thread, dict(too_long.metadata)) == ("branch", {})
    trunk_alone = decode_request(message(body("hi") + "<thread parent='trunk'/>"))
    assert (trunk_alone.thread, dict(trunk_alone.metadata)) == (None, {})


def test_an_empty_thread_is_none() -> None:
    assert person_request(thread="").thread is None


@pytest.mark.parametrize(("type", "expected"), [("chat", "chat"), ("normal", "normal"), (None, "normal")])
def test_a_person_is_answered_by_the_same_type_of_message(type: str | None, expected: str) -> None:
    assert person_request(type=type).headers.message_type == expected


@pytest.mark.parametrize("type", ["", "Chat", "set", "no-such-type", "'" * 20_000])
def test_an_unknown_message_type_counts_as_normal(type: str) -> None:
    """RFC 6121 (5.2.2) demands it. The type was echoed, at any length, and so broke the stream."""
    for inner in (body("hi"), body("hi") + form({}), envelope()):
        assert decode_request(message(inner, type=type)).headers.message_type == "normal"


def test_a_link_is_an_attachment() -> None:
    inner = "<x xmlns='jabber:x:oob'><url>https://example.org/a.png</url><desc>a picture</desc></x>"
    assert person_request("look", inner=inner).payload == {
        "query": "look",
        "attachments": [
            {"url": "https://example.org/a.png", "name": "a.png", "type": None, "size": None, "description": "a picture"}
        ],
    }


def test_the_replied_message_and_the_delay_are_read() -> None:
    inner = "<reply xmlns='urn:xmpp:reply:0' id='m1'/><delay xmlns='urn:xmpp:delay' stamp='2026-01-09T12:00:00Z'/>"
    assert person_request(inner=inner).metadata == {"reply_to": "m1", "delayed_since": "2026-01-09T12:00:00Z"}
    assert not person_request(inner="<reply xmlns='urn:xmpp:reply:0'/><delay xmlns='urn:xmpp:delay'/>").metadata


def test_a_receipt_is_owed_only_where_one_is_asked_for() -> None:
    assert person_request(inner=RECEIPT_REQUEST).headers.wants_receipt
    assert not person_request().headers.wants_receipt


@pytest.mark.parametrize("state", ["active", "composing", "paused", "gone"])
def test_a_client_that_sends_chat_states_gets_them(state: str) -> None:
    assert person_request(inner=f"<{state} xmlns='http://jabber.org/protocol/chatstates'/>").headers.uses_chat_states
    assert not person_request().headers.uses_chat_states


OMEMO = "<encrypted xmlns='eu.siacs.conversations.axolotl'><header sid='1'/></encrypted>"
ENCRYPTION = "<encryption xmlns='urn:xmpp:eme:0'{attributes}/>"


@pytest.mark.parametrize(
    ("inner", "method"),
    [
        (OMEMO, "OMEMO"),
        (f"{body('I sent you an OMEMO encrypted message')}{OMEMO}", "OMEMO"),
        ("<encrypted xmlns='urn:xmpp:omemo:2'/>", "OMEMO"),
        ("<openpgp xmlns='urn:xmpp:openpgp:0'>aGk=</openpgp>", "OpenPGP"),
        (f"{body('This message is encrypted.')}<x xmlns='jabber:x:encrypted'>aGk=</x>", "OpenPGP"),
        (body("hint") + ENCRYPTION.format(attributes=" namespace='eu.siacs.conversations.axolotl'"), "OMEMO"),
        (body("?OTR:AAMC") + ENCRYPTION.format(attributes=" namespace='urn:xmpp:otr:0' name='OTR'"), "OTR"),
        (body("hint") + ENCRYPTION.format(attributes=" namespace='urn:new' name='Any text of a stranger'"), ""),
        (body("hint") + ENCRYPTION.format(attributes=""), ""),
    ],
)
def test_an_encrypted_message_is_no_request_and_names_its_encryption(inner: str, method: str) -> None:
    assert decode(message(inner)) == EncryptedMessage(DEVICE, method)


# Nothing for us

FORWARDED = (
    f"<forwarded xmlns='urn:xmpp:forward:0'><message xmlns='jabber:client' from='{DEVICE}'>{body('hi')}</message></forwarded>"
)


@pytest.mark.parametrize(
    "inner",
    [
        "",
        "<subject>only a subject</subject>",
        "<body xmlns='urn:another'>not ours</body>",
        "<composing xmlns='http://jabber.org/protocol/chatstates'/>",
        "<received xmlns='urn:xmpp:receipts' id='1'/>",
        RECEIPT_REQUEST,
        "<x xmlns='jabber:x:data' type='form'><title>another form</title></x>",
        "<x xmlns='jabber:x:data' type='form'/>",
        f"<sent xmlns='urn:xmpp:carbons:2'>{FORWARDED}</sent>",
        f"<result xmlns='urn:xmpp:mam:2'>{FORWARDED}</result>",
        "<event xmlns='http://jabber.org/protocol/pubsub#event'><items node='x'/></event>",
    ],
)
@pytest.mark.parametrize("type", ["chat", "normal", None])
def test_messages_without_a_question_are_no_requests(inner: str, type: str | None) -> None:
    assert decode(message(inner, type=type, thread="t")) is None


REQUESTS = [body("hi"), envelope(), body("hi") + form({"performative": "request"}), container("no JSON")]


@pytest.mark.parametrize("inner", REQUESTS)
@pytest.mark.parametrize("type", ["headline", "groupchat", "error"])
def test_headlines_room_messages_and_errors_are_no_requests(type: str, inner: str) -> None:
    assert decode(message(inner, type=type)) is None


@pytest.mark.parametrize("inner", REQUESTS)
@pytest.mark.parametrize("sender", [None, ""])
def test_a_message_without_a_sender_is_dropped(sender: str | None, inner: str) -> None:
    assert decode(message(inner, sender=sender)) is None


@pytest.mark.parametrize("inner", [*REQUESTS, body("hi") + container({"type": "org.example"})])
def test_a_reply_of_an_agent_is_never_a_request(inner: str) -> None:
    assert isinstance(decode(message(inner)), InboundRequest | MalformedRequest)
    for marked in (inner + MARKER, MARKER + inner):
        assert decode(message(marked)) is None


@pytest.mark.parametrize("inner", REQUESTS)
def test_a_request_with_an_overlong_id_or_thread_is_malformed(inner: str) -> None:
    assert decode(message(inner, id="x" * 1024, thread="x" * 1024)) is not None
    for overlong in ({"id": "x" * 1025}, {"thread": "x" * 1025}):
        malformed = decode(message(inner, **overlong))
        assert isinstance(malformed, MalformedRequest)
        assert malformed.problem == "an id or a thread has more than 1,024 characters"
        assert (malformed.stanza_id, malformed.thread) == ("", None)


def test_what_asks_nothing_is_dropped_with_an_overlong_id_too() -> None:
    for inner in ("", body("  "), body("hi") + MARKER):
        assert decode(message(inner, id="x" * 1025)) is None


def test_a_message_with_an_overlong_thread_in_its_form_is_malformed() -> None:
    assert spade_request({"_thread_node": "x" * 1024}).thread == "x" * 1024
    malformed = decode(message(body("hi") + form({"_thread_node": "x" * 1025})))
    assert isinstance(malformed, MalformedRequest)
    assert malformed.is_text


# From a program


def test_the_envelope_of_a_program_is_its_request() -> None:
    incoming = program_request(thread="t")
    assert (incoming.channel, incoming.sender, incoming.stanza_id, incoming.thread) == ("program", DEVICE, "1", "t")
    assert incoming.payload == {"query": "hi"}
    assert incoming.request_id == UUID(REQUEST_ID)


def test_lineage_is_kept() -> None:
    inner = envelope(request_id=REQUEST_ID, root_request_id=ROOT_ID, parent_request_id=PARENT_ID)
    incoming = decode_request(message(inner))
    assert incoming.request_id == UUID(REQUEST_ID)
    assert incoming.context.root_request_id == UUID(ROOT_ID)
    assert incoming.context.parent_request_id == UUID(PARENT_ID)


@pytest.mark.parametrize("payload", [{}, {"query": None}, {"a": [1, {"b": 1.5}]}, {"big": 10**40}, {"": ""}, {"query": "\x00"}])
def test_a_payload_is_any_object(payload: dict[str, Any]) -> None:
    assert decode_request(message(envelope(payload))).payload == payload


def test_other_fields_of_an_envelope_are_ignored() -> None:
    data: dict[str, Any] = {
        "session_id": ROOT_ID,
        "created_at": "2020-01-01T00:00:00Z",
        "user": {"id": "root"},
        "sender": "boss@example.org",
    }
    incoming = decode_request(message(envelope(request_id=REQUEST_ID, **data)))
    assert incoming == replace(program_request(), content=incoming.content)


def test_capabilities_are_read() -> None:
    incoming = decode_request(message(envelope(capabilities={"supported_events": ["MARKDOWN"], "prefers_markdown": False})))
    assert isinstance(incoming.context.capabilities, ClientCapabilities)
    assert incoming.context.capabilities.supported_events == ["MARKDOWN"]


def test_the_container_counts_and_not_the_body_beside_it() -> None:
    assert decode_request(message(body("for people") + envelope({"query": "for programs"}))).payload == {
        "query": "for programs"
    }


def test_the_container_of_another_application_leaves_the_body_to_be_read() -> None:
    for other in (container({"type": "org.example"}), container([1]), container("no JSON"), container({"type": 7})):
        incoming = decode_request(message(other + body("hi")))
        assert (incoming.channel, incoming.payload) == ("person", {"query": "hi"})


@pytest.mark.parametrize("other", [{"type": "org.example.event", "data": {}}, {"type": 7}, {"type": ""}])
def test_the_container_of_another_application_alone_asks_nothing(other: dict[str, Any]) -> None:
    assert decode(message(container(other))) is None


def test_our_own_request_is_read_as_it_was_written() -> None:
    asked = AgentRequest(session_id=KEY, payload={"query": "<&>\x00"}, metadata={"a": 1})
    child = asked.create_child({"query": "¿qué?"}, metadata={"locale": "es"})
    stanza = request_stanza(
        AGENT, child.dump(exclude={"session_id"}), source=f"xmpp:{ALICE}", thread="t", stanza_id=str(child.request_id)
    )
    incoming = decode_request(parse_stanza(stanza))
    assert incoming.payload == child.payload
    assert incoming.metadata == child.metadata
    assert (incoming.thread, incoming.stanza_id) == ("t", str(child.request_id))
    assert (incoming.request_id, incoming.context.root_request_id, incoming.context.parent_request_id) == (
        child.request_id,
        asked.request_id,
        asked.request_id,
    )


def test_lone_surrogates_in_a_request_of_ours_become_question_marks() -> None:
    stanza = request_stanza(AGENT, {"payload": {"query": "a\ud800b"}}, source="x", thread=None, stanza_id="1")
    assert decode_request(parse_stanza(stanza)).payload == {"query": "a?b"}


MALFORMED = [
    (container(""), "holds no CloudEvent"),
    (container("no JSON"), "holds no CloudEvent"),
    (container("{"), "holds no CloudEvent"),
    (container("[" * 20_000), "holds no CloudEvent"),
    (container('{"type": "ai.coreason.request", "data": {"payload": {"query": "\\ud800"}}}'), "holds no CloudEvent"),
    (envelope(json.loads('{"a":' * 63 + "{}" + "}" * 63)), "holds no CloudEvent"),
    (envelope({"n": 10**400}), "holds no CloudEvent"),
    (envelope({"n": float("inf")}), "holds no CloudEvent"),
    (container('{"type": "ai.coreason.request", "data": {"payload": {"n": 1e999999}}}'), "holds no CloudEvent"),
    (container('{"type": "ai.coreason.request", "data": {"payload": {"n": 1, "n": 2}}}'), "holds no CloudEvent"),
    (container([]), "holds no CloudEvent"),
    (container(None), "holds no CloudEvent"),
    (container("7"), "holds no CloudEvent"),
    (container({}), "holds no CloudEvent"),
    (container({"specversion": "1.0", "data": {"payload": {}}}), "holds no CloudEvent"),
    ("<json xmlns='urn:xmpp:json:0'/>", "holds no CloudEvent"),
    ("<json xmlns='urn:xmpp:json:0'><type>ai.coreason.request</type></json>", "holds no CloudEvent"),
    (container({"type": "ai.coreason.request"}), "data.payload is no object"),
    (container({"type": "ai.coreason.request", "data": "text"}), "data.payload is no object"),
    (container({"type": "ai.coreason.request", "data": {}}), "data.payload is no object"),
    (envelope([]), "data.payload is no object"),
    (envelope("text"), "data.payload is no object"),
    (envelope(metadata=[1]), "data.metadata is no object"),
    (envelope(metadata="text"), "data.metadata is no object"),
    (envelope(request_id="x"), "an id in data is no UUID"),
    (envelope(request_id=7), "an id in data is no UUID"),
    (envelope(root_request_id={}), "an id in data is no UUID"),
    (envelope(root_request_id=ROOT_ID, parent_request_id=True), "an id in data is no UUID"),
    (envelope(parent_request_id=PARENT_ID), "Broken Trace: Root ID missing while Parent ID is present"),
    (envelope(capabilities=[1]), "data.capabilities is wrong"),
    (envelope(capabilities={"supported_events": 7}), "data.capabilities is wrong"),
]


@pytest.mark.parametrize(("inner", "problem"), MALFORMED)
def test_a_malformed_request_names_its_problem(inner: str, problem: str) -> None:
    malformed = decode(message(inner, thread="t"))
    assert isinstance(malformed, MalformedRequest)
    assert problem in malformed.problem
    assert (malformed.sender, malformed.stanza_id, malformed.thread) == (DEVICE, "1", "t")


def test_a_malformed_request_keeps_its_own_id() -> None:
    malformed = decode(message(envelope([], request_id=REQUEST_ID)))
    assert isinstance(malformed, MalformedRequest)
    assert malformed.request_id == REQUEST_ID


@pytest.mark.parametrize("too_long", [7, {}, "x" * 1025])
def test_a_malformed_request_does_not_keep_an_impossible_id(too_long: object) -> None:
    malformed = decode(message(envelope(request_id=too_long)))
    assert isinstance(malformed, MalformedRequest)
    assert malformed.request_id is None


# Metadata


def test_reserved_metadata_of_a_sender_are_dropped() -> None:
    forged = dict.fromkeys(RESERVED_METADATA, "forged")
    assert decode_request(message(envelope(metadata={**forged, "locale": "es"}))).metadata == {"locale": "es"}
    metadata = spade_request({**forged, "ontology": "weather"}).metadata
    assert {name: value for name, value in metadata.items() if name != "spade"} == {"ontology": "weather"}


@pytest.mark.parametrize(
    "name",
    [
        "conversation_id",
        "redelivered",
        "sender",
        "attachments",
        "reply_to",
        "thread",
        "channel",
        "spade",
        "delayed_since",
        "operator",
    ],
)
def test_the_names_of_platform_metadata_are_reserved(name: str) -> None:
    assert name in RESERVED_METADATA


@pytest.mark.parametrize("nothing", [None, {}])
def test_missing_metadata_are_empty(nothing: dict[str, Any] | None) -> None:
    assert decode_request(message(envelope(metadata=nothing))).metadata == {}


# From a SPADE agent


def test_spade_metadata_becomes_the_metadata() -> None:
    fields = {"performative": "request", "ontology": "weather", "<&'\">": "<&'\">"}
    incoming = spade_request(fields)
    assert (incoming.channel, incoming.payload) == ("spade", {"query": "hi"})
    assert incoming.metadata == {**fields, "spade": fields}


def test_the_thread_of_a_spade_agent_is_in_its_form() -> None:
    incoming = spade_request({"performative": "request", "_thread_node": "t"})
    assert incoming.thread == "t"
    assert incoming.metadata == {"performative": "request", "spade": {"performative": "request"}}


def test_the_native_thread_comes_first() -> None:
    assert spade_request({"_thread_node": "of the form"}, thread="native").thread == "native"


@pytest.mark.parametrize("fields", [{}, {"_thread_node": ""}])
def test_a_form_without_a_thread_has_none(fields: dict[str, str]) -> None:
    assert spade_request(fields).thread is None


def test_metadata_without_a_body_is_a_request_of_a_spade_agent() -> None:
    assert decode_request(message(form({"performative": "query-ref"}))).payload == {"query": ""}


@pytest.mark.parametrize(
    "entry",
    [
        "<field/>",
        "<field var='a'/>",
        "<field><value>v</value></field>",
        "<field var=''><value>v</value></field>",
        "<reported/>",
    ],
)
def test_a_field_without_a_name_or_a_value_is_none(entry: str) -> None:
    stanza = message(f"<x xmlns='jabber:x:data'><title>spade:x:metadata</title>{entry}</x>")
    assert decode_request(stanza).metadata == {"spade": {}}


@pytest.mark.parametrize("value", ["", "x", "ab", "text"])
def test_a_field_named_spade_does_not_silence_the_agent(value: str) -> None:
    """It replaced the fields from which the reply to a SPADE agent is made."""
    incoming = spade_request({"spade": value})
    assert incoming.metadata["spade"] == {"spade": value}
    assert encoder_for(incoming, KEY, AGENT, 65_536)


def test_a_message_written_by_spade_is_read(spade_classes: Any) -> None:
    written = spade_classes.Message(to=AGENT, sender=DEVICE, body="hi", thread="t", metadata={"performative": "request"})
    client = SimpleNamespace(Message=spade_classes.Stanza)  # all that SPADE takes of its client here
    incoming = decode_request(written.prepare(client).xml)
    assert (incoming.channel, incoming.thread, incoming.payload) == ("spade", "t", {"query": "hi"})
    assert incoming.metadata["performative"] == "request"


# Answers to requests of ours


def event_container(kind: str = "block.markdown", **changes: Any) -> str:
    event = {"type": f"ai.coreason.{kind}", "id": "e1", "requestid": REQUEST_ID, "data": {"content": "hi"}, **changes}
    return container({name: value for name, value in event.items() if value is not None})


KINDS = ["block.markdown", "stream.chunk", "request.completed", "request.failed", "fragment", "no.such.type", ""]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", ["", MARKER, body("for people")])
def test_an_event_with_a_request_id_is_an_answer(kind: str, beside: str) -> None:
    decoded = decode(message(beside + event_container(kind)))
    assert isinstance(decoded, ReplyEvent)
    assert decoded == ReplyEvent(DEVICE, REQUEST_ID, kind, "e1", {"content": "hi"}, decoded.characters)
    assert decoded.characters > len('{"content":"hi"}')


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [{"requestid": None}, {"requestid": 7}, {"data": None}, {"data": "text"}, {"data": []}])
def test_an_event_without_a_request_id_or_data_is_ignored(kind: str, wrong: dict[str, Any]) -> None:
    assert decode(message(event_container(kind, **wrong))) is None
    assert decode(message(event_container(kind, **wrong) + body("for people"))) is None


def test_a_request_with_a_request_id_is_no_answer() -> None:
    assert isinstance(decode(message(event_container("request", data={"payload": {}}))), InboundRequest)


# Bounces


def decode_bounce(*, inner: str, **given: Any) -> Any:
    return decode(message(f"{body('hi')}<error type='cancel'>{inner}</error>", type="error", **given))


def test_a_bounce_says_what_came_back_and_why() -> None:
    inner = f"<service-unavailable xmlns='{STANZA_ERRORS}'/><text xmlns='{STANZA_ERRORS}'>not here</text>"
    assert decode_bounce(inner=inner) == Bounce(DEVICE, "1", "service-unavailable", "not here")


@pytest.mark.parametrize(
    ("inner", "condition"),
    [
        ("", "undefined-condition"),
        (f"<text xmlns='{STANZA_ERRORS}'/>", "undefined-condition"),
        ("<too-many xmlns='urn:example'/>", "undefined-condition"),
        (f"<too-many xmlns='urn:example'/><policy-violation xmlns='{STANZA_ERRORS}'/>", "policy-violation"),
        (f"<policy-violation xmlns='{STANZA_ERRORS}'/><stanza-too-big xmlns='urn:xmpp:errors'/>", "policy-violation"),
    ],
)
def test_the_condition_of_a_bounce_is_one_of_xmpps(inner: str, condition: str) -> None:
    assert decode_bounce(inner=inner) == Bounce(DEVICE, "1", condition, "")


def test_a_bounce_needs_neither_sender_nor_id() -> None:
    assert decode_bounce(inner="", sender=None, id=None) == Bounce("", "", "undefined-condition", "")


# The same message, or another one


def inbox_key(incoming: InboundRequest) -> UUID:
    return derive_inbox_key(AGENT, incoming.owner, incoming.stanza_id, incoming.content)


MESSAGE_BUILDERS = [
    lambda text, thread: message(body(text), thread=thread),
    lambda text, thread: message(envelope({"query": text}), thread=thread),
    lambda text, thread: message(envelope(metadata={"text": text}), thread=thread),
    lambda text, thread: message(body(text) + form({}), thread=thread),
    lambda text, thread: message(body("hi") + form({"ontology": text}), thread=thread),
    lambda text, thread: message(body(text) + form({"_thread_node": thread} if thread else {})),
]


@pytest.mark.parametrize("build", MESSAGE_BUILDERS, ids=["person", "program", "metadata", "spade", "field", "form thread"])
def test_the_same_id_with_other_content_or_thread_is_another_message(build: Any) -> None:
    """Some clients count from 1."""
    keys = [inbox_key(decode_request(build(text, thread))) for text in ("one", "two") for thread in (None, "a", "b")]
    keys_again = [inbox_key(decode_request(build(text, thread))) for text in ("one", "two") for thread in (None, "a", "b")]
    assert len(set(keys)) == 6
    assert keys == keys_again


def test_the_same_text_on_three_channels_is_three_messages() -> None:
    assert len({inbox_key(person_request()), inbox_key(program_request()), inbox_key(spade_request())}) == 3


def test_a_message_that_is_sent_again_after_a_reconnect_is_the_same() -> None:
    assert inbox_key(decode_request(message(body("hi"), sender=f"{ALICE}/old"))) == inbox_key(
        decode_request(message(body("hi"), sender=f"{ALICE}/new"))
    )
    assert inbox_key(decode_request(message(body("hi")))) != inbox_key(
        decode_request(message(body("hi"), sender="bob@example.org/phone"))
    )


def test_a_delayed_message_is_the_same() -> None:
    delayed = "<delay xmlns='urn:xmpp:delay' stamp='2026-01-09T12:00:00Z'/>"
    assert inbox_key(person_request()) == inbox_key(person_request(inner=delayed))


@pytest.mark.parametrize("id", [None, ""])
def test_a_stanza_without_an_id_is_never_a_duplicate(id: str | None) -> None:
    assert inbox_key(decode_request(message(body("hi"), id=id))) != inbox_key(decode_request(message(body("hi"), id=id)))


# In the inbox


STORED_REQUESTS = [
    person_request(),
    person_request("¿qué? <&>", thread="t", type=None, inner="<active xmlns='http://jabber.org/protocol/chatstates'/>"),
    person_request(
        inner="<reply xmlns='urn:xmpp:reply:0' id='m1'/><x xmlns='jabber:x:oob'><url>https://example.org/</url></x>"
    ),
    program_request(thread="t"),
    decode_request(message(envelope({"big": 10**40, "n": [1.5, None]}, metadata={"a": {"b": 1}}, capabilities={}))),
    decode_request(message(envelope(request_id=REQUEST_ID, root_request_id=ROOT_ID, parent_request_id=PARENT_ID))),
    decode_request(message(envelope(root_request_id=ROOT_ID, parent_request_id=PARENT_ID))),
    decode_request(message(envelope(root_request_id=ROOT_ID))),
    spade_request({"performative": "request", "spade": "x"}, thread="t"),
    build_incoming("by a key", "key@callers.invalid", DOOR, context=RequestContext(wants_thoughts=True, account=ALICE)),
    build_incoming(
        "due", "garden@rooms.example", DUE_IN_ROOM, headers=ROOM_HEADERS, room=RoomOrigin("garden@rooms.example", "ann")
    ),
]


@pytest.mark.parametrize("incoming", STORED_REQUESTS, ids=range(len(STORED_REQUESTS)))
def test_a_request_read_back_from_the_inbox_is_the_same(incoming: InboundRequest) -> None:
    """The fields that only the inbox key and the receipt need are left out."""
    read_back = InboundRequest.from_json(incoming.to_json())
    assert read_back == replace(incoming, content="", metadata=dict(incoming.metadata))
    assert InboundRequest.from_json(read_back.to_json().encode()) == read_back


@pytest.mark.parametrize("incoming", STORED_REQUESTS, ids=range(len(STORED_REQUESTS)))
def test_what_only_a_newer_version_writes_to_the_inbox_is_ignored(incoming: InboundRequest) -> None:
    runs = EarlierRuns(
        1, "2026-01-01T00:00:00+00:00", 2, 3, {"step": 1}, (("ask", 1),), (("user", "a", None),), {"zone": "UTC"}, 4
    )
    parked = replace(incoming, content="", metadata=dict(incoming.metadata), earlier_runs=runs)
    stored = json.loads(parked.to_json())
    stored |= {"priority": 7, "earlier_runs": [*stored["earlier_runs"], "more"]}
    stored["earlier_runs"][5][0].append("more")
    stored["earlier_runs"][6][0].append("more")
    if "capabilities" in stored:
        stored["capabilities"]["smells"] = True
    assert InboundRequest.from_json(json.dumps(stored)) == parked


def test_the_fields_of_all_parts_stand_side_by_side_in_the_inbox() -> None:
    room = "garden@rooms.example"
    capabilities = ClientCapabilities(supported_events=["MARKDOWN"])
    context = RequestContext(
        1, chain=("a@example.org",), root_request_id=UUID(ROOT_ID), capabilities=capabilities, account=ALICE
    )
    headers = MessageHeaders("groupchat", ("1", "2"), "room-id", uses_replies=True, wants_receipt=True)
    room_origin = RoomOrigin(room, "ann", f"{room}/ann")
    request = build_incoming("hi", room, ROOM, stanza_id="3", headers=headers, context=context, room=room_origin)
    assert json.loads(request.to_json()) == {
        "channel": "room",
        "sender": f"{room}/x",
        "stanza_id": "3",
        "payload": {"query": "hi"},
        "thread": "t",
        "message_type": "groupchat",
        "replaces": ["1", "2"],
        "origin_id": "room-id",
        "uses_replies": True,
        "hops": 1,
        "chain": ["a@example.org"],
        "root_request_id": ROOT_ID,
        "capabilities": {"supported_events": ["MARKDOWN"], "prefers_markdown": True},
        "account": ALICE,
        "owner": room,
        "address": room,
        "nickname": "ann",
        "author": f"{room}/ann",
    }


def test_absent_fields_are_not_written_to_the_inbox() -> None:
    assert json.loads(person_request().to_json()) == {
        "channel": "person",
        "sender": DEVICE,
        "stanza_id": "1",
        "payload": {"query": "hi"},
    }
