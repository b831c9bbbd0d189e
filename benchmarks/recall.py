"""The time that an agent takes to recall something from many documents, without the call of the embedding model."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

import numpy as np

from spade_coreason import Identity, Knowledge
from spade_coreason.contracts import ConversationState, MemoryConfig
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.memory import ExtractiveSummariser, HistoryWindows, estimate_tokens
from spade_coreason.memory.conversation import Variables
from spade_coreason.memory.session import SessionChanges, TurnSession
from spade_coreason.runtime.steps.step_journal import StepJournal
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.knowledge import KnowledgeRepository
from spade_coreason.storage.records import DocumentCollection, MissingVectors, NewDocument, StoredConversation, VectorRecord
from spade_coreason.storage.repository import AgentRepository
from tests.support.session_tools import StepsOnly

AGENT, PERSON = "bench@localhost", "alice@localhost"
DIMENSION = 384  # that of all-MiniLM-L6-v2
_WORDS = 20_000
_UNCOMMON = 100  # the commonest words of a language are not searched
_AT_ONCE = 1000


@dataclass(frozen=True)
class Recall:
    """Milliseconds of one `session.recall` over so many documents. The first one after a start reads the vectors."""

    documents: int
    by_meaning_ms: float
    by_meaning_p99_ms: float
    by_words_ms: float
    first_ms: float


class _InstantEmbeddings:
    """An embedding model that returns at once, so that everything else is measured. Each text gets its own vector."""

    model = "instant"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = [np.random.default_rng(len(text)).normal(size=DIMENSION).tolist() for text in texts]
        return vectors

    async def close(self) -> None:
        pass


async def recall(documents: int, rounds: int) -> Recall:
    """Fill a database, and search it with questions of six words."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        database = await open_database(f"sqlite+aiosqlite:///{directory}/platform.db", "normal")
        await _fill(database, documents, chance)
        questions = [" ".join(_text(chance, 6, _UNCOMMON)) for _ in range(rounds)]
        by_meaning = _session(database, Knowledge(KnowledgeRepository(database, AGENT), _InstantEmbeddings()))
        begin = time.perf_counter()
        await by_meaning.recall("the first", 5, 0.5)
        first_s = time.perf_counter() - begin
        by_meaning_ms = await _measure_recalls(by_meaning, questions)
        by_words_ms = await _measure_recalls(_session(database, Knowledge(KnowledgeRepository(database, AGENT))), questions)
        await database.close()
    return Recall(
        documents,
        statistics.median(by_meaning_ms),
        statistics.quantiles(by_meaning_ms, n=100)[98],
        statistics.median(by_words_ms),
        first_s * 1e3,
    )


async def _measure_recalls(session: TurnSession, questions: list[str]) -> list[float]:
    durations = []
    for question in questions:
        begin = time.perf_counter()
        await session.recall(question, 5, 0.5)
        durations.append((time.perf_counter() - begin) * 1e3)
    return durations


def _session(database: Database, knowledge: Knowledge) -> TurnSession:
    now = utc_now()
    conversation = StoredConversation(
        1, "one", PERSON, str(uuid4()), ConversationStatus(ConversationState.ACTIVE, 0, now, now), 0
    )
    identity = Identity(id=PERSON, name="alice", role="user")
    changes = SessionChanges(
        Variables("conversation", "one", {}), Variables("person", PERSON, {}), Variables("shared", AGENT, {})
    )
    repository = AgentRepository(database, AGENT)
    windows = HistoryWindows(repository, MemoryConfig(), estimate_tokens, ExtractiveSummariser(), knowledge)
    journal = StepJournal(repository.inbox, 0, uuid4())
    return TurnSession(conversation, (), identity, repository, changes, windows, StepsOnly(journal))


async def _fill(database: Database, documents: int, chance: random.Random) -> None:
    store = KnowledgeRepository(database, AGENT)
    vectors = np.random.default_rng(1).normal(size=(documents, DIMENSION)).astype("<f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for begin in range(0, documents, _AT_ONCE):
        count = min(_AT_ONCE, documents - begin)
        new = [
            NewDocument(f"document {number}", number.to_bytes(4, "big"), [" ".join(_text(chance, 80))])
            for number in range(begin, begin + count)
        ]
        await store.save_documents(DocumentCollection(), new, utc_now())
    missing = await store.find_missing(MissingVectors(), 0, documents)
    for begin in range(0, documents, _AT_ONCE):
        part = missing[begin : begin + _AT_ONCE]
        await store.save_vectors(
            [VectorRecord(id_, "instant", DIMENSION, vectors[begin + n].tobytes()) for n, (id_, _) in enumerate(part)]
        )


def _text(chance: random.Random, words: int, least: int = 1) -> list[str]:
    """Choose words as frequent as those of a language (Zipf), from the rank `least` on."""
    return [_word(int(least * (_WORDS / least) ** chance.random())) for _ in range(words)]


@cache
def _word(rank: int) -> str:
    """Build a word of some letters, always the same for a rank."""
    letters = random.Random(rank)
    return "".join(letters.choices("etaoinshrdlucmfwyp", k=letters.randint(4, 9)))
