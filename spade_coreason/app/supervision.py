"""The locks of the data and the local server, which outlive the process of a platform that another one replaces."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..config import Settings, list_worker_directories
from ..domain.environment.private_files import find_foreign_writers
from ..exceptions import (
    ConfigError,
    CoReasonError,
    DatabaseUnreachableError,
    DataDirectoryInUseError,
    ServerError,
    StoreError,
)
from ..storage import StoreTimings, WorkerTerms, find_database_file, lock_database, lock_directory
from ..xmpp import AddressInUseError, LocalServer, ServerEndpoint, run_local_server, select_server

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Supervision:
    """The parent's share of a platform: it holds the locks of the data, and runs `server` if there is a local one."""

    server: LocalServer | None = None


def make_worker_terms(settings: Settings, *, serves: bool = True) -> WorkerTerms | None:
    """Return what a platform joins the workers of its database with; None if one platform alone can use the database.

    A command joins them without `serves`, and takes no agents.
    """
    if find_database_file(settings.storage.url) is not None or settings.server.mode != "external":
        return None
    return WorkerTerms(f"{socket.gethostname()}:{os.getpid()}", settings.workers.lease_s, serves)


def make_store_timings(terms: WorkerTerms | None) -> StoreTimings:
    """Return the delays of the database. PostgreSQL ends what a worker leaves open as soon as its lease ends."""
    if terms is None:
        return StoreTimings()
    return StoreTimings(
        lock_timeout_s=terms.lease_s, idle_transaction_timeout_s=terms.lease_s, lost_client_timeout_s=terms.lease_s
    )


def lock_data(settings: Settings, stack: AsyncExitStack, *, is_shared: bool = False) -> Path:
    """Own the data directory and the SQLite file of a configuration until `stack` closes. Return the directory.

    With `is_shared`, several workers on one machine may use it: each but the first owns a directory below it instead.

    Log a warning for each directory of the stored data that other users can write. Raise DataDirectoryInUseError if another
    process owns them, and ConfigError if they cannot be used.
    """
    directories: list[Path] = [settings.data_dir, *(list_worker_directories(settings.data_dir) if is_shared else ())]
    for directory in directories:
        try:
            with place_store_errors(settings.place("data_dir")):
                stack.enter_context(lock_directory(directory))
            break
        except DataDirectoryInUseError:
            if directory == directories[-1]:
                raise
    with place_store_errors(settings.place("storage.url")):
        stack.enter_context(lock_database(settings.storage.url))
    for problem in find_directory_problems(settings):
        log.warning("%s", problem)
    return directory


@contextmanager
def place_store_errors(place: str) -> Iterator[None]:
    """Raise the errors of a block with the place in the configuration: StoreError as ConfigError, unless no server answers."""
    try:
        yield
    except DataDirectoryInUseError as error:
        raise error.for_platform(place) from None
    except DatabaseUnreachableError as error:
        raise DatabaseUnreachableError(f"{place}: {error}") from error
    except StoreError as error:
        raise ConfigError(place, str(error)) from error


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


def describe_local_server(server: LocalServer) -> str:
    """Return a description of a local server for people."""
    text = f"{server.kind}, {server.host}:{server.port}"
    if server.kind == "embedded":
        text += " (for demonstrations: senders can be forged; `apt install prosody` installs a full server)"
    return text


def make_local_endpoint(server: LocalServer) -> ServerEndpoint:
    """Return how agents reach a local server."""
    # About one in fifty connections to the embedded server hangs while it is opened.
    timeout_s, attempts = (3.0, 5) if server.kind == "embedded" else (10.0, 1)
    return ServerEndpoint(
        server.host,
        server.port,
        ca_file=server.ca_file,
        timeout_s=timeout_s,
        attempts=attempts,
        files_url=server.files_url,
        has_forgery=server.kind == "embedded",
    )


def make_external_endpoint(settings: Settings, has_lease: Callable[[], bool] | None) -> ServerEndpoint:
    """Return how agents reach the server of a configuration. A worker connects only while it `has_lease`."""
    server, tls = settings.server, settings.server.tls
    return ServerEndpoint(server.host, server.port, tls.verify, tls.ca_file, requires_tls=tls.required, has_lease=has_lease)


@contextmanager
def _place_errors(kind: type[CoReasonError], place: str) -> Iterator[None]:
    """Add the place in the configuration to errors of a kind."""
    try:
        yield
    except kind as error:
        error.place = place
        raise
