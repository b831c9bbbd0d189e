"""Durable steps of an agent in a process of its own: its functions run there, and the journal is in the platform."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session, agent
from spade_coreason.exceptions import PeerFailedError
from tests.support.databases import SQLITE, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.isolation import WARM_ISOLATION
from tests.support.stepping_agent import SteppingAgent, check_steps, read_steps
from tests.support.wait import eventually


async def test_a_finished_step_does_not_run_again_in_the_next_process(tmp_path: Path) -> None:
    log, url = tmp_path / "steps.log", f"{SQLITE}{tmp_path}/platform.db"
    options = {"log": str(log), "steps": 12, "hang_at": 6}
    async with AgentTester(SteppingAgent, options=options, isolation=WARM_ISOLATION, database=url) as t:
        asking = asyncio.create_task(t.ask("go"))
        await eventually(lambda: any(line.phase == "hangs" for line in read_steps(log)))
        assert len(read_rows(url, "steps")) == 6
        await t.restart(grace_s=0)
        (tmp_path / "release").touch()
        answer = json.loads((await asking).text)
        assert len(answer["results"]) == 12
        assert check_steps(read_steps(log), answer) == 0
        assert [line.phase for line in read_steps(log)].count("begins") == 12
    assert read_rows(url, "steps") == []


@agent
async def forgetful(request: AgentRequest, session: Session, response: Response) -> None:
    """Give a step other arguments when it runs again, and catch the error."""
    is_redelivered = bool(request.metadata.get("redelivered"))
    try:
        await session.run_once("charge", dict, [["secret", str(is_redelivered)]])
    except Exception:  # noqa: BLE001 - as careless agents do
        await response.markdown("all is well")
        return
    await response.thought("charged")
    await asyncio.Event().wait()


async def test_a_mismatch_fails_the_turn_also_there(expected_errors: ExpectedErrors) -> None:
    async with AgentTester(forgetful, isolation=WARM_ISOLATION) as t:
        events = t.stream("go")
        assert (await anext(events)).type.endswith("thought")
        await t.restart(grace_s=0)
        with pytest.raises(PeerFailedError, match="Something went wrong"):
            async for _ in events:
                pass
    expected_errors("the durable step 'charge' (use 1) was stored with the arguments")
    assert not any("secret" in line for line in expected_errors.logged)
