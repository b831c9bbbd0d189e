"""The signatures of webhooks, without I/O: Standard Webhooks (version 1), and GitHub's form.

Sources: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md and
https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ...storage import WebhookKind

if TYPE_CHECKING:
    from starlette.datastructures import Headers

TOLERANCE_S = 300
"""The seconds by which the time of a Standard Webhook may differ from the clock, both ways."""
_MAX_SIGNATURES = 8
# Without a dot, since the signed text is "id.timestamp.body": it must have one reading only.
_ID = re.compile(r"[!-\-/-~]{1,256}", re.ASCII)
_TIMESTAMP = re.compile(r"[0-9]{1,16}", re.ASCII)
_NO_KEY = bytes(32)
_STANDARD_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
_GITHUB_HEADER = "x-hub-signature-256"


class SignatureError(Exception):
    """The signature of a request is missing or wrong."""


class ClockError(SignatureError):
    """The time of a request is too far from the clock."""


def sign_standard(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a Standard Webhook."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


def sign_github(key: bytes, body: bytes) -> str:
    """Return the signature of GitHub's form."""
    return f"sha256={hmac.digest(key, body, 'sha256').hex()}"


def find_kind(headers: Headers) -> WebhookKind:
    """Return the form in which a request is signed, or seems to be."""
    return "github" if _GITHUB_HEADER in headers and not any(name in headers for name in _STANDARD_HEADERS) else "standard"


def verify(kind: WebhookKind, headers: Headers, body: bytes, keys: Sequence[bytes | None], now: datetime) -> int:
    """Return the number of the key, in `keys`, with which a request is signed. Raise SignatureError.

    The work is the same for each key, also for None, so that the time tells nothing about them.
    """
    if kind == "standard":
        message_id, timestamp, signatures = (_only(headers, name) for name in _STANDARD_HEADERS)
        if not (_ID.fullmatch(message_id) and _TIMESTAMP.fullmatch(timestamp)):
            raise SignatureError
        if abs(now.timestamp() - int(timestamp)) > TOLERANCE_S:
            raise ClockError
        expected = [sign_standard(key or _NO_KEY, message_id, timestamp, body) for key in keys]
        given = signatures.split(" ")[:_MAX_SIGNATURES]
    else:
        given = [_only(headers, _GITHUB_HEADER)]
        expected = [sign_github(key or _NO_KEY, body) for key in keys]
    matches = [
        [hmac.compare_digest(one.encode(), signature.encode("utf-8", "replace")) for signature in given] for one in expected
    ]
    for number, key in enumerate(keys):
        if key and any(matches[number]):
            return number
    raise SignatureError


def _only(headers: Headers, name: str) -> str:
    """Return the value of a header. Raise SignatureError unless it is there once."""
    values = headers.getlist(name)
    if len(values) != 1:
        raise SignatureError
    return values[0]
