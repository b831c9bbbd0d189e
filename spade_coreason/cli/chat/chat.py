"""Talking with agents: one line at a time from standard input, or in a terminal with a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from ...contracts import AgentRequest
from ...domain.jid import local_part
from ...exceptions import ConfigError, PeerError, PeerRefusedError
from ...runtime import as_request, collect, command_request
from .. import errors
from ..answers import AnswerText, parse_choices, parse_steps, parse_thought
from ..console import decode_input, paint, status_line, terminal_width, write
from ..wrapping import IncrementalWrapper, truncate
from .commands import INDENT, is_chat_command, is_command, is_quit_command, parse_commands, run_command, wrap_notice
from .prompt import Prompt, disable_echo
from .roster import ChatRoster

if TYPE_CHECKING:
    from ...xmpp import AgentClient

WAITING_LINE_AFTER_S = 0.2
_REFRESH_EVERY_S = 0.5
_CANCEL_HINT = " (Ctrl-C takes it back)"
_MIN_THOUGHT_COLUMNS = 15


def is_terminal() -> bool:
    """Whether a person sits there: both standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def chat_by_lines(client: AgentClient, jid: str, timeout_s: float) -> int:
    """Asks every line of standard input, one after the other. The exit code of the first that had no good answer, else 0."""
    code = 0
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        try:
            question = decode_input(line)
        except ConfigError as error:
            errors.print_error(error)
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
            errors.print_error(error)
            code = code or errors.exit_code(error)
        if answer.has_text:
            write("\n")
    return code


class Chat:
    """A chat in the terminal with one agent of the company at a time. Answers appear as they grow."""

    def __init__(self, client: AgentClient, roster: ChatRoster, timeout_s: float = 120.0) -> None:
        self._client = client
        self._roster = roster
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Until /quit or Ctrl-D."""
        learning = asyncio.create_task(self._load_commands())
        # The prompt reads Ctrl-C as a key. One that is pressed again before the next prompt is there interrupts nothing.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            await self._run_prompt()
        finally:
            signal.signal(signal.SIGINT, before)
            learning.cancel()
            await asyncio.gather(learning, return_exceptions=True)

    async def _load_commands(self) -> None:
        """Asks the agents what commands they know; whoever does not say has none that Tab completes."""
        for jid in self._roster.jids_without_commands:
            with contextlib.suppress(PeerError):
                events = [event async for event in self._client.run_command(jid, "/help", timeout=self._timeout_s)]
                self._roster.set_commands(jid, parse_commands(collect(jid, events).text))

    async def _run_prompt(self) -> None:
        prompt = Prompt(self._roster)
        hint = "(Ctrl-D or /quit leaves)"
        while True:
            try:
                text = await prompt.read_line()
            except KeyboardInterrupt:  # as in a shell: the line is dropped
                if hint and not prompt.typed_text:
                    _print_notice(hint)
                    hint = ""
                continue
            except EOFError:
                return
            if is_quit_command(text):
                return
            text = self._roster.resolve_choice(text)
            if is_command(text) and is_chat_command(text):
                if said := run_command(text, self._roster, terminal_width()):
                    print(said)
            elif text:
                with disable_echo():
                    await self._ask(text)

    async def _ask(self, text: str) -> None:
        task = asyncio.create_task(self._show_answer(text))
        loop = asyncio.get_running_loop()
        before = signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(task.cancel))
        try:
            await asyncio.wait([task])
            if task.cancelled():
                _print_notice("(taken back)")
            else:
                task.result()
        finally:
            signal.signal(signal.SIGINT, before)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _show_answer(self, text: str) -> None:
        jid, asked = self._roster.jid, _build_request(text)
        answer, wrapped = AnswerText(shows_choices=False), IncrementalWrapper(terminal_width, INDENT)
        waiting = _WaitingLine(self._client, local_part(jid))
        problem, is_silent = "", True
        offered: list[str] = []
        try:
            async for event in self._client.stream(jid, asked, timeout=self._timeout_s):
                offered += parse_choices(event)
                if steps := parse_steps(event):
                    is_silent = False
                    waiting.stop()
                    write(_render_steps(steps, wrapped, answer.has_text))
                    waiting = waiting if answer.has_text else _WaitingLine(self._client, local_part(jid))
                if thought := parse_thought(event):
                    waiting.set_thought(thought)
                if new := wrapped.feed(answer.feed(event)):
                    waiting.stop()
                    write(new)
        except PeerError as error:
            problem = errors.format_error(error)
            if isinstance(error, PeerRefusedError) and error.retry_after_s is not None:
                offered = ["/new"]
        except asyncio.CancelledError:
            self._client.cancel(jid, asked)
            raise
        finally:
            waiting.stop()
            write(f"{wrapped.end()}\n" if answer.has_text else "")
            if problem:
                _print_notice(problem, "red")
        self._roster.set_choices(jid, offered)
        if offered:
            _print_notice(", ".join(f"{number} {choice}" for number, choice in enumerate(offered, start=1)))
        if is_silent and not (answer.has_text or problem):
            _print_notice(f"({local_part(jid)} has nothing to say)")


def _build_request(text: str) -> AgentRequest:
    return command_request(text) if is_command(text) else as_request(text.removeprefix("/") if text.startswith("//") else text)


def _render_steps(steps: list[str], wrapper: IncrementalWrapper, has_text: bool) -> str:
    """Lines of their own above the answer, or below what was said of it so far."""
    lines = "\n".join(paint(wrap_notice(step, terminal_width()), "dim") for step in steps)
    return f"{wrapper.end()}\n{lines}" if has_text else f"{lines}\n"


def _print_notice(text: str, style: str = "dim") -> None:
    print(paint(wrap_notice(text, terminal_width()), style))


class _WaitingLine:
    """The line that says for whom one waits, shown when an answer takes a moment, until it begins."""

    def __init__(self, client: AgentClient, name: str) -> None:
        self._client = client
        self._name = name
        self._thought = ""
        self._timer = asyncio.get_running_loop().call_later(WAITING_LINE_AFTER_S, self._show)

    def set_thought(self, thought: str) -> None:
        """What the agent thinks just now."""
        self._thought = thought

    def _show(self) -> None:
        # Of an agent that is away nobody tells; only that the server is.
        whom = self._name if self._client.is_online else "the server"
        room = (terminal_width() or 80) - len(INDENT) - len(_CANCEL_HINT) - 1
        is_shown = self._client.is_online and room >= _MIN_THOUGHT_COLUMNS
        thought = truncate(self._thought, room) if is_shown else ""
        status_line.show(paint(f"{INDENT}{thought or f'waiting for {whom}…'}{_CANCEL_HINT}", "dim"))
        self._timer = asyncio.get_running_loop().call_later(_REFRESH_EVERY_S, self._show)

    def stop(self) -> None:
        self._timer.cancel()
        status_line.clear()
