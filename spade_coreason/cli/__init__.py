"""The command line of `spade-coreason`; the entry point is `main`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command that the arguments name."""
    try:
        from .app import main as run  # this import takes long enough to be interrupted
    except KeyboardInterrupt:
        sys.exit(130)
    run()


__all__ = ["main"]
