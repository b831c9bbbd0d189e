"""Workers that die, freeze, are cut off and restarted lose nothing. `make chaos` does that for an hour.

`WORKER_KILLS` and the like are numbers of faults; `WORKERS`, `WORKER_AGENTS` and `WORKER_LEASE_S` are those of the workers.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from spade_coreason.config.settings import WorkerSettings
from tests.chaos.errands import KINDS
from tests.chaos.worker_run import FAILOVERS, FAULTS, list_faults, run_worker_chaos
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["prosody", "ejabberd"])
async def test_workers_that_fail_lose_double_and_cross_nothing(
    kind: str, own_postgres: Postgres, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: XmppServer = request.getfixturevalue(kind)
    print(f"CHAOS_SEED={SEED}")
    faults = list_faults(dict.fromkeys(FAULTS, 1), random.Random(SEED))
    tally = await run_worker_chaos(server, own_postgres, tmp_path, faults, SEED)
    print(" | ".join(tally.row))
    assert tally.problems == [], tally.row
    assert min(tally.errands.count(kind) for kind in KINDS) > 0


@pytest.mark.release
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAILOVERS)
async def test_with_the_default_lease_agents_answer_again_within_15_s_of_a_failover(
    name: str, prosody: XmppServer, own_postgres: Postgres, tmp_path: Path
) -> None:
    """Twice, so that the server that took over is replaced, too. In short: `tests/storage/test_failover.py`.

    People ask at a rate that a busy machine answers, so that the time is that of the failover.
    """
    lease_s = WorkerSettings().lease_s
    run = run_worker_chaos(prosody, own_postgres, tmp_path, [name] * 2, SEED, lease_s=lease_s, questions_per_s=10)
    tally = await run
    print(" | ".join(tally.row))
    assert tally.problems == [], tally.row
    assert max(tally.takeovers_s[name]) < 15
