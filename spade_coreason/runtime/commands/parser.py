"""Commands in texts: which one a line is, and what it says in which field; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...domain.forms import CONVERSATION, Choice, Field, FieldError, Value
from .model import SURE, Command


class Read(NamedTuple):
    """A line that is a command. `values` is None where something is wrong, or still to be asked, as `problem` says."""

    command: Command
    values: dict[str, Any] | None
    problem: str = ""
    choices: tuple[Choice, ...] = ()


def find(text: str, commands: Iterable[Command]) -> tuple[Command, str] | None:
    """The command that a text begins with, and what stands behind it; None if it is for the agent, as `/me waves` is."""
    stripped = text.strip()
    if not stripped.startswith("/") or "\n" in stripped:
        return None
    words = stripped.split()
    best: Command | None = None
    for command in commands:
        names = command.text.split()
        if [word.lower() for word in words[: len(names)]] == names and (best is None or len(command.name) > len(best.name)):
            best = command
    if best is None:
        return None
    return best, stripped.split(None, len(best.text.split()))[-1] if len(words) > len(best.text.split()) else ""


def read(text: str, commands: Iterable[Command]) -> Read | None:
    """The command that a text is, with what it says; None if it is for the agent."""
    found = find(text, commands)
    if found is None:
        return None
    command, rest = found
    if command.question:
        return _confirmed(command, rest)
    try:
        values = _named(command, rest) if command.by_name else _in_order(command, rest)
    except FieldError as error:
        return Read(command, None, f"{error} {_how(command)}".strip())
    if values is None:
        return Read(command, None, f"I do not know that kind of {command.text.split()[0]}. /help shows what there is.")
    return Read(command, values)


def without_escape(text: str, commands: Iterable[Command]) -> str:
    """A text for the agent: where two slashes begin what would be a command, one of them was there to say so."""
    if not text.lstrip().startswith("//"):
        return text
    plain = text.replace("//", "/", 1)
    return plain if find(plain, commands) is not None else text


def text_fields(command: Command) -> tuple[Field, ...]:
    """What a text says in order. Of "a conversation" nothing: it is the one in which the text is said."""
    if command.about != "any conversation":
        return command.fields
    return (Field(CONVERSATION, "its id, as /all shows it", is_required=True), *command.fields)


def _confirmed(command: Command, rest: str) -> Read:
    if not rest:
        yes, no = f"{command.text} yes", f"{command.text} no"
        choices = (Choice(yes, "Yes"), Choice(no, "No"))
        return Read(command, None, f"{command.question} Write `{yes}` to do it.", choices)
    try:
        return Read(command, {SURE: Field(SURE, "", "yes or no").read(rest)})
    except FieldError:
        return Read(command, None, f"I do not know that kind of {command.text.split()[0]}. /help shows what there is.")


def _in_order(command: Command, rest: str) -> dict[str, Value] | None:
    fields = text_fields(command)
    if rest and not fields:
        return None
    said: dict[str, str] = {}
    for field in fields:
        # The last one takes all that is left; before it a city of two words is quoted.
        if field is fields[-1]:
            said[field.name] = rest
        elif rest.startswith('"'):
            said[field.name], _, rest = rest[1:].partition('"')
        else:
            said[field.name], _, rest = rest.partition(" ")
        rest = rest.strip()
    values: dict[str, Value] = {}
    for number, field in enumerate(fields):
        try:
            values[field.name] = field.read(said[field.name])
        except FieldError as error:
            texts = [before.name for before in fields[:number] if before.kind == "text"]
            if not (texts and said[field.name]):
                raise
            raise FieldError(f"{error} Several words of {' or '.join(texts)} stand in quotes.") from error
    return values


def _named(command: Command, rest: str) -> dict[str, Value]:
    if not rest:
        return {}
    name, _, value = rest.partition(" ")
    field = next((field for field in command.fields if field.name == name.lower()), None)
    if field is None:
        there = ", ".join(field.name for field in command.fields)
        raise FieldError(f'There is no "{name[:40]}"; there is {there}.')
    if not value.strip():
        raise FieldError(f"{field.name} is missing a value: {field.label}.")
    return {field.name: field.read(value)}


def _how(command: Command) -> str:
    return f"Write `{command.text} {command.usage}`." if command.usage else ""
