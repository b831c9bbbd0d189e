"""The measure: a bare slixmpp echo, `python -m tests.chaos.echo`. It answers the askers and discards everything else.

It stores nothing. It has stream management, as the agents have: that alone costs the server time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import sys
from typing import Any, TypedDict

import slixmpp

from tests.support.servers.raw_client import Login

_MAX_RECURSION = 50_000
"""slixmpp recurses over the elements of a stanza, and its stream ends where Python's own limit does."""


class Task(TypedDict):
    """The login of the echo, and the bare JIDs that it answers."""

    login: Login
    askers: list[str]


async def _echo(task: Task) -> None:
    login, askers = task["login"], set(task["askers"])
    client: Any = slixmpp.ClientXMPP(f"{login['jid']}/agent", login["password"])
    client.enable_direct_tls = False  # otherwise the first attempt is direct TLS, which a STARTTLS port cannot answer
    client.ssl_context = ssl.create_default_context(cafile=login["ca_file"])
    client.register_plugin("xep_0198", {"allow_resume": True})
    online = asyncio.Event()

    def answer(message: Any) -> None:
        if message["type"] == "chat" and message["from"].bare in askers:
            message.reply(message["body"]).send()

    sessions = 0

    def count_session(_: object) -> None:
        nonlocal sessions
        sessions += 1
        client.send_presence()
        online.set()

    client.add_event_handler("session_start", count_session)
    client.add_event_handler("session_resumed", count_session)
    client.add_event_handler("message", answer)
    client.add_event_handler("disconnected", lambda _: client.connect(login["host"], login["port"]))
    client.connect(login["host"], login["port"])
    await online.wait()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each answer into a stream that has ended
    sys.setrecursionlimit(_MAX_RECURSION)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps({"is_connected": client.is_connected(), "sessions": sessions}), flush=True)


if __name__ == "__main__":
    asyncio.run(_echo(json.loads(sys.stdin.readline())))
