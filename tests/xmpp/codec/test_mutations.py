"""Mutated stanzas: every function that reads one returns, and what it returns can be stored and answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import Element, fromstring, tostring

from hypothesis import given, strategies as st
from pydantic_core import to_json
from slixmpp.plugins.xep_0030 import DiscoInfo

from spade_coreason.domain.forms.adhoc import CommandCall, CommandProblem
from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import (
    MAX_ID_CHARACTERS,
    Bounce,
    Completed,
    InboundRequest,
    MalformedRequest,
    Reaction,
    ReplyBatch,
    ReplyEvent,
    RequestBatch,
    Retraction,
    TextEmitted,
)
from spade_coreason.domain.texts.links import is_link
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peer_answers import collect_answer
from spade_coreason.xmpp.codec import archive, muc
from spade_coreason.xmpp.codec.addressing import extract_question
from spade_coreason.xmpp.codec.adhoc import decode_command_call, problem_stanza
from spade_coreason.xmpp.codec.attachments import read_linked_files
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.evidence import assigned_id
from spade_coreason.xmpp.connection.iq_filter import refusal
from spade_coreason.xmpp.peer_features import _parse_device
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.foreign_stanzas import AGENT, KEY, MARKER, PARENT_ID, REQUEST_ID, ROOT_ID, container, message
from tests.support.mutations import bounded, drawn, json_objects, json_values, many_in_release, mutated
from tests.support.peer_replies import PEER, collect_events, reply
from tests.support.transports import STANZA_BYTES

MARKER_TAG = fromstring(MARKER).tag
TRANSPORT = XmppTransport(AGENT, lambda stanzas: None, STANZA_BYTES)


def check_request(request: InboundRequest) -> None:
    """Check that a request can be stored, read again, and answered with stanzas that are XML."""
    again = InboundRequest.from_json(request.to_json())
    assert (again.payload, again.sender, again.thread, again.owner) == (
        request.payload,
        request.sender,
        request.thread,
        request.owner,
    )
    assert dict(again.metadata) == dict(request.metadata)
    assert isinstance(derive_inbox_key(AGENT, request.sender, request.stanza_id, request.content), UUID)
    for id_ in (request.stanza_id, request.thread or ""):
        assert len(id_) <= MAX_ID_CHARACTERS
    reply = TRANSPORT.make_encoder(request, KEY)
    stanzas = [*reply.encode(TextEmitted("**hi**", 1)), *reply.encode(Completed("c", "active"))]
    stanzas += [TRANSPORT.encode_receipt(request).content, TRANSPORT.encode_displayed(request).content]
    for sent in stanzas:
        assert fromstring(sent).get("to"), sent


def check_malformed(malformed: MalformedRequest) -> None:
    """Check that the sender of a malformed request can be told so."""
    for sent in TRANSPORT.encode_malformed_reply(malformed):
        assert fromstring(sent.content).get("to") == malformed.sender


@drawn(mutated())
def test_any_message_is_decoded(stanza: Element) -> None:
    before = tostring(stanza)
    for in_room in (False, True):
        decoded = decode(stanza, in_room=in_room)
        kinds = ReplyEvent | ReplyBatch | Bounce | MalformedRequest | Retraction | Reaction | None
        assert isinstance(decoded, InboundRequest | RequestBatch | kinds)
        if stanza.get("type") in ("error", "headline", "groupchat") or not stanza.get("from"):
            assert isinstance(decoded, Bounce | None)
        if stanza.find(MARKER_TAG) is not None:
            assert not isinstance(decoded, InboundRequest | RequestBatch | MalformedRequest)
        for one in decoded.requests if isinstance(decoded, RequestBatch) else (decoded,):
            if isinstance(one, InboundRequest):
                check_request(one)
            elif isinstance(one, MalformedRequest):
                check_malformed(one)
    assert tostring(stanza) == before
    files = read_linked_files(stanza)
    assert files is None or (files.text and all(is_link(attachment["url"]) for attachment in files.attachments))


@drawn(mutated())
def test_any_result_of_an_archive_is_read(stanza: Element) -> None:
    assigned_id(stanza, AGENT)
    archive.is_addressed_to(AGENT, stanza)
    archived = archive.read_archived(stanza, AGENT, "q")
    if archived is not None:
        assert stanza.get("from", AGENT).startswith(AGENT)
        assert assigned_id(archived.message, AGENT) == archived.archive_id != ""
        decoded = decode(archived.message)
        if isinstance(decoded, InboundRequest):
            check_request(decoded)


@drawn(mutated(("iq",)))
def test_any_iq_is_read(stanza: Element) -> None:
    archive.read_page(stanza)
    for is_visible in (True, False):
        error = refusal(stanza, AGENT, lambda sender, is_visible=is_visible: is_visible)  # type: ignore[misc]
        assert error is None or fromstring(error).get("type") == "error"
    call = decode_command_call(stanza)
    assert isinstance(call, CommandCall | CommandProblem | None)
    if isinstance(call, CommandProblem):
        assert fromstring(problem_stanza(stanza.get("from", ""), stanza.get("id", ""), call)).get("type") == "error"
    for query in stanza.iter("{http://jabber.org/protocol/disco#info}query"):
        _parse_device(DiscoInfo(xml=query))


@drawn(mutated(("presence", "message")))
def test_any_stanza_of_a_room_is_read(stanza: Element) -> None:
    muc.read_presence(stanza)
    muc.read_invitation(stanza)
    muc.read_room_reference(stanza)
    message = muc.read_room_message(stanza)
    if message is not None:
        room = stanza.get("from", "").partition("/")[0]
        names = ["note", message.nick]
        question = extract_question("notes", message.text, names, message.mentions, room=room, agent=AGENT) or message.text
        check_request(muc.room_request(room, message, question, "a@b", reply_to_id="", replaces=(message.replaced_id,)))


DATA = {
    "payload": {"query": "hi"},
    "request_id": REQUEST_ID,
    "root_request_id": ROOT_ID,
    "parent_request_id": PARENT_ID,
    "metadata": {"a": 1, "command": True},
    "capabilities": {"supported_events": ["x"], "prefers_markdown": True, "image_resolution": "x"},
}


@drawn(json_objects(DATA), json_objects({"type": "ai.coreason.request", "hops": 1, "id": "e", "requestid": "r"}), json_values)
def test_any_json_is_a_request_a_reply_or_malformed(data: dict[str, Any], event: dict[str, Any], other: Any) -> None:
    capabilities = data.get("capabilities")
    contents: list[Any] = [other, event, {"data": data, **event}, {"type": "ai.coreason.request", "data": data}]
    for content in contents:
        decoded = decode(message(container(content)))
        if isinstance(decoded, InboundRequest):
            check_request(decoded)
            assert isinstance(decoded.payload, dict)
            assert isinstance(content, str) or (decoded.context.capabilities is None) is (capabilities is None)
        else:
            assert isinstance(decoded, ReplyEvent | MalformedRequest | None)


ENTRY = {"type": "ai.coreason.request", "id": "e", "thread": "t", "hops": 1, "chain": "a@b", "remainingms": 7, "batch": True}


@drawn(st.lists(st.tuples(json_objects(ENTRY), json_objects(DATA)) | json_values, min_size=1, max_size=4))
def test_any_array_of_requests_is_read_as_each_request_alone(entries: list[Any]) -> None:
    first = {"type": "ai.coreason.request", "id": "first", "thread": "t", "data": {"payload": {}}}
    events = [first, *({**entry[0], "data": entry[1]} if isinstance(entry, tuple) else entry for entry in entries)]
    decoded = decode(message(container(to_json(events).decode()), id="outer"))
    assert isinstance(decoded, RequestBatch)
    assert len(decoded.requests) == len(events)
    for one, event in zip(decoded.requests, events, strict=True):
        if isinstance(one, MalformedRequest):
            check_malformed(one)
            continue
        check_request(one)
        alone: dict[str, Any] = {name: value for name, value in event.items() if name != "thread"}
        expected = decode(message(container(to_json(alone).decode()), id=one.stanza_id, thread=one.thread))
        assert isinstance(expected, InboundRequest)
        assert (one.stanza_id, one.thread) == (event["id"], event.get("thread"))
        deadline = expected.context.deadline and one.context.deadline
        assert one == replace(expected, context=expected.context._replace(deadline=deadline))


BLOCK = {"id": REQUEST_ID, "content": "x", "data": {"a": 1}, "view_hint": "TABLE", "title": "t", "user_message": "u"}
CHUNK = {"stream_id": "s", "seq": 0, "chunk": "x", "title": "t", "reason": "r", "replacement": "x"}
FRAGMENT = {"event_id": "f", "index": 0, "count": 1, "chunk": '{"type":"ai.coreason.block.markdown","data":{"content":"x"}}'}
END = {"message": "m", "code": 500, "retry_after_s": 3, "conversation_id": "c", "state": "active"}
KINDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("block.markdown", "block.data", "block.error", "block.thought", "odd", ""), BLOCK),
    **dict.fromkeys(("stream.start", "stream.chunk", "stream.end", "stream.abort"), CHUNK),
    "fragment": FRAGMENT,
}
events = st.sampled_from(list(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), json_objects(KINDS[kind])))
ends = st.tuples(st.sampled_from(["request.completed", "request.failed", "request.refused"]), json_objects(END))


@many_in_release
def test_any_events_of_a_peer_are_an_answer_or_its_error(count: int) -> None:
    with asyncio.Runner() as loop:

        @bounded(count)
        @given(st.lists(events, max_size=6), ends)
        def check(arrived: list[Any], end: Any) -> None:
            replies = [reply(kind, data) for kind, data in [*arrived, end]]
            try:
                collected = loop.run(collect_events(OpenRequests(), *replies))
            except (PeerRefusedError, PeerFailedError):
                return
            assert end[0] == "request.completed"
            answer = collect_answer(PEER, collected)
            assert isinstance(answer.text, str)
            assert isinstance(answer.conversation_id, str | None)

        check()
