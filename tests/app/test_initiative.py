"""Notifications and due times under `kill -9`: none is lost, doubled or held up, and no state says more than is true.

With two workers, some of the kills are stops and freezes (`WorkerPair`). `make chaos` kills more often.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import execute
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import Hosting, WorkerPair, every_hosting, run_hosting
from tests.support.writing_agent import OF_EACH, read_log

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_KILLS_PER_ROUND = 2  # a request that ran at three crashes alone would fail (docs/explanation/delivery-guarantees.md)
_LINES_PER_RUN = 40
_MAX_DELAY_S = 0.1
_EVERY = "kind = 'schedule' AND owner = agent"
_EVERY_DUE_AT = f"SELECT due_at FROM tasks WHERE {_EVERY}"


@dataclass
class Mailbag:
    """What a person's client has received: the ids of each text. Copies of a message have one id."""

    client: StockClient
    ids: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    copies: int = 0

    def collect(self) -> None:
        while not self.client.messages.empty():
            message = self.client.messages.get_nowait()
            if body := str(message["body"]):
                self.copies += message["id"] in self.ids[body]
                self.ids[body].add(str(message["id"]))

    def has(self, texts: set[str]) -> bool:
        self.collect()
        return texts <= self.ids.keys()

    async def wait_for(self, texts: set[str]) -> None:
        try:
            await eventually(lambda: self.has(texts))
        except TimeoutError:
            raise AssertionError(f"these have not come: {sorted(texts - self.ids.keys())}") from None

    def check(self) -> None:
        """Check that no text came as two messages."""
        self.collect()
        assert {text: ids for text, ids in self.ids.items() if len(ids) != 1} == {}


@dataclass
class Stored:
    """The database of a platform, which does not run or is read only."""

    url: str
    every_due_at: int = 0
    """When `@every` is due: the time that was set last, in microseconds."""

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in execute(self.url, statement)]

    def find_notifications(self, person: str) -> dict[str, tuple[str, str]]:
        """Return the state and the text of the notifications of a person, by id."""
        rows = self.query(f"SELECT key, state, data FROM tasks WHERE kind = 'notification' AND owner = '{person}'")
        return {row[0]: (row[1], row[2].partition('"content":"')[2].partition('"')[0]) for row in rows}

    def count_waiting(self) -> int:
        return int(self.query("SELECT count(*) FROM tasks WHERE kind = 'notification' AND state = 'waiting'")[0][0])

    def is_idle(self) -> bool:
        """Return True if no request and no notification waits."""
        return self.query("SELECT count(*) FROM inbox WHERE state = 0") == [(0,)] and self.count_waiting() == 0

    def let_every_be_due(self, agent: str, seconds: float) -> bool:
        """Let `@every` of an agent be due that many seconds from now. Return False if the time set last has not come up yet.

        So it does around the beginning of a minute, at which `@every` is due anyway, and while a request of it may wait behind
        another: what is due then is one run with that.
        """
        if not 2 < time.time() % 60 < 58:
            return False
        unanswered = f"SELECT count(*) FROM inbox WHERE state = 0 AND sender = '{agent}'"
        if self.query(unanswered)[0][0] > 1 or self.query(_EVERY_DUE_AT) == [(self.every_due_at,)]:
            return False
        self.every_due_at = due_at = int((time.time() + seconds) * 1e6)
        self.query(f"UPDATE tasks SET due_at = {due_at}, wake_at = {due_at} WHERE {_EVERY}")
        return True


