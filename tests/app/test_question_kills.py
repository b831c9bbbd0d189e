"""Questions and approvals under `kill -9`: nobody is asked twice, nothing approved starts twice, and every question ends.

With two workers, some of the kills are stops and freezes (`WorkerPair`). `make chaos` kills more often.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.app.test_initiative import Stored, wait_for_lines
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import Hosting, every_hosting, run_hosting
from tests.support.writing_agent import LoggedLine, read_log

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_KILLS_PER_ROUND = 2  # a request that ran at three crashes alone would fail (docs/explanation/delivery-guarantees.md)
_QUERIES = ("approved", "denied", "approved late")
_LINES_PER_RUN = 30
_MAX_DELAY_S = 0.2
_QUERY = re.compile(r"round \d+ (?:approved late|approved|denied)")
_CODE = re.compile(r"/(answer|approve) ([A-Z0-9]+)")


@dataclass
class Answering:
    """A client that answers each question at once, and some twice; what came of it by query.

    `texts` are the questions with the ids of their messages, by query and kind, and `ends` the last answers.
    """

    client: StockClient
    agent: str
    asked: defaultdict[tuple[str, str], set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    ends: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    copies: int = 0

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            message = await self.client.messages.get()
            text, ident = str(message["body"]), str(message["id"])
            found, query = _CODE.search(text), _QUERY.search(text)
            if query is None:
                continue
            if found is None:
                if text.startswith(f"{query[0]}: "):
                    self.ends[query[0]].add(text)
                continue
            verb, code = found.groups()
            kind = verb if verb == "approve" else "color" if "color" in text else "size"
            self.copies += (code, ident) in self.asked[query[0], kind]
            self.asked[query[0], kind].add((code, ident))
            for answer in self._answers(kind, code, query[0]):
                self.client.send(answer, self.agent)

    def _answers(self, kind: str, code: str, query: str) -> list[str]:
        if kind == "color":
            return [f"/answer {code} red", f"/answer {code} blue"]
        if kind == "size":
            return [f"/answer {code} small"]
        if "denied" in query:
            return [f"/deny {code} too much", f"/approve {code}"]
        return [f"/approve {code}", f"/approve {code}"] if "late" in query else [f"/approve {code}"]


@pytest.mark.timeout(3000)
@short_and_long_in_release("QUESTION_KILLS", 3, 30)
@every_hosting
async def test_questions_and_approvals_survive_kill_9(
    real_server: XmppServer, hosting: Hosting, get_postgres: Callable[[], Postgres], tmp_path: Path, count: int
) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, log, kills, rounds = random.Random(SEED), tmp_path / "asking.log", 0, 0
    log.touch()
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        StockClient(*await real_server.account(), real_server) as boss,
        run_hosting(
            hosting,
            real_server,
            get_postgres,
            tmp_path,
            rng,
            agent="tests.support.asking_agent:AskingAgent",
            options={"log": str(log), "other": boss.jid},
            access={"groups": {"approvers": [boss.jid]}},
            notifications={"per_day": 1_000_000},
        ) as (platform, jid, url),
    ):
        stored = Stored(url)
        asking, deciding = Answering(client, jid), Answering(boss, jid)
        tasks = [asyncio.create_task(each.run()) for each in (asking, deciding)]
        while kills < count:
            queries = {f"round {rounds} {kind}" for kind in _QUERIES}
            rounds += 1
            for query in sorted(queries):
                client.send(query, jid, thread=query)
            for _ in range(min(_KILLS_PER_ROUND, count - kills)):
                await wait_for_lines(log, rng.randrange(1, _LINES_PER_RUN))
                await asyncio.sleep(rng.uniform(0, _MAX_DELAY_S))
                await platform.signal(signal.SIGKILL)
                kills += 1
                await platform.start()
            await eventually(lambda queries=queries: queries <= asking.ends.keys() or any(task.done() for task in tasks))  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        await eventually(lambda: stored.query("SELECT count(*) FROM inbox WHERE state = 0") == [(0,)])
        assert await platform.signal(signal.SIGTERM) == 0
        for task in tasks:
            assert not task.done()
            task.cancel()
    lines, every = read_log(log), {f"round {number} {kind}" for number in range(rounds) for kind in _QUERIES}
    # Nobody is asked under two ids or codes.
    assert asking.asked.keys() == {(query, "color") for query in every}
    assert deciding.asked.keys() == {(query, kind) for query in every for kind in ("size", "approve")}
    for each in (asking, deciding):
        assert {key: found for key, found in each.asked.items() if len(found) != 1} == {}
    # Every question ends, and so does every request, once.
    states = Counter(stored.query("SELECT kind, state FROM questions"))
    denied = sum("denied" in query for query in every)
    approved = len(every) - denied
    assert states == {
        ("question", "answered"): 2 * len(every),
        ("approval", "approved"): approved,
        ("approval", "denied"): denied,
    }
    for table in ("parked_requests", "steps"):
        assert stored.query(f"SELECT count(*) FROM {table}") == [(0,)]
    assert {query: ends for query, ends in asking.ends.items() if len(ends) != 1} == {}
    assert asking.ends.keys() == every
    answers = {query: ends.pop() for query, ends in asking.ends.items()}
    check_effects(lines, answers)
    uncertain = sum(text.endswith(" uncertain") for text in answers.values())
    copies = asking.copies + deciding.copies
    print(f"{kills} kills in {rounds} rounds; {copies} copies of questions, {uncertain} payments were cut off")


def check_effects(lines: list[LoggedLine], ends: dict[str, str]) -> None:
    """Check that no approved call began twice, no denied one at all, and that each answer has the first results."""
    begins = Counter(line.text for line in lines if line.phase == "begins")
    results: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.phase == "ends":
            results[line.text].add(line.value)
    for query, text in ends.items():
        color, size, before, between, paid = text.removeprefix(f"{query}: ").split()
        assert (color, size) == ("red", "small")
        assert before in results[f"{query}: before"]
        assert between in results[f"{query}: between"]
        name = f"{query}: pay"
        if "denied" in query:
            assert (paid, begins[name]) == ("denied", 0)
        elif paid == "uncertain":
            assert begins[name] <= 1
        else:
            assert (begins[name], {paid}) == (1, results[name])
