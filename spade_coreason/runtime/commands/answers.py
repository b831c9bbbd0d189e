"""The commands /answer, /approve and /deny: how people answer the questions of an agent, as texts and in forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ...domain.forms.command_parser import ParsedCommand
from ...domain.forms.commands import CONFIRMED, Command, CommandResult, FormStep
from ...domain.forms.fields import Choice, Field, FieldError, FieldKind
from ...domain.questions import FoundAnswer, describe_asker, escape_turned
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.json_text import dump_json
from ...domain.texts.translation import N_, translate
from ...operations.initiative.questions import (
    APPROVAL,
    MAX_ANSWER_CHARACTERS,
    MAX_CODE_CHARACTERS,
    MAX_REASON_CHARACTERS,
    Answered,
    AnswerOutcome,
    OwnAnswer,
    OwnDecision,
    OwnQuestion,
    OwnQuestions,
    answer_question,
    decide_approval,
    list_questions,
)
from ...storage import StoredQuestion
from .context import Invocation

_PROPERTY = "answer."
"""The beginning of the names of fields for the properties of an answer with a schema."""
_KINDS: Mapping[str, FieldKind] = {"string": "text", "integer": "number", "number": "text", "boolean": "yes or no"}
_MAX_LABEL_CHARACTERS = 100
_MAX_FIELDS = 20


_CODE = Field("code", N_("the code of the question"), is_required=True)
_LABEL = N_("your answer")
_TEXT = Field("text", _LABEL, is_required=True)
_REASON = Field("reason", N_("why, for the person who asked"), default="")
_CONFIRMATION = Field(CONFIRMED, N_("Yes, approve it"), "yes or no", default=False)
_TAKEN = {
    "": N_("Thank you. I go on with it."),
    "approve": N_("Approved. It runs now."),
    "deny": N_("Denied. It does not run."),
}
_OUTCOMES: Mapping[AnswerOutcome, str] = {
    "too late": N_("{person} was first. Your answer changes nothing."),
    "no right": N_("You may not answer this any more. Please ask my operator."),
    "over": N_("The time for this is over. Your answer changes nothing."),
    "taken back": N_("This was taken back. Your answer changes nothing."),
    "unknown": N_("I have asked you nothing with this code. Please check it."),
}


async def _answer(invocation: Invocation) -> CommandResult:
    context, values = invocation.context, invocation.values
    if not values.get("code"):
        return _nothing_is_open()
    text = _check_length("text", _read_answer(values), MAX_ANSWER_CHARACTERS)
    code = values["code"][:MAX_CODE_CHARACTERS]
    given = OwnAnswer(agent=context.jid, person=invocation.owner, code=code, text=text)
    answered = await invocation.perform(answer_question, given)
    if answered.outcome == "taken" and answered.is_own:
        return CommandResult("")  # what they have asked for follows
    return describe_outcome(answered, invocation.owner)


def _read_answer(values: Mapping[str, Any]) -> str:
    """Return the answer in a text or a form as a text."""
    properties = {name.removeprefix(_PROPERTY): value for name, value in values.items() if name.startswith(_PROPERTY)}
    if properties:
        return dump_json({name: value for name, value in properties.items() if value is not None})
    text = values["text"]
    return text if isinstance(text, str) else dump_json(text)


async def _decide(invocation: Invocation, *, is_approved: bool) -> CommandResult:
    values, reason = invocation.values, invocation.values.get("reason") or ""
    if not values.get("code"):
        return _nothing_is_open()
    if page := invocation.context.approvals_page:
        text = N_("A text is not enough here: anyone could write it in your name. Press the button on the page: {url}")
        return CommandResult(translate(text, url=page), is_error=True)
    if not values.get(CONFIRMED, True):
        return CommandResult(translate("Nothing is decided."))
    _check_length("reason", reason, MAX_REASON_CHARACTERS)
    code, jid, person = values["code"][:MAX_CODE_CHARACTERS], invocation.context.jid, invocation.owner
    given = OwnDecision(agent=jid, person=person, code=code, is_approved=is_approved, reason=reason)
    answered = await invocation.perform(decide_approval, given)
    return describe_outcome(answered, invocation.owner, "approve" if is_approved else "deny")


def _nothing_is_open() -> CommandResult:
    return CommandResult(translate("I wait for no answer of yours."))


def _check_length(name: str, text: str, limit: int) -> str:
    if len(text) > limit:
        template = "{name} has {number} characters. At most {limit} are accepted."
        raise FieldError(translate(template, name=name, number=len(text), limit=limit))
    return text


# Forms: the first one chooses a question, unless only one is open; the next one has its text and the fields of its answer.


async def _find_answer_step(invocation: Invocation) -> FormStep | None:
    questions = await _find_questions(invocation, "question")
    chosen = _find_chosen(questions, invocation)
    return _make_step(questions, chosen, chosen.text if chosen else "", _make_fields(chosen) if chosen else ())


async def _find_decision_step(invocation: Invocation, field: Field) -> FormStep | None:
    approvals = await _find_questions(invocation, "approval")
    chosen = _find_chosen(approvals, invocation)
    return _make_step(approvals, chosen, f"{describe_asker(chosen.requester)}\n{chosen.text}" if chosen else "", (field,))


async def _find_questions(invocation: Invocation, kind: str) -> list[OwnQuestion]:
    wanted = OwnQuestions(agent=invocation.context.jid, person=invocation.owner)
    found = await invocation.perform(list_questions, wanted)
    return [question for question in found if question.kind == kind]


def _find_chosen(questions: Sequence[OwnQuestion], invocation: Invocation) -> OwnQuestion | None:
    if len(questions) == 1 and "code" not in invocation.values:
        return questions[0]
    return next((question for question in questions if question.code == invocation.values.get("code")), None)


def _make_step(
    questions: Sequence[OwnQuestion], chosen: OwnQuestion | None, text: str, fields: tuple[Field, ...]
) -> FormStep | None:
    if chosen is not None:
        code = Field("code", translate(_CODE.label), "choice", False, chosen.code, _list_codes([chosen]))
        return FormStep(text, (code, *(replace(field, label=translate(field.label)) for field in fields)))
    if not questions:
        return None
    label = translate("Which one")
    choose = Field("code", label, "choice", True, questions[0].code, _list_codes(questions))
    return FormStep(f"{label}?", (choose,), is_last=False)


def _list_codes(questions: Sequence[OwnQuestion]) -> tuple[Choice, ...]:
    # A label is one line, in which the parts of a call could change places.
    return tuple(
        Choice(each.code, _shorten(f"{each.code}: {escape_turned(each.text) if each.kind == APPROVAL else each.text}"))
        for each in questions
    )


def _shorten(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _MAX_LABEL_CHARACTERS else f"{shown[: _MAX_LABEL_CHARACTERS - 1]}…"


def _make_fields(question: OwnQuestion) -> tuple[Field, ...]:
    """Return the fields of the answer: one to choose from, those of a flat schema, or a text."""
    if question.choices:
        return (Field("text", _LABEL, "choice", True, None, tuple(map(_make_choice, question.choices))),)
    schema = question.schema or {}
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, Mapping) and 0 < len(properties) <= _MAX_FIELDS:
        required = schema.get("required", ())
        found = [
            _make_field(f"{_PROPERTY}{name}", str(each.get("title") or name), each, name in required)
            if isinstance(each, Mapping)
            else None
            for name, each in properties.items()
        ]
        if all(found):
            return tuple(field for field in found if field is not None)
    return (_make_field("text", _LABEL, schema, True) or _TEXT,)


def _make_choice(text: str) -> Choice:
    return Choice(text, quote_forgeries(text))


def _make_field(name: str, label: str, schema: Mapping[str, Any], is_required: bool) -> Field | None:
    """Return the field of a value that a schema describes; None if it has parts of its own."""
    label, allowed = quote_forgeries(label), schema.get("enum")
    if isinstance(allowed, list) and allowed and all(isinstance(each, str) for each in allowed):
        return Field(name, label, "choice", is_required, None, tuple(map(_make_choice, allowed)))
    kind = _KINDS.get(str(schema.get("type")))
    return None if kind is None else Field(name, label, kind, is_required)


def describe_outcome(answered: Answered, person: str, decision: Literal["", "approve", "deny"] = "") -> CommandResult:
    """Return the reply to an answer of a person (a bare JID), or to their decision."""
    if answered.outcome == "taken":
        return CommandResult(translate(_TAKEN[decision]))
    if answered.outcome == "unsuitable":
        return CommandResult(translate("This does not answer the question: {problem}", problem=answered.problem), is_error=True)
    text = _OUTCOMES[answered.outcome]
    if answered.outcome == "too late" and answered.decided_by == person:
        text = N_("You have answered this already.")
    return CommandResult(translate(text, person=answered.decided_by), is_error=True)


ANSWER = Command(
    "answer",
    N_("answer a question of mine"),
    _answer,
    is_personal=True,
    fields=(_CODE, _TEXT),
    usage="K7QX yes",
    find_step=_find_answer_step,
)
COMMANDS_FOR_ANSWERS = (
    ANSWER,
    Command(
        "approve",
        N_("approve what I have asked you about"),
        partial(_decide, is_approved=True),
        is_personal=True,
        fields=(_CODE,),
        usage="K7QX2M",
        find_step=partial(_find_decision_step, field=_CONFIRMATION),
    ),
    Command(
        "deny",
        N_("deny what I have asked you about"),
        partial(_decide, is_approved=False),
        is_personal=True,
        fields=(_CODE, _REASON),
        usage="K7QX2M",
        find_step=partial(_find_decision_step, field=_REASON),
    ),
)


def answer_command(question: StoredQuestion, found: FoundAnswer) -> ParsedCommand:
    """Return the command that a text is which answers a question without one. It asks for the code if that is not clear."""
    if found.verb:
        command = next(each for each in COMMANDS_FOR_ANSWERS if each.name == found.verb)
        return ParsedCommand(command, {"code": question.code, "text": found.text, "reason": found.text})
    asked = translate(
        "I cannot tell if you mean my question “{question}”. If you do, write: /answer {code} {answer}",
        question=_shorten(question.text),
        code=question.code,
        answer=found.text,
    )
    return ParsedCommand(ANSWER, None, asked)
