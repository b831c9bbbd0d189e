"""Commands in texts: the command of a line, and the values of its fields. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..texts.translation import N_, translate
from .commands import CONFIRMED, Command
from .fields import CONVERSATION_FIELD, Choice, Field, FieldError, FieldValue

DEFAULT_PREFIXES = ("/",)
"""The characters in front of the name of a command. `conversation.command_prefixes` may add others."""


class ParsedCommand(NamedTuple):
    """A line that is a command.

    `values` is None if something is wrong or must be asked first; then `problem` is the text to send.
    """

    command: Command
    values: dict[str, Any] | None
    problem: str = ""
    choices: tuple[Choice, ...] = ()


def find_command(
    text: str, commands: Iterable[Command], prefixes: tuple[str, ...] = DEFAULT_PREFIXES
) -> tuple[Command, str] | None:
    """Return the command that a text begins with, and the rest of it. None if it is for the agent, such as `/me waves`."""
    stripped = text.strip()
    if not stripped.startswith(prefixes):
        return None
    words = f"/{stripped[1:]}".split()
    best: Command | None = None
    for command in commands:
        names = command.text.split()
        if [word.lower() for word in words[: len(names)]] == names and (best is None or len(command.name) > len(best.name)):
            best = command
    # A text of several lines is for the agent, unless it answers a question.
    if best is None or ("\n" in stripped and best.find_step is None):
        return None
    return best, stripped.split(None, len(best.text.split()))[-1] if len(words) > len(best.text.split()) else ""


def parse_command(text: str, commands: Iterable[Command], prefixes: tuple[str, ...] = DEFAULT_PREFIXES) -> ParsedCommand | None:
    """Parse a text as a command with its values. None if it is for the agent."""
    found = find_command(text, commands, prefixes)
    if found is None:
        return None
    command, rest = found
    try:
        if command.question:
            return _parse_confirmation(command, rest)
        values = _parse_named(command, rest) if command.has_named_values else _parse_positional(command, rest)
    except FieldError as error:
        return ParsedCommand(command, None, f"{error} {_usage_hint(command)}".strip())
    if values is None:
        return ParsedCommand(command, None, _unknown_kind(command))
    return ParsedCommand(command, values)


def remove_escape(text: str, commands: Iterable[Command], prefixes: tuple[str, ...] = DEFAULT_PREFIXES) -> str:
    """Return a text for the agent, with `/` for the `//` in front of the name of a command.

    The second slash marked the text as one for the agent. The same holds for the other `prefixes`.
    """
    stripped = text.lstrip()
    prefix = stripped[:1]
    if prefix not in prefixes or not stripped.startswith(2 * prefix):
        return text
    plain = text.replace(2 * prefix, prefix, 1)
    return plain if find_command(plain, commands, prefixes) is not None else text


def text_fields(command: Command) -> tuple[Field, ...]:
    """Return the fields that a text gives, in order.

    "a conversation" is no field: it is the one in which the text is sent.
    """
    if command.subject != "any conversation":
        return command.fields
    return (Field(CONVERSATION_FIELD, N_("its id, as /all shows it"), is_required=True), *command.fields)


def _parse_confirmation(command: Command, rest: str) -> ParsedCommand:
    """Parse the values of a command that asks a question, and the answer after them. FieldError for a wrong value."""
    answer, values = Field(CONFIRMED, "", "yes or no"), dict[str, FieldValue]()
    given, _, last = rest.rpartition(" ") if command.fields else ("", "", rest)
    try:
        confirmed = answer.parse(last) if last else None
    except FieldError:
        if not command.fields:
            return ParsedCommand(command, None, _unknown_kind(command))
        given, confirmed = rest, None
    if command.fields:
        values = _parse_positional(command, given.strip()) or {}
    if confirmed is not None:
        return ParsedCommand(command, {**values, CONFIRMED: confirmed})
    text = f"{command.text} {given}".strip()
    choices = (Choice(f"{text} yes", translate("Yes")), Choice(f"{text} no", translate("No")))
    question, hint = translate(command.question), translate("Write `{command}` to do it.", command=choices[0].value)
    return ParsedCommand(command, None, f"{question} {hint}", choices)


def _parse_positional(command: Command, rest: str) -> dict[str, FieldValue] | None:
    fields = text_fields(command)
    if rest and not fields:
        return None
    texts: dict[str, str] = {}
    for field in fields:
        # The last field takes the rest of the text. Before it, a value of two words, such as a city, is quoted.
        if field is fields[-1]:
            texts[field.name] = rest[1:-1] if _is_one_quotation(rest) else rest
        elif rest.startswith('"'):
            texts[field.name], _, rest = rest[1:].partition('"')
        else:
            texts[field.name], rest = (*rest.split(None, 1), "", "")[:2]
        rest = rest.strip()
    values: dict[str, FieldValue] = {}
    for number, field in enumerate(fields):
        try:
            values[field.name] = field.parse(texts[field.name])
        except FieldError as error:
            quotable = [before.name for before in fields[:number] if before.kind == "text"]
            if not (quotable and texts[field.name]):
                raise
            hint = translate("Put several words of {fields} in quotes.", fields=translate(" or ").join(quotable))
            raise FieldError(f"{error} {hint}") from error
    return values


def _is_one_quotation(text: str) -> bool:
    return len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]


def _parse_named(command: Command, rest: str) -> dict[str, FieldValue]:
    if not rest:
        return {}
    name, _, value = rest.partition(" ")
    field = next((field for field in command.fields if field.name == name.lower()), None)
    if field is None:
        names = ", ".join(field.name for field in command.fields)
        raise FieldError(translate('There is no "{name}". You can set {names}.', name=name[:40], names=names))
    if not value.strip():
        raise FieldError(translate("{name} is missing a value: {label}.", name=field.name, label=translate(field.label)))
    return {field.name: field.parse(value)}


def _usage_hint(command: Command) -> str:
    return translate("Write `{command}`.", command=f"{command.text} {command.usage}") if command.usage else ""


def _unknown_kind(command: Command) -> str:
    name = command.text.split()[0]
    return translate("I do not know that kind of {command}. /help lists the commands.", command=name)
