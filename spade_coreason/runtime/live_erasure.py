"""Erasure of a conversation or a person while the agent runs: what runs or waits of them ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..domain.identifiers import recover_thread
from ..memory import AgentInteractionMemory, ErasureReport, erase_conversation, erase_person, find_person_records
from ..storage import StoredConversation
from .intake.conversation_loader import ConversationLoader
from .intake.mailbox import Mailbox
from .intake.quota_limit import QuotaLimit
from .turns.turn_services import TurnServices


class LiveErasure:
    """Erasure of what one running agent has of people, in memory and in its stores.

    The work of a caller in a mailbox, such as `/forget`, goes on.
    """

    def __init__(
        self,
        services: TurnServices,
        loader: ConversationLoader,
        quota_limit: QuotaLimit,
        get_memory: Callable[[], AgentInteractionMemory] | None,
    ) -> None:
        self._services = services
        self._loader = loader
        self._quota_limit = quota_limit
        self._get_memory = get_memory

    async def erase_person(self, owner: str) -> ErasureReport:
        """Delete all data about a person (a bare JID)."""
        services, mailboxes = self._services, list(self._services.mailboxes.of_sender(owner))
        services.mailboxes.drop_unqueued(owner)
        await self._end_work(owner, mailboxes)
        self._quota_limit.forget(owner)
        _, records, _ = await find_person_records(services.repository, owner)
        for record in records:
            services.expiry.on_deleted(record.conversation_id)  # before: an expiry that is at work would store it again
        report = await erase_person(services.repository, self._memory, owner)
        self._loader.forget_person(owner)
        self._forget(mailboxes)
        return report

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """Delete a conversation, with the copies of its variables in the scope of its person."""
        services, owner = self._services, record.owner
        mailbox = services.mailboxes.conversations.find(record.conversation_id)
        thread = recover_thread(record.conversation_id, owner, services.jid)
        mailbox = mailbox or services.mailboxes.get(owner, thread)
        services.mailboxes.drop_unqueued(owner, thread)
        mailboxes = [mailbox] if mailbox is not None else []
        await self._end_work(owner, mailboxes)
        active = mailbox.active if mailbox is not None else None
        repository = services.repository
        values = (
            dict(active.variables.values)
            if active is not None
            else await repository.load_variables("conversation", record.conversation_id)
        )
        services.expiry.on_deleted(record.conversation_id)  # before: an expiry that is at work would store it again
        report = await erase_conversation(repository, self._memory, record if active is None else active.record)
        self._loader.forget_copies(owner, values, await repository.load_variables("person", owner))
        self._forget(mailboxes)
        return report

    @property
    def _memory(self) -> AgentInteractionMemory | None:
        return None if self._get_memory is None else self._get_memory()

    async def _end_work(self, owner: str, mailboxes: Sequence[Mailbox]) -> None:
        services, own = self._services, asyncio.current_task()
        others = [mailbox for mailbox in mailboxes if mailbox.worker is not own]
        for mailbox in others:
            services.mailboxes.drop_all(mailbox)
            mailbox.cancel_current()
        workers = [mailbox.worker for mailbox in others if mailbox.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=services.policy.timings.cancel_grace_s)
        await services.history_windows.cancel_for_owner(owner)

    def _forget(self, mailboxes: Sequence[Mailbox]) -> None:
        services = self._services
        if services.history_windows.knowledge is not None:
            services.history_windows.knowledge.clear_cache()
        for deleted in mailboxes:
            if deleted.conversation_id is not None:
                services.expiry.on_deleted(deleted.conversation_id)
            deleted.active = None
            services.mailboxes.evict_if_idle(deleted)
