"""The locks of the data and the local server, which outlive the process of a platform that another one replaces."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from ..config import Settings
from ..domain.environment.private_files import find_foreign_writers
from ..exceptions import ConfigError, CoReasonError, DataDirectoryInUseError, ServerError, StoreError
from ..storage import find_database_file, lock_database, lock_directory
from ..xmpp import AddressInUseError, LocalServer, run_local_server, select_server

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Supervision:
    """The parent's share of a platform: it holds the locks of the data, and runs `server` if there is a local one."""

    server: LocalServer | None = None


def lock_data(settings: Settings, stack: AsyncExitStack) -> None:
    """Own the data directory and the SQLite file of a configuration until `stack` closes.

    Log a warning for each directory of the stored data that other users can write. Raise DataDirectoryInUseError if another
    process owns them, and ConfigError if they cannot be used.
    """
    for key, lock in (
        ("data_dir", lock_directory(settings.data_dir)),
        ("storage.url", lock_database(settings.storage.url)),
    ):
        try:
            stack.enter_context(lock)
        except DataDirectoryInUseError as error:
            raise error.with_place(settings.place(key)) from None
        except StoreError as error:
            raise ConfigError(settings.place(key), str(error)) from error
    for problem in find_directory_problems(settings):
        log.warning("%s", problem)


def find_directory_problems(settings: Settings) -> list[str]:
    """Return a sentence with its remedy for each directory of the stored data that other users can write."""
    directories = [settings.data_dir, settings.storage.memory_dir]
    if (file := find_database_file(settings.storage.url)) is not None:
        directories.append(file.parent)
    return list(dict.fromkeys(problem for directory in directories for problem in find_foreign_writers(directory)))


async def start_local_server(settings: Settings, stack: AsyncExitStack) -> tuple[LocalServer, str | None]:
    """Start the local server of a configuration; it runs until `stack` closes.

    Return the server, and a notice for people about the choice of its kind, if there is one. Raise ServerError.
    """
    server = settings.server
    if server.mode == "external":
        raise ValueError("an external server cannot be started")
    with _place_errors(ServerError, settings.place("server.mode")):
        choice = select_server(server.mode)
    with _place_errors(AddressInUseError, settings.place("server.port")):
        local = await stack.enter_async_context(run_local_server(choice.kind, settings.data_dir / "server", port=server.port))
    return local, choice.notice


@contextmanager
def _place_errors(kind: type[CoReasonError], place: str) -> Iterator[None]:
    """Add the place in the configuration to errors of a kind."""
    try:
        yield
    except kind as error:
        error.place = place
        raise
