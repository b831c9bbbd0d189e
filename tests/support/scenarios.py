"""Scenarios with people, programs and an agent, written once and run in memory and on real servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape, quoteattr

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ResponseHandler, SessionHandle
from spade_coreason.exceptions import PeerError
from spade_coreason.runtime.peers.peer_answers import PeerEvent
from spade_coreason.testing import Policy, Rules
from tests.support.hosting import run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.codec.test_attachments import oob, sfs, sims
from tests.xmpp.test_failing_agents import new_program_client

POLICY = Policy(rules=Rules(max_interactions=6))
BODY = "{jabber:client}body"
LONG = " ".join(f"word{number}" for number in range(20_000))


class ScriptedAgent:
    """An agent whose queries are instructions."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("actor")
        self.release = asyncio.Event()
        self.queries: list[str] = []
        self.feedback_calls: list[tuple[str, ...]] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.queries.append(query)
        turns = len(await session.history(10))
        match query.split()[0]:
            case "wait":
                await self.release.wait()
                await response.markdown(f"waited: {query}")
            case "stream":
                stream = await response.create_stream()
                for word in ("It ", "is ", "**sunny**"):
                    await stream.write(word)
                await stream.close()
            case "two":
                await response.thought("how many?")
                await response.markdown("one")
                await response.markdown("two")
            case "markdown":
                await response.markdown(
                    "# Title\n\n- **bold** and `code`\n- [link](https://example.org)\n\n| a | b |\n|---|---|\n| 1 | 2 |"
                )
            case "data":
                await response.data({"city": "Berlin", "degrees": 7}, title="Weather", view_hint="KEY_VALUE")
            case "long":
                await response.markdown(LONG)
            case "error":
                await response.error("No such city.", {"secret": "inside"})
            case "raise":
                raise ValueError("a secret of the inside")
            case "files" | "https://example.org/a%20b.txt":
                await response.markdown(str([file["name"] for file in request.payload["attachments"]]))
            case _:
                await response.markdown(f"{turns}: {query}")

    async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
        self.feedback_calls.append(reactions)


