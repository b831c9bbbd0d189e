"""The operations on questions to people: answers, and approvals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NoReturn, TypeAlias

from pydantic import Field

from ...contracts import AuditEntry, QuestionState
from ...contracts.base import utc_now
from ...contracts.json_schema import find_problems
from ...domain.questions import fold, match_choice, parse_value
from ...domain.texts.json_text import dump_json
from ...exceptions import ConfigError, ServerError
from ...storage import AgentRepository, Settled, StoredQuestion, from_micros
from ..definition import OPERATORS, Arguments, Call, CallerKind, operation
from ..host import OperationHost, stored_agents
from .notifications import MAX_LISTED, MIN_ID_CHARACTERS

THE_PERSON = frozenset({CallerKind.PERSON})
"""The person who was asked. No other answers for them, not even an operator."""
APPROVAL = "approval"
MAX_CODE_CHARACTERS, MAX_REASON_CHARACTERS, MAX_ANSWER_CHARACTERS = 40, 1000, 65_536

AnswerOutcome: TypeAlias = Literal["taken", "too late", "over", "taken back", "no right", "unknown", "unsuitable"]
"""The outcome of an answer. "too late": another was first. "over": the time was. "no right": the person may not answer any
more. "unknown": the person was not asked this. "unsuitable": it does not fit the question."""
_OUTCOMES: Mapping[str, AnswerOutcome] = {
    QuestionState.OPEN: "no right",
    QuestionState.ANSWERED: "too late",
    QuestionState.APPROVED: "too late",
    QuestionState.DENIED: "too late",
    QuestionState.EXPIRED: "over",
    QuestionState.ENDED: "taken back",
}
_ACTIONS: Mapping[QuestionState, str] = {
    QuestionState.ANSWERED: "questions.answer",
    QuestionState.APPROVED: "approvals.approve",
    QuestionState.DENIED: "approvals.deny",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of an answer. `decided_by` is who was first, if another was; `problem` says what does not fit."""

    outcome: AnswerOutcome
    decided_by: str = ""
    problem: str = ""
    is_own: bool = False
    """True if the person was asked in the reply to their own request, which goes on there."""


@dataclass(frozen=True, slots=True)
class ListedApproval:
    """An approval that an agent has asked for, without its code."""

    id: str
    agent: str
    requester: str
    """The bare JID of the person behind the request; "" if it is the agent itself."""
    call: str
    """The call: its name and all its arguments."""
    people: tuple[str, ...]
    """The bare JIDs of those who were asked."""
    state: str
    decided_by: str
    created_at: datetime
    expires_at: datetime


class Approvals(Arguments):
    """The approvals of agents, all without a name; in one state, open ones by default."""

    agent: str | None = None
    state: QuestionState | None = QuestionState.OPEN
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100


@operation("approvals.list", OPERATORS)
async def list_approvals(call: Call, arguments: Approvals) -> list[ListedApproval]:
    """List the approvals that agents wait for, the newest first."""
    found = [
        await _summary(call.host, stored)
        for agent in await stored_agents(call.host, arguments.agent)
        for stored in await call.host.repository(agent).questions.load_all(
            kind=APPROVAL, state=arguments.state, limit=arguments.limit
        )
    ]
    found.sort(key=lambda approval: approval.created_at, reverse=True)
    return found[: arguments.limit]


class OneApproval(Arguments):
    """An approval, by its id or the first characters of it, 8 at least."""

    id: Annotated[str, Field(min_length=MIN_ID_CHARACTERS, max_length=36)]
    agent: str | None = None


@operation("approvals.show", OPERATORS)
async def show_approval(call: Call, arguments: OneApproval) -> ListedApproval:
    """Return one approval, whatever its state."""
    return await _summary(call.host, await _find_approval(call, arguments))


class OfApproval(OneApproval):
    """An approval, with a reason for the requester."""

    reason: Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)] = ""


@operation("approvals.approve", is_change=True)
async def approve_call(call: Call, arguments: OfApproval) -> ListedApproval:
    """Approve a call in place of those who were asked. It runs then."""
    return await _decide(call, arguments, QuestionState.APPROVED)


