"""Texts that agents write first, in a chat: above the prompt, or between the answers."""

from __future__ import annotations

import asyncio

from ...domain.jid import bare_jid, local_part
from ...domain.texts.terminal_text import clean_running_text, escape_label
from ..terminal.answer_writer import shows_markdown
from ..terminal.console import add_style, is_unicode, print_cleaned, terminal_width
from .commands import INDENT


class ParkedRequests:
    """The requests of a chat that wait: the agent (a JID) and the id of each, the oldest first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str]] = []
        self._text = asyncio.Event()

    def add(self, jid: str, request_id: str) -> None:
        """Add a request that waits for a person."""
        self.waiting.append((jid, request_id))

    def note_text(self, jid: str) -> None:
        """Note a text of an agent: it goes on with its oldest request."""
        self.waiting = self.waiting[: (place := self._find(jid))] + self.waiting[place + 1 :]
        self._text.set()

    async def wait_for_text(self, timeout_s: float) -> bool:
        """Wait for the next text, if a request waits. Return False if none comes."""
        if not self.waiting:
            return False
        self._text.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._text.wait()
        except TimeoutError:
            return False
        return True

    def _find(self, jid: str) -> int:
        agents = [bare_jid(waiting) for waiting, _ in self.waiting]
        return agents.index(bare_jid(jid)) if bare_jid(jid) in agents else len(agents)


class IncomingTexts:
    """The texts that agents write first. They are held while an answer is shown."""

    def __init__(self) -> None:
        self._held: list[tuple[str, str]] | None = []
        self.parked = ParkedRequests()
        """The requests that wait for a person."""

    def put(self, jid: str, text: str) -> None:
        """Show a text of an agent, or hold it."""
        self.parked.note_text(jid)
        if self._held is None:
            _show(jid, text)
        else:
            self._held.append((jid, text))

    def begin(self) -> None:
        """Show the held texts, and from now on those that come, at once."""
        held, self._held = self._held or [], None
        for jid, text in held:
            _show(jid, text)

    def hold(self) -> None:
        """Hold the texts that come from now on."""
        if self._held is None:
            self._held = []


def _show(jid: str, text: str) -> None:
    name, lines = escape_label(local_part(jid)), clean_running_text(text).split("\n")
    if shows_markdown():
        from ..terminal.markdown import MarkdownRenderer  # it loads rich

        # The marks of a chat (XEP-0393) are marks of Markdown, too. There two blanks end a line.
        renderer, columns = MarkdownRenderer(is_unicode=is_unicode()), terminal_width() or 80
        lines = renderer.render("  \n".join(lines), max(columns - len(name) - 3, columns // 2)).lines
    print_cleaned(add_style(f"{name}:", "bold") + " " + f"\n{INDENT}".join(lines))
