"""What an agent remembers about its conversations, kept in one JSON file an agent and a journal (seed: Memory API)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from ...exceptions import MemoryFileError, StoreError
from .file import Addition, MemoryFile, MemoryLimits as MemoryLimits
from .format import decode_entries, encode_entry, file_name, format_timestamp, parse_spade_llm
from .journal import encode_addition
from .tools import MemoryTool, SystemMessage, build_memory_tools, build_summary, build_system_messages
from .turn_sync import CURRENT_DEFERRED_SYNCS


class LoopLock:
    """`async with loop_lock.lock():`, in any event loop; one of asyncio's belongs to the first that waits for it.

    Each loop has its own, and the one before is forgotten: it is for one loop after another, not for several at once.
    """

    def __init__(self) -> None:
        self._current: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def lock(self) -> asyncio.Lock:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if self._current is None or self._current[0] is not loop:
            self._current = (loop, asyncio.Lock())
        return self._current[1]


T = TypeVar("T")

DEFAULT_DIRECTORY = Path("data/memory")


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AgentInteractionMemory:
    """What one agent was told, by conversation; it is there again after a restart.

    `agent_id` is usually a bare JID. `storage_dir` is a directory, `data/memory` in the current one by default; it and
    the files are made when the first thing is remembered. Threads, tasks and processes may share an agent's memory, and
    none loses an addition. Where the directory has a file that spade_llm wrote for this agent and none of ours, it is
    what the agent remembers.

    An addition is on disk when its method returns: with `durability` "full" it survives a power cut, with "normal" the end
    of the process however it comes. What an agent's `assist` adds survives the end of the process at once; it is synced at
    the end of the turn, once and before the answer is stored, or by `settle`. Additions go to a journal beside the file
    (`.journal`); `flush` and `close`, and an addition that makes the journal too long, fold it into the file. What is removed
    is gone from both at once.

    The methods block for as long as the disk takes; in a coroutine use their awaitable twins (`aadd_information`, …).
    Those of one memory are carried out one after the other, and additions that wait at the same time share one write to
    the disk; one that is cancelled is carried out at once or never. Nothing is held open.

    Raises MemoryFileError, here or later, if a file is damaged or another agent's (it is kept as it is), StoreError
    if it cannot be read or written, MemoryFullError for a conversation that holds too much, ValueError for an id or
    information that is no text, empty or too long.
    """

    def __init__(
        self,
        agent_id: str,
        storage_dir: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], datetime] = _utc_now,
        limits: MemoryLimits = MemoryLimits(),  # noqa: B008 - it is frozen
        durability: Literal["full", "normal"] = "full",
    ) -> None:
        self.agent_id = _require_text("agent_id", agent_id)
        self.limits = limits
        directory = Path(DEFAULT_DIRECTORY if storage_dir is None else storage_dir).absolute()
        self._file = MemoryFile(directory / file_name(agent_id), agent_id, limits, is_durable=durability == "full")
        self._clock = clock
        self._operation_lock, self._sync_lock = LoopLock(), LoopLock()

    @property
    def path(self) -> Path:
        """The agent's file; it exists when the first information was folded in."""
        return self._file.path

    @property
    def journal_path(self) -> Path:
        """The journal of what was added since; it exists as long as there is something to fold in."""
        return self._file.journal_path

    def add_information(self, conversation_id: str, information: str) -> str:
        """Remembers a piece of information; returns a confirmation that names it."""
        addition = self._new_addition(conversation_id, information)
        self._file.enqueue(addition)
        self._file.write_queued()
        addition.result()
        return f"Remembered: {information}"

    def get_information(self, conversation_id: str) -> list[str]:
        """What was remembered in a conversation, oldest first."""
        return [entry["content"] for entry in decode_entries(self._file.read_lines(conversation_id))]

    def get_context_summary(self, conversation_id: str) -> str | None:
        """The same as one text for a prompt: "Previous interactions:" and a line "- …" each. None if there is none.

        Line breaks and control characters inside one are shown as spaces.
        """
        return build_summary(self.get_information(conversation_id))

    def get_context_messages(self, conversation_id: str) -> list[SystemMessage]:
        """The system messages of a turn, made anew from what is remembered now: one that says that the next is data, and
        the seed's with the summary. None of them if there is nothing.
        """
        return build_system_messages(self.get_context_summary(conversation_id))

    def clear_conversation(self, conversation_id: str) -> bool:
        """Forgets a conversation for good; False if there was nothing to forget."""
        return bool(self._file.remove({conversation_id}))

    def clear_conversations(self, conversation_ids: Iterable[str]) -> int:
        """Forgets several at once, for what forgetting one costs; how many of them there were."""
        return self._file.remove(frozenset(conversation_ids))

    def remove_information(self, conversation_id: str, *information: str) -> int:
        """Forgets some of what was remembered in a conversation, all of it at once; how many pieces there were.

        Beyond the seed: with `clear_conversation` and adding again, what is to stay would be gone for a moment.
        """
        return self._file.remove_entries(conversation_id, frozenset(information))

    def get_all_conversations(self) -> list[str]:
        """The conversations in which something is remembered, in the order in which they began."""
        return self._file.list_conversations()

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Takes in what a file of this agent holds that spade_llm or we wrote; how many pieces were not there yet.

        The file is kept as it is. Timestamps without a time zone are taken for local ones.
        """
        source = Path(path)
        try:
            with open(source, "rb") as file:
                memories = parse_spade_llm(file, self.agent_id)
        except OSError as error:
            raise StoreError(f"{source}: cannot be read: {error.strerror}; name a file that is there") from error
        except ValueError as error:
            raise MemoryFileError(source, str(error), "name another one, or repair it") from error
        return self._file.merge(memories)

    def settle(self) -> None:
        """Syncs what was added in turns; a turn does it at its end.

        StoreError if it cannot be stored; whoever calls this next tries again.
        """
        if self._file.completed_syncs < self._file.deferred_syncs:
            self._file.sync()

    def flush(self) -> None:
        """Folds the journal into the memory file, which then is complete by itself."""
        self._file.fold()

    def close(self) -> None:
        """`flush`, at the end: nothing is held open, and whoever still has this memory can go on with it."""
        self.flush()

    def tools(self, conversation_id: str) -> tuple[MemoryTool, MemoryTool]:
        """`remember_interaction_info` and `get_interaction_history` for a language model, bound to a conversation."""
        return build_memory_tools(self, _require_text("conversation_id", conversation_id))

    def get_entries(self) -> dict[str, list[tuple[str, str]]]:
        """All that is remembered, by conversation: each piece with the time at which it was, oldest first. Beyond the seed."""
        return {
            name: [(entry["content"], entry["timestamp"]) for entry in decode_entries(self._file.read_lines(name))]
            for name in self._file.list_conversations()
        }

    # The awaitable twins

    async def aadd_information(self, conversation_id: str, information: str) -> str:
        """`add_information` without blocking the event loop."""
        addition = self._new_addition(conversation_id, information)
        self._file.enqueue(addition)
        try:
            async with self._operation_lock.lock():
                if not addition.done():  # who came before wrote for all who waited
                    # A thread that has begun goes on when its task is cancelled, and one that has not must begin all
                    # the same, for it writes the additions of others too.
                    await asyncio.shield(asyncio.to_thread(self._file.write_queued))
            if not addition.done():  # a thread writes it whose task was cancelled
                await asyncio.wrap_future(addition)
        finally:
            addition.cancel()  # of what is being written or is done, nothing changes
        addition.result()
        return f"Remembered: {information}"

    async def aget_information(self, conversation_id: str) -> list[str]:
        """`get_information` without blocking the event loop."""
        return await self._run_in_thread(partial(self.get_information, conversation_id))

    async def aget_context_summary(self, conversation_id: str) -> str | None:
        """`get_context_summary` without blocking the event loop."""
        return await self._run_in_thread(partial(self.get_context_summary, conversation_id))

    async def aget_context_messages(self, conversation_id: str) -> list[SystemMessage]:
        """`get_context_messages` without blocking the event loop."""
        return await self._run_in_thread(partial(self.get_context_messages, conversation_id))

    async def aclear_conversation(self, conversation_id: str) -> bool:
        """`clear_conversation` without blocking the event loop."""
        return await self._run_in_thread(partial(self.clear_conversation, conversation_id))

    async def aclear_conversations(self, conversation_ids: Iterable[str]) -> int:
        """`clear_conversations` without blocking the event loop."""
        return await self._run_in_thread(partial(self.clear_conversations, frozenset(conversation_ids)))

    async def aremove_information(self, conversation_id: str, *information: str) -> int:
        """`remove_information` without blocking the event loop."""
        return await self._run_in_thread(partial(self.remove_information, conversation_id, *information))

    async def aget_all_conversations(self) -> list[str]:
        """`get_all_conversations` without blocking the event loop."""
        return await self._run_in_thread(self.get_all_conversations)

    async def aget_entries(self) -> dict[str, list[tuple[str, str]]]:
        """`get_entries` without blocking the event loop."""
        return await self._run_in_thread(self.get_entries)

    async def aimport_file(self, path: str | os.PathLike[str]) -> int:
        """`import_file` without blocking the event loop."""
        return await self._run_in_thread(partial(self.import_file, path))

    async def aflush(self) -> None:
        """`flush` without blocking the event loop."""
        await self._run_in_thread(self.flush)

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await self._run_in_thread(self.close)

    async def asettle(self) -> None:
        """`settle` without blocking the event loop, nor additions."""
        left = self._file.deferred_syncs
        async with self._sync_lock.lock():  # one syncs for all who wait
            if self._file.completed_syncs < left:
                await asyncio.to_thread(self._file.sync)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        # In turn: many who wait for one file would else hold all threads of the loop's pool, and additions would be
        # stored in another order than they were made in.
        async with self._operation_lock.lock():
            return await asyncio.to_thread(work)

    def _new_addition(self, conversation_id: str, information: str) -> Addition:
        self._require_within_limit("conversation_id", _require_text("conversation_id", conversation_id))
        self._require_within_limit("information", _require_text("information", information))
        now = format_timestamp(self._clock())
        syncs = CURRENT_DEFERRED_SYNCS.get()
        return Addition(
            conversation_id,
            encode_entry({"content": information, "timestamp": now}),
            encode_addition(conversation_id, information, now),
            partial(syncs.defer, self) if syncs is not None else _defer_nothing,
        )

    def _require_within_limit(self, what: str, text: str) -> None:
        size, most = len(text.encode()), self.limits.entry_bytes
        if size > most:
            raise ValueError(f"{what} has {size:,} bytes, and {most:,} are the most; keep the text elsewhere, remember where")


def _defer_nothing() -> bool:
    """Outside of a turn nobody syncs later."""
    return False


def _require_text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{what} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half a character (a lone surrogate) at {error.start}; it is no text") from error
    return value
