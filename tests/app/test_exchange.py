"""Asks between two processes under `kill -9`: each ends as if nothing had happened. `make chaos` kills more often."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.exchanging_agents import read_answers
from tests.support.hosting import run_platform
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_KILLS_PER_QUESTION = 2  # a request that ran at three crashes alone would fail (docs/explanation/delivery-guarantees.md)
_ASKS = 40


@pytest.mark.timeout(3000)
@short_and_long_in_release("EXCHANGE_KILLS", 4, 15)
async def test_asks_end_as_they_would_have_under_kill_9(real_server: XmppServer, tmp_path: Path, count: int) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, kills = random.Random(SEED), 0
    given, received = str(tmp_path / "given.log"), str(tmp_path / "received.log")
    for name in ("asker", "answerer"):
        (tmp_path / name).mkdir()
    agents = "tests.support.exchanging_agents"
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_platform(real_server, tmp_path / "answerer", agent=f"{agents}:TokenAgent", options={"log": given}) as (
            answerer,
            peer,
        ),
        run_platform(
            real_server,
            tmp_path / "asker",
            agent=f"{agents}:AskingAgent",
            options={"log": received, "peer": peer, "asks": _ASKS},
        ) as (asker, jid),
    ):
        while kills < count:
            query = f"question {kills}"
            client.send(query, jid)
            for _ in range(min(_KILLS_PER_QUESTION, count - kills)):
                await _wait_for_answers(received, rng.randrange(1, _ASKS // 2), last=f"{query}/{_ASKS - 1}")
                platform = rng.choice([asker, answerer])
                await platform.signal(signal.SIGKILL)
                kills += 1
                await platform.start()
            while (answer := json.loads(str((await client.answer())["body"])))["query"] != query:
                pass  # an answer that the server had not acknowledged comes twice
            tokens = defaultdict(set)
            for line in read_answers(received):
                tokens[line.query].add(line.token)
            assert [tokens[f"{query}/{number}"] for number in range(_ASKS)] == [{token} for token in answer["tokens"]]
            assert set(answer["tokens"]) <= {line.token for line in read_answers(given)}
        for platform in (asker, answerer):
            assert await platform.signal(signal.SIGTERM) == 0
    for name in ("asker", "answerer"):
        with closing(sqlite3.connect(tmp_path / name / "data" / "platform.db")) as database:
            assert database.execute("SELECT count(*) FROM steps").fetchone() == (0,)
            assert database.execute("SELECT count(*) FROM inbox WHERE state = 0").fetchone() == (0,)
    runs = len(read_answers(given))
    print(f"{kills} kills; {runs} answers were made, {len({line.query for line in read_answers(given)})} questions asked")


async def _wait_for_answers(log: str, count: int, last: str) -> None:
    """Wait until the log has so many more answers, or the answer to the last question."""
    goal = len(read_answers(log)) + count

    def is_reached() -> bool:
        answers = read_answers(log)
        return len(answers) >= goal or any(answer.query == last for answer in answers)

    await eventually(is_reached)
