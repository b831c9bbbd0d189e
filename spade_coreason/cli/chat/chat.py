"""The chat with agents: one line at a time from standard input, or in a terminal with a prompt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from ...concurrency import DaemonThreads, cancel_tasks
from ...contracts import AgentRequest
from ...domain.jid import local_part
from ...domain.texts.terminal_text import clean_running_text, escape_label
from ...exceptions import ConfigError, PeerError, PeerParkedError
from ...runtime import collect_answer, command_request, to_request
from .. import errors
from ..answers import AnswerText, lists_choices, parse_choices, parse_steps, parse_thought
from ..terminal.answer_writer import PlainWriter, open_answer
from ..terminal.console import add_style, decode_input, disable_echo, format_path, print_cleaned, status_line, terminal_width
from ..terminal.wrapping import truncate
from .commands import INDENT, is_chat_command, is_command, is_quit_command, parse_commands, run_command, wrap_notice
from .export import EXPORT_COMMAND, ExportReader, write_export
from .incoming_texts import IncomingTexts
from .prompt import Prompt
from .roster import ChatRoster

if TYPE_CHECKING:
    from ...xmpp import AgentClient

WAITING_LINE_AFTER_S = 0.2
_REFRESH_EVERY_S = 0.5
_CANCEL_HINT = " (Ctrl-C cancels)"
_MIN_THOUGHT_COLUMNS = 15


def is_terminal() -> bool:
    """Return True if a person uses the program: both standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


_READ_BYTES = 65_536
_REST_S = 10.0
"""The time for which the prompt waits for the rest of a reply. Later it appears above the prompt."""


async def chat_by_lines(client: AgentClient, jid: str, timeout_s: float, texts: IncomingTexts) -> int:
    """Send every line of standard input, one after the other. Return the exit code of the first one that failed, else 0.

    `texts`, which agents write first, appear between the answers.
    """
    code, parked = 0, texts.parked
    texts.begin()
    async for line in _read_lines():
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
        answer, writer = AnswerText(), PlainWriter("", wraps=False)
        texts.hold()
        request = _build_request(question)
        try:
            async for event in client.stream(jid, request, timeout=timeout_s, thoughts=True):
                writer.feed(answer.feed_pieces(event))
            writer.end()
            if not answer.has_text:  # it has answered a question: the rest of that reply follows
                await parked.wait_for_text(timeout_s)
        except PeerParkedError:
            writer.end()
            parked.add(jid, str(request.request_id))
        except PeerError as error:
            writer.end()
            errors.print_error(error)
            code = code or errors.exit_code(error)
        texts.begin()
    for waiting in parked.waiting:
        parked_error = PeerParkedError(*waiting)
        errors.print_error(parked_error)
        code = code or errors.exit_code(parked_error)
    return code


