"""Stanzas as other programs write them, and our stanzas as other programs parse them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import Element, fromstring
from xml.sax.saxutils import escape, quoteattr

from spade_coreason.domain.messages import InboundRequest
from spade_coreason.xmpp.codec.decode import decode

AGENT = "notes@example.org"
ALICE = "alice@example.org"
DEVICE = f"{ALICE}/phone"
KEY = UUID("5f0c6a3e-0000-5000-8000-000000000001")
REQUEST_ID = "0d5c1a52-0000-4000-8000-000000000002"
ROOT_ID = "0d5c1a52-0000-4000-8000-000000000003"
PARENT_ID = "0d5c1a52-0000-4000-8000-000000000004"

MARKER = "<answer xmlns='urn:spade-coreason:answer:0'/>"
BODY = "{jabber:client}body"
THREAD = "{jabber:client}thread"
JSON = "{urn:xmpp:json:0}json"
ACTIVE = "{http://jabber.org/protocol/chatstates}active"
COMPOSING = "{http://jabber.org/protocol/chatstates}composing"
ORIGIN_ID = "{urn:xmpp:sid:0}origin-id"


def message(
    inner: str = "", *, type: str | None = "chat", id: str | None = "1", thread: str | None = None, sender: str | None = DEVICE
) -> Element:
    """Build a received `<message/>`; `inner` is XML. An attribute that is None is left out."""
    values = {"from": sender, "id": id, "type": type}
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in values.items() if value is not None)
    if thread is not None:
        inner += f"<thread>{escape(thread)}</thread>"
    return fromstring(f"<message xmlns='jabber:client' to='{AGENT}'{attributes}>{inner}</message>")


def body(text: str) -> str:
    """Build the `<body/>` of a person's message."""
    return f"<body>{escape(text)}</body>"


def container(event: Any) -> str:
    """Build a JSON container (XEP-0335); a string is inserted as it is."""
    return f"<json xmlns='urn:xmpp:json:0'>{escape(event if isinstance(event, str) else json.dumps(event))}</json>"


def envelope(payload: Any = None, kind: str = "request", **data: Any) -> str:
    """Build the container of a request; `data` stands beside the payload."""
    content = {"payload": {"query": "hi"} if payload is None else payload, **data}
    return container({"specversion": "1.0", "type": f"ai.coreason.{kind}", "source": "by hand", "id": "1", "data": content})


def form(fields: dict[str, str]) -> str:
    """Build SPADE's metadata form."""
    entries = "".join(
        f"<field var={quoteattr(name)} type='text-single'><value>{escape(value)}</value></field>"
        for name, value in fields.items()
    )
    return f"<x xmlns='jabber:x:data' type='form'><title>spade:x:metadata</title>{entries}</x>"


def decode_request(stanza: Element) -> InboundRequest:
    """Decode a stanza that is a request."""
    decoded = decode(stanza)
    assert isinstance(decoded, InboundRequest), decoded
    return decoded


def person_request(
    text: str = "hi", *, inner: str = "", thread: str | None = None, type: str | None = "chat"
) -> InboundRequest:
    """Build a person's request."""
    return decode_request(message(body(text) + inner, thread=thread, type=type))


def program_request(*, thread: str | None = None, sender: str = DEVICE) -> InboundRequest:
    """Build a program's request."""
    return decode_request(message(envelope(request_id=REQUEST_ID), thread=thread, sender=sender))


def spade_request(
    fields: dict[str, str] | None = None, *, thread: str | None = None, id: str | None = "1", sender: str = DEVICE
) -> InboundRequest:
    """Build a SPADE agent's request."""
    return decode_request(message(body("hi") + form(fields or {}), thread=thread, id=id, sender=sender))


def parse_stanza(stanza: str) -> Element:
    """Parse a stanza of ours as the receiver does."""
    assert stanza.startswith("<message ")
    element = fromstring(stanza.replace("<message ", "<message xmlns='jabber:client' ", 1))
    element.set("from", AGENT)
    return element


def text_of(stanza: str) -> str:
    """Return the body of a stanza of ours."""
    text = parse_stanza(stanza).findtext(BODY)
    assert text is not None, stanza
    return text


def event_of(stanza: str) -> dict[str, Any]:
    """Return the CloudEvent in a stanza of ours."""
    event: dict[str, Any] = json.loads(parse_stanza(stanza).findtext(JSON) or "")
    return event


def fields_of(stanza: str) -> dict[str, str]:
    """Return SPADE's metadata in a stanza of ours."""
    entries = parse_stanza(stanza).iter("{jabber:x:data}field")
    return {entry.get("var", ""): entry.findtext("{jabber:x:data}value", "") for entry in entries}