@pytest.mark.timeout(3000)
@short_and_long_in_release("INITIATIVE_KILLS", 3, 30)
@every_hosting
async def test_what_an_agent_sends_first_survives_kill_9(
    real_server: XmppServer, hosting: Hosting, get_postgres: Callable[[], Postgres], tmp_path: Path, count: int
) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, log, began_at, kills, rounds, ticks = random.Random(SEED), tmp_path / "writing.log", time.monotonic(), 0, 0, 0
    away, unknown = await real_server.account(), f"nobody@{real_server.domain}"
    async with StockClient(*await real_server.account(), real_server) as client:
        mailbag = Mailbag(client)
        options = {"log": str(log), "person": client.jid, "others": [away[0], unknown]}
        async with run_hosting(
            hosting,
            real_server,
            get_postgres,
            tmp_path,
            rng,
            agent="tests.support.writing_agent:WritingAgent",
            options=options,
            notifications={"per_day": 1_000_000},
        ) as (platform, jid, url):
            stored = Stored(url)

            def let_every_be_due() -> None:
                nonlocal ticks
                is_set = stored.let_every_be_due(jid, rng.uniform(-0.2, 0.2))
                # Another worker may have read when it was due before.
                ticks += is_set and (not isinstance(platform, WorkerPair) or platform.is_victim_owner)

            if isinstance(platform, WorkerPair):
                platform.on_victim = let_every_be_due
            while kills < count:
                query = f"round {rounds}"
                rounds += 1
                client.send(query, jid)
                _replace(log.with_name("task"), query)
                for _ in range(min(_KILLS_PER_ROUND, count - kills)):
                    await wait_for_lines(log, rng.randrange(1, _LINES_PER_RUN))
                    await asyncio.sleep(rng.uniform(0, _MAX_DELAY_S))
                    await platform.signal(signal.SIGKILL)
                    kills += 1
                    # What is called sent at this moment, the server has: no platform is there that could send it again.
                    states = stored.find_notifications(client.jid).values()
                    await mailbag.wait_for({text for state, text in states if state == "sent"})
                    if not isinstance(platform, WorkerPair):
                        let_every_be_due()
                    await platform.start()
                await mailbag.wait_for(_texts_of_round(query))
                await eventually(lambda: stored.count_waiting() == 0)
            await eventually(stored.is_idle)
            assert await platform.signal(signal.SIGTERM) == 0
            while not stored.is_idle():  # a minute has begun just before the stop: what is left of it comes with the next start
                await platform.start()
                await eventually(stored.is_idle)
                assert await platform.signal(signal.SIGTERM) == 0
        lines = read_log(log)
        # A run may begin before its request is durable, and be killed before that. Its due time comes up again then, or is one
        # run with the next one. A step that has ended is durable, and so is its request.
        due = {line.text for line in lines if line.text.startswith("due at") and line.phase != "begins"}
        assert ticks <= len(due) <= ticks + (time.monotonic() - began_at) / 60 + 1  # minutes begin meanwhile
        await mailbag.wait_for(due)  # the server has acknowledged the last one, and may not have delivered it yet
        mailbag.check()
        expected = {text for number in range(rounds) for text in _texts_of_round(f"round {number}")}
        # A worker that was frozen may find its connection to the database ended before it learns that its lease is.
        told = {text for text in mailbag.ids if isinstance(platform, WorkerPair) and text.startswith("I cannot store anything")}
        assert set(mailbag.ids) - told == expected | due
    woken = platform.woken if isinstance(platform, WorkerPair) else ()
    # A worker that was frozen may begin one more of them when it wakes. What comes of that is not stored.
    _check_effects([line for line in lines if line.phase != "begins" or int(line.value) not in woken])
    assert stored.query(f"SELECT kind FROM tasks WHERE kind = 'schedule' AND NOT ({_EVERY})") == []
    assert len(stored.query(_EVERY_DUE_AT)) == 1
    assert stored.query("SELECT count(*) FROM steps") == [(0,)]
    # Every notification that was acknowledged is stored, once, and in the state in which its person has it.
    acknowledged = {line.value: line.text for line in lines if line.phase == "notified"}
    assert len(set(acknowledged.values())) == len(acknowledged)
    async with StockClient(*away, real_server) as late:
        late_mailbag = Mailbag(late)
        await late_mailbag.wait_for({text for text in acknowledged.values() if away[0] in text})
        late_mailbag.check()
    for person, state in ((client.jid, "sent"), (away[0], "sent"), (unknown, "bounced")):
        found = stored.find_notifications(person)
        assert Counter(state for state, _ in found.values()) == {state: len(found)}
        acknowledged = {key: text for key, text in acknowledged.items() if key not in found}
    assert acknowledged == {}
    print(f"{kills} kills in {rounds} rounds; {len(mailbag.ids)} texts came, {mailbag.copies} copies of them")


def _texts_of_round(query: str) -> set[str]:
    kinds = ("in the turn {}", "from a task {}", "reminder {}: done", "job {}: done")
    return {f"{query}: answered", *(f"{query}: {kind.format(number)}" for kind in kinds for number in range(OF_EACH))}


def _check_effects(lines: list[Any]) -> None:
    """Check that no side effect that had ended ran again."""
    results: dict[str, str] = {}
    for line in lines:
        if line.phase == "begins":
            assert line.text not in results, f"{line} ran after its end"
        elif line.phase == "ends":
            assert results.setdefault(line.text, line.value) == line.value


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


async def wait_for_lines(log: Path, count: int) -> None:
    """Wait until the log has so many more lines, or no more come."""
    goal = len(read_log(log)) + count
    last, since = 0, time.monotonic()

    def is_reached() -> bool:
        nonlocal last, since
        if (length := len(read_log(log))) != last:
            last, since = length, time.monotonic()
        return length >= goal or time.monotonic() - since > 0.5

    await eventually(is_reached)
