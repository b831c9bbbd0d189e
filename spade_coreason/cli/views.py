"""Commands of the terminal, made of operations and their views: arguments become options, and results tables, lines or JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Le, MinLen

from ..exceptions import ConfigError
from ..operations.definition import Argument, Operation
from ..operations.view import Column, Text, View, format_time
from .account import data_option
from .completion import complete_agents, complete_field
from .context import CLICommand, CLIGroup, json_option
from .operations import (
    PlatformAccess,
    agent_option,
    at_options,
    confirm,
    describe_none,
    open_platform,
    parse_address,
    parse_person,
    print_stopped,
    require_running,
    yes_option,
)
from .settings import config_option
from .shows import SHOWS
from .terminal.console import print_json, print_line, print_table, progress_bar

_DURATION = re.compile(r"([1-9]\d{0,4})([mhd])", re.ASCII)
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400}
_ID_CHARACTERS = 36
_ANY = "any"
"""The choice for no value, for an argument that has another default."""


def find_command(name: str, module: str) -> click.Command:
    """Make the command of a module below `operations`: that of the operation with this name, else the group of several."""
    only = _find_operations(module).get((name,))
    return make_group(name, module) if only is None else make_command(name, only)


def make_group(name: str, module: str, *examples: str) -> CLIGroup:
    """Make the group of the commands of the operations in a module, whose docstring is its help. It begins with examples."""
    members = {words[1]: one for words, one in _find_operations(module).items() if words[0] == name}
    lines = _list_examples([*examples, *(one.view.examples[0] for one in members.values())])
    group = CLIGroup(name, help=f"{_import(module).__doc__}\n\n{lines}")
    for verb, operation in members.items():
        group.add_command(make_command(verb, operation))
    return group


def _find_operations(module: str) -> dict[tuple[str, ...], Operation[Any, Any]]:
    """Return the operations of a module that have commands, by the words of these."""
    found = [one for one in vars(_import(module)).values() if isinstance(one, Operation) and one.view.examples]
    return {tuple((one.view.command or one.name.replace(".", " ")).split()): one for one in found}


def _import(module: str) -> ModuleType:
    return import_module(f"..operations.{module}", __package__)


def make_command(name: str, operation: Operation[Any, Any]) -> click.Command:
    """Make the command of an operation."""
    needs = "It needs a running platform." if operation.needs_platform else "Works with and without a running platform."
    needs = "" if operation.prefers_running else needs  # its help says what only a running one knows
    return CLICommand(
        name,
        callback=partial(run_operation, operation),
        params=make_parameters(operation),
        help=f"{operation.help}\n\n{needs}\n\n{_list_examples(operation.view.examples)}",
    )


def make_parameters(operation: Operation[Any, Any]) -> list[click.Parameter]:
    """Make the arguments and options of the command of an operation."""
    view, arguments = operation.view, {one.name: one for one in operation.arguments}
    common: Any = config_option()(data_option(lambda: None))
    json_option("Print JSON.")(common)
    if view.question:
        yes_option(common)
    if "agent" in arguments.keys() - set(view.given):
        agent_option(common)
    places = [_make_argument(operation, arguments[each]) for each in view.given]
    options = [
        _make_option(operation, one) for one in arguments.values() if one.about.help and one.name not in ("agent", *view.given)
    ]
    return [*places, *options, *reversed(common.__click_params__)]


def run_operation(
    operation: Operation[Any, Any],
    file: Path | None,
    data: Path | None,
    *,
    as_json: bool = False,
    yes: bool = False,
    view: View | None = None,
    **given: Any,
) -> int:
    """Perform an operation with arguments from the terminal, and print its result as a view says. Return the exit code."""
    view = view or operation.view
    with at_options():
        values = _read_values(operation, given)
        wanted = operation.read_arguments(values)
    opened = (
        nullcontext(require_running(file, data))
        if operation.needs_platform
        else open_platform(
            file,
            data,
            changes=operation.is_change,
            prefers_running=operation.prefers_running,
            creates_directory=operation.creates_directory,
        )
    )
    with opened as platform:
        if view.question and not yes:
            _confirm(view, platform, values, wanted)
        with progress_bar(1) if view.progress else nullcontext() as progress:
            if progress is None:
                found = platform.perform(operation, wanted)
            else:
                progress.start_item(view.progress)
                found = platform.perform(operation, wanted, progress.update_item)
        code = 0
        if as_json:
            print_json(view.dump(found) if view.dump else operation.result.dump_python(found, mode="json"))
        elif found == [] and view.table.things:
            state, things = getattr(wanted, "state", None), _fill(view.table.things, wanted)
            print_line(describe_none(platform, f"{state} {things}" if state else things))
        elif operation.name in SHOWS:
            code = SHOWS[operation.name](found) or 0
        else:
            _print_rows(view, found)
            if (cursor := view.table.cursor) and len(found) == wanted.limit:
                option = "--after" if hasattr(wanted, "after") else "--before"
                more = f"There may be more: {option} {getattr(found[-1], cursor)} shows the next ones."
                print_line(more, stream=sys.stderr)
    return code if getattr(found, "is_complete", True) else print_stopped()


def _read_values(operation: Operation[Any, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of arguments for an operation: without those that are left out, and people by their bare JIDs."""
    values: dict[str, Any] = {}
    for argument in operation.arguments:
        name, value, parse = argument.name, given.get(argument.name), _PARSERS.get(argument.about.metavar)
        if value is None:
            continue
        if isinstance(value, Path):
            values[name] = value.absolute()
        elif value == _ANY and get_origin(argument.type) is Literal:
            values[name] = None
        else:
            values[name] = parse(value, argument) if parse else value
    return values


