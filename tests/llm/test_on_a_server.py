"""A language model behind an agent on real servers, as a stock client sees it: the seed's example, growth, cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, Peers, ResponseHandler, SessionHandle
from spade_coreason.llm.agent import LLMAgent
from tests.support.chat_completions import (
    Answer,
    ChatCompletionsServer,
    CompletionStream,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.hosting import FunctionAgent, OnlineAgent, run_agent
from tests.support.llm_agent import EndlessTool
from tests.support.servers.clients import StockClient
from tests.support.servers.profanity import Profanity, installed
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.test_live_messages import CORRECTION_PLUGINS, corrected_id, wait_until_known

PEOPLE = 10
REMEMBER = "remember_interaction_info"


@asynccontextmanager
async def run_seed_agent(
    server: XmppServer, directory: Path, *answers: Answer, **options: Any
) -> AsyncIterator[tuple[ChatCompletionsServer, OnlineAgent, AgentInteractionMemory]]:
    """Run the seed's agent with a model that gives these answers."""
    async with ChatCompletionsServer(*answers) as model:
        memory = AgentInteractionMemory("memory_agent@localhost", str(directory))
        manifest = AgentDefinition.simple("memory agent", system_prompt="You have memory capabilities.")
        agent = LLMAgent(manifest, memory, model="small", endpoint={"url": model.url}, **options)
        async with run_agent(agent, server, directory) as online:
            yield model, online, memory


async def test_a_fact_from_a_stock_client_is_remembered_by_a_tool_and_used_later(
    real_server: XmppServer, tmp_path: Path
) -> None:
    fact = "User prefers JSON responses over XML"
    answers = (
        tool_call_answer((REMEMBER, {"information": fact})),
        text_answer("I will ", "remember that."),
        text_answer("In JSON."),
    )
    account = await real_server.account()
    async with (
        run_seed_agent(real_server, tmp_path, *answers) as (model, online, memory),
        StockClient(*account, real_server) as person,
    ):
        assert await person.ask("JSON rather than XML, please", online.jid) == "I will remember that."
        assert await person.ask("What do I prefer?", online.jid) == "In JSON."
        assert memory.get_information(f"{account[0]}_{online.jid}") == [fact]
        prompt, _rules, notice, remembered = message_contents(model.requests[-1], "system")
    assert prompt == "You have memory capabilities."
    assert "They are data" in notice
    assert remembered == f"Previous interactions:\n- {fact}"


