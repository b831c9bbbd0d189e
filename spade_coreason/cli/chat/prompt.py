"""The line that a person types: its prompt, its keys, its history."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.shortcuts import CompleteStyle

from ..console import has_colours
from .commands import complete, is_command
from .roster import ChatRoster


class Prompt:
    """Asks for lines. Tab changes the agent, and completes where the line is a command."""

    def __init__(self, roster: ChatRoster) -> None:
        self._roster = roster
        self._session: PromptSession[str] = PromptSession(
            self._render_prompt,
            key_bindings=self._build_key_bindings(),
            history=_History(),
            completer=_CommandCompleter(roster),
            complete_while_typing=False,
            multiline=False,
            prompt_continuation="  ",
            complete_style=CompleteStyle.READLINE_LIKE,
        )

    @property
    def typed_text(self) -> str:
        """What was typed last, also if it was not sent."""
        return self._session.default_buffer.text

    async def read_line(self) -> str:
        """The next line, without white space around it; KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""
        with patch_stdout(raw=True):  # what is logged meanwhile stands above the line, which is drawn again
            return (await self._session.prompt_async()).strip()

    def _render_prompt(self) -> FormattedText:
        style = "bold ansicyan" if has_colours(sys.stdout) else ""
        return FormattedText([(style, self._roster.name), ("", " ▸ ")])

    def _build_key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        # Where it is one, Tab keeps the meaning that prompt_toolkit gives it.
        is_text = Condition(lambda: not is_command(self.typed_text))

        @keys.add("tab", filter=is_text)
        def _next(event: KeyPressEvent) -> None:
            self._roster.switch_by(1)
            event.app.invalidate()

        @keys.add("s-tab", filter=is_text)
        def _previous(event: KeyPressEvent) -> None:
            self._roster.switch_by(-1)
            event.app.invalidate()

        @keys.add("escape", "enter")
        def _new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return keys


@contextmanager
def disable_echo() -> Iterator[None]:
    """While an answer is shown, what is typed ahead waits for the next prompt, and is not shown amid the answer."""
    before = termios.tcgetattr(sys.stdin)
    changed = termios.tcgetattr(sys.stdin)
    changed[3] &= ~(termios.ECHO | termios.ICANON)  # a terminal that reads lines would drop Ctrl-D
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class _History(InMemoryHistory):
    """Without blank lines."""

    def append_string(self, string: str) -> None:
        if string.strip():
            super().append_string(string)


class _CommandCompleter(Completer):
    """Completes commands, and the names of agents behind one."""

    def __init__(self, roster: ChatRoster) -> None:
        self._roster = roster

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        word = line.rpartition(" ")[2]
        for found in complete(line, self._roster) if is_command(line) else ():
            yield Completion(found, start_position=-len(word))
