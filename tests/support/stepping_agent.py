"""An agent that works in durable steps, and logs each of them in a file, for tests that kill its process."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from tests.support.line_log import append_line, read_lines

_AT_ONCE = 3


class LoggedStep(NamedTuple):
    """A line of the log. `phase` is "begins" with the idempotency key as `value`, or "ends" with the result of `run_once`."""

    phase: str
    query: str
    step: str
    value: str


class SteppingAgent:
    """An agent that answers with its query and the results of its steps, random texts. Groups of steps run at once.

    Before the step `hang_at` it waits until the file `release` beside the log exists.
    """

    def __init__(self, log: str, steps: int = 60, hang_at: int = -1) -> None:
        self.manifest = AgentDefinition.simple("stepping")
        self._log = Path(log)
        self._steps = steps
        self._hang_at = hang_at

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        results: list[str] = []

        async def run(number: int) -> str:
            name = f"step {number % _AT_ONCE}"
            result: str = await session.run_once(name, self._work, query, number)
            self._write("ends", query, str(number), result)
            return result

        for first in range(0, self._steps, _AT_ONCE):
            if first <= self._hang_at < first + _AT_ONCE:
                self._write("hangs", query, str(first), "")
                while not (self._log.parent / "release").exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.01)
            results += await asyncio.gather(*(run(number) for number in range(first, first + _AT_ONCE)))
        await response.markdown(json.dumps({"query": query, "results": results}))

    async def _work(self, query: str, number: int, idempotency_key: str) -> str:
        self._write("begins", query, str(number), idempotency_key)
        await asyncio.sleep(0.001)
        return uuid4().hex

    def _write(self, *line: str) -> None:
        append_line(self._log, *line)


def read_steps(log: Path) -> list[LoggedStep]:
    """Return the lines of a log."""
    return [LoggedStep(*line) for line in read_lines(log)]


def check_steps(logged: Sequence[LoggedStep], answer: dict[str, Any]) -> int:
    """Check the steps of an answered request: no finished one ran again, and all runs had its key and its result.

    Return the number of steps that ran again because they were cut off.
    """
    query = answer["query"]
    keys: defaultdict[str, list[str]] = defaultdict(list)
    results: dict[str, str] = {}
    for line in logged:
        if line.query == query and line.phase == "begins":
            assert line.step not in results, f"{line} ran after its end"
            keys[line.step].append(line.value)
        elif line.query == query and line.phase == "ends":
            assert results.setdefault(line.step, line.value) == line.value, f"{line} has another result than before"
    assert all(len(set(of_step)) == 1 for of_step in keys.values())
    assert len({of_step[0] for of_step in keys.values()}) == len(keys)
    assert [results[str(number)] for number in range(len(results))] == answer["results"]
    return sum(len(of_step) - 1 for of_step in keys.values())
