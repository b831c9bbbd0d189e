"""Erasure of a conversation or a person while the agent runs: what runs or waits of them ends first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from ..domain.identifiers import recover_thread
from ..domain.messages import REPLY_THREAD, InboundRequest
from ..memory import (
    AgentInteractionMemory,
    cut_conversation,
    erase_conversation,
    erase_person,
    find_person_records,
    is_all_erased,
)
from ..storage import (
    COMPACTION_VARIABLE,
    AgentRepository,
    CutOffTurn,
    ErasureReport,
    FoundConversation,
    StoredConversation,
    to_micros,
)
from .access.admission import Admission, refuse_for_deletion
from .conversations.parts import ConversationParts
from .mailboxes.mailbox import ERASING_MAILBOX, Mailbox, MailboxTask, QueuedRequest
from .tasks import AgentTasks


def _is_own(mailbox: Mailbox) -> bool:
    return mailbox is ERASING_MAILBOX.get() or mailbox.worker is asyncio.current_task()


class LiveErasure:
    """Erasure of what one running agent has of people, in memory and in its stores.

    The work of a caller in a mailbox, such as `/forget`, goes on.
    """

    def __init__(
        self,
        repository: AgentRepository,
        conversations: ConversationParts,
        tasks: AgentTasks,
        admission: Admission,
        get_memory: Callable[[], AgentInteractionMemory] | None,
        grace_s: float,
    ) -> None:
        self._repository = repository
        self._withdrawal = conversations.withdrawal
        self._mailboxes = conversations.mailboxes
        self._loader = conversations.loader
        self._persons = conversations.loader.persons
        self._history_windows = conversations.history_windows
        self._expiry = conversations.expiry
        self._quota_limit = conversations.quota_limit
        self._outbox = conversations.outbox
        self._tasks = tasks
        self._admission = admission
        self._get_memory = get_memory
        self._grace_s = grace_s
        self._ending: dict[str, list[tuple[Mailbox, datetime | None, asyncio.Future[int]]]] = {}
        """The turns of people that are refused: mailbox, start (None for one that is not cut off), and end."""
        self._dropped: dict[str, int] = {}
        """The numbers of their requests that waited."""

    async def refuse_person(self, person: str) -> bool:
        """Refuse new requests of a person (a bare JID), also those that others pass on, and end what runs and waits of them.

        Their senders are told, except for that of the turn which calls this. It lasts until `admit_person`. Return False if
        they are refused already.
        """
        if person in self._admission.erased_people:
            return False
        self._admission.erased_people[person] = asyncio.Event()
        try:
            dropped = self._withdrawal.drop_matching(lambda incoming: incoming.is_of(person))
            self._dropped[person] = len(dropped)
            for queued in dropped:
                self._tell(queued)
            self._forget_tasks(person)
            ending = self._ending[person] = []
            for mailbox in self._find_busy(person):
                if _is_own(mailbox):
                    continue
                current, turn = mailbox.current, mailbox.turn
                ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                # Before what others have queued there, which is not waited for.
                mailbox.requeue(MailboxTask(self._get_time, False, ended))
                ending.append((mailbox, None if turn is None else turn.started_at, ended))
                if current is None:
                    mailbox.is_cancelled = True  # its turn is over: if that cannot be stored, it does not run again
                elif current.is_for_agent and mailbox.cancel_current():  # other commands answer
                    self._tell(current)
        except BaseException:
            await self.admit_person(person)
            raise
        return True

    async def admit_person(self, person: str) -> None:
        """Take the requests of a person (a bare JID) again: end what `refuse_person` began."""
        self._ending.pop(person, None)
        self._dropped.pop(person, None)
        if (ended := self._admission.erased_people.pop(person, None)) is not None:
            ended.set()
            self._tasks.wake()  # what was ended and is stored still goes on

    async def count_dropped(self, person: str) -> int:
        """Return the number of waiting requests that `refuse_person` has dropped."""
        return self._dropped.get(person, 0)

    async def wait_until_admitted(self, person: str) -> None:
        """Wait until no deletion refuses the requests of a person (a bare JID)."""
        if (ended := self._admission.erased_people.get(person)) is not None:
            await ended.wait()

    async def wait_for_person(self, person: str) -> bool:
        """Wait until the turns that ran at `refuse_person` are over, and stored if they had ended. False if one is not."""
        waiting = [ended for _, _, ended in self._ending.get(person, ()) if not ended.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._grace_s)
        return all(map(_is_own, self._find_busy(person)))

    async def list_cut_off(self, person: str) -> list[CutOffTurn]:
        """Return the turns in conversations of others that `refuse_person` has cancelled, after `wait_for_person`."""
        now = to_micros(self._tasks.now())
        return [
            CutOffTurn(
                mailbox.conversation_id,
                to_micros(began_at),
                ended.result() if ended.done() and not ended.cancelled() else now,
            )
            for mailbox, began_at, ended in self._ending.get(person, ())
            if mailbox.conversation_id is not None and began_at is not None and mailbox.sender != person
        ]

    async def _get_time(self) -> int:
        return to_micros(self._tasks.now())

    async def cut_conversation(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        """Erase the found turns from a conversation of an agent or a room, in memory and in the stores."""
        async with self._history_windows.hold(conversation.record.conversation_id):
            return await self._cut(conversation, should_go_on)

    async def _cut(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        repository = self._repository
        conversation_id, own = conversation.record.conversation_id, {turn.interaction_id for turn in conversation.turns}
        cut = await cut_conversation(repository, self._memory, conversation, should_go_on)
        self._loader.cuts += 1
        self._clear_knowledge_cache()
        owner = conversation.record.owner
        self._persons.forget_copies(owner, cut.owner_variables, await repository.load_variables("person", owner))
        may_be_emptied = conversation.turns or not conversation.cut_off
        if may_be_emptied and await is_all_erased(repository, self._memory, conversation.record):
            return cut.report + await self._erase_emptied(conversation.record)
        mailbox = self._mailboxes.conversations.find(conversation_id)
        if mailbox is None or (active := mailbox.active) is None:
            return cut.report
        for turn in active.turns:
            if turn.interaction is not None and str(turn.interaction.id) in own:
                turn.erase()
        active.last_reply = ""
        values = active.variables.values
        stored = await repository.load_variables("conversation", conversation_id)
        for name, text in cut.variables.items():
            if values.get(name) == text and name not in stored:
                del values[name]
        if COMPACTION_VARIABLE in stored:
            values[COMPACTION_VARIABLE] = stored[COMPACTION_VARIABLE]
        return cut.report

    async def erase_person(self, person: str) -> ErasureReport:
        """Delete all data about a person (a bare JID), also the conversations of keys that stand for them."""
        report = ErasureReport()
        for owner in (*await self._repository.find_callers_of(person), person):
            report += await self._erase_owner(owner)
        return report

    async def _erase_owner(self, owner: str) -> ErasureReport:
        repository, mailboxes = self._repository, self._mailboxes.of_sender(owner)
        asked = await repository.questions.parked.delete_about(owner)  # before: an answer would queue its request
        await self._end_work(owner, mailboxes)
        self._quota_limit.forget(owner)
        _, records, _ = await find_person_records(repository, owner)
        for record in records:
            self._expiry.on_deleted(record.conversation_id)  # before: an expiry that is at work would store it again
        self._forget_tasks(owner)
        try:
            report = await erase_person(repository, self._memory, owner)
            self._forget_tasks(owner)  # it may have loaded some before they were deleted
        finally:
            self._tasks.wake()  # a question of others that waits for nobody ends, and what is not deleted goes on
        self._persons.forget(owner)
        self._forget(mailboxes)
        return report + asked

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """Delete a conversation, with the copies of its variables in the scope of its person. The jobs that it began end."""
        repository, owner = self._repository, record.owner
        mailbox = self._mailboxes.conversations.find(record.conversation_id)
        thread = recover_thread(record.conversation_id, owner, repository.agent)
        mailbox = mailbox or self._mailboxes.get(owner, thread)
        self._withdrawal.drop_matching(lambda incoming: (incoming.owner, incoming.thread) == (owner, thread))
        asked = await repository.questions.parked.delete_in(record)  # before: an answer would queue its request
        mailboxes = [mailbox] if mailbox is not None else []
        await self._end_work(owner, [*mailboxes, *self._drop_jobs(owner, thread)])
        active = mailbox.active if mailbox is not None else None
        values = (
            dict(active.variables.values)
            if active is not None
            else await repository.load_variables("conversation", record.conversation_id)
        )
        self._expiry.on_deleted(record.conversation_id)  # before: an expiry that is at work would store it again
        self._forget_tasks(owner, [thread])
        try:
            report = await erase_conversation(repository, self._memory, record if active is None else active.record)
            self._forget_tasks(owner, [thread])
        finally:
            self._tasks.wake()  # what is not deleted goes on
        self._persons.forget_copies(owner, values, await repository.load_variables("person", owner))
        self._forget(mailboxes)
        return report + asked

    async def _erase_emptied(self, record: StoredConversation) -> ErasureReport:
        """Delete a conversation of which no turn is left, between two turns: a message that comes during it begins it anew.

        One that is at work stays: a turn of it may be stored soon, and a later deletion finds it if there is none.
        """
        mailboxes, owner = self._mailboxes, record.owner
        thread = recover_thread(record.conversation_id, owner, self._repository.agent)
        mailbox = mailboxes.conversations.find(record.conversation_id) or mailboxes.get(owner, thread)
        if not mailboxes.is_accepting or (mailbox is not None and (mailbox.worker is not None or mailbox.queue)):
            return ErasureReport()
        mailbox = mailbox or mailboxes.get_or_create(owner, thread)
        erased: asyncio.Future[ErasureReport] = asyncio.get_running_loop().create_future()
        mailboxes.put_task(mailbox, MailboxTask(partial(self._erase_between_turns, mailbox, record), False, erased))
        await asyncio.wait((erased,))
        return ErasureReport() if erased.cancelled() else erased.result()  # cancelled by a stop of the agent

    async def _erase_between_turns(self, mailbox: Mailbox, record: StoredConversation) -> ErasureReport:
        repository = self._repository
        if not await is_all_erased(repository, self._memory, record):
            return ErasureReport()
        self._expiry.on_deleted(record.conversation_id)  # before: an expiry that is at work would store it again
        report = await erase_conversation(repository, self._memory, record, with_copies=False)
        self._forget([mailbox])
        return report

    def _drop_jobs(self, owner: str, thread: str | None) -> list[Mailbox]:
        """Drop the jobs that a conversation began and that wait. Return the mailboxes of those that run."""

        def is_begun_there(incoming: InboundRequest) -> bool:
            metadata = incoming.metadata
            return incoming.owner == owner and REPLY_THREAD in metadata and metadata[REPLY_THREAD] == thread

        self._withdrawal.drop_matching(is_begun_there)
        return [
            one for one in self._mailboxes.of_sender(owner) if one.handled is not None and is_begun_there(one.handled.incoming)
        ]

    def _find_busy(self, person: str) -> list[Mailbox]:
        """Return the mailboxes that handle a request of a person (a bare JID)."""
        return [
            mailbox for mailbox in self._mailboxes if mailbox.handled is not None and mailbox.handled.incoming.is_of(person)
        ]

    def _tell(self, queued: QueuedRequest) -> None:
        problem = refuse_for_deletion(queued.incoming, self._admission.erased_people)
        self._outbox.send_problem(queued.incoming, problem, queued.key)

    @property
    def _memory(self) -> AgentInteractionMemory | None:
        return None if self._get_memory is None else self._get_memory()

    async def _end_work(self, owner: str, mailboxes: Sequence[Mailbox]) -> None:
        others = [mailbox for mailbox in mailboxes if not _is_own(mailbox)]
        for mailbox in others:
            self._withdrawal.drop_all(mailbox)
            mailbox.cancel_current()
            mailbox.is_cancelled = True  # also if its turn is over: one that cannot be stored does not run again
        workers = [mailbox.worker for mailbox in others if mailbox.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=self._grace_s)
        await self._history_windows.cancel_for_owner(owner)

    def _forget(self, mailboxes: Sequence[Mailbox]) -> None:
        self._clear_knowledge_cache()
        for deleted in mailboxes:
            if deleted.conversation_id is not None:
                self._expiry.on_deleted(deleted.conversation_id)
            deleted.active = None
            self._mailboxes.evict_if_idle(deleted)

    def _forget_tasks(self, person: str, threads: Sequence[str | None] | None = None) -> None:
        """Send and run nothing more that is about a person (a bare JID), whose data are being deleted.

        With `threads`, only what is in these conversations of theirs.
        """
        self._tasks.forget(
            lambda task: (
                person in (task.owner, task.root) if threads is None else task.owner == person and task.thread in threads
            )
        )

    def _clear_knowledge_cache(self) -> None:
        if self._history_windows.knowledge is not None:
            self._history_windows.knowledge.clear_cache()
