"""The stored data that workers share, as the operations of a command see it, on any machine with the configuration."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

from ..config import Settings
from ..exceptions import LeaseLostError, StoreError
from ..memory import Embedder
from ..operations.host import RunningAgent
from ..operations.status import PlatformStatus
from ..storage import (
    CallRepository,
    Database,
    LeaseHandlers,
    LeaseRenewal,
    Leases,
    StoredKey,
    StoredWebhook,
    WorkerTerms,
    open_database,
)
from .factories import build_embedder, import_memories
from .stored_host import StoredHost, open_stored_host
from .supervision import make_store_timings, make_worker_terms
from .workers.calls import CallTargets
from .workers.colleagues import Colleagues

_BLOCKED_S = 600.0
"""The time for which a command may compute without a pause. Its lease is renewed during that."""


class SharedHost(StoredHost):
    """The stored data of several workers (`OperationHost`). The command is one of them, and serves nothing.

    It asks the worker that serves an agent. An agent that is free is claimed before it is changed, so that no worker takes it
    until the command is over.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Sequence[str],
        database: Database,
        embedder: Embedder | None,
        colleagues: Colleagues,
        *,
        is_running: bool,
    ) -> None:
        super().__init__(settings, agents, database, embedder)
        self.is_running = is_running
        self._colleagues = colleagues
        self._claimed: set[str] = set()
        self._began_at = time.monotonic()

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent in a worker; None if none serves it."""
        if agent in self._claimed:
            return None
        if not changes:
            return await self._colleagues.find_agent(agent, changes=False)
        leases = self._colleagues.leases
        owner = await leases.claim_for_change(agent, replaces=False)
        if owner is not None and owner.is_expired:
            # It may be alive: after an outage of the database it needs time to renew its lease.
            await asyncio.sleep(self._began_at + self._settings.workers.lease_s / 2 - time.monotonic())
            owner = await leases.claim_for_change(agent, replaces=True)
        if owner is None or owner.id == self._colleagues.worker:
            self._claimed.add(agent)
            return None
        return self._colleagues.choose(agent, owner)

    def take_secret(self, stored: StoredKey | StoredWebhook) -> None:
        """Let all workers take a key or a webhook as it is stored now."""
        self._colleagues.wake_doors()

    async def status(self) -> PlatformStatus:
        """Return the status of all workers and their agents."""
        server = self._settings.server
        address = f"external, {server.domain}" if server.host is None else f"external, {server.host}"
        return await self._colleagues.report(address, await self.list_agents(), None)

    async def find_log_levels(self) -> set[str]:
        """Return the levels of the logs of all workers."""
        return await self._colleagues.find_log_levels()

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of all workers."""
        await self._colleagues.set_log_level(level)

    def stop(self) -> None:
        """Raise StoreError: a command stops no worker."""
        raise StoreError("a worker is stopped on its own machine; run the same there, or send its process SIGTERM")


def is_shared(settings: Settings) -> bool:
    """Return True for data that several workers may share; False if one platform alone can use them."""
    return make_worker_terms(settings) is not None


def open_command_host(
    settings: Settings,
    agents: Sequence[str],
    *,
    is_exclusive: bool = False,
    creates_directory: bool = False,
    joins: bool = False,
) -> AbstractAsyncContextManager[StoredHost]:
    """Open the stored data for a command, as `open_stored_host`. `agents` are further bare JIDs that may have some.

    Data that workers share are not locked: a command that changes them joins the workers, with `joins` also one that reads.
    """
    terms = make_worker_terms(settings, serves=False) if is_exclusive or joins else None
    if terms is not None:
        return _open_shared_host(settings, agents, terms)
    return open_stored_host(settings, agents, is_exclusive=is_exclusive, creates_directory=creates_directory)


@asynccontextmanager
async def _open_shared_host(settings: Settings, agents: Sequence[str], terms: WorkerTerms) -> AsyncIterator[SharedHost]:
    async with AsyncExitStack() as stack:
        url, durability = settings.storage.url, settings.storage.durability
        database = await open_database(url, durability, timings=make_store_timings(terms), terms=terms)
        stack.push_async_callback(database.close)
        colleagues = Colleagues(Leases(database), CallRepository(database), CallTargets())
        calls = colleagues.calls
        stack.push_async_callback(calls.close)
        stack.push_async_callback(_leave, colleagues.leases)
        handlers = LeaseHandlers(
            on_renewed=calls.wake,
            on_lapsed=lambda: None,
            on_restored=lambda: None,
            on_lost=_end,
            on_called=lambda payload: calls.wake(),
        )
        renewal = LeaseRenewal(database, colleagues.worker, terms, handlers, _BLOCKED_S)
        renewal.start()
        stack.push_async_callback(renewal.stop)
        embedder = build_embedder(settings)
        if embedder is not None:
            stack.push_async_callback(embedder.close)
        is_running = await colleagues.is_served()
        if not is_running:  # else the workers do that
            await import_memories(settings, database)
        yield SharedHost(settings, agents, database, embedder, colleagues, is_running=is_running)


async def _leave(leases: Leases) -> None:
    """Free the agents that a command has claimed, and end its lease."""
    with suppress(StoreError):  # then the lease ends by itself
        await leases.release_claimed()


def _end(reason: str) -> None:
    """End the process at once, from any thread: nothing more of it would be stored."""
    text = f"The lease of this command is lost: {reason}. Run the same command again; it does what is left.\n"
    os.write(2, text.encode())
    os._exit(LeaseLostError.exit_code)
