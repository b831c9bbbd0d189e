"""Talking with agents: one line at a time from standard input, or in a terminal with a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from ..exceptions import PeerError
from ..names import local_part
from . import failures
from .answers import AnswerText
from .console import has_colours, paint, write

if TYPE_CHECKING:
    from ..xmpp.client import AgentClient

TYPING_AFTER_S = 0.2
_CLEAR_LINE = "\r\x1b[K"
_INDENT = "  "


def is_terminal() -> bool:
    """Whether a person sits there: both standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def talk_by_lines(client: AgentClient, jid: str, timeout_s: float) -> int:
    """Asks every line of standard input, one after the other. The exit code of the first that had no good answer, else 0."""
    code = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        question = line.strip()
        if question in ("/quit", "/exit"):
            break
        if not question:
            continue
        answer = AnswerText()
        try:
            async for event in client.stream(jid, question, timeout=timeout_s):
                write(answer.feed(event))
        except PeerError as error:
            failures.say(error)
            code = code or failures.exit_code(error)
        if answer.has_text:
            write("\n")
    return code


class Chat:
    """A chat in the terminal with one of several agents at a time. Answers appear as they grow.

    `agents` are their JIDs; Tab goes to the next.
    """

    def __init__(self, client: AgentClient, agents: Sequence[str], first: int = 0, timeout_s: float = 120.0) -> None:
        self._client = client
        self._agents = list(agents)
        self._current = first
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Until /quit or Ctrl-D."""
        session: PromptSession[str] = PromptSession(self._prompt, key_bindings=self._keys())
        while True:
            try:
                text = (await session.prompt_async()).strip()
            except KeyboardInterrupt:  # as in a shell: the line is dropped
                continue
            except EOFError:
                return
            if text in ("/quit", "/exit"):
                return
            if text.startswith("/") and not text.startswith("//"):
                self._command(text)
            elif text:
                await self._ask(text.removeprefix("/") if text.startswith("//") else text)

    def _prompt(self) -> FormattedText:
        style = "bold ansicyan" if has_colours(sys.stdout) else ""
        return FormattedText([(style, local_part(self._agents[self._current])), ("", " ▸ ")])

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        def change(step: int) -> None:
            self._current = (self._current + step) % len(self._agents)

        @keys.add("tab")
        def _next(event: KeyPressEvent) -> None:
            change(1)
            event.app.invalidate()

        @keys.add("s-tab")
        def _previous(event: KeyPressEvent) -> None:
            change(-1)
            event.app.invalidate()

        return keys

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name == "/help":
            print(self._help())
        elif name == "/agents":
            print("\n".join(f"{_INDENT}{jid}" for jid in self._agents))
        elif name == "/to":
            wanted = rest.strip()
            found = [number for number, jid in enumerate(self._agents) if wanted in (jid, local_part(jid))]
            if found:
                self._current = found[0]
            else:
                print(f"{_INDENT}There is no {wanted or 'agent without a name'}; /agents lists them.")
        else:
            print(f"{_INDENT}There is no {name}; /help shows what there is. A text that begins with / is written //.")

    def _help(self) -> str:
        lines = [
            "What you type goes to the agent before the ▸; what it says appears as it comes.",
            "Arrow up brings back what you typed before. Ctrl-C stops waiting for an answer.",
        ]
        if len(self._agents) > 1:
            lines.append("Tab changes the agent. /agents lists them, /to NAME goes to one.")
        lines.append("/quit or Ctrl-D leaves.")
        return "\n".join(_INDENT + line for line in lines)

    async def _ask(self, text: str) -> None:
        task = asyncio.create_task(self._show_answer(text))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            await asyncio.wait([task])
            if task.cancelled():
                print(f"{_INDENT}(no longer waiting)")
            else:
                task.result()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _show_answer(self, text: str) -> None:
        jid = self._agents[self._current]
        answer = AnswerText()
        typing = _Typing(local_part(jid))
        try:
            async for event in self._client.stream(jid, text, timeout=self._timeout_s):
                new = answer.feed(event)
                if not new:
                    continue
                beginning = "" if typing.is_over else _INDENT
                typing.end()
                write(beginning + new.replace("\n", f"\n{_INDENT}"))
        except PeerError as error:
            typing.end()
            print(f"{chr(10) if answer.has_text else ''}{_INDENT}{paint(failures.line(error), 'red')}", end="")
        finally:
            typing.end()
            write("\n" if answer.has_text else "")


class _Typing:
    """The line "… is typing", shown when an answer takes a moment, until it begins."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_shown = False
        self.is_over = False
        self._timer = asyncio.get_running_loop().call_later(TYPING_AFTER_S, self._show)

    def _show(self) -> None:
        self._is_shown = True
        write(paint(f"{_INDENT}{self._name} is typing…", "dim"))

    def end(self) -> None:
        self._timer.cancel()
        self.is_over = True
        if self._is_shown:
            self._is_shown = False
            with contextlib.suppress(BrokenPipeError):
                write(_CLEAR_LINE)
