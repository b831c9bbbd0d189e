"""The questions of one agent: it parks the requests that ask, takes answers, and lets the requests run again.

What is decided is one conditional update in the storage: the first answer counts, wherever it is given.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...contracts import QuestionState
from ...domain.access import AccessPolicy
from ...domain.identifiers import derive_asking_ids
from ...domain.messages import EarlierRuns
from ...domain.questions import (
    APPROVAL,
    ApprovalPolicy,
    FoundAnswer,
    decide_plain_answer,
    find_answer,
    fold,
    make_approval_code,
)
from ...domain.texts.json_text import dump_json
from ...storage import (
    QUESTION,
    WAITING,
    AgentRepository,
    Commit,
    EndedQuestion,
    NewQuestion,
    ParkedRequest,
    PendingRequest,
    Settled,
    StoredAgent,
    StoredQuestion,
    Task,
    addition_of,
    from_micros,
    to_micros,
)
from ..languages import PersonLanguages
from ..mailboxes.mailbox import Mailbox, QueuedRequest
from ..steps.step_journal import StepJournal
from ..steps.steps import DurableStep
from ..tasks import AgentTasks, Next
from .notices import QuestionNotices
from .rights import AnswerRights

log = logging.getLogger(__name__)

_REPEATED_S = 3.0
"""The time after an answer in which the same text may be the same answer once more."""
_SKEW = 60_000_000
"""The most microseconds by which the clock of a server differs, or by which it is late to see that a stream is cut."""
_LATELY = timedelta(days=7)
"""The time for which those who have asked a person keep places there from others."""


class AskedQuestion(NamedTuple):
    """A question that a turn asks now, or an approval that it asks for."""

    step: DurableStep
    kind: str
    people: tuple[str, ...]
    text: str
    choices: tuple[str, ...]
    schema: Mapping[str, Any] | None
    code: str
    timeout: timedelta
    is_shown_here: bool
    """True if the reply of the turn has it. Otherwise the people get it as a notification."""
    requester: str
    """The bare JID of the person behind the request; "" if it is the agent itself, or not known."""
    approvers: str | None = None
    """The group that may decide an approval; None for the one that is configured."""
    held: frozenset[str] = frozenset()
    """The people among them who are asked later."""


class QuestionDesk:
    """The questions of one agent. A task of theirs is the due time of a question (`TaskHandler`).

    `resume` queues a request that is in the inbox again; it returns False if its channel is missing.
    """

    waits = False
    failed = WAITING, "it cannot be looked at; see the log"
    most = 1000

    def __init__(
        self,
        repository: AgentRepository,
        access: AccessPolicy,
        policy: ApprovalPolicy,
        languages: PersonLanguages,
        resume: Callable[[PendingRequest], bool],
        tasks: AgentTasks,
    ) -> None:
        self.agent = repository.agent
        self._repository = repository.questions
        self._notifications = repository.notifications
        self._due_times = repository.due_times
        self._inbox = repository.inbox
        self._access = access
        self._policy = policy
        self.rights = AnswerRights(access, policy)
        """The people who may answer."""
        self._notices = QuestionNotices(repository, languages, policy, tasks.now)
        self._resume = resume
        self._tasks = tasks
        self._clock = tasks.now
        self._asking: Counter[tuple[str, str]] = Counter()
        """The questions of people that are about to be stored, by person and requester."""
        self._looks_again = False
        """True if the clock has to look who may decide, and who is asked later."""
        self._changes = 0
        """The number of parked requests and of changes of rights since the start."""
        self.has_open = False
        """False if no question is open. Then no message is looked at as an answer."""
        tasks.add_handler(QUESTION, self, self.look_again)

    def open(self, stored: StoredAgent) -> None:
        """Take what an earlier run has left."""
        self.has_open = stored.has_questions
        if stored.has_rights:
            self.review()

    # Asking

    async def check(self, asked: Sequence[AskedQuestion]) -> AskedQuestion:
        """Return the last one with the people who are asked later. Raise ValueError if a person has no access."""
        last = asked[-1]
        for person in last.people:
            if person == self.agent:
                raise ValueError(f"{person} is the agent itself; ask a person")
            if not self._access.is_allowed(person):
                raise ValueError(f"{person} has no access to {self.agent}, so they cannot answer; admit them first")
        changes = None
        while changes != self._changes:  # else one was stored that this has not read
            changes = self._changes
            counts = await self._repository.count_open(last.people, self._clock() - _LATELY, waits=True)
        counts.update(self._asking + _count(asked[:-1]))
        held = (person for person in last.people if not self._policy.has_place(person, last.requester, counts))
        return last if last.is_shown_here else last._replace(held=frozenset(held))

    def count(self, asked: Sequence[AskedQuestion]) -> None:
        """Count questions that are about to be stored among the open ones of the people, right after `check`."""
        self._asking += _count(asked)

    def release(self, asked: Sequence[AskedQuestion]) -> None:
        """Count questions no more that are stored, or will not be."""
        self._asking -= _count(asked)  # leaves no zeros

    def park(self, queued: QueuedRequest, journal: StepJournal, runs: EarlierRuns, reply: str | None) -> Commit[bool]:
        """Store the questions of a turn, and move its request out of the inbox, in one transaction.

        `runs` is what its next run is told, and `reply` what it has said. The result is False if the request was erased before.
        """
        asked: Sequence[AskedQuestion] = journal.asked
        now = self._clock()
        waiting = [self._make(queued, each, now) for each in asked]
        notices = [
            self._notices.make(new.question, person, "question")
            for new in waiting
            for person in new.people
            if not new.question.reference and person not in new.held
        ]
        notices += [self._make_due_time(new.question, now) for new in waiting]
        begun = [*self._inbox.take_unsaved_steps(queued.inbox_row), *journal.unfinished]
        commit = self._repository.parked.add(_make_parked(self.agent, queued, runs, now), waiting, notices, begun, reply)
        commit.on_stored(lambda is_parked: self._on_parked(asked, is_parked=is_parked))
        commit.on_failed(lambda _: self.release(asked))
        return commit

    def _on_parked(self, asked: Sequence[AskedQuestion], *, is_parked: bool) -> None:
        self.release(asked)
        if is_parked:
            self.has_open = True
            self._looks_again |= any(each.held for each in asked)
            self._changes += 1
            self._wake()  # for the notifications; it sleeps until the first reminder then

    def _make(self, queued: QueuedRequest, asked: AskedQuestion, now: datetime) -> NewQuestion:
        incoming, step = queued.incoming, asked.step
        form: dict[str, Any] = {"choices": list(asked.choices)} if asked.choices else {}
        if asked.schema is not None:
            form["schema"] = asked.schema
        micros = to_micros(now)
        question = StoredQuestion(
            self._repository.row_ids.next(),
            self.agent,
            step.key,
            queued.inbox_row,
            asked.kind,
            step.name,
            step.number,
            incoming.thread if asked.is_shown_here else None,
            asked.requester,
            asked.text,
            dump_json(form),
            asked.code,
            str(queued.key) if asked.is_shown_here else "",
            QuestionState.OPEN.value,
            None,
            "",
            micros,
            to_micros(now + asked.timeout),
            micros,
            approvers=asked.approvers,
        )
        return NewQuestion(question, asked.people, asked.held)

    def _make_due_time(self, question: StoredQuestion, now: datetime) -> Task:
        half = now + (from_micros(question.expires_at) - now) / 2
        return self._due_times.make(question.question_id, "", None, "", "{}", now, due_at=half)

    # Answers

    async def find_answer(self, queued: QueuedRequest, mailbox: Mailbox) -> tuple[StoredQuestion, FoundAnswer] | None:
        """Return the question that a text answers without a command, and the answer; None if it is a request.

        It has no `verb` if it is not clear that the text is an answer. By a door, an answer names its question.
        """
        incoming, stamp = queued.incoming, queued.incoming.evidence.stored_at
        if not incoming.is_said_directly or incoming.kind.is_due or incoming.kind.is_door:
            return None
        await self._inbox.flush()  # so that what was shown is stored
        if not (asked := await self._repository.load_asked(incoming.owner)):
            await self._find_open()
            return None
        replied = str(incoming.metadata.get("reply_to") or "nothing")
        replied_to = [_is_reply_to(question, incoming.owner, replied) for question in asked]
        text = str(incoming.payload.get("query", ""))
        found = find_answer(text, incoming.thread, replied_to, asked)
        if found is None:
            return None
        question, came_s, verb = asked[found.number], queued.received_at_s, found.verb or None
        given = hash(fold(text)), came_s
        if verb is None:
            if not (question.shown_at or question.reference):
                return None  # the notification that asks still waits
            # From its age, because the clock may have been set since it came.
            came_at = stamp or time.time_ns() // 1000 - int((time.monotonic() - came_s) * 1e6)
            verb = decide_plain_answer(
                None if queued.is_redelivered or incoming.headers.replaces else came_at,
                question.shown_at,
                _SKEW if stamp else 0,
                is_repeated=given > mailbox.answered > (given[0], came_s - _REPEATED_S),
            )
        if verb:
            mailbox.answered = given
        return None if verb is None else (question, found._replace(verb=verb))

    def settle(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Commit[Settled | None]:
        """Store the answer to a question, unless it has one. If its request waits for no other, it runs again.

        An answer of a person counts if they were asked and may answer now. `decided_by` is no JID for a user of the machine.
        """
        now = self._clock()
        dumped = dump_json({**answer, "at": now.isoformat()})
        is_person = decided_by and " " not in decided_by
        people = None if not is_person else [decided_by] if self.rights.may_answer(question, decided_by) else []
        commit = self._repository.settle(question.id, state, dumped, decided_by, now, people)
        commit.on_stored(self._on_settled)
        return commit

    async def reassign(self, question: StoredQuestion) -> None:
        """Ask the people who may approve a call now, with a new code. Its time goes on. ValueError, with the remedy."""
        people = self.rights.find_approvers(question.approvers, question.requester)
        if not await self._repository.reassign(question, make_approval_code(), people, self._clock()):
            raise ValueError("it is decided already, or its time is over; nothing was changed")
        self.review()

    def review(self, *_: object) -> None:
        """Look for approvals that no one may decide any more, and for those who have a place: something has changed."""
        self._changes += 1
        self._looks_again = True
        if self.has_open:
            self._wake()

    def _on_settled(self, settled: Settled | None) -> None:
        if self._looks_again:
            self._wake()
        if settled is not None and settled.pending is not None and not self._resume(settled.pending):
            log.warning("%s: a request that waited for an answer has no channel any more", self.agent)

    # The end of parked requests

    async def end_in_thread(self, owner: str, thread: str | None) -> bool:
        """End the parked requests of an owner (a bare JID) in a thread, and tell who was asked. False without any."""
        if not self._may_have_parked:
            return False
        commit = self._repository.parked.end_in_threads(self._clock(), owner, [thread])
        commit.on_stored(lambda ended: self._tell_of_end(ended, owner))
        return bool(await commit)

    def end_of_messages(self, owner: str, message_ids: Sequence[str], author: str | None) -> Commit[Any] | None:
        """End the parked requests of an owner (a bare JID) with one of these message ids, and tell who was asked.

        `author` is that of a `Retraction`. None if no request waits for an answer.
        """
        if not self._may_have_parked or not message_ids:
            return None
        commit = self._repository.parked.end_of_messages(self._clock(), owner, message_ids, author)
        commit.on_stored(lambda ended: self._tell_of_end(ended, owner))
        return commit

    @property
    def _may_have_parked(self) -> bool:
        return self.has_open or bool(self._asking)

    def _tell_of_end(self, ended: Sequence[EndedQuestion], owner: str) -> None:
        notices = [
            self._notices.make(question, person, "end") for question, people in ended for person in people if person != owner
        ]
        if ended:
            self._notify(notices).on_stored(self._wake)

    # The clock

    async def run(self, task: Task, now: datetime) -> Next:
        """Remind people of a question that is half over, and end one that is over."""
        question = await self._repository.find(task.key)
        if question is None or not question.is_open:
            return None
        if question.expires_at <= to_micros(now):
            return self.settle(question, QuestionState.EXPIRED, {"expired": True}, "")
        people = (await self._repository.load_people([question.id]))[question.id]
        able = tuple(person for person in people if self.rights.may_answer(question, person))
        notices = [self._notices.make(question, person, "reminder") for person in able]
        if not await self._repository.notify(question, able, notices):
            return task  # it has changed
        return task.moved(now, wake_at=from_micros(question.expires_at))

    async def look_again(self) -> None:
        """Tell the requester and the operators of each approval that no one who was asked may decide any more, once.

        Ask people what they were to be asked later, in order, while they have a place for it. Both only if something has
        changed, and once it is known who has access.
        """
        if not (self._looks_again and self._access.is_known):
            return
        changes, asked = self._changes, await self._repository.load_open_by_person()
        able = {question for question, person, _ in asked if self.rights.may_answer(question, person)}
        stuck = {question for question, *_ in asked if question.kind == APPROVAL} - able
        news = [
            self._notices.make(question, person, "stuck")
            for question in stuck
            for person in {question.requester, *self._access.operators} - {""}
        ]
        await self._notify([each for each in news if await self._notifications.find(each.key) is None])
        waiting = [(question, person) for question, person, waits in asked if waits]
        people = [person for _, person in waiting]
        counts = await self._repository.count_open(people, self._clock() - _LATELY, waits=False)
        for question, person in waiting:
            requester = question.requester
            if self.rights.may_answer(question, person) and self._policy.has_place(person, requester, counts):
                counts[person, requester] += 1
                await self._repository.notify(question, (person,), [self._notices.make(question, person, "question")])
        self._looks_again = bool(waiting) or changes != self._changes

    async def _find_open(self) -> None:
        changes, has_open = self._changes, await self._repository.has_open()
        if changes == self._changes:  # else one is open that was not there when this was read
            self.has_open = has_open

    def _notify(self, notices: Sequence[Task]) -> Commit[bool]:
        return self._notifications.store([addition_of(notice) for notice in notices])

    def _wake(self, *_: object) -> None:
        self._tasks.wake()


def _count(asked: Sequence[AskedQuestion]) -> Counter[tuple[str, str]]:
    return Counter((person, each.requester) for each in asked for person in each.people)


def _is_reply_to(question: StoredQuestion, person: str, message_id: str) -> bool:
    return message_id[:36] in (question.reference, *derive_asking_ids(question.question_id, person))


def _make_parked(agent: str, queued: QueuedRequest, runs: EarlierRuns, now: datetime) -> ParkedRequest:
    incoming = queued.incoming
    root = incoming.stored_root or ""
    return ParkedRequest(
        queued.inbox_row,
        agent,
        queued.key.bytes,
        incoming.owner,
        "" if root == incoming.owner else root,
        incoming.thread,
        replace(incoming, earlier_runs=runs).to_json(),
        queued.digest,
        incoming.channel_name,
        dump_json(list(incoming.message_ids)),
        to_micros(now),
    )
