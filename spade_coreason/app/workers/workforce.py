"""The part of one worker among several: it takes its share of the agents, replaces workers that are dead, and gives back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...concurrency import Tasks, cancel_tasks
from ...domain.environment.private_files import replace_file
from ...exceptions import StoreError
from ...storage import Leases, LeaseState, RunningRequests
from .shares import NOBODY, Change, choose_change, is_away

if TYPE_CHECKING:
    from ...storage import LeaseRenewal

log = logging.getLogger(__name__)

_RELEASES = 8
"""The number of agents that are given back at the same time. The next ones wait for their turns as long as for a renewal."""
_RETRY_S = 0.5
_LOOKS = 12
"""The number of looks, in the time between two renewals, whether another worker has taken an agent."""
_AFTER_EXPIRY_S = 0.02
_JOIN_S = 15.0
"""The time that a start waits for its share. A worker gives an agent back when its running turns have ended."""
_FILE = "worker"
"""The file in the directory of a process with the id of its worker, and when that has started. Versions before had no time."""
_STOPPED = "its worker was stopped"
_ROOM = "another worker has room"
_AWAY = "its worker did not reach the XMPP server"
_CANNOT = "its worker cannot serve it"
_UNABLE = "unable"
"""The key in the snapshot of a worker of the agents that it cannot serve, or does not have in its configuration."""
_LEASE_S = "lease_s"
"""The key there of its `workers.lease_s`."""


async def replace_predecessor(
    leases: Leases, run_dir: Path, running: RunningRequests, blocking_row: int, *, is_stop: bool
) -> None:
    """Replace the worker that used the directory of this process before, and note this one there.

    This process holds the lock of the directory, so that worker has died, whatever its lease says. `running` is what it left.
    """
    predecessor: list[int] = []
    with suppress(OSError, ValueError):
        predecessor = [int(word) for word in (await asyncio.to_thread((run_dir / _FILE).read_text)).split()]
    if predecessor:
        await leases.replace(predecessor, running, blocking_row, is_stop=is_stop)
    started_at = await leases.find_start()
    await asyncio.to_thread(replace_file, run_dir / _FILE, f"{leases.worker} {started_at}".encode())


class Serving(Protocol):
    """The part of the platform that serves the agents of this worker."""

    def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that it serves."""
        ...

    def is_busy(self, agent: str) -> bool:
        """Return True while a turn of an agent runs or waits."""
        ...

    def list_unable(self) -> Collection[str]:
        """Return the agents that it cannot serve until it is started again, although another worker may be able to."""
        ...

    async def note(self, state: LeaseState) -> None:
        """Take the leases as they are now."""
        ...

    async def take(self, agents: Sequence[str]) -> None:
        """Begin to serve agents (bare JIDs), which no other worker serves now."""
        ...

    async def give_back(self, agent: str, *, reaches_server: bool = True) -> Sequence[int]:
        """Serve an agent no more, once its running turns have ended. All of it is stored then.

        Return the rows in the inbox of the requests whose turns were cut off. Without the server nothing is said to it, and the
        turns have less time.
        """
        ...


