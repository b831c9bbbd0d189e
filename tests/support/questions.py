"""Agents that ask people and wait, and what a test sees of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from spade_coreason import AgentTester
from spade_coreason.storage import ParkedRequest, StoredQuestion
from tests.support.hosting import Assist, FunctionAgent
from tests.support.initiative import BOB, TESTER

__all__ = ["BOB", "BOSS", "TESTER", "ChangingAgent"]

BOSS = "boss@localhost"


class ChangingAgent(FunctionAgent):
    """An agent whose code changes: set `assist`. `calls` records what `call` and `note` were called with."""

    def __init__(self, assist: Assist) -> None:
        super().__init__(assist)
        self.calls: list[Any] = []

    def call(self, *args: Any) -> Any:
        """Record a call, and return its number with its arguments."""
        self.calls.append(args[0] if len(args) == 1 else args)
        return [len(self.calls), *args]


async def parked(t: AgentTester, person: str = TESTER, agent: str | None = None) -> list[ParkedRequest]:
    """Return the requests of a person that wait for an answer."""
    return await t.runners[agent or t.jid].repository.questions.parked.load_of(person)


async def asked(t: AgentTester, person: str = TESTER, *, only_open: bool = True) -> list[StoredQuestion]:
    """Return the questions that a person was asked."""
    return await t.runners[t.jid].repository.questions.load_asked(person, only_open=only_open)


async def nothing_is_left(t: AgentTester, person: str = TESTER) -> bool:
    """Return True if no request of a person waits, and no step of any is stored."""
    await t.settled()
    repository = t.runners[t.jid].repository
    await repository.inbox.flush()
    steps = await repository.database.read(lambda connection: connection.exec_driver_sql("SELECT * FROM steps").all())
    pending = await repository.inbox.load_pending()
    return not (await parked(t, person) or steps or pending)


def code_of(texts: Sequence[str]) -> str:
    """Return the code in the only text of a question."""
    [found] = [match[1] for text in texts for match in re.finditer(r"/(?:answer|approve) ([A-Z0-9]+)", text)]
    return str(found)
