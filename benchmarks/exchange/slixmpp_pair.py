"""Two bare slixmpp clients: a message, and a reply with the same id. Nothing is stored."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import slixmpp

from .pair import TIMEOUT_S, AskInConversation, Place, ask_in_turn


@asynccontextmanager
async def answerer(place: Place) -> AsyncIterator[str]:
    """Run the client that answers; yield its JID."""

    def answer(message: Any) -> None:
        reply = message.reply(message["body"])
        reply["id"] = message["id"]
        reply.send()

    async with _online(place, answer) as client:
        yield client.boundjid.full


@asynccontextmanager
async def asker(place: Place) -> AsyncIterator[AskInConversation]:
    """Run the client that asks. It finds the question of a reply by its id."""
    replies: dict[str, asyncio.Future[str]] = {}
    ids = map(str, count())

    def receive(message: Any) -> None:
        replies.pop(message["id"]).set_result(message["body"])

    async with _online(place, receive) as client:

        async def ask(thread: str, text: str) -> str:
            message = client.make_message(place.address, text, mtype="chat")
            message["id"], message["thread"] = next(ids), thread
            reply = replies[message["id"]] = asyncio.get_running_loop().create_future()
            message.send()
            return await asyncio.wait_for(reply, TIMEOUT_S)

        yield lambda conversation, numbers: ask_in_turn(partial(ask, f"conversation-{conversation}"), numbers)


@asynccontextmanager
async def _online(place: Place, on_message: Callable[[Any], None]) -> AsyncIterator[Any]:
    jid, password = place.accounts[0]
    client: Any = slixmpp.ClientXMPP(f"{jid}/agent", password)
    client.enable_direct_tls = False  # otherwise the first attempt is direct TLS, which a STARTTLS port cannot answer
    client.ssl_context = ssl.create_default_context(cafile=place.ca_file)
    online = asyncio.Event()
    client.add_event_handler("session_start", lambda _: online.set())
    client.add_event_handler("message", on_message)
    client.connect(place.host, place.port)
    await online.wait()
    client.send_presence()
    try:
        yield client
    finally:
        await client.disconnect(wait=1.0)