class Workforce:
    """One worker of a database, whose lease is renewed. `groups` are the agents of the configuration."""

    def __init__(self, leases: Leases, renewal: LeaseRenewal, groups: Sequence[tuple[str, ...]], serving: Serving) -> None:
        self.leases = leases
        self._renewal = renewal
        self._groups = groups
        self._configured = frozenset(agent for group in groups for agent in group)
        self._serving = serving
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._releases = Tasks()
        self._leaving_agents: set[str] = set()
        """The agents that are being given back."""
        self._due_takeovers: set[str] = set()
        """The agents of the last claim that another worker has lost."""
        self.takeovers = 0
        """The agents that this worker has taken over since its start, from one that ended or did not reach the server."""
        self._doubtful: set[int] | None = None
        """The workers whose leases had ended at the first look: after an outage of the database they renew them late."""
        self._unable: frozenset[str] = frozenset()
        self._different: set[str] = set()
        """The workers with another `workers.lease_s` of which the log knows."""
        self._is_leaving = False
        self._hands_over = False
        self._has_share = asyncio.Event()

    @property
    def has_lapsed(self) -> bool:
        """True if the lease was not renewed in time, so that another worker may have taken over."""
        return self._renewal.has_lapsed

    @property
    def seconds_left(self) -> float:
        """The seconds until the lease ends, if it is not renewed."""
        return max(0.0, self._renewal.seconds_left)

    @property
    def has_joined(self) -> bool:
        """True once it has taken its first share of the agents."""
        return self._task is not None

    async def join(self) -> None:
        """Take a share of the agents for the first time, and wait for a while until the other workers have given it."""
        await self.leases.add_agents([agent for group in self._groups for agent in group])
        await self.look()
        self._task = asyncio.create_task(self._run())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_share.wait(), _JOIN_S)

    async def leave(self) -> None:
        """Give all agents back, one by one, and take none any more. If the database is away, until the lease has ended."""
        self._is_leaving = True
        await cancel_tasks(self._task)
        known = {*self._serving.list_agents(), *self._leaving_agents}
        not_begun: list[str] = []
        """The agents that it has taken and does not serve: the stop came between."""
        with suppress(StoreError):  # then the lease ends by itself
            await self.leases.set(is_leaving=True)
            leases = (await self.leases.read()).leases.values()
            not_begun += [each.agent for each in leases if each.worker == self.leases.worker and each.agent not in known]
        await self._releases.wait()
        await self._release([*self._serving.list_agents(), *not_begun], _STOPPED)

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Begin to give agents back, and take none until `take_share`. Return False, and do nothing, without another worker."""
        if not await self._has_others():
            return False
        self._hands_over = True
        await self.leases.set(is_leaving=True)
        self._begin_release(agents, _STOPPED)
        return True

    def take_share(self) -> None:
        """End what `hand_over` began."""
        self._hands_over = False
        self.wake()

    async def end(self) -> None:
        """End the lease. Nothing of this worker can be stored then."""
        await self._renewal.stop()
        with suppress(StoreError):
            await self.leases.remove(self.leases.worker, _STOPPED)

    def tell(self, snapshot: Mapping[str, object]) -> None:
        """Let the other workers know something of this one, from its next renewal on."""
        own = {_UNABLE: sorted(self._unable), _LEASE_S: self._renewal.lease_s}
        self._renewal.snapshot = json.dumps({**snapshot, **own})

    def wake(self) -> None:
        """Look at the leases soon."""
        self._wake.set()

    async def look(self) -> None:
        """Take and give back what is due now."""
        known = {*self._serving.list_agents(), *self._leaving_agents}
        state = await self.leases.read()
        me = self.leases.worker
        for agent in known.intersection(self._serving.list_agents()) - self._leaving_agents:
            lease = state.leases.get(agent)
            if lease is not None and lease.worker not in (None, me):
                self._renewal.lose(f"another worker serves {agent}; the database has lost what was stored last")
                return
        await self._serving.note(state)
        if (is_away := self._is_away(state)) != state.is_away(me):
            await self.leases.set(is_away=is_away)
            state = await self.leases.read()
        if not self._hands_over and any(worker.id == me and worker.is_leaving for worker in state.workers):
            await self.leases.set(is_leaving=False)
            state = await self.leases.read()
        self._wake_at_expiry(state)
        self._warn_of_different_leases(state)
        self._unable = frozenset({*self._serving.list_unable(), *(state.leases.keys() - self._configured)})
        change = self._choose(state)
        # Those of an earlier look too, whose outcome was not known, or that could not be begun.
        own = [agent for agent, lease in state.leases.items() if lease.worker == me]
        replaces = self._renewal.has_settled and bool(self._find_dead(state))
        if change.claimed or replaces:
            claimed, reaped = await self.leases.change(self._choose_claims, replaces=replaces)
            own += claimed
            for worker in reaped:
                count = len(worker.agents)
                log.warning("worker %s did not renew its lease; its %d agents are taken over", worker.name, count)
        if is_away or not self._leaving_agents:
            if is_away and change.released:
                log.error(
                    "the XMPP server cannot be reached from here, but another worker reaches it; it takes over the agents"
                )
            cannot = [] if is_away else [agent for agent in change.released if agent in self._unable]
            others = [agent for agent in change.released if agent not in cannot]
            self._begin_release(others, _AWAY if is_away else _ROOM, reaches_server=not is_away)
            self._begin_release(cannot, _CANNOT)
        if taken := [agent for agent in own if agent not in known and agent not in self._leaving_agents]:
            await self._serving.take(taken)
            self.takeovers += len(self._due_takeovers.intersection(taken))
        if self._has_share.is_set():
            return
        if not any(self._choose(state, worker.id).released for worker in state.active if worker.id != me):
            self._has_share.set()

    def _find_dead(self, state: LeaseState) -> set[int]:
        """Return the workers that are dead. Those whose leases had ended before this one came get half a lease more."""
        expired = {worker.id for worker in state.workers if worker.is_expired and worker.id != self.leases.worker}
        if self._doubtful is None:
            asyncio.get_running_loop().call_later(self._renewal.lease_s / 2, self._end_doubt)
            self._doubtful = expired
        self._doubtful &= expired
        return expired - self._doubtful

    def _end_doubt(self) -> None:
        self._doubtful = set()
        self.wake()

    def _warn_of_different_leases(self, state: LeaseState) -> None:
        """Warn once of each worker with another `workers.lease_s`. Its lease holds as long as it says, so nothing breaks."""
        own = self._renewal.lease_s
        for worker in state.active:
            if (lease_s := worker.snapshot.get(_LEASE_S, own)) != own and worker.name not in self._different:
                self._different.add(worker.name)
                text = "workers.lease_s is %g here and %g in worker %s; write the same value for all workers"
                log.warning(text, own, lease_s, worker.name)

    def _wake_at_expiry(self, state: LeaseState) -> None:
        """Look again when the lease of another worker ends, if that is before the next renewal."""
        lefts_s = [each.left_micros / 1e6 for each in state.workers if each.id != self.leases.worker and not each.is_expired]
        if lefts_s and (left_s := min(lefts_s)) < self._renewal.interval_s:
            asyncio.get_running_loop().call_later(left_s + _AFTER_EXPIRY_S, self.wake)

    def _choose_claims(self, state: LeaseState) -> Sequence[str]:
        claimed = self._choose(state).claimed
        self._due_takeovers = {agent for agent in claimed if state.leases[agent].is_lost}
        return claimed

    def _is_away(self, state: LeaseState) -> bool:
        """Return True if this worker does not reach the server, but another one does. That ends when it reaches the server."""
        me = self.leases.worker
        reach = state.get_reach(me)
        if state.is_away(me):
            return reach is None or not reach.is_reached
        return is_away(reach, [worker.reach for worker in state.active if worker.id != me and not worker.is_away])

    def _choose(self, state: LeaseState, worker: int | None = None) -> Change:
        """Return what a worker takes and gives back, by default this one."""
        owners = {agent: lease.worker for agent, lease in state.leases.items() if lease.worker is not None}
        owners |= dict.fromkeys(self._leaving_agents, NOBODY)
        away = [worker.id for worker in state.active if worker.is_away]
        told = {worker.id: worker.snapshot.get(_UNABLE, ()) for worker in state.active} | {self.leases.worker: self._unable}
        unable = {worker: self._configured.intersection(agents) for worker, agents in told.items()}
        me = self.leases.worker if worker is None else worker
        return choose_change(me, [worker.id for worker in state.active], owners, self._groups, away, unable)

    def _begin_release(self, agents: Sequence[str], reason: str, *, reaches_server: bool = True) -> None:
        # The lease of one that is on its way must not end before its turns.
        agents = [agent for agent in agents if agent not in self._leaving_agents]
        if not agents:
            return
        self._leaving_agents.update(agents)
        self._releases.start(self._release(agents, reason, reaches_server=reaches_server))

    async def _release(self, agents: Sequence[str], reason: str, *, reaches_server: bool = True) -> None:
        slots = asyncio.Semaphore(_RELEASES if reaches_server else len(agents))
        self._leaving_agents.update(agents)
        in_turn = False
        with suppress(StoreError):
            in_turn = reaches_server and await self._has_others()

        async def release(agent: str) -> None:
            async with slots:
                releasing = asyncio.create_task(self._release_one(agent, reason, reaches_server, in_turn))
                await asyncio.wait({releasing}, timeout=self._renewal.interval_s)  # its turns may take longer
            await releasing

        await asyncio.gather(*map(release, sorted(agents, key=self._serving.is_busy)))

    async def _release_one(self, agent: str, reason: str, reaches_server: bool, in_turn: bool) -> None:
        cut_off: Sequence[int] = ()
        if agent in self._serving.list_agents():
            try:
                cut_off = await self._serving.give_back(agent, reaches_server=reaches_server)
            except Exception:  # it is not served any more, and its lease must not stay here
                log.exception("%s: could not be given back cleanly", agent)
        while True:
            try:
                await self.leases.release(agent, reason, is_lost=reason != _ROOM, cut_off=cut_off)
                break
            except StoreError as error:
                log.debug("%s: cannot be given back yet: %s", agent, error)
                if self._is_leaving and self._renewal.seconds_left <= 0:
                    return  # others take it
                await asyncio.sleep(_RETRY_S)
        self._leaving_agents.discard(agent)
        if in_turn:
            await self._wait_until_taken(agent)

    async def _has_others(self) -> bool:
        return any(worker.id != self.leases.worker for worker in (await self.leases.read()).active)

    async def _wait_until_taken(self, agent: str) -> None:
        """Wait a moment until another worker takes an agent. Those that are still served here do not wait in line there."""
        with suppress(StoreError):
            for _ in range(_LOOKS):
                await asyncio.sleep(self._renewal.interval_s / _LOOKS)
                if (await self.leases.find_owner(agent))[1] is not None:
                    return

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
            except StoreError as error:
                log.debug("the leases cannot be read: %s", error)
            except Exception:
                log.exception("the agents of this worker cannot be changed; it tries again")
