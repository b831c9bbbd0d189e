"""The commands as a page: each with its usage, its help, its examples, its options and its exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from spade_coreason.cli import errors
from spade_coreason.cli.app import COMMANDS, cli
from spade_coreason.cli.context import PROGRAM

_TEST_OF_EXAMPLES = "tests/docs/test_reference.py::test_every_example_of_the_commands_is_valid_usage"
_EXIT_CODE = re.compile(r"(\d+) (.*?)(?=\s{2,}\d|\n\d|$)", re.M)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its name, groups before their commands. The program itself has the name ""."""
    context = click.Context(cli)
    yield "", cli
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in sorted(command.commands.items()))


def examples(command: click.Command) -> list[str]:
    """Return the command lines that the help of a command shows."""
    return [line.strip() for paragraph in _paragraphs(command) if "\b" in paragraph for line in paragraph.splitlines()[1:]]


def exit_codes() -> dict[int, str]:
    """Return the exit codes of the program with their meanings."""
    assert errors.__doc__ is not None
    return {int(code): meaning for code, meaning in _EXIT_CODE.findall(errors.__doc__.partition("\n\n")[2])}


def to_markdown() -> str:
    """Return the part of docs/reference/cli.md below its introduction."""
    return "\n\n".join(block for name, command in commands() if name for block in _blocks(name, command))


def global_options() -> str:
    """Return the table of the options of the program itself."""
    return _options(cli, "")


def _blocks(name: str, command: click.Command) -> Iterator[str]:
    yield f"{'###' if ' ' in name else '##'} `{name}` {{ #{name.replace(' ', '-')} }}"
    context = click.Context(command, info_name=f"{PROGRAM} {name}")
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    for paragraph in _paragraphs(command):
        if "\b" not in paragraph:
            yield _text(paragraph)
    if lines := examples(command):
        yield f"<!-- not run: {_TEST_OF_EXAMPLES} -->\n```sh\n" + "\n".join(lines) + "\n```"
    if table := _options(command, name):
        yield table


def _paragraphs(command: click.Command) -> list[str]:
    return [paragraph.strip(" \n") for paragraph in re.split(r"\n[ ]*\n", command.help or "")]


def _text(paragraph: str) -> str:
    """Return a paragraph of a help as Markdown. Exit codes become a table."""
    text = _escape(" ".join(paragraph.split()))
    before, marker, after = text.partition("Exit code: ")
    if not marker:
        return text
    listed, _, rest = after.partition(". ")
    rows = [f"| {code} | {meaning} |" for code, meaning in re.findall(r"(\d+) (.*?)(?:, (?=\d+ )|\.?$)", listed)]
    return "\n\n".join(filter(None, [before.strip(), "\n".join(["| exit code | meaning |", "|---|---|", *rows]), rest]))


def _options(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name)
    records = [parameter.get_help_record(context) for parameter in command.params if isinstance(parameter, click.Option)]
    rows = [
        f"| {_code(options)} | {_escape(' '.join(meaning.split())).replace('|', chr(92) + '|')} |"
        for options, meaning in filter(None, records)
    ]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


def _code(options: str) -> str:
    return f"`{options}`".replace("|", "\\|")


def _escape(text: str) -> str:
    """Keep Markdown from reading a text of a terminal as marks of its own."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"[*\[]|<(?=\w)", r"\\\g<0>", part) for part in parts)
