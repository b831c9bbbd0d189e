"""A person with the client profanity, on its screen: typing, an answer that grows, questions in order, styling, a room."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.xmpp.room import RoomPlan
from tests.servers.profanity import Profanity, installed
from tests.servers.requirements import require
from tests.servers.server import XmppServer
from tests.waiting import eventually
from tests.xmpp.hosting import By, hosted

WEATHER = """\
# Weather

- **Berlin**: *rain*, see `umbrella` and [more](https://example.org/x)

| city | °C |
|---|---|
| Berlin | 7 |
"""
AS_PEOPLE_READ_IT = (
    "*Weather*\n",
    "- *Berlin*: _rain_, see `umbrella` and more (https://example.org/x)\n",
    "city    °C\n",
    "Berlin  7\n",
)


class Guide:
    """An agent that goes on when a test tells it to."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.agent = By(self.assist, "guide")

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        query = request.payload["query"]
        if query == "grow":
            stream = await response.create_stream()
            while (word := await self.words.get()) is not None:
                await stream.write(word)
            await stream.close()
        elif query == "weather":
            await response.markdown(WEATHER)
        else:
            await self.words.get()
            await response.markdown(f"this is {query}")

    def say(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


@pytest.fixture(autouse=True)
def _needs_profanity() -> None:
    require("profanity", installed())


async def test_a_person_talks_with_an_agent_in_profanity(real_server: XmppServer, tmp_path: Path) -> None:
    guide, room = Guide(), f"room-{secrets.token_hex(3)}@muc.localhost"
    plan = RoomPlan(room, "Guide")
    account = await real_server.account()
    async with (
        hosted(guide.agent, real_server, tmp_path, name=f"guide-{secrets.token_hex(3)}", rooms=[plan]) as agent,
        Profanity(account, real_server, tmp_path / "profanity") as screen,
    ):
        jid = f"{agent.jid}/agent"

        await screen.type(f"/sub request {agent.jid}")
        await screen.shows(f"Subscription received from {agent.jid}", f"Received authorization request from {agent.jid}")
        await screen.type(f"/sub allow {agent.jid}")
        await eventually(lambda: agent.host.abilities.corrects(account[0]))
        await screen.type(f"/msg {agent.jid}")
        await screen.shows("Hello, I am guide.")

        # Two questions at once: typing is shown, and they are answered in their order.
        await screen.type("the first")
        await screen.type("the second")
        assert "(typing...)" in (await screen.shows("(typing...)", "me: the first", "me: the second")).splitlines()[0]
        guide.say("go")
        await screen.shows("me: the second", f"{jid}: this is the first")
        guide.say("go")
        seen = await screen.shows(f"{jid}: this is the first", f"{jid}: this is the second")
        assert "(typing...)" not in seen

        # An answer grows: the same line, corrected in its place.
        await screen.type("grow")
        for words, line in (("It ", "It"), ("is ", "It is"), ("sunny ", "It is sunny")):
            guide.say(words)
            seen = await screen.shows("me: grow", f"{jid}: {line}\n")
            assert "(typing...)" in seen
        guide.say("today", None)
        seen = await screen.shows("me: grow", f"{jid}: It is sunny today\n")
        assert seen.count("It is") == 1

        await screen.type("weather")
        await screen.shows("me: weather", *AS_PEOPLE_READ_IT)

        # A room: it answers who names it, and nobody else.
        await eventually(lambda: agent.host.rooms.states.get(room) == "joined")
        await screen.type(f"/join {room} nick alice")
        await screen.shows("You have joined the room as alice")
        await screen.type("hello everybody")
        await screen.shows("alice: hello everybody")
        await screen.type("Guide: weather in the room")
        guide.say("go")
        seen = await screen.shows("Guide: weather in the room", "Guide: alice: this is weather in the room")
        assert seen.count("alice: this is") == 1