class Driver(Protocol):
    """One person and one program that talk with the agent."""

    scripted_agent: ScriptedAgent

    async def send(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        """Send a message as a person's client does."""
        ...

    async def receive(self) -> Element:
        """Return the next message with a body."""
        ...

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        """Send a request as a program."""
        ...


async def texts(driver: Driver, count: int) -> list[str]:
    return [_normalise_incident((await driver.receive()).findtext(BODY, "")) for _ in range(count)]


def _normalise_incident(text: str) -> str:
    return re.sub(r"incident [0-9a-f]{8}", "incident #", text)


async def _events(driver: Driver, text: str) -> list[str]:
    try:
        return [event.type async for event in driver.ask(text)]
    except PeerError as error:
        return [type(error).__name__, _normalise_incident(str(error)).partition(" ")[2]]


# The scenarios: each returns its result, which has to be the same everywhere.


async def threads(driver: Driver) -> Any:
    for thread, text in (("a", "here"), ("b", "there"), ("a", "here again"), ("", "nowhere")):
        await driver.send(text, thread=thread)
    return sorted(await texts(driver, 4))


async def order(driver: Driver) -> Any:
    for number in range(3):
        await driver.send(f"number {number}", id=f"same id {number % 2}")
    return await texts(driver, 3)


async def a_stream(driver: Driver) -> Any:
    await driver.send("stream")
    return await texts(driver, 1)


async def two_blocks(driver: Driver) -> Any:
    await driver.send("two")
    return await texts(driver, 2)


async def a_correction(driver: Driver) -> Any:
    await driver.send("wait for whta", id="1")
    await eventually(lambda: bool(driver.scripted_agent.queries))
    await driver.send("wait for what", id="2", extra_xml="<replace xmlns='urn:xmpp:message-correct:0' id='1'/>")
    await eventually(lambda: len(driver.scripted_agent.queries) == 2)
    driver.scripted_agent.release.set()
    await driver.send("the end")
    return await texts(driver, 2)


async def a_retraction(driver: Driver) -> Any:
    await driver.send("wait for nothing", id="1")
    await eventually(lambda: bool(driver.scripted_agent.queries))
    await driver.send("taken back", extra_xml="<retract xmlns='urn:xmpp:message-retract:1' id='1'/>")
    await driver.send("the end")
    return await texts(driver, 1)


async def a_reaction(driver: Driver) -> Any:
    await driver.send("hello")
    answer = await driver.receive()
    for ident in ("no such message", answer.get("id", "")):
        await driver.send(
            None, extra_xml=f"<reactions xmlns='urn:xmpp:reactions:0' id='{ident}'><reaction>👍</reaction></reactions>"
        )
    await eventually(lambda: bool(driver.scripted_agent.feedback_calls))
    await driver.send("the end")
    return driver.scripted_agent.feedback_calls, await texts(driver, 1)


async def a_long_text(driver: Driver) -> Any:
    await driver.send("long")
    parts: list[str] = []
    while len(" ".join(parts)) < len(LONG):
        parts += await texts(driver, 1)
    return len(parts), " ".join(parts) == LONG


async def markdown(driver: Driver) -> Any:
    await driver.send("markdown")
    return await texts(driver, 1)


async def a_data_block(driver: Driver) -> Any:
    await driver.send("data")
    return await texts(driver, 1)


async def errors(driver: Driver) -> Any:
    for query in ("error", "raise", "still there?"):
        await driver.send(query)
    return await texts(driver, 3)


async def a_refusal(driver: Driver) -> Any:
    for number in range(6 + 3):
        await driver.send(f"number {number}", thread="limited")
    await driver.send("the end", thread="another")
    return sorted(text[:40] for text in await texts(driver, 6 + 1 + 1))


async def attachments(driver: Driver) -> Any:
    link = "https://example.org/a%20b.txt"
    names: list[str] = []
    for shared in (oob(link), sfs(link, name="shared.txt"), sims(link, name="media.txt")):
        for text in (f"files {link}", None, ""):
            await driver.send(text, thread=f"thread {len(names)}", extra_xml=shared)
            names += await texts(driver, 1)
    return names


async def silence(driver: Driver) -> Any:
    await driver.send(None, extra_xml="<active xmlns='http://jabber.org/protocol/chatstates'/>")
    await driver.send("an answer", extra_xml="<answer xmlns='urn:spade-coreason:answer:0'/>")
    await driver.send("  ")
    await driver.send("the end")
    return await texts(driver, 1), driver.scripted_agent.queries


async def a_program(driver: Driver) -> Any:
    return [await _events(driver, query) for query in ("hello", "two", "stream", "data", "error", "raise")]


SCENARIOS: dict[Callable[[Driver], Awaitable[Any]], Any] = {
    threads: ["0: here", "0: nowhere", "0: there", "1: here again"],
    order: ["0: number 0", "1: number 1", "2: number 2"],
    a_stream: ["It is *sunny*"],
    two_blocks: ["one", "two"],
    a_correction: ["waited: wait for what", "1: the end"],
    a_retraction: ["0: the end"],
    a_reaction: ([("👍",)], ["1: the end"]),
    a_long_text: (3, True),
    markdown: ["*Title*\n\n- *bold* and `code`\n- link (https://example.org)\n\n```\na  b\n1  2\n```"],
    a_data_block: ["*Weather*\ncity: Berlin\ndegrees: 7"],
    errors: ["No such city.", "Something went wrong on my side (incident #).", "2: still there?"],
    a_refusal: [
        "0: number 0",
        "0: the end",
        *(f"{number}: number {number}" for number in range(1, 6)),
        "That is all for now: a conversation is l",
    ],
    attachments: [*["['a b.txt']"] * 3, *["['shared.txt']"] * 3, *["['media.txt']"] * 3],
    silence: (["0: the end"], ["the end"]),
    a_program: [
        ["block.markdown", "request.completed"],
        ["block.thought", "block.markdown", "block.markdown", "request.completed"],
        ["stream.start", *["stream.chunk"] * 3, "stream.end", "request.completed"],
        ["block.data", "request.completed"],
        ["PeerFailedError", "reports: No such city."],
        ["PeerFailedError", "reports: Something went wrong on my side (incident #)."],
    ],
}


# The drivers


class InMemoryDriver:
    """A driver of the runner without a network."""

    def __init__(self, tester: AgentTester, scripted_agent: ScriptedAgent) -> None:
        self.scripted_agent = scripted_agent
        self._tester = tester

    async def send(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        self._tester.send_stanza(_message(self._tester.jid, text, id, thread, extra_xml), user="alice@localhost")

    async def receive(self) -> Element:
        return (await self._tester.message("alice@localhost", timeout=TIMEOUT_S)).xml

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        return self._tester.stream(text, user="program@localhost")


class ServerDriver:
    """A driver with a stock client and the package's own client on a real server."""

    def __init__(self, jid: str, person: StockClient, program: Any, scripted_agent: ScriptedAgent) -> None:
        self.scripted_agent = scripted_agent
        self._jid, self._person, self._program = jid, person, program

    async def send(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        message = _message(self._jid, text, id, thread, extra_xml)
        self._person.send_xml(message.replace("<message ", "<message xmlns='jabber:client' ", 1))

    async def receive(self) -> Element:
        answer: Element = (await self._person.answer()).xml
        return answer

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        events: AsyncIterator[PeerEvent] = self._program.stream(self._jid, text, thoughts=True)
        return events


def _message(to: str, text: str | None, id: str, thread: str, extra_xml: str) -> str:
    id_attribute = f" id={quoteattr(id)}" if id else ""
    children = "" if text is None else f"<body>{escape(text)}</body>"
    children += f"<thread>{escape(thread)}</thread>" if thread else ""
    return f"<message to='{to}' type='chat'{id_attribute}>{children}{extra_xml}</message>"


@asynccontextmanager
async def in_memory() -> AsyncIterator[Driver]:
    scripted_agent = ScriptedAgent()
    async with AgentTester(scripted_agent, policy=POLICY) as tester:
        yield InMemoryDriver(tester, scripted_agent)


@asynccontextmanager
async def on_server(server: XmppServer, tmp_path: Path) -> AsyncIterator[Driver]:
    scripted_agent = ScriptedAgent()
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(run_agent(scripted_agent, server, tmp_path, policy=POLICY))
        person = await stack.enter_async_context(StockClient(*await server.account(), server))
        program = await stack.enter_async_context(await new_program_client(server))
        yield ServerDriver(agent.jid, person, program, scripted_agent)
