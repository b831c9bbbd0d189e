"""Durable steps under `kill -9`: no finished step runs again, whenever the process dies. `make chaos` kills more often."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.hosting import run_platform
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.stepping_agent import check_steps, read_steps
from tests.support.wait import eventually

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_KILLS_PER_REQUEST = 2  # a request that ran at three crashes alone would fail (docs/explanation/delivery-guarantees.md)
_STEPS = 60
_LINES_PER_RUN = 80


@pytest.mark.timeout(3000)
@short_and_long_in_release("STEP_KILLS", 2, 5)
async def test_no_finished_step_runs_again_after_kill_9(prosody: XmppServer, tmp_path: Path, count: int) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, log = random.Random(SEED), tmp_path / "steps.log"
    kills = repeated = 0
    agent, options = "tests.support.stepping_agent:SteppingAgent", {"log": str(log), "steps": _STEPS}
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_platform(prosody, tmp_path, agent=agent, options=options) as (platform, jid),
    ):
        while kills < count:
            query = f"question {kills}"
            client.send(query, jid)
            for _ in range(min(_KILLS_PER_REQUEST, count - kills)):
                await _wait_for_lines(log, query, rng.randrange(1, _LINES_PER_RUN))
                await platform.signal(signal.SIGKILL)
                kills += 1
                await platform.start()
            while (answer := json.loads(str((await client.answer())["body"])))["query"] != query:
                pass  # an answer that the server had not acknowledged comes twice
            assert len(answer["results"]) == _STEPS
            repeated += check_steps(read_steps(log), answer)
        assert await platform.signal(signal.SIGTERM) == 0
    with closing(sqlite3.connect(tmp_path / "data" / "platform.db")) as database:
        assert database.execute("SELECT count(*) FROM steps").fetchone() == (0,)
    print(f"{kills} kills; {repeated} steps were cut off and ran again")


async def _wait_for_lines(log: Path, query: str, count: int) -> None:
    """Wait until the log has so many more lines, or the request has finished its steps."""
    goal = len(read_steps(log)) + count

    def is_reached() -> bool:
        logged = read_steps(log)
        return len(logged) >= goal or sum(line.phase == "ends" and line.query == query for line in logged) >= _STEPS

    await eventually(is_reached)
