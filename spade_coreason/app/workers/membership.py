"""This worker among several: it joins them, serves the agents that it has, and answers what the others ask."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack

from ...concurrency import cancel_tasks
from ...config import Settings
from ...domain.jid import bare_jid, jid_domain
from ...exceptions import ConfigError, LeaseLostError, StoreError
from ...operations.host import RunningAgent
from ...storage import ALL_DOORS, CallRepository, LeaseHandlers, LeaseRenewal, Leases, LeaseState, WorkerTerms, load_crashed
from ...xmpp import open_stream
from ..agent_builder import AgentBuilder
from ..hosted_agents import HostedAgents
from .calls import CallTargets, ThisWorker, WorkerState
from .canary import Canary
from .colleagues import ABSENT, Colleagues
from .directory import SharedDirectory
from .doors import RemoteAgentBackend, RemoteDoorAgents
from .shares import group_agents, must_look
from .workforce import Workforce

log = logging.getLogger(__name__)

_RETRY_S = 5.0


class Membership:
    """The place of this process among the workers that share the agents.

    `report` returns its state. It gives way to others if its event loop has been blocked for `blocked_s` seconds.
    """

    def __init__(
        self,
        settings: Settings,
        leases: Leases,
        terms: WorkerTerms,
        hosted: HostedAgents,
        builder: AgentBuilder,
        report: Callable[[], Awaitable[WorkerState]],
        blocked_s: float,
    ) -> None:
        self._settings = settings
        self._hosted = hosted
        self._builder = builder
        self._database = database = builder.database
        jids = [bare_jid(agent.jid) for agent in settings.agents]
        this = ThisWorker(report)
        targets = CallTargets(self._find_agent, lambda _: this, lambda agent: self.remote_agents.find_running(agent))
        self.colleagues = Colleagues(leases, CallRepository(database), targets)
        self._unable: set[str] = set()
        self._shared_directory: SharedDirectory | None = None
        if len(jids) > 1:
            self._shared_directory = SharedDirectory(leases, builder.directory, builder.key_ring.callers_of, jids)
        listed = {bare_jid(agent.jid): settings.doors_of(agent) for agent in settings.agents}
        self.remote_agents = RemoteDoorAgents(database, leases, self.colleagues.calls, hosted.door_agents, listed)
        handlers = LeaseHandlers(self._on_renewed, self._on_lapsed, self._on_restored, self._on_lease_lost, self._on_called)
        self._renewal = renewal = LeaseRenewal(database, leases.worker, terms, handlers, blocked_s)
        self.workforce = Workforce(leases, renewal, group_agents(jids, settings.workers.together), self)
        self._canary = Canary(
            lambda: [host.connection for host in hosted.hosts.values()],
            lambda: open_stream(jid_domain(jids[0]), hosted.endpoint),
            terms.lease_s,
            renewal.note_reach,
        )

    def open(self, stack: AsyncExitStack) -> None:
        """Answer the other workers, and renew the lease, until `stack` closes."""
        stack.push_async_callback(self.colleagues.calls.close)
        self.remote_agents.start()
        stack.push_async_callback(self.remote_agents.close)
        self._hosted.remote_agents = self.remote_agents
        self._renewal.start()
        stack.push_async_callback(self.workforce.end)

    async def join(self) -> None:
        """Take a share of the agents."""
        self._hosted.background.start(self._canary.run())
        await self.workforce.join()

    async def leave(self) -> None:
        """Give all agents back, and end what other workers have asked for."""
        await asyncio.gather(self.workforce.leave(), self.remote_agents.drain(self._settings.limits.grace_s))

    # What the lease and other workers tell

    def _on_renewed(self) -> None:
        self.workforce.tell({ABSENT: sorted(jid for jid in self._hosted.absent if jid not in self._hosted.hosts)})
        self.workforce.wake()
        self.colleagues.calls.wake()
        if self._shared_directory is not None:
            self._hosted.background.start(self._shared_directory.refresh())

    def _on_called(self, payload: str) -> None:
        if payload != ALL_DOORS:
            self.colleagues.calls.wake()
        if payload in ("", ALL_DOORS):
            self._hosted.background.start(self._load_changed_rings())

    async def _load_rings(self) -> None:
        """Take the keys and webhooks as another worker has stored them."""
        await self._builder.key_ring.load()
        await self._builder.webhook_ring.load()

    async def _load_changed_rings(self) -> None:
        try:
            await self._load_rings()
        except StoreError as error:
            log.warning("the keys and webhooks that another worker has changed cannot be read yet: %s", error)
            await asyncio.sleep(_RETRY_S)
            self._on_called(ALL_DOORS)

    def _find_agent(self, agent: str) -> RunningAgent | None:
        host = self._hosted.hosts.get(agent)
        return None if host is None else host.runtime.runner.control

    def _on_lapsed(self) -> None:
        log.error("the lease could not be renewed in time; all agents are disconnected until the database answers")
        for host in self._hosted.hosts.values():
            host.connection.cut("the worker has no lease")

    def _on_restored(self) -> None:
        log.warning("the lease is renewed again")

    def _on_lease_lost(self, reason: str) -> None:
        """End the process at once, from any thread: what it still wrote would be refused, and what it sent would be wrong."""
        try:
            line = f"the lease of this worker is lost: {reason}. The process ends."
            record = log.makeRecord(log.name, logging.CRITICAL, __file__, 0, line, (), None)
            # A thread that is blocked may hold the lock of a handler, so it only formats the line.
            formats = [handler.format for handler in logging.getLogger().handlers]
            if select.select((), (2,), (), 0)[1]:  # who reads the errors may hang
                os.write(2, f"{formats[0](record) if formats else line}\n".encode())
        finally:
            os._exit(LeaseLostError.exit_code)

    # What serves the agents (`Serving`)

    def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that this worker serves."""
        return list(self._hosted.starts)

    def is_busy(self, agent: str) -> bool:
        """Return True while a turn of an agent runs or waits."""
        host = self._hosted.hosts.get(agent)
        return host is not None and host.runtime.runner.mailboxes.busy_count > 0

    def list_unable(self) -> Collection[str]:
        """Return the agents that cannot be made here, or whose accounts were refused here."""
        self._unable.update(jid for jid, error in self._hosted.absent.items() if not isinstance(error, StoreError))
        return self._unable

    async def note(self, state: LeaseState) -> None:
        """Take the leases as they are now."""
        me = self.workforce.leases.worker
        if must_look(state.get_reach(me), [worker.reach for worker in state.active if not worker.is_away]):
            self._canary.ask()
        await self.remote_agents.note(state)

    async def take(self, agents: Sequence[str]) -> None:
        """Begin to serve agents (bare JIDs), which no other worker serves now. StoreError without the database."""
        await self._load_rings()  # what was withdrawn at these agents alone is known to their last worker
        handed_over = await self.workforce.leases.list_handed_over(agents)
        self._builder.crash_guard.add(await load_crashed(self._database, agents), handed_over)
        numbers = [number for number, agent in enumerate(self._settings.agents) if bare_jid(agent.jid) in agents]
        for number in numbers:
            settings = self._settings.agents[number]
            jid = bare_jid(settings.jid)
            if not isinstance(self._hosted.absent.get(jid), ConfigError):
                await self._hosted.build(self._settings.place(f"agents[{number}]"), settings)
            if jid in self._hosted.absent:
                self._hosted.report_absence(jid)
        self._hosted.begin(numbers)

    async def give_back(self, agent: str, *, reaches_server: bool = True) -> Sequence[int]:
        """Serve an agent no more, once its running turns have ended. Return the rows of the requests that were cut off."""
        # What is asked from now on waits for the next worker.
        self._hosted.door_agents.remove(agent, RemoteAgentBackend(self.remote_agents, agent))
        await cancel_tasks(self._hosted.starts.pop(agent))
        cut_off: set[int] = set()
        if (host := self._hosted.hosts.get(agent)) is not None:
            grace_s = self._settings.limits.grace_s
            if not reaches_server:
                host.connection.cut("the XMPP server cannot be reached")
                grace_s = min(grace_s, self._settings.workers.lease_s / 4)
            try:
                await host.stop(grace_s)
            except Exception:
                log.exception("%s: failed to stop cleanly", agent)
                await host.abandon()  # what it sent or stored from now on would be that of another worker's agent
            del self._hosted.hosts[agent], self._hosted.runners[agent]
            cut_off.update(host.runtime.runner.workers.cut_off_rows)
            try:
                await self._builder.forget(agent)
            except StoreError as error:
                log.error("%s: its interaction memory lacks what was added outside of turns: %s", agent, error)
        self._hosted.absent.pop(agent, None)
        open_rows = self._database.inbox_index.open_rows.get(agent, set())
        cut_off.update(self._builder.crash_guard.running.take_rows(open_rows))
        self._builder.crash_guard.remove(agent, open_rows)
        self._database.inbox_index.close_agent(agent)
        log.info("%s: is given back", agent)
        return sorted(cut_off & open_rows)