def _parse_duration(text: str, argument: Argument) -> int | None:
    """Return the seconds of "30m", "12h" or "90d"; None for "never", if it may be None."""
    if text == "never" and argument.may_be_none:
        return None
    if text == "0" and Ge(0) in argument.limits:
        return 0
    if (found := _DURATION.fullmatch(text)) is None:
        other = "never" if argument.may_be_none else "0"
        raise ConfigError(argument.name, f'{text!r:.40} is no duration; write it as "30m", "12h", "90d" or "{other}"')
    seconds, most = int(found[1]) * _UNIT_S[found[2]], _find_bounds(argument)[1]
    if seconds > most:
        raise ConfigError(argument.name, f"{text} is too long; the most is {most // _UNIT_S['d']}d")
    return seconds


def _read_secret(file: str, argument: Argument) -> str:
    """Return the first line of a file."""
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            secret = str(stream.readline()).strip()
    except (OSError, UnicodeDecodeError, AttributeError) as error:  # standard input may be closed
        raise ConfigError(argument.name, f"{file} cannot be read: {error}") from error
    if not secret:
        raise ConfigError(argument.name, f"the first line of {file} is empty; write the secret there")
    return secret


_PARSERS: Mapping[str, Callable[[Any, Argument], Any]] = {
    "JID": lambda text, argument: parse_person(text, argument.name),
    "ADDRESS": lambda text, argument: parse_address(text, argument.name),
    "AGENT": lambda names, argument: list(names),
    "DURATION": _parse_duration,
    "FILE": _read_secret,
}
"""The functions that read an argument, by its metavar."""


def _confirm(view: View, platform: PlatformAccess, values: dict[str, Any], wanted: Any) -> None:
    """Ask the person to confirm, if there is something to ask."""
    found = wanted
    if (asked := view.asks) is not None:
        names = {one.name for one in asked.arguments}
        found = platform.perform(asked, asked.read_arguments({name: values[name] for name in names & values.keys()}))
    ask: Any = view.question
    question = _fill(ask, found) if isinstance(ask, str) else ask(wanted, found)
    if question:
        confirm(question, is_confirmed=False)


