"""The events of webhooks as agents get them: the body as a payload, and its source as metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from pydantic_core import from_json
from starlette.datastructures import Headers

from ...config import WebLimits
from ...storage import WebhookKind
from ..errors import HttpError
from ..limits import check_json

WEBHOOK = "webhook"
"""The key of `request.metadata` that says by which webhook a request came."""
_MAX_PART_CHARACTERS = 200
_FORM = "application/x-www-form-urlencoded"


class WebhookEvent(NamedTuple):
    """The body of a delivery, as an agent gets it."""

    payload: dict[str, Any]
    """`query`, a line for people, and `event`, the JSON value of the body. A text is the `query` alone."""
    metadata: dict[str, Any]
    """Under "webhook": `name`, `kind`, `event` (its type, "" if it has none) and `content_type`."""

    @property
    def is_ping(self) -> bool:
        """True for the ping of GitHub. The body decides, because the header with the type is not signed."""
        event = self.payload.get("event")
        return isinstance(event, dict) and "zen" in event and "hook_id" in event


def read_event(name: str, kind: WebhookKind, headers: Headers, body: bytes, limits: WebLimits) -> WebhookEvent:
    """Read the body of a delivery to a webhook.

    Raise HttpError if it is no UTF-8, claims to be JSON and is not, or is JSON of too many values.
    """
    content_type = _clean(headers.get("content-type", "").partition(";")[0].lower())
    header_type = _clean(headers.get("x-github-event", "")) if kind == "github" else ""
    text = _decode(body)
    is_json = content_type == "application/json" or content_type.endswith("+json")
    if content_type == _FORM and (values := _read_form(text)):
        text, is_json = values, True
    if not is_json:
        return WebhookEvent(
            {"query": text or _describe(name, header_type, {})}, _metadata(name, kind, header_type, content_type)
        )
    check_json(text.encode(), limits)
    event = _parse(text)
    fields = event if isinstance(event, dict) else {}
    event_type = header_type or _text_of(fields, "type") or _text_of(fields, "event")
    query = fields.get("query")
    line = query if isinstance(query, str) and query else _describe(name, event_type, fields)
    return WebhookEvent({"query": line, "event": event}, _metadata(name, kind, event_type, content_type))


def _metadata(name: str, kind: WebhookKind, event_type: str, content_type: str) -> dict[str, Any]:
    return {WEBHOOK: {"name": name, "kind": kind, "event": event_type, "content_type": content_type}}


def _decode(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, "the body is no UTF-8; send JSON or a text in UTF-8") from error


def _read_form(text: str) -> str:
    """Return the field `payload` of a form, as GitHub sends it; "" without exactly one."""
    try:
        values = parse_qs(text, strict_parsing=True, errors="strict").get("payload", [])
    except ValueError:
        return ""
    return values[0] if len(values) == 1 else ""


def _parse(text: str) -> Any:
    try:
        value = from_json(text, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)  # a number that is too large has become infinite
    except ValueError as error:
        raise HttpError(400, "the body is no valid JSON; correct it, or send it as text/plain") from error
    return value


def _describe(name: str, event_type: str, fields: Mapping[str, Any]) -> str:
    """Return a line for people, such as "push in octo/hello by ada"."""
    action = _text_of(fields, "action")
    line = f"{event_type} {action}".strip() or f"an event of the webhook {name}"
    for word, part, key in (("in", "repository", "full_name"), ("by", "sender", "login")):
        inner = fields.get(part)
        if isinstance(inner, dict) and (found := _text_of(inner, key)):
            line += f" {word} {found}"
    return line


def _text_of(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    return _clean(value) if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """Return a text as a short line."""
    line = re.sub(r"\s+", " ", "".join(one if one.isprintable() else " " for one in text[: 2 * _MAX_PART_CHARACTERS]))
    return line.strip()[:_MAX_PART_CHARACTERS]
