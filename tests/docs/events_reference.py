"""The events on the wire as a page: the codec writes each example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID
from xml.etree.ElementTree import fromstring

from spade_coreason import AgentRequest
from spade_coreason.contracts import DataBlock, ErrorCode, ThinkingBlock, UserErrorBlock
from spade_coreason.domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Parked,
    Refused,
    Repeated,
    RequestContext,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TextEmitted,
    TurnEvent,
)
from spade_coreason.xmpp.codec import (
    JSON_NAMESPACE,
    CloudEventEncoder,
    build_batch,
    decode,
    read_batch_part,
)
from tests.support.transports import request_stanza

_AGENT = "weather@example.org"
_PROGRAM = "planner@example.org/desk"
_THREAD = "trip-1"
_TIME = "2026-01-31T12:00:00Z"
_REQUEST_ID = UUID("6e8bc430-9c3a-41d9-9669-cb1ce6a2b011")
_SESSION_ID = UUID("0f0e0d0c-0b0a-4908-8706-050403020100")
_KEY = UUID("3d1f8ac2-2b1e-5e53-9f8c-6a6c1c0f7a10")
_BLOCK_ID = UUID("3d1f8ac2-2b1e-5e53-9f8c-6a6c1c0f7a12")
_STREAM_ID = "3d1f8ac2-2b1e-5e53-9f8c-6a6c1c0f7a13"
_BATCH_CONTEXT = RequestContext(accepts_batches=True)
_CONVERSATION = "planner@example.org_weather@example.org"

EVENTS: list[tuple[str, TurnEvent]] = [
    ("A text in Markdown (`response.markdown`).", TextEmitted("**12 °C** in Berlin", 1)),
    (
        "A question with choices (`response.ask`). Reply with one of the values, or with any text, as the next request.",
        TextEmitted("Another city?", 2, choices=(("Rome", "Rome"), ("Oslo", "Oslo"))),
    ),
    (
        "A JSON object (`response.data`). `view_hint` is `TABLE`, `JSON`, `LIST` or `KEY_VALUE`.",
        BlockEmitted(DataBlock(id=_BLOCK_ID, title="Today", data={"city": "Berlin", "celsius": 12})),
    ),
    (
        "A thought (`response.thought`), if you want them. `status` is `IN_PROGRESS` or `COMPLETE`. A step"
        " (`response.step`) has the title `step`.",
        BlockEmitted(ThinkingBlock(id=_BLOCK_ID, title="step", content="Asking the station…")),
    ),
    (
        "An error that the agent reports (`response.error`), or a failure of the turn. Its details stay with the agent.",
        BlockEmitted(
            UserErrorBlock(id=_BLOCK_ID, user_message="The station is closed.", recoverable=True, code=ErrorCode.UNAVAILABLE)
        ),
    ),
    ("A stream opens (`response.create_stream`). Several streams may interleave.", StreamStarted(_STREAM_ID, "Report")),
    ("The next piece of a stream. `seq` counts from 0.", StreamChunk(_STREAM_ID, 0, "It is ")),
    ("A stream is complete.", StreamEnded(_STREAM_ID)),
    (
        "A stream ends early (`stream.abort`, `stream.replace`). A `replacement` replaces all text of the stream.",
        StreamAborted(_STREAM_ID, "a second look", "It is cold."),
    ),
    (
        "The events that follow are the whole reply, and events before it do not count. You get it before the stored reply to a"
        " request that was sent again, and when a turn runs again because the database could not store its end.",
        Repeated(),
    ),
    (
        "The agent has asked a person. This ends the reply for now. Send the request again under the same id: you get this"
        " event until they have answered, and then the whole reply. A person who sent it from their own account gets the rest"
        " as texts, in any client.",
        Parked(),
    ),
    (
        "The last event of a reply. `state` is that of the conversation: `active` or `completed`. `usage` has the tokens of"
        " language models, and is there only if the agent used one.",
        Completed(_CONVERSATION, "active", {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}),
    ),
    (
        "The last event of a failed request. `code` is an [error code](errors-and-exit-codes.md#codes). The command"
        " `spade-coreason incident` shows the traceback of the number `incident`. If the turn had waited"
        ' for a person\'s answer, there is also `"has_asked": true`. The request with another id would ask again.',
        Failed("Something went wrong on my side (incident 7f3a09c1).", ErrorCode.INTERNAL, True, "7f3a09c1"),
    ),
    (
        "The only event of a refused request. `retry_after_s` is the time to wait, or `null` if a retry is useless. With code"
        " 429 a `condition` names the error as XMPP does.",
        Refused("You have reached the limit of 20 messages a minute. Write again in 3 s.", ErrorCode.TOO_MANY_REQUESTS, 3.0),
    ),
]
"""Each event with its explanation, in the order of a reply."""


def request_example() -> str:
    """Return the stanza of a request."""
    request = AgentRequest.model_validate(
        {"request_id": _REQUEST_ID, "session_id": _SESSION_ID, "created_at": _TIME, "payload": {"query": "Berlin"}}
    )
    return request_stanza(
        _AGENT, request.dump(), source=f"xmpp:{_PROGRAM}", thread=_THREAD, stanza_id=str(_REQUEST_ID), context=RequestContext(1)
    )


def event_examples(stanza_bytes: int = 65_536, events: list[TurnEvent] | None = None) -> list[str]:
    """Return the stanzas of a reply with the events, as the codec writes them."""
    received = request_example().replace("<message ", f"<message xmlns='jabber:client' from='{_PROGRAM}' ", 1)
    incoming = decode(fromstring(received))
    assert isinstance(incoming, InboundRequest), incoming
    encoder = CloudEventEncoder(incoming, _KEY, f"{_AGENT}/agent", stanza_bytes)
    stanzas = [stanza for event in events or [event for _, event in EVENTS] for stanza in encoder.encode(event)]
    return stanzas + encoder.flush()


def read_event(stanza: str) -> dict[str, Any]:
    """Return the CloudEvent in a stanza. Its time is always the same."""
    element = fromstring(stanza).find(f"{{{JSON_NAMESPACE}}}json")
    assert element is not None
    assert element.text is not None
    event: dict[str, Any] = json.loads(element.text)
    return {**event, "time": _TIME}


def to_markdown() -> str:
    """Return the events of a reply for docs/reference/events.md."""
    return "\n\n".join(_event_blocks())


def request_markdown() -> str:
    """Return the request for docs/reference/events.md."""
    return _json(read_event(request_example()))


def batch_markdown() -> str:
    """Return a message with two requests, for docs/reference/events.md. The events are shortened."""
    stanzas = [
        request_stanza(
            _AGENT,
            {},
            source=f"xmpp:{_PROGRAM}",
            thread=thread,
            stanza_id=stanza_id,
            context=_BATCH_CONTEXT,
            reads_batches=True,
        )
        for stanza_id, thread in (("request-1", _THREAD), ("request-2", "trip-2"))
    ]
    batch = build_batch(_AGENT, [part for stanza in stanzas if (part := read_batch_part(stanza)) is not None])
    opening, container, rest = batch.partition(f"<json xmlns='{JSON_NAMESPACE}'>[")
    events = json.loads(fromstring(batch)[0].text or "")
    shown = [json.dumps({name: event[name] for name in ("type", "id", "thread")})[:-1] + ", …}" for event in events]
    end = rest[rest.rindex("]</json>") :].removesuffix("</message>")
    return "\n".join(["```text", opening, f"  {container}", "    " + ",\n    ".join(shown), f"  {end}", "</message>", "```"])


def stanza_markdown() -> str:
    """Return the stanza around an event, for docs/reference/events.md."""
    stanza = re.sub(r">\{.*\}<", ">{…}<", event_examples()[0])
    lines = re.sub(r"(?<=>)(?=<(?!/json))|(?=</message>)", "\n", stanza).splitlines()
    indented = [line if line.startswith(("<message", "</message")) else f"  {line}" for line in lines]
    return "\n".join(["```text", *indented, "```"])


def fragment_markdown() -> str:
    """Return the first fragment of an event that is too long for one stanza, for docs/reference/events.md."""
    [first, *others] = event_examples(1200, [TextEmitted("A long text. " * 60, 1)])
    event = read_event(first)
    assert event["data"]["count"] == len(others) + 1
    event["data"]["chunk"] = event["data"]["chunk"][:60] + "…"
    return _json(event)


def _event_blocks() -> Iterator[str]:
    described: set[str] = set()
    for (text, _), stanza in zip(EVENTS, event_examples(), strict=True):
        event = read_event(stanza)
        kind = event["type"].removeprefix("ai.coreason.")
        if kind not in described:
            yield f"### `{kind}` {{ #{kind.replace('.', '-')} }}"
        described.add(kind)
        yield text
        yield _json(event["data"])


def _json(value: dict[str, Any]) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```"
