"""The command `spade-coreason completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ...exceptions import ConfigError
from ..context import PROGRAM, define_command as define


@define("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for your shell.

    \b
      echo 'eval "$(spade-coreason completion bash)"' >> ~/.bashrc
      echo 'eval "$(spade-coreason completion zsh)"' >> ~/.zshrc
      spade-coreason completion fish > ~/.config/fish/completions/spade-coreason.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError("SHELL", f"completion is not available for {shell}")
    root = click.get_current_context().find_root().command
    print(kind(root, {}, PROGRAM, "_SPADE_COREASON_COMPLETE").source())
