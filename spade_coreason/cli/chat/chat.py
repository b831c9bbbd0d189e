"""Talking with agents: one line at a time from standard input, or in a terminal with a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from ...contracts import AgentRequest
from ...domain.jid import local_part
from ...exceptions import ConfigError, PeerError, PeerRefused
from ...runtime import as_request, collect, command_request
from .. import errors
from ..answers import AnswerText, choices_of, steps_of, thought_of
from ..console import paint, passing, terminal_width, write
from ..input import decoded
from ..wrapping import Wrapped, fitting
from .commands import INDENT, commands_in, is_command, is_leave, is_ours, obey, shown
from .prompt import Prompt, without_echo
from .roster import Company

if TYPE_CHECKING:
    from ...xmpp import AgentClient

WAITING_AFTER_S = 0.2
_LOOKS_EVERY_S = 0.5
_HINT = " (Ctrl-C takes it back)"
_LEAST_THOUGHT = 15


def is_terminal() -> bool:
    """Whether a person sits there: both standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def talk_by_lines(client: AgentClient, jid: str, timeout_s: float) -> int:
    """Asks every line of standard input, one after the other. The exit code of the first that had no good answer, else 0."""
    code = 0
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        try:
            question = decoded(line)
        except ConfigError as error:
            errors.say(error)
            code = code or errors.exit_code(error)
            continue
        if question in ("/quit", "/exit"):
            break
        if not question:
            continue
        answer = AnswerText()
        try:
            async for event in client.stream(jid, question, timeout=timeout_s):
                write(answer.feed(event))
        except PeerError as error:
            errors.say(error)
            code = code or errors.exit_code(error)
        if answer.has_text:
            write("\n")
    return code


class Chat:
    """A chat in the terminal with one agent of the company at a time. Answers appear as they grow."""

    def __init__(self, client: AgentClient, company: Company, timeout_s: float = 120.0) -> None:
        self._client = client
        self._company = company
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Until /quit or Ctrl-D."""
        learning = asyncio.create_task(self._learn())
        # The prompt reads Ctrl-C as a key. One that is pressed again before the next prompt is there interrupts nothing.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            await self._talk()
        finally:
            signal.signal(signal.SIGINT, before)
            learning.cancel()
            await asyncio.gather(learning, return_exceptions=True)

    async def _learn(self) -> None:
        """Asks the agents what commands they know; whoever does not say has none that Tab completes."""
        for jid in self._company.unknown:
            with contextlib.suppress(PeerError):
                events = [event async for event in self._client.obey(jid, "/help", timeout=self._timeout_s)]
                self._company.learn(jid, commands_in(collect(jid, events).text))

    async def _talk(self) -> None:
        prompt = Prompt(self._company)
        hint = "(Ctrl-D or /quit leaves)"
        while True:
            try:
                text = await prompt.line()
            except KeyboardInterrupt:  # as in a shell: the line is dropped
                if hint and not prompt.typed:
                    _say(hint)
                    hint = ""
                continue
            except EOFError:
                return
            if is_leave(text):
                return
            text = self._company.chosen(text)
            if is_command(text) and is_ours(text):
                if said := obey(text, self._company, terminal_width()):
                    print(said)
            elif text:
                with without_echo():
                    await self._ask(text)

    async def _ask(self, text: str) -> None:
        task = asyncio.create_task(self._show_answer(text))
        loop = asyncio.get_running_loop()
        before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(task.cancel))
        try:
            await asyncio.wait([task])
            if task.cancelled():
                _say("(taken back)")
            else:
                task.result()
        finally:
            signal.signal(signal.SIGINT, before)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _show_answer(self, text: str) -> None:
        jid, asked = self._company.jid, _request(text)
        answer, wrapped = AnswerText(names_choices=False), Wrapped(terminal_width, INDENT)
        waiting = _Waiting(self._client, local_part(jid))
        problem, is_silent = "", True
        offered: list[str] = []
        try:
            async for event in self._client.stream(jid, asked, timeout=self._timeout_s):
                offered += choices_of(event)
                if steps := steps_of(event):
                    is_silent = False
                    waiting.end()
                    write(_steps_shown(steps, wrapped, answer.has_text))
                    waiting = waiting if answer.has_text else _Waiting(self._client, local_part(jid))
                if thought := thought_of(event):
                    waiting.says(thought)
                if new := wrapped.feed(answer.feed(event)):
                    waiting.end()
                    write(new)
        except PeerError as error:
            problem = errors.line(error)
            if isinstance(error, PeerRefused) and error.retry_after_s is not None:
                offered = ["/new"]
        except asyncio.CancelledError:
            self._client.take_back(jid, asked)
            raise
        finally:
            waiting.end()
            write(f"{wrapped.end()}\n" if answer.has_text else "")
            if problem:
                _say(problem, "red")
        self._company.offer(jid, offered)
        if offered:
            _say(", ".join(f"{number} {choice}" for number, choice in enumerate(offered, start=1)))
        if is_silent and not (answer.has_text or problem):
            _say(f"({local_part(jid)} has nothing to say)")


def _request(text: str) -> AgentRequest:
    return command_request(text) if is_command(text) else as_request(text.removeprefix("/") if text.startswith("//") else text)


def _steps_shown(steps: list[str], wrapped: Wrapped, has_text: bool) -> str:
    """Lines of their own above the answer, or below what was said of it so far."""
    lines = "\n".join(paint(shown(step, terminal_width()), "dim") for step in steps)
    return f"{wrapped.end()}\n{lines}" if has_text else f"{lines}\n"


def _say(text: str, style: str = "dim") -> None:
    print(paint(shown(text, terminal_width()), style))


class _Waiting:
    """The line that says for whom one waits, shown when an answer takes a moment, until it begins."""

    def __init__(self, client: AgentClient, name: str) -> None:
        self._client = client
        self._name = name
        self._thought = ""
        self._timer = asyncio.get_running_loop().call_later(WAITING_AFTER_S, self._show)

    def says(self, thought: str) -> None:
        """What the agent thinks just now."""
        self._thought = thought

    def _show(self) -> None:
        # Of an agent that is away nobody tells; only that the server is.
        whom = self._name if self._client.is_online else "the server"
        room = (terminal_width() or 80) - len(INDENT) - len(_HINT) - 1
        is_shown = self._client.is_online and room >= _LEAST_THOUGHT
        thought = fitting(self._thought, room) if is_shown else ""
        passing.show(paint(f"{INDENT}{thought or f'waiting for {whom}…'}{_HINT}", "dim"))
        self._timer = asyncio.get_running_loop().call_later(_LOOKS_EVERY_S, self._show)

    def end(self) -> None:
        self._timer.cancel()
        passing.clear()
