"""The platform as operations see it: a running one, or its stored data alone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..exceptions import ConfigError

if TYPE_CHECKING:
    from ..contracts import QuestionState
    from ..domain.quotas import Quotas
    from ..memory import AgentInteractionMemory, ErasureReport, Knowledge
    from ..storage import (
        AgentRepository,
        CutOffTurn,
        Database,
        FoundConversation,
        PendingRequest,
        Settled,
        StoredConversation,
        StoredKey,
        StoredQuestion,
        StoredWebhook,
    )
    from .status import PlatformStatus, QuotaUsage, RunningTurn

_PLATFORM_LOG = logging.getLogger("spade_coreason")
ALL_AGENTS = "*"
"""The name that means all agents."""


class RunningAgent(Protocol):
    """The running part of an agent, as operations use it. It may be in another worker: all arguments and results have types."""

    async def erase_person(self, person: str) -> ErasureReport:
        """End the turns of a person (a bare JID), drop what waits, and delete all that the agent stores about them."""
        ...

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """End the turn of a conversation, drop what waits in it, and delete it."""
        ...

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

    async def cut_conversation(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        """Erase the found turns from a conversation of an agent or a room. It ends early if `should_go_on` returns False."""
        ...

    async def list_operators(self) -> list[str]:
        """Return the bare JIDs of its operators."""
        ...

    async def run_stored(self, request: PendingRequest) -> bool:
        """Run a request that is stored and has not run in this process. Return False if it waits for a start or a resume."""
        ...

    async def retry_notification(self, notification_id: str) -> bool:
        """Send a notification again. Return False if there is none, or if it is waiting."""
        ...

    async def drop_notification(self, notification_id: str) -> bool:
        """Delete a notification, also one that waits. Return False if there is none."""
        ...

    async def wake_notifications(self) -> None:
        """Look for notifications that are due: one was stored."""
        ...

    async def cancel_schedule(self, schedule_id: str) -> bool:
        """Cancel a schedule. Return False if there is none."""
        ...

    async def settle_question(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Settled | None:
        """Store the answer to a question, unless it has one; its request runs again. None if it was deleted."""
        ...

    async def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked may answer now."""
        ...

    async def reassign_question(self, question: StoredQuestion) -> None:
        """Ask the people who may approve a call now, with a new code. ValueError, with the remedy, if that cannot be."""
        ...

    async def run_schedule(self, schedule_id: str) -> bool:
        """Run a schedule now. Return False if there is none. ValueError if a limit refuses its request."""
        ...

    async def find_pause(self) -> bool:
        """Return True while the agent starts no turns."""
        ...

    def set_paused(self, is_paused: bool) -> Awaitable[bool]:
        """Start no further turns, or end such a pause. It begins at once; what is returned is done when it is durable."""
        ...

    async def find_conversation(self, conversation_id: str) -> StoredConversation | None:
        """Return the record of a conversation in memory, which may not be stored yet; None if it is not in memory."""
        ...

    async def end(self, conversation_id: str) -> bool:
        """End an active conversation. Return False if no conversation of that id is active."""
        ...

    async def reset(self, conversation_id: str) -> bool:
        """Begin a new episode of a conversation. Return False if no conversation has that id."""
        ...

    async def decide_access(self, person: str, is_admitted: bool) -> bool:
        """Admit or reject a person (a bare JID). Return True if they may talk to the agent now."""
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


class OperationHost(Protocol):
    """A platform as operations see it. Only one process may change its data."""

    @property
    def whole(self) -> OperationHost:
        """The whole platform, for operations that concern all agents. It is the host itself, unless that has one agent only."""
        ...

    @property
    def database(self) -> Database | None:
        """The database; None if nothing was ever stored."""
        ...

    async def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that are configured or have stored data."""
        ...

    def list_served(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that run in this process."""
        ...

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of an agent. Raise StoreError if nothing was ever stored."""
        ...

    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of an agent; None if it has none. Raise StoreError if its file is damaged."""
        ...

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        ...

    def quotas(self, agent: str) -> Quotas:
        """Return the quotas of an agent."""
        ...

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Take a webhook as it is stored now, so that the running doors take its events, or take them no more, at once."""
        ...

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent, here or in another worker; None if it does not run.

        With `changes` one that does not run stays so until the operation is over: no worker takes it.
        """
        ...

    def take_key(self, key: StoredKey) -> None:
        """Take a key as it is stored now, so that the running doors accept it, or accept it no more, at once."""
        ...

    @property
    def is_running(self) -> bool:
        """True for a running platform, False for its stored data alone."""
        ...

    async def status(self) -> PlatformStatus:
        """Return the status of the running platform."""
        ...

    async def find_log_levels(self) -> set[str]:
        """Return the levels of the logs of all workers, or of the platform: one, unless they differ."""
        ...

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of all workers, or of the platform."""
        ...

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Begin to give agents to other workers, and take none until `take_share`. Return False without another worker."""
        ...

    def take_share(self) -> None:
        """End what `hand_over` began."""
        ...

    def stop(self) -> None:
        """Stop the running platform, once the present calls are answered."""
        ...


def find_log_level() -> str:
    """Return the level of the log of this process."""
    return logging.getLevelName(_PLATFORM_LOG.getEffectiveLevel()).lower()


def set_log_level(level: str) -> None:
    """Set the level of the log of this process."""
    _PLATFORM_LOG.setLevel(level.upper())


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
