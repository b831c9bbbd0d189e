"""The input line of a chat: its prompt, its keys, its history."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.shortcuts import CompleteStyle

from ..terminal.console import has_colours
from .commands import complete, is_command
from .roster import ChatRoster


class Prompt:
    """A prompt that reads lines. Tab changes the agent; in a command, Tab completes."""

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
        """The text that was typed last, sent or not."""
        return self._session.default_buffer.text

    async def read_line(self) -> str:
        """Read the next line and strip it. Raise KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D."""
        with patch_stdout(raw=True):  # log lines appear above the prompt, which is then drawn again
            return (await self._session.prompt_async()).strip()

    def _render_prompt(self) -> FormattedText:
        style = "bold ansicyan" if has_colours(sys.stdout) else ""
        return FormattedText([(style, self._roster.name), ("", " ▸ ")])

    def _build_key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        # In a command, Tab keeps its prompt_toolkit meaning: completion.
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


class _History(InMemoryHistory):
    """A history without blank lines."""

    def append_string(self, string: str) -> None:
        if string.strip():
            super().append_string(string)


class _CommandCompleter(Completer):
    """A completer of commands, and of agent names after a command."""

    def __init__(self, roster: ChatRoster) -> None:
        self._roster = roster

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        line = document.text_before_cursor
        word = line.rpartition(" ")[2]
        for found in complete(line, self._roster) if is_command(line) else ():
            yield Completion(found, start_position=-len(word))
