"""The command `spade-coreason init`."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from ...domain.environment.installation import install_hint
from ...exceptions import ConfigError
from ..agent_names import AgentName, check_name, derive_name
from ..context import PROGRAM, current_options, define_command as define
from ..scaffold import MODEL_HINTS, MODEL_PACKAGES, MODEL_QUESTION, MODEL_SETUP, QUESTION, build_files
from ..terminal.console import format_path, print_line, warn


@define("init")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", help="The name of the agent.  [default: the name of DIR]")
@click.option("--llm", "uses_model", is_flag=True, help="Create an agent with a language model.")
def command(directory: Path, name: str | None, uses_model: bool) -> None:
    """Create a project with an agent, a configuration and a test.

    DIR must be empty or not exist. The agent is named after it: `init my-bot` creates the agent my-bot@localhost in my_bot.py.
    The generated project runs unchanged, and installs nothing.

    \b
      spade-coreason init my-bot
      cd my-bot && spade-coreason up
      spade-coreason init my-assistant --llm --name helper
    """
    target = current_options().project / directory
    agent = derive_name(target.resolve().name) if name is None else AgentName(check_name(name), name)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(str(directory), "is not empty; name a directory that is empty or does not exist")
    for path, text in build_files(agent, uses_model=uses_model).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    shown = format_path(target)
    print_line(f"{shown} is ready: the agent {agent.jid} is in {agent.module}.py. Try it:")
    # A directory that begins with a dash would be an option.
    go_there = [] if shown == "." else [f"cd {shlex.quote(f'./{shown}' if shown.startswith('-') else shown)}"]
    for line in (*go_there, *([MODEL_SETUP] if uses_model else ()), f"{PROGRAM} up"):
        print_line(f"  {line}")
    question = shlex.quote(MODEL_QUESTION if uses_model else QUESTION)
    print_line("and in another terminal, in the same directory:")
    print_line(f"  {PROGRAM} ask {agent.jid} {question}")
    for hint in MODEL_HINTS if uses_model else ():
        print_line(hint)
    if uses_model and not all(map(find_spec, MODEL_PACKAGES)):
        missing = f"the packages for language models are not installed ({' and '.join(MODEL_PACKAGES)})"
        warn(f"{missing}; see README.md of the project, or: {install_hint('llm')}")
