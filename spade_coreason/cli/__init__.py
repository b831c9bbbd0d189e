"""The commands of `spade-coreason`: the entry point is `main`."""

from .app import main

__all__ = ["main"]
