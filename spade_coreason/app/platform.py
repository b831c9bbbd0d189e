"""The composition root: build everything once, run until a signal, drain and close."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..concurrency import handle_signals
from ..config import AgentSettings, RunFile, Settings, write_run_file
from ..contracts import AgentDefinition
from ..contracts.base import utc_now
from ..domain.channel_kinds import DOOR_CHANNEL
from ..domain.jid import bare_jid, jid_domain
from ..doors import Doors, KeyRing, RunningDoor, WebhookRing
from ..exceptions import (
    ConfigError,
    ConnectError,
    CoReasonError,
    DatabaseUnreachableError,
    DataDirectoryInUseError,
    LoginError,
    ServerError,
    StoreError,
)
from ..operations.endpoint import serve_operations
from ..operations.host import RunningAgent
from ..operations.status import AgentStatus, PlatformStatus, WebStatus
from ..operations.table import OPERATIONS
from ..runtime import (
    CrashGuard,
    InterceptorSource,
    OnConversationEnd,
    Runner,
    describe_upload_problem,
    find_agent,
    find_agents,
)
from ..storage import (
    ALL_DOORS,
    CallTable,
    CrashedRequest,
    Database,
    Leases,
    LeaseTable,
    RunningRequests,
    WorkerTerms,
    has_outdated_passages,
    index_outdated_passages,
    load_crashed,
    mark_alone,
    open_database,
    record_crash,
    restore_kept,
)
from ..xmpp import BackOff, HostedAgent, LocalServer, ServerEndpoint, describe_start_error, open_stream
from .accounts import GUEST_USER, LocalAccounts
from .agent_builder import AgentBuilder
from .channels import CHANNELS, ChannelFactories
from .factories import import_memories
from .loop_watch import BLOCKED_S, take_block, watch_loop
from .running_host import RunningHost
from .supervision import Supervision, lock_data, make_store_timings, make_worker_terms, start_local_server
from .web_server import build_web_server, find_used_doors
from .workers.calls import TAKEOVER_S, RunningWorker, ThisWorker, WorkerState
from .workers.canary import Canary
from .workers.colleagues import ABSENT, Colleagues
from .workers.directory import SharedDirectory
from .workers.doors import RemoteDoors
from .workers.shares import group_agents
from .workers.workforce import Workforce, replace_predecessor

if TYPE_CHECKING:
    from ..doors import WebServer
    from .metrics.server import MetricsServer

log = logging.getLogger(__name__)

_MAX_CONCURRENT_STARTS = 8
_SLOW_BUILD_S = 10.0
_DATABASE_S = 5.0
_INDEX_S = 2.0
"""The time after which a worker looks whether an older one still indexes passages."""
EXIT_LEASE_LOST = 75
"""The exit code of a worker whose lease is lost: EX_TEMPFAIL (sysexits.h). It can be started again at once."""
_BLOCKED_LEASES = 1.25
"""A worker whose event loop has been blocked for so many times `blocked_s` gives way to others."""
_SLOW_BUILD = "%s: its constructor has not returned for %g s, and all agents wait for it; `isolation: process` limits that"


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
        self.agents: dict[str, HostedAgent] = {}
        self.runners: dict[str, Runner] = {}
        self.guest: tuple[str, str] | None = None
        """The bare JID and the password of the guest account; only on a server that the platform started."""
        self.endpoint = ServerEndpoint()
        self.database: Database | None = None
        self.run_dir = settings.data_dir
        """The directory of what belongs to this process alone, such as its socket."""
        self._report_status = on_status or (lambda line: None)
        self._on_conversation_end = on_conversation_end
        self._interceptors = interceptors
        self.doors = Doors()
        """The agents that are behind doors."""
        self._channels = {DOOR_CHANNEL: self.doors.make_channel, **channels}
        self._builder: AgentBuilder
        self._is_strict = is_strict
        self._starts: dict[str, asyncio.Task[bool]] = {}
        self._start_slots = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self._reported_problems: set[str] = set()
        self._absent: dict[str, CoReasonError] = {}
        """The agents, by bare JID, that stay offline while the others serve, and why."""
        self._stack = AsyncExitStack()
        self._accounts = LocalAccounts(settings)
        self._web: WebServer | None = None
        self._metrics: MetricsServer | None = None
        self._crash_guard: CrashGuard | None = None
        self._checked_upload_domains: set[str] = set()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._workforce: Workforce | None = None
        self._canary: Canary | None = None
        self._colleagues: Colleagues | None = None
        self._shared_directory: SharedDirectory | None = None
        self._remote_doors: RemoteDoors | None = None

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
        return [(jid, self._describe(jid)) for jid in self.jids if jid in self.agents and jid not in self._absent]

    async def wait(self, on_online: Callable[[], None] = lambda: None) -> None:
        """Wait for SIGINT, SIGTERM or `stop`. Call `on_online` once, when all agents are online that do not stay offline.

        Raise ServerError if the local server ends before. Unless the platform is strict, raise the first error if no agent can
        come online. ConnectError is one if a login cannot succeed: the server refuses the account, has no address, does not
        serve the domain, or has a certificate that is not trusted.
        """
        stop = self._stop
        with handle_signals((signal.SIGINT, signal.SIGTERM), stop.set):
            stopped, online = asyncio.create_task(stop.wait()), asyncio.create_task(self._wait_until_online())
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

    async def _wait_until_online(self) -> None:
        """Wait until all agents are online or stay offline. Raise the error of the first one if all stay offline."""
        if self._starts:
            done, _ = await asyncio.wait(self._starts.values(), return_when=asyncio.FIRST_EXCEPTION)
            # A worker may have given some of them back meanwhile.
            are_online = [task.result() for task in done if not task.cancelled()]
            if are_online and not any(are_online):
                raise self._first_error()

    def _first_error(self) -> CoReasonError:
        """Return the error of the first agent that stays offline. If it is a mistake in the configuration, add the others."""
        errors = list(self._absent.values())
        mistakes = [error for error in errors if isinstance(error, ConfigError)]
        return ConfigError.combine(mistakes) if errors[0] in mistakes else errors[0]

    async def status(self) -> PlatformStatus:
        """Return the status of the platform and its agents at this moment, with those of all other workers."""
        own = await self._report()
        if self._colleagues is not None:
            return await self._colleagues.report(self.server_description, self.jids, own)
        return PlatformStatus(own.pid, self.server_description, tuple(own.agents), own.web)

    async def _report(self) -> WorkerState:
        jids = self.jids if self._workforce is None else list(self._starts)
        return WorkerState(os.getpid(), [await self._agent_status(jid) for jid in jids], self.web_status)

    @property
    def web_status(self) -> WebStatus | None:
        """The status of the HTTP server; None without one."""
        if self._web is None:
            return None
        return WebStatus(self._web.url, find_used_doors(self.settings), self._web.connections, self._builder.webhook_ring.full)

    async def _agent_status(self, jid: str) -> AgentStatus:
        if jid not in self.agents:
            return AgentStatus(jid, "offline", start_problem=f"{jid}: {self._absent[jid]}" if jid in self._absent else None)
        status = await self.agents[jid].status()
        return replace(status, state="offline") if jid in self._absent else status

    async def _raise_when_server_ended(self, server: LocalServer) -> None:
        raise ServerError(f"the {server.kind} server ended: {await server.wait_until_ended()}")

    # Opening, in this order. The exit stack closes in the reverse order.

    async def _open(self) -> None:
        settings = self.settings
        agents = [(settings.place(f"agents[{number}]"), agent) for number, agent in enumerate(settings.agents)]
        # Find the agents first: a mistake in their names is reported before a server starts.
        self._find_agents([(place, agent) for place, agent in agents if agent.isolation == "none"])
        terms = make_worker_terms(settings)
        if self._supervision is None:
            self.run_dir = lock_data(settings, self._stack, is_shared=terms is not None)
        try:
            self.database = await open_database(
                settings.storage.url, settings.storage.durability, timings=make_store_timings(terms), terms=terms
            )
        except DataDirectoryInUseError as error:
            raise error.with_place(settings.place("storage.url")) from None
        except DatabaseUnreachableError as error:
            raise DatabaseUnreachableError(f"{settings.place('storage.url')}: {error}") from error
        except StoreError as error:
            raise ConfigError(settings.place("storage.url"), str(error)) from error
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
        self._stack.push_async_callback(self._builder.close_isolated_agents)
        if terms is not None and leases is not None:
            self._join(self.database, leases, terms)
            # Here, whoever will serve them: another machine does not have these files. Its lease is renewed during that.
            await import_memories(settings, self.database)
        else:
            for place, agent in agents:
                if bare_jid(agent.jid) not in self._absent:
                    await self._try_to_build(place, agent)
            self._require_an_agent()
            for jid in self._absent:
                self._report_absence(jid)
        if self.server is not None:
            await self._accounts.create(self.server)
        host = RunningHost(
            self.jids, self.database, self._builder, self.agents, self.status, self.stop, colleagues=self._colleagues
        )
        self._builder.host = self.doors.host = host
        await self._stack.enter_async_context(serve_operations(self.run_dir, host, OPERATIONS))
        self._stack.push_async_callback(self._stop_background_tasks)
        self._start_in_background(self._index_passages(self.database))
        await self._start_web()
        await self._start_metrics(self.database)
        await self._start_agents()
        await self._write_run_file()

    # One of several workers

    def _join(self, database: Database, leases: Leases, terms: WorkerTerms) -> None:
        """Take a place among the workers that share the agents."""
        from ..storage import LeaseHandlers, LeaseRenewal  # they need PostgreSQL's driver

        groups = group_agents(self.jids, self.settings.workers.together)
        self._colleagues = Colleagues(leases, CallTable(database), self._find_target, self._find_door)
        self._stack.push_async_callback(self._colleagues.calls.close)
        if len(self.jids) > 1:
            self._shared_directory = SharedDirectory(leases, self._builder.directory, self._builder.key_ring.callers_of)
        listed = {bare_jid(agent.jid): agent.doors for agent in self.settings.agents}
        self._remote_doors = RemoteDoors(database, leases, self._colleagues.calls, self.doors, listed)
        self._remote_doors.start()
        self._stack.push_async_callback(self._remote_doors.close)
        handlers = LeaseHandlers(self._on_renewed, self._on_lapsed, self._on_restored, self._on_lease_lost, self._on_called)
        renewal = LeaseRenewal(database, leases.worker, terms, handlers, _BLOCKED_LEASES * self._blocked_s)
        self._workforce = Workforce(leases, renewal, groups, self)
        self._canary = Canary(
            lambda: [host.connection for host in self.agents.values()],
            lambda: open_stream(jid_domain(self.jids[0]), self.endpoint),
            terms.lease_s,
            lambda reach: setattr(renewal, "reach", reach),
        )
        renewal.start()
        self._stack.push_async_callback(self._workforce.end)

    def _on_renewed(self) -> None:
        if self._workforce is not None and self._colleagues is not None:
            self._workforce.tell({ABSENT: sorted(jid for jid in self._absent if jid not in self.agents)})
            self._workforce.wake()
            self._colleagues.calls.wake_if_busy()
            if self._shared_directory is not None:
                self._start_in_background(self._shared_directory.refresh())

    def _on_called(self, payload: str) -> None:
        if self._colleagues is not None and payload != ALL_DOORS:
            self._colleagues.calls.wake()
        if payload in ("", ALL_DOORS):
            self._start_in_background(self._load_rings())

    async def _load_rings(self) -> None:
        """Take the keys and webhooks as another worker has stored them."""
        try:
            await self._builder.key_ring.load()
            await self._builder.webhook_ring.load()
        except StoreError as error:
            log.warning("the keys and webhooks that another worker has changed cannot be read yet: %s", error)
            await asyncio.sleep(_DATABASE_S)
            self._on_called(ALL_DOORS)

    def _find_target(self, agent: str) -> RunningAgent | RunningWorker | None:
        """Return what another worker asks: an agent that this one serves, or for "" itself."""
        if not agent:
            return ThisWorker(self._report)
        host = self.agents.get(agent)
        return None if host is None else host.runtime.runner.control

    def _find_door(self, agent: str) -> RunningDoor | None:
        """Return the door of an agent that this worker serves."""
        return None if self._remote_doors is None else self._remote_doors.find_running(agent)

    def _on_lapsed(self) -> None:
        log.error("the lease could not be renewed in time; all agents are disconnected until the database answers")
        for host in self.agents.values():
            host.connection.cut("the worker has no lease")

    def _on_restored(self) -> None:
        log.warning("the lease is renewed again")

    def _has_lease(self) -> bool:
        """Return False while the lease has lapsed. A frozen process that wakes must not take the sessions of its successor."""
        return self._workforce is None or not self._workforce.has_lapsed

    def _on_lease_lost(self, reason: str) -> None:
        """End the process at once, from any thread: what it still wrote would be refused, and what it sent would be wrong."""
        os.write(2, f"The lease of this worker is lost: {reason}. The process ends.\n".encode())
        os._exit(EXIT_LEASE_LOST)

    def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that this worker serves."""
        return list(self._starts)

    async def note(self, table: LeaseTable) -> None:
        """Take the leases as they are now."""
        if self._remote_doors is not None:
            await self._remote_doors.note(table)

    async def take(self, agents: Sequence[str]) -> None:
        """Begin to serve agents (bare JIDs), which no other worker serves now."""
        assert self.database is not None
        assert self._crash_guard is not None
        assert self._workforce is not None
        handed_over = await self._workforce.leases.list_handed_over(agents)
        self._crash_guard.add(await load_crashed(self.database, agents), handed_over)
        await self._load_rings()  # what was withdrawn at these agents alone is known to their last worker
        numbers = [number for number, agent in enumerate(self.settings.agents) if bare_jid(agent.jid) in agents]
        for number in numbers:
            settings = self.settings.agents[number]
            if isinstance(self._absent.get(bare_jid(settings.jid)), ConfigError):
                continue
            await self._try_to_build(self.settings.place(f"agents[{number}]"), settings)
            if (jid := bare_jid(settings.jid)) in self._absent:
                self._report_absence(jid)
        self._begin_starts(numbers)

    async def give_back(self, agent: str, *, reaches_server: bool = True) -> None:
        """Serve an agent no more, once its running turns have ended."""
        assert self.database is not None
        assert self._crash_guard is not None
        if self._remote_doors is not None:  # what is asked from now on waits for the next worker
            self.doors.remove(agent, self._remote_doors.door(agent))
        start = self._starts.pop(agent)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        if (host := self.agents.get(agent)) is not None:
            grace_s = self.settings.limits.grace_s
            if not reaches_server:
                host.connection.cut("the XMPP server cannot be reached")
                grace_s = min(grace_s, self.settings.workers.lease_s)
            try:
                await host.stop(grace_s)
            except Exception:
                log.exception("%s: failed to stop cleanly", agent)
            del self.agents[agent], self.runners[agent]
            await self._builder.forget(agent)
        self._absent.pop(agent, None)
        if cut_off := self._crash_guard.running.take_rows(self.database.open_inbox_rows.get(agent, set())):
            await record_crash(self.database, cut_off, utc_now(), is_stop=True)
        self._crash_guard.remove(agent)
        self.database.close_agent(agent)
        log.info("%s: is given back", agent)

    async def _start_web(self) -> None:
        """Start the HTTP server, if one is configured. It is closed after the agents have ended their answers."""
        if self.settings.web is None:
            return
        if self._workforce is not None:  # the agents of the other workers are known before anybody asks for them
            await self.note(await self._workforce.leases.read())
        web = build_web_server(
            self.settings.web,
            self._builder.key_ring.find,
            self._find_web_problem,
            self.doors,
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
        workforce = self._workforce
        collector = MetricsCollector(
            self.jids,
            self.agents,
            database,
            stored,
            lambda: self._web,
            None if workforce is None else lambda: LeaseFigures(workforce.seconds_left, len(self._starts), workforce.takeovers),
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
        if self._workforce is not None:
            if self._workforce.has_lapsed or not self._workforce.has_joined:
                return "lease"
            jids = [jid for jid in jids if jid in self._starts]
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
        server = self.settings.server
        if server.mode == "external":
            tls = server.tls
            self.endpoint = ServerEndpoint(
                server.host,
                server.port,
                tls.verify,
                tls.ca_file,
                requires_tls=tls.required,
                has_lease=self._has_lease if self.database is not None and self.database.worker_id else None,
            )
            self.server_description = f"external, {self.endpoint.address(server.domain)}"
            return
        if self._supervision is not None and self._supervision.server is not None:
            local = self._supervision.server
        else:
            local, self.notice = await start_local_server(self.settings, self._stack)
        self.server = local
        self.server_description = f"{local.kind}, {local.host}:{local.port}"
        if local.kind == "embedded":
            self.server_description += (
                " (for demonstrations: senders can be forged; `apt install prosody` installs a full server)"
            )
        # About one in fifty connections to the embedded server hangs while it is opened.
        timeout_s, attempts = (3.0, 5) if local.kind == "embedded" else (10.0, 1)
        self.endpoint = ServerEndpoint(
            local.host,
            local.port,
            ca_file=local.ca_file,
            timeout_s=timeout_s,
            attempts=attempts,
            files_url=local.files_url,
            has_forgery=local.kind == "embedded",
        )
        guest = f"{GUEST_USER}@{local.domain}"
        await self._accounts.choose_passwords(guest)
        self.guest = (guest, self._accounts.passwords[guest])

    def _find_agents(self, agents: Sequence[tuple[str, AgentSettings]]) -> None:
        """Import the agents. Raise ConfigError if one is not found and the platform is strict, or if there is no other."""
        if self._is_strict:
            find_agents([(place, agent.agent) for place, agent in agents], self.settings.project)
            return
        for place, agent in agents:
            try:
                find_agent(agent.agent, place=place, project=self.settings.project)
            except ConfigError as error:
                self._absent[bare_jid(agent.jid)] = error
        self._require_an_agent()

    def _require_an_agent(self) -> None:
        """Raise the error of the first agent if all stay offline."""
        if self._are_all_absent:
            raise self._first_error()

    @property
    def _are_all_absent(self) -> bool:
        return bool(self._absent) and len(self._absent) == len(self._starts if self._workforce else self.settings.agents)

    async def _try_to_build(self, place: str, settings: AgentSettings) -> None:
        """Build an agent. Unless the platform is strict, let it stay offline if that fails."""
        jid = bare_jid(settings.jid)
        slow = threading.Timer(_SLOW_BUILD_S, log.warning, (_SLOW_BUILD, jid, _SLOW_BUILD_S))
        slow.daemon = True
        slow.start()
        try:
            if self.database is not None and self.database.has_memories:
                await self._builder.open_memory(jid)
            self._build_agent(place, settings)
        except Exception as error:
            if self._is_strict:
                raise
            self._absent[jid] = error if isinstance(error, CoReasonError) else CoReasonError(describe_start_error(error))
            log.debug("%s: cannot be made", jid, exc_info=error)
        else:
            self._absent.pop(jid, None)
        finally:
            slow.cancel()

    def _report_absence(self, jid: str) -> None:
        error = self._absent[jid]
        remedy = "and its start is retried" if isinstance(error, StoreError) else "until the platform is started again"
        key = f"{jid}: {error}"
        log.log(
            logging.INFO if key in self._reported_problems else logging.ERROR, "%s; the agent stays offline %s", key, remedy
        )
        self._reported_problems.add(key)

    def _build_agent(self, place: str, settings: AgentSettings) -> None:
        jid = bare_jid(settings.jid)
        configured = settings.password.get_secret_value() if settings.password is not None else None
        password = configured or self._accounts.passwords.get(jid, "")
        needs_registration = settings.register_account and self.server is None
        host = self._builder.build(place, settings, self.endpoint, password, register=needs_registration)
        agent, changed = host.runtime.agent, host.runtime.parts.manifest_changed
        self.agents[jid] = host
        self.runners[jid] = host.runtime.runner
        if self.settings.metrics is not None:
            host.runtime.runner.metrics.measure_latencies()
        if settings.doors:
            control = host.runtime.runner.control
            wait_s = 0.0 if self._workforce is None else TAKEOVER_S
            self.doors.add(jid, agent.manifest, settings.doors, lambda: control.is_paused, wait_s)
            changed.subscribe(lambda: self._update_door(jid, agent.manifest))
            if self._remote_doors is not None:
                self._remote_doors.publish(jid, agent.manifest)

    def _update_door(self, jid: str, manifest: AgentDefinition) -> None:
        self.doors.update(jid, manifest)
        if self._remote_doors is not None:
            self._remote_doors.publish(jid, manifest)

    def _describe(self, jid: str) -> str:
        """Return the description of an agent; "" if it is not built."""
        if jid not in self.agents:
            return ""
        manifest = self.agents[jid].runtime.agent.manifest
        return manifest.capabilities[0].description or manifest.metadata.name

    async def _start_agents(self) -> None:
        self._stack.push_async_callback(self._stop_agents)
        if self._web is not None:
            self._stack.callback(self._web.begin_stop)  # before the agents are stopped; the server is closed after them
        if self._workforce is not None:
            assert self._canary is not None
            self._start_in_background(self._canary.run())
            await self._workforce.join()
        else:
            self._begin_starts(range(len(self.settings.agents)))
        if self._is_strict and self._starts:
            done, _ = await asyncio.wait(self._starts.values(), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled():  # a worker may have given its agent back meanwhile
                    task.result()

    def _begin_starts(self, numbers: Iterable[int]) -> None:
        """Begin to start agents, by their places in the configuration."""
        for number in numbers:
            settings = self.settings.agents[number]
            start = self._start_agent(self.settings.place(f"agents[{number}]"), settings)
            self._starts[bare_jid(settings.jid)] = asyncio.create_task(start)

    async def _start_agent(self, place: str, settings: AgentSettings) -> bool:
        """Bring an agent online. Unless the platform is strict, try again with back-off after a failure that may pass.

        Return False if it stays offline.
        """
        jid = bare_jid(settings.jid)
        if jid in self._absent and not await self._build_again(place, settings):
            return False
        for delay_s in BackOff().delays_s(asyncio.get_running_loop().time()):
            await asyncio.sleep(delay_s)
            async with self._start_slots:
                try:
                    await self.agents[jid].start()
                    break
                except BaseException as error:  # sys.exit() would end the process without stopping the other agents
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise  # the platform stops
                    if self._is_strict or (isinstance(error, ConnectError) and not error.is_transient):
                        if isinstance(error, LoginError):
                            error.place_at_password(f"{place}.password", is_registering=settings.register_account)
                        elif isinstance(error, ConnectError):
                            error.place = place
                        if isinstance(error, ConnectError) and not self._is_strict:
                            self._absent[jid] = error
                            if not self._are_all_absent:
                                self._report_absence(jid)
                            return False
                        if isinstance(error, CoReasonError):
                            raise
                        raise CoReasonError(f"{jid}: {describe_start_error(error)}") from error
                    self._report_failed_start(jid, error)
        self._start_in_background(self._check_uploads(self.agents[jid], jid_domain(jid)))
        log.info("%s: is online", jid)
        self._report_status(f"{jid} is online")
        return True

    async def _build_again(self, place: str, settings: AgentSettings) -> bool:
        """Build an agent as soon as its stored data can be read. Return False if it stays offline for another reason."""
        jid, delays_s = bare_jid(settings.jid), BackOff().delays_s(asyncio.get_running_loop().time())
        while isinstance(self._absent.get(jid), StoreError):
            await asyncio.sleep(next(delays_s))
            try:
                await self._builder.open_memory(jid)
            except StoreError as error:
                self._absent[jid] = error
            else:
                await self._try_to_build(place, settings)
            if jid in self._absent:
                self._report_absence(jid)
        return jid not in self._absent

    def _report_failed_start(self, jid: str, error: BaseException) -> None:
        """Log why an agent is not online yet: a missing server once for all its agents, another problem once for each agent."""
        if isinstance(error, ConnectError):
            key, level = error.address, logging.WARNING
            text = f"cannot connect to {error.address}, retrying until it answers: {error.problem}"
        else:
            key, level = f"{jid}: {describe_start_error(error)}", logging.ERROR
            text = f"{key}; the agent stays offline and its start is retried"
        log.log(logging.INFO if key in self._reported_problems else level, "%s", text)
        log.debug("%s: the start failed", jid, exc_info=error)
        self._reported_problems.add(key)

    async def _stop_agents(self) -> None:
        if self._crash_guard is not None:
            self._crash_guard.running.mark_stop()
        if self._workforce is not None and self._remote_doors is not None:
            await asyncio.gather(self._workforce.leave(), self._remote_doors.drain(self.settings.limits.grace_s))
        for task in self._starts.values():
            task.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        grace_s = self.settings.limits.grace_s
        stops = (host.stop(grace_s) for host in self.agents.values())
        for problem in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(problem, BaseException):  # the other agents are stopped nevertheless
                log.error("an agent failed to stop cleanly", exc_info=problem)

    async def _index_passages(self, database: Database) -> None:
        """Index the passages of an older version anew, beside the agents. Of several workers the oldest does it."""
        try:
            if self._workforce is not None:
                leases = self._workforce.leases
                while await has_outdated_passages(database) and not await leases.is_oldest():  # noqa: ASYNC110 - it waits for another process
                    await asyncio.sleep(_INDEX_S)
            await index_outdated_passages(database)
        except StoreError as error:
            log.warning(
                "cannot add word forms to the search index of older passages; the next start continues with them: %s",
                error,
            )

    async def _check_uploads(self, host: HostedAgent, domain: str) -> None:
        """Log once for each server if answers that are too long for a chat cannot be uploaded there."""
        if not self.settings.limits.file_over_bytes or domain in self._checked_upload_domains:
            return
        self._checked_upload_domains.add(domain)
        if (problem := await host.uploads.find_problem()) is not None:
            # The operator cannot change the server that the platform runs itself.
            level = logging.WARNING if self.server is None else logging.INFO
            log.log(level, "%s: %s", domain, describe_upload_problem(problem))

    def _start_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed; the agents are not affected", exc_info=error)

    async def _stop_background_tasks(self) -> None:
        tasks = list(self._background_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
                    "description": self._describe(bare_jid(agent.jid)),
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
