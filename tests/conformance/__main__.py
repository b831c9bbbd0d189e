"""`python -m tests.conformance`: run the conformance kits, and write docs/development/conformance.md.

A kit that is missing fails the command, which says how to get it.
"""

from __future__ import annotations

import asyncio
import sys

from . import a2a, mcp

KITS = {"mcp": mcp.run, "a2a": a2a.run}
"""The kits by name: functions that run one and return the lines of its section in the page. They raise SystemExit."""


def main(names: list[str]) -> None:
    """Run the kits of these names, by default all."""
    for name in names or list(KITS):
        asyncio.run(KITS[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