async def _read_lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input. A read that never ends does not keep the process alive."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # it is no file, as in tests of the command
        for line in sys.stdin.buffer:
            yield line
        return
    threads, rest = DaemonThreads(), b""
    # Not `readline`: at its end Python waits for the lock of a buffered reader that a thread is reading.
    while data := await threads.run(os.read, descriptor, _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


class Chat:
    """A chat in the terminal with one agent of the roster at a time. Replies appear as they grow.

    `texts` are what agents write first: they appear above the prompt. `on_empty_line` is called for a line without a text.
    """

    def __init__(
        self,
        client: AgentClient,
        roster: ChatRoster,
        texts: IncomingTexts,
        timeout_s: float = 120.0,
        on_empty_line: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._on_empty_line = on_empty_line
        self._client = client
        self._roster = roster
        self._timeout_s = timeout_s
        self._texts = texts

    async def run(self) -> None:
        """Chat until /quit or Ctrl-D."""
        loading = asyncio.create_task(self._load_commands())
        # The prompt reads Ctrl-C as a key. Ctrl-C pressed again before the next prompt appears interrupts nothing.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            await self._run_prompt()
        finally:
            signal.signal(signal.SIGINT, before)
            await cancel_tasks(loading)

    async def _load_commands(self) -> None:
        """Ask the agents for their commands. Tab completes none for an agent that does not answer."""
        for jid in self._roster.jids_without_commands:
            with contextlib.suppress(PeerError):
                events = [event async for event in self._client.run_command(jid, "/help", timeout=self._timeout_s)]
                self._roster.set_commands(jid, parse_commands(collect_answer(jid, events).text))

    async def _run_prompt(self) -> None:
        prompt = Prompt(self._roster)
        hint = "(Ctrl-D or /quit leaves)"
        while True:
            self._texts.begin()
            try:
                text = await prompt.read_line()
            except KeyboardInterrupt:  # as in a shell, the line is discarded
                if hint and not prompt.typed_text:
                    _print_notice(hint)
                    hint = ""
                continue
            except EOFError:
                return
            finally:
                self._texts.hold()
            if is_quit_command(text):
                return
            text = self._roster.resolve_choice(text)
            if is_command(text) and is_chat_command(text):
                if output := run_command(text, self._roster, terminal_width()):
                    print_cleaned(output)
            elif text:
                with disable_echo():
                    await self._ask(text)
            elif self._on_empty_line is not None:
                await self._on_empty_line()

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
            await cancel_tasks(task)

    async def _show_answer(self, text: str) -> None:
        jid, request = self._roster.jid, _build_request(text)
        name = escape_label(local_part(jid))
        answer, writer = AnswerText(shows_choices=False), open_answer(INDENT)
        waiting_line = _WaitingLine(self._client, name)
        problem, is_silent = "", True
        choices: list[str] = []
        are_listed = False
        events = self._client.stream(jid, request, timeout=self._timeout_s, thoughts=True)
        export = ExportReader(events) if text.lower() == EXPORT_COMMAND else None
        try:
            async for event in export or events:
                choices += parse_choices(event)
                are_listed = are_listed or lists_choices(event)
                if steps := parse_steps(event):
                    is_silent = False
                    waiting_line.stop()
                    writer.interject("\n".join(add_style(wrap_notice(step, terminal_width()), "dim") for step in steps))
                    waiting_line = waiting_line if answer.has_text else _WaitingLine(self._client, name)
                if thought := parse_thought(event):
                    waiting_line.set_thought(thought)
                if pieces := answer.feed_pieces(event):
                    waiting_line.stop()
                    writer.feed(pieces)
            if not answer.has_text and await self._texts.parked.wait_for_text(min(self._timeout_s, _REST_S)):
                is_silent = False  # it has answered a question, and this was the rest of that reply
        except PeerParkedError:
            is_silent = False
            self._texts.parked.add(jid, str(request.request_id))
        except PeerError as error:
            problem = errors.format_error(error)
        except asyncio.CancelledError:
            self._client.cancel(jid, request)
            raise
        finally:
            waiting_line.stop()
            writer.end()
            if problem:
                _print_notice(problem, "red")
        if export is not None and export.text is not None:
            _save_export(local_part(jid), export.text)
        self._roster.set_choices(jid, choices)
        if choices and not are_listed:
            _print_notice(", ".join(f"{number} {choice}" for number, choice in enumerate(choices, start=1)))
        if is_silent and not (answer.has_text or problem):
            _print_notice(f"({name} ended its turn without an answer)")


def _build_request(text: str) -> AgentRequest:
    return command_request(text) if is_command(text) else to_request(text.removeprefix("/") if text.startswith("//") else text)


def _save_export(agent: str, text: str) -> None:
    try:
        path = write_export(agent, text)
    except OSError as error:
        problem = errors.format_error(error)
        _print_notice(f"{problem}; nothing was saved. Start the chat in a directory where you can write.", "red")
    else:
        _print_notice(f"Saved to {format_path(path)}. Only you can read the file.")


def _print_notice(text: str, style: str = "dim") -> None:
    print_cleaned(add_style(wrap_notice(text, terminal_width()), style))


class _WaitingLine:
    """The line that names the agent or server being waited for, shown from a short delay until the reply begins."""

    def __init__(self, client: AgentClient, name: str) -> None:
        self._client = client
        self._name = name
        self._thought = ""
        self._timer = asyncio.get_running_loop().call_later(WAITING_LINE_AFTER_S, self._show)

    def set_thought(self, thought: str) -> None:
        """Set the current thought of the agent."""
        self._thought = thought

    def _show(self) -> None:
        # An agent that is offline cannot be detected; only a lost connection to the server can.
        awaited = self._name if self._client.is_online else "the server"
        columns = (terminal_width() or 80) - len(INDENT) - len(_CANCEL_HINT) - 1
        is_shown = self._client.is_online and columns >= _MIN_THOUGHT_COLUMNS
        thought = clean_running_text(truncate(self._thought, columns)) if is_shown else ""
        status_line.show(add_style(f"{INDENT}{thought or f'waiting for {awaited}…'}{_CANCEL_HINT}", "dim"))
        self._timer = asyncio.get_running_loop().call_later(_REFRESH_EVERY_S, self._show)

    def stop(self) -> None:
        self._timer.cancel()
        status_line.clear()
