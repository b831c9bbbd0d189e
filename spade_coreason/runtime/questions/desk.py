"""The questions of one agent: it parks the requests that ask, takes answers, and lets the requests run again.

What is decided is one conditional update in the storage: the first answer counts, wherever it is given.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ...contracts import QuestionState
from ...domain.access import AccessPolicy
from ...domain.identifiers import NoticeKind, derive_asking_ids, derive_notice_id
from ...domain.messages import MAY_CHANGE, EarlierRuns, InboundRequest
from ...domain.questions import (
    ApprovalPolicy,
    FoundAnswer,
    decide_plain_answer,
    describe_approval,
    describe_question,
    find_answer,
    fold,
    make_approval_code,
)
from ...domain.texts.approval_mark import MARK, quote_forgeries
from ...domain.texts.durations import format_duration
from ...domain.texts.json_text import dump_json
from ...domain.texts.translation import N_, translate, use_language
from ...storage import (
    WAITING,
    AgentRepository,
    Commit,
    EndedQuestion,
    NewQuestion,
    ParkedRequest,
    PendingRequest,
    Settled,
    StoredQuestion,
    Task,
    addition_of,
    from_micros,
    to_micros,
)
from ..intake.mailbox import Mailbox, QueuedRequest
from ..languages import PersonLanguages
from ..tasks import Next, TaskRunner
from ..turns.output import TurnOutput
from ..turns.step_journal import StepJournal
from ..turns.turn import Turn
from .turn_questions import APPROVAL, AskedQuestion, TurnQuestions

log = logging.getLogger(__name__)

_REPEATED_S = 3.0
"""The time after an answer in which the same text may be the same answer once more."""
_SKEW = 60_000_000
"""The most microseconds by which the clock of a server differs, or by which it is late to see that a stream is cut."""
_LATELY = timedelta(days=7)
"""The time for which those who have asked a person keep places there from others."""
_NEWS: Mapping[NoticeKind, str] = {
    "end": N_("The question {code} was taken back. You need not answer it."),
    "stuck": N_("No one who was asked may decide the approval {id} any more. An operator can ask others with /reassign {id}"),
}


class QuestionDesk:
    """The questions of one agent (`QuestionSink`). A task of theirs is the due time of a question (`TaskHandler`).

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
        runner: TaskRunner,
    ) -> None:
        self.agent = repository.agent
        self._repository = repository.questions
        self._notifications = repository.notifications
        self._due_times = repository.due_times
        self._inbox = repository.inbox
        self._access = access
        self._policy = policy
        self._languages = languages
        self._resume = resume
        self._runner = runner
        self._clock = runner.now
        self._asking: Counter[tuple[str, str]] = Counter()
        """The questions of people that are about to be stored, by person and requester."""
        self._looks_again = False
        """True if the clock has to look who may decide, and who is asked later."""
        self._changes = 0
        """The number of parked requests and of changes of rights since the start."""
        self.has_open = False
        """False if no question is open. Then no message is looked at as an answer."""

    def open(
        self, incoming: InboundRequest, journal: StepJournal, output: TurnOutput, task: asyncio.Task[Any] | None
    ) -> TurnQuestions:
        """Return the questions of a turn. `task` is that of `assist`, None in a command."""
        return TurnQuestions(self, incoming, journal, output, task)

    # Asking

    @property
    def approvals(self) -> ApprovalPolicy:
        """The rules of approvals."""
        return self._policy

    def find_approvers(self, group: str | None, requester: str) -> tuple[str, ...]:
        """Return the people (bare JIDs) who may approve a request of a person. ValueError, with the remedy, without any."""
        if self._policy.refusal:
            raise ValueError(self._policy.refusal)
        group = group or self._policy.approvers
        people = self._policy.find_approvers(group)
        others = tuple(person for person in people if person != requester and self._access.is_allowed(person))
        if not others:
            where = f"access.groups.{group}" if group else "access.operators"
            raise ValueError(f"no one but {requester or 'the agent'} may approve this; add an account with access to {where}")
        return others

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

    def park(self, turn: Turn, started_at: datetime, reply: str | None) -> Commit[bool]:
        """Store the questions of a turn, and move its request out of the inbox, in one transaction.

        The result is False if the request was erased before.
        """
        queued, journal, now = turn.queued, turn.steps, self._clock()
        asked: Sequence[AskedQuestion] = journal.asked
        waiting = [self._make(turn, each, now) for each in asked]
        notices = [
            self._make_notice(new.question, person, "question")
            for new in waiting
            for person in new.people
            if not new.question.reference and person not in new.held
        ]
        notices += [self._make_due_time(new.question, now) for new in waiting]
        begun = [*self._inbox.take_unsaved_steps(queued.inbox_row), *journal.unfinished]
        commit = self._repository.parked.add(self._make_parked(turn, started_at, now), waiting, notices, begun, reply)
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

    def _make_parked(self, turn: Turn, started_at: datetime, now: datetime) -> ParkedRequest:
        queued, incoming = turn.queued, turn.queued.incoming
        earlier, journal = incoming.earlier_runs, turn.steps
        runs = EarlierRuns(
            1 if earlier is None else earlier.runs + 1,
            started_at.isoformat() if earlier is None else earlier.started_at,
            turn.conversation.record.turns if earlier is None else earlier.turns,
            turn.output.part_count,
            journal.uses,
            tuple((each.step.name, each.step.number) for each in journal.asked),
            turn.changes.seen,
            {name: value for name, value in turn.request.metadata.items() if name in MAY_CHANGE},
            turn.counted_tokens,
        )
        root = incoming.stored_root or ""
        return ParkedRequest(
            queued.inbox_row,
            self.agent,
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

    def _make(self, turn: Turn, asked: AskedQuestion, now: datetime) -> NewQuestion:
        incoming, step = turn.queued.incoming, asked.step
        form: dict[str, Any] = {"choices": list(asked.choices)} if asked.choices else {}
        if asked.schema is not None:
            form["schema"] = asked.schema
        micros = to_micros(now)
        question = StoredQuestion(
            self._repository.row_ids.next(),
            self.agent,
            step.key,
            turn.queued.inbox_row,
            asked.kind,
            step.name,
            step.number,
            incoming.thread if asked.is_shown_here else None,
            asked.requester,
            asked.text,
            dump_json(form),
            asked.code,
            str(turn.queued.key) if asked.is_shown_here else "",
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

    # The texts

    def _make_notice(self, question: StoredQuestion, person: str, kind: NoticeKind) -> Task:
        """Return the notification by which a person hears of a question."""
        with use_language(self._languages.of_person(person)):
            text, choices = self._describe(question, kind)
            if kind == "reminder":
                mark = f"{MARK} " if question.kind == APPROVAL else ""
                text = f"{mark}{translate('A reminder: this still waits for you.')}\n\n{text}"
        content = dump_json({"question": text, "choices": choices, "request": question.request})
        root = question.requester if question.requester != person else ""
        notice_id = str(derive_notice_id(question.notice_name, person, kind))
        return self._notifications.make_notification(notice_id, person, question.thread, root, content, self._clock())

    def _describe(self, question: StoredQuestion, kind: NoticeKind) -> tuple[str, list[list[str]]]:
        """Return the text of a question, or the news of it, and its choices: pairs of value and label."""
        if kind in _NEWS:
            return translate(_NEWS[kind], code=question.code, id=question.question_id[:8]), []
        if question.kind != APPROVAL:
            return describe_question(question.text, question.code, question.choices), [
                [f"answer {question.code} {each}", quote_forgeries(each)] for each in question.choices
            ]
        time_left = format_duration((from_micros(question.expires_at) - self._clock()).total_seconds())
        page = self._policy.page
        buttons = [
            [f"/approve {question.code}", translate("Approve")],
            [f"/deny {question.code}", translate("Deny")],
        ]
        return describe_approval(question.text, question.requester, question.code, time_left, page), [] if page else buttons

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
        replied_to = [self._is_reply_to(question, incoming.owner, replied) for question in asked]
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
                None if queued.is_redelivered or incoming.replaces else came_at,
                question.shown_at,
                _SKEW if stamp else 0,
                is_repeated=given > mailbox.answered > (given[0], came_s - _REPEATED_S),
            )
        if verb:
            mailbox.answered = given
        return None if verb is None else (question, found._replace(verb=verb))

    def _is_reply_to(self, question: StoredQuestion, person: str, message_id: str) -> bool:
        return message_id[:36] in (question.reference, *derive_asking_ids(question.question_id, person))

    def settle(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Commit[Settled | None]:
        """Store the answer to a question, unless it has one. If its request waits for no other, it runs again.

        An answer of a person counts if they were asked and may answer now. `decided_by` is no JID for a user of the machine.
        """
        now = self._clock()
        dumped = dump_json({**answer, "at": now.isoformat()})
        is_person = decided_by and " " not in decided_by
        people = None if not is_person else [decided_by] if self.may_answer(question, decided_by) else []
        commit = self._repository.settle(question.id, state, dumped, decided_by, now, people)
        commit.on_stored(self._on_settled)
        return commit

    def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked still has the right to answer."""
        if question.kind != APPROVAL:
            return self._access.is_allowed(person)
        try:
            return person in self.find_approvers(question.approvers, question.requester)
        except ValueError:
            return False

    async def reassign(self, question: StoredQuestion) -> None:
        """Ask the people who may approve a call now, with a new code. Its time goes on. ValueError, with the remedy."""
        people = self.find_approvers(question.approvers, question.requester)
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
            self._make_notice(question, person, "end") for question, people in ended for person in people if person != owner
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
        able = tuple(person for person in people if self.may_answer(question, person))
        notices = [self._make_notice(question, person, "reminder") for person in able]
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
        able = {question for question, person, _ in asked if self.may_answer(question, person)}
        stuck = {question for question, *_ in asked if question.kind == APPROVAL} - able
        news = [
            self._make_notice(question, person, "stuck")
            for question in stuck
            for person in {question.requester, *self._access.operators} - {""}
        ]
        await self._notify([each for each in news if await self._notifications.find(each.key) is None])
        waiting = [(question, person) for question, person, waits in asked if waits]
        people = [person for _, person in waiting]
        counts = await self._repository.count_open(people, self._clock() - _LATELY, waits=False)
        for question, person in waiting:
            requester = question.requester
            if self.may_answer(question, person) and self._policy.has_place(person, requester, counts):
                counts[person, requester] += 1
                await self._repository.notify(question, (person,), [self._make_notice(question, person, "question")])
        self._looks_again = bool(waiting) or changes != self._changes

    async def _find_open(self) -> None:
        changes, has_open = self._changes, await self._repository.has_open()
        if changes == self._changes:  # else one is open that was not there when this was read
            self.has_open = has_open

    def _notify(self, notices: Sequence[Task]) -> Commit[bool]:
        return self._notifications.store([addition_of(notice) for notice in notices])

    def _wake(self, *_: object) -> None:
        self._runner.wake_at(self._clock())


def _count(asked: Sequence[AskedQuestion]) -> Counter[tuple[str, str]]:
    return Counter((person, each.requester) for each in asked for person in each.people)
