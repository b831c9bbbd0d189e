"""`chat` in a terminal with an agent that has a language model: its tools are seen, and its answer grows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.chat_completions import ChatCompletionsServer, CompletionStream, tool_call_answer
from tests.support.program import run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S


class ManualModelServer:
    """A model server in an event loop of its own; it sends the next word when the test tells it to."""

    def __init__(self) -> None:
        self.url = ""
        self._words: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()

    async def _answer(self, wire: CompletionStream) -> None:
        await wire.delta(role="assistant", content="")
        while (word := await self._words.get()) is not None:
            await wire.delta(content=word)
        await wire.done()

    def send_words(self, *words: str | None) -> None:
        for word in words:
            self._loop.call_soon_threadsafe(self._words.put_nowait, word)

    @contextmanager
    def running(self) -> Iterator[None]:
        started, stop = threading.Event(), asyncio.Event()

        async def serve() -> None:
            async with ChatCompletionsServer(
                tool_call_answer(("recall", {"query": "tea"}), text="Let me see."), self._answer
            ) as server:
                self.url = server.url
                started.set()
                await stop.wait()

        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert started.wait(TIMEOUT_S)
            yield
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(TIMEOUT_S)
            self._loop.close()


@pytest.mark.servers
@pytest.mark.parametrize("shows_tools", [True, False])
def test_a_chat_shows_the_tools_and_the_answer_while_it_grows(tmp_path: Path, shows_tools: bool) -> None:
    require("Prosody", prosody_server.installed())
    model = ManualModelServer()
    (tmp_path / "config").mkdir()
    with model.running():
        options = {"model": "small", "endpoint": {"url": model.url}, "show_tools": shows_tools}
        agent = {"jid": "helper@localhost", "agent": "spade_coreason.agents.assistant:AssistantAgent", "options": options}
        settings = {"server": {"mode": "prosody"}, "agents": [agent], "limits": {"grace_s": 0.2}}
        (tmp_path / "config" / "platform.yaml").write_text(json.dumps(settings))
        with (
            run_in_background("up", cwd=tmp_path, until=r"^Ready"),
            closing(Terminal("chat", "helper", cwd=tmp_path, columns=60)) as terminal,
        ):
            terminal.wait_for_prompt("helper")
            terminal.type("is there tea?\r")
            model.send_words("There ")
            tool = r"\r\n  Using recall…" if shows_tools else ""
            terminal.wait_for(rf"  Let me see\.{tool}\r\n(  )?\r\n  There")
            assert ("Using" in terminal.screen) == shows_tools
            model.send_words("is ")
            terminal.wait_for("^ is$")
            model.send_words("tea.", None)
            terminal.wait_for(r" tea\.\r\n.*helper ▸")