@operation("approvals.deny", is_change=True)
async def deny_call(call: Call, arguments: OfApproval) -> ListedApproval:
    """Deny a call in place of those who were asked. It does not run."""
    return await _decide(call, arguments, QuestionState.DENIED)


@operation("approvals.reassign", OPERATORS, is_change=True, needs_platform=True)
async def reassign_approval(call: Call, arguments: OneApproval) -> ListedApproval:
    """Ask the people who may approve a call now, with a new code. The earlier code is worth nothing."""
    stored = await _find_approval(call, arguments)
    running = await call.host.running_agent(stored.agent, changes=True)
    if running is None:
        raise ServerError(f"{stored.agent} does not run here; add it to the configuration and start it, then ask again")
    await call.record(stored.agent, "approvals.reassign", f"approval {stored.question_id}", person=stored.requester)
    try:
        await running.reassign_question(stored)
    except ValueError as error:
        raise ConfigError("id", str(error)) from error
    return await _summary(call.host, stored)


async def _find_approval(call: Call, arguments: OneApproval) -> StoredQuestion:
    found = [
        stored
        for agent in await stored_agents(call.host, arguments.agent)
        for stored in await call.host.repository(agent).questions.find_by_prefix(arguments.id.lower())
        if stored.kind == APPROVAL
    ]
    if len(found) != 1:
        _raise_missing(arguments.id, has_many=bool(found))
    return found[0]


async def _decide(call: Call, arguments: OfApproval, state: QuestionState) -> ListedApproval:
    stored = await _find_approval(call, arguments)
    settled: Settled | None = Settled(stored, False)
    if stored.is_open:
        await call.record(stored.agent, _ACTIONS[state], f"approval {stored.question_id}", person=stored.requester)
        settled = await _settle(call, stored, state, _make_decision(call, state, arguments.reason))
    if settled is None:
        _raise_missing(arguments.id)
    if not settled.is_first:
        by = f" by {settled.question.decided_by}" if settled.question.decided_by else ""
        raise ConfigError("id", f"it is {settled.question.state} already{by}; nothing was changed")
    return await _summary(call.host, settled.question)


def _raise_missing(ident: str, *, has_many: bool = False) -> NoReturn:
    problem = "several approvals begin with" if has_many else "there is no approval"
    raise ConfigError("id", f"{problem} {ident}; `approvals list --state any` shows them")


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """An open question that a person was asked, or an approval."""

    kind: str
    """The kind: "question" or "approval"."""
    code: str
    text: str
    """The question, or the call with all its arguments."""
    choices: tuple[str, ...]
    schema: dict[str, Any] | None
    """The JSON Schema of the answer, if it has one."""
    requester: str
    """The bare JID of the person behind the request; "" if it is the agent itself."""


class OwnQuestions(Arguments):
    """The questions that a person (a bare JID) was asked by an agent."""

    agent: str
    person: str


@operation("questions.list", THE_PERSON)
async def list_questions(call: Call, arguments: OwnQuestions) -> list[OwnQuestion]:
    """List the open questions that an agent has asked the person, oldest first."""
    return [
        OwnQuestion(stored.kind, stored.code, stored.text, tuple(stored.choices), stored.schema, stored.requester)
        for stored in await call.host.repository(arguments.agent).questions.load_asked(arguments.person)
    ]


class OwnCode(OwnQuestions):
    """The code of a question that the person was asked."""

    code: Annotated[str, Field(max_length=MAX_CODE_CHARACTERS)]


class OwnAnswer(OwnCode):
    """The answer of a person (a bare JID) to the question with a code."""

    text: Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)]


@operation("questions.answer", THE_PERSON, is_change=True)
async def answer_question(call: Call, arguments: OwnAnswer) -> Answered:
    """Answer a question that an agent has asked the person."""
    stored = await _find_own(call, arguments, QuestionState.ANSWERED)
    if isinstance(stored, Answered):
        return stored
    text, value = arguments.text.strip(), None
    if stored.choices:
        choice = match_choice(text, stored.choices)
        if choice is None:
            return Answered("unsuitable", problem=" / ".join(stored.choices))
        text = choice
    if (schema := stored.schema) is not None:
        value = parse_value(text, schema)
        [problem] = await find_problems([value], schema, "the answer")
        if problem is not None:
            return Answered("unsuitable", problem=problem)
    answer = {"text": text, "person": arguments.person, "value": value}
    return await _settle_own(call, arguments, stored, QuestionState.ANSWERED, answer)


