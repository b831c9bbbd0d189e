"""The platform as operations see it: a running one, or its stored data alone."""

from __future__ import annotations

import heapq
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from .. import memory, storage
from ..contracts.times import utc_now
from ..domain.quotas import QuotaScope, QuotaUsage
from ..domain.texts.json_text import dump_json
from ..exceptions import ConfigError, ServerError, StoreError

if TYPE_CHECKING:
    from ..contracts import QuestionState
    from ..domain.conversation import ConversationStatus
    from ..domain.quotas import Quotas
    from ..memory import AgentInteractionMemory, Embedder, Knowledge
    from ..storage import (
        AgentRepository,
        CutOffTurn,
        Database,
        ErasureReport,
        FoundConversation,
        PendingRequest,
        Settled,
        StoredConversation,
        StoredKey,
        StoredQuestion,
        StoredWebhook,
    )
    from .status import PlatformStatus, RunningTurn

_PLATFORM_LOG = logging.getLogger("spade_coreason")
ALL_AGENTS = "*"
"""The name that means all agents."""


class Erasure(Protocol):
    """The deletion of what an agent has."""

    async def erase_person(self, person: str) -> ErasureReport:
        """End the turns of a person (a bare JID), drop what waits, and delete all that the agent stores about them."""
        ...

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """End the turn of a conversation, drop what waits in it, and delete it."""
        ...

    async def cut_conversation(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        """Erase the found turns from a conversation of an agent or a room. It ends early if `should_go_on` returns False."""
        ...


class RunningErasure(Erasure, Protocol):
    """The deletion of what a running agent has. A person may be refused first."""

    async def refuse_person(self, person: str) -> bool:
        """Refuse new requests of a person (a bare JID), also those that others pass on, and end what runs and waits of them.

        Their senders are told. It lasts until `admit_person`. Return False if they are refused already.
        """
        ...

    async def count_dropped(self, person: str) -> int:
        """Return the number of waiting requests that `refuse_person` has dropped."""
        ...

    async def admit_person(self, person: str) -> None:
        """Take the requests of a person (a bare JID) again: end what `refuse_person` began."""
        ...

    async def wait_until_admitted(self, person: str) -> None:
        """Wait until no deletion refuses the requests of a person (a bare JID)."""
        ...

    async def wait_for_person(self, person: str) -> bool:
        """Wait until the turns that ran at `refuse_person` are over, and stored if they had ended. False if one is not."""
        ...

    async def list_cut_off(self, person: str) -> list[CutOffTurn]:
        """Return the turns in conversations of others that `refuse_person` has cancelled, after `wait_for_person`."""
        ...


class Notifications(Protocol):
    """The notifications of an agent."""

    async def retry(self, notification_id: str) -> bool:
        """Send a notification again. Return False if there is none, or if it is waiting."""
        ...

    async def drop(self, notification_id: str) -> bool:
        """Delete a notification, also one that waits. Return False if there is none."""
        ...


class Schedules(Protocol):
    """The schedules of an agent."""

    async def cancel(self, schedule_id: str) -> bool:
        """Cancel a schedule. Return False if there is none."""
        ...


class RunningSchedules(Schedules, Protocol):
    """The schedules of a running agent."""

    async def run_now(self, schedule_id: str) -> bool:
        """Run a schedule now. Return False if there is none. ValueError if a limit refuses its request."""
        ...


class Questions(Protocol):
    """The questions of an agent."""

    # Not async: a running agent returns a commit, which others may watch.
    def settle(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Awaitable[Settled | None]:
        """Store the answer to a question, unless it has one; its request runs again. None if it was deleted."""
        ...


class RunningQuestions(Questions, Protocol):
    """The questions of a running agent."""

    async def reassign(self, question: StoredQuestion) -> None:
        """Ask the people who may approve a call now, with a new code. ValueError, with the remedy, if that cannot be."""
        ...


class AccessDecisions(Protocol):
    """The people who want access to an agent."""

    async def decide(self, person: str, is_admitted: bool) -> bool | None:
        """Admit or reject a person (a bare JID). Return True if they may talk to the agent now; None if it does not run."""
        ...


class AgentData(Protocol):
    """An agent as operations use it, whether it runs or not. It may be in another worker: arguments and results have types."""

    erasure: Erasure
    notifications: Notifications
    schedules: Schedules
    questions: Questions
    access_requests: AccessDecisions

    async def run_stored(self, request: PendingRequest) -> bool:
        """Run a request that is stored and has not run in this process. Return False if it waits for a start or a resume."""
        ...

    async def wake_notifications(self) -> None:
        """Look for notifications that are due: one was stored."""
        ...

    async def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked may answer now."""
        ...

    async def find_pause(self) -> bool:
        """Return True while the agent starts no turns."""
        ...

    def set_paused(self, is_paused: bool) -> Awaitable[bool]:
        """Start no further turns, or end such a pause. It begins at once; what is returned is done when it is durable."""
        ...

    async def find_conversation(self, conversation_id: str) -> StoredConversation | None:
        """Return the record of a conversation, which may not be stored yet; None if there is none."""
        ...

    async def end(self, conversation_id: str) -> bool:
        """End an active conversation. Return False if no conversation of that id is active."""
        ...

    async def reset(self, conversation_id: str) -> bool:
        """Begin a new episode of a conversation. Return False if no conversation has that id."""
        ...

    async def list_waiting_people(self) -> list[str]:
        """Return the people (bare JIDs) about whom operators were asked and have not decided."""
        ...

    async def list_usage(self, person: str | None, limit: int) -> list[QuotaUsage]:
        """Return what a person has used today; without one the total, then at most `limit` of those who used most."""
        ...

    async def list_turns(self) -> list[RunningTurn]:
        """Return the turns that run, the oldest first."""
        ...


class RunningAgent(AgentData, Protocol):
    """A running agent as operations use it."""

    erasure: RunningErasure
    schedules: RunningSchedules
    questions: RunningQuestions

    async def list_operators(self) -> list[str]:
        """Return the bare JIDs of its operators."""
        ...

    async def count_busy(self) -> int:
        """Return the number of conversations with a turn that runs."""
        ...

    async def hold_turns(self) -> None:
        """Start no further turns, until `release_turns` was called as often."""
        ...

    async def release_turns(self) -> None:
        """End what `hold_turns` began: start the turns of what waits."""
        ...

    async def wait_for_turns(self, timeout_s: float) -> None:
        """Wait until no turn runs, at most `timeout_s` seconds."""
        ...


class OperationHost(ABC):
    """A platform as operations see it. Only one process may change its data.

    By default there are no running agents, no doors and no other workers. `agents` are the bare JIDs of the configured ones,
    `quotas` returns those of an agent, and `embedder` is that of their knowledge.
    """

    place: object = "the platform"
    """The place of its data, for an error."""
    is_running: bool
    """True for a running platform, False for its stored data alone."""

    def __init__(
        self,
        database: Database | None,
        agents: Sequence[str],
        quotas: Callable[[str], Quotas],
        embedder: Embedder | None = None,
    ) -> None:
        self.database = database
        """The database; None if nothing was ever stored."""
        self.agents = agents
        self.quotas = quotas
        self._embedder = embedder

    @property
    def whole(self) -> OperationHost:
        """The whole platform, for operations that concern all agents. It is the host itself, unless that has one agent only."""
        return self

    async def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that are configured or have stored data."""
        # An agent that a backup restored here, or that was removed from the configuration, is known to the database only.
        stored = await storage.list_stored_agents(self.database) if self.database is not None else []
        return tuple(dict.fromkeys([*self.agents, *stored]))

    def list_served(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that run in this process."""
        return ()

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of an agent. Raise StoreError if nothing was ever stored."""
        if self.database is None:
            raise StoreError(f"{self.place}: nothing is stored here yet")
        return storage.AgentRepository(self.database, agent)

    @abstractmethod
    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of an agent; None if it has none. Raise StoreError if its file is damaged."""

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        return memory.Knowledge(self.repository(agent).knowledge, self._embedder)

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent, here or in another worker; None if it does not run.

        With `changes` one that does not run stays so until the operation is over: no worker takes it.
        """
        return None

    async def open_agent(self, agent: str, *, changes: bool = False) -> AgentData:
        """Return an agent, whether it runs or not. `changes` is as for `running_agent`."""
        return await self.running_agent(agent, changes=changes) or StoppedAgent(self, agent)

    def take_secret(self, stored: StoredKey | StoredWebhook) -> None:  # noqa: B027 - no doors
        """Take a key or a webhook as it is stored now, so that the running doors accept it, or accept it no more, at once."""

    async def status(self) -> PlatformStatus:
        """Return the status of the running platform. Raise StoreError without one."""
        raise StoreError("no platform is running")

    async def find_log_levels(self) -> set[str]:
        """Return the levels of the logs of all workers, or of this process: one, unless they differ."""
        return {find_log_level()}

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of all workers, or of this process."""
        set_log_level(level)

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Begin to give agents to other workers, and take none until `take_share`. Return False without another worker."""
        return False

    def take_share(self) -> None:  # noqa: B027 - no workers
        """End what `hand_over` began."""

    def stop(self) -> None:  # noqa: B027 - no platform
        """Stop the running platform, once the present calls are answered."""


class StoppedAgent(AgentData):
    """The stored data of an agent that runs nowhere. What changes has its effect at the next start.

    It is its own parts: a class for each would have one or two methods on the same repository.
    """

    def __init__(self, host: OperationHost, agent: str) -> None:
        self._host = host
        self._agent = agent
        self.erasure = self.notifications = self.schedules = self.questions = self.access_requests = self

    @property
    def _repository(self) -> AgentRepository:
        return self._host.repository(self._agent)

    async def erase_person(self, person: str) -> ErasureReport:
        """Delete all that is stored about a person (a bare JID)."""
        return await memory.erase_person(self._repository, self._host.memory(self._agent), person)

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """Delete a conversation."""
        return await memory.erase_conversation(self._repository, self._host.memory(self._agent), record)

    async def cut_conversation(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        """Erase the found turns from a conversation, and all of it if nothing else is left there."""
        repository, remembered = self._repository, self._host.memory(self._agent)
        report = (await memory.cut_conversation(repository, remembered, conversation, should_go_on)).report
        if await memory.is_all_erased(repository, remembered, conversation.record):
            report += await memory.erase_conversation(repository, remembered, conversation.record, with_copies=False)
        return report

    async def run_stored(self, request: PendingRequest) -> bool:
        """Return False: the request waits for a start."""
        return False

    async def retry(self, notification_id: str) -> bool:
        """Let a notification be sent again. Return False if there is none, or if it is waiting."""
        now = utc_now()
        return await self._repository.notifications.change(lambda task: storage.send_again(task, now), key=notification_id)

    async def drop(self, notification_id: str) -> bool:
        """Delete a notification. Return False if there is none."""
        return await self._repository.notifications.delete(notification_id)

    async def wake_notifications(self) -> None:
        """Do nothing: what is due is sent at the next start."""

    async def cancel(self, schedule_id: str) -> bool:
        """Delete a schedule. Return False if there is none."""
        return await self._repository.schedules.delete(schedule_id)

    async def settle(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Settled | None:
        """Store the answer to a question, unless it has one; its request runs at the next start. None if it was deleted."""
        now = utc_now()
        text = dump_json({**answer, "at": now.isoformat()})
        return await self._repository.questions.settle(question.id, state, text, decided_by, now)

    async def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True: rights are asked again when it runs."""
        return True

    async def find_pause(self) -> bool:
        """Return True if the agent is to start no turns."""
        return (await self._repository.load_agent()).is_paused

    def set_paused(self, is_paused: bool) -> Awaitable[bool]:
        """Store a pause or its end."""
        return self._repository.save_pause(is_paused)

    async def find_conversation(self, conversation_id: str) -> StoredConversation | None:
        """Return the record of a conversation; None if there is none."""
        return (await self._repository.find_conversations([conversation_id])).get(conversation_id)

    async def end(self, conversation_id: str) -> bool:
        """End an active conversation. Return False if no conversation of that id is active."""
        from ..domain import conversation

        return await self._change(conversation_id, lambda status: conversation.complete(status) if status.is_active else status)

    async def reset(self, conversation_id: str) -> bool:
        """Begin a new episode of a conversation. Return False if no conversation has that id."""
        from ..domain import conversation

        now = utc_now()
        return await self._change(conversation_id, lambda status: conversation.restart_episode(status, now))

    async def _change(self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]) -> bool:
        record = await self.find_conversation(conversation_id)
        if record is None or (status := change(record.status)) is record.status:
            return False
        await self._repository.save_conversation(record.with_status(status))
        return True

    async def decide(self, person: str, is_admitted: bool) -> bool | None:
        """Admit or reject a person (a bare JID). Return None: whether they may talk to the agent is known when it runs."""
        await self._repository.save_admission(person, is_admitted)
        if is_admitted:
            await self._repository.delete_refusal(person)
        return None

    async def list_waiting_people(self) -> list[str]:
        """Return no one: operators are asked by a running agent."""
        return []

    async def list_usage(self, person: str | None, limit: int) -> list[QuotaUsage]:
        """Return what a person has used today; without one the total, then at most `limit` of those who used most."""
        stored = await self._repository.load_agent() if self._host.database is not None else None
        quotas, today = self._host.quotas(self._agent), utc_now().date()
        counted = {("total", ""): QuotaUsage.of("total", "", "", quotas.total, 0, 0)}
        if person is not None:
            counted["person", person] = QuotaUsage.of("person", person, *quotas.role_of(person), 0, 0)
        for count in stored.find_message_counts() if stored is not None else ():
            if count.day == today:
                scope = cast(QuotaScope, count.kind)
                role, quota = quotas.quota_of(scope, count.holder)
                counted[scope, count.holder] = QuotaUsage.of(scope, count.holder, role, quota, count.messages, count.bytes)
        if person is not None:
            return [counted["person", person]]
        total = counted.pop(("total", ""))
        return [total, *heapq.nlargest(limit, counted.values(), key=lambda usage: usage.messages)]

    async def list_turns(self) -> list[RunningTurn]:
        """Return no turns."""
        return []


def find_log_level() -> str:
    """Return the level of the log of this process."""
    return logging.getLevelName(_PLATFORM_LOG.getEffectiveLevel()).lower()


def set_log_level(level: str) -> None:
    """Set the level of the log of this process."""
    _PLATFORM_LOG.setLevel(level.upper())


async def require_agent(host: OperationHost, agent: str, then: str) -> RunningAgent:
    """Return a running agent, which stays at its worker. ServerError if it does not run; `then` ends the remedy."""
    if (running := await host.running_agent(agent, changes=True)) is None:
        raise ServerError(f"{agent} does not run here; add it to the configuration and start it, then {then}")
    return running


def describe_agents(agents: Sequence[str]) -> str:
    """Return half a sentence that lists agents."""
    if len(agents) == 1:
        return f"the only agent is {agents[0]}"
    return f"the agents are {', '.join(agents)}" if agents else "there are no agents"


async def select_agents(host: OperationHost, name: str | None) -> tuple[str, ...]:
    """Return the agents (bare JIDs) that a name means: a JID, its local part, or all for None or "*".

    Raise ConfigError at `agent` if there is none, or several with that local part. A whole JID may name an agent that is
    stored nowhere.
    """
    known = tuple(await host.list_agents())
    if name is None or name == ALL_AGENTS:
        return known
    found = [jid for jid in known if name in (jid, jid.partition("@")[0])]
    if not found and "@" in name:
        return (name.partition("/")[0].lower(),)
    if len(found) != 1:
        raise ConfigError("agent", f'there is no agent "{name}"; {describe_agents(known)}')
    return tuple(found)


async def select_agent(host: OperationHost, name: str | None) -> str:
    """Return the one agent that a name means. Without a name it is the only one; ConfigError if there are others or none."""
    agents = await select_agents(host, name)
    if len(agents) == 1:
        return agents[0]
    known = ", ".join(agents)
    if name == ALL_AGENTS:
        raise ConfigError("agent", f'one is needed, and "*" means all; {describe_agents(agents)}')
    raise ConfigError("agent", f"is missing; the agents are {known}" if known else "is missing, and there are no agents here")


async def stored_agents(host: OperationHost, name: str | None) -> tuple[str, ...]:
    """Return the agents that a name means, as `select_agents`; none if nothing was ever stored."""
    agents = await select_agents(host, name)
    return agents if host.database is not None else ()


async def owner_of(host: OperationHost, agent: str, conversation: str) -> str:
    """Return the owner of a conversation (a bare JID); empty if it is not stored."""
    found = (await host.repository(agent).find_conversations([conversation])).get(conversation)
    return "" if found is None else found.owner
