"""The cost of a long session, and the durable turns per second, on SQLite in a temporary directory."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from spade_coreason import AgentDefinition
from spade_coreason.contracts import ConversationState
from spade_coreason.domain import channel_kinds
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.identifiers import candidate_conversation_ids, derive_session_id
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.domain.policy import Policy, Rules
from spade_coreason.runtime import AgentParts, AgentRules, Files, PeerOptions
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.statements import ADD_INTERACTION, ANSWER, RECEIVE, SAVE_CONVERSATION, sqlite_sql
from spade_coreason.storage.records import StoredConversation, TurnRecord, to_micros
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.no_uploads import refuse_upload

from .report import Target

AGENT, PERSON = "echo@localhost", "alice@localhost"
CONVERSATIONS = 64
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BODY = {"input": {"query": "What is the weather in Valencia today?"}, "output": {"text": "It is sunny, 21 degrees. " * 8}}


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """The lengths of the sessions, the rounds, the repetitions in a round, and the turns that are stored for the throughput."""

    sizes: tuple[int, int]
    rounds: int
    times: int
    turns: int


@dataclass(frozen=True, slots=True)
class Sessions:
    """Medians in microseconds by operation, for the shorter and the longer session, and durable turns per second."""

    sizes: tuple[int, int]
    medians_us: dict[str, tuple[float, float]]
    turns_per_s: float
    commit_per_turn_per_s: float


def measure(load: SessionLoad) -> Sessions:
    """Measure both sessions side by side, in turns, then both ways to store."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        paths = [Path(directory) / f"{size}.db" for size in load.sizes]
        for path, size in zip(paths, load.sizes, strict=True):
            asyncio.run(_fill(path, size))
        medians = asyncio.run(_side_by_side(paths, load))
        stored, single = [], []
        for number in range(load.rounds):
            stored.append(asyncio.run(_measure_grouped_commits(Path(directory) / f"grouped-{number}.db", load.turns)))
            single.append(_measure_single_commits(Path(directory) / f"single-{number}.db", load.turns // 4))
    return Sessions(load.sizes, medians, statistics.median(stored), statistics.median(single))


def targets(measured: Sessions) -> list[Target]:
    """Build the targets: constant cost, and at least five times the throughput of a commit per turn."""
    flat = [
        Target(f"{name} at {measured.sizes[1]:,} turns against {measured.sizes[0]:,}", long / short, "at most", 1.3)
        for name, (short, long) in measured.medians_us.items()
    ]
    ratio = measured.turns_per_s / measured.commit_per_turn_per_s
    return [*flat, Target(f"turns/s of {CONVERSATIONS} conversations against a commit per turn", ratio, "at least", 5.0)]


def lines(measured: Sessions) -> list[str]:
    """Build the lines of the figures."""
    short, long = measured.sizes
    head = f"  {'':32}{f'{short:,} turns':>18}{f'{long:,} turns':>18}{'ratio':>7}"
    rows = [f"  {name:32}{a:15.0f} µs{b:15.0f} µs{b / a:7.2f}" for name, (a, b) in measured.medians_us.items()]
    stored = f"durable turns/s: {measured.turns_per_s:,.0f} grouped, {measured.commit_per_turn_per_s:,.0f} with a commit each"
    return [head, *rows, f"  {stored}"]


# Long sessions


class _Echo:
    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        await response.markdown(request.payload["query"])


def _stored_conversation(turns: int) -> StoredConversation:
    name = candidate_conversation_ids("t", PERSON, AGENT)[0]
    status = ConversationStatus(ConversationState.ACTIVE, 0, NOW, NOW)
    return StoredConversation(
        1, name, PERSON, str(derive_session_id(AGENT, PERSON, name)), status, 0, max(1, turns - 19), turns
    )


async def _fill(path: Path, turns: int) -> None:
    database = await open_database(f"sqlite+aiosqlite:///{path}", "off")
    await AgentRepository(database, AGENT).save_conversation(_stored_conversation(turns))
    await database.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.executemany(
            "INSERT INTO interactions VALUES (?, 1, ?, ?, ?, ?, '')",
            ((n, n, str(uuid5(NAMESPACE_URL, str(n))), to_micros(NOW) + n, json.dumps(BODY)) for n in range(1, turns + 1)),
        )
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _side_by_side(paths: list[Path], load: SessionLoad) -> dict[str, tuple[float, float]]:
    sessions = [await _Session.open(path, size) for path, size in zip(paths, load.sizes, strict=True)]
    durations: dict[str, tuple[list[float], list[float]]] = {}
    try:
        for number in range(load.rounds * load.times):
            for index, session in enumerate(sessions):
                for name, operation in session.operations(number).items():
                    begin = time.perf_counter()
                    await operation()
                    durations.setdefault(name, ([], []))[index].append((time.perf_counter() - begin) * 1e6)
    finally:
        for session in sessions:
            await session.close()
    return {name: (statistics.median(short), statistics.median(long)) for name, (short, long) in durations.items()}


class _Session:
    """One session in a runner of its own."""

    def __init__(self, database: Database, store: AgentRepository, runner: Runner, size: int) -> None:
        self.database, self.store, self.runner, self.size = database, store, runner, size

    @classmethod
    async def open(cls, path: Path, size: int) -> _Session:
        database = await open_database(f"sqlite+aiosqlite:///{path}", "full")
        store = AgentRepository(database, AGENT)
        network = XmppTransport(AGENT, lambda messages: None, Policy().limits.stanza_bytes).network
        policy = Policy(rules=Rules(max_interactions=0))
        parts = AgentParts(store, network, Files(refuse_upload), PeerOptions(), AgentRules(AccessPolicy(AGENT), policy))
        runner = parts.build_runtime(_Echo()).runner
        await runner.open()
        return cls(database, store, runner, size)

    def operations(self, number: int) -> dict[str, Callable[[], Awaitable[object]]]:
        # A new offset each time, so that neither session finds its pages in a cache.
        offset = number * 7919 % (self.size - 5)
        return {
            "history(5)": lambda: self.store.turns.load_history(1, 5),
            "history(5, somewhere)": lambda: self.store.turns.load_history(1, 5, offset),
            "loading": lambda: self.store.load(candidate_conversation_ids("t", PERSON, AGENT), PERSON, 20),
            "a turn": self._turn,
        }

    async def _turn(self) -> None:
        self.runner.intake.receive(
            InboundRequest(channel_kinds.PERSON, f"{PERSON}/x", str(uuid4()), "t", {"query": "hello"}, "hello", owner=PERSON)
        )
        await self.runner.mailboxes.wait_until_idle()

    async def close(self) -> None:
        await self.runner.drain(1)
        await self.runner.close()
        await self.database.close()


# Durable turns


async def _measure_grouped_commits(path: Path, turns: int) -> float:
    database = await open_database(f"sqlite+aiosqlite:///{path}", "full")
    store = AgentRepository(database, AGENT)
    numbers = iter(range(turns))

    async def talk(name: str) -> None:
        conversation = replace(_stored_conversation(0), id=store.database.row_ids.next(), conversation_id=name)
        for _ in numbers:
            conversation = replace(conversation, turns=conversation.turns + 1)
            request, is_new, _ = store.inbox.receive(uuid4().bytes, PERSON, json.dumps(BODY["input"]), NOW)
            # As the runner does for a request that is known to be new and an agent that never waits.
            await store.inbox.finish(request, conversation, TurnRecord(str(uuid4()), NOW, json.dumps(BODY)), '["<message/>"]')
            await is_new

    begin = time.perf_counter()
    await asyncio.gather(*(talk(f"t{number}") for number in range(CONVERSATIONS)))
    duration_s = time.perf_counter() - begin
    await database.close()
    return turns / duration_s


def _measure_single_commits(path: Path, turns: int) -> float:
    """Write the same rows by the same statements, in one transaction a turn, without anything around them."""
    asyncio.run(_fill(path, 0))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        begin = time.perf_counter()
        for number in itertools.islice(itertools.count(1), turns):
            request = (number, AGENT, uuid4().bytes, PERSON, to_micros(NOW), 0, json.dumps(BODY["input"]), b"", "")
            conversation = (1, AGENT, "t", PERSON, "s", "active", 0, 0, to_micros(NOW), to_micros(NOW), 0, None, 1, number)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(sqlite_sql(RECEIVE, 1), request)
            connection.execute(sqlite_sql(SAVE_CONVERSATION, 1), conversation)
            connection.execute(
                sqlite_sql(ADD_INTERACTION, 1), (number, 1, number, str(uuid4()), to_micros(NOW), json.dumps(BODY), "")
            )
            connection.execute(sqlite_sql(ANSWER, 1), (number, 1, '["<message/>"]', number))
            connection.execute("COMMIT")
        return turns / (time.perf_counter() - begin)
