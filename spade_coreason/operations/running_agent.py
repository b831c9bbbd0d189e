"""The running part of an agent, as operations use it: here, or in another worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..contracts import QuestionState
from ..memory import ErasureReport
from ..storage import (
    CutOffTurn,
    FoundConversation,
    PendingRequest,
    Settled,
    StoredConversation,
    StoredQuestion,
)
from .status import QuotaUsage, RunningTurn


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

    async def end_lost_access(self) -> None:
        """Cancel the turns of senders who have no access any more, and answer no requests of theirs that wait."""
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
