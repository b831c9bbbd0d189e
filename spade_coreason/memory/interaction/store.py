"""The interaction memory of an agent, stored in one JSON file and a journal per agent, or in a database (seed: Memory API)."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from ...concurrency import LoopLock
from ...contracts.times import utc_now
from ...exceptions import MemoryFileError, StoreError
from .disk import sync_directory, write_replacement
from .file import MemoryFile, MemoryLimits as MemoryLimits
from .format import (
    LinesByConversation,
    decode_entries,
    dump,
    encode_entry,
    file_name,
    find_new,
    format_timestamp,
    new_document,
    parse_spade_llm,
)
from .tools import MemoryTool, SystemMessage, build_memory_tools, build_summary, build_system_messages
from .turn_sync import CURRENT_DEFERRED_SYNCS, Addition

if TYPE_CHECKING:
    from .rows import MemoryRows

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_DIRECTORY = Path("data/memory")


def _make_awaitable(
    method: Callable[Concatenate[AgentInteractionMemory, P], T],
) -> Callable[Concatenate[AgentInteractionMemory, P], Coroutine[Any, Any, T]]:
    """Make the awaitable twin of a method."""

    @wraps(method)
    async def twin(self: AgentInteractionMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # One after the other: otherwise many tasks that wait for one file would occupy all threads of the loop's pool, and
        # additions would be stored in another order than they were made.
        async with self._operation_lock:
            return await self.store.run(partial(method, self, *args, **kwargs))

    name = method.__name__
    twin.__name__, twin.__doc__ = f"a{name}", f"`{name}` without blocking the event loop."
    twin.__qualname__ = method.__qualname__.replace(name, twin.__name__)  # for a warning that it was not awaited
    return twin


class AgentInteractionMemory:
    """The facts that one agent stores about its conversations. They survive a restart.

    Parameters:

    - `agent_id`: usually a bare JID.
    - `storage_dir`: a directory, by default `data/memory` in the current directory. The first addition creates it and the
      files. If it has a file that spade_llm wrote for this agent and no file of ours, that file is imported.
    - `clock`: returns the time for timestamps.
    - `limits`: maximum sizes, see `MemoryLimits`.
    - `durability`: with "full" an addition survives a power cut; with "normal" it survives any end of the process.
    - `store`: stores the entries in place of files. A platform sets it if it uses PostgreSQL (`MemoryRows`, which says what
      is different there).

    Concurrency: threads, tasks and processes may share an agent's memory, and no addition is lost. The methods block while the
    disk works. In a coroutine use their awaitable twins (`aadd_information`, …). The twins of one memory run one after the
    other, and additions that wait at the same time share one write. A cancelled addition is carried out at once or never.

    Durability: an addition is on disk when its method returns. Additions during an agent's `assist` survive the end of
    the process at once. They are synced once at the end of the turn, before the reply is stored, or by `settle`.

    Files: additions go to a journal beside the file (`.journal`). `flush`, `close`, and an addition that makes the journal
    too long, fold it into the file. Removals take effect in both at once. No file stays open.

    Errors, from the constructor or a later call:

    - MemoryFileError: a file is damaged or belongs to another agent. The file is left unchanged.
    - StoreError: a file cannot be read or written.
    - MemoryFullError: the conversation has reached its limit.
    - ValueError: an id or a piece of information is no text, empty or too long.
    """

    def __init__(
        self,
        agent_id: str,
        storage_dir: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        limits: MemoryLimits = MemoryLimits(),  # noqa: B008 - it is frozen
        durability: Literal["full", "normal"] = "full",
        store: MemoryFile | MemoryRows | None = None,
    ) -> None:
        self.agent_id = _require_text("agent_id", agent_id)
        self.limits = limits
        if store is None:
            directory = Path(DEFAULT_DIRECTORY if storage_dir is None else storage_dir).absolute()
            store = MemoryFile(directory / file_name(agent_id), agent_id, limits, is_durable=durability == "full")
        self.store: MemoryFile | MemoryRows = store
        """The store of the entries."""
        self._clock = clock
        self._operation_lock, self._sync_lock = LoopLock(), LoopLock()

    @property
    def path(self) -> Path:
        """The agent's file. The first fold creates it. Raise StoreError if the entries are in a database."""
        return self._require_file().path

    @property
    def journal_path(self) -> Path:
        """The journal of later additions. It exists as long as there is something to fold."""
        return self._require_file().journal_path

    @property
    def has_file(self) -> bool:
        """True if the entries are in a file, False if they are in a database."""
        return isinstance(self.store, MemoryFile)

    def add_information(self, conversation_id: str, information: str) -> str:
        """Store a piece of information. Return a confirmation that contains it."""
        addition = self._new_addition(conversation_id, information)
        self.store.enqueue(addition)
        self.store.write_queued(addition)
        addition.result()
        return f"Remembered: {information}"

    def get_information(self, conversation_id: str) -> list[str]:
        """Return the information of a conversation, oldest first."""
        return [entry["content"] for entry in decode_entries(self.store.read_lines(conversation_id))]

    def get_context_summary(self, conversation_id: str) -> str | None:
        """Return the information as one text for a prompt: "Previous interactions:" and a line "- …" each.

        Without information it returns None. Line breaks and control characters in a piece of information become spaces.
        """
        return build_summary(self.get_information(conversation_id))

    def get_context_messages(self, conversation_id: str) -> list[SystemMessage]:
        """Return the system messages of a turn, built from the information that is stored now.

        The first says that the next is data; the second is the seed's, with the summary. The list is empty without information.
        """
        return build_system_messages(self.get_context_summary(conversation_id))

    def clear_conversation(self, conversation_id: str) -> bool:
        """Delete a conversation permanently. Return False if there was nothing to delete."""
        return bool(self.store.remove({conversation_id}))

    def clear_conversations(self, conversation_ids: Iterable[str]) -> int:
        """Delete several conversations at once, at the cost of one. Return how many of them existed."""
        return self.store.remove(frozenset(conversation_ids))

    def remove_information(self, conversation_id: str, *information: str) -> int:
        """Delete pieces of information of a conversation, all at once. Return how many there were.

        Beyond the seed: with `clear_conversation` and adding again, the remaining information would be missing for a moment.
        """
        removed = frozenset(information)
        return self.store.remove_entries(conversation_id, lambda entry: entry["content"] in removed)

    def remove_of_times(self, conversation_id: str, is_removed: Callable[[str], bool]) -> int:
        """Delete the information of a conversation whose timestamps a function chooses. Return how many pieces there were.

        Beyond the seed.
        """
        return self.store.remove_entries(conversation_id, lambda entry: is_removed(entry["timestamp"]))

    def get_all_conversations(self) -> list[str]:
        """Return the ids of the conversations that have information, in the order in which they began."""
        return self.store.list_conversations()

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Import a file of this agent that spade_llm or this class wrote. Return how many pieces of information were new.

        The file is not changed. Timestamps without a time zone are read as local time. Raises StoreError if the file cannot be
        read, MemoryFileError if it cannot be parsed or belongs to another agent.
        """
        return self.merge(self.read_new(path))

    def read_new(self, path: str | os.PathLike[str]) -> LinesByConversation:
        """Return the information of such a file that is new, for `merge`. It raises what `import_file` does."""
        source = Path(path)
        try:
            # A pipe would block without O_NONBLOCK, and a device may have no end.
            with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise StoreError(f"{source}: is no regular file; name the memory file of an agent")
                entries = parse_spade_llm(file, self.agent_id)
        except OSError as error:
            raise StoreError(f"{source}: cannot be read: {error.strerror}; correct the name or its permissions") from error
        except ValueError as error:
            raise MemoryFileError(source, str(error), "name another file, or repair this one") from error
        return find_new(entries, self.store.read_lines)

    def export_file(self, path: str | os.PathLike[str]) -> int:
        """Write all information to a new file in the format of the seed. Return the number of pieces of information.

        `import_file`, spade_llm and every program that knows the format can read it. Raise StoreError if the file exists
        already or cannot be written. Beyond the seed.
        """
        target, lines_by_conversation = Path(path), self.store.read_all()
        try:
            # Unlike a rename, a link replaces nothing.
            with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
                written = Path(directory) / "export"
                write_replacement(written, dump(new_document(self.agent_id), lines_by_conversation), None)
                os.link(written, target)
                sync_directory(target.parent)
        except FileExistsError as error:
            raise StoreError(f"{target}: already exists; name another file, or delete it") from error
        except OSError as error:
            raise StoreError(f"{target}: cannot be written: {error.strerror}; correct the name or its permissions") from error
        return sum(lines.count(b"\n") for lines in lines_by_conversation.values())

    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        """Add the information of `read_new`. Return how many pieces of it were still new."""
        return self.store.merge(lines_by_conversation)

    def settle(self) -> None:
        """Sync the additions of turns. A turn does this at its end.

        Raises StoreError if they cannot be stored; the next call tries again.
        """
        if self.store.completed_syncs < self.store.deferred_syncs:
            self.store.sync()

    def flush(self) -> None:
        """Fold the journal into the memory file, which is then complete by itself."""
        self.store.fold()

    def close(self) -> None:
        """Flush at the end. No file is open, so that the object can still be used."""
        self.flush()

    def tools(self, conversation_id: str) -> tuple[MemoryTool, MemoryTool]:
        """Return `remember_interaction_info` and `get_interaction_history` for a language model, bound to a conversation."""
        return build_memory_tools(self, _require_text("conversation_id", conversation_id))

    def get_entries(self) -> dict[str, list[tuple[str, str]]]:
        """Return all information by conversation id: pairs of text and timestamp, oldest first. Beyond the seed."""
        return {
            name: [(entry["content"], entry["timestamp"]) for entry in decode_entries(lines)]
            for name, lines in self.store.read_all().items()
        }

    # The awaitable twins

    async def aadd_information(self, conversation_id: str, information: str) -> str:
        """`add_information` without blocking the event loop."""
        addition = self._new_addition(conversation_id, information)
        self.store.enqueue(addition)
        try:
            async with self._operation_lock:
                if not addition.done():  # the previous holder of the lock wrote for all that waited
                    # A running thread continues when its task is cancelled. One that has not started must start despite the
                    # cancellation, since it also writes the additions of other tasks.
                    await asyncio.shield(self.store.run(self.store.write_queued))
            if not addition.done():  # the thread of a cancelled task writes it
                await asyncio.wrap_future(addition)
        finally:
            addition.cancel()  # no effect on an addition that is being written or done
        addition.result()
        return f"Remembered: {information}"

    aget_information = _make_awaitable(get_information)
    """`get_information` without blocking the event loop."""

    aget_context_summary = _make_awaitable(get_context_summary)
    """`get_context_summary` without blocking the event loop."""

    aget_context_messages = _make_awaitable(get_context_messages)
    """`get_context_messages` without blocking the event loop."""

    aclear_conversation = _make_awaitable(clear_conversation)
    """`clear_conversation` without blocking the event loop."""

    aclear_conversations = _make_awaitable(clear_conversations)
    """`clear_conversations` without blocking the event loop."""

    aremove_information = _make_awaitable(remove_information)
    """`remove_information` without blocking the event loop."""

    aremove_of_times = _make_awaitable(remove_of_times)
    """`remove_of_times` without blocking the event loop."""

    aget_all_conversations = _make_awaitable(get_all_conversations)
    """`get_all_conversations` without blocking the event loop."""

    aget_entries = _make_awaitable(get_entries)
    """`get_entries` without blocking the event loop."""

    async def aimport_file(self, path: str | os.PathLike[str]) -> int:
        """`import_file` without blocking the event loop."""
        return await self.amerge(await self.aread_new(path))

    async def aread_new(self, path: str | os.PathLike[str]) -> LinesByConversation:
        """`read_new` without blocking the event loop."""
        return await asyncio.to_thread(self.read_new, path)

    async def aexport_file(self, path: str | os.PathLike[str]) -> int:
        """`export_file` without blocking the event loop."""
        return await asyncio.to_thread(self.export_file, path)

    amerge = _make_awaitable(merge)
    """`merge` without blocking the event loop."""

    aflush = _make_awaitable(flush)
    """`flush` without blocking the event loop."""

    aclose = _make_awaitable(close)
    """`close` without blocking the event loop."""

    async def asettle(self) -> None:
        """`settle` without blocking the event loop or additions."""
        deferred = self.store.deferred_syncs
        async with self._sync_lock:  # one task syncs for all that wait
            if self.store.completed_syncs < deferred:
                await self.store.run(self.store.sync)

    def _require_file(self) -> MemoryFile:
        if not isinstance(self.store, MemoryFile):
            raise StoreError(f"{self.agent_id}: its interaction memory is in a database, and has no file")
        return self.store

    def _new_addition(self, conversation_id: str, information: str) -> Addition:
        self._require_within_limit("conversation_id", _require_text("conversation_id", conversation_id))
        self._require_within_limit("information", _require_text("information", information))
        timestamp = format_timestamp(self._clock())
        syncs = CURRENT_DEFERRED_SYNCS.get()
        return Addition(
            conversation_id,
            encode_entry({"content": information, "timestamp": timestamp}),
            partial(syncs.defer, self) if syncs is not None else _defer_nothing,
        )

    def _require_within_limit(self, name: str, text: str) -> None:
        size, limit = len(text.encode()), self.limits.entry_bytes
        if size > limit:
            raise ValueError(f"{name} has {size:,} bytes (limit: {limit:,}); store the text elsewhere, and remember its place")


def _defer_nothing() -> bool:
    """Return False: outside of a turn there is no later sync."""
    return False


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has a lone surrogate at {error.start}; it is not valid text") from error
    return value
