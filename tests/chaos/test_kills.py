"""Kills, cuts and frozen processes: no question is lost, answered twice or by somebody else. `make chaos` runs many faults."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.kill_run import choose_faults, run_kills
from tests.support.servers.ejabberd import ejabberd, installed as ejabberd_installed
from tests.support.servers.prosody import installed as prosody_installed, prosody
from tests.support.servers.requirements import require

FAULTS = int(os.environ.get("CHAOS_FAULTS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
SHORT_FAULTS = ("kill -9 of the platform", "kill -9 of the server")


@pytest.mark.servers
@pytest.mark.timeout(120 + 30 * FAULTS)
@pytest.mark.parametrize("kind", ["prosody", pytest.param("ejabberd", marks=pytest.mark.release)])
async def test_faults_lose_double_and_cross_nothing(kind: str, tmp_path: Path) -> None:
    require("Prosody" if kind == "prosody" else "ejabberd", (prosody_installed if kind == "prosody" else ejabberd_installed)())
    print(f"CHAOS_SEED={SEED}")
    faults = choose_faults(FAULTS, random.Random(SEED)) or SHORT_FAULTS
    with (prosody if kind == "prosody" else ejabberd)(tmp_path / "server") as server:
        tally = await run_kills(server, tmp_path, faults, SEED)
    print(" | ".join(tally.row))
    assert tally.problems == [], tally.row
