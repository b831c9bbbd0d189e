"""List the calls that agents want approved; show, approve or deny one.

Approvers decide in their chats, by a code that only they get. These commands decide in their place. `approve`, `deny` and
`reassign` write an entry to the audit trail of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import MaxLen

from ... import contracts, storage
from ...domain.forms.fields import Field
from ...domain.texts.translation import N_
from ...exceptions import ConfigError
from ..definition import OPERATORS, About, Arguments, Call, CallerKind, operation
from ..host import OperationHost, require_agent
from ..lists import OfId, Page, find_row, load_newest, raise_missing
from ..view import Slash, TableView, View, format_time, short_id

THE_PERSON = frozenset({CallerKind.PERSON})
"""The person who was asked. No other answers for them, not even an operator."""
APPROVAL = "approval"
MAX_CODE_CHARACTERS, MAX_REASON_CHARACTERS, MAX_ANSWER_CHARACTERS = 40, 1000, 65_536

AnswerOutcome: TypeAlias = Literal["taken", "too late", "over", "taken back", "no right", "unknown", "unsuitable"]
"""The outcome of an answer. "too late": another was first. "over": the time was. "no right": the person may not answer any
more. "unknown": the person was not asked this. "unsuitable": it does not fit the question."""
_OUTCOMES: Mapping[str, AnswerOutcome] = {
    "open": "no right",
    "answered": "too late",
    "approved": "too late",
    "denied": "too late",
    "expired": "over",
    "ended": "taken back",
}
_ACTIONS: Mapping[str, str] = {
    "answered": "questions.answer",
    "approved": "approvals.approve",
    "denied": "approvals.deny",
}


ApprovalState: TypeAlias = Literal["open", "approved", "denied", "expired", "ended"]


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


class ListApprovals(Page):
    """The approvals of agents for requests of a person, if they are given, in one state: by default the open ones."""

    state: Annotated[ApprovalState | None, About("Only those in this state.")] = "open"


def _describe_call(done: str, one: ListedApproval) -> list[str]:
    """Return what was done for whom, and below it the call, each name and each value on a line of its own."""
    return [f"{done} for {one.requester or one.agent}:", *(f"  {line}" for line in one.call.splitlines())]


def _describe_approval(one: ListedApproval) -> list[str]:
    state = f"until {format_time(one.expires_at)}" if one.state == "open" else f"{one.state} {one.decided_by}"
    return _describe_call(f"{short_id(one)} {state.strip()}, {one.agent} asked {', '.join(one.people)}", one)


@operation(
    "approvals.list",
    OPERATORS,
    view=View(
        examples=["approvals list --agent refunds --state any"],
        table=TableView("approvals", cursor="id"),
        done=_describe_approval,
        links=["approvals.show", "approvals.approve", "approvals.deny", "approvals.reassign"],
    ),
)
async def list_approvals(call: Call, arguments: ListApprovals) -> list[ListedApproval]:
    """List approvals, the newest first, with the whole calls.

    One that is decided is listed for seven days. "ended" means that its request was taken back.
    """
    found = await load_newest(call.host, storage.QuestionRepository, APPROVAL, arguments, kind=APPROVAL, state=arguments.state)
    return await _summarise_all(call.host, found)


@operation(
    "approvals.show",
    OPERATORS,
    view=View(examples=["approvals show 1f0c9a77"], given=["id"], done=_describe_approval),
)
async def show_approval(call: Call, arguments: OfId) -> ListedApproval:
    """Show one approval with its whole call, each name and each value on a line of its own.

    ID is from `approvals list`, which has those that are decided with `--state any`.
    """
    return await _summarise(call.host, await _find_approval(call, arguments))


class OfApproval(OfId):
    """An approval, with a reason for the requester."""

    reason: Annotated[str, MaxLen(MAX_REASON_CHARACTERS), About("A note for the requester.")] = ""


@operation(
    "approvals.approve",
    is_change=True,
    view=View(
        examples=["approvals approve 1f0c9a77"],
        given=["id"],
        done=lambda one: _describe_call("Approved", one),
        offered=lambda row: row.state == "open",
    ),
)
async def approve_call(call: Call, arguments: OfApproval) -> ListedApproval:
    """Approve a call in place of those who were asked. It runs now if the platform runs, else at its next start.

    ID is from `approvals list`.
    """
    return await _decide(call, arguments, contracts.QuestionState.APPROVED)


@operation(
    "approvals.deny",
    is_change=True,
    view=View(
        examples=['approvals deny 1f0c9a77 --reason "too late"'],
        given=["id"],
        done=lambda one: _describe_call("Denied", one),
        offered=lambda row: row.state == "open",
    ),
)
async def deny_call(call: Call, arguments: OfApproval) -> ListedApproval:
    """Deny a call in place of those who were asked. It does not run.

    ID is from `approvals list`.
    """
    return await _decide(call, arguments, contracts.QuestionState.DENIED)


@operation(
    "approvals.reassign",
    OPERATORS,
    is_change=True,
    needs_platform=True,
    view=View(
        examples=["approvals reassign 1f0c9a77"],
        given=["id"],
        done=lambda one: _describe_call("Asked anew", one),
        slash=Slash(
            name="reassign",
            description=N_("ask those who may decide an approval now"),
            done=N_("I ask those who may decide it now."),
            fields=(Field("id", N_("the id of the approval"), is_required=True),),
            usage="ID",
        ),
        offered=lambda row: row.state == "open",
    ),
)
async def reassign_approval(call: Call, arguments: OfId) -> ListedApproval:
    """Ask those who may approve a call now, with a new code. The earlier code is worth nothing.

    Use it when no one of those who were asked may decide any more. The end of the time stays.

    ID is from `approvals list`.
    """
    stored = await _find_approval(call, arguments)
    running = await require_agent(call.host, stored.agent, "ask again")
    await call.record(stored.agent, "approvals.reassign", f"approval {stored.question_id}", person=stored.requester)
    try:
        await running.questions.reassign(stored)
    except ValueError as error:
        raise ConfigError("id", str(error)) from error
    return await _summarise(call.host, stored)


async def _find_approval(call: Call, arguments: OfId) -> storage.StoredQuestion:
    return await find_row(call.host, storage.QuestionRepository, arguments.agent, arguments.id, APPROVAL, kind=APPROVAL)


async def _decide(call: Call, arguments: OfApproval, state: contracts.QuestionState) -> ListedApproval:
    stored = await _find_approval(call, arguments)
    settled: storage.Settled | None = storage.Settled(stored, False)
    if stored.is_open:
        await call.record(stored.agent, _ACTIONS[state], f"approval {stored.question_id}", person=stored.requester)
        settled = await _settle(call, stored, state, _make_decision(call, state, arguments.reason))
    if settled is None:
        raise_missing(arguments.id, APPROVAL)
    if not settled.is_first:
        by = f" by {settled.question.decided_by}" if settled.question.decided_by else ""
        raise ConfigError("id", f"it is {settled.question.state} already{by}; nothing was changed")
    return await _summarise(call.host, settled.question)


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

    code: Annotated[str, MaxLen(MAX_CODE_CHARACTERS)]


class OwnAnswer(OwnCode):
    """The answer of a person (a bare JID) to the question with a code."""

    text: Annotated[str, MaxLen(MAX_ANSWER_CHARACTERS)]


@operation("questions.answer", THE_PERSON, is_change=True)
async def answer_question(call: Call, arguments: OwnAnswer) -> Answered:
    """Answer a question that an agent has asked the person."""
    from ...contracts.json_schema import find_problems
    from ...domain.questions import match_choice, parse_value

    stored = await _find_own(call, arguments, contracts.QuestionState.ANSWERED)
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
    return await _settle_own(call, arguments, stored, contracts.QuestionState.ANSWERED, answer)


class OwnDecision(OwnCode):
    """The decision of a person (a bare JID) about the approval with a code, with a reason for the requester."""

    is_approved: bool
    reason: Annotated[str, MaxLen(MAX_REASON_CHARACTERS)] = ""


@operation("approvals.decide", THE_PERSON, is_change=True)
async def decide_approval(call: Call, arguments: OwnDecision) -> Answered:
    """Approve or deny a call about which the person was asked."""
    state = contracts.QuestionState.APPROVED if arguments.is_approved else contracts.QuestionState.DENIED
    stored = await _find_own(call, arguments, state)
    if isinstance(stored, Answered):
        return stored
    return await _settle_own(call, arguments, stored, state, _make_decision(call, state, arguments.reason))


async def _find_own(call: Call, own: OwnCode, state: contracts.QuestionState) -> storage.StoredQuestion | Answered:
    """Return the open question with a code that a person was asked; else the outcome, which is in the trail as a failure.

    They are not told if there is such a question that they were not asked. The newest one counts, an open one first.
    """
    from ...domain.questions import fold

    kind = "question" if state is contracts.QuestionState.ANSWERED else APPROVAL
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
    return _describe(storage.Settled(stored, False) if stored else None, own.person)


async def _settle_own(
    call: Call, own: OwnCode, stored: storage.StoredQuestion, state: contracts.QuestionState, answer: dict[str, Any]
) -> Answered:
    resource, agent = f"{stored.kind} {stored.question_id}", await call.host.open_agent(own.agent)
    if await agent.may_answer(stored, own.person):  # else the trail has the failure alone
        await call.record(own.agent, _ACTIONS[state], resource, person=own.person)
    settled = await _settle(call, stored, state, answer)
    if settled is None or not settled.is_first:  # another answer was faster
        await _record_failure(call, own, state, resource)
    return _describe(settled, own.person)


async def _record_failure(call: Call, own: OwnCode, state: contracts.QuestionState, resource: str) -> None:
    entry = contracts.AuditEntry(actor=call.actor.name, action=_ACTIONS[state], resource=resource, outcome="failure")
    await call.host.repository(own.agent).audit_trail.append(entry, own.person)


def _make_decision(call: Call, state: contracts.QuestionState, reason: str) -> dict[str, Any]:
    return {"approved": state is contracts.QuestionState.APPROVED, "by": call.actor.name, "reason": reason.strip()}


async def _settle(
    call: Call, stored: storage.StoredQuestion, state: contracts.QuestionState, answer: dict[str, Any]
) -> storage.Settled | None:
    agent = await call.host.open_agent(stored.agent, changes=True)
    return await agent.questions.settle(stored, state, answer, call.actor.name)


def _describe(settled: storage.Settled | None, person: str) -> Answered:
    if settled is None:
        return Answered("unknown")
    if not settled.is_first:
        return Answered(_OUTCOMES[settled.question.state], settled.question.decided_by)
    return Answered("taken", person, is_own=bool(settled.question.reference))


async def _summarise_all(host: OperationHost, stored: Sequence[storage.StoredQuestion]) -> list[ListedApproval]:
    if host.database is None or not stored:
        return []
    people = await storage.QuestionRepository(host.database, "").load_people(one.id for one in stored)
    return [
        ListedApproval(
            one.question_id,
            one.agent,
            one.requester,
            one.text,
            people[one.id],
            one.state,
            one.decided_by,
            storage.from_micros(one.created_at),
            storage.from_micros(one.expires_at),
        )
        for one in stored
    ]


async def _summarise(host: OperationHost, stored: storage.StoredQuestion) -> ListedApproval:
    return (await _summarise_all(host, [stored]))[0]
