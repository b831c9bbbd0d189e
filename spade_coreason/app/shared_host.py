"""The stored data that workers share, as the operations of a command see it, on any machine with the configuration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from sqlalchemy import Connection

from ..config import Settings
from ..exceptions import StoreError
from ..memory import Embedder
from ..operations.running_agent import RunningAgent
from ..operations.status import PlatformStatus
from ..storage import Database, StoredKey, StoredWebhook, WorkerTerms, leases, open_database
from .colleagues import Colleagues
from .factories import build_embedder
from .stored_host import StoredHost
from .supervision import make_store_timings
from .worker_calls import WorkerCalls

_EXIT_LEASE_LOST = 75
_BLOCKED_S = 600.0
"""A command may compute for so long; its lease is renewed meanwhile."""


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
        self._shared = database
        self._colleagues = colleagues
        self._claimed: set[str] = set()

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent in a worker; None if none serves it."""
        if agent in self._claimed:
            return None
        if not changes:
            return await self._colleagues.find_agent(agent, changes=False)

        def claim(connection: Connection) -> leases.Worker | None:
            leases.replace_lost_workers(connection)
            leases.add_agents(connection, [agent])
            leases.claim(connection, self._colleagues.worker, [agent], "a command changes it")
            return leases.find_owner(connection, agent)[1]

        owner = await self._shared.write(claim)
        if owner is None or owner.id == self._colleagues.worker:
            self._claimed.add(agent)
            return None
        return self._colleagues.choose(agent, owner)

    def take_key(self, key: StoredKey) -> None:
        """Let all workers take a key as it is stored now."""
        self._colleagues.wake_doors()

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Let all workers take a webhook as it is stored now."""
        self._colleagues.wake_doors()

    async def status(self) -> PlatformStatus:
        """Return the status of all workers and their agents."""
        server = self._settings.server
        address = f"external, {server.domain}" if server.host is None else f"external, {server.host}"
        return await self._colleagues.report(address, await self.list_agents(), None)

    def stop(self) -> None:
        """Raise StoreError: a command stops no worker."""
        raise StoreError("a worker is stopped on its own machine; run the same there, or send its process SIGTERM")

    async def leave(self) -> None:
        """Free the agents that were claimed, and end the lease."""

        def leave(connection: Connection) -> None:
            leases.release_claimed(connection, self._colleagues.worker, "a command has changed it")
            leases.remove_worker(connection, self._colleagues.worker, "a command has changed it")

        with suppress(StoreError):  # then the lease ends by itself
            await self._shared.write(leave)


@asynccontextmanager
async def open_shared_host(settings: Settings, agents: Sequence[str], terms: WorkerTerms) -> AsyncIterator[SharedHost]:
    """Open the stored data that workers share, for operations that change it or need them."""
    from ..storage import LeaseHandlers, LeaseRenewal  # they need PostgreSQL's driver

    async with AsyncExitStack() as stack:
        url, durability = settings.storage.url, settings.storage.durability
        database = await open_database(url, durability, timings=make_store_timings(terms), terms=terms)
        stack.push_async_callback(database.close)
        assert database.worker_id is not None
        calls = WorkerCalls(database, database.worker_id, lambda agent: None)
        stack.push_async_callback(calls.close)
        handlers = LeaseHandlers(
            on_renewed=calls.wake_if_busy,
            on_lapsed=lambda: None,
            on_restored=lambda: None,
            on_lost=_end,
            on_called=lambda payload: calls.wake(),
        )
        embedder = build_embedder(settings)
        if embedder is not None:
            stack.push_async_callback(embedder.close)
        colleagues = Colleagues(database, database.worker_id, calls)
        is_running = await colleagues.is_served()
        host = SharedHost(settings, agents, database, embedder, colleagues, is_running=is_running)
        stack.push_async_callback(host.leave)
        renewal = LeaseRenewal(database, database.worker_id, terms, handlers, _BLOCKED_S)
        renewal.start()
        stack.push_async_callback(renewal.stop)
        yield host


def _end(reason: str) -> None:
    """End the process at once, from any thread: nothing more of it would be stored."""
    text = f"The lease of this command is lost: {reason}. Run the same command again; it does what is left.\n"
    os.write(2, text.encode())
    os._exit(_EXIT_LEASE_LOST)
