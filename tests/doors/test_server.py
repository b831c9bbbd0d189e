"""The HTTP server of the doors, over real sockets."""

from __future__ import annotations

import json

from tests.support.doors import ask, serve, web_settings


async def test_a_request_with_a_key_reaches_its_route() -> None:
    settings = web_settings()
    async with serve(settings):
        reply = await ask(settings, "/whoami")
    assert (reply.status, json.loads(reply.body)["caller"]) == (200, "website@callers.invalid")
