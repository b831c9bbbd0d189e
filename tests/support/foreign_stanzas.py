"""Stanzas as others write them, and what ours say when they are read by the parser of the other side."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import Element, fromstring
from xml.sax.saxutils import escape, quoteattr

from spade_coreason.codec.decode import decode
from spade_coreason.domain.messages import InboundRequest

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
    """A `<message/>` that came in; `inner` is XML. What is None is not there."""
    given = {"from": sender, "id": id, "type": type}
    attributes = "".join(f" {name}={quoteattr(value)}" for name, value in given.items() if value is not None)
    if thread is not None:
        inner += f"<thread>{escape(thread)}</thread>"
    return fromstring(f"<message xmlns='jabber:client' to='{AGENT}'{attributes}>{inner}</message>")


def body(text: str) -> str:
    """What a person says."""
    return f"<body>{escape(text)}</body>"


def container(event: Any) -> str:
    """A JSON container (XEP-0335); a text stands in it as it is."""
    return f"<json xmlns='urn:xmpp:json:0'>{escape(event if isinstance(event, str) else json.dumps(event))}</json>"


def envelope(payload: Any = None, kind: str = "request", **data: Any) -> str:
    """The container of a request; `data` stands beside the payload."""
    content = {"payload": {"query": "hi"} if payload is None else payload, **data}
    return container({"specversion": "1.0", "type": f"ai.coreason.{kind}", "source": "by hand", "id": "1", "data": content})


def form(fields: dict[str, str]) -> str:
    """SPADE's metadata form."""
    entries = "".join(
        f"<field var={quoteattr(name)} type='text-single'><value>{escape(value)}</value></field>"
        for name, value in fields.items()
    )
    return f"<x xmlns='jabber:x:data' type='form'><title>spade:x:metadata</title>{entries}</x>"


def request(stanza: Element) -> InboundRequest:
    """The request that `stanza` is."""
    decoded = decode(stanza)
    assert isinstance(decoded, InboundRequest), decoded
    return decoded


def person(text: str = "hi", *, inner: str = "", thread: str | None = None, type: str | None = "chat") -> InboundRequest:
    """A person's request."""
    return request(message(body(text) + inner, thread=thread, type=type))


def program(*, thread: str | None = None, sender: str = DEVICE) -> InboundRequest:
    """A program's request."""
    return request(message(envelope(request_id=REQUEST_ID), thread=thread, sender=sender))


def spade(
    fields: dict[str, str] | None = None, *, thread: str | None = None, id: str | None = "1", sender: str = DEVICE
) -> InboundRequest:
    """A SPADE agent's request."""
    return request(message(body("hi") + form(fields or {}), thread=thread, id=id, sender=sender))


def read(stanza: str) -> Element:
    """A stanza of ours as the other side gets it from its parser."""
    assert stanza.startswith("<message ")
    element = fromstring(stanza.replace("<message ", "<message xmlns='jabber:client' ", 1))
    element.set("from", AGENT)
    return element


def text_of(stanza: str) -> str:
    """The body of a stanza of ours."""
    text = read(stanza).findtext(BODY)
    assert text is not None, stanza
    return text


def event_of(stanza: str) -> dict[str, Any]:
    """The CloudEvent in a stanza of ours."""
    event: dict[str, Any] = json.loads(read(stanza).findtext(JSON) or "")
    return event


def fields_of(stanza: str) -> dict[str, str]:
    """SPADE's metadata in a stanza of ours."""
    entries = read(stanza).iter("{jabber:x:data}field")
    return {entry.get("var", ""): entry.findtext("{jabber:x:data}value", "") for entry in entries}
