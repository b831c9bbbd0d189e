"""A stored request that waits for an approval."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from spade_coreason.contracts import QuestionState
from spade_coreason.domain.channel_kinds import PERSON
from spade_coreason.domain.messages import EarlierRuns, InboundRequest
from spade_coreason.storage import AgentRepository, NewQuestion, ParkedRequest, StoredQuestion, to_micros
from tests.support.records import receive_request

APPROVAL, CODE = "5b2b8c1e-0000-4000-8000-000000000003", "K7QX2M"


async def store_approval(repository: AgentRepository, requester: str, approver: str, call: str = 'pay(["a secret"])') -> None:
    """Store the request of a person, which waits for the approval of another one."""
    now, step = datetime.now(UTC), ("approval: pay", 1)
    runs = EarlierRuns(1, now.isoformat(), 0, 1, {step[0]: 1}, (step,), (), {})
    incoming = InboundRequest(PERSON, f"{requester}/phone", "a", None, {"query": "pay"}, "", owner=requester, earlier_runs=runs)
    key = uuid4().bytes
    row = await receive_request(repository, requester, incoming.to_json(), key)
    parked = ParkedRequest(
        row, repository.agent, key, requester, "", None, incoming.to_json(), b"", "xmpp", "[]", to_micros(now)
    )
    question = StoredQuestion(
        id=repository.questions.next_id(),
        agent=repository.agent,
        question_id=APPROVAL,
        request=row,
        kind="approval",
        step=step[0],
        number=step[1],
        thread=None,
        requester=requester,
        text=call,
        form="{}",
        code=CODE,
        reference="",
        state=QuestionState.OPEN.value,
        answer=None,
        decided_by="",
        created_at=to_micros(now),
        expires_at=to_micros(now + timedelta(days=1)),
        wake_at=to_micros(now + timedelta(hours=12)),
        changed_at=to_micros(now),
    )
    assert await repository.questions.park(parked, [NewQuestion(question, (approver,))], [], [], None)
