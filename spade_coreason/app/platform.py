"""The composition root: build everything once, run until a signal, drain and close."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..concurrency import Tasks, handle_signals
from ..config import RunFile, Settings, write_run_file
from ..contracts.times import utc_now
from ..domain.channel_kinds import DOOR_CHANNEL, PAGE_CHANNEL
from ..domain.jid import bare_jid
from ..doors import DoorAgents, KeyRing, WebhookRing
from ..exceptions import (
    ConfigError,
    ServerError,
    StoreError,
)
from ..operations.definition import Actor, Call, CallerKind
from ..operations.doors.logins import OfAccount, create_login
from ..operations.rpc.endpoint import serve_operations
from ..operations.status import PlatformStatus, WebStatus
from ..operations.table import OPERATIONS
from ..runtime import (
    CrashGuard,
    InterceptorSource,
    OnConversationEnd,
)
from ..storage import (
    CrashedRequest,
    Database,
    Leases,
    RunningRequests,
    has_outdated_passages,
    index_outdated_passages,
    mark_alone,
    open_database,
    record_crash,
    restore_kept,
)
from ..xmpp import LocalServer, ServerEndpoint
from .accounts import GUEST_USER, LocalAccounts
from .agent_builder import AgentBuilder
from .channels import CHANNELS, ChannelFactories
from .factories import import_memories
from .hosted_agents import HostedAgents
from .loop_watch import BLOCKED_S, take_block, watch_loop
from .running_host import RunningHost
from .supervision import (
    Supervision,
    describe_local_server,
    lock_data,
    make_external_endpoint,
    make_local_endpoint,
    make_store_timings,
    make_worker_terms,
    place_store_errors,
    start_local_server,
)
from .web_server import build_web_server, find_used_doors
from .workers.calls import WorkerState
from .workers.membership import Membership
from .workers.workforce import replace_predecessor

if TYPE_CHECKING:
    from ..doors import WebServer
    from .metrics.server import MetricsServer

log = logging.getLogger(__name__)

_DATABASE_S = 5.0
_INDEX_S = 2.0
"""The time after which a worker looks whether an older one still indexes passages."""
_BLOCKED_FACTOR = 1.25
"""A worker whose event loop has been blocked for so many times `blocked_s` gives way to others."""


class Platform:
    """A platform: the server, database and agents of a configuration.

    Use it as `async with Platform(settings) as platform: await platform.wait()`. Entering locks the data directory, opens the
    database, starts the server if the platform manages it, and connects every agent. Leaving disconnects them, lets running
    turns finish within `limits.grace_s`, and closes everything.

    `interceptors` are those of all agents, after the configured ones: instances, or classes and functions
    that are called once for each agent. `channels` are the channels of all agents beside XMPP.
    `on_status` receives one line of text for each agent that comes online. The functions of `on_conversation_end` receive
    the id and the final state of each conversation that ends; they may be coroutine functions.

    If `is_strict` is false, entering does not wait for the agents, and `wait` tells when all are online. An agent stays offline
    if it cannot be made, or its account is refused. If its server does not answer, its `startup()` raises or its stored data
    cannot be read, its start is retried with back-off. The others serve. Entering raises if no agent can be made.

    With `supervision`, the parent process holds the locks and runs the local server.

    A turn that blocks the event loop for `blocked_s` seconds, until the process is killed, does not run again.

    Entering raises ConfigError, ServerError, ConnectError or another CoReasonError.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_status: Callable[[str], None] | None = None,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        interceptors: Sequence[InterceptorSource] = (),
        channels: ChannelFactories = CHANNELS,
        is_strict: bool = True,
        supervision: Supervision | None = None,
        blocked_s: float = BLOCKED_S,
    ) -> None:
        self.settings = settings
        self._supervision = supervision
        self._blocked_s = blocked_s
        self.server: LocalServer | None = None
        """The server that the platform started; None for an external one."""
        self.server_description = ""
        """A description of the server for people."""
        self.notice: str | None = None
        """A notice about the choice of the server for people, if there is one."""
        self.guest: tuple[str, str] | None = None
        """The bare JID and the password of the guest account; only on a server that the platform started."""
        self.endpoint = ServerEndpoint()
        self.database: Database | None = None
        self.run_dir = settings.data_dir
        """The directory of what belongs to this process alone, such as its socket."""
        self._on_conversation_end = on_conversation_end
        self._interceptors = interceptors
        self.door_agents = DoorAgents()
        """The agents that are behind doors."""
        self._channels = {DOOR_CHANNEL: self.door_agents.make_channel, PAGE_CHANNEL: self.door_agents.make_channel, **channels}
        self._builder: AgentBuilder
        self._stack = AsyncExitStack()
        self._accounts = LocalAccounts(settings)
        self._background = Tasks()
        report_status = on_status or (lambda line: None)
        self._hosted = HostedAgents(
            settings, self._accounts, self.door_agents, self._background, report_status, is_strict=is_strict
        )
        self.agents = self._hosted.hosts
        """The agents that were built, by bare JID."""
        self.runners = self._hosted.runners
        self._web: WebServer | None = None
        self._metrics: MetricsServer | None = None
        self._crash_guard: CrashGuard | None = None
        self._stop = asyncio.Event()
        self._membership: Membership | None = None
        """The place among several workers; None for a platform alone."""

    async def __aenter__(self) -> Platform:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def jids(self) -> list[str]:
        """The bare JIDs of the configured agents."""
        return [bare_jid(agent.jid) for agent in self.settings.agents]

    @property
    def agent_descriptions(self) -> list[tuple[str, str]]:
        """The bare JID and the description of each agent, without those that stay offline."""
        return [(jid, self._hosted.describe(jid)) for jid in self.jids if jid in self.agents and jid not in self._hosted.absent]

    async def wait(self, on_online: Callable[[], None] = lambda: None) -> None:
        """Wait for SIGINT, SIGTERM or `stop`. Call `on_online` once, when all agents are online that do not stay offline.

        Raise ServerError if the local server ends before. Unless the platform is strict, raise the first error if no agent can
        come online. ConnectError is one if a login cannot succeed: the server refuses the account, has no address, does not
        serve the domain, or has a certificate that is not trusted.
        """
        stop = self._stop
        with handle_signals((signal.SIGINT, signal.SIGTERM), stop.set):
            stopped, online = asyncio.create_task(stop.wait()), asyncio.create_task(self._hosted.wait_until_online())
            tasks: list[asyncio.Task[Any]] = [stopped, online]
            try:
                if self.server is not None:
                    tasks.append(asyncio.create_task(self._raise_when_server_ended(self.server)))
                pending = set(tasks)
                while not stopped.done():
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                    if online in done and not stopped.done():
                        on_online()
            finally:
                for task in tasks:
                    task.cancel()

    def stop(self) -> None:
        """End `wait`, as SIGTERM does."""
        self._stop.set()

    async def status(self) -> PlatformStatus:
        """Return the status of the platform and its agents at this moment, with those of all other workers."""
        own = await self._report()
        if self._membership is not None:
            return await self._membership.colleagues.report(self.server_description, self.jids, own)
        return PlatformStatus(own.pid, self.server_description, tuple(own.agents), own.web)

    async def _report(self) -> WorkerState:
        jids = self.jids if self._membership is None else self._membership.list_agents()
        return WorkerState(os.getpid(), await self._hosted.list_statuses(jids), self.web_status)

    async def make_login(self, person: str) -> str:
        """Return a link by which a person (a bare JID) logs in to the page in the browser. It works once, for two minutes."""
        assert self.door_agents.host is not None
        actor = Actor(CallerKind.MACHINE_USER, f"user {getpass.getuser()}")
        return await create_login(Call(self.door_agents.host, actor), OfAccount(person=person))

    @property
    def web_status(self) -> WebStatus | None:
        """The status of the HTTP server; None without one."""
        if self._web is None:
            return None
        return WebStatus(self._web.url, find_used_doors(self.settings), self._web.connections, self._builder.webhook_ring.full)

    async def _raise_when_server_ended(self, server: LocalServer) -> None:
        raise ServerError(f"the {server.kind} server ended: {await server.wait_until_ended()}")

    # Opening, in this order. The exit stack closes in the reverse order.

    async def _open(self) -> None:
        settings = self.settings
        agents = [(settings.place(f"agents[{number}]"), agent) for number, agent in enumerate(settings.agents)]
        # Find the agents first: a mistake in their names is reported before a server starts.
        self._hosted.find(agents)
        terms = make_worker_terms(settings)
        if self._supervision is None:
            self.run_dir = lock_data(settings, self._stack, is_shared=terms is not None)
        with place_store_errors(settings.place("storage.url")):
            self.database = await open_database(
                settings.storage.url, settings.storage.durability, timings=make_store_timings(terms), terms=terms
            )
        self._stack.push_async_callback(self.database.close)
        running = RunningRequests(self.run_dir / "running.bin")
        blocking_row = 0
        if (stacks := take_block(self.run_dir)) is not None:
            blocking_row = running.holder[0]
            log.error(
                "the event loop was blocked for %g s or more when the platform was killed; see %s", self._blocked_s, stacks
            )
        is_stop = running.is_stopping and not blocking_row
        leases, crashed = None, list[CrashedRequest]()
        if terms is None:
            await restore_kept(self.database, running.kept)
            crashed = await record_crash(self.database, running.rows, utc_now(), blocking_row, is_stop=is_stop)
        else:
            leases = Leases(self.database)
            await replace_predecessor(leases, self.run_dir, running, blocking_row, is_stop=is_stop)
        self._crash_guard = CrashGuard(
            running,
            crashed,
            is_after_stop=is_stop and terms is None,
            mark_alone=None if terms is None else partial(mark_alone, self.database),
        )
        running.clear()
        await self._stack.enter_async_context(watch_loop(self.run_dir, self._blocked_s))
        try:
            settings.storage.memory_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            remedy = "correct the permissions of the directory above, or name another directory"
            problem = f"{settings.storage.memory_dir}: cannot be created: {error.strerror}; {remedy}"
            raise ConfigError(settings.place("storage.memory_dir"), problem) from error
        key_ring = KeyRing(self.database)
        await key_ring.load()
        webhook_ring = WebhookRing(self.database)
        await webhook_ring.load()
        self._builder = AgentBuilder(
            settings,
            self.database,
            self._crash_guard,
            key_ring,
            webhook_ring,
            on_conversation_end=self._on_conversation_end,
            interceptors=self._interceptors,
            channels=self._channels,
        )
        self._stack.push_async_callback(self._builder.close)
        if terms is None:
            await import_memories(settings, self.database, without=self.jids)
        await self._open_server()
        self._hosted.use(self._builder, self.endpoint, has_own_server=self.server is not None)
        if terms is not None and leases is not None:
            blocked_s = _BLOCKED_FACTOR * self._blocked_s
            self._membership = Membership(settings, leases, terms, self._hosted, self._builder, self._report, blocked_s)
            self._membership.open(self._stack)
            # Here, whoever will serve them: another machine does not have these files. Its lease is renewed during that.
            await import_memories(settings, self.database)
        else:
            for place, agent in agents:
                if bare_jid(agent.jid) not in self._hosted.absent:
                    await self._hosted.build(place, agent)
            self._hosted.require_one()
            for jid in self._hosted.absent:
                self._hosted.report_absence(jid)
        if self.server is not None:
            await self._accounts.create(self.server)
        host = RunningHost(self.jids, self.database, self._builder, self.agents, self.status, self.stop, self._membership)
        self._builder.host = self.door_agents.host = host
        await self._stack.enter_async_context(serve_operations(self.run_dir, host, OPERATIONS))
        self._stack.push_async_callback(self._background.stop)
        self._background.start(self._index_passages(self.database))
        await self._start_web()
        await self._start_metrics(self.database)
        await self._start_agents()
        await self._write_run_file()

    def _has_lease(self) -> bool:
        """Return False while the lease has lapsed. A frozen process that wakes must not take the sessions of its successor."""
        return self._membership is None or not self._membership.workforce.has_lapsed

    async def _start_web(self) -> None:
        """Start the HTTP server, if one is configured. It is closed after the agents have ended their answers."""
        if self.settings.web is None:
            return
        if self._membership is not None:  # the agents of the other workers are known before anybody asks for them
            await self._membership.note(await self._membership.workforce.leases.read())
        web = build_web_server(
            self.settings.web,
            self._builder.key_ring.find,
            self._find_web_problem,
            self.door_agents,
            self._builder.webhook_ring,
            find_used_doors(self.settings),
        )
        try:
            await web.start()
        except ServerError as error:
            error.place = self.settings.place("web")
            raise
        self._web = web
        self._stack.push_async_callback(web.close)
        log.info("doors: %s", self.web_status)

    async def _start_metrics(self, database: Database) -> None:
        """Serve the metrics, if that is configured. The library, of the extra `metrics`, is imported here and not before."""
        if self.settings.metrics is None:
            return
        from .metrics.collector import LeaseFigures, MetricsCollector
        from .metrics.server import MetricsServer
        from .metrics.stored_figures import StoredFigures

        stored = StoredFigures(database)
        workforce = None if self._membership is None else self._membership.workforce
        collector = MetricsCollector(
            self.jids,
            self.agents,
            database,
            stored,
            lambda: self._web,
            None
            if workforce is None
            else lambda: LeaseFigures(workforce.seconds_left, len(self._hosted.starts), workforce.takeovers),
        )
        self._metrics = MetricsServer(self.settings.metrics, collector)
        try:
            await self._metrics.start()
        except ServerError as error:
            error.place = self.settings.place("metrics.listen")
            raise
        self._stack.push_async_callback(stored.close)
        self._stack.push_async_callback(self._metrics.close)
        log.info("metrics: %s", self._metrics.url)

    async def _find_web_problem(self) -> str | None:
        """Return the kind of problem that keeps an agent behind doors from answering, or None."""
        jids = [bare_jid(agent.jid) for agent in self.settings.agents if agent.doors]
        if self._membership is not None:
            workforce = self._membership.workforce
            if workforce.has_lapsed or not workforce.has_joined:
                return "lease"
            jids = [jid for jid in jids if jid in self._hosted.starts]
        if not all(jid in self.agents and self.agents[jid].is_alive() for jid in jids):
            return "agents"
        assert self.database is not None
        try:
            async with asyncio.timeout(_DATABASE_S):
                await self.database.check()
        except (StoreError, TimeoutError):
            return "database"
        return None

    async def _open_server(self) -> None:
        if self.settings.server.mode == "external":
            is_worker = self.database is not None and self.database.worker_id is not None
            self.endpoint = make_external_endpoint(self.settings, self._has_lease if is_worker else None)
            self.server_description = f"external, {self.endpoint.address(self.settings.server.domain)}"
            return
        if self._supervision is not None and self._supervision.server is not None:
            local = self._supervision.server
        else:
            local, self.notice = await start_local_server(self.settings, self._stack)
        self.server = local
        self.server_description = describe_local_server(local)
        self.endpoint = make_local_endpoint(local)
        guest = f"{GUEST_USER}@{local.domain}"
        await self._accounts.choose_passwords(guest)
        self.guest = (guest, self._accounts.passwords[guest])

    async def _start_agents(self) -> None:
        self._stack.push_async_callback(self._stop_agents)
        if self._web is not None:
            self._stack.callback(self._web.begin_stop)  # before the agents are stopped; the server is closed after them
        if self._membership is not None:
            await self._membership.join()
        else:
            self._hosted.begin(range(len(self.settings.agents)))
        if self._hosted.is_strict:
            await self._hosted.wait_until_online()

    async def _stop_agents(self) -> None:
        if self._crash_guard is not None:
            self._crash_guard.running.mark_stop()
        if self._membership is not None:
            await self._membership.leave()
        await self._hosted.stop(self.settings.limits.grace_s)

    async def _index_passages(self, database: Database) -> None:
        """Index the passages of an older version anew, beside the agents. Of several workers the oldest does it."""
        try:
            if self._membership is not None:
                leases = self._membership.workforce.leases
                while await has_outdated_passages(database) and not await leases.is_oldest():  # noqa: ASYNC110 - it waits for another process
                    await asyncio.sleep(_INDEX_S)
            await index_outdated_passages(database)
        except StoreError as error:
            log.warning(
                "cannot add word forms to the search index of older passages; the next start continues with them: %s",
                error,
            )

    async def _write_run_file(self) -> None:
        guest = {"jid": self.guest[0], "password": self.guest[1]} if self.guest else None
        run = RunFile(
            pid=os.getpid(),
            mode=self.server.kind if self.server else "external",
            host=self.endpoint.host,
            port=self.endpoint.port,
            domain=self.server.domain if self.server else self.settings.server.domain,
            verify=self.endpoint.verify,
            requires_tls=self.endpoint.requires_tls,
            ca_file=str(self.endpoint.ca_file) if self.endpoint.ca_file else None,
            guest=guest,
            agents=[
                {
                    "jid": bare_jid(agent.jid),
                    "description": self._hosted.describe(bare_jid(agent.jid)),
                    "agent": "" if agent.options or agent.manifest else agent.agent,
                }
                for agent in self.settings.agents
            ],
            configuration=self.settings.file,
            project=str(self.settings.project),
            database=self.settings.storage.shown_url,
            web=None if self._web is None else self._web.url,
        )
        path = await write_run_file(self.run_dir, run)
        if self._supervision is None:  # else the next process writes it again, and commands find the server meanwhile
            self._stack.callback(path.unlink, missing_ok=True)
