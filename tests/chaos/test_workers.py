"""Workers that die, freeze, are cut off and restarted lose nothing. `make chaos` does that for an hour.

`WORKER_KILLS` and the like are numbers of faults; `WORKERS`, `WORKER_AGENTS` and `WORKER_LEASE_S` are those of the workers.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.errands import KINDS
from tests.chaos.worker_run import FAULTS, list_faults, run_worker_chaos
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
