"""Questions to people, and the requests that wait for their answers.

A request that asks is parked: its row in the inbox is answered, and its copy here waits. The answer is one conditional update.
The last one puts the request into the inbox again, in the same transaction.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Select, case, delete, func, insert, or_, select, update

from ..contracts import QuestionState
from ..contracts.times import utc_now
from ..domain.identifiers import derive_asking_ids, recover_thread
from .backends.database import Database
from .backends.dialect_sql import insert_or_skip
from .backends.group_commit import Commit
from .records import ErasureReport, PendingRequest, StoredConversation, StoredStep, to_micros
from .row_repository import RowRepository
from .schema import (
    ANSWERED,
    CLOSED,
    NOTIFICATION,
    PARKED,
    QUESTION,
    RECEIVED,
    WAITING,
    ParkedRequest,
    StoredQuestion,
    Task,
    asked_people,
    inbox,
    interactions,
    parked_requests,
    questions,
    steps,
    tasks,
)

_OPEN = QuestionState.OPEN.value


class NewQuestion(NamedTuple):
    """A question that is about to be asked, and the people (bare JIDs) who may answer it."""

    question: StoredQuestion
    people: tuple[str, ...]
    held: frozenset[str] = frozenset()
    """The people among them who are asked later, once they have a place for it."""


class Settled(NamedTuple):
    """The outcome of an answer, or of the end of the time."""

    question: StoredQuestion
    """The question as it is now."""
    is_first: bool
    """True if this was the first answer. Otherwise nothing was changed."""
    pending: PendingRequest | None = None
    """The parked request, which is in the inbox again: it was the answer to its last question."""


class EndedQuestion(NamedTuple):
    """A question that was taken back, and the people (bare JIDs) who were asked."""

    question: StoredQuestion
    people: tuple[str, ...]


class ParkedRequestRepository:
    """The requests of one agent that wait for answers, with their questions."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    def add(
        self,
        parked: ParkedRequest,
        asked: Sequence[NewQuestion],
        notices: Sequence[Task],
        begun: Sequence[StoredStep],
        reply: str | None,
    ) -> Commit[bool]:
        """Move a request out of the inbox, and store its questions, in one transaction.

        `notices` are tasks: the notifications by which people are asked, and the due times of the questions. `begun` are the
        steps that may not be stored yet, with those of the questions. `reply` is what the sender gets, as the outbox has it.
        The result is False if the request was erased before.
        """
        index = self._database.inbox_index

        def work(connection: Connection) -> bool:
            answered = (
                update(inbox)
                .where(inbox.c.id == parked.id, inbox.c.state == RECEIVED)
                .values(state=CLOSED if reply is None else ANSWERED, answer=reply, request=None, interaction=PARKED)
            )
            if not connection.execute(answered).rowcount:
                return False
            connection.execute(insert(parked_requests).values(parked._asdict()))
            for new in asked:
                connection.execute(insert(questions).values(new.question._asdict()))
                _insert_people(connection, new)
            known = {
                (row.name, row.number)
                for row in connection.execute(select(steps.c.name, steps.c.number).where(steps.c.request == parked.id))
            }
            for step in begun:
                if (step.name, step.number) not in known:
                    connection.execute(insert(steps).values({"request": parked.id, **step._asdict()}))
            _insert_notices(connection, notices)
            return True

        commit = self._database.run(work)
        # Its steps wait with it: what closes the row of the inbox must not delete them.
        index.rows_with_steps.discard(parked.id)
        commit.on_failed(lambda _: index.rows_with_steps.add(parked.id))  # it runs again later, with its steps
        if reply is None:
            commit.on_stored(lambda _: index.open_rows[self._agent].discard(parked.id))
        return commit

    def end_in_threads(self, now: datetime, owner: str, threads: Sequence[str | None]) -> Commit[list[EndedQuestion]]:
        """Delete the parked requests of an owner (a bare JID) in these threads, and end their questions."""

        def work(connection: Connection) -> list[EndedQuestion]:
            found = connection.execute(select(parked_requests.c.id, parked_requests.c.thread).where(*self._is_of(owner)))
            return end_parked(connection, [row.id for row in found if row.thread in threads], now)

        return self._database.run(work)

    def end_of_messages(
        self, now: datetime, owner: str, message_ids: Sequence[str], author: str | None
    ) -> Commit[list[EndedQuestion]]:
        """Delete the parked requests of an owner (a bare JID) with one of these ids, and end their questions.

        `author` is that of the request (`RoomOrigin.author`); None for any.
        """
        ids = set(message_ids)

        def work(connection: Connection) -> list[EndedQuestion]:
            columns = parked_requests.c.id, parked_requests.c.message_ids, parked_requests.c.request
            rows = [
                row.id
                for row in connection.execute(select(*columns).where(*self._is_of(owner))).all()
                if not ids.isdisjoint(json.loads(row.message_ids))
                and author in (None, json.loads(row.request).get("author", ""))
            ]
            return end_parked(connection, rows, now)

        return self._database.run(work)

    def _is_of(self, owner: str) -> tuple[ColumnElement[bool], ...]:
        return parked_requests.c.agent == self._agent, parked_requests.c.owner == owner

    async def delete_about(self, person: str) -> ErasureReport:
        """Delete the parked requests of a person (a bare JID), and the questions about them, as an erasure does."""
        agent = self._agent
        return ErasureReport(
            (), **await self._database.erase(lambda connection: delete_questions_about(connection, agent, person))
        )

    async def delete_in(self, record: StoredConversation) -> ErasureReport:
        """Delete the parked requests of a conversation, and the questions of its requests, as an erasure does."""
        agent = self._agent
        return ErasureReport(
            (), **await self._database.erase(lambda connection: delete_questions_in(connection, agent, record))
        )

    async def load_of(self, person: str) -> list[ParkedRequest]:
        """Return the parked requests of a person (a bare JID), and those behind which they are, oldest first."""
        query = select(parked_requests).where(_is_parked_of(self._agent, person)).order_by(parked_requests.c.id)
        rows = await self._database.fetch(query)
        return [ParkedRequest._make(row) for row in rows]


