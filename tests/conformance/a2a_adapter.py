"""A plugin for the pytest of the A2A kit, with two things that the kit leaves out. It imports nothing of ours.

1. The kit sends no credentials, although the card requires them. The plugin adds the key.
2. The kit sends different messages under one `messageId`, which is to be unique (`a2a.proto`). The plugin numbers them.
"""

from __future__ import annotations

import json
import os
from itertools import count
from typing import Any

import httpx

_KEY = os.environ["A2A_KEY"]
_numbers = count(1)
_send = httpx.Client.send


def _number(body: bytes) -> bytes:
    try:
        content = json.loads(body)
    except ValueError:
        return body
    holder = content.get("params", content) if isinstance(content, dict) else None
    message = holder.get("message") if isinstance(holder, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("messageId"), str):
        return body
    message["messageId"] += f"-{next(_numbers)}"
    return json.dumps(content).encode()


def _send_with_key(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
    body = request.read()
    if body and (numbered := _number(body)) != body:
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
        request = httpx.Request(
            request.method, request.url, headers=headers, content=numbered, extensions=dict(request.extensions)
        )
    request.headers.setdefault("Authorization", f"Bearer {_KEY}")
    return _send(client, request, **options)


httpx.Client.send = _send_with_key  # the kit makes its own clients