class OwnDecision(OwnCode):
    """The decision of a person (a bare JID) about the approval with a code, with a reason for the requester."""

    is_approved: bool
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)] = ""


@operation("approvals.decide", THE_PERSON, is_change=True)
async def decide_approval(call: Call, arguments: OwnDecision) -> Answered:
    """Approve or deny a call about which the person was asked."""
    state = QuestionState.APPROVED if arguments.is_approved else QuestionState.DENIED
    stored = await _find_own(call, arguments, state)
    if isinstance(stored, Answered):
        return stored
    return await _settle_own(call, arguments, stored, state, _make_decision(call, state, arguments.reason))


async def _find_own(call: Call, own: OwnCode, state: QuestionState) -> StoredQuestion | Answered:
    """Return the open question with a code that a person was asked; else the outcome, which is in the trail as a failure.

    They are not told if there is such a question that they were not asked. The newest one counts, an open one first.
    """
    kind = "question" if state is QuestionState.ANSWERED else APPROVAL
    repository = call.host.repository(own.agent).questions
    asked = {question.id for question in await repository.load_asked(own.person, only_open=False)}
    found = [
        each
        for each in await repository.find_by_code(fold(own.code).upper())
        if each.kind == kind and each.id in asked and (kind != APPROVAL or each.requester != own.person)
    ]
    stored = max(found, key=lambda each: each.is_open, default=None)
    if stored is not None and stored.is_open:
        return stored
    await _record_failure(call, own, state, f"{kind} {stored.question_id}" if stored else f"code {own.code.strip()}")
    return _describe(Settled(stored, False) if stored else None, own.person)


async def _settle_own(
    call: Call, own: OwnCode, stored: StoredQuestion, state: QuestionState, answer: dict[str, Any]
) -> Answered:
    resource, running = f"{stored.kind} {stored.question_id}", await call.host.running_agent(own.agent)
    if running is None or await running.may_answer(stored, own.person):  # else the trail has the failure alone
        await call.record(own.agent, _ACTIONS[state], resource, person=own.person)
    settled = await _settle(call, stored, state, answer)
    if settled is None or not settled.is_first:  # another answer was faster
        await _record_failure(call, own, state, resource)
    return _describe(settled, own.person)


async def _record_failure(call: Call, own: OwnCode, state: QuestionState, resource: str) -> None:
    entry = AuditEntry(actor=call.actor.name, action=_ACTIONS[state], resource=resource, outcome="failure")
    await call.host.repository(own.agent).audit_trail.append(entry, own.person)


def _make_decision(call: Call, state: QuestionState, reason: str) -> dict[str, Any]:
    return {"approved": state is QuestionState.APPROVED, "by": call.actor.name, "reason": reason.strip()}


async def _settle(call: Call, stored: StoredQuestion, state: QuestionState, answer: dict[str, Any]) -> Settled | None:
    running = await call.host.running_agent(stored.agent, changes=True)
    if running is not None:
        return await running.settle_question(stored, state, answer, call.actor.name)
    return await settle_stored(call.host.repository(stored.agent), stored, state, answer, call.actor.name)


async def settle_stored(
    repository: AgentRepository, stored: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
) -> Settled | None:
    """Settle a question in the storage alone. Its request runs at the next start."""
    now = utc_now()
    return await repository.questions.settle(stored.id, state, dump_json({**answer, "at": now.isoformat()}), decided_by, now)


def _describe(settled: Settled | None, person: str) -> Answered:
    if settled is None:
        return Answered("unknown")
    if not settled.is_first:
        return Answered(_OUTCOMES[settled.question.state], settled.question.decided_by)
    return Answered("taken", person, is_own=bool(settled.question.reference))


async def _summary(host: OperationHost, stored: StoredQuestion) -> ListedApproval:
    return ListedApproval(
        stored.question_id,
        stored.agent,
        stored.requester,
        stored.text,
        await host.repository(stored.agent).questions.load_people(stored.id),
        stored.state,
        stored.decided_by,
        from_micros(stored.created_at),
        from_micros(stored.expires_at),
    )
