"""The platform is stopped or killed while a model speaks or a tool works: the answer is finished, or given after the start."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.chat_completions import (
    ChatCompletionsServer,
    CompletionStream,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.hosting import run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.profile.test_profile import connect_person, is_presence, next_presence, subscribe

AGENT = "spade_coreason.llm:LLMAgent"


async def test_sigterm_lets_a_streaming_answer_finish(prosody: XmppServer, tmp_path: Path) -> None:
    released = asyncio.Event()

    async def slow(wire: CompletionStream) -> None:
        await wire.delta(content="Once upon ")
        await released.wait()
        await text_answer("a time.")(wire)

    async with ChatCompletionsServer(slow) as server:
        options = {"model": "small", "endpoint": {"url": server.url}}
        async with (
            run_platform(prosody, tmp_path, agent=AGENT, options=options, grace_s=60) as (child, jid),
            connect_person(prosody) as client,
        ):
            await subscribe(client, jid)
            client.send("a story", jid)
            await eventually(lambda: server.open_count == 1)
            stopping = asyncio.create_task(child.signal(signal.SIGTERM))
            await next_presence(client, jid, is_presence("away", "stopping"))  # it takes nothing new
            released.set()
            while (said := (await client.answer())["body"]) == "Once upon":
                pass
            assert said == "Once upon a time."
            assert await stopping == 0
            assert server.open_count == 0
    assert len(server.requests) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "kill -9"])
async def test_an_interrupted_question_is_answered_once_after_the_restart(
    prosody: XmppServer, tmp_path: Path, number: signal.Signals
) -> None:
    started: list[str] = []
    call_log = tmp_path / "noted"

    async def answer(wire: CompletionStream) -> None:
        question = message_contents(wire.body, "user")[-1]
        if question == "use it" and wire.body["messages"][-1]["role"] != "tool":
            await tool_call_answer(("note", {"path": str(call_log)}))(wire)
        elif question == "a story" and not started:
            started.append(question)
            await wire.delta(content="Once upon ")
            await asyncio.Event().wait()
        else:
            await text_answer(f"The answer to: {question}")(wire)

    async with ChatCompletionsServer(answer) as server:
        options = {
            "model": "small",
            "endpoint": {"url": server.url},
            "show_tools": False,
            "tools": ["tests.support.slow_tool:note"],
        }
        async with (
            run_platform(prosody, tmp_path, agent=AGENT, options=options, grace_s=0.2) as (child, jid),
            StockClient(*await prosody.account(), prosody) as client,
        ):
            client.send("a story", jid, thread="one")
            client.send("use it", jid, thread="two")
            await eventually(lambda: server.open_count == 1 and call_log.exists() and call_log.read_text() == "called")
            code = await child.signal(number)
            assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
            await eventually(lambda: server.open_count == 0)
            await child.start()
            answers = {(await client.answer())["body"] for _ in range(2)}
            assert answers == {"The answer to: a story", "The answer to: use it"}
            # The next thing said is the next answer: the others came once.
            assert await client.ask("and now?", jid, thread="one", timeout_s=TIMEOUT_S) == "The answer to: and now?"
    assert message_contents(server.requests[-1], "assistant") == ["The answer to: a story"]
    assert call_log.read_text().splitlines() == ["called"] * 2


async def test_kill_9_repeats_neither_a_finished_completion_nor_a_finished_tool(prosody: XmppServer, tmp_path: Path) -> None:
    started: list[str] = []
    call_log = tmp_path / "noted"
    call_log.write_text("before")  # so that the tool returns at once

    async def answer(wire: CompletionStream) -> None:
        if wire.body["messages"][-1]["role"] != "tool":
            await tool_call_answer(("note", {"path": str(call_log)}))(wire)
        elif not started:
            started.append("a story")
            await wire.delta(content="Once upon ")
            await asyncio.Event().wait()
        else:
            await text_answer("a time.")(wire)

    async with ChatCompletionsServer(answer) as server:
        endpoint = {"url": server.url}
        options = {"model": "small", "endpoint": endpoint, "show_tools": False, "tools": ["tests.support.slow_tool:note"]}
        async with (
            run_platform(prosody, tmp_path, agent=AGENT, options=options) as (child, jid),
            StockClient(*await prosody.account(), prosody) as client,
        ):
            client.send("a story", jid)
            await eventually(lambda: bool(started) and server.open_count == 1)
            await child.signal(signal.SIGKILL)
            await child.start()
            while (said := (await client.answer())["body"]) == "Once upon":
                pass
            assert said == "a time."
    assert call_log.read_text().splitlines() == ["before", "called"]
    assert [message["role"] for message in server.requests[0]["messages"]][-1] == "user"
    assert [message_contents(request, "tool") for request in server.requests] == [[], ["noted"], ["noted"]]
