"""The command `spade-coreason init`."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

import click

from ...exceptions import ConfigError
from ..console import format_path
from ..context import PROGRAM, current_options, define_command as define
from ..scaffold import MODEL_QUESTION, MODEL_SETUP, QUESTION, build_files


@define("init")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="weather", show_default=True, help="The name of its agent.")
@click.option("--llm", "uses_model", is_flag=True, help="An agent with a language model.")
def command(directory: Path, name: str, uses_model: bool) -> None:
    """Make a new project with an agent, its configuration and its test.

    DIR must be empty, or not there. What is made runs as it is.

    \b
      spade-coreason init my-agents
      cd my-agents && spade-coreason up
      spade-coreason init my-assistant --llm --name helper
    """
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError("--name", f'"{name}" is no name for a module; use lower-case letters, digits and _')
    if name in sys.stdlib_module_names or name in ("tests", "config", "data", "agent", "spade", "spade_coreason"):
        raise ConfigError("--name", f'"{name}" is the name of something else; choose another')
    target = current_options().project / directory
    if target.exists() and any(target.iterdir()):
        raise ConfigError(str(directory), "is not empty; name a new directory")
    for path, text in build_files(name, uses_model=uses_model).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    shown = format_path(target)
    print(f"{shown} has the agent {name}@localhost in {name}.py. Try it:")
    first = MODEL_SETUP if uses_model else ""
    question = f'"{MODEL_QUESTION}"' if uses_model else QUESTION
    print(f"  cd {shown}{first}\n  {PROGRAM} up\nand in another terminal there:\n  {PROGRAM} ask {name}@localhost {question}")
