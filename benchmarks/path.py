"""Trace the path of one message through the package: `python -m benchmarks.path [--modules]`.

An echo agent on Prosody is sent messages by a bare slixmpp client. From each message until its reply is written to the
stream, the calls in the thread of the event loop are traced with `sys.setprofile`. The conversation is in memory by then.
The figures are medians:

packages  Top-level packages and modules of `spade_coreason` of which a function ran. The agent itself does not count.
modules   Modules of which a function ran.
changes   How often a call entered another module than the call before it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import spade_coreason
from tests.support.servers import prosody
from tests.support.servers.clients import StockClient

from .agents import Environment, hosted

WARM_UP = 20
MESSAGES = 21
_PACKAGE = f"{Path(spade_coreason.__file__).parent}/"


class Trace:
    """The modules that one message entered, in order: `with Trace("text of the reply") as trace: …`.

    A module counts again when it is entered again. The trace ends when the package hands the reply to slixmpp's `send_raw`.
    """

    def __init__(self, reply: str) -> None:
        self.entered: list[str] = []
        self._reply = reply
        self.is_complete = False
        """True once the reply was written."""

    def __enter__(self) -> Trace:
        sys.setprofile(self._record)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self.is_complete:
            return
        file = frame.f_code.co_filename
        if frame.f_code.co_name == "send_raw" and frame.f_back and frame.f_back.f_code.co_filename.startswith(_PACKAGE):
            self.is_complete = self._reply in str(frame.f_locals["data"])
        if not file.startswith(_PACKAGE):
            return
        module = file[len(_PACKAGE) :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if not module.startswith("agents.") and self.entered[-1:] != [module]:
            self.entered.append(module)

    @property
    def modules(self) -> set[str]:
        """The modules that were entered."""
        return set(self.entered)

    @property
    def packages(self) -> set[str]:
        """The top-level packages that were entered."""
        return {module.partition(".")[0] for module in self.entered}

    @property
    def changes(self) -> int:
        """The number of changes from one module to another."""
        return max(0, len(self.entered) - 1)


async def trace_messages(messages: int = MESSAGES) -> list[Trace]:
    """Return the traces of `messages` warm messages to an echo agent on Prosody, which is started for it."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory, prosody.prosody(Path(directory, "server")) as server:
        environment = Environment(server.host, server.port, server.ca_file, Path(directory))
        account, person = await server.account(), await server.account()
        async with hosted(environment) as start, StockClient(*person, server) as client:
            await start(*account)
            for number in range(WARM_UP):
                await client.ask(f"message {number}", account[0], thread="path")
            traces = []
            for number in range(messages):
                question = f"question {number}"
                with Trace(question) as trace:
                    await client.ask(question, account[0], thread="path")
                if not trace.is_complete:
                    raise RuntimeError("the write of the reply was not seen, so the trace has no end")
                traces.append(trace)
            return traces


async def measure_path() -> dict[str, int]:
    """Return the figures of a message to an echo agent on Prosody, by name."""
    return find_medians(await trace_messages())


def find_medians(traces: Sequence[Trace]) -> dict[str, int]:
    """Return the figures by name: medians over the traces."""
    figures = [{"packages": len(t.packages), "modules": len(t.modules), "changes": t.changes} for t in traces]
    return {name: statistics.median_low(figure[name] for figure in figures) for name in figures[0]}


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.path", description="Trace one message through the package.")
    parser.add_argument(
        "--modules", action="store_true", help="list the modules of a typical message in the order of its calls"
    )
    arguments = parser.parse_args()
    if not prosody.installed():
        sys.exit("Prosody is missing: make servers")
    traces = asyncio.run(trace_messages())
    if arguments.modules:
        print(*sorted(traces, key=lambda trace: trace.changes)[len(traces) // 2].entered, sep="\n")
    figures = find_medians(traces)
    print("one message: {packages} packages, {modules} modules, {changes} changes of module".format_map(figures))


if __name__ == "__main__":
    _main()
