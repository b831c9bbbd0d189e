"""The platform is stopped or killed while a model speaks or a tool works: the answer is finished, or given after the start."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.chat_completions import ChatServer, CompletionStream, message_contents, text_answer, tool_call_answer
from tests.support.hosting import run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually
from tests.xmpp.profile.test_profile import befriended, of, person, presence

AGENT = "spade_coreason.llm:LLMAgent"


async def test_sigterm_lets_an_answer_in_the_middle_of_its_stream_be_finished(prosody: XmppServer, tmp_path: Path) -> None:
    released = asyncio.Event()

    async def slow(wire: CompletionStream) -> None:
        await wire.delta(content="Once upon ")
        await released.wait()
        await text_answer("a time.")(wire)

    async with ChatServer(slow) as server:
        options = {"model": "small", "endpoint": {"url": server.url}}
        async with (
            run_platform(prosody, tmp_path, agent=AGENT, options=options, grace_s=60) as (child, jid),
            person(prosody) as reader,
        ):
            await befriended(reader, jid)
            reader.send("a story", jid)
            await eventually(lambda: server.open == 1)
            stopping = asyncio.create_task(child.signal(signal.SIGTERM))
            await presence(reader, jid, of("away", "stopping"))  # it takes nothing new
            released.set()
            while (said := (await reader.answer())["body"]) == "Once upon":
                pass
            assert said == "Once upon a time."
            assert await stopping == 0
            assert server.open == 0
    assert len(server.asked) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "kill -9"])
async def test_what_was_broken_off_is_answered_once_after_the_start(
    prosody: XmppServer, tmp_path: Path, number: signal.Signals
) -> None:
    begun: list[str] = []
    noted = tmp_path / "noted"

    async def answer(wire: CompletionStream) -> None:
        question = message_contents(wire.asked, "user")[-1]
        if question == "use it" and wire.asked["messages"][-1]["role"] != "tool":
            await tool_call_answer(("note", {"path": str(noted)}))(wire)
        elif question == "a story" and not begun:
            begun.append(question)
            await wire.delta(content="Once upon ")
            await asyncio.Event().wait()
        else:
            await text_answer(f"The answer to: {question}")(wire)

    async with ChatServer(answer) as server:
        options = {
            "model": "small",
            "endpoint": {"url": server.url},
            "show_tools": False,
            "tools": ["tests.support.slow_tool:note"],
        }
        async with (
            run_platform(prosody, tmp_path, agent=AGENT, options=options, grace_s=0.2) as (child, jid),
            StockClient(*await prosody.account(), prosody) as reader,
        ):
            reader.send("a story", jid, thread="one")
            reader.send("use it", jid, thread="two")
            await eventually(lambda: server.open == 1 and noted.exists())
            code = await child.signal(number)
            assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
            await eventually(lambda: server.open == 0)
            await child.start()
            answers = {(await reader.answer())["body"] for _ in range(2)}
            assert answers == {"The answer to: a story", "The answer to: use it"}
            # The next thing said is the next answer: the others came once.
            assert await reader.ask("and now?", jid, thread="one", timeout_s=PATIENCE_S) == "The answer to: and now?"
    assert message_contents(server.asked[-1], "assistant") == ["The answer to: a story"]
    assert noted.read_text().splitlines() == ["called"] * 2
