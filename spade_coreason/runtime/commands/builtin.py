"""The commands of the platform in two tables: for everybody, and for operators."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from ...domain.conversation import ConversationStatus
from ...domain.forms import CONVERSATION_FIELD, Choice, Field, FieldError, FieldValue
from ...domain.history import parse_interactions
from ...domain.jid import local_part
from ...domain.preferences import Preferences
from ...exceptions import UploadError
from ...memory import TOKENS_VARIABLE, export_person
from ...storage import COMPACTION_VARIABLE, NO_COMPACTION, CompactionState
from .context import Invocation
from .formatting import fence_json, format_conversation, format_memory, format_turn, pluralise
from .model import CONFIRMED, Command, CommandResult

_DEFAULT_TURNS = 10
_MAX_TURNS = 200
_DEFAULT_LISTED = 50
_MAX_LISTED = 500
_MAX_USAGE = 10
_LEVELS = ("debug", "info", "warning", "error")
_MAX_EXPORT_TEXT_BYTES = 200_000
_MAX_EXPORT_PROGRAM_BYTES = 16 * 1024 * 1024
_PLATFORM_LOG = "spade_coreason"
_DEFAULT = "default"
_SWITCH = {"on": True, "off": False}


async def _help(invocation: Invocation) -> CommandResult:
    metadata = invocation.context.agent.manifest.metadata
    description = next((c.description for c in invocation.context.agent.manifest.capabilities if c.description), "")
    lines = [f"I am {metadata.name}{': ' + description if description else '.'}", ""]
    lines += [f"{command.text}   {command.description}{_example(command)}" for command in invocation.commands]
    lines += ["", _typing_hint(invocation.context.prefixes), "With two slashes it is a text for me."]
    return CommandResult("\n".join(lines))


def _typing_hint(prefixes: tuple[str, ...]) -> str:
    """Say how to send a command from a client that has a command of the same name."""
    others = "".join(f", or {prefix} instead of it" for prefix in prefixes if prefix != "/")
    return f"If your client runs such a line itself, write a space before the slash{others}; or use your client's command menu."


def _example(command: Command) -> str:
    return f" (`{command.text} {command.usage}`)" if command.usage else ""


async def _status(invocation: Invocation) -> CommandResult:
    parts = [_describe_conversation(invocation)]
    if invocation.context.control.is_paused:
        parts.append("I am paused at the moment.")
    quota_limit = invocation.context.quota_limit
    own = quota_limit.usage_of(invocation.owner)
    rate = f" (at most {own.messages_per_minute:,} a minute)" if own.messages_per_minute else ""
    parts.append(f"You have sent {own} today{rate}.")
    text = " ".join(parts)
    if invocation.is_operator:
        total, *others = quota_limit.usage(_MAX_USAGE)
        lines = [f"- {used.holder}: {used}" for used in others]
        text += "\n\n" + "\n".join([f"Everybody has sent {total} today:", *lines])
    return CommandResult(text)


def _describe_conversation(invocation: Invocation) -> str:
    if invocation.record is None:
        return "We have not spoken yet."
    status, limit = invocation.record.status, invocation.context.rules.max_interactions
    counted = f"{status.interaction_count} of {limit} messages" if limit else pluralise(status.interaction_count, "message")
    text = f"This conversation is {status.state.value.replace('_', ' ')}: {counted}, {invocation.record.turns} answered in all."
    return text + _describe_pause(invocation, status)


def _describe_pause(invocation: Invocation, status: ConversationStatus) -> str:
    if status.quiet_until is None or status.quiet_until <= invocation.context.clock():
        return ""
    return f" It goes on at {status.quiet_until.astimezone():%H:%M:%S}."


async def _new(invocation: Invocation) -> CommandResult:
    return CommandResult("Your next message begins a new conversation. What I remember stays.", "new")


async def _conversations(invocation: Invocation) -> CommandResult:
    records = [
        record for record in await invocation.context.repository.list_conversations(owner=invocation.owner) if record.turns
    ]
    lines = [format_conversation(record, invocation.context.repository.agent, is_own=True) for record in records]
    return CommandResult("\n".join(lines) or "There are none.")


async def _history(invocation: Invocation) -> CommandResult:
    if invocation.record is None:
        return CommandResult("We said nothing yet.")
    turns = parse_interactions(
        await invocation.context.repository.load_history(invocation.record.id, invocation.values["turns"])
    )
    return CommandResult("\n\n".join(format_turn(turn) for turn in turns) or "We said nothing yet.")


async def _memory(invocation: Invocation) -> CommandResult:
    context, record = invocation.context, invocation.record
    facts: list[str] = []
    conversation_variables: dict[str, str] = {}
    if record is not None:
        facts = (
            await context.interaction_memory.aget_information(record.conversation_id)
            if context.interaction_memory is not None
            else []
        )
        conversation_variables = await context.repository.load_variables("conversation", record.conversation_id)
    person_variables = await context.repository.load_variables("person", invocation.owner)
    window = NO_COMPACTION
    if COMPACTION_VARIABLE in conversation_variables:
        window = CompactionState.from_json(conversation_variables.pop(COMPACTION_VARIABLE))
    for variables in (conversation_variables, person_variables):
        variables.pop(TOKENS_VARIABLE, None)
    lines = format_memory(facts, conversation_variables, person_variables)
    lines += [f"- In short: {window.summary}"] if window.summary else []
    return CommandResult("\n".join(lines) or "Nothing.")


async def _cancel(invocation: Invocation) -> CommandResult:
    return CommandResult(
        "Stopped." if invocation.context.mailboxes.cancel_turns(invocation.owner) else "There is nothing to stop."
    )


async def _forget(invocation: Invocation) -> CommandResult:
    return CommandResult("", "forget this") if invocation.values[CONFIRMED] else CommandResult("Nothing was forgotten.")


async def _forget_me(invocation: Invocation) -> CommandResult:
    return CommandResult("", "forget me") if invocation.values[CONFIRMED] else CommandResult("Nothing was forgotten.")


async def _export(invocation: Invocation) -> CommandResult:
    context = invocation.context
    everything = await export_person(context.repository, context.interaction_memory, invocation.owner, clock=context.clock)
    text = json.dumps(everything, indent=2, ensure_ascii=False)
    size = len(text.encode())
    # A program reads texts of any length, and nobody else can read them, as they could a file.
    if invocation.is_from_program and size <= _MAX_EXPORT_PROGRAM_BYTES:
        return CommandResult(f"Everything that I keep about you ({size:,} bytes):", extra_texts=fence_json(text))
    name = f"{local_part(context.repository.agent)}-{context.clock():%Y-%m-%d}.json"
    try:
        link = await context.files.upload(name, text.encode(), "application/json")
    except UploadError as error:
        reason = error.problem
    else:
        reply = f"Everything that I keep about you ({size:,} bytes). Whoever has the link can read it:"
        return CommandResult(reply, link=link)
    if size > _MAX_EXPORT_TEXT_BYTES:
        problem = f"What I keep about you is too long for messages ({size:,} bytes), and it cannot be a file: {reason}."
        return CommandResult(problem, is_error=True)
    cause, _, _remedy = reason.partition(";")  # the remedy is the operator's
    return CommandResult(
        f"Everything that I keep about you, as text. It cannot be a file: {cause}.", extra_texts=fence_json(text)
    )


def _as_choice(value: bool | None) -> str:
    return _DEFAULT if value is None else "on" if value else "off"


async def _current_preferences(invocation: Invocation) -> dict[str, FieldValue]:
    preferences = await invocation.context.loader.get_preferences(invocation.owner)
    return {
        "language": preferences.language or "",
        "thoughts": _as_choice(preferences.thoughts),
        "streaming": _as_choice(preferences.streaming),
    }


async def _settings(invocation: Invocation) -> CommandResult:
    before = await invocation.context.loader.get_preferences(invocation.owner)
    after = _apply_preferences(before, invocation.values)
    if after != before:
        await invocation.context.loader.set_preferences(invocation.owner, after)
    return CommandResult(
        f"language: {after.language or _DEFAULT}\n"
        f"thoughts: {_as_choice(after.thoughts)}\n"
        f"streaming: {_as_choice(after.streaming)}"
    )


def _apply_preferences(before: Preferences, values: Any) -> Preferences:
    """Return the preferences with the given values. FieldError for an invalid language tag."""
    after = before
    if "language" in values:
        language = values["language"]
        try:
            after = replace(after, language=None if language in ("", None, _DEFAULT) else language)
        except ValueError as error:
            raise FieldError(f"language: {error}.") from error
    if "thoughts" in values:
        after = replace(after, thoughts=_SWITCH.get(values["thoughts"]))
    if "streaming" in values:
        after = replace(after, streaming=_SWITCH.get(values["streaming"]))
    return after


async def _all(invocation: Invocation) -> CommandResult:
    records = await invocation.context.repository.list_conversations(limit=invocation.values["number"])
    lines = [
        format_conversation(record, invocation.context.repository.agent, is_own=False) for record in records if record.turns
    ]
    return CommandResult("\n".join(lines) or "There are none.")


async def _end(invocation: Invocation) -> CommandResult:
    name = invocation.values[CONVERSATION_FIELD]
    if await invocation.context.control.end(name):
        return CommandResult(f"{name} is ended.")
    return await _not_changed(invocation, name, "is not active")


async def _reset(invocation: Invocation) -> CommandResult:
    name = invocation.values[CONVERSATION_FIELD]
    if await invocation.context.control.reset(name):
        return CommandResult(f"{name} begins anew; what is remembered stays.")
    return await _not_changed(invocation, name, "has nothing to reset")


async def _not_changed(invocation: Invocation, name: str, reason: str) -> CommandResult:
    if await invocation.context.repository.find_conversations([name]):
        return CommandResult(f"{name} {reason}.")
    return CommandResult(f"There is no conversation {name}. /all shows them.", is_error=True)


async def _pause(invocation: Invocation) -> CommandResult:
    if invocation.context.control.is_paused:
        return CommandResult("I am paused already. /resume goes on.")
    invocation.context.control.pause()
    return CommandResult("Paused: nothing new is begun, and every message is kept. /resume goes on.")


async def _resume(invocation: Invocation) -> CommandResult:
    if not invocation.context.control.is_paused:
        return CommandResult("I am not paused.")
    invocation.context.control.resume()
    return CommandResult("I go on.")


async def _initial_level(invocation: Invocation) -> dict[str, FieldValue]:
    return {"level": _current_level()}


def _current_level() -> str:
    return logging.getLevelName(logging.getLogger(_PLATFORM_LOG).getEffectiveLevel()).lower()


async def _log(invocation: Invocation) -> CommandResult:
    level = invocation.values["level"]
    if level is None:
        return CommandResult(f"The log is at {_current_level()}.")
    logging.getLogger(_PLATFORM_LOG).setLevel(level.upper())
    return CommandResult(f"The log of the whole platform is at {level} until it is started again.")


async def _admit(invocation: Invocation) -> CommandResult:
    return await _decide_access(invocation, is_admitted=True)


async def _reject(invocation: Invocation) -> CommandResult:
    return await _decide_access(invocation, is_admitted=False)


async def _decide_access(invocation: Invocation, *, is_admitted: bool) -> CommandResult:
    access_requests = invocation.context.access_requests
    if access_requests is None:
        return CommandResult("There is nobody to admit here.", is_error=True)
    decide = access_requests.admit if is_admitted else access_requests.reject
    return CommandResult(await decide(invocation.owner, invocation.values["person"]))


_PERSON = Field("person", "their JID", is_required=True)
_ON_OFF = (Choice("on", "on"), Choice("off", "off"), Choice(_DEFAULT, "as usual with this agent"))

COMMANDS_FOR_EVERYBODY = (
    Command("help", "what I am, and what you can ask here", _help),
    Command("status", "where this conversation is", _status, subject="a conversation"),
    Command("new", "begin a new conversation; what I remember stays", _new, subject="a conversation", is_immediate=False),
    Command("conversations", "your conversations with me", _conversations, is_personal=True),
    Command(
        "history",
        f"what we said in this conversation, the newest {_DEFAULT_TURNS} turns",
        _history,
        subject="a conversation",
        is_personal=True,
        fields=(
            Field("turns", "how many of the newest turns", "number", default=_DEFAULT_TURNS, minimum=1, maximum=_MAX_TURNS),
        ),
        usage="50",
    ),
    Command("memory", "what I remember from this conversation", _memory, subject="a conversation", is_personal=True),
    Command("cancel", "stop the answer that I am at work on", _cancel),
    Command(
        "forget",
        "forget this conversation",
        _forget,
        subject="a conversation",
        is_personal=True,
        question="This deletes what we said in this conversation and what I remember from it.",
        is_immediate=False,
    ),
    Command(
        "forget me",
        "forget everything about you",
        _forget_me,
        is_personal=True,
        question="This deletes all our conversations and all that I remember of you.",
        is_immediate=False,
    ),
    Command("export", "everything that I keep about you, as a file", _export, is_personal=True),
    Command(
        "settings",
        "language, thoughts and streaming, as you want them",
        _settings,
        fields=(
            Field("language", "the language of answers, such as en or de; empty is as usual", default=""),
            Field("thoughts", "whether what I think meanwhile is shown", "choice", choices=_ON_OFF, default=_DEFAULT),
            Field("streaming", "whether an answer grows before your eyes", "choice", choices=_ON_OFF, default=_DEFAULT),
        ),
        has_named_values=True,
        usage="streaming off",
        initial_values=_current_preferences,
    ),
)

COMMANDS_FOR_OPERATORS = (
    Command(
        "all",
        "the conversations of everybody with me, the newest first",
        _all,
        audience="operators",
        fields=(Field("number", "how many", "number", default=_DEFAULT_LISTED, minimum=1, maximum=_MAX_LISTED),),
        usage="50",
    ),
    Command("end", "end a conversation of anybody", _end, audience="operators", subject="any conversation", usage="ID"),
    Command("reset", "let a conversation begin anew", _reset, audience="operators", subject="any conversation", usage="ID"),
    Command("admit", "let somebody talk to me", _admit, audience="operators", fields=(_PERSON,), usage="JID"),
    Command("reject", "let somebody talk to me no longer", _reject, audience="operators", fields=(_PERSON,), usage="JID"),
    Command("pause", "begin nothing new; every message is kept", _pause, audience="operators"),
    Command("resume", "go on after a pause", _resume, audience="operators"),
    Command(
        "log",
        "how much the platform writes to its log",
        _log,
        audience="operators",
        fields=(Field("level", "from which level on", "choice", choices=tuple(Choice(name, name) for name in _LEVELS)),),
        usage="debug",
        initial_values=_initial_level,
    ),
)
