"""Interaction memories that move between files and the table of a database."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from ...domain.policy import MemoryLimits
from ...exceptions import MemoryFileError, StoreError
from ...storage import UnpackedMemories
from .disk import OSErrorTranslator, sync_directory, write_replacement
from .file import MemoryFile
from .format import LinesByConversation, dump, file_name, new_document, spade_llm_file_name
from .rows import group_lines
from .store import AgentInteractionMemory

log = logging.getLogger(__name__)

_IMPORTED = ".imported"
"""The end of the name of a file of spade_llm whose entries are in the database."""

Alone: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Makes a block that only one process at a time is in (`Backend.alone`)."""


async def import_memory_files(memory: AgentInteractionMemory, directory: Path, alone: Alone = nullcontext) -> int:
    """Move the entries of an agent from its files to the database of `memory`. Return how many were new there.

    The file of spade_llm counts if the agent has never had one of its own. The entries are added in one transaction. Then the
    files are deleted, and that of spade_llm is renamed. If the process is killed in between, the next call finds every entry in
    the database and adds none. Of several processes, one at a time does this.

    Raise MemoryFileError for a damaged file, which stays as it is, and StoreError if a file cannot be read or deleted.
    """
    if not await asyncio.to_thread(_find_files, directory, memory.agent_id):
        return 0
    async with alone():
        files = await asyncio.to_thread(_find_files, directory, memory.agent_id)
        if not files:  # another process has moved them
            return 0
        added = await memory.amerge(await asyncio.to_thread(_read_files, directory, memory.agent_id))
        await asyncio.to_thread(_put_away, files, directory, memory.agent_id)
    log.info("%s: its entries are in the database now (%d new ones)", files[-1], added)
    return added


async def import_all_memory_files(
    directory: Path,
    make_memory: Callable[[str], AgentInteractionMemory],
    alone: Alone = nullcontext,
    without: Collection[str] = (),
) -> None:
    """Move the entries of all agents with files but `without`. A file that cannot be moved is reported, and stays."""
    for agent_id in await asyncio.to_thread(_list_agents, directory):
        if agent_id not in without:
            try:
                await import_memory_files(make_memory(agent_id), directory, alone)
            except StoreError as error:
                log.error("%s", error)


def require_imported(directory: Path, agent_id: str) -> None:
    """Raise StoreError if an agent has files of its own that are not in the database yet: MemoryFileError if one is damaged."""
    if files := _find_own_files(directory, agent_id):
        _read_files(directory, agent_id)
        raise StoreError(f"{files[-1]}: is not in the database yet; the next start of the platform moves it there")


def _find_own_files(directory: Path, agent_id: str) -> list[Path]:
    """Return the journal and the memory file of an agent, if they exist."""
    path = directory / file_name(agent_id)
    return [file for file in (path.with_name(f"{path.name}.journal"), path) if file.exists()]


def _find_files(directory: Path, agent_id: str) -> list[Path]:
    """Return the files of an agent that are to be moved: its own ones, else that of spade_llm."""
    return _find_own_files(directory, agent_id) or _find_spade_llm_file(directory, agent_id)


def _find_spade_llm_file(directory: Path, agent_id: str) -> list[Path]:
    name = spade_llm_file_name(agent_id)
    return [directory / name] if name is not None and (directory / name).exists() else []


def _read_files(directory: Path, agent_id: str) -> LinesByConversation:
    return MemoryFile(directory / file_name(agent_id), agent_id, MemoryLimits(), is_durable=False).read_all()


def _put_away(files: list[Path], directory: Path, agent_id: str) -> None:
    """Delete the files of an agent whose entries are in the database, for deletions do not reach them.

    That of spade_llm is no copy, and is renamed. It also is if the agent has had files of its own, which began with it.
    """
    for path in _find_spade_llm_file(directory, agent_id):  # first: without the others it would be imported
        with OSErrorTranslator(path, "is in the database now, but cannot be renamed"):
            names = (path.with_name(f"{path.name}{_IMPORTED}{f'.{number}' if number else ''}") for number in count())
            os.rename(path, next(name for name in names if not name.exists()))
            sync_directory(path.parent)
    for path in files:
        with OSErrorTranslator(path, "is in the database now, but cannot be deleted"):
            path.unlink(missing_ok=True)
            sync_directory(path.parent)


def _list_agents(directory: Path) -> list[str]:
    """Return the agents with files of their own. One with a name too long for a file is found only when it is opened."""
    names = {path.name.removesuffix(".journal") for pattern in ("*.json", "*.json.journal") for path in directory.glob(pattern)}
    return sorted(agent_id for name in names if file_name(agent_id := unquote(name.removesuffix(".json"))) == name)


# Backups


def move_files_to_rows(rows: UnpackedMemories, directory: Path) -> None:
    """Move the files of a backup to its database. A damaged file stays a file, and so does that of spade_llm."""
    for agent_id in _list_agents(directory):
        try:
            entries = _read_files(directory, agent_id)
        except MemoryFileError as error:
            log.warning("%s", error)
            continue
        rows.add(agent_id, [(name, line.decode()) for name, lines in entries.items() for line in bytes(lines).splitlines()])
        for path in _find_own_files(directory, agent_id):
            path.unlink()


def move_rows_to_files(rows: UnpackedMemories, directory: Path) -> None:
    """Move the rows of a backup to its files."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for agent_id in rows.list_agents():
        entries = group_lines(rows.load(agent_id))
        for damaged in _find_own_files(directory, agent_id):  # another one would be in the database
            damaged.rename(damaged.with_name(f"{damaged.name}.damaged"))
        write_replacement(directory / file_name(agent_id), dump(new_document(agent_id), entries), None)
    rows.delete_all()
