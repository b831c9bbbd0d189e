"""The commands of `spade-coreason`: the entry point is `main`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command that the arguments name."""
    try:
        from .app import main as run  # takes long enough to be interrupted
    except KeyboardInterrupt:
        sys.exit(130)
    run()


__all__ = ["main"]
