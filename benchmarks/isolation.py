"""Measure what a process of its own costs an agent: `python -m benchmarks.isolation [--rounds N]`.

The same echo agent answers in the process of the platform and in one of its own (`isolation: process`), in short rounds in
turn, so that background load affects both alike. There is no network: messages go through the tester's network in memory. The
figures are medians of the rounds:

one at a time  Time from a request until its whole reply, in milliseconds.
in flight      CPU time of a turn with 64 requests in flight, in microseconds: of both processes together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session
from spade_coreason.runtime import tune_gc
from spade_coreason.testing import Isolation, Policy, Rules

IN_FLIGHT = 64
ONE_AT_A_TIME = 100
TURNS_IN_FLIGHT = 1280
_POLICY = Policy(rules=Rules(max_interactions=0))


class PlainEchoAgent:
    """Repeat the request in one block."""

    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Send the request back."""
        await response.markdown(request.payload["query"])


@dataclass
class Figures:
    """The figures of one way to run the agent, of all rounds."""

    milliseconds: list[float] = field(default_factory=list)
    cpu_microseconds: list[float] = field(default_factory=list)


def _cpu_s(t: AgentTester) -> float:
    """Return the CPU time of this process and of the agent's."""
    status = getattr(t.agent, "process_status", None)
    total = time.process_time()
    if status is not None:
        fields = Path(f"/proc/{status.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def _measure(t: AgentTester, figures: Figures) -> None:
    started_at = time.perf_counter()
    for number in range(ONE_AT_A_TIME):
        await t.ask(f"hello {number}")
    figures.milliseconds.append((time.perf_counter() - started_at) / ONE_AT_A_TIME * 1e3)

    async def ask(user: str) -> None:
        for number in range(TURNS_IN_FLIGHT // IN_FLIGHT):
            await t.ask(f"hello {number}", user=user)

    cpu_s = _cpu_s(t)
    await asyncio.gather(*(ask(f"user{number}@localhost") for number in range(IN_FLIGHT)))
    figures.cpu_microseconds.append((_cpu_s(t) - cpu_s) / TURNS_IN_FLIGHT * 1e6)


async def compare(rounds: int) -> tuple[Figures, Figures]:
    """Measure the agent in this process and in one of its own."""
    from benchmarks.isolation import PlainEchoAgent as Echo  # not of __main__, which the other process does not have

    here, process = Figures(), Figures()
    async with (
        AgentTester(Echo, policy=_POLICY) as plain,
        AgentTester(Echo, policy=_POLICY, isolation=Isolation()) as isolated,
    ):
        await _measure(plain, Figures())
        await _measure(isolated, Figures())
        tune_gc()  # as `up` does
        for _ in range(rounds):
            await _measure(plain, here)
            await _measure(isolated, process)
    return here, process


def _row(name: str, unit: str, here: list[float], process: list[float]) -> str:
    plain, isolated = statistics.median(here), statistics.median(process)
    difference = statistics.median(with_process - without for with_process, without in zip(process, here, strict=True))
    return f"{name:<32}{plain:>10.2f}{isolated:>10.2f}{difference:>+12.2f}{isolated / plain:>8.2f}   {unit}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each way")
    here, process = asyncio.run(compare(parser.parse_args().rounds))
    print(f"{'':<32}{'none':>10}{'process':>10}{'difference':>12}{'ratio':>8}")
    print(_row("one at a time", "ms", here.milliseconds, process.milliseconds))
    print(_row(f"CPU a turn, {IN_FLIGHT} in flight", "µs", here.cpu_microseconds, process.cpu_microseconds))


if __name__ == "__main__":
    main()
