"""Semantic search with a real embedding model behind a real endpoint; docs/explanation/memory.md shows its scores."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from spade_coreason import (
    AgentRequest,
    AgentTester,
    Knowledge,
    MemoryConfig,
    MemoryStrategy,
    ResponseHandler,
    SessionHandle,
    agent,
)
from spade_coreason.memory.knowledge.embeddings import LocalEmbedder, OpenAIEmbedder
from spade_coreason.memory.openai_api import OpenAIApi
from spade_coreason.storage import open_database
from spade_coreason.storage.knowledge import KnowledgeRepository
from spade_coreason.testing import Policy
from tests.semantic.minilm import MiniLM, model_directory
from tests.support.model_server import ModelServer

DOCS = Path(__file__).parents[2] / "docs" / "explanation" / "memory.md"
QUESTION = "What is the refund policy for subscriptions?"
REFUNDS = "Subscriptions can be refunded within 14 days of purchase; after that the policy allows no refund."
OTHERS = {
    "hours": "The office is open from nine to five, Monday to Friday.",
    "parking": "Parking is free behind the building.",
    "gym": "Our gym offers a subscription for 20 euros a month.",
    "wifi": "The password of the wireless network is on the board in the kitchen.",
}


@pytest.fixture(scope="session")
def model() -> MiniLM:
    return MiniLM(model_directory())


@pytest.fixture
async def server(model: MiniLM) -> AsyncIterator[ModelServer]:
    async with ModelServer(dimension=model.dimension, embed=model.embed) as server:
        yield server


@pytest.fixture
async def embedder(server: ModelServer) -> AsyncIterator[OpenAIEmbedder]:
    embedder = OpenAIEmbedder(OpenAIApi(server.url), "all-MiniLM-L6-v2")
    yield embedder
    await embedder.close()


@pytest.fixture
async def knowledge(tmp_path: Path, embedder: OpenAIEmbedder) -> AsyncIterator[Knowledge]:
    database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/platform.db", "off")
    yield Knowledge(KnowledgeRepository(database, "shop@localhost"), embedder)
    await database.close()


async def test_the_question_about_refunds_finds_its_document_first_and_no_other(knowledge: Knowledge) -> None:
    for name, text in OTHERS.items():
        await knowledge.add(text, name)
    await knowledge.add(REFUNDS, "refunds")
    assert [hit.document for hit in await knowledge.search(QUESTION)] == ["refunds"]
    everything = await knowledge.search(QUESTION, threshold=0.0)
    assert [hit.document for hit in everything][:2] == ["refunds", "gym"]
    assert everything[0].score > everything[1].score + 0.2
    assert [hit.document for hit in await knowledge.search("How do I get my money back?", 1, 0.6)] == ["refunds"]


async def test_an_agent_recalls_an_old_turn_asked_for_in_other_words(embedder: OpenAIEmbedder) -> None:
    @agent
    async def recalling(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.data({"found": await session.recall(request.payload["query"])})
        await response.markdown("Noted.")

    policy = Policy(memory=MemoryConfig(strategy=MemoryStrategy.VECTOR_STORE, limit=1))
    async with AgentTester(recalling, policy=policy, embedder=embedder) as t:
        for text in ("My flight departs on Friday at 7 in the morning.", "My sister's birthday is in May.", *OTHERS.values()):
            await t.ask(text)
            await t.settled()
        found = (await t.ask("When does my plane leave?")).data[0]["data"]["found"]
        assert found == ["My flight departs on Friday at 7 in the morning.\nNoted."]


def documented_scores() -> list[tuple[str, str, float, float, float]]:
    """The table of docs/explanation/memory.md: question, passage, cosine, score with vectors, score by words alone."""
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (-?[0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|$", DOCS.read_text(), re.MULTILINE)
    return [(question, passage, float(cosine), float(both), float(words)) for question, passage, cosine, both, words in found]


async def test_the_documented_scores_are_the_measured_ones(tmp_path: Path, model: MiniLM, embedder: OpenAIEmbedder) -> None:
    assert len(documented_scores()) >= 10
    for number, (question, passage, cosine, both, words) in enumerate(documented_scores()):
        one, other = model.embed([question, passage])
        assert sum(a * b for a, b in zip(one, other, strict=True)) == pytest.approx(cosine, abs=0.006), passage
        database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/{number}.db", "off")
        store = KnowledgeRepository(database, "shop@localhost")
        await Knowledge(store, embedder).add(passage, "it")
        [hit] = await Knowledge(store, embedder).search(question, threshold=0.0)
        assert hit.score == pytest.approx(both, abs=0.006), passage
        by_words = await Knowledge(store).search(question, threshold=0.0)
        assert [hit.score for hit in by_words] == ([] if words == 0 else [pytest.approx(words, abs=0.006)]), passage
        await database.close()


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason='pip install "spade-coreason[local]" enables it')
async def test_a_model_on_this_machine_gives_the_same_vectors(model: MiniLM) -> None:
    local = LocalEmbedder(str(model_directory()))
    for ours, theirs in zip(model.embed([QUESTION, REFUNDS]), await local.embed([QUESTION, REFUNDS]), strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)
