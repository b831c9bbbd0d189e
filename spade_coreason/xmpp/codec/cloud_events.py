"""CloudEvents 1.0 in JSON containers (XEP-0335): the messages between programs and agents."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4
from zlib import crc32

from pydantic import ValidationError
from pydantic_core import to_json

from ...contracts import ClientCapabilities
from ...domain.foreign_json import parse_foreign_json
from ...domain.jid import bare_jid
from ...domain.messages import (
    LINEAGE_FIELDS,
    MAX_ID_CHARACTERS,
    RESERVED_METADATA,
    InboundMessage,
    InboundRequest,
    MalformedRequest,
    ReplyEvent,
)
from ...domain.text import replace_lone_surrogates
from .elements import ANSWER_MARKER_XML, text_bytes, thread_element
from .namespaces import FRAGMENT_TYPE, JSON_NAMESPACE, ORIGIN_ID_NAMESPACE, REQUEST_TYPE, RETRACT_NAMESPACE, TYPE_PREFIX
from .xml import clean, escape_attribute, escape_clean, split_text


class EventWriter:
    """Writer of CloudEvents 1.0 as stanzas.

    An event that is too long for one stanza is sent as ordered fragments of its JSON.
    """

    def __init__(self, *, to: str, source: str, thread: str | None, id_prefix: str, request_id: str, stanza_bytes: int) -> None:
        self._opening = f"<message to='{escape_attribute(to)}' id='"
        self._source = _json_text(source)
        self._request_id = _json_text(request_id)
        self._tail = f"</json>{thread_element(thread)}{ANSWER_MARKER_XML}"
        self._id_prefix = id_prefix
        self._json_bytes = text_bytes(stanza_bytes, to, thread)
        self._event_count = 0
        self._thought_count = 0
        self._checksum = 0

    def write(self, kind: str, data: dict[str, Any], extra_xml: str = "") -> list[str]:
        """Return the stanzas of one event: one, or several fragments if it is too long.

        `extra_xml` is left out if it does not fit.
        """
        json_data = _json_text(data)
        stanza_id = self._next_id(kind, json_data)
        whole = self._encode_event(kind, stanza_id, json_data)
        text = escape_clean(whole)
        if len(text) * 4 <= self._json_bytes or len(text.encode()) <= self._json_bytes:
            if extra_xml and len(text.encode()) + len(extra_xml.encode()) > self._json_bytes:
                extra_xml = ""
            return [self._stanza(stanza_id, text, extra_xml)]
        # A fragment is quoted JSON again. A quote or a backslash takes two bytes more, so a part gets a third of the room.
        parts = list(split_text(whole, self._json_bytes // 3, at_boundaries=False))
        fragments = []
        for index, part in enumerate(parts):
            fragment_id = f"{stanza_id}.{index}"
            fragment = {"event_id": stanza_id, "index": index, "count": len(parts), "chunk": part}
            text = self._encode_event(FRAGMENT_TYPE.removeprefix(TYPE_PREFIX), fragment_id, _json_text(fragment))
            fragments.append(self._stanza(fragment_id, escape_clean(text)))
        return fragments

    def _next_id(self, kind: str, data: str) -> str:
        """Derive the id of an event; `data` is JSON. The same event after the same events has the same id.

        A turn that runs again may produce a different event. From there on all its events get new ids, so that receivers
        of the first run take them as new. This includes a piece of text that both runs have at the same place.
        A thought does not change the ids of later events.
        """
        checksum = crc32((kind + data).encode(), self._checksum)
        if kind == "block.thought":
            self._thought_count += 1
            return f"{self._id_prefix}-{self._event_count}.{self._thought_count}-{checksum:08x}"
        self._checksum = checksum
        self._event_count += 1
        return f"{self._id_prefix}-{self._event_count - 1}-{checksum:08x}"

    def _encode_event(self, kind: str, event_id: str, data: str) -> str:
        """Return a CloudEvent with its data, which is JSON."""
        return (
            f'{{"specversion":"1.0","type":"{TYPE_PREFIX}{kind}","source":{self._source},"id":"{event_id}",'
            f'"time":{to_json(datetime.now(UTC)).decode()},"datacontenttype":"application/json",'
            f'"requestid":{self._request_id},"data":{data}}}'
        )

    def _stanza(self, stanza_id: str, text: str, extra_xml: str = "") -> str:
        content = f"{extra_xml}<json xmlns='{JSON_NAMESPACE}'>{text}{self._tail}"
        return f"{self._opening}{stanza_id}'>{content}{_origin_id_element(stanza_id)}</message>"


def _origin_id_element(stanza_id: str) -> str:
    return f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/>"


def request_stanza(
    to: str,
    request_json: dict[str, Any],
    *,
    source: str,
    thread: str | None,
    stanza_id: str,
    hops: int = 0,
    root_sender: str = "",
) -> str:
    """Encode a program's request (event type `ai.coreason.request`).

    `request_json` is the dump of an AgentRequest. `hops` counts the agents that the request passed through. `root_sender` is
    the bare JID of the person it goes back to. Both are extension attributes of the CloudEvent, left out if 0 or "".
    """
    event = {
        "specversion": "1.0",
        "type": f"{TYPE_PREFIX}request",
        "source": source,
        "id": stanza_id,
        "time": datetime.now(UTC),
        "datacontenttype": "application/json",
        **({"hops": hops} if hops else {}),
        **({"rootsender": root_sender} if root_sender else {}),
        "data": request_json,
    }
    text = escape_clean(_json_text(event))
    return (
        f"<message to='{escape_attribute(to)}' id='{escape_attribute(stanza_id)}'>"
        f"<json xmlns='{JSON_NAMESPACE}'>{text}</json>{thread_element(thread)}{_origin_id_element(escape_attribute(stanza_id))}"
        "</message>"
    )


def retraction_stanza(to: str, stanza_id: str) -> str:
    """Encode the retraction (XEP-0424) of the request with that id, at whatever stage it is."""
    retract = f"<retract xmlns='{RETRACT_NAMESPACE}' id='{escape_attribute(stanza_id)}'/>"
    return f"<message to='{escape_attribute(to)}' id='{uuid4()}'>{retract}</message>"


def _json_text(value: Any) -> str:
    """Return a value as JSON that is valid in XML once it is escaped."""
    try:
        text = to_json(value)
    except ValueError:  # lone surrogates, which UTF-8 cannot encode
        text = to_json(replace_lone_surrogates(value))
    return clean(text.decode())


_MAX_JID_CHARACTERS = 3071  # RFC 7622, 3.1
FOREIGN_CONTAINER = MalformedRequest("", "", None, "a container of another application")

_parse_uuid = lru_cache(maxsize=256)(UUID)  # most requests are their own root


def read_container(
    text: str, sender: str, stanza_id: str, thread: str | None, is_answer: bool, has_body: bool
) -> InboundMessage:
    """Read a JSON container (XEP-0335).

    Another application's container gives FOREIGN_CONTAINER: then only the body beside it counts.
    """
    try:
        event = parse_foreign_json(text)
    except ValueError:
        event = None
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(kind, str) or not kind.startswith(TYPE_PREFIX):
        if has_body or is_answer or (isinstance(event, dict) and kind is not None):
            return FOREIGN_CONTAINER
        return MalformedRequest(sender, stanza_id, thread, "the JSON container holds no CloudEvent of a request")
    data = event.get("data")
    if kind != REQUEST_TYPE:
        request_id, event_id = event.get("requestid"), event.get("id")
        if not isinstance(request_id, str) or not isinstance(data, dict):
            return None
        return ReplyEvent(sender, request_id, kind.removeprefix(TYPE_PREFIX), str(event_id), data)
    if is_answer:
        return None
    request = _read_request(data, text, sender, stanza_id, thread)
    if isinstance(request, InboundRequest):
        hops, root_sender = event.get("hops"), event.get("rootsender")
        if isinstance(hops, int) and 0 < hops < 2**31:
            request = replace(request, hops=hops)
        if isinstance(root_sender, str) and 0 < len(root_sender) <= _MAX_JID_CHARACTERS:
            request = replace(request, root_sender=bare_jid(root_sender).lower())
    return request


def _read_request(data: Any, text: str, sender: str, stanza_id: str, thread: str | None) -> InboundRequest | MalformedRequest:
    """Read a request from the data of an event.

    Only payload, capabilities, lineage and unreserved metadata are taken from the envelope, as data.
    """

    def malformed(problem: str) -> MalformedRequest:
        given_id = data.get("request_id") if isinstance(data, dict) else None
        is_id = isinstance(given_id, str) and len(given_id) <= MAX_ID_CHARACTERS
        return MalformedRequest(sender, stanza_id, thread, problem, given_id if is_id else None)

    if not isinstance(data, dict) or not isinstance(data.get("payload"), dict):
        return malformed("data.payload is no object")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        return malformed("data.metadata is no object")
    try:
        ids = [_parse_uuid(data[name]) if data.get(name) is not None else None for name in LINEAGE_FIELDS]
        capabilities = data.get("capabilities")
        if capabilities is not None:
            capabilities = ClientCapabilities.model_validate(capabilities)
    except (ValueError, TypeError, AttributeError) as error:
        problem = "data.capabilities is wrong" if isinstance(error, ValidationError) else "an id in data is no UUID"
        return malformed(problem)
    request_id, root, parent = ids
    if parent is not None and root is None:
        return malformed("Broken Trace: Root ID missing while Parent ID is present")
    return InboundRequest(
        "program",
        sender,
        stanza_id,
        thread,
        data["payload"],
        f"{thread}\n{text}",
        "normal",
        {k: v for k, v in metadata.items() if k not in RESERVED_METADATA},
        request_id=request_id,
        root_request_id=root,
        parent_request_id=parent,
        capabilities=capabilities,
        owner=bare_jid(sender),
    )
