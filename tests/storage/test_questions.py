"""Stored questions: what an answer, the deletion of a person and time leave of them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select

from spade_coreason.contracts import QuestionState
from spade_coreason.storage import (
    AgentRepository,
    NewQuestion,
    ParkedRequest,
    PendingRequest,
    StoredQuestion,
    StoredStep,
    TurnRecord,
    schema,
    to_micros,
)
from spade_coreason.storage.backends.database import Database
from tests.support.records import ALICE, BOB, CAROL, NOW, new_conversation, open_repository, receive_request
from tests.support.stored_questions import make_question, receive_parked

TEXT = '{"text": "yes", "person": "bob@localhost"}'


async def park(
    repository: AgentRepository, owner: str, *asked: tuple[str, ...], thread: str | None = None, root: str = ""
) -> tuple[ParkedRequest, list[StoredQuestion]]:
    """Store a request at NOW that has asked several questions: the people of each."""
    parked = await receive_parked(repository, owner, root=root, thread=thread, at=NOW)
    new, steps = [], [StoredStep("other", 1, "hash", '"done"')]
    for number, people in enumerate(asked, 1):
        question = make_question(
            repository,
            parked.id,
            root or owner,
            question_id=str(uuid4()),
            number=number,
            asked_at=NOW,
            timeout=timedelta(days=7),
        )
        new.append(NewQuestion(question, people))
        steps.append(StoredStep("ask", number, "hash", None))
    half = NOW + timedelta(days=3.5)
    due = [repository.due_times.make(one.question.question_id, "", None, "", "{}", NOW, due_at=half) for one in new]
    assert await repository.questions.parked.add(parked, new, due, steps, '["a reply"]')
    return parked, [one.question for one in new]


async def answer(repository: AgentRepository, question: StoredQuestion, person: str = BOB) -> bool:
    """Answer a question, and return True if that lets its request run again."""
    settled = await repository.questions.settle(question.id, QuestionState.ANSWERED, TEXT, person, NOW)
    assert settled is not None
    assert settled.is_first
    return settled.pending is not None


async def load_again(repository: AgentRepository) -> list[PendingRequest]:
    """Return the requests that are in the inbox again. What was said before they were parked may be there too, as a reply."""
    return [pending for pending in await repository.inbox.load_pending() if pending.request is not None]


async def count(database: Database, table: str) -> int:
    query = select(func.count()).select_from(schema.metadata.tables[table])
    return await database.read(lambda connection: int(connection.scalar(query) or 0))


async def test_a_deleted_person_is_not_among_those_asked_and_gave_no_answer(database: Database) -> None:
    repository = await open_repository(database)
    parked, (answered, waiting, of_both) = await park(repository, ALICE, (BOB,), (BOB,), (BOB, CAROL))
    assert not await answer(repository, answered)
    report = await repository.erase_person(BOB)
    assert (report.requests, report.questions) == (0, 3)
    assert sorted(await repository.list_people()) == [ALICE, CAROL]
    left = {one.id: one for one in await repository.questions.load()}
    assert (left[answered.id].state, left[answered.id].decided_by, left[answered.id].answer) == ("answered", "", None)
    assert left[answered.id].text == answered.text  # it is part of the request of another
    # Nobody can answer the second any more: it is over. The third waits for the other person.
    due = {task.key: task.wake_at for task in await repository.due_times.load()}
    assert due == {waiting.question_id: to_micros(NOW), of_both.question_id: to_micros(NOW + timedelta(days=3.5))}
    assert left[waiting.id].expires_at == to_micros(NOW)
    assert left[of_both.id] == of_both
    assert await repository.questions.settle(waiting.id, QuestionState.EXPIRED, "{}", "", NOW)
    assert await answer(repository, of_both, CAROL)
    [pending] = await load_again(repository)
    assert pending.key == parked.key
    assert [step.result for step in await repository.inbox.load_steps(pending.inbox_row)].count(None) == 0


@pytest.mark.parametrize("root", ["", ALICE])
async def test_the_parked_requests_of_a_deleted_person_do_not_run(database: Database, root: str) -> None:
    repository = await open_repository(database)
    _, (first, second) = await park(repository, "agent@localhost" if root else ALICE, (BOB,), (CAROL,), root=root)
    assert not await answer(repository, first)
    report = await repository.erase_person(ALICE)
    assert (report.requests, report.questions) == (1, 2)
    for table in ("parked_requests", "questions", "asked_people", "steps", "tasks"):
        assert await count(database, table) == 0, table
    assert await repository.questions.settle(second.id, QuestionState.ANSWERED, TEXT, CAROL, NOW) is None
    assert await repository.inbox.load_pending() == []
    assert BOB not in await repository.list_people()


async def test_a_request_that_was_deleted_while_it_ran_is_not_parked(database: Database) -> None:
    repository = await open_repository(database)
    parked = await receive_parked(repository, ALICE, at=NOW)
    await repository.erase_person(ALICE)
    question = make_question(repository, parked.id, ALICE)
    assert not await repository.questions.parked.add(parked, [NewQuestion(question, (BOB,))], [], [], None)
    assert await repository.list_people() == []


async def test_forgetting_a_conversation_deletes_the_questions_of_its_requests_only(database: Database) -> None:
    repository = await open_repository(database)
    here, elsewhere = new_conversation(repository, "here"), new_conversation(repository, "elsewhere")
    kept = []
    for record in (here, elsewhere):
        # One of a turn that has ended, which was asked of others and so has no thread; and one that waits.
        parked, (settled,) = await park(repository, ALICE, (BOB,), thread=record.conversation_id)
        assert await answer(repository, settled)
        [pending] = await load_again(repository)
        turn = TurnRecord(str(UUID(bytes=parked.key)), NOW, '{"n": 1}')
        await repository.inbox.finish(pending.inbox_row, record.with_turns(record.status, 100, 1, 1), turn, None)
        _, (waiting,) = await park(repository, ALICE, (BOB,), thread=record.conversation_id)
        kept = [settled.id, waiting.id]
    records = await repository.find_conversations(["here"])
    report = await repository.delete_conversation(records["here"], with_copies=True)
    assert (report.requests, report.questions) == (1, 2)
    assert sorted(one.id for one in await repository.questions.load()) == kept
    assert await count(database, "parked_requests") == 1


async def test_an_answered_question_is_kept_for_seven_days_and_an_open_one_until_it_ends(database: Database) -> None:
    repository = await open_repository(database)
    _, (answered, waiting) = await park(repository, ALICE, (BOB,), (CAROL,))
    await answer(repository, answered)
    await repository.inbox.purge(NOW + timedelta(days=6, hours=23))
    await repository.inbox.purge(NOW + timedelta(days=6, hours=23))
    assert len(await repository.questions.load()) == 2
    await repository.inbox.purge(NOW + timedelta(days=7, hours=1))
    assert [one.id for one in await repository.questions.load()] == [waiting.id]
    assert await count(database, "asked_people") == 1


async def test_the_steps_of_a_request_that_waits_over_a_long_stop_are_there_when_it_runs_again(database: Database) -> None:
    repository = await open_repository(database)
    parked, (question,) = await park(repository, ALICE, (BOB,))
    other = await receive_request(repository, key=b"k" * 16)
    for row in (parked.id, other):
        repository.inbox.close(row)
    await repository.inbox.flush()
    await repository.inbox.purge(NOW + timedelta(days=30))
    assert await count(database, "inbox") == 1
    assert await answer(repository, question)
    [pending] = await load_again(repository)
    steps = {step.name: step.result for step in await repository.inbox.load_steps(pending.inbox_row)}
    assert steps == {"other": '"done"', "ask": TEXT}
    repository.inbox.close(pending.inbox_row)
    await repository.inbox.flush()
    await repository.inbox.purge(NOW + timedelta(days=31))
    assert (await count(database, "inbox"), await count(database, "steps")) == (0, 0)


@pytest.mark.parametrize(
    ("people", "after", "is_first", "state"),
    [
        ([BOB], timedelta(0), True, "answered"),
        ([BOB, CAROL], timedelta(days=6), True, "answered"),
        (None, timedelta(0), True, "answered"),
        ([], timedelta(0), False, "open"),
        ([CAROL], timedelta(0), False, "open"),
        ([BOB], timedelta(days=7), False, "expired"),
        (None, timedelta(days=8), False, "expired"),
    ],
)
async def test_an_answer_counts_of_those_who_were_asked_and_may_answer_now_and_in_time(
    database: Database, people: list[str] | None, after: timedelta, is_first: bool, state: str
) -> None:
    repository = await open_repository(database)
    _, [question] = await park(repository, ALICE, (BOB,))
    settled = await repository.questions.settle(question.id, QuestionState.ANSWERED, TEXT, BOB, NOW + after, people)
    assert settled is not None
    assert (settled.is_first, settled.question.state) == (is_first, state)
    assert (len(await load_again(repository)) == 1) is is_first


async def test_who_is_asked_later_cannot_answer_until_then(database: Database) -> None:
    repository = await open_repository(database)
    parked = await receive_parked(repository, ALICE, at=NOW)
    question = make_question(repository, parked.id, ALICE, asked_at=NOW)
    new = NewQuestion(question, (BOB, CAROL), frozenset([BOB]))
    assert await repository.questions.parked.add(parked, [new], [], [], None)
    counts = await repository.questions.count_open([BOB, CAROL], NOW, waits=True)
    assert dict(counts) == {(BOB, ALICE): 1, (CAROL, ALICE): 1}
    counts = await repository.questions.count_open([BOB, CAROL], NOW, waits=False)
    assert dict(counts) == {(BOB, ALICE): 0, (CAROL, ALICE): 1}
    assert (await repository.load_agent()).has_rights
    asked = await repository.questions.load_open_by_person()
    assert sorted(asked, key=lambda each: each[1]) == [(question, BOB, True), (question, CAROL, False)]
    settle = repository.questions.settle
    settled = await settle(question.id, QuestionState.APPROVED, TEXT, BOB, NOW, [BOB])
    assert settled is not None
    assert not settled.is_first
    assert not await repository.questions.notify(question._replace(code="OLD"), (BOB,), [])
    assert await repository.questions.notify(question, (BOB,), [])
    settled = await settle(question.id, QuestionState.APPROVED, TEXT, BOB, NOW, [BOB])
    assert settled is not None
    assert settled.is_first
