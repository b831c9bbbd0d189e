"""The project, the verbosity and the format of the log, which all commands share, and commands that accept them anywhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ..domain.texts.enumeration import did_you_mean
from . import errors
from .logging import LOG_FORMATS, LogFormat, configure_logging

T = TypeVar("T")

PROGRAM = "spade-coreason"


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options before the command. `project` is absolute."""

    project: Path
    verbosity: int = 0
    log_format: LogFormat = "text"


def current_options() -> GlobalOptions:
    """Return the global options of the running command."""
    found: GlobalOptions = click.get_current_context().find_object(GlobalOptions) or GlobalOptions(Path.cwd())
    return found


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine of a command in an event loop. If a signal cancels it, raise `click.Abort`."""
    import asyncio

    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise click.Abort from None


class CLICommand(click.Command):
    """A command that accepts -v, --log-format and --project after its name too."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.params += [
            click.Option(["-v", "--verbose"], count=True, hidden=True, expose_value=False, callback=_on_verbose),
            click.Option(
                ["--log-format"], type=click.Choice(LOG_FORMATS), hidden=True, expose_value=False, callback=_on_log_format
            ),
            click.Option(
                ["--project"],
                type=click.Path(exists=True, file_okay=False, path_type=Path),
                hidden=True,
                expose_value=False,
                callback=_on_project,
            ),
        ]


def json_option(description: str = "Print a JSON list.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=description)


class CLIGroup(click.Group):
    """A group of `CLICommand`s."""

    command_class = CLICommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if no command is named."""
        if not args and not ctx.resilient_parsing:  # click before 8.2 would call this a success
            click.echo(ctx.get_help(), err=True)
            ctx.exit(errors.EXIT_USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command. Raise UsageError, with a similar name as a hint, if there is no such command."""
        name, known = args[0], self.list_commands(ctx)
        if name in known or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        hint = did_you_mean(name, known, f"the commands are {', '.join(known)}.")
        raise click.UsageError(f'There is no command "{name}"; {hint}', ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with the whole first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.get_short_help_str(200)) for name, found in commands if found is not None])


def _on_verbose(ctx: click.Context, _parameter: click.Parameter, value: int) -> None:
    known = ctx.find_object(GlobalOptions)
    if value and known is not None:
        ctx.obj = replace(known, verbosity=known.verbosity + value)
        configure_logging(ctx.obj.verbosity, ctx.obj.log_format)


def _on_log_format(ctx: click.Context, _parameter: click.Parameter, value: LogFormat | None) -> None:
    known = ctx.find_object(GlobalOptions)
    if value is not None and known is not None:
        ctx.obj = replace(known, log_format=value)
        configure_logging(ctx.obj.verbosity, value)


def _on_project(ctx: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    known = ctx.find_object(GlobalOptions)
    if value is not None and known is not None:
        ctx.obj = replace(known, project=value.absolute())


def define_command(name: str, **keywords: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorate a function as a `CLICommand`; the parameters are those of `click.command`."""
    return click.command(name, cls=CLICommand, **keywords)
