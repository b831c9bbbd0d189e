"""The commands of the platform in two tables: for everybody, and for operators."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

from ...domain.conversation import ConversationStatus
from ...domain.forms.commands import CONFIRMED, Command, CommandResult, ResultKind
from ...domain.forms.fields import CONVERSATION_FIELD, Choice, Field, FieldError, FieldValue
from ...domain.history import parse_interactions
from ...domain.jid import local_part
from ...domain.preferences import Preferences
from ...domain.texts.durations import format_duration
from ...domain.texts.translation import LANGUAGE, N_, translate, translate_plural
from ...exceptions import ConfigError, UploadError
from ...operations.agents import ListUsage, list_usage
from ...operations.definition import OfAgents, Operation
from ...operations.doors.logins import OfAccount, create_login
from ...operations.memory import RecallMemory, recall_memory
from ...operations.people import OfWholePerson, export_whole_person
from ...operations.platform import LOG_LEVELS, SetLogLevel, list_turns, set_log_level
from ...operations.sessions import (
    ListSessions,
    OfPerson,
    ShowSession,
    describe_conversations,
    describe_state,
    export_sessions,
    list_sessions,
    show_session,
)
from ...operations.table import OPERATIONS
from ...operations.view import PERSON_FIELD, Slash
from ..access.admission import DELETION_NOTICE
from .answers import COMMANDS_FOR_ANSWERS
from .context import Invocation
from .formatting import fence_json, format_memory, format_turn
from .reminders import cancel_reminder, list_reminders

_DEFAULT_TURNS = 10
_MAX_TURNS = 200
_MAX_USAGE = 10
_MAX_RUNNING = 20
_MAX_EXPORT_TEXT_BYTES = 200_000
_MAX_EXPORT_PROGRAM_BYTES = 16 * 1024 * 1024
_DEFAULT = N_("default")
_SWITCH = {"on": True, "off": False}
_SWITCH_NAMES = ("thoughts", "streaming", "notifications")


async def _help(invocation: Invocation) -> CommandResult:
    metadata = invocation.context.agent.manifest.metadata
    description = next((c.description for c in invocation.context.agent.manifest.capabilities if c.description), "")
    name = (
        translate("I am {name}: {description}", name=metadata.name, description=translate(description))
        if description
        else translate("I am {name}.", name=metadata.name)
    )
    lines = [name, ""]
    lines += [f"{command.text}   {translate(command.description)}{_example(command)}" for command in invocation.commands]
    lines += ["", _typing_hint(invocation.context.prefixes), translate("Start a message with // to send its text to me.")]
    return CommandResult("\n".join(lines))


async def _web(invocation: Invocation) -> CommandResult:
    link = await invocation.perform(create_login, OfAccount(person=invocation.owner))
    return CommandResult(translate("This link opens the chat in your browser, once and within two minutes:"), link=link)


def _typing_hint(prefixes: tuple[str, ...]) -> str:
    """Say how to send a command from a client that has a command of the same name."""
    others = [prefix for prefix in prefixes if prefix != "/"]
    if not others:
        return translate(
            "If your client runs such a line itself, write a space before the slash, or use your client's command menu."
        )
    return translate(
        "If your client runs such a line itself, write a space before the slash, or {prefixes} instead of it,"
        " or use your client's command menu.",
        prefixes=translate(" or ").join(others),
    )


def _example(command: Command) -> str:
    return f" (`{command.text} {command.usage}`)" if command.usage else ""


async def _status(invocation: Invocation) -> CommandResult:
    parts = [_describe_conversation(invocation)]
    if invocation.context.mailboxes.gate.is_paused:
        parts.append(translate("I am paused at the moment."))
    agent = invocation.context.jid
    [own] = await invocation.perform(list_usage, ListUsage(agent=agent, person=invocation.owner))
    limit = own.messages_per_minute
    parts.append(
        translate("You have sent {messages} today (at most {number} a minute).", messages=own, number=limit)
        if limit
        else translate("You have sent {messages} today.", messages=own)
    )
    text = " ".join(parts)
    if invocation.is_operator:
        total, *others = await invocation.perform(list_usage, ListUsage(agent=agent, limit=_MAX_USAGE))
        lines = [f"- {used.holder}: {used}" for used in others]
        text += "\n\n" + "\n".join([translate("All people have sent {messages} today:", messages=total), *lines])
        text += "\n\n" + await _describe_running(invocation)
    return CommandResult(text)


async def _describe_running(invocation: Invocation) -> str:
    """List the answers that run, as `spade-coreason status AGENT` does."""
    running = await invocation.perform(list_turns, OfAgents(agent=invocation.context.jid))
    if not running:
        return translate("I am working on no answer.")
    lines = [translate_plural("I am working on {number} answer:", "I am working on {number} answers:", len(running))]
    for turn in running[:_MAX_RUNNING]:
        duration = format_duration((invocation.context.clock() - turn.since).total_seconds())
        line = translate("{person}, for {duration}", person=turn.person, duration=duration)
        line += translate(", last step: {step}", step=turn.last_step) if turn.last_step else ""
        lines.append("- " + line + translate(", waits in {place}", place=turn.waits_in) if turn.waits_in else "- " + line)
    if len(running) > _MAX_RUNNING:
        lines.append("- …")
    return "\n".join(lines)


def _describe_conversation(invocation: Invocation) -> str:
    if invocation.record is None:
        return translate("You have not written to me yet.")
    status, limit = invocation.record.status, invocation.context.rules.max_interactions
    number = status.interaction_count
    counted = (
        translate_plural("{used} of {number} message", "{used} of {number} messages", limit, used=number)
        if limit
        else translate_plural("{number} message", "{number} messages", number)
    )
    text = translate(
        "This conversation is {state}: {messages}, {answered} answered in all.",
        state=describe_state(status.state),
        messages=counted,
        answered=invocation.record.turns,
    )
    return text + _describe_pause(invocation, status)


def _describe_pause(invocation: Invocation, status: ConversationStatus) -> str:
    if status.quiet_until is None or status.quiet_until <= invocation.context.clock():
        return ""
    return " " + translate("It continues at {time}.", time=f"{status.quiet_until.astimezone():%H:%M:%S}")


async def _new(invocation: Invocation) -> CommandResult:
    return CommandResult(translate("Your next message starts a new conversation. I still remember what I know of you."), "new")


async def _conversations(invocation: Invocation) -> CommandResult:
    wanted = ListSessions(agent=invocation.context.jid, person=invocation.owner)
    found = await invocation.perform(list_sessions, wanted)
    return CommandResult(describe_conversations(found, is_own=True))


async def _history(invocation: Invocation) -> CommandResult:
    record = invocation.record
    if record is None or not record.turns:
        return CommandResult(translate("You have not written to me yet."))
    wanted = ShowSession(agent=invocation.context.jid, conversation=record.conversation_id, limit=invocation.values["turns"])
    session = await invocation.perform(show_session, wanted)
    return CommandResult("\n\n".join(map(format_turn, parse_interactions(map(json.dumps, session.history)))))


async def _memory(invocation: Invocation) -> CommandResult:
    record = invocation.record
    name = None if record is None else record.conversation_id
    wanted = RecallMemory(agent=invocation.context.jid, person=invocation.owner, conversation=name)
    found = await invocation.perform(recall_memory, wanted)
    lines = format_memory(found.facts, found.variables, found.person_variables)
    lines += ["- " + translate("Summary: {summary}", summary=found.summary)] if found.summary else []
    return CommandResult("\n".join(lines) or translate("Nothing."))


async def _cancel(invocation: Invocation) -> CommandResult:
    return CommandResult(
        translate("Stopped.")
        if invocation.context.withdrawal.cancel_turns(invocation.owner)
        else translate("There is nothing to stop.")
    )


async def _forget(kind: ResultKind, invocation: Invocation) -> CommandResult:
    return CommandResult("", kind) if invocation.values[CONFIRMED] else CommandResult(translate("Nothing was deleted."))


async def _export(invocation: Invocation) -> CommandResult:
    wanted = OfPerson(agent=invocation.context.jid, person=invocation.owner)
    return await _send_export(invocation, await invocation.perform(export_sessions, wanted))


async def _export_everywhere(invocation: Invocation) -> CommandResult:
    person = invocation.values.get("person")
    everything = await invocation.perform(export_whole_person, OfWholePerson(person=person or invocation.owner))
    return await _send_export(invocation, everything, _EXPORT_OF_PERSON if person else _OWN_EXPORT)


class _ExportTexts(NamedTuple):
    """The texts with an export: for a file, for text to a program or to a person, and for data that cannot be sent."""

    linked: str
    for_program: str
    as_text: str
    too_long: str


_OWN_EXPORT = _ExportTexts(
    N_("Everything that I store about you ({size} bytes). Anyone who has the link can read it:"),
    N_("Everything that I store about you ({size} bytes):"),
    N_("Everything that I store about you, as text. I cannot send it as a file: {reason}."),
    N_("What I store about you is too long for messages ({size} bytes), and I cannot send it as a file: {reason}."),
)
_EXPORT_OF_PERSON = _ExportTexts(
    N_("The stored data about {person} ({size} bytes). Anyone who has the link can read it:"),
    N_("The stored data about {person} ({size} bytes):"),
    N_("The stored data about {person}, as text. I cannot send it as a file: {reason}."),
    N_("The stored data about {person} are too long for messages ({size} bytes), and I cannot send a file: {reason}."),
)


async def _send_export(invocation: Invocation, everything: dict[str, Any], texts: _ExportTexts = _OWN_EXPORT) -> CommandResult:
    context, person = invocation.context, everything["person"]
    text = await asyncio.to_thread(json.dumps, everything, indent=2, ensure_ascii=False)
    if person in context.erased_people:  # since it was read
        return CommandResult(translate(DELETION_NOTICE), is_error=True)
    size = len(text.encode())
    # A program reads texts of any length, and nobody else can read them, as they could a file.
    if invocation.is_from_program and size <= _MAX_EXPORT_PROGRAM_BYTES:
        return CommandResult(translate(texts.for_program, size=size, person=person), extra_texts=fence_json(text))
    name = f"{local_part(context.jid)}-{context.clock():%Y-%m-%d}.json"
    try:
        link = await context.files.upload(name, text.encode(), "application/json")
    except UploadError as error:
        reason = translate(error.problem)
    else:
        return CommandResult(translate(texts.linked, size=size, person=person), link=link)
    if size > _MAX_EXPORT_TEXT_BYTES:
        return CommandResult(translate(texts.too_long, size=size, person=person, reason=reason), is_error=True)
    cause, _, _remedy = reason.partition(";")  # the remedy is the operator's
    return CommandResult(translate(texts.as_text, person=person, reason=cause), extra_texts=fence_json(text))


def _as_choice(value: bool | None) -> str:
    return _DEFAULT if value is None else N_("on") if value else N_("off")


async def _current_preferences(invocation: Invocation) -> dict[str, FieldValue]:
    preferences = await invocation.context.loader.persons.get_preferences(invocation.owner)
    return {
        "language": preferences.language or "",
        **{name: _as_choice(getattr(preferences, name)) for name in _SWITCH_NAMES},
        "zone": preferences.zone or "",
    }


async def _settings(invocation: Invocation) -> CommandResult:
    before = await invocation.context.loader.persons.get_preferences(invocation.owner)
    after = _apply_preferences(before, invocation.values)
    if after != before:
        await invocation.context.loader.persons.set_preferences(invocation.owner, after)
    if after.language != before.language:
        LANGUAGE.set(after.language)  # for this answer
    default_thoughts = N_("default (on)") if invocation.context.shows_thoughts else N_("default (only the tools that I use)")

    def show(value: bool | None, default: str) -> str:
        return translate(default if value is None else _as_choice(value))

    return CommandResult(
        translate(
            "language: {language}\nthoughts: {thoughts}\nstreaming: {streaming}\nnotifications: {notifications}\nzone: {zone}",
            language=after.language or translate("default (that of your messages)"),
            thoughts=show(after.thoughts, default_thoughts),
            streaming=show(after.streaming, N_("default (on, where your client supports it)")),
            notifications=show(after.notifications, N_("default (on)")),
            zone=after.zone or translate("default ({zone})", zone=invocation.context.zone),
        )
    )


def _apply_preferences(before: Preferences, values: Any) -> Preferences:
    """Return the preferences with the given values. FieldError for a language or a time zone that is none."""
    after = before
    if "language" in values:
        language = values["language"]
        try:
            after = replace(after, language=None if language in ("", None, _DEFAULT) else language)
        except ValueError as error:
            raise FieldError(
                translate('"{text}" is not a language. Write it like en, de or pt-BR.', text=str(language)[:40])
            ) from error
    switches: dict[str, Any] = {name: _SWITCH.get(values[name]) for name in _SWITCH_NAMES if name in values}
    after = replace(after, **switches)
    if "zone" in values:
        zone = values["zone"]
        try:
            after = replace(after, zone=None if zone in ("", None, _DEFAULT) else zone)
        except ValueError as error:
            raise FieldError(
                translate('"{text}" is not a time zone. Write it like Europe/Berlin.', text=str(zone)[:40])
            ) from error
    return after


async def _initial_level(invocation: Invocation) -> dict[str, FieldValue]:
    level = await invocation.perform(set_log_level, SetLogLevel())
    return {"level": level.partition(",")[0]}  # those of several workers may differ


async def _log(invocation: Invocation) -> CommandResult:
    wanted = invocation.values["level"]
    level = await invocation.perform(set_log_level, SetLogLevel(level=wanted))
    text = N_("The level of the log of the whole platform is {level} until its next start.")
    return CommandResult(translate(text if wanted else N_("The level of the log is {level}."), level=level))


_ON_OFF = (Choice("on", N_("on")), Choice("off", N_("off")), Choice(_DEFAULT, N_("default of this agent")))

COMMANDS_FOR_EVERYBODY = (
    Command("help", N_("show what I am and which commands there are"), _help),
    Command("status", N_("show the state of this conversation"), _status, subject="a conversation"),
    Command(
        "new", N_("start a new conversation; I still remember what I know"), _new, subject="a conversation", is_immediate=False
    ),
    Command("conversations", N_("list your conversations with me"), _conversations, is_personal=True),
    Command(
        "history",
        N_("show the newest turns of this conversation"),
        _history,
        subject="a conversation",
        is_personal=True,
        fields=(
            Field("turns", N_("how many of the newest turns"), "number", default=_DEFAULT_TURNS, minimum=1, maximum=_MAX_TURNS),
        ),
        usage="50",
    ),
    Command("memory", N_("show what I remember from this conversation"), _memory, subject="a conversation", is_personal=True),
    Command("cancel", N_("stop the answer that I am working on"), _cancel),
    Command(
        "forget",
        N_("delete this conversation"),
        partial(_forget, "forget this"),
        subject="a conversation",
        is_personal=True,
        question=N_("This deletes this conversation and what I remember from it."),
        is_immediate=False,
    ),
    Command(
        "forget me",
        N_("delete everything that I store about you"),
        partial(_forget, "forget me"),
        is_personal=True,
        question=N_("This deletes all your conversations with me and everything that I remember about you."),
        is_immediate=False,
    ),
    Command(
        "forget everywhere",
        N_("delete everything that any agent of my platform stores about you"),
        partial(_forget, "forget everywhere"),
        is_personal=True,
        question=N_("This deletes everything that I and all other agents of my platform store about you."),
        is_immediate=False,
    ),
    *COMMANDS_FOR_ANSWERS,
    Command("reminders", N_("list your reminders"), list_reminders, is_personal=True),
    Command(
        "reminders cancel",
        N_("cancel a reminder"),
        cancel_reminder,
        is_personal=True,
        fields=(Field("number", N_("its number in the list"), "number", is_required=True, minimum=1, maximum=100),),
        usage="1",
    ),
    Command("web", N_("get a link to chat with me in the browser"), _web, is_personal=True),
    Command("export", N_("get everything that I store about you as a file"), _export, is_personal=True),
    Command(
        "export everywhere",
        N_("get everything that any agent of my platform stores about you as a file"),
        _export_everywhere,
        is_personal=True,
    ),
    Command(
        "settings",
        N_("choose the language, the time zone, what is shown, and whether I may write first"),
        _settings,
        fields=(
            Field("language", N_("the language of answers, such as en or de; empty for the default"), default=""),
            Field("thoughts", N_("whether you see what I think while I work"), "choice", choices=_ON_OFF, default=_DEFAULT),
            Field("streaming", N_("whether you see an answer while it grows"), "choice", choices=_ON_OFF, default=_DEFAULT),
            Field("notifications", N_("whether I may write to you first"), "choice", choices=_ON_OFF, default=_DEFAULT),
            Field("zone", N_("your time zone, such as Europe/Berlin; empty for the default"), default=""),
        ),
        has_named_values=True,
        usage="streaming off",
        initial_values=_current_preferences,
    ),
)


async def _perform(operation: Operation[Any, Any], slash: Slash, invocation: Invocation) -> CommandResult:
    """Perform the operation of a command with the values of its fields."""
    if slash.question and not invocation.values[CONFIRMED]:
        return CommandResult(translate("Nothing was deleted."))
    names = {one.name for one in operation.arguments}
    given = {name: value for name, value in invocation.values.items() if name in names}
    own = {"agent": invocation.context.jid} if "agent" in names else {}
    try:
        found = await invocation.perform(operation, operation.read_arguments({**given, **own}))
    except ConfigError:
        if not slash.missing:
            raise
        return CommandResult(translate(slash.missing, **given), is_error=True)
    if callable(slash.done):
        return CommandResult(str(slash.done(found)))
    [row] = found if isinstance(found, list) else [found]
    text = slash.done if not slash.unchanged or row.is_changed else slash.unchanged
    return CommandResult(translate(text, **asdict(row)))


def _make_command(operation: Operation[Any, Any], slash: Slash) -> Command:
    return Command(
        slash.name,
        slash.description,
        partial(_perform, operation, slash),
        audience="operators",
        subject="any conversation" if any(one.name == CONVERSATION_FIELD for one in operation.arguments) else "the person",
        fields=slash.fields,
        question=slash.question,
        usage=slash.usage,
    )


COMMANDS_FOR_OPERATORS = (
    *(_make_command(one, one.view.slash) for one in OPERATIONS.values() if one.view.slash is not None),
    Command(
        "people export",
        N_("get everything about a person as a file, from the agents whose operator you are"),
        _export_everywhere,
        audience="operators",
        fields=(PERSON_FIELD,),
        usage="JID",
    ),
    Command(
        "log",
        N_("show or set the level of the log"),
        _log,
        audience="operators",
        fields=(Field("level", N_("from which level on"), "choice", choices=tuple(Choice(name, name) for name in LOG_LEVELS)),),
        usage="debug",
        initial_values=_initial_level,
    ),
)
