"""The commands of the platform, one table: for everybody, and for operators."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from ...domain.conversation import Life
from ...domain.forms import CONVERSATION, Choice, Field, FieldError, Value
from ...domain.history import interactions
from ...domain.jid import local_part
from ...domain.preferences import Preferences
from ...exceptions import UploadError
from ...memory import TOKENS, export_person
from ...storage import NOTHING, WINDOW, Window
from .formatting import conversation_line, count, marked_json, turn_text, variable_lines
from .model import SURE, Asked, Command, Outcome

_TURNS = 10
_MOST_TURNS = 200
_LISTED = 50
_MOST_LISTED = 500
_LEVELS = ("debug", "info", "warning", "error")
_EXPORT_AS_TEXT = 200_000
_PLATFORM_LOG = "spade_coreason"
_AS_USUAL = "default"
_SWITCH = {"on": True, "off": False}


async def _help(asked: Asked) -> Outcome:
    metadata = asked.house.agent.manifest.metadata
    description = next((c.description for c in asked.house.agent.manifest.capabilities if c.description), "")
    lines = [f"I am {metadata.name}{': ' + description if description else '.'}", ""]
    lines += [f"{command.text}   {command.what}{_example(command)}" for command in asked.commands]
    lines += ["", "With two slashes it is a text for me."]
    return Outcome("\n".join(lines))


def _example(command: Command) -> str:
    return f" (`{command.text} {command.usage}`)" if command.usage else ""


async def _status(asked: Asked) -> Outcome:
    if asked.row is None:
        return Outcome("We have not spoken yet.")
    life, most = asked.row.life, asked.house.rules.max_interactions
    counted = f"{life.interaction_count} of {most} messages" if most else count(life.interaction_count, "message")
    text = f"This conversation is {life.state.value.replace('_', ' ')}: {counted}, {asked.row.turns} answered in all."
    text += _when_it_goes_on(asked, life)
    if asked.house.is_paused:
        text += " I am paused at the moment."
    return Outcome(text)


def _when_it_goes_on(asked: Asked, life: Life) -> str:
    if life.quiet_until is None or life.quiet_until <= asked.house.now():
        return ""
    return f" It goes on at {life.quiet_until.astimezone():%H:%M:%S}."


async def _new(asked: Asked) -> Outcome:
    return Outcome("Your next message begins a new conversation. What I remember stays.", "new")


async def _conversations(asked: Asked) -> Outcome:
    rows = [row for row in await asked.house.store.conversations(owner=asked.owner) if row.turns]
    lines = [conversation_line(row, asked.house.store.agent, is_own=True) for row in rows]
    return Outcome("\n".join(lines) or "There are none.")


async def _history(asked: Asked) -> Outcome:
    if asked.row is None:
        return Outcome("We said nothing yet.")
    found = interactions(await asked.house.store.history(asked.row.id, asked.values["turns"]))
    return Outcome("\n\n".join(turn_text(turn) for turn in found) or "We said nothing yet.")


async def _memory(asked: Asked) -> Outcome:
    house, row = asked.house, asked.row
    known: list[str] = []
    own: dict[str, str] = {}
    if row is not None:
        known = await house.memory.aget_information(row.conversation_id) if house.memory is not None else []
        own = await house.store.variables("conversation", row.conversation_id)
    person = await house.store.variables("person", asked.owner)
    lines = [f"- {text}" for text in known]
    values = {**person, **own}
    values.pop(TOKENS, None)
    window = Window.from_json(values.pop(WINDOW)) if WINDOW in values else NOTHING
    lines += [line for name, value in values.items() for line in variable_lines(name, value)]
    lines += [f"- In short: {window.summary}"] if window.summary else []
    return Outcome("\n".join(lines) or "Nothing.")


async def _cancel(asked: Asked) -> Outcome:
    return Outcome("Stopped." if asked.house.stop_answers(asked.owner) else "There is nothing to stop.")


async def _forget(asked: Asked) -> Outcome:
    return Outcome("", "forget this") if asked.values[SURE] else Outcome("Nothing was forgotten.")


async def _forget_me(asked: Asked) -> Outcome:
    return Outcome("", "forget me") if asked.values[SURE] else Outcome("Nothing was forgotten.")


async def _export(asked: Asked) -> Outcome:
    house = asked.house
    everything = await export_person(house.store, house.memory, asked.owner, clock=house.now)
    text = json.dumps(everything, indent=2, ensure_ascii=False)
    agent = local_part(house.store.agent)
    name = f"{agent}-{house.now():%Y-%m-%d}.json"
    size = len(text.encode())
    why = "there is no way to a server that keeps files"
    if house.files is not None:
        try:
            link = await house.files.upload(name, text.encode(), "application/json")
        except UploadError as error:
            why = error.problem
        else:
            said = f"Everything that I keep about you ({size:,} bytes). Whoever has the link can read it:"
            return Outcome(said, link=link)
    if size > _EXPORT_AS_TEXT:
        problem = f"What I keep about you is too long for messages ({size:,} bytes), and it cannot be a file: {why}."
        return Outcome(problem, is_error=True)
    cause, _, _remedy = why.partition(";")  # the remedy is not theirs
    return Outcome(f"Everything that I keep about you, as text. It cannot be a file: {cause}.", further=marked_json(text))


def _as_choice(value: bool | None) -> str:
    return _AS_USUAL if value is None else "on" if value else "off"


async def _preferred(asked: Asked) -> dict[str, Value]:
    now = await asked.house.preferences(asked.owner)
    return {
        "language": now.language or "",
        "thoughts": _as_choice(now.thoughts),
        "streaming": _as_choice(now.streaming),
    }


async def _settings(asked: Asked) -> Outcome:
    before = await asked.house.preferences(asked.owner)
    after = _preferences(before, asked.values)
    if after != before:
        await asked.house.prefer(asked.owner, after)
    return Outcome(
        f"language: {after.language or _AS_USUAL}\n"
        f"thoughts: {_as_choice(after.thoughts)}\n"
        f"streaming: {_as_choice(after.streaming)}"
    )


def _preferences(before: Preferences, said: Any) -> Preferences:
    """What was there, with what is said now. FieldError for a language that is none."""
    after = before
    if "language" in said:
        language = said["language"]
        try:
            after = replace(after, language=None if language in ("", None, _AS_USUAL) else language)
        except ValueError as error:
            raise FieldError(f"language: {error}.") from error
    if "thoughts" in said:
        after = replace(after, thoughts=_SWITCH.get(said["thoughts"]))
    if "streaming" in said:
        after = replace(after, streaming=_SWITCH.get(said["streaming"]))
    return after


async def _all(asked: Asked) -> Outcome:
    rows = await asked.house.store.conversations(limit=asked.values["number"])
    lines = [conversation_line(row, asked.house.store.agent, is_own=False) for row in rows if row.turns]
    return Outcome("\n".join(lines) or "There are none.")


async def _end(asked: Asked) -> Outcome:
    name = asked.values[CONVERSATION]
    if await asked.house.end_conversation(name):
        return Outcome(f"{name} is ended.")
    return await _not_changed(asked, name, "is not active")


async def _reset(asked: Asked) -> Outcome:
    name = asked.values[CONVERSATION]
    if await asked.house.reset_conversation(name):
        return Outcome(f"{name} begins anew; what is remembered stays.")
    return await _not_changed(asked, name, "has nothing to reset")


async def _not_changed(asked: Asked, name: str, why: str) -> Outcome:
    if await asked.house.store.find_conversations([name]):
        return Outcome(f"{name} {why}.")
    return Outcome(f"There is no conversation {name}. /all shows them.", is_error=True)


async def _pause(asked: Asked) -> Outcome:
    if asked.house.is_paused:
        return Outcome("I am paused already. /resume goes on.")
    asked.house.pause()
    return Outcome("Paused: nothing new is begun, and every message is kept. /resume goes on.")


async def _resume(asked: Asked) -> Outcome:
    if not asked.house.is_paused:
        return Outcome("I am not paused.")
    asked.house.resume()
    return Outcome("I go on.")


async def _level(asked: Asked) -> dict[str, Value]:
    return {"level": _level_now()}


def _level_now() -> str:
    return logging.getLevelName(logging.getLogger(_PLATFORM_LOG).getEffectiveLevel()).lower()


async def _log(asked: Asked) -> Outcome:
    level = asked.values["level"]
    if level is None:
        return Outcome(f"The log is at {_level_now()}.")
    logging.getLogger(_PLATFORM_LOG).setLevel(level.upper())
    return Outcome(f"The log of the whole platform is at {level} until it is started again.")


async def _admit(asked: Asked) -> Outcome:
    return await _decided(asked, is_admitted=True)


async def _reject(asked: Asked) -> Outcome:
    return await _decided(asked, is_admitted=False)


async def _decided(asked: Asked, *, is_admitted: bool) -> Outcome:
    admissions = asked.house.admissions
    if admissions is None:
        return Outcome("There is nobody to admit here.", is_error=True)
    decide = admissions.admit if is_admitted else admissions.reject
    return Outcome(await decide(asked.owner, asked.values["person"]))


_PERSON = Field("person", "their JID", is_required=True)
_ON_OFF = (Choice("on", "on"), Choice("off", "off"), Choice(_AS_USUAL, "as usual with this agent"))

EVERYBODY = (
    Command("help", "what I am, and what you can ask here", _help),
    Command("status", "where this conversation is", _status, about="a conversation"),
    Command("new", "begin a new conversation; what I remember stays", _new, about="a conversation", at_once=False),
    Command("conversations", "your conversations with me", _conversations, is_personal=True),
    Command(
        "history",
        f"what we said in this conversation, the newest {_TURNS} turns",
        _history,
        about="a conversation",
        is_personal=True,
        fields=(Field("turns", "how many of the newest turns", "number", default=_TURNS, least=1, most=_MOST_TURNS),),
        usage="50",
    ),
    Command("memory", "what I remember from this conversation", _memory, about="a conversation", is_personal=True),
    Command("cancel", "stop the answer that I am at work on", _cancel),
    Command(
        "forget",
        "forget this conversation",
        _forget,
        about="a conversation",
        is_personal=True,
        question="This deletes what we said in this conversation and what I remember from it.",
        at_once=False,
    ),
    Command(
        "forget me",
        "forget everything about you",
        _forget_me,
        is_personal=True,
        question="This deletes all our conversations and all that I remember of you.",
        at_once=False,
    ),
    Command("export", "everything that I keep about you, as a file", _export, is_personal=True),
    Command(
        "settings",
        "language, thoughts and streaming, as you want them",
        _settings,
        fields=(
            Field("language", "the language of answers, such as en or de; empty is as usual", default=""),
            Field("thoughts", "whether what I think meanwhile is shown", "choice", choices=_ON_OFF, default=_AS_USUAL),
            Field("streaming", "whether an answer grows before your eyes", "choice", choices=_ON_OFF, default=_AS_USUAL),
        ),
        by_name=True,
        usage="streaming off",
        filled=_preferred,
    ),
)

OPERATORS = (
    Command(
        "all",
        "the conversations of everybody with me, the newest first",
        _all,
        who="operators",
        fields=(Field("number", "how many", "number", default=_LISTED, least=1, most=_MOST_LISTED),),
        usage="50",
    ),
    Command("end", "end a conversation of anybody", _end, who="operators", about="any conversation", usage="ID"),
    Command("reset", "let a conversation begin anew", _reset, who="operators", about="any conversation", usage="ID"),
    Command("admit", "let somebody talk to me", _admit, who="operators", fields=(_PERSON,), usage="JID"),
    Command("reject", "let somebody talk to me no longer", _reject, who="operators", fields=(_PERSON,), usage="JID"),
    Command("pause", "begin nothing new; every message is kept", _pause, who="operators"),
    Command("resume", "go on after a pause", _resume, who="operators"),
    Command(
        "log",
        "how much the platform writes to its log",
        _log,
        who="operators",
        fields=(Field("level", "from which level on", "choice", choices=tuple(Choice(name, name) for name in _LEVELS)),),
        usage="debug",
        filled=_level,
    ),
)
