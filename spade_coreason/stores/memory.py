"""What an agent remembers about its conversations, kept in one JSON file an agent (seed: Memory API)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from .memory_file import MemoryFile
from .memory_format import file_name
from .memory_tools import MemoryTool, tools_for

T = TypeVar("T")

DEFAULT_DIRECTORY = Path("data/memory")


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AgentInteractionMemory:
    """What one agent was told, by conversation; it is there again after a restart.

    `agent_id` is usually a bare JID. `storage_dir` is a directory, `data/memory` in the current one by default; it and
    the file are made when the first thing is remembered. Threads, tasks and processes may share an agent's file, and
    none loses an addition. What a method has stored is on disk when it returns.

    The methods block for as long as the disk takes; in a coroutine use their awaitable twins (`aadd_information`, …).
    Those of one memory are carried out one after the other; one that is cancelled may still be carried out.

    Raises MemoryFileError, here or later, if the file is damaged or another agent's (it is kept as it is), StoreError
    if it cannot be read or written, ValueError for an id or information that is no text or empty.
    """

    def __init__(
        self,
        agent_id: str,
        storage_dir: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.agent_id = _text("agent_id", agent_id)
        directory = Path(DEFAULT_DIRECTORY if storage_dir is None else storage_dir).absolute()
        self._file = MemoryFile(directory / file_name(agent_id), agent_id)
        self._clock = clock
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def path(self) -> Path:
        """The agent's file; it exists from the first information on."""
        return self._file.path

    def add_information(self, conversation_id: str, information: str) -> str:
        """Remembers a piece of information; returns a confirmation that names it."""
        _text("conversation_id", conversation_id)
        _text("information", information)
        self._file.append(conversation_id, {"content": information, "timestamp": _timestamp(self._clock())})
        return f"Remembered: {information}"

    def get_information(self, conversation_id: str) -> list[str]:
        """What was remembered in a conversation, oldest first."""
        return [entry["content"] for entry in self._file.interactions().get(conversation_id, ())]

    def get_context_summary(self, conversation_id: str) -> str | None:
        """The same as one text for a prompt: "Previous interactions:" and a line "- …" each. None if there is none."""
        information = self.get_information(conversation_id)
        if not information:
            return None
        return "\n".join(["Previous interactions:", *(f"- {content}" for content in information)])

    def clear_conversation(self, conversation_id: str) -> bool:
        """Forgets a conversation for good; False if there was nothing to forget."""
        return self._file.remove(conversation_id)

    def remove_information(self, conversation_id: str, *information: str) -> int:
        """Forgets some of what was remembered in a conversation, all of it at once; how many pieces there were.

        Beyond the seed: with `clear_conversation` and adding again, what is to stay would be gone for a moment.
        """
        return self._file.remove_entries(conversation_id, frozenset(information))

    def get_all_conversations(self) -> list[str]:
        """The conversations in which something is remembered, in the order in which they began."""
        return [conversation_id for conversation_id, entries in self._file.interactions().items() if entries]

    def tools(self, conversation_id: str) -> tuple[MemoryTool, MemoryTool]:
        """`remember_interaction_info` and `get_interaction_history` for a language model, bound to a conversation."""
        return tools_for(self, _text("conversation_id", conversation_id))

    def get_entries(self) -> dict[str, list[tuple[str, str]]]:
        """All that is remembered, by conversation: each piece with the time at which it was, oldest first. Beyond the seed."""
        return {
            conversation_id: [(entry["content"], entry["timestamp"]) for entry in entries]
            for conversation_id, entries in self._file.interactions().items()
        }

    # The awaitable twins

    async def aadd_information(self, conversation_id: str, information: str) -> str:
        """`add_information` without blocking the event loop."""
        return await self._aside(partial(self.add_information, conversation_id, information))

    async def aget_information(self, conversation_id: str) -> list[str]:
        """`get_information` without blocking the event loop."""
        return await self._aside(partial(self.get_information, conversation_id))

    async def aget_context_summary(self, conversation_id: str) -> str | None:
        """`get_context_summary` without blocking the event loop."""
        return await self._aside(partial(self.get_context_summary, conversation_id))

    async def aclear_conversation(self, conversation_id: str) -> bool:
        """`clear_conversation` without blocking the event loop."""
        return await self._aside(partial(self.clear_conversation, conversation_id))

    async def aremove_information(self, conversation_id: str, *information: str) -> int:
        """`remove_information` without blocking the event loop."""
        return await self._aside(partial(self.remove_information, conversation_id, *information))

    async def aget_all_conversations(self) -> list[str]:
        """`get_all_conversations` without blocking the event loop."""
        return await self._aside(self.get_all_conversations)

    async def aget_entries(self) -> dict[str, list[tuple[str, str]]]:
        """`get_entries` without blocking the event loop."""
        return await self._aside(self.get_entries)

    async def _aside(self, work: Callable[[], T]) -> T:
        # In turn: many who wait for one file would else hold all threads of the loop's pool, and additions would be
        # stored in another order than they were made in. A lock belongs to the loop in which it was first waited for.
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = (loop, asyncio.Lock())
        async with self._turn[1]:
            return await asyncio.to_thread(work)


def _timestamp(moment: datetime) -> str:
    """2025-01-09T10:30:00.000Z"""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{what} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half a character (a lone surrogate) at {error.start}; it is no text") from error
    return value
