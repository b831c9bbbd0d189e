"""`chat` in a terminal with an agent that has a language model: its tools are seen, and its answer grows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.chat_completions import ChatServer, CompletionStream, tool_call_answer
from tests.support.program import TIMEOUT_S, run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal


class Slow:
    """A model in a loop of its own; it says the next word when it is told to."""

    def __init__(self) -> None:
        self.url = ""
        self._words: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()

    async def _answer(self, wire: CompletionStream) -> None:
        await wire.delta(role="assistant", content="")
        while (word := await self._words.get()) is not None:
            await wire.delta(content=word)
        await wire.done()

    def say(self, *words: str | None) -> None:
        for word in words:
            self._loop.call_soon_threadsafe(self._words.put_nowait, word)

    @contextmanager
    def serving(self) -> Iterator[None]:
        is_up, is_over = threading.Event(), asyncio.Event()

        async def serve() -> None:
            async with ChatServer(tool_call_answer(("recall", {"query": "tea"}), text="Let me see."), self._answer) as server:
                self.url = server.url
                is_up.set()
                await is_over.wait()

        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert is_up.wait(TIMEOUT_S)
            yield
        finally:
            self._loop.call_soon_threadsafe(is_over.set)
            thread.join(TIMEOUT_S)
            self._loop.close()


@pytest.mark.parametrize("shows_tools", [True, False])
def test_a_chat_shows_the_tools_and_the_answer_while_it_grows(tmp_path: Path, shows_tools: bool) -> None:
    require("Prosody", prosody_server.installed())
    slow = Slow()
    (tmp_path / "config").mkdir()
    with slow.serving():
        options = {"model": "small", "endpoint": {"url": slow.url}, "show_tools": shows_tools}
        agent = {"jid": "helper@localhost", "agent": "spade_coreason.agents.assistant:AssistantAgent", "options": options}
        settings = {"server": {"mode": "prosody"}, "agents": [agent], "limits": {"grace_s": 0.2}}
        (tmp_path / "config" / "platform.yaml").write_text(json.dumps(settings))
        with (
            run_in_background("up", cwd=tmp_path, until=r"^Ready"),
            closing(Terminal("chat", "helper", cwd=tmp_path, columns=60)) as terminal,
        ):
            terminal.until_prompted("helper")
            terminal.type("is there tea?\r")
            slow.say("There ")
            tool = r"\r\n  Using recall…" if shows_tools else ""
            terminal.until(rf"  Let me see\.{tool}\r\n(  )?\r\n  There")
            assert ("Using" in terminal.screen) == shows_tools
            slow.say("is ")
            terminal.until("^ is$")
            slow.say("tea.", None)
            terminal.until(r" tea\.\r\n.*helper ▸")
