"""The other workers of a database, as a worker or a command sees them: who serves an agent, and how they all are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ...exceptions import StoreError
from ...operations.host import RunningAgent
from ...operations.status import AgentStatus, PlatformStatus, TakeoverStatus, WorkerStatus
from ...storage import CallRepository, Leases, Worker, find_last_takeover, from_micros
from .calls import CallTargets, OtherVersionError, RunningWorker, WorkerCalls, WorkerEndedError, WorkerState

T = TypeVar("T")

ABSENT = "absent"
"""The key in the snapshot of a worker of the agents that it cannot make. Their stored data can be changed by anyone."""
_REPORT_S = 2.0
_FREE_S = 20.0
"""The time that a change waits until a worker serves an agent that is free for a moment."""
_POLL_S = 0.1
_SILENT = "does not answer"


class Colleagues:
    """The other workers of a database, as the worker of `leases` and `calls` sees them. They ask for `targets` here."""

    def __init__(self, leases: Leases, calls: CallRepository, targets: CallTargets) -> None:
        self.leases = leases
        self.worker = leases.worker
        self._calls = calls
        self._targets = targets
        self.calls = WorkerCalls(calls, targets)

    async def find_agent(self, agent: str, *, changes: bool) -> RunningAgent | None:
        """Return an agent (a bare JID) that another worker serves; None if no worker can.

        With `changes` wait for its next worker, if it is free or on its way here or from here. StoreError if there is none
        after a time.
        """
        deadline = asyncio.get_running_loop().time() + _FREE_S
        while True:
            lease, owner = await self.leases.find_owner(agent)
            if lease is None:
                return None
            if owner is not None and owner.id == self.worker and changes:
                if agent in owner.snapshot.get(ABSENT, ()):
                    return None
                if (found := self._targets.agent(agent)) is not None:
                    return found
            elif owner is not None and not (owner.is_expired and changes):
                return self.choose(agent, owner)
            if not changes:
                return None
            if asyncio.get_running_loop().time() > deadline:
                raise StoreError(
                    f"{agent}: no worker serves it ({lease.reason}); run the same again once `spade-coreason status` shows it"
                )
            await asyncio.sleep(_POLL_S)

    def choose(self, agent: str, owner: Worker) -> RunningAgent | None:
        """Return an agent as its worker `owner` has it; None if that cannot make it."""
        if owner.id == self.worker or agent in owner.snapshot.get(ABSENT, ()):
            return None
        return self.calls.agent(agent)

    def wake_doors(self) -> None:
        """Let all workers load the keys and webhooks again."""
        self._calls.wake_doors()

    async def is_served(self) -> bool:
        """Return True if a worker takes agents."""
        return bool((await self.leases.read()).active)

    async def find_log_levels(self) -> set[str]:
        """Return the levels of the logs of the other workers."""
        return set(await self._ask_each(lambda worker: worker.find_log_level()))

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of the other workers."""
        await self._ask_each(lambda worker: worker.set_log_level(level))

    async def _ask_each(self, ask: Callable[[RunningWorker], Awaitable[T]]) -> list[T]:
        """Ask the other workers the same. Return the answers of those that have not ended."""
        others = [worker.id for worker in (await self.leases.read()).active if worker.id != self.worker]
        found = await asyncio.gather(*(ask(self.calls.worker(worker)) for worker in others), return_exceptions=True)
        answers: list[T] = []
        for one in found:
            if not isinstance(one, BaseException):
                answers.append(one)
            elif not isinstance(one, WorkerEndedError):
                raise one
        return answers

    async def report(self, server: str, agents: Sequence[str], own: WorkerState | None) -> PlatformStatus:
        """Return the status of the platform: of all workers and their agents. `agents` are bare JIDs in their order.

        `own` is the state of this worker; None for a command.
        """
        state = await self.leases.read()
        owners = {agent: lease.worker for agent, lease in state.leases.items()}
        shown = [worker for worker in state.workers if not worker.is_leaving or worker.id in owners.values()]
        others = [worker for worker in shown if worker.id != self.worker]
        states = dict(zip([one.id for one in others], await asyncio.gather(*map(self._ask, others)), strict=True))
        problems = {worker: state for worker, state in states.items() if isinstance(state, str)}
        answers = {worker: state for worker, state in states.items() if not isinstance(state, str)}
        if own is not None:
            answers[self.worker] = own
        found = {agent.jid: agent for state in answers.values() for agent in state.agents}
        names = {worker.id: worker.name for worker in state.workers}

        def describe(agent: str) -> AgentStatus:
            lease = state.leases.get(agent)
            worker = None if lease is None or lease.worker is None else names.get(lease.worker, str(lease.worker))
            if agent in found:
                return replace(found[agent], worker=worker)
            if lease is None or lease.worker is None:
                problem = "no worker serves it" if lease is None else f"no worker serves it: {lease.reason}"
            elif lease.worker not in answers:
                problem = f"its worker {worker} {problems.get(lease.worker, _SILENT)}"
            else:
                problem = f"its worker {worker} has not begun to serve it"
            return AgentStatus(agent, "offline", start_problem=f"{agent}: {problem}", worker=worker)

        takeover = find_last_takeover(state)
        web = next((state.web for state in (own, *answers.values()) if state is not None and state.web is not None), None)
        return PlatformStatus(
            0 if own is None else own.pid,
            server,
            tuple(map(describe, dict.fromkeys([*agents, *(agent for agent, worker in owners.items() if worker is not None)]))),
            web,
            tuple(
                WorkerStatus(
                    worker.name,
                    sum(owner == worker.id for owner in owners.values()),
                    from_micros(worker.started_at),
                    worker.id == self.worker,
                    worker.is_leaving,
                    max(0.0, worker.left_micros / 1_000_000),
                    worker.id in answers,
                )
                for worker in shown
            ),
            None
            if takeover is None
            else TakeoverStatus(takeover.worker, takeover.reason, from_micros(takeover.at), len(takeover.agents)),
        )

    async def _ask(self, worker: Worker) -> WorkerState | str:
        """Return the state of a worker, or the reason why it is not known."""
        if worker.is_expired:
            return _SILENT
        try:
            async with asyncio.timeout(_REPORT_S):
                return await self.calls.worker(worker.id).report()
        except OtherVersionError:
            return "has another version; finish the upgrade"
        except (StoreError, TimeoutError):
            return _SILENT
