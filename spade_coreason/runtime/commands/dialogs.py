"""Ad-hoc commands (XEP-0050) step by step: the forms of a command, and the sessions of people who fill them in."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...concurrency import cancel_tasks
from ...domain.forms.adhoc import Action, CommandCall, CommandForm, CommandProblem, CommandStage
from ...domain.forms.commands import CONFIRMED, Command, CommandResult, FormStep
from ...domain.forms.fields import CONVERSATION_FIELD, Choice, Field, FieldError, FieldValue
from ...domain.jid import bare_jid
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.translation import LANGUAGE, N_, translate
from ...exceptions import CoReasonError
from ...operations.sessions import ListSessions, SessionSummary, format_conversation, list_sessions
from ..languages import PersonLanguages
from .executor import CommandExecutor

log = logging.getLogger(__name__)


_MAX_SESSIONS = 1000
_MAX_SESSIONS_PER_PERSON = 10
_MAX_RUNNING_PER_PERSON = 8
_MAX_CHOICES = 50
_CANCELLED = N_("I did not do this, because the conversation was deleted.")


def steps_of(command: Command, conversations: Sequence[SessionSummary]) -> tuple[FormStep, ...]:
    """Return the forms of a command; none if there is nothing to ask.

    `conversations` are those to choose from, the newest first.
    """
    fields = command.fields
    is_any = command.subject == "any conversation"
    if is_any or (command.subject == "a conversation" and len(conversations) > 1):
        choices = tuple(
            Choice(session.conversation_id, format_conversation(session, is_own=not is_any)) for session in conversations
        )
        default = None if is_any or not choices else choices[0].value
        fields = (Field(CONVERSATION_FIELD, translate("Which conversation"), "choice", is_any, default, choices), *fields)
    steps = [FormStep(f"{command.menu_label}.", tuple(map(_translate_field, fields)))] if fields else []
    if command.question:
        steps.append(
            FormStep(translate(command.question), (Field(CONFIRMED, translate("Yes, do it"), "yes or no", default=False),))
        )
    return tuple(steps)


def allowed_actions(steps: Sequence[FormStep], step_index: int) -> tuple[Action, ...]:
    """Return the actions that may follow the form of a step, the usual one first."""
    has_next = step_index + 1 < len(steps) or not steps[step_index].is_last
    forward: tuple[Action, ...] = ("next",) if has_next else ("complete",)
    return (*forward, "prev") if step_index else forward


def parse_form(step: FormStep, form: Mapping[str, str], before: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    """Parse a submitted form. A field that it leaves out keeps its value of `before`. FieldError for an invalid value."""
    values: dict[str, FieldValue] = {}
    for field in step.fields:
        is_unchanged = field.name not in form and before.get(field.name) is not None
        values[field.name] = before[field.name] if is_unchanged else field.parse(form.get(field.name))
    return values


@dataclass(slots=True)
class _AdHocSession:
    """One run of a command by one device (a full JID)."""

    sender: str
    command: Command
    steps: tuple[FormStep, ...]
    values: dict[str, Any]
    expires_at_s: float
    step_index: int = 0


class AdHocSessions:
    """The ad-hoc sessions of one agent: at most ten for a person, and a thousand in all.

    A session expires `session_timeout_s` after its last form. If a command takes longer than `reply_timeout_s`, its result
    follows as a message, because clients do not wait for ever.
    """

    def __init__(
        self,
        executor: CommandExecutor,
        languages: PersonLanguages,
        *,
        session_timeout_s: float = 900.0,
        reply_timeout_s: float = 20.0,
    ) -> None:
        self._executor = executor
        self._languages = languages
        self._session_timeout_s = session_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._sessions: dict[str, _AdHocSession] = {}
        self._running_counts: Counter[str] = Counter()
        self._running: set[asyncio.Task[CommandResult]] = set()

    async def answer(self, call: CommandCall) -> CommandStage | CommandProblem:
        """Answer a call. Its sender has access, and is the JID that the server has set."""
        owner = bare_jid(call.sender)
        LANGUAGE.set(self._languages.of_person(owner, call.language))
        if self._running_counts[owner] >= _MAX_RUNNING_PER_PERSON:
            return CommandProblem(
                "resource-constraint", translate("I am working on several commands of yours. Wait for one of them to finish.")
            )
        self._running_counts[owner] += 1
        try:
            return await (self._continue(call, owner) if call.session else self._start(call, owner))
        except FieldError as error:
            return CommandProblem("bad-request", str(error), "bad-payload")
        except CoReasonError as error:
            log.error("a command (%s) of %s failed: %s", call.node, owner, error)
            return CommandProblem("internal-server-error", translate("I cannot do this at the moment. Please try again later."))
        finally:
            self._running_counts -= Counter({owner: 1})

    async def close(self) -> None:
        """Cancel the commands that still run."""
        await cancel_tasks(*self._running)

    async def _start(self, call: CommandCall, owner: str) -> CommandStage | CommandProblem:
        command = next((known for known in self._executor.commands.available_to(owner) if known.node == call.node), None)
        if command is None:
            if any(known.node == call.node for known in self._executor.commands.all):
                return CommandProblem("forbidden", translate("{command} is for my operators only.", command=f"/{call.node}"))
            return CommandProblem("item-not-found", translate("There is no such command."))
        if call.action == "cancel":
            return CommandStage(command.node, secrets.token_hex(12), "canceled")
        if call.action == "prev":
            return CommandProblem("bad-request", translate("This is the first step."), "malformed-action")
        context, sessions = self._executor.context, list[SessionSummary]()
        if command.subject != "the person":
            person = None if command.subject == "any conversation" else owner
            found = await context.perform(
                owner, list_sessions, ListSessions(agent=context.jid, person=person, limit=_MAX_CHOICES)
            )
            sessions = [session for session in found if session.turns]
        steps = await self._find_steps(command, owner, {}) if call.form is None else None
        steps = steps_of(command, sessions) if steps is None else steps
        initial = command.initial_values
        values = {} if initial is None else dict(await initial(self._executor.commands.make_invocation(context, owner, {})))
        session = _AdHocSession(
            call.sender, command, steps, values, asyncio.get_running_loop().time() + self._session_timeout_s
        )
        session_id = secrets.token_hex(12)
        if not steps:
            return await self._complete(session_id, session, owner)
        self._add_session(session_id, session)
        if call.form is not None:  # a program that knows the form fills it in at once
            return await self._forward(session_id, session, call, owner)
        return _form_stage(session_id, session)

    async def _find_steps(self, command: Command, owner: str, values: Mapping[str, Any]) -> tuple[FormStep, ...] | None:
        """Return the next form of a command, if it depends on the person and the values so far: none if that was the last one.

        None if its forms are fixed.
        """
        if command.find_step is None:
            return None
        found = await command.find_step(self._executor.commands.make_invocation(self._executor.context, owner, values))
        return () if found is None else (found,)

    async def _continue(self, call: CommandCall, owner: str) -> CommandStage | CommandProblem:
        self._expire()
        session = self._sessions.get(call.session)
        if session is None or session.sender != call.sender or session.command.node != call.node:
            # A session that is over and a session of another person give the same error.
            problem = translate("This form has expired. Please start the command again.")
            return CommandProblem("bad-request", problem, "bad-sessionid")
        session.expires_at_s = asyncio.get_running_loop().time() + self._session_timeout_s
        if call.action == "cancel":
            del self._sessions[call.session]
            return CommandStage(call.node, call.session, "canceled")
        if call.action == "prev" and session.step_index:
            session.step_index -= 1
            return _form_stage(call.session, session)
        allowed = allowed_actions(session.steps, session.step_index)
        if call.action != "execute" and call.action not in allowed:
            problem = translate("Here you can use only {actions}.", actions=", ".join((*allowed, "cancel")))
            return CommandProblem("bad-request", problem, "malformed-action")
        return await self._forward(call.session, session, call, owner)

    async def _forward(
        self, session_id: str, session: _AdHocSession, call: CommandCall, owner: str
    ) -> CommandStage | CommandProblem:
        step = session.steps[session.step_index]
        session.values |= parse_form(step, call.form or {}, session.values)
        if not step.is_last:
            following = await self._find_steps(session.command, owner, session.values)
            session.steps = session.steps[: session.step_index + 1] + (following or ())
        if session.step_index + 1 < len(session.steps):
            session.step_index += 1
            return _form_stage(session_id, session)
        del self._sessions[session_id]
        try:
            return await self._complete(session_id, session, owner)
        except FieldError:
            self._sessions[session_id] = session  # the form may be corrected and sent again
            raise

    async def _complete(self, session_id: str, session: _AdHocSession, owner: str) -> CommandStage:
        command, values = session.command, session.values
        conversation_id = values.get(CONVERSATION_FIELD) if command.subject == "a conversation" else None
        task = asyncio.create_task(self._executor.run_command(owner, command, values, conversation_id))
        self._running.add(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._reply_timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.add_done_callback(lambda late: self._send_late_result(owner, late))
            text = translate("This takes a while. The answer follows as a message.")
            return CommandStage(command.node, session_id, "completed", text=text)
        self._running.discard(task)
        result = CommandResult(translate(_CANCELLED), is_error=True) if task.cancelled() else task.result()
        if result.extra_texts:
            self._executor.send_command_result(owner, CommandResult("", extra_texts=result.extra_texts))
        return CommandStage(
            command.node,
            session_id,
            "completed",
            title=command.title,
            text=quote_forgeries(result.text or ("" if result.extra_texts or result.link else translate("Done."))),
            link=result.link,
            is_error=result.is_error,
        )

    def _send_late_result(self, owner: str, task: asyncio.Task[CommandResult]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a command of %s failed: %s", owner, error)
            self._executor.send_command_result(
                owner, CommandResult(translate("I cannot do this at the moment. Please try again later."))
            )
        else:
            self._executor.send_command_result(owner, task.result())

    def _add_session(self, session_id: str, session: _AdHocSession) -> None:
        self._expire()
        owner = bare_jid(session.sender)
        own_ids = [name for name, other in self._sessions.items() if bare_jid(other.sender) == owner]
        for name in own_ids[: max(0, len(own_ids) + 1 - _MAX_SESSIONS_PER_PERSON)]:
            del self._sessions[name]
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session_id] = session

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for name in [name for name, other in self._sessions.items() if other.expires_at_s < now]:
            del self._sessions[name]


def _translate_field(field: Field) -> Field:
    choices = tuple(Choice(choice.value, translate(choice.label)) for choice in field.choices)
    return replace(field, label=translate(field.label), choices=choices)


def _form_stage(session_id: str, session: _AdHocSession) -> CommandStage:
    step = session.steps[session.step_index]
    form = CommandForm(session.command.title, step.instructions, step.fields, session.values)
    return CommandStage(
        session.command.node,
        session_id,
        "executing",
        form,
        allowed_actions(session.steps, session.step_index),
        title=session.command.title,
    )
