"""The addresses of answers: each ends with 256 bits that only the platform can make, so that none can be guessed.

Nothing is stored for them. An address has the row of its webhook, the request, and an HMAC of both. A repeated delivery has the
same request, and so the same address.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

_ROW_BYTES, _ID_BYTES = 8, 16
_TOKEN = re.compile(r"[\w-]{75}", re.ASCII)


class AnswerAddress(NamedTuple):
    """A request of a webhook, of which an address is known to be made here."""

    webhook: int
    """The row of the webhook."""
    request_id: UUID


def make_token(answer_key: bytes, address: AnswerAddress) -> str:
    """Return the last part of the address of an answer: 75 characters of base64url."""
    named = address.webhook.to_bytes(_ROW_BYTES, "big") + address.request_id.bytes
    return base64.urlsafe_b64encode(named + hmac.digest(answer_key, named, "sha256")).decode().rstrip("=")


def read_token(token: str, find_key: Callable[[int], bytes | None]) -> AnswerAddress | None:
    """Return what an address was made for. None if it was not made here. `find_key` returns the key of a webhook by its row."""
    if not _TOKEN.fullmatch(token):
        return None
    named = base64.urlsafe_b64decode(f"{token}=")[: _ROW_BYTES + _ID_BYTES]
    address = AnswerAddress(int.from_bytes(named[:_ROW_BYTES], "big"), UUID(bytes=named[_ROW_BYTES:]))
    key = find_key(address.webhook)
    # All of the text is compared: base64 has several texts for the same bytes.
    is_ours = hmac.compare_digest(make_token(key or bytes(_ROW_BYTES), address), token)
    return address if key is not None and is_ours else None
