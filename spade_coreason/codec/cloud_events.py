"""CloudEvents 1.0 in JSON containers (XEP-0335): what programs and agents send each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

from pydantic_core import to_json

from .elements import ANSWER_MARK, text_bytes, thread_element
from .namespaces import FRAGMENT, JSON_NAMESPACE, ORIGIN_ID_NAMESPACE, RETRACT, TYPE_PREFIX
from .xml import attribute, clean, escape_clean, printable, split


class EventWriter:
    """CloudEvents 1.0 as stanzas. An event too long for one is sent as ordered fragments of its JSON."""

    def __init__(self, *, to: str, source: str, thread: str | None, id_prefix: str, request_id: str, stanza_bytes: int) -> None:
        self._opening = f"<message to='{attribute(to)}' id='"
        self._source = _json_text(source)
        self._request_id = _json_text(request_id)
        self._tail = f"</json>{thread_element(thread)}{ANSWER_MARK}"
        self._id_prefix = id_prefix
        self._json_bytes = text_bytes(stanza_bytes, to, thread)
        self._made = 0
        self._thoughts = 0
        self._said = 0

    def write(self, kind: str, data: dict[str, Any], beside: str = "") -> list[str]:
        """The stanzas of one event; more than one only where it is too long. `beside` is XML, left out where it has no room."""
        said = _json_text(data)
        stanza_id = self._next_id(kind, said)
        whole = self._json(kind, stanza_id, said)
        text = escape_clean(whole)
        if len(text) * 4 <= self._json_bytes or len(text.encode()) <= self._json_bytes:
            if beside and len(text.encode()) + len(beside.encode()) > self._json_bytes:
                beside = ""
            return [self._stanza(stanza_id, text, beside)]
        # A fragment is quoted JSON again: a quote or a backslash takes two bytes more, and a third of the room is enough.
        parts = list(split(whole, self._json_bytes // 3, sensibly=False))
        fragments = []
        for index, part in enumerate(parts):
            fragment_id = f"{stanza_id}.{index}"
            fragment = {"event_id": stanza_id, "index": index, "count": len(parts), "chunk": part}
            text = self._json(FRAGMENT.removeprefix(TYPE_PREFIX), fragment_id, _json_text(fragment))
            fragments.append(self._stanza(fragment_id, escape_clean(text)))
        return fragments

    def _next_id(self, kind: str, data: str) -> str:
        """The same for the same event after the same events; `data` is JSON.

        From where a turn that runs again says something else, all its events are new to whoever heard the first run: a
        piece of text that both have at the same place too. A thought changes nothing of what follows.
        """
        said = crc32((kind + data).encode(), self._said)
        if kind == "block.thought":
            self._thoughts += 1
            return f"{self._id_prefix}-{self._made}.{self._thoughts}-{said:08x}"
        self._said = said
        self._made += 1
        return f"{self._id_prefix}-{self._made - 1}-{said:08x}"

    def _json(self, kind: str, event_id: str, data: str) -> str:
        """A CloudEvent around its data, which is JSON."""
        return (
            f'{{"specversion":"1.0","type":"{TYPE_PREFIX}{kind}","source":{self._source},"id":"{event_id}",'
            f'"time":{to_json(datetime.now(UTC)).decode()},"datacontenttype":"application/json",'
            f'"requestid":{self._request_id},"data":{data}}}'
        )

    def _stanza(self, stanza_id: str, text: str, beside: str = "") -> str:
        said = f"{beside}<json xmlns='{JSON_NAMESPACE}'>{text}{self._tail}"
        return f"{self._opening}{stanza_id}'>{said}{_origin(stanza_id)}</message>"


def _origin(stanza_id: str) -> str:
    return f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/>"


def request_stanza(
    to: str, request_json: dict[str, Any], *, source: str, thread: str | None, stanza_id: str, hops: int = 0
) -> str:
    """A program's request (event type `ai.coreason.request`); `request_json` is the dump of an AgentRequest.

    `hops` says through how many agents it came.
    """
    event = {
        "specversion": "1.0",
        "type": f"{TYPE_PREFIX}request",
        "source": source,
        "id": stanza_id,
        "time": datetime.now(UTC),
        "datacontenttype": "application/json",
        **({"hops": hops} if hops else {}),
        "data": request_json,
    }
    text = escape_clean(_json_text(event))
    return (
        f"<message to='{attribute(to)}' id='{attribute(stanza_id)}'>"
        f"<json xmlns='{JSON_NAMESPACE}'>{text}</json>{thread_element(thread)}{_origin(attribute(stanza_id))}"
        "</message>"
    )


def retraction_stanza(to: str, stanza_id: str) -> str:
    """Takes the request with that id back (XEP-0424), whatever is left of it."""
    retract = f"<retract xmlns='{RETRACT}' id='{attribute(stanza_id)}'/>"
    return f"<message to='{attribute(to)}' id='{uuid4()}'>{retract}</message>"


def _json_text(value: Any) -> str:
    """A value as JSON that may stand in XML once it is escaped."""
    try:
        text = to_json(value)
    except ValueError:  # lone surrogates, which no UTF-8 has
        text = to_json(printable(value))
    return clean(text.decode())
