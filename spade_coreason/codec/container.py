"""What a program says in a JSON container (XEP-0335): a CloudEvent that asks, or answers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import from_json

from ..contracts import ClientCapabilities
from .incoming import LINEAGE, LONGEST_ID, RESERVED, Decoded, Incoming, Malformed, Reply
from .namespaces import REQUEST, TYPE_PREFIX

NOT_OURS = Malformed("", "", None, "a container of another application")

_uuid = lru_cache(maxsize=256)(UUID)  # most requests are their own root


def read_container(text: str, sender: str, stanza_id: str, thread: str | None, marked: bool, has_body: bool) -> Decoded:
    """What a JSON container (XEP-0335) says. Of other applications' containers only the body beside them counts."""
    try:
        event = from_json(text)
    except ValueError:
        event = None
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(kind, str) or not kind.startswith(TYPE_PREFIX):
        if has_body or marked or (isinstance(event, dict) and kind is not None):
            return NOT_OURS
        return Malformed(sender, stanza_id, thread, "the JSON container holds no CloudEvent of a request")
    data = event.get("data")
    if kind != REQUEST:
        request_id, event_id = event.get("requestid"), event.get("id")
        if not isinstance(request_id, str) or not isinstance(data, dict):
            return None
        return Reply(sender, request_id, kind.removeprefix(TYPE_PREFIX), str(event_id), data)
    if marked:
        return None
    hops = event.get("hops")
    return _request(data, text, sender, stanza_id, thread, hops if isinstance(hops, int) and 0 < hops < 2**31 else 0)


def _request(data: Any, text: str, sender: str, stanza_id: str, thread: str | None, hops: int) -> Incoming | Malformed:
    """Of the envelope only payload, capabilities, lineage and unreserved metadata are taken, as data."""

    def malformed(problem: str) -> Malformed:
        named = data.get("request_id") if isinstance(data, dict) else None
        is_id = isinstance(named, str) and len(named) <= LONGEST_ID
        return Malformed(sender, stanza_id, thread, problem, named if is_id else None)

    if not isinstance(data, dict) or not isinstance(data.get("payload"), dict):
        return malformed("data.payload is no object")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        return malformed("data.metadata is no object")
    try:
        ids = [_uuid(data[name]) if data.get(name) is not None else None for name in LINEAGE]
        capabilities = data.get("capabilities")
        if capabilities is not None:
            capabilities = ClientCapabilities.model_validate(capabilities)
    except (ValueError, TypeError, AttributeError) as error:
        problem = "data.capabilities is wrong" if isinstance(error, ValidationError) else "an id in data is no UUID"
        return malformed(problem)
    request_id, root, parent = ids
    if parent is not None and root is None:
        return malformed("Broken Trace: Root ID missing while Parent ID is present")
    return Incoming(
        "program",
        sender,
        stanza_id,
        thread,
        data["payload"],
        f"{thread}\n{text}",
        "normal",
        {k: v for k, v in metadata.items() if k not in RESERVED},
        request_id=request_id,
        root_request_id=root,
        parent_request_id=parent,
        capabilities=capabilities,
        hops=hops,
    )