class QuestionRepository(RowRepository[StoredQuestion]):
    """The questions of one agent."""

    table, row, ident, person = questions, StoredQuestion, "question_id", "requester"

    def __init__(self, database: Database, agent: str) -> None:
        super().__init__(database, agent)
        self.parked = ParkedRequestRepository(database, agent)

    def settle(
        self,
        question: int,
        state: QuestionState,
        answer: str,
        decided_by: str,
        now: datetime,
        people: Sequence[str] | None = None,
    ) -> Commit[Settled | None]:
        """Store the answer to a question, by its row, unless it has one or its time is over. None if there is no such question.

        `answer` is JSON, which becomes the result of its step. If it was the last open question of its request, the request is
        in the inbox again, with its key and its steps. `people` may answer now (bare JIDs), and one of them must have been
        asked; None for all. A question whose time is over is returned as expired, also before the clock has looked at it.
        """
        database = self._database
        new_row, micros = database.row_ids.next(), to_micros(now)

        def work(connection: Connection) -> Settled | None:
            values = {"state": state.value, "answer": answer, "decided_by": decided_by, "changed_at": micros}
            is_this, is_in_time = questions.c.id == question, questions.c.expires_at > micros
            may_settle = (questions.c.state == _OPEN) & (is_in_time | (state is QuestionState.EXPIRED))
            if people is not None:
                is_asked = asked_people.c.person.in_(people), asked_people.c.waits.is_not(True)
                may_settle &= questions.c.id.in_(select(asked_people.c.question).where(*is_asked))
            is_first = bool(connection.execute(update(questions).where(is_this, may_settle).values(values)).rowcount)
            stored = self.get(connection, is_this)
            if stored is None:
                return None
            if not is_first:
                is_late = stored.is_open and stored.expires_at <= micros
                return Settled(stored._replace(state=QuestionState.EXPIRED.value) if is_late else stored, False)
            _withdraw_notices(connection, stored)
            connection.execute(
                update(steps)
                .where(steps.c.request == stored.request, steps.c.name == stored.step, steps.c.number == stored.number)
                .values(result=answer)
            )
            still_open = (
                select(questions.c.id).where(questions.c.request == stored.request, questions.c.state == _OPEN).limit(1)
            )
            if connection.scalar(still_open) is not None:
                return Settled(stored, True)
            return Settled(stored, True, _put_back(connection, stored.request, new_row, now))

        def add_to_index(settled: Settled | None) -> None:
            if settled is not None and (pending := settled.pending) is not None:
                database.inbox_index.add_open(self._agent, pending.key, pending.inbox_row)
                database.inbox_index.rows_with_steps.add(pending.inbox_row)

        commit = database.run(work)
        commit.on_stored(add_to_index)
        return commit

    def notify(self, question: StoredQuestion, people: Sequence[str], notices: Sequence[Task]) -> Commit[bool]:
        """Store that people are asked or reminded, with the notifications that do so.

        False, and nothing is stored, if it is not open any more, or has another code.
        """

        def work(connection: Connection) -> bool:
            is_open = self.get(connection, *_is_unchanged(question)) is not None
            if is_open:
                is_theirs = asked_people.c.question == question.id, asked_people.c.person.in_(people)
                connection.execute(update(asked_people).where(*is_theirs).values(waits=False))
                _insert_notices(connection, notices)
            return is_open

        return self._database.run(work)

    def mark_shown(self, request: int, *, in_reply: bool = True) -> None:
        """Store that the question of a request, by its row, is handed to the stream now, unless that is stored.

        It is the one in the reply to the request, or the one in notifications.
        """
        is_this = questions.c.request == request, (questions.c.reference != "").is_(in_reply), questions.c.shown_at.is_(None)
        change = update(questions).where(*is_this).values(shown_at=to_micros(utc_now()))
        self._database.run(lambda connection: connection.execute(change))

    async def reassign(self, question: StoredQuestion, code: str, people: tuple[str, ...], now: datetime) -> bool:
        """Give an open question another code, and other people, who are asked later. False if it has changed, or is over."""

        def work(connection: Connection) -> bool:
            is_this = *_is_unchanged(question), questions.c.expires_at > to_micros(now)
            if not connection.execute(update(questions).where(*is_this).values(code=code)).rowcount:
                return False
            _withdraw_notices(connection, question, ends=False)
            connection.execute(delete(asked_people).where(asked_people.c.question == question.id))
            _insert_people(connection, NewQuestion(question, people, frozenset(people)))
            return True

        return await self._database.run(work)

    async def load_open_by_person(self) -> list[tuple[StoredQuestion, str, bool]]:
        """Return the open approvals in their order, once for each person, and true if that person is asked later.

        Open questions that a person is asked later are among them.
        """
        query = (
            select(questions, asked_people.c.person, asked_people.c.waits)
            .join(asked_people, asked_people.c.question == questions.c.id)
            .where(questions.c.agent == self._agent, questions.c.state == _OPEN, asked_people.c.waits.is_not(None))
            .order_by(questions.c.id)
        )
        rows = await self._database.fetch(query)
        return [(StoredQuestion._make(row[:-2]), *row[-2:]) for row in rows]

    async def find_by_code(self, code: str) -> list[StoredQuestion]:
        """Return the questions with a code, the newest first. Some may be answered."""
        return await self.load(questions.c.code == code, order=questions.c.id.desc())

    async def load_asked(
        self, person: str, *, only_open: bool = True, references: Sequence[str] | None = None
    ) -> list[StoredQuestion]:
        """Return the questions that a person (a bare JID) was asked, oldest first. `references` are the only ones, if given."""
        conditions: list[ColumnElement[bool]] = [
            questions.c.id.in_(_asked(self._agent, person).where(asked_people.c.waits.is_not(True)))
        ]
        conditions += [questions.c.state == _OPEN] if only_open else []
        conditions += [] if references is None else [questions.c.reference.in_(references)]
        return await self.load(*conditions)

    async def waits_for_others(self, key: bytes, person: str) -> bool:
        """Return True if the request with a key waits for the answer of another than a person (a bare JID)."""
        parked = select(parked_requests.c.id).where(parked_requests.c.agent == self._agent, parked_requests.c.key == key)
        is_open = questions.c.request.in_(parked), questions.c.state == _OPEN
        return bool(await self.load(*is_open, questions.c.id.not_in(_asked(self._agent, person)), limit=1))

    async def count_open(self, people: Sequence[str], since: datetime, *, waits: bool) -> Counter[tuple[str, str]]:
        """Count the open questions to these people (bare JIDs), by person and requester.

        Without `waits`, those that they are asked later do not count. Requesters who have asked `since` are there too, with 0.
        """
        is_open = questions.c.state == _OPEN
        is_counted = is_open if waits else is_open & asked_people.c.waits.is_not(True)
        query = (
            select(asked_people.c.person, questions.c.requester, func.count(case((is_counted, 1))))
            .join(questions, questions.c.id == asked_people.c.question)
            .where(asked_people.c.agent == self._agent, asked_people.c.person.in_(people))
            .where(is_open | (questions.c.created_at > to_micros(since)))
            .group_by(asked_people.c.person, questions.c.requester)
        )
        rows = await self._database.fetch(query)
        return Counter({(person, requester): count for person, requester, count in rows})

    async def load_people(self, question_ids: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
        """Return the people (bare JIDs) who were asked, by the row ids of their questions, which may be of any agent."""
        return await self._database.read(lambda connection: _load_people(connection, question_ids))

    async def has_open(self) -> bool:
        """Return True if a question is open."""
        return bool(await self.load(state=_OPEN, limit=1))

    async def load_about(self, person: str) -> list[StoredQuestion]:
        """Return all questions that a person (a bare JID) was asked, and those of their requests, oldest first."""
        return await self.load(_is_about(self._agent, person))


def _put_back(connection: Connection, row: int, new_row: int, now: datetime) -> PendingRequest | None:
    """Put a parked request into the inbox again, in a transaction of the writer. None if it was deleted."""
    found = connection.execute(select(parked_requests).where(parked_requests.c.id == row)).one_or_none()
    if found is None:
        return None
    parked = ParkedRequest._make(found)
    # A message is compared with later ones as it came, and a program's request counts from its answer on.
    came = connection.execute(select(inbox.c.evidence, inbox.c.received_at).where(inbox.c.id == row)).one_or_none()
    is_message = came is not None and not parked.digest
    values = {
        "id": new_row,
        "agent": parked.agent,
        "key": parked.key,
        "sender": parked.owner,
        "received_at": came.received_at if came is not None and is_message else to_micros(now),
        "state": RECEIVED,
        "request": parked.request,
        "digest": parked.digest,
        "evidence": came.evidence if came is not None and is_message else "",
        "channel": parked.channel,
    }
    connection.execute(insert(inbox).values(values))
    connection.execute(update(steps).where(steps.c.request == row).values(request=new_row))
    connection.execute(delete(parked_requests).where(parked_requests.c.id == row))
    return PendingRequest(new_row, parked.key, parked.request, None, parked.digest, parked.channel)


def _withdraw_notices(connection: Connection, question: StoredQuestion, *, ends: bool = True) -> None:
    """Delete the notifications of a question that are not sent yet, and its due time if it `ends`."""
    people = connection.scalars(select(asked_people.c.person).where(asked_people.c.question == question.id)).all()
    ids = [ident for person in people for ident in derive_asking_ids(question.notice_name, person)]
    is_notice = (tasks.c.kind == NOTIFICATION) & (tasks.c.state == WAITING) & tasks.c.key.in_(ids)
    is_due_time = (tasks.c.kind == QUESTION) & (tasks.c.key == question.question_id)
    connection.execute(delete(tasks).where(tasks.c.agent == question.agent, is_notice | is_due_time if ends else is_notice))


def _insert_people(connection: Connection, new: NewQuestion) -> None:
    question, waits = new.question, None if new.question.kind == "question" else False
    rows = [
        {"question": question.id, "agent": question.agent, "person": person, "waits": person in new.held or waits}
        for person in new.people
    ]
    connection.execute(insert(asked_people), rows)


def _insert_notices(connection: Connection, notices: Sequence[Task]) -> None:
    if notices:
        rows = [notice._asdict() for notice in notices]
        connection.execute(insert_or_skip(tasks), rows)  # a question may be looked at again


def _load_people(connection: Connection, question_ids: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    is_asked = asked_people.c.question.in_(list(question_ids)), asked_people.c.waits.is_not(True)
    query = select(asked_people.c.question, asked_people.c.person).where(*is_asked).order_by(asked_people.c.person)
    found = defaultdict[int, tuple[str, ...]](tuple)
    for question, person in connection.execute(query):
        found[question] += (person,)
    return found


def _is_unchanged(question: StoredQuestion) -> tuple[ColumnElement[bool], ...]:
    return questions.c.id == question.id, questions.c.state == _OPEN, questions.c.code == question.code


def end_parked(connection: Connection, rows: Sequence[int], now: datetime) -> list[EndedQuestion]:
    """Delete parked requests with their steps, and end their open questions, in a transaction of the writer."""
    ended: list[EndedQuestion] = []
    for row in rows:
        is_open = questions.c.request == row, questions.c.state == _OPEN
        for found in connection.execute(select(questions).where(*is_open)).all():
            ended.append(EndedQuestion(StoredQuestion._make(found), _load_people(connection, [found.id])[found.id]))
            _withdraw_notices(connection, ended[-1].question)
        values = {"state": QuestionState.ENDED.value, "changed_at": to_micros(now)}
        connection.execute(update(questions).where(*is_open).values(values))
        connection.execute(delete(steps).where(steps.c.request == row))
        connection.execute(delete(parked_requests).where(parked_requests.c.id == row))
    return ended


def delete_questions_about(connection: Connection, agent: str, person: str) -> Counter[str]:
    """Delete the requests of a person (a bare JID) that are parked, all questions of their requests, and that they were asked.

    A question of others loses the answer of the person. If the person was the only one, it ends at the next look of the clock.
    The result of a step stays in the request of another that goes on with it. Run it in a transaction of the writer. Return the
    numbers of `requests` and of `questions`.
    """
    is_own = questions.c.agent == agent
    rows = connection.scalars(select(parked_requests.c.id).where(_is_parked_of(agent, person))).all()
    count = _delete_parked(connection, rows)
    count += connection.execute(delete(questions).where(is_own, questions.c.requester == person)).rowcount
    connection.execute(update(questions).where(is_own, questions.c.decided_by == person).values(decided_by="", answer=None))
    others = asked_people.alias()
    has_others = select(others.c.question).where(others.c.question == questions.c.id, others.c.person != person).exists()
    ends = is_own, questions.c.id.in_(_asked(agent, person)), questions.c.state == _OPEN, ~has_others
    of_them = tasks.c.agent == agent, tasks.c.kind == QUESTION, tasks.c.key.in_(select(questions.c.question_id).where(*ends))
    connection.execute(update(tasks).where(*of_them).values(wake_at=tasks.c.created_at))
    connection.execute(update(questions).where(*ends).values(expires_at=questions.c.created_at))
    marks = delete(asked_people).where(asked_people.c.agent == agent, asked_people.c.person == person)
    return Counter(requests=len(rows), questions=count + connection.execute(marks).rowcount)


def delete_questions_in(connection: Connection, agent: str, record: StoredConversation) -> Counter[str]:
    """Delete the parked requests of a conversation, and the questions of its requests, in a transaction of the writer.

    Call it before its turns are deleted: these tell which requests were its own.
    """
    owner, thread = record.owner, recover_thread(record.conversation_id, record.owner, agent)
    is_there = parked_requests.c.agent == agent, parked_requests.c.owner == owner, parked_requests.c.thread == thread
    rows = connection.scalars(select(parked_requests.c.id).where(*is_there)).all()
    count = _delete_parked(connection, rows)
    of_owner = (
        select(questions.c.id, inbox.c.key)
        .join(inbox, inbox.c.id == questions.c.request)
        .where(questions.c.agent == agent, inbox.c.sender == owner)
    )
    turns = {row.id: str(UUID(bytes=row.key)) for row in connection.execute(of_owner)}
    is_turn = interactions.c.conversation == record.id, interactions.c.interaction_id.in_(set(turns.values()))
    found = set(connection.scalars(select(interactions.c.interaction_id).where(*is_turn))) if turns else set()
    settled = [row for row, turn in turns.items() if turn in found]
    if settled:
        count += connection.execute(delete(questions).where(questions.c.id.in_(settled))).rowcount
    return Counter(requests=len(rows), questions=count)


def _delete_parked(connection: Connection, rows: Sequence[int]) -> int:
    """Delete parked requests, with their steps and what was said before they were parked. Return the number of questions."""
    count = 0
    for row in rows:
        of_row = select(questions).where(questions.c.request == row)
        for found in connection.execute(of_row).all():
            _withdraw_notices(connection, StoredQuestion._make(found))
        connection.execute(delete(steps).where(steps.c.request == row))
        connection.execute(update(inbox).where(inbox.c.id == row).values(state=CLOSED, request=None, answer=None))
        count += connection.execute(delete(questions).where(questions.c.request == row)).rowcount
        connection.execute(delete(parked_requests).where(parked_requests.c.id == row))
    return count


def _asked(agent: str, person: str) -> Select[tuple[int]]:
    return select(asked_people.c.question).where(asked_people.c.agent == agent, asked_people.c.person == person)


def _is_parked_of(agent: str, person: str) -> ColumnElement[bool]:
    is_theirs = or_(parked_requests.c.owner == person, parked_requests.c.root == person)
    return (parked_requests.c.agent == agent) & is_theirs


def _is_about(agent: str, person: str) -> ColumnElement[bool]:
    parked = select(parked_requests.c.id).where(_is_parked_of(agent, person))
    return or_(questions.c.requester == person, questions.c.id.in_(_asked(agent, person)), questions.c.request.in_(parked))