@dataclass
class ScriptedStream:
    """A model that sends a word when the test says so."""

    words: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)

    async def __call__(self, wire: CompletionStream) -> None:
        await wire.delta(role="assistant", content="")
        while (word := await self.words.get()) is not None:
            await wire.delta(content=word)
        await wire.done()

    def say(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


async def test_a_stock_client_sees_the_tool_and_then_the_answer_grow(real_server: XmppServer, tmp_path: Path) -> None:
    stream = ScriptedStream()
    async with (
        run_seed_agent(real_server, tmp_path, tool_call_answer(("recall", {"query": "tea"})), stream) as (_, online, _memory),
        StockClient(*await real_server.account(), real_server, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, online)
        alice.send("tea?", online.jid)
        tool = await alice.answer()
        stream.say("There ")
        first = await alice.answer()
        stream.say("is ", "tea")
        second = await alice.answer()
        stream.say(".", None)
        last = await alice.answer()
        seen = [(one["body"], corrected_id(one)) for one in (tool, first, second, last)]
        assert seen == [
            ("_Using recall…_", None),
            ("There", None),
            ("There is tea", first["id"]),
            ("There is tea.", first["id"]),
        ]
        assert tool.xml.find("{urn:xmpp:hints}no-store") is not None


async def test_a_person_with_profanity_sees_the_tool_and_the_answer_grow(prosody: XmppServer, tmp_path: Path) -> None:
    require("profanity", installed())
    stream = ScriptedStream()
    account = await prosody.account()
    async with (
        run_seed_agent(prosody, tmp_path, tool_call_answer(("recall", {"query": "tea"})), stream) as (_, online, _memory),
        Profanity(account, prosody, tmp_path / "profanity") as screen,
    ):
        await screen.type(f"/sub request {online.jid}")
        await screen.wait_for(f"Subscription received from {online.jid}")
        await screen.type(f"/sub allow {online.jid}")
        await eventually(lambda: online.host.peer_features.has_corrections(account[0]))
        await screen.type(f"/msg {online.jid}")
        await screen.type("is there tea?")
        await screen.wait_for("me: is there tea?", "Using recall…")
        stream.say("There ")
        await screen.wait_for("me: is there tea?", "Using recall…", "There\n")
        stream.say("is", None)
        assert (await screen.wait_for("Using recall…", "There is\n")).count("There") == 1


async def test_ten_people_at_once_each_get_their_own_slow_stream(prosody: XmppServer, tmp_path: Path) -> None:
    barrier = asyncio.Barrier(PEOPLE)

    async def slow(wire: CompletionStream) -> None:
        name = message_contents(wire.body, "user")[-1]
        await wire.delta(content=f"Dear {name}")
        await barrier.wait()  # all ten are in the middle of theirs
        for number in range(10):
            await wire.delta(content=f" {number}")
            await asyncio.sleep(0.02)
        await wire.done()

    async with AsyncExitStack() as stack:
        model, online, _ = await stack.enter_async_context(run_seed_agent(prosody, tmp_path, slow))
        accounts = await asyncio.gather(*(prosody.account() for _ in range(PEOPLE)))
        people = [await stack.enter_async_context(StockClient(*account, prosody)) for account in accounts]
        answers = await asyncio.gather(*(person.ask(person.jid, online.jid, timeout_s=TIMEOUT_S) for person in people))
        assert answers == [f"Dear {person.jid} 0 1 2 3 4 5 6 7 8 9" for person in people]
        assert all(len(message_contents(asked, "user")) == 1 for asked in model.requests)  # nobody's history is another's


Cancel = Callable[[StockClient, str, str], object]


def by_command(person: StockClient, question: str, agent: str) -> object:
    return person.send("/cancel", agent)


def by_retraction(person: StockClient, question: str, agent: str) -> object:
    retract = f"<retract xmlns='urn:xmpp:message-retract:1' id='{question}'/>"
    return person.send("I took a message back", agent, extra_xml=retract)


@pytest.mark.parametrize("cancel", [by_command, by_retraction])
async def test_cancelling_leaves_no_request_connection_tool_task_or_thread(
    cancel: Cancel, real_server: XmppServer, tmp_path: Path
) -> None:
    tool = EndlessTool()
    stream = ScriptedStream()
    async with (
        run_seed_agent(real_server, tmp_path, text_answer("ready"), tools=[tool.never], show_tools=False) as (
            model,
            online,
            _memory,
        ),
        StockClient(*await real_server.account(), real_server) as person,
    ):
        assert await person.ask("hi", online.jid) == "ready"
        await eventually(lambda: not online.runner.mailboxes.busy_count)
        await eventually(lambda: model.connections <= 1)
        before = len(asyncio.all_tasks()), threading.active_count()

        model.answers[:] = [stream]
        question = person.send("a story", online.jid)
        stream.say("Once upon")
        await eventually(stream.words.empty)
        await eventually(lambda: model.open_count == 1)
        cancel(person, question, online.jid)
        await eventually(lambda: model.open_count == 0)
        assert model.closed_count == 1

        model.answers[:] = [tool_call_answer(("never", {})), text_answer("too late")]
        question = person.send("use it", online.jid)
        await asyncio.wait_for(tool.started.wait(), TIMEOUT_S)
        cancel(person, question, online.jid)
        await asyncio.wait_for(tool.stopped.wait(), TIMEOUT_S)

        await eventually(lambda: not online.runner.mailboxes.busy_count and model.open_count == 0)
        await eventually(lambda: model.connections <= 1)  # one is kept for the next question
        await eventually(lambda: len(asyncio.all_tasks()) <= before[0] and threading.active_count() <= before[1])
        model.answers[:] = [text_answer("yes")]
        person.send("still there?", online.jid)
        while (said := (await person.answer())["body"]) != "yes":
            assert "too late" not in said
        assert len(model.requests) == 4


async def test_cancelling_stops_the_agent_that_was_asked_by_a_tool(prosody: XmppServer, tmp_path: Path) -> None:
    tool = EndlessTool()

    async def work(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await tool.never()

    async with (
        run_agent(FunctionAgent(work), prosody, tmp_path / "other") as other,
        ChatCompletionsServer(
            tool_call_answer(("ask_agent", {"agent": other.jid, "question": "go"})), text_answer("yes")
        ) as model,
        StockClient(*await prosody.account(), prosody) as person,
    ):
        manifest = AgentDefinition.simple("asking")

        def make(peers: Peers) -> LLMAgent:
            endpoint = {"url": model.url}
            return LLMAgent(manifest, None, peers, model="small", endpoint=endpoint, agents=[other.jid], show_tools=False)

        async with run_agent(make, prosody, tmp_path / "asking") as online:
            person.send("use it", online.jid)
            await asyncio.wait_for(tool.started.wait(), TIMEOUT_S)
            person.send("/cancel", online.jid)
            await asyncio.wait_for(tool.stopped.wait(), TIMEOUT_S)
            await eventually(lambda: not other.runner.mailboxes.busy_count)
