"""The agents that a platform serves: they are built, brought online, and stopped. One that cannot start stays offline alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..concurrency import Tasks, cancel_tasks
from ..config import AgentSettings, Settings
from ..contracts import AgentDefinition
from ..domain.jid import bare_jid, jid_domain
from ..doors import DoorAgents
from ..exceptions import ConfigError, ConnectError, CoReasonError, LoginError, StoreError
from ..operations.status import AgentStatus
from ..runtime import Runner, describe_upload_problem, find_agent, find_agents
from ..storage import CountsByState, count_stored
from ..xmpp import BackOff, HostedAgent, ServerEndpoint, describe_start_error
from .accounts import LocalAccounts
from .agent_builder import AgentBuilder
from .workers.calls import TAKEOVER_S
from .workers.doors import RemoteDoorAgents

log = logging.getLogger(__name__)

_MAX_CONCURRENT_STARTS = 8
_SLOW_BUILD_S = 10.0
_SLOW_BUILD = "%s: its constructor has not returned for %g s, and all agents wait for it; move slow work to startup()"


class HostedAgents:
    """The agents of a platform in this process. Call `use` before `build`.

    If it is strict, what keeps an agent from starting is raised. Otherwise that agent stays offline while the others serve.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: LocalAccounts,
        door_agents: DoorAgents,
        background: Tasks,
        report_status: Callable[[str], None],
        *,
        is_strict: bool,
    ) -> None:
        self._settings = settings
        self._accounts = accounts
        self.door_agents = door_agents
        """The agents that are behind doors."""
        self.background = background
        self._report_status = report_status
        self.is_strict = is_strict
        self.hosts: dict[str, HostedAgent] = {}
        self.runners: dict[str, Runner] = {}
        self.starts: dict[str, asyncio.Task[bool]] = {}
        """The starts of the agents that are served here, by bare JID. The result is False for an agent that stays offline."""
        self.absent: dict[str, CoReasonError] = {}
        """The agents, by bare JID, that stay offline while the others serve, and why."""
        self.remote_agents: RemoteDoorAgents | None = None
        """The doors of other workers; None if there are none."""
        self.endpoint = ServerEndpoint()
        self.has_own_server = False
        """True if the platform runs the server itself."""
        self._has_begun = False
        """True once the first agents are online or stay offline."""
        self._builder: AgentBuilder
        self._start_slots = asyncio.Semaphore(_MAX_CONCURRENT_STARTS)
        self._reported_problems: set[str] = set()
        self._checked_upload_domains: set[str] = set()

    def use(self, builder: AgentBuilder, endpoint: ServerEndpoint, *, has_own_server: bool) -> None:
        """Build the agents with a builder, for a server."""
        self._builder = builder
        self.endpoint = endpoint
        self.has_own_server = has_own_server

    def find(self, agents: Sequence[tuple[str, AgentSettings]]) -> None:
        """Import the agents. Raise ConfigError if one is not found and the platform is strict, or if there is no other."""
        if self.is_strict:
            find_agents([(place, agent.agent) for place, agent in agents], self._settings.project)
            return
        for place, agent in agents:
            try:
                find_agent(agent.agent, place=place, project=self._settings.project)
            except ConfigError as error:
                self.absent[bare_jid(agent.jid)] = error
        self.require_one()

    def require_one(self) -> None:
        """Raise the error of the first agent if all stay offline."""
        if self._are_all_absent:
            raise self.first_error()

    @property
    def _are_all_absent(self) -> bool:
        jids = [bare_jid(agent.jid) for agent in self._settings.agents] if self.remote_agents is None else list(self.starts)
        return bool(jids) and all(jid in self.absent for jid in jids)

    def first_error(self) -> CoReasonError:
        """Return the error of the first agent that stays offline. If it is a mistake in the configuration, add the others."""
        errors = list(self.absent.values())
        mistakes = [error for error in errors if isinstance(error, ConfigError)]
        return ConfigError.combine(mistakes) if errors[0] in mistakes else errors[0]

    async def build(self, place: str, settings: AgentSettings) -> None:
        """Build an agent. Unless the platform is strict, let it stay offline if that fails."""
        jid = bare_jid(settings.jid)
        slow = threading.Timer(_SLOW_BUILD_S, log.warning, (_SLOW_BUILD, jid, _SLOW_BUILD_S))
        slow.daemon = True
        slow.start()
        try:
            if self._builder.database.backend.has_memories:
                await self._builder.open_memory(jid)
            self._build(place, settings)
        except Exception as error:
            if self.is_strict:
                raise
            self.absent[jid] = error if isinstance(error, CoReasonError) else CoReasonError(describe_start_error(error))
            log.debug("%s: cannot be made", jid, exc_info=error)
        else:
            self.absent.pop(jid, None)
        finally:
            slow.cancel()

    def _build(self, place: str, settings: AgentSettings) -> None:
        jid = bare_jid(settings.jid)
        configured = settings.password.get_secret_value() if settings.password is not None else None
        password = configured or self._accounts.passwords.get(jid, "")
        needs_registration = settings.register_account and not self.has_own_server
        host = self._builder.build(place, settings, self.endpoint, password, register=needs_registration)
        agent, changed = host.runtime.agent, host.runtime.parts.manifest_changed
        self.hosts[jid] = host
        self.runners[jid] = host.runtime.runner
        if self._settings.metrics is not None:
            host.runtime.runner.metrics.measure_latencies()
        if doors := self._settings.doors_of(settings):
            control, commands = host.runtime.runner.control, host.runtime.runner.executor.commands
            wait_s = 0.0 if self.remote_agents is None else TAKEOVER_S
            self.door_agents.add(jid, agent.manifest, doors, lambda: control.is_paused, wait_s, commands.describe)
            changed.subscribe(lambda: self._update_manifest(jid, agent.manifest))
            self._update_manifest(jid, agent.manifest)

    def _update_manifest(self, jid: str, manifest: AgentDefinition) -> None:
        self.door_agents.update(jid, manifest)
        if self.remote_agents is not None:
            self.remote_agents.publish(jid, manifest)

    def describe(self, jid: str) -> str:
        """Return the description of an agent; "" if it is not built."""
        if jid not in self.hosts:
            return ""
        manifest = self.hosts[jid].runtime.agent.manifest
        return manifest.capabilities[0].description or manifest.metadata.name

    def report_absence(self, jid: str) -> None:
        """Log why an agent stays offline: as an error the first time."""
        error = self.absent[jid]
        remedy = "until the platform is started again"
        if isinstance(error, StoreError):
            remedy = "and its start is retried"
        elif self.remote_agents is not None:
            remedy = "in this worker until that is started again; another one takes it if it can"
        key = f"{jid}: {error}"
        log.log(
            logging.INFO if key in self._reported_problems else logging.ERROR, "%s; the agent stays offline %s", key, remedy
        )
        self._reported_problems.add(key)

    async def list_statuses(self, jids: Sequence[str]) -> list[AgentStatus]:
        """Return the status of each agent (a bare JID)."""
        counts: Mapping[str, CountsByState] | StoreError
        try:
            counts = await count_stored(self._builder.database, jids, "conversations", "notifications")
        except StoreError as error:
            counts = error
        return [self._status(jid, counts) for jid in jids]

    def _status(self, jid: str, counts: Mapping[str, CountsByState] | StoreError) -> AgentStatus:
        if jid not in self.hosts:
            return AgentStatus(jid, "offline", start_problem=f"{jid}: {self.absent[jid]}" if jid in self.absent else None)
        status = self.hosts[jid].status(counts)
        return replace(status, state="offline") if jid in self.absent else status

    def begin(self, numbers: Iterable[int]) -> None:
        """Begin to start agents, by their places in the configuration."""
        for number in numbers:
            settings = self._settings.agents[number]
            start = self._start_agent(self._settings.place(f"agents[{number}]"), settings)
            self.starts[bare_jid(settings.jid)] = asyncio.create_task(start)

    async def wait_until_online(self) -> None:
        """Wait until all agents are online or stay offline. Raise the error of the first one if all stay offline."""
        if self.starts:
            done, _ = await asyncio.wait(self.starts.values(), return_when=asyncio.FIRST_EXCEPTION)
            # A worker may have given some of them back meanwhile.
            are_online = [task.result() for task in done if not task.cancelled()]
            if are_online and not any(are_online) and self.absent:
                raise self.first_error()
        self._has_begun = True

    async def stop(self, grace_s: float) -> None:
        """Stop all agents, once their running turns have ended, or after `grace_s` seconds."""
        await cancel_tasks(*self.starts.values())
        stops = (host.stop(grace_s) for host in self.hosts.values())
        for problem in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(problem, BaseException):  # the other agents are stopped nevertheless
                log.error("an agent failed to stop cleanly", exc_info=problem)

    # In the background

    async def _start_agent(self, place: str, settings: AgentSettings) -> bool:
        """Bring an agent online. Unless the platform is strict, try again with back-off after a failure that may pass.

        Return False if it stays offline.
        """
        jid = bare_jid(settings.jid)
        if jid in self.absent and not await self._build_again(place, settings):
            return False
        for delay_s in BackOff().delays_s(asyncio.get_running_loop().time()):
            await asyncio.sleep(delay_s)
            async with self._start_slots:
                try:
                    await self.hosts[jid].start()
                    break
                except BaseException as error:  # sys.exit() would end the process without stopping the other agents
                    task = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                        raise  # the platform stops
                    if self.is_strict or (isinstance(error, ConnectError) and not error.is_transient):
                        if isinstance(error, LoginError):
                            error.place_at_password(f"{place}.password", is_registering=settings.register_account)
                        elif isinstance(error, ConnectError):
                            error.place = place
                        if isinstance(error, ConnectError) and not self.is_strict:
                            self.absent[jid] = error
                            if self._has_begun or not self._are_all_absent:  # else the platform ends with it
                                self.report_absence(jid)
                            return False
                        if isinstance(error, CoReasonError):
                            raise
                        raise CoReasonError(f"{jid}: {describe_start_error(error)}") from error
                    self._report_failed_start(jid, error)
        self.background.start(self._check_uploads(self.hosts[jid], jid_domain(jid)))
        log.info("%s: is online", jid)
        self._report_status(f"{jid} is online")
        return True

    async def _build_again(self, place: str, settings: AgentSettings) -> bool:
        """Build an agent as soon as its stored data can be read. Return False if it stays offline for another reason."""
        jid, delays_s = bare_jid(settings.jid), BackOff().delays_s(asyncio.get_running_loop().time())
        while isinstance(self.absent.get(jid), StoreError):
            await asyncio.sleep(next(delays_s))
            try:
                await self._builder.open_memory(jid)
            except StoreError as error:
                self.absent[jid] = error
            else:
                await self.build(place, settings)
            if jid in self.absent:
                self.report_absence(jid)
        return jid not in self.absent

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

    async def _check_uploads(self, host: HostedAgent, domain: str) -> None:
        """Log once for each server if answers that are too long for a chat cannot be uploaded there."""
        if not self._settings.limits.file_over_bytes or domain in self._checked_upload_domains:
            return
        self._checked_upload_domains.add(domain)
        if (problem := await host.uploads.find_problem()) is not None:
            # The operator cannot change the server that the platform runs itself.
            level = logging.INFO if self.has_own_server else logging.WARNING
            log.log(level, "%s: %s", domain, describe_upload_problem(problem))
