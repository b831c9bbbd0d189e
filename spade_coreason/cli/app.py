"""The root command `spade-coreason`: its options, its subcommands and the handling of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from .._version import __version__
from ..exceptions import CoReasonError
from . import errors
from .context import PROGRAM, CLIGroup, GlobalOptions
from .logging import LOG_FORMATS, LogFormat, configure_logging
from .terminal.console import replace_unencodable

# `--help` lists these sentences, so that it need not import the commands. A test compares them with the commands' own help.
COMMANDS = {
    "demo": "Chat with ready-made agents on a local server.",
    "up": "Run the agents of a configuration until you stop them.",
    "run": "Run agents without a configuration file.",
    "chat": "Chat with an agent in the terminal.",
    "ask": "Ask an agent one question and print its answer.",
    "web": "Print a link with which a person chats in the browser.",
    "invite": "Print the address of an agent as a URI and a QR code, to add it from a phone.",
    "status": "Show the state of the running platform and its agents, or the running answers of one agent.",
    "pause": "Pause an agent: it stores every message and answers none.",
    "resume": "Resume a paused agent: it answers what was stored.",
    "quotas": "Show what was used of an agent's quotas today.",
    "access": "List, admit or reject people beyond the configured rules.",
    "keys": "Create, list, rotate or revoke the keys with which programs ask agents over HTTP.",
    "webhooks": "Create, list, rotate or revoke the webhooks, at which a signed POST starts a turn.",
    "log": "Show or set the level of the running platform's log.",
    "drain": "Let the running answers finish, and stop the platform.",
    "agents": "List the agents of the running platform with their capabilities.",
    "check": "Check a configuration without changing anything.",
    "init": "Create a project with an agent, a configuration and a test.",
    "conversations": "List conversations and their states, end one or let it begin anew.",
    "sessions": "List, show, export or delete the stored sessions of agents.",
    "people": "List people, and delete or export all that the platform stores about a person.",
    "notifications": "List what agents send without being asked, and send it again or delete it.",
    "schedules": "List reminders, jobs and what agents do at times; cancel one, or run it now.",
    "approvals": "List the calls that agents want approved; show, approve or deny one.",
    "requests": "List waiting and failed requests; retry or delete failed ones.",
    "incident": "Show the exception behind an incident number.",
    "memory": "List, show, delete, export, import or compact the interaction memories of agents.",
    "storage": "Back up, restore, check or migrate the stored data.",
    "knowledge": "Add, list, search or remove the documents that agents can search.",
    "topics": "List the topics of topic brokers and their subscribers, with what waits for them.",
    "audit": "Show the audit trails of agents, and verify that they are unchanged.",
    "tools": "List the tools of the agents' MCP servers, with their hashes.",
    "completion": "Print the completion script for your shell.",
}

_OPERATE = {name for name in COMMANDS if (Path(__file__).parent / "commands" / "operate" / f"{name}.py").exists()}
_OPERATIONS = {
    "pause": "agents",
    "resume": "agents",
    "quotas": "agents",
    "agents": "platform",
    "log": "platform",
    "access": "access",
    "sessions": "sessions",
    "people": "people",
    "notifications": "initiative.notifications",
    "schedules": "initiative.schedules",
    "approvals": "initiative.questions",
    "requests": "requests",
    "webhooks": "doors.webhooks",
    "memory": "memory",
    "topics": "initiative.topics",
    "audit": "audit",
}
"""The modules of the commands that are made of operations."""


class RootGroup(CLIGroup):
    """The group of all commands. An error is printed as one line; only -vv adds a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if (module := _OPERATIONS.get(cmd_name)) is not None:
            from .views import find_command

            return find_command(cmd_name, module)
        package = ".commands.operate" if cmd_name in _OPERATE else ".commands"
        command: click.Command = import_module(f"{package}.{cmd_name}", __package__).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, without importing the commands."""
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end quietly if the reader of its output is gone."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # caught here, because click would turn it into exit code 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python complains when it flushes at exit
            return errors.EXIT_PIPE_CLOSED
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        try:
            code = super().main(args, prog_name or PROGRAM, complete_var, standalone_mode=False, **extra)
        except (click.exceptions.Abort, KeyboardInterrupt):
            code = errors.EXIT_INTERRUPTED
        except (click.ClickException, CoReasonError, OSError) as error:
            code = errors.report_error(error)
        except Exception as error:  # noqa: BLE001 - the last place that can report it in one line
            code = errors.report_error(error)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    PROGRAM,
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Run `spade-coreason COMMAND --help` for details of a command.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory where modules and relative paths of options are looked up.  [default: the current directory]",
)
@click.option("-v", "--verbose", count=True, help="Log more to standard error (-v: info, -vv: debug and tracebacks).")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    help="Write the log as lines of text, or as one JSON object a line, with the agent, the conversation and the request.",
)
@click.pass_context
def cli(ctx: click.Context, project: Path | None, verbose: int, log_format: LogFormat) -> None:
    """Run Python agents on any XMPP server, and talk to them."""
    ctx.obj = GlobalOptions(project=(project or Path.cwd()).absolute(), verbosity=verbose, log_format=log_format)
    configure_logging(verbose, log_format)


def main() -> NoReturn:
    """Run the program; its entry point."""
    replace_unencodable(sys.stdout)
    cli.main()
