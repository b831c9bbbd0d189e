"""Answers by doors that come after the time of their question, or without the right to give one, change nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from spade_coreason.exceptions import ConfigError
from tests.support.all_doors import AllDoors, run_all_doors
from tests.support.databases import SQLITE, execute
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.ways_to_answer import Shown, Way, make_ways
from tests.support.worker_doors import run_far_doors

WAYS = make_ways("late")
LATE = 1
"""The end of the time of a question, long ago (microseconds)."""


async def answer(running: AllDoors, http: httpx.AsyncClient, way: Way, shown: Shown) -> str:
    """Answer "red". Return the text of the reply, or that it is refused."""
    try:
        return (await way.answer(running, http, shown, "red")).text
    except (LookupError, AssertionError):
        return "refused"


def run_sql(directory: Path, statement: str) -> list[dict[str, Any]]:
    return [dict(row) for row in execute(f"{SQLITE}{directory / 'data' / 'platform.db'}", statement)]


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_by_a_door_counts_before_the_end_of_its_time_only(
    prosody: XmppServer, tmp_path: Path, way: str
) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        shown = await WAYS[way].ask(running, http, "ask me")
        run_sql(tmp_path, f"UPDATE questions SET expires_at = {LATE}")  # the clock of the agent looks at it later
        assert "painted red" not in await answer(running, http, WAYS[way], shown)
        assert "answered" not in {row["state"] for row in run_sql(tmp_path, "SELECT state FROM questions")}
        again = make_ways("again")[way]
        shown = await again.ask(running, http, "ask again")
        assert "painted red" in await answer(running, http, again, shown)


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_by_a_door_does_not_count_once_the_key_is_revoked(
    prosody: XmppServer, tmp_path: Path, way: str
) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        shown = await WAYS[way].ask(running, http, "ask again")
        await running.call("keys.revoke", name="website")
        assert "painted red" not in await answer(running, http, WAYS[way], shown)
        assert {row["state"] for row in run_sql(tmp_path, "SELECT state FROM questions")} == {"open"}


async def test_no_late_answer_by_a_door_counts_after_kill_9_and_at_two_workers(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as far:
        shown = {name: await way.ask(running.far, far, f"ask {name}") for name, way in WAYS.items()}
        execute(running.workers.url, f"UPDATE questions SET expires_at = {LATE}")
        await running.owner.signal(signal.SIGKILL)
        await running.owner.start()
        await running.workers.wait_for(1, 1)
        async with running.near.http("website") as near:
            for name, way in WAYS.items():
                for doors in ((running.near, near), (running.far, far)):
                    assert "painted red" not in await answer(*doors, way, shown[name]), name
        assert "answered" not in {row["state"] for row in execute(running.workers.url, "SELECT state FROM questions")}


async def test_the_user_of_the_machine_decides_before_the_end_of_the_time_only(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        await running.ask_a2a(http, "pay", "", running.name())
        [approval] = await running.call("approvals.list")
        run_sql(tmp_path, f"UPDATE questions SET expires_at = {LATE}")
        with pytest.raises(ConfigError, match="it is expired already; nothing was changed"):
            await running.call("approvals.approve", id=approval.id)
        with pytest.raises(ConfigError, match="it is decided already, or its time is over"):
            await running.call("approvals.reassign", id=approval.id)
