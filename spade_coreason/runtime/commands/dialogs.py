"""Ad-hoc commands (XEP-0050) step by step: the forms of a command, and the sessions of those who fill them in."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...codec import Action, CommandCall, CommandForm, CommandProblem, CommandStage
from ...domain.forms import CONVERSATION, Choice, Field, FieldError, Value
from ...domain.jid import bare
from ...exceptions import CoReasonError
from ...storage import ConversationRow
from .formatting import conversation_line
from .model import SURE, Command, House, Outcome
from .registry import Commands

log = logging.getLogger(__name__)


class Runs(House, Protocol):
    """Whoever does what a command says."""

    commands: Commands

    async def obey(self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None) -> Outcome:
        """What comes of a command of somebody (a bare JID)."""
        ...

    def say(self, owner: str, outcome: Outcome) -> None:
        """Sends it to a person as messages."""
        ...


_SESSIONS = 1000
_SESSIONS_OF_ONE = 10
_AT_WORK_OF_ONE = 8
_TO_CHOOSE_FROM = 50
_DROPPED = Outcome("This is not done: what it was about is gone.", is_error=True)


class Step(NamedTuple):
    """One form."""

    instructions: str
    fields: tuple[Field, ...]


def steps_of(command: Command, conversations: Sequence[ConversationRow], agent: str) -> tuple[Step, ...]:
    """The forms of a command; none where there is nothing to ask. `conversations` may be meant, the newest first."""
    fields = command.fields
    is_any = command.about == "any conversation"
    if is_any or (command.about == "a conversation" and len(conversations) > 1):
        choices = tuple(Choice(row.conversation_id, conversation_line(row, agent, is_own=not is_any)) for row in conversations)
        default = None if is_any or not choices else choices[0].value
        fields = (Field(CONVERSATION, "Which conversation", "choice", is_any, default, choices), *fields)
    steps = [Step(f"{command.entry}.", fields)] if fields else []
    if command.question:
        steps.append(Step(command.question, (Field(SURE, "Yes, do it", "yes or no", default=False),)))
    return tuple(steps)


def allowed(steps: Sequence[Step], at: int) -> tuple[Action, ...]:
    """What may follow the form of a step, the usual first."""
    onward: tuple[Action, ...] = ("next",) if at + 1 < len(steps) else ("complete",)
    return (*onward, "prev") if at else onward


def filled(step: Step, form: Mapping[str, str], before: Mapping[str, Value]) -> dict[str, Value]:
    """What a form says. FieldError for what it may not say; a field that it has no word of stays as it was before."""
    values: dict[str, Value] = {}
    for field in step.fields:
        stays = field.name not in form and before.get(field.name) is not None
        values[field.name] = before[field.name] if stays else field.read(form.get(field.name))
    return values


@dataclass(slots=True)
class _Session:
    """One run of a command by one device (a full JID)."""

    sender: str
    command: Command
    steps: tuple[Step, ...]
    values: dict[str, Any]
    expires: float
    at: int = 0


class Dialogues:
    """The sessions of one agent: ten of a person and a thousand in all, each for `session_s` after its last form.

    What takes longer than `answer_within_s` is answered by a message: clients do not wait for ever.
    """

    def __init__(self, runner: Runs, *, session_s: float = 900.0, answer_within_s: float = 20.0) -> None:
        self._runner = runner
        self._session_s = session_s
        self._answer_within_s = answer_within_s
        self._sessions: dict[str, _Session] = {}
        self._at_work: Counter[str] = Counter()
        self._late: set[asyncio.Task[Outcome]] = set()

    async def answer(self, call: CommandCall) -> CommandStage | CommandProblem:
        """What a call comes to; its sender is admitted, and is who the server says."""
        owner = bare(call.sender)
        if self._at_work[owner] >= _AT_WORK_OF_ONE:
            return CommandProblem("resource-constraint", "I am at work on several commands of yours; wait for one of them.")
        self._at_work[owner] += 1
        try:
            return await (self._go_on(call, owner) if call.session else self._begin(call, owner))
        except FieldError as error:
            return CommandProblem("bad-request", str(error), "bad-payload")
        except CoReasonError as error:
            log.error("a command (%s) of %s is not obeyed: %s", call.node, owner, error)
            return CommandProblem("internal-server-error", "I cannot do this at the moment; please try again later.")
        finally:
            self._at_work -= Counter({owner: 1})

    async def close(self) -> None:
        """Waits for nothing any more."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _begin(self, call: CommandCall, owner: str) -> CommandStage | CommandProblem:
        command = next((known for known in self._runner.commands.of(owner) if known.node == call.node), None)
        if command is None:
            if any(known.node == call.node for known in self._runner.commands.all):
                return CommandProblem("forbidden", "This is for those who run me.")
            return CommandProblem("item-not-found", "There is no such command.")
        if call.action == "cancel":
            return CommandStage(command.node, secrets.token_hex(12), "canceled")
        if call.action == "prev":
            return CommandProblem("bad-request", "There is nothing before the beginning.", "malformed-action")
        rows: list[ConversationRow] = []
        if command.about != "the person":
            whose = None if command.about == "any conversation" else owner
            found = await self._runner.store.conversations(owner=whose, limit=_TO_CHOOSE_FROM)
            rows = [row for row in found if row.turns]
        steps = steps_of(command, rows, self._runner.store.agent)
        values = await self._runner.commands.filled(command, self._runner, owner)
        session = _Session(call.sender, command, steps, values, asyncio.get_running_loop().time() + self._session_s)
        ident = secrets.token_hex(12)
        if not steps:
            return await self._complete(ident, session, owner)
        self._keep(ident, session)
        if call.form is not None:  # a program that knows the form fills it in at once
            return await self._forward(ident, session, call, owner)
        return _form(ident, session)

    async def _go_on(self, call: CommandCall, owner: str) -> CommandStage | CommandProblem:
        self._expire()
        session = self._sessions.get(call.session)
        if session is None or session.sender != call.sender or session.command.node != call.node:
            # One's own that is over, and anybody else's, look the same.
            return CommandProblem("bad-request", "This session is over, or there never was one; begin again.", "bad-sessionid")
        session.expires = asyncio.get_running_loop().time() + self._session_s
        if call.action == "cancel":
            del self._sessions[call.session]
            return CommandStage(call.node, call.session, "canceled")
        if call.action == "prev" and session.at:
            session.at -= 1
            return _form(call.session, session)
        may = allowed(session.steps, session.at)
        if call.action != "execute" and call.action not in may:
            there = " or ".join(may)
            return CommandProblem("bad-request", f"Here you can {there}, or cancel.", "malformed-action")
        return await self._forward(call.session, session, call, owner)

    async def _forward(self, ident: str, session: _Session, call: CommandCall, owner: str) -> CommandStage | CommandProblem:
        session.values |= filled(session.steps[session.at], call.form or {}, session.values)
        if session.at + 1 < len(session.steps):
            session.at += 1
            return _form(ident, session)
        del self._sessions[ident]
        try:
            return await self._complete(ident, session, owner)
        except FieldError:
            self._sessions[ident] = session  # it may be filled in better
            raise

    async def _complete(self, ident: str, session: _Session, owner: str) -> CommandStage:
        command, values = session.command, session.values
        named = values.get(CONVERSATION) if command.about == "a conversation" else None
        task = asyncio.create_task(self._runner.obey(owner, command, values, named))
        self._late.add(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._answer_within_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.add_done_callback(lambda late: self._done_late(owner, late))
            text = "This takes a while; the answer follows as a message."
            return CommandStage(command.node, ident, "completed", text=text)
        self._late.discard(task)
        outcome = _DROPPED if task.cancelled() else task.result()
        if outcome.further:
            self._runner.say(owner, Outcome("", further=outcome.further))
        return CommandStage(
            command.node,
            ident,
            "completed",
            title=command.title,
            text=outcome.text,
            link=outcome.link,
            is_error=outcome.is_error,
        )

    def _done_late(self, owner: str, task: asyncio.Task[Outcome]) -> None:
        self._late.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a command of %s is not obeyed: %s", owner, error)
            self._runner.say(owner, Outcome("I could not do this; please try again later."))
        else:
            self._runner.say(owner, task.result())

    def _keep(self, ident: str, session: _Session) -> None:
        self._expire()
        owner = bare(session.sender)
        own = [name for name, kept in self._sessions.items() if bare(kept.sender) == owner]
        for name in own[: max(0, len(own) + 1 - _SESSIONS_OF_ONE)]:
            del self._sessions[name]
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[ident] = session

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for name in [name for name, kept in self._sessions.items() if kept.expires < now]:
            del self._sessions[name]


def _form(ident: str, session: _Session) -> CommandStage:
    step = session.steps[session.at]
    form = CommandForm(session.command.title, step.instructions, step.fields, session.values)
    return CommandStage(
        session.command.node, ident, "executing", form, allowed(session.steps, session.at), title=session.command.title
    )
