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
from spade_coreason.domain.conversation import Rules
from spade_coreason.exceptions import PeerError
from spade_coreason.runtime.peers import PeerEvent
from spade_coreason.runtime.policy import Policy
from tests.codec.test_attachments import oob, sfs, sims
from tests.support.hosting import run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually
from tests.xmpp.test_failing_agents import asking

POLICY = Policy(rules=Rules(max_interactions=6))
BODY = "{jabber:client}body"
LONG = " ".join(f"word{number}" for number in range(20_000))


class ScriptedAgent:
    """An agent whose queries are instructions."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("actor")
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.felt: list[tuple[str, ...]] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.asked.append(query)
        turns = len(await session.history(10))
        match query.split()[0]:
            case "wait":
                await self.may.wait()
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
            case "files":
                await response.markdown(str([file["name"] for file in request.payload["attachments"]]))
            case _:
                await response.markdown(f"{turns}: {query}")

    async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
        self.felt.append(reactions)


class Driver(Protocol):
    """One person and one program that talk with the agent."""

    actor: ScriptedAgent

    async def say(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        """Send a message as a person's client does."""
        ...

    async def hear(self) -> Element:
        """Return the next message with a body."""
        ...

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        """Send a request as a program."""
        ...


async def texts(side: Driver, count: int) -> list[str]:
    return [_plain((await side.hear()).findtext(BODY, "")) for _ in range(count)]


def _plain(text: str) -> str:
    return re.sub(r"incident [0-9a-f]{8}", "incident #", text)


async def _events(side: Driver, text: str) -> list[str]:
    try:
        return [event.type async for event in side.ask(text)]
    except PeerError as error:
        return [type(error).__name__, _plain(str(error)).partition(" ")[2]]


# The scenarios: each returns its result, which has to be the same everywhere.


async def threads(side: Driver) -> Any:
    for thread, text in (("a", "here"), ("b", "there"), ("a", "here again"), ("", "nowhere")):
        await side.say(text, thread=thread)
    return sorted(await texts(side, 4))


async def order(side: Driver) -> Any:
    for number in range(3):
        await side.say(f"number {number}", id=f"same id {number % 2}")
    return await texts(side, 3)


async def a_stream(side: Driver) -> Any:
    await side.say("stream")
    return await texts(side, 1)


async def two_blocks(side: Driver) -> Any:
    await side.say("two")
    return await texts(side, 2)


async def a_correction(side: Driver) -> Any:
    await side.say("wait for whta", id="1")
    await eventually(lambda: bool(side.actor.asked))
    await side.say("wait for what", id="2", extra_xml="<replace xmlns='urn:xmpp:message-correct:0' id='1'/>")
    await eventually(lambda: len(side.actor.asked) == 2)
    side.actor.may.set()
    await side.say("the end")
    return await texts(side, 2)


async def a_retraction(side: Driver) -> Any:
    await side.say("wait for nothing", id="1")
    await eventually(lambda: bool(side.actor.asked))
    await side.say("taken back", extra_xml="<retract xmlns='urn:xmpp:message-retract:1' id='1'/>")
    await side.say("the end")
    return await texts(side, 1)


async def a_reaction(side: Driver) -> Any:
    await side.say("hello")
    answer = await side.hear()
    for ident in ("no such message", answer.get("id", "")):
        await side.say(
            None, extra_xml=f"<reactions xmlns='urn:xmpp:reactions:0' id='{ident}'><reaction>👍</reaction></reactions>"
        )
    await eventually(lambda: bool(side.actor.felt))
    await side.say("the end")
    return side.actor.felt, await texts(side, 1)


async def a_long_text(side: Driver) -> Any:
    await side.say("long")
    parts: list[str] = []
    while len(" ".join(parts)) < len(LONG):
        parts += await texts(side, 1)
    return len(parts), " ".join(parts) == LONG


async def markdown(side: Driver) -> Any:
    await side.say("markdown")
    return await texts(side, 1)


async def a_data_block(side: Driver) -> Any:
    await side.say("data")
    return await texts(side, 1)


async def errors(side: Driver) -> Any:
    for query in ("error", "raise", "still there?"):
        await side.say(query)
    return await texts(side, 3)


async def a_refusal(side: Driver) -> Any:
    for number in range(6 + 3):
        await side.say(f"number {number}", thread="limited")
    await side.say("the end", thread="another")
    return sorted(text[:40] for text in await texts(side, 6 + 1 + 1))


async def attachments(side: Driver) -> Any:
    link = "https://example.org/a%20b.txt"
    for shared in (oob(link), sfs(link, name="shared.txt"), sims(link, name="media.txt")):
        await side.say(f"files {link}", extra_xml=shared)
    return await texts(side, 3)


async def silence(side: Driver) -> Any:
    await side.say(None, extra_xml="<active xmlns='http://jabber.org/protocol/chatstates'/>")
    await side.say("an answer", extra_xml="<answer xmlns='urn:spade-coreason:answer:0'/>")
    await side.say("  ")
    await side.say("the end")
    return await texts(side, 1), side.actor.asked


async def a_program(side: Driver) -> Any:
    return [await _events(side, query) for query in ("hello", "two", "stream", "data", "error", "raise")]


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
        "That is all for now: 6 messages are the ",
    ],
    attachments: ["['a b.txt']", "['shared.txt']", "['media.txt']"],
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

    def __init__(self, tester: AgentTester, actor: ScriptedAgent) -> None:
        self.actor = actor
        self._tester = tester

    async def say(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        self._tester.send_stanza(_message(self._tester.jid, text, id, thread, extra_xml), user="alice@localhost")

    async def hear(self) -> Element:
        return (await self._tester.message("alice@localhost", timeout=PATIENCE_S)).xml

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        return self._tester.stream(text, user="program@localhost")


class ServerDriver:
    """A driver with a stock client and the package's own client on a real server."""

    def __init__(self, jid: str, person: StockClient, program: Any, actor: ScriptedAgent) -> None:
        self.actor = actor
        self._jid, self._person, self._program = jid, person, program

    async def say(self, text: str | None, *, id: str = "", thread: str = "", extra_xml: str = "") -> None:
        message = _message(self._jid, text, id, thread, extra_xml)
        self._person.send_xml(message.replace("<message ", "<message xmlns='jabber:client' ", 1))

    async def hear(self) -> Element:
        answer: Element = (await self._person.answer()).xml
        return answer

    def ask(self, text: str) -> AsyncIterator[PeerEvent]:
        events: AsyncIterator[PeerEvent] = self._program.stream(self._jid, text)
        return events


def _message(to: str, text: str | None, id: str, thread: str, extra_xml: str) -> str:
    id_attribute = f" id={quoteattr(id)}" if id else ""
    children = "" if text is None else f"<body>{escape(text)}</body>"
    children += f"<thread>{escape(thread)}</thread>" if thread else ""
    return f"<message to='{to}' type='chat'{id_attribute}>{children}{extra_xml}</message>"


@asynccontextmanager
async def in_memory() -> AsyncIterator[Driver]:
    actor = ScriptedAgent()
    async with AgentTester(actor, policy=POLICY) as tester:
        yield InMemoryDriver(tester, actor)


@asynccontextmanager
async def on_server(server: XmppServer, tmp_path: Path) -> AsyncIterator[Driver]:
    actor = ScriptedAgent()
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(run_agent(actor, server, tmp_path, policy=POLICY))
        person = await stack.enter_async_context(StockClient(*await server.account(), server))
        program = await stack.enter_async_context(await asking(server))
        yield ServerDriver(agent.jid, person, program, actor)
