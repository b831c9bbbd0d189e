"""An agent that writes first in every way, and logs what it was told about it, for tests that kill its process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, People, Response, Session, every
from tests.support.line_log import append_line, read_lines

OF_EACH = 4
"""The number of notifications, reminders and jobs of each kind in a round."""


class LoggedLine(NamedTuple):
    """A line of the log.

    - "notified", a text and the id of its notification: it was acknowledged
    - "begins" and the text of a side effect, with the id of its process
    - "ends" and the text of a side effect, with its result
    """

    phase: str
    text: str
    value: str


class WritingAgent:
    """An agent that answers `round N` with notifications, reminders and jobs.

    A task of its own notifies with keys: all of the round in the file `task` beside the log, also again after a restart.
    """

    def __init__(self, people: People, log: str, person: str, others: Sequence[str]) -> None:
        self.manifest = AgentDefinition.simple("writer")
        self._people = people
        self._log = Path(log)
        self._person = person
        self._others = others

    async def startup(self) -> None:
        """Begin the task."""
        self._task = asyncio.create_task(self._work())

    async def shutdown(self) -> None:
        """End the task."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Begin a round, or do what is due."""
        query = str(request.payload["query"])
        if "schedule" not in request.metadata:
            for number in range(OF_EACH):
                await session.later(f"{query}: job {number}")
                await session.remind(timedelta(seconds=0.05 * number), f"{query}: reminder {number}")
                await self._notify(self._person, f"{query}: in the turn {number}")
            await response.markdown(f"{query}: answered")
            return
        await self._act(session, query)
        await response.markdown(f"{query}: done")

    @every("* * * * *")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Notify of the time."""
        text = f"due at {request.metadata['due_at']}"
        await self._act(session, text)
        await self._notify(self._person, text)

    async def _work(self) -> None:
        done, file = "", self._log.with_name("task")
        while True:
            task = file.read_text() if file.exists() else ""
            if task == done:
                await asyncio.sleep(0.01)
                continue
            for number in range(OF_EACH):
                await self._notify(self._person, f"{task}: from a task {number}", key=f"{task} {number}")
                for other in self._others:
                    await self._notify(other, f"{task}: {other} {number}", key=f"{task} {other} {number}")
            done = task

    async def _act(self, session: Session, text: str) -> None:
        self._write("ends", text, await session.run_once("effect", self._affect, text))

    async def _affect(self, text: str) -> str:
        self._write("begins", text, str(os.getpid()))
        await asyncio.sleep(0.001)
        return uuid4().hex

    async def _notify(self, to: str, text: str, key: str | None = None) -> None:
        notification = await self._people.notify(to, text, key=key)
        self._write("notified", text, notification.id)

    def _write(self, *line: str) -> None:
        append_line(self._log, *line)


def read_log(log: Path) -> list[LoggedLine]:
    """Return the lines of a log."""
    return [LoggedLine(*line) for line in read_lines(log)]
