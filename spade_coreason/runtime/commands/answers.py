"""The commands /answer, /approve and /deny: how people answer the questions of an agent."""

from __future__ import annotations

from ...domain.forms import Field
from ...domain.texts.translation import N_, translate
from ...operations.initiative.questions import Answered, OwnAnswer, OwnDecision, answer_question, decide_approval
from ...storage import StoredQuestion
from .context import Invocation
from .model import Command, CommandResult
from .parser import ParsedCommand


async def _answer(invocation: Invocation) -> CommandResult:
    context, values = invocation.context, invocation.values
    given = OwnAnswer(agent=context.jid, person=invocation.owner, code=values["code"], text=values["text"])
    answered = await invocation.perform(answer_question, given)
    if answered.outcome == "taken" and answered.is_own:
        return CommandResult("")  # what they have asked for follows
    return _describe(answered)


async def _approve(invocation: Invocation) -> CommandResult:
    return await _decide(invocation, is_approved=True)


async def _deny(invocation: Invocation) -> CommandResult:
    return await _decide(invocation, is_approved=False)


async def _decide(invocation: Invocation, *, is_approved: bool) -> CommandResult:
    code, reason = invocation.values["code"], invocation.values.get("reason") or ""
    jid, person = invocation.context.jid, invocation.owner
    given = OwnDecision(agent=jid, person=person, code=code, is_approved=is_approved, reason=reason)
    answered = await invocation.perform(decide_approval, given)
    if answered.outcome == "taken":
        return CommandResult(translate("Approved. It runs now.") if is_approved else translate("Denied. It does not run."))
    return _describe(answered)


def _describe(answered: Answered) -> CommandResult:
    if answered.outcome == "taken":
        return CommandResult(translate("Thank you. I go on with it."))
    if answered.outcome == "unsuitable":
        return CommandResult(translate("This does not answer the question: {problem}", problem=answered.problem), is_error=True)
    if answered.outcome == "too late":
        text = translate("{person} was first. Your answer changes nothing.", person=answered.decided_by)
    elif answered.outcome == "over":
        text = translate("The time for this is over. Your answer changes nothing.")
    elif answered.outcome == "taken back":
        text = translate("This was taken back. Your answer changes nothing.")
    else:
        text = translate("I have asked you nothing with this code. Please check it.")
    return CommandResult(text, is_error=True)


_CODE = Field("code", N_("the code of the question"), is_required=True)
ANSWER = Command(
    "answer",
    N_("answer a question of mine"),
    _answer,
    is_personal=True,
    fields=(_CODE, Field("text", N_("your answer"), is_required=True)),
    usage="K7QX yes",
)
COMMANDS_FOR_ANSWERS = (
    ANSWER,
    Command("approve", N_("approve what I have asked you about"), _approve, is_personal=True, fields=(_CODE,), usage="K7QX2M"),
    Command(
        "deny",
        N_("deny what I have asked you about"),
        _deny,
        is_personal=True,
        fields=(_CODE, Field("reason", N_("why, for the person who asked"), default="")),
        usage="K7QX2M",
    ),
)


def answer_command(question: StoredQuestion, text: str) -> ParsedCommand:
    """Return the command that a message is which answers a question without naming it."""
    return ParsedCommand(ANSWER, {"code": question.code, "text": text})
