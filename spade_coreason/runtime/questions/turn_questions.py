"""The questions of one turn to people. Each is a durable step, whose result is the answer; until then its request is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ...contracts import PersonAnswer, RiskLevel
from ...contracts.json_schema import find_problems
from ...domain.callers import is_caller
from ...domain.jid import parse_jid
from ...domain.messages import InboundRequest
from ...domain.questions import (
    APPROVAL,
    MAX_CHOICES,
    MAX_QUESTION_CHARACTERS,
    MAX_TIMEOUT,
    QUESTION,
    derive_code,
    describe_call,
    describe_question,
    make_approval_code,
)
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.json_text import dump_json
from ...domain.texts.translation import N_, translate
from ...exceptions import ApprovalDeniedError, ApprovalExpiredError, ApprovalRefusedError, QuestionExpiredError
from ..replies.output import TurnOutput
from ..steps.step_journal import StepJournal
from ..steps.steps import DurableStep, TurnParkedError, find_positional_names
from .desk import AskedQuestion, QuestionDesk

_SAMPLES: tuple[Any, ...] = (None, "", {})
"""Values whose check shows if a JSON Schema is one."""
_MIN_TIMEOUT = timedelta(minutes=1)
_REFUSED = "refused"
"""The key of the result of a step whose question could not be asked: the reason."""


class ApprovalCall(NamedTuple):
    """A call that needs an approval. `binding` is what it is bound to besides its arguments, such as the hash of a tool."""

    name: str
    arguments: Any
    binding: Any = None
    names: Sequence[str] = ()
    """The names of positional arguments, for those who read them."""


class ApprovalDecision(NamedTuple):
    """The decision about a call. `person` is who decided, "" if the time was over; `reason` is theirs."""

    is_approved: bool
    person: str
    reason: str = ""
    refusal: str = ""
    """The reason why no one was asked; "" if people were."""


class TurnQuestions:
    """The questions of a turn, as `Response.ask_person` and `Session.run_approved` have them.

    `task` is that of `assist`; None in a command, which cannot wait.
    """

    def __init__(
        self,
        desk: QuestionDesk,
        incoming: InboundRequest,
        journal: StepJournal,
        output: TurnOutput,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self._desk = desk
        self._task = task
        self._incoming = incoming
        self._journal = journal
        self._output = output

    @property
    def from_risk(self) -> RiskLevel | None:
        """The risk from which a tool call needs an approval, where the agent says nothing else. None: from none on."""
        return self._desk.rights.approvals.from_risk

    async def ask_person(
        self,
        question: str,
        choices: Sequence[str],
        schema: Mapping[str, Any] | None,
        to: str | None,
        timeout: timedelta,
    ) -> PersonAnswer:
        """Ask a person, as `Response.ask_person`."""
        self._require_task()
        _check_question(question, choices, schema, timeout)
        step = await self._journal.open_step("response.ask_person", (question, list(choices), schema, to), "retry")
        if step.is_finished and _REFUSED in step.result:
            raise ValueError(step.result[_REFUSED])
        question = quote_forgeries(question)
        try:
            person = self._find_person(to)
            is_shown_here, code = self._is_shown_here(person), derive_code(UUID(step.key))
            if is_caller(person) and not is_shown_here:
                raise ValueError(
                    f"{person} is a caller of a door, who can only be asked in their own reply; pass to=JID of a person"
                )
            asked = AskedQuestion(
                step, QUESTION, (person,), question, tuple(choices), schema, code, timeout, is_shown_here, self._requester
            )
            if not step.is_finished:
                await _check_schema(schema)
                asked = await self._desk.check([asked])
        except ValueError as error:
            await self._refuse(step, error)
            raise
        if is_shown_here:
            # A door and the page have their own ways to answer.
            shown = question if self._incoming.kind.has_buttons else describe_question(question, code, choices)
            # A program reads the choices itself. The button of a person names its question, because it may be pressed late.
            prefix = f"answer {code} " if self._incoming.kind.is_human else ""
            buttons = tuple((f"{prefix}{choice}", quote_forgeries(choice)) for choice in choices)
            self._output.emit_question(shown, buttons, question)
        else:
            text = N_("I have asked {person}, and go on when they have answered.")
            if asked.held:
                text = N_("I will ask {person} later, and go on when they have answered.")
            self._say(translate(text, person=person))
        if not step.is_finished:
            self._park([asked])
        self._go_on()
        answer = step.result
        if "text" not in answer:
            raise QuestionExpiredError(step.key)
        if is_shown_here and self._incoming.kind.is_page:  # it was given by a button, and no message has it
            self._output.emit_question(f"> {' '.join(answer['text'].split())}", ())
        return PersonAnswer(answer["text"], answer["person"], datetime.fromisoformat(answer["at"]), answer.get("value"))

    async def decide(
        self, calls: Sequence[ApprovalCall], approvers: str | None, timeout: timedelta | None = None
    ) -> list[ApprovalDecision]:
        """Ask for the approval of calls, all at once, and return the decisions in their order."""
        self._require_task()
        steps = [
            await self._journal.open_step(f"approval: {call.name}", (call.arguments, call.binding, approvers), "retry")
            for call in calls
        ]
        asked: list[AskedQuestion] = []
        refusals: dict[str, str] = {}
        for step, call in zip(steps, calls, strict=True):
            if step.is_finished:
                if _REFUSED in step.result:
                    refusals[step.key] = step.result[_REFUSED]
                continue
            try:
                approval = self._make_approval(step, call, approvers, timeout)
                asked.append(await self._desk.check([*asked, approval]))
            except ValueError as error:
                refusals[step.key] = str(error)
                await self._refuse(step, error)
        if len(refusals) < len(steps):
            group = approvers or self._desk.rights.approvals.approvers or translate("an operator")
            text = N_("This needs the approval of {group}. I go on when it is decided.")
            if asked and all(each.held == {*each.people} for each in asked):
                text = N_("This needs the approval of {group}. I will ask for it later.")
            self._say(translate(text, group=group))
        if asked:
            self._park(asked)
        self._go_on()
        return [
            ApprovalDecision(False, "", refusal=refusals[step.key])
            if step.key in refusals
            else ApprovalDecision(bool(step.result.get("approved")), step.result.get("by", ""), step.result.get("reason", ""))
            for step in steps
        ]

    async def run_approved(self, name: str, function: Callable[..., Any], args: Sequence[Any], approvers: str | None) -> Any:
        """Run a durable step once a person has approved it, as `Session.run_approved`."""
        [decision] = await self.decide([ApprovalCall(name, list(args), names=find_positional_names(function))], approvers)
        if decision.refusal:
            raise ApprovalRefusedError(name, decision.refusal)
        if not decision.is_approved:
            raise ApprovalDeniedError(name, decision.person, decision.reason) if decision.person else ApprovalExpiredError(name)
        return await self._journal.run_once(name, function, args, "fail")

    async def _refuse(self, step: DurableStep, error: ValueError) -> None:
        """Store that a question cannot be asked: a later run of the turn must come to the same end."""
        await self._journal.close_step(step, dump_json({_REFUSED: str(error)}))

    def _make_approval(
        self, step: DurableStep, call: ApprovalCall, approvers: str | None, timeout: timedelta | None
    ) -> AskedQuestion:
        requester = self._find_requester()
        people = self._desk.rights.find_approvers(approvers, requester)
        text, code = describe_call(call.name, call.arguments, call.names), make_approval_code()
        timeout = timeout or self._desk.rights.approvals.timeout
        return AskedQuestion(step, APPROVAL, people, text, (), None, code, timeout, False, requester, approvers)

    @property
    def _requester(self) -> str:
        incoming = self._incoming
        if incoming.stored_root is not None:
            return incoming.stored_root
        return "" if incoming.owner == self._desk.agent else incoming.owner

    def _find_requester(self) -> str:
        """Return the person behind the request (a bare JID), "" if it is the agent itself. ValueError if it is not known."""
        if self._incoming.stored_root == "":
            raise ValueError("it is not known who asks, so no one can approve it; see access.trusted_domains and rooms")
        return self._requester

    def _find_person(self, to: str | None) -> str:
        """Return the person to ask (a bare JID): by default the one behind the request. ValueError if there is none.

        By a door that is the caller, also if the key stands for a person.
        """
        if to is None:
            person = self._incoming.owner if self._incoming.kind.is_door else self._find_requester()
            if not person:
                raise ValueError("no person has asked for this, so it is not clear whom to ask; pass to=JID")
            return person
        address = parse_jid(to)
        if "/" in address:
            raise ValueError(f"a question goes to a person, not to one device: {to!r}; leave out the part from the / on")
        return address

    def _is_shown_here(self, person: str) -> bool:
        incoming = self._incoming
        return person == incoming.owner and incoming.is_said_directly

    def _require_task(self) -> None:
        if self._journal.is_closed:
            raise RuntimeError("no person may be asked after assist has returned")
        if self._task is None:
            raise RuntimeError("a command cannot ask and wait; ask in assist")
        if asyncio.current_task() is not self._task:
            raise RuntimeError("people are asked in the task of assist only; gather first, and ask then")
        if self._output.streams:
            raise RuntimeError("close the streams before you ask a person: assist begins anew with the answer")

    def _say(self, text: str) -> None:
        """Emit a short text for people. An agent that has passed the request on reads the event of a parked request instead.

        It does not wait: after the check of the questions, nothing may come between it and their count.
        """
        if self._incoming.kind.is_human or self._incoming.is_said_directly:
            self._output.emit_question(text, ())

    def _go_on(self) -> None:
        """Send what follows, if this was the last question of the earlier runs."""
        if self._journal.earlier_runs is None:
            self._output.resume()

    def _park(self, asked: list[AskedQuestion]) -> None:
        self._output.hold_for_answer()
        self._journal.asked = asked
        self._desk.count(asked)
        self._journal.is_closed = True
        raise TurnParkedError


def _check_question(question: str, choices: Sequence[str], schema: Mapping[str, Any] | None, timeout: timedelta) -> None:
    if not isinstance(question, str) or not question.strip() or len(question) > MAX_QUESTION_CHARACTERS:
        raise ValueError(f"a question is a text of 1 to {MAX_QUESTION_CHARACTERS:,} characters, not {question!r:.200}")
    if isinstance(choices, str) or len(choices) > MAX_CHOICES:
        raise ValueError(f"choices are at most {MAX_CHOICES} texts, not {choices!r:.200}")
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ValueError(f"choices are texts that are not empty, not {choices!r:.200}")
    if choices and schema is not None:
        raise ValueError("give choices or a schema, not both")
    if schema is not None and not isinstance(schema, Mapping):
        raise ValueError(f"schema is a JSON Schema, a mapping, not {schema!r:.200}")
    if not isinstance(timeout, timedelta) or not _MIN_TIMEOUT <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"a question waits for one minute to {MAX_TIMEOUT.days} days, not {timeout!r}")


async def _check_schema(schema: Mapping[str, Any] | None) -> None:
    """Raise ValueError if no value can be checked against a JSON Schema: no one could answer."""
    if schema is None:
        return
    root = "the answer"
    for problem in await find_problems(_SAMPLES, schema, root):
        if problem is not None and not problem.startswith(f"{root}: "):
            raise ValueError(f"no one could answer this: {problem}")
