"""Stored questions, with the requests that wait for their answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from spade_coreason.contracts import QuestionState
from spade_coreason.domain.messages import EarlierRuns
from spade_coreason.storage import (
    AgentRepository,
    NewQuestion,
    ParkedRequest,
    StoredQuestion,
    StoredStep,
    to_micros,
)
from tests.support.records import receive_request
from tests.support.requests import build_incoming

APPROVAL, CODE = "5b2b8c1e-0000-4000-8000-000000000003", "K7QX2M"


def make_question(
    repository: AgentRepository,
    request: int,
    requester: str,
    *,
    question_id: str = APPROVAL,
    code: str = CODE,
    number: int = 1,
    asked_at: datetime | None = None,
    timeout: timedelta = timedelta(days=1),
) -> StoredQuestion:
    """Return an open question of a request. By default it is an approval."""
    now = asked_at or datetime.now(UTC)
    micros, ends = to_micros(now), to_micros(now + timeout)
    return StoredQuestion(
        id=repository.questions.row_ids.next(),
        agent=repository.agent,
        question_id=question_id,
        request=request,
        kind="approval" if question_id == APPROVAL else "question",
        step="ask",
        number=number,
        thread=None,
        requester=requester,
        text=f"pay({requester})",
        form="{}",
        code=code,
        reference="",
        state=QuestionState.OPEN.value,
        answer=None,
        decided_by="",
        created_at=micros,
        expires_at=ends,
        changed_at=micros,
    )


async def receive_parked(
    repository: AgentRepository, owner: str, *, root: str = "", thread: str | None = None, at: datetime | None = None
) -> ParkedRequest:
    """Store a request in the inbox, and return the row with which it is parked. Its channel is not installed."""
    now, key = at or datetime.now(UTC), uuid4().bytes
    text = json.dumps({"sender": owner, "payload": {"query": f"of {root or owner}"}})
    row, is_new, _ = repository.inbox.receive(key, owner, text, now, channel="not installed")
    assert await is_new
    channel, micros = "not installed", to_micros(now)
    return ParkedRequest(row, repository.agent, key, owner, root, thread, text, b"", channel, "[]", micros)


async def store_question(repository: AgentRepository, requester: str, *people: str) -> StoredQuestion:
    """Store a request of a person that waits until one of these people has answered it."""
    parked = await receive_parked(repository, requester)
    question = make_question(repository, parked.id, requester, question_id=str(uuid4()))
    step = StoredStep("ask", 1, f"hash of {requester}", None)
    assert await repository.questions.parked.add(parked, [NewQuestion(question, people)], [], [step], None)
    return question


async def store_approval(repository: AgentRepository, requester: str, approver: str, call: str = 'pay(["a secret"])') -> None:
    """Store the request of a person, which waits for the approval of another one."""
    now, step = datetime.now(UTC), ("approval: pay", 1)
    runs = EarlierRuns(1, now.isoformat(), 0, 1, {step[0]: 1}, (step,), (), {}, 0)
    incoming = build_incoming("pay", requester, stanza_id="a", thread=None, device="phone", content="", earlier_runs=runs)
    key = uuid4().bytes
    row = await receive_request(repository, requester, incoming.to_json(), key)
    parked = ParkedRequest(
        row, repository.agent, key, requester, "", None, incoming.to_json(), b"", "xmpp", "[]", to_micros(now)
    )
    question = make_question(repository, row, requester)._replace(step=step[0], text=call)
    assert await repository.questions.parked.add(parked, [NewQuestion(question, (approver,))], [], [], None)


async def take_answer(repository: AgentRepository, question: StoredQuestion, person: str) -> dict[str, str | None]:
    """Approve a question, which is the last one of its request, and return the steps with which the request runs again."""
    now = datetime.now(UTC)
    settled = await repository.questions.settle(question.id, QuestionState.APPROVED, '{"approved": true}', person, now)
    assert settled is not None
    assert settled.pending is not None
    steps = await repository.inbox.load_steps(settled.pending.inbox_row)
    return {step.name: step.result for step in steps}
