"""A person with the client profanity, on its screen: typing, an answer that grows, order, styling, a room, forms."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle, command
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.testing import Policy, Rules
from tests.support.hosting import FunctionAgent, run_agent
from tests.support.servers.profanity import Profanity, installed
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

WEATHER = """\
# Weather

- **Berlin**: *rain*, see `umbrella` and [more](https://example.org/x)

| city | °C |
|---|---|
| Berlin | 7 |
"""
WEATHER_LINES = (
    "*Weather*\n",
    "- *Berlin*: _rain_, see `umbrella` and more (https://example.org/x)\n",
    "city    °C\n",
    "Berlin  7\n",
)


class Guide:
    """An agent that continues when the test tells it to."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.agent = FunctionAgent(self.assist, "guide")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
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

    def continue_with(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


@pytest.fixture(autouse=True)
def _require_profanity() -> None:
    require("profanity", installed())


async def test_a_person_talks_with_an_agent_in_profanity(real_server: XmppServer, tmp_path: Path) -> None:
    guide, room = Guide(), f"room-{secrets.token_hex(3)}@muc.localhost"
    room_config = RoomConfig(room, "Guide")
    account = await real_server.account()
    async with (
        run_agent(guide.agent, real_server, tmp_path, name=f"guide-{secrets.token_hex(3)}", rooms=[room_config]) as agent,
        Profanity(account, real_server, tmp_path / "profanity") as screen,
    ):
        jid = f"{agent.jid}/agent"

        await screen.type(f"/sub request {agent.jid}")
        await screen.wait_for(f"Subscription received from {agent.jid}", f"Received authorization request from {agent.jid}")
        await screen.type(f"/sub allow {agent.jid}")
        await eventually(lambda: agent.host.peer_features.has_corrections(account[0]))
        await screen.type(f"/msg {agent.jid}")
        await screen.wait_for("Hello, I am guide.")

        # Two questions at once: typing is shown, and they are answered in their order.
        await screen.type("the first")
        await screen.type("the second")
        assert "(typing...)" in (await screen.wait_for("(typing...)", "me: the first", "me: the second")).splitlines()[0]
        guide.continue_with("go")
        await screen.wait_for("me: the second", f"{jid}: this is the first")
        guide.continue_with("go")
        seen = await screen.wait_for(f"{jid}: this is the first", f"{jid}: this is the second")
        assert "(typing...)" not in seen

        # An answer grows: the same line, corrected in its place.
        await screen.type("grow")
        for words, line in (("It ", "It"), ("is ", "It is"), ("sunny ", "It is sunny")):
            guide.continue_with(words)
            seen = await screen.wait_for("me: grow", f"{jid}: {line}\n")
            assert "(typing...)" in seen
        guide.continue_with("today", None)
        seen = await screen.wait_for("me: grow", f"{jid}: It is sunny today\n")
        assert seen.count("It is") == 1

        await screen.type("weather")
        await screen.wait_for("me: weather", *WEATHER_LINES)

        # A room: it answers who names it, and nobody else.
        await eventually(lambda: agent.host.rooms.states.get(room) == "joined")
        await screen.type(f"/join {room} nick alice")
        await screen.wait_for("You have joined the room as alice")
        await screen.type("hello everybody")
        await screen.wait_for("alice: hello everybody")
        await screen.type("Guide: weather in the room")
        guide.continue_with("go")
        seen = await screen.wait_for("Guide: weather in the room", "Guide: alice: this is weather in the room")
        assert seen.count("alice: this is") == 1


class Forecast:
    """Has a command with a form, and waits before it answers."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("forecast")
        self.release = asyncio.Event()
        self.queries: list[str] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.queries.append(request.payload["query"])
        await self.release.wait()
        await response.markdown(f"this is {self.queries[-1]}")

    @command("forecast", "the weather of the next days", city="which city", unit="in which unit", rain="with rain")
    async def forecast(
        self, session: SessionHandle, city: str, days: int = 3, unit: Literal["C", "F"] = "C", rain: bool = False
    ) -> str:
        return f"{city}: {days} days, {unit}, {'rain' if rain else 'sun'}."


async def test_a_person_fills_in_forms_and_corrects_a_question_in_profanity(real_server: XmppServer, tmp_path: Path) -> None:
    forecast, account = Forecast(), await real_server.account()
    async with (
        run_agent(forecast, real_server, tmp_path, name=f"f-{secrets.token_hex(3)}") as agent,
        Profanity(account, real_server, tmp_path / "profanity") as screen,
    ):
        jid = f"{agent.jid}/agent"
        await screen.type(f"/msg {jid}")
        for _ in range(20):  # it asks when it knows that the server carries commands, and hears that behind the login
            await screen.type("/cmd list")
            with suppress(AssertionError):
                await screen.wait_for("Ad hoc commands:", timeout_s=0.5)
                break
        await screen.wait_for("Ad hoc commands:", "forecast\n", "forget-me\n", "settings\n")

        await screen.type("/cmd exec forecast")
        form = ("Form title: Forecast", "The weather of the next days.", "[field1] Which city (required):", "[field2] Days: 3")
        await screen.wait_for(*form, "[field3] In which unit:", "[F] F", "[field4] With rain: FALSE")
        for field, value, shown in (("field1", '"New York"', "(required): New York"), ("field4", "on", "With rain: TRUE")):
            await screen.type(f"/{field} {value}")
            await screen.wait_for("Field updated...", shown)
        await screen.type("/form submit")
        await screen.type(f"/msg {jid}")
        await screen.wait_for("forecast completed", "New York: 3 days, C, rain.")

        # A question, corrected before it is answered: its line changes in its place, and the agent answers the new one.
        await screen.type(f"/msg {agent.jid}")
        await screen.type("whta")
        await eventually(lambda: forecast.queries == ["whta"])
        await screen.type("/correct what")
        await eventually(lambda: forecast.queries == ["whta", "what"])
        forecast.release.set()
        seen = await screen.wait_for("me: what", f"{jid}: this is what")
        assert "whta" not in seen

        await screen.type(f"/msg {jid}")
        await screen.type("/cmd exec forget-me")
        await screen.wait_for("Form title: Forget me", "[field1] Yes, do it: FALSE")
        await screen.type("/field1 on")
        await screen.wait_for("Yes, do it: TRUE")
        await screen.type("/form submit")
        await screen.type(f"/msg {jid}")
        await screen.wait_for("forget-me completed", "Deleted: 1 conversation, 1 turn")


async def test_a_person_sends_the_commands_that_profanity_has_too(real_server: XmppServer, tmp_path: Path) -> None:
    asked: list[str] = []

    async def note(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        asked.append(request.payload["query"])
        await response.markdown(f"this is {asked[-1]}")

    policy = Policy(rules=Rules(command_prefixes=("/", "!")))
    account = await real_server.account()
    name = f"notes-{secrets.token_hex(3)}"
    async with (
        run_agent(FunctionAgent(note, "notes"), real_server, tmp_path, name=name, policy=policy) as agent,
        Profanity(account, real_server, tmp_path / "profanity") as screen,
    ):
        jid = f"{agent.jid}/agent"
        await screen.type(f"/msg {agent.jid} hello")
        await screen.wait_for("me: hello", f"{jid}: this is hello")

        # Its own help and status; nothing reaches the agent.
        await screen.type("/help")
        await screen.type("/win 1")
        await screen.wait_for("Choose a help option:", "/help commands")
        await screen.type(f"/msg {agent.jid}")
        await screen.wait_for(f"{jid}: this is hello")

        # With a space before the slash, or with the other character, they are the agent's.
        await screen.type(" /help")
        hint = "If your client runs such a line itself, write a space before the slash, or ! instead"
        await screen.wait_for("I am notes", "/status   show the state of this conversation", hint)
        for line in (" /status", "!status"):
            await screen.type(line)
            await screen.wait_for(f"me: {line}", "This conversation is active: 1 of 100 messages")
        await screen.type("!!status")
        await screen.wait_for("me: !!status", f"{jid}: this is !status")
        assert asked == ["hello", "!status"]
