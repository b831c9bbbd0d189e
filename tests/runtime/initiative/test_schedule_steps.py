"""The durable steps that make and cancel schedules: each is stored in one transaction with its effect."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import StoreError
from tests.support.databases import SQLITE
from tests.support.records import ALICE
from tests.support.runner import RunnerHarness


class SchedulingAgent:
    """An agent that makes or cancels a schedule, and records the error of the store."""

    manifest = AgentDefinition.simple("scheduling")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.errors = 0

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            match request.payload["query"]:
                case "remind":
                    self.ids.append(await session.remind(timedelta(days=1), "tea"))
                case "later":
                    self.ids.append(await session.later("tea"))
                case "cancel":
                    await session.cancel_schedule(self.ids[-1])
        except StoreError:
            self.errors += 1


@pytest.mark.parametrize("call", ["remind", "later", "cancel"])
async def test_a_schedule_changes_with_the_step_that_changes_it_or_not_at_all(tmp_path: Path, call: str) -> None:
    agent = SchedulingAgent()
    async with RunnerHarness(f"{SQLITE}{tmp_path / 'platform.db'}", agent) as harness:
        schedules = harness.repository.schedules
        if call == "cancel":
            await harness.receive_and_wait("remind")
        before = await schedules.load(owner=ALICE)
        # Between two transactions the process may die, and the turn runs again.
        refuse = "CREATE TRIGGER refuse BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'no step can be stored'); END"
        await harness.database.write(lambda connection: connection.execute(text(refuse)))
        await harness.receive_and_wait(call)
        assert agent.errors == 1
        assert await schedules.load(owner=ALICE) == before
        await harness.database.write(lambda connection: connection.execute(text("DROP TRIGGER refuse")))
        await harness.receive_and_wait(call)
        assert agent.errors == 1
        if call != "later":  # which is due at once
            assert len(await schedules.load(owner=ALICE)) == (0 if call == "cancel" else 1)