def _print_rows(view: View, found: Any) -> None:
    rows, columns, done = view.table.rows(found), view.table.columns, view.done
    rows = rows if isinstance(rows, list | tuple) else [rows]
    if done:
        texts = [done[not row.is_changed] if isinstance(done, tuple) else done for row in rows]
        for found in map(_fill, texts, rows):
            for line in [found] if isinstance(found, str) else found:
                print_line(line)
    elif not columns:
        print_json(found)
    else:
        titles = [column if isinstance(column, str) else column[0] for column in columns]
        print_table(titles, [[_make_cell(column, row) for column in columns] for row in rows], texts=view.table.texts)


def _fill(text: Text, values: Any) -> Any:
    return (
        text(values)
        if callable(text)
        else text.format_map({name: getattr(values, name) for name in values.__dataclass_fields__})
    )


def _make_cell(column: Column, row: Any) -> str:
    source = column if isinstance(column, str) else column[1]
    value = source(row) if callable(source) else getattr(row, source)
    if isinstance(value, datetime):
        return format_time(value)
    return "" if value is None else str(value)


def _list_examples(examples: Iterable[str]) -> str:
    return "\n".join(["\b", *(f"  spade-coreason {each}" for each in examples)])


def _make_argument(operation: Operation[Any, Any], argument: Argument) -> click.Argument:
    word = argument.about.metavar or argument.name.upper()
    is_required = argument.is_required or argument.name != operation.view.given[-1]
    least = next((one.min_length for one in argument.limits if isinstance(one, MinLen)), 0)

    def check(_context: click.Context, _parameter: click.Parameter, given: Any) -> Any:
        if least and not least <= len(given) <= _ID_CHARACTERS:
            problem = f"give the first {least} at least, or all {_ID_CHARACTERS}"
            raise ConfigError(word, f"{given!r:.60} has {len(given)} characters; {problem}")
        return given

    return click.Argument(
        [argument.name],
        metavar=word if is_required else f"[{word}]",
        type=_find_type(argument),
        required=is_required,
        shell_complete=_find_completion(operation, argument),
        callback=check,
    )


def _make_option(operation: Operation[Any, Any], argument: Argument) -> click.Option:
    about, default = argument.about, argument.default
    names = [f"--{about.option or argument.name.replace('_', '-')}", argument.name]
    if argument.type is bool:
        return click.Option(names, is_flag=True, help=about.help)
    if about.metavar == "DURATION":
        unit = "d" if default % _UNIT_S["d"] == 0 and default > _UNIT_S["d"] else "h"
        default = f"{default // _UNIT_S[unit]}{unit}"
    return click.Option(
        names,
        metavar=about.metavar or ("ID" if argument.name == "conversation" else None),
        type=str if about.metavar in _PARSERS else _find_type(argument),
        multiple=about.metavar == "AGENT",
        required=argument.is_required,
        help=about.help,
        shell_complete=_find_completion(operation, argument),
        **({} if default in (None, "") else {"default": default, "show_default": True}),
    )


def _find_completion(operation: Operation[Any, Any], argument: Argument) -> Callable[..., list[str]] | None:
    if argument.name in ("agent", "agents"):
        return complete_agents
    return complete_field(
        "conversations" if argument.name == "conversation" else operation.name.partition(".")[0], argument.name
    )


def _find_bounds(argument: Argument) -> tuple[Any, Any]:
    least = next((one.ge for one in argument.limits if isinstance(one, Ge)), None)
    return least, next((one.le for one in argument.limits if isinstance(one, Le)), None)


def _find_type(argument: Argument) -> Any:
    kind = argument.type
    if get_origin(kind) is Literal:
        return click.Choice([*get_args(kind), *([_ANY] if argument.may_be_none and argument.default is not None else [])])
    if kind in (int, float):
        least, most = _find_bounds(argument)
        if (least, most) != (None, None):
            return click.IntRange(least, most) if kind is int else click.FloatRange(least, most)
    return click.Path(path_type=Path) if kind is Path else kind
