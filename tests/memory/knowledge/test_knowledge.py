"""The knowledge of an agent: documents stored once, found by meaning and by words, and only by those who may see them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Connection, func, select, update

from spade_coreason import (
    AgentRequest,
    AgentTester,
    ConfigError,
    Interaction,
    Knowledge,
    ModelError,
    ResponseHandler,
    SessionHandle,
    agent,
)
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.environment.installation import install_hint
from spade_coreason.domain.texts.text import word_rules
from spade_coreason.exceptions import KnowledgeError
from spade_coreason.memory.knowledge.embeddings import Embedder, OpenAIEmbedder
from spade_coreason.memory.openai_api import OpenAIApi
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backup import back_up, restore
from spade_coreason.storage.knowledge import KnowledgeRepository, index_outdated_passages
from spade_coreason.storage.records import DocumentCollection, NewDocument
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.schema import passages
from tests.support.databases import SQLITE, WriterGate, on_both_databases, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.model_server import ModelServer
from tests.support.records import new_conversation, open_repository, store_turn
from tests.support.servers.postgres import Postgres

AGENT, OTHER = "agent@localhost", "other@localhost"
ALICE, BOB = "alice@localhost", "bob@localhost"

REFUNDS = "Subscriptions can be refunded within 14 days; the policy covers every plan."
HOURS = "The office opens at nine and closes at five."
PARKING = "Parking is free behind the building."

OpenKnowledge: TypeAlias = Callable[..., Knowledge]


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def open_knowledge(database: Database) -> AsyncIterator[OpenKnowledge]:
    """Open the knowledge of an agent from the database; with an embedder if a server is given."""
    opened: list[Knowledge] = []

    def open_one(server: ModelServer | None = None, model: str = "small", jid: str = AGENT, **options: Any) -> Knowledge:
        embedder = make_embedder(server, model, **options) if server is not None else None
        opened.append(Knowledge(KnowledgeRepository(database, jid), embedder))
        return opened[-1]

    yield open_one
    for knowledge in opened:
        await knowledge.close()


def make_embedder(server: ModelServer, model: str = "small", batch: int = 64, **options: Any) -> Embedder:
    return OpenAIEmbedder(OpenAIApi(server.url, **options), model, batch=batch)


async def hit_texts(found: Awaitable[list[Any]]) -> list[str]:
    return [hit.text for hit in await found]


# By words


@on_both_databases
async def test_without_an_embedder_documents_are_found_by_their_words(open_knowledge: OpenKnowledge) -> None:
    knowledge = open_knowledge()
    for name, text in (("refunds", REFUNDS), ("hours", HOURS), ("parking", PARKING)):
        assert await knowledge.add(text, name) == "new"
    [hit] = await knowledge.search("What is the refund policy for subscriptions?")
    assert (hit.text, hit.score, hit.document, hit.passage) == (REFUNDS, 1.0, "refunds", 1)
    assert await hit_texts(knowledge.search("when does the office open, and where is parking?", threshold=0.3)) == [
        HOURS,
        PARKING,
    ]
    assert await knowledge.search("elephants") == await knowledge.search("") == await knowledge.search("office", 0) == []


async def test_equal_scores_stay_in_the_order_of_full_text(open_knowledge: OpenKnowledge) -> None:
    knowledge = open_knowledge()
    await knowledge.add("The car is mentioned once among many other things that nobody asked for in this long text.", "a")
    await knowledge.add("Car, car, car!", "b")
    found = await knowledge.search("car")
    assert [(hit.document, hit.score) for hit in found] == [("b", 1.0), ("a", 1.0)]


@on_both_databases
async def test_by_bm25_rare_words_count_more_and_repeated_words_less(open_knowledge: OpenKnowledge) -> None:
    knowledge = open_knowledge()
    documents = {
        "rare": "The harbour is closed while the bridge over the river is built, as it was two years ago.",
        "twice": "The train leaves at nine. Another train leaves at ten.",
        "once": "The train leaves at nine. Another leaves at ten.",
        **{f"other {number}": f"No train stops at platform {number} today, says the board." for number in range(9)},
    }
    for name, text in documents.items():
        await knowledge.add(text, name)
    found = await knowledge.search("train harbour", 3, threshold=0.5)
    assert [(hit.document, hit.score) for hit in found] == [("rare", 0.5), ("twice", 0.5), ("once", 0.5)]


@on_both_databases
async def test_an_exact_word_ranks_before_its_forms_and_an_identifier_matches_itself_only(
    open_knowledge: OpenKnowledge,
) -> None:
    knowledge = open_knowledge()
    await knowledge.add("The parked cars are behind the house.", "form")
    await knowledge.add("The parking is behind the house.", "exact")
    await knowledge.add("The invoice INV20241 is paid.", "invoice")
    assert [hit.document for hit in await knowledge.search("parking")] == ["exact", "form"]
    assert [hit.document for hit in await knowledge.search("inv20241")] == ["invoice"]
    assert await knowledge.search("inv20242") == []


async def test_passages_of_an_older_version_are_indexed_anew_however_often_it_is_cut(database_url: str) -> None:
    database = await open_database(database_url, "off")
    store = KnowledgeRepository(database, AGENT)
    number = 250  # several batches
    new = [NewDocument(f"d{n}", n.to_bytes(2, "big"), ["Parking is free.", f"Row {n}."]) for n in range(number)]
    await store.save_documents(DocumentCollection(), new, utc_now())
    older = {"Parking is free.": "parking is free", "Row 7.": "row 7"}
    for text_, words in older.items():
        statement = update(passages).where(passages.c.text == text_).values(words=words)
        await database.write(partial(Connection.execute, statement=statement))
    await database.write(partial(Connection.execute, statement=update(passages).values(word_rules="")))
    await database.close()

    gate = WriterGate()
    database = await open_without_sync(database_url, gate)
    knowledge = Knowledge(KnowledgeRepository(database, AGENT))
    assert await knowledge.search("Where can I park?") == []
    assert len(await knowledge.search("parking", 1000)) == number  # as before

    async def count_outdated() -> int:
        query = select(func.count()).select_from(passages).where(passages.c.word_rules != word_rules())
        return int(await database.read(lambda connection: connection.execute(query).scalar_one()))

    assert await count_outdated() == 2 * number
    for outdated in (400, 300):
        indexing = asyncio.create_task(index_outdated_passages(database))

        def write_and_cut(batch: list[Any], write: Callable[[list[Any]], None], task: asyncio.Task[int] = indexing) -> None:
            write(batch)
            task.cancel()

        gate.on_batch = write_and_cut
        with pytest.raises(asyncio.CancelledError):
            await indexing
        gate.on_batch = lambda batch, write: write(batch)
        await database.write(lambda connection: None)  # after the batch that was on its way
        assert await count_outdated() == outdated
    assert await index_outdated_passages(database) > 0
    assert await count_outdated() == await index_outdated_passages(database) == 0
    assert len(await knowledge.search("Where can I park?", 1000)) == number
    assert len(await knowledge.search("parking", 1000)) == number
    assert await knowledge.remove("d7")
    assert len(await knowledge.search("park", 1000)) == number - 1
    await database.close()


@on_both_databases
@pytest.mark.parametrize(
    "query", ['"', "a* OR b", "NEAR(x)", "shelf : 1", "'; DROP TABLE passages", "(", "& | !", "\x00", "\ud800", "日本語"]
)
async def test_no_question_is_taken_for_an_operator(open_knowledge: OpenKnowledge, query: str) -> None:
    knowledge = open_knowledge()
    await knowledge.add(REFUNDS, "refunds")
    await knowledge.add("日本語の文書", "japanese")
    found = await hit_texts(knowledge.search(query))
    assert found == (["日本語の文書"] if query == "日本語" else [])


@on_both_databases
@pytest.mark.parametrize(
    ("query", "stored_word"),
    [("close", "closes"), ("closes", "close"), ("cats", "cat"), ("cat", "cats"), ("plane", "planes"), ("policy", "policies")],
)
async def test_a_form_of_a_word_is_found_by_another(open_knowledge: OpenKnowledge, query: str, stored_word: str) -> None:
    knowledge = open_knowledge()
    await knowledge.add(f"it {stored_word} here", "one")
    await knowledge.add("catapults and others", "two")
    assert await hit_texts(knowledge.search(query)) == [f"it {stored_word} here"]


# Documents


async def test_the_same_document_twice_is_one_and_a_changed_one_is_updated(
    open_knowledge: OpenKnowledge, tmp_path: Path
) -> None:
    knowledge, file = open_knowledge(), tmp_path / "a.md"
    file.write_text(f"# Refunds\n\n{REFUNDS}")
    assert [await knowledge.add_file(file) for _ in range(2)] == ["new", "same"]
    copy = tmp_path / "copy.md"
    copy.write_text(file.read_text())
    assert await knowledge.add_file(copy) == "same"
    assert await hit_texts(knowledge.search("refund")) == [f"Refunds\n{REFUNDS}"]
    file.write_text(HOURS)
    assert await knowledge.add_file(file) == "changed"
    assert await knowledge.search("refund") == []
    assert await hit_texts(knowledge.search("office")) == [HOURS]
    [document] = await knowledge.list()
    assert (document.name, document.passages, document.characters) == (str(file), 1, len(HOURS))
    assert await knowledge.remove(str(file))
    assert not await knowledge.remove(str(file))
    assert not await knowledge.list()
    assert not await knowledge.search("office")


async def test_an_unusable_document_is_an_error_that_names_it(open_knowledge: OpenKnowledge, tmp_path: Path) -> None:
    knowledge = open_knowledge()
    for name, content, problem in (
        ("empty.txt", b" \n", "has no text"),
        ("picture.png", b"\x89PNG\xff", "not UTF-8 text"),
        ("broken.pdf", b"%PDF-1.4 nothing", "cannot be read as PDF"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(KnowledgeError, match=rf"{name}: .*{problem}"):
            await knowledge.add_file(tmp_path / name)
    with pytest.raises(KnowledgeError, match=r"/dev/zero: has more than 67,108,864 bytes"):
        await knowledge.add_file("/dev/zero")
    with pytest.raises(KnowledgeError, match=r"nothing\.txt: cannot be read: No such file"):
        await knowledge.add_file(tmp_path / "nothing.txt")
    with pytest.raises(KnowledgeError, match="is not a valid document name"):
        await knowledge.add("text", " ")
    assert await knowledge.list() == []


# By meaning


@on_both_databases
async def test_with_an_embedder_the_same_meaning_is_found_in_other_words(
    open_knowledge: OpenKnowledge, models: ModelServer
) -> None:
    knowledge = open_knowledge(models)
    for name, text in (("refunds", REFUNDS), ("hours", HOURS), ("parking", PARKING)):
        await knowledge.add(text, name)
    found = await knowledge.search("money reimbursed", threshold=0.6)
    assert [hit.document for hit in found] == ["refunds"]
    assert await open_knowledge().search("money reimbursed", threshold=0.01) == []  # by words alone there is nothing
    # And one that shares a word and a meaning comes before one that shares a word.
    await knowledge.add("money, automobile", "both")
    found = await knowledge.search("car money", threshold=0.5)
    assert found[0].document == "both"


async def test_texts_are_embedded_in_batches_and_only_once(open_knowledge: OpenKnowledge, models: ModelServer) -> None:
    knowledge = open_knowledge(models, batch=10)
    seen: list[tuple[int, int]] = []
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 150 for number in range(25))
    await knowledge.add(text, "long", progress=lambda done, total: seen.append((done, total)))
    assert [len(asked["input"]) for _, asked in models.requests] == [10, 10, 5]
    assert seen == [(25, 25)]
    assert await knowledge.add(text, "long") == "same"
    assert len(models.requests) == 3
    [document] = await knowledge.list()
    assert (document.passages, document.indexed) == (25, 25)


async def test_passages_that_were_not_embedded_are_embedded_later(open_knowledge: OpenKnowledge, models: ModelServer) -> None:
    knowledge = open_knowledge(models)
    text = "\n\n".join(f"Paragraph {number}. " + "word " * 150 for number in range(100))
    models.failures = [400]
    with pytest.raises(ModelError, match=r"/v1/embeddings: answered HTTP 400; the server says: told to fail"):
        await knowledge.add(text, "long")
    assert await hit_texts(knowledge.search("paragraph 7", 1))  # by its words it is found already
    calls = len(models.requests)
    assert await knowledge.add(text, "long") == "same"
    assert sum(len(asked["input"]) for _, asked in models.requests[calls:]) == 100
    assert (await knowledge.list())[0].indexed == 100
    assert await knowledge.reindex() == 0


async def test_transient_failures_are_retried_and_others_reported(models: ModelServer) -> None:
    embedder = make_embedder(models)
    models.failures = [503, 429]
    assert len(await embedder.embed(["a"])) == 1
    for failure, problem in (
        (404, "answered HTTP 404; check url and model; the server says: told to fail"),
        ("{}", "returned no embeddings"),
        ("no", "no JSON"),
        ('{"data": []}', "0 vectors for 1 texts"),
        ("[" * 100_000, "no JSON"),
        ('{"data": [{"index": 0, "embedding": [1%s]}]}' % ("0" * 400), "returned no embeddings"),
    ):
        models.failures = [failure]
        with pytest.raises(ModelError, match=problem) as lasting:
            await embedder.embed(["a"])
        assert not lasting.value.is_transient
        assert models.failures == []
    models.failures = [503] * 3
    with pytest.raises(ModelError, match="answered HTTP 503") as caught:
        await embedder.embed(["a"])
    assert caught.value.is_transient
    await embedder.close()
    unreachable = OpenAIEmbedder(OpenAIApi("http://127.0.0.1:1/v1"), "m")
    with pytest.raises(ModelError, match=r"http://127.0.0.1:1/v1/embeddings: cannot be reached") as caught:
        await unreachable.embed(["a"])
    assert caught.value.is_transient
    await unreachable.close()


SLOW_ANSWERS = {
    "it hangs": b"",
    "it asks for a long pause": b"HTTP/1.1 429 Busy\r\nRetry-After: 100\r\nContent-Length: 0\r\n\r\n",
    "it sends a byte now and then": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
}


@pytest.mark.parametrize("fault", SLOW_ANSWERS)
async def test_a_server_that_does_not_answer_in_time_is_not_waited_for(fault: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SLOW_ANSWERS[fault])
        with closing(writer), suppress(ConnectionError):
            while fault == "it sends a byte now and then":
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
            await reader.read()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    with closing(server):
        api = OpenAIApi(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", timeout_s=0.2)
        with pytest.raises(ModelError, match=r"did not answer within 0\.4 s") as caught:
            await api.post("embeddings", {})
        assert caught.value.is_transient
        await api.close()


async def test_a_server_that_compresses_its_answer_is_asked_once_and_without_a_key_none_is_sent() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    with closing(server):
        api = OpenAIApi(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        with pytest.raises(ModelError, match="sends its answer compressed") as caught:
            await api.post("embeddings", {})
        await api.close()
    assert not caught.value.is_transient
    [head] = heads
    assert b"\r\nauthorization:" not in head


def test_without_the_package_of_the_api_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError) as caught:
        OpenAIApi("http://127.0.0.1:1/v1")
    assert str(caught.value) == f"http://127.0.0.1:1/v1: is asked with the package openai: {install_hint('llm')}"


@pytest.mark.parametrize("key", ["s3cret\n", "schlüssel-s3cret", "s3\0cret", ""])
def test_a_key_that_no_request_can_have_is_refused_and_never_shown(key: str) -> None:
    with pytest.raises(ConfigError, match=r"the api_key of http:.* is not a valid key") as caught:
        OpenAIApi("http://127.0.0.1:1/v1", key)
    assert "cret" not in str(caught.value)


async def test_an_api_key_is_sent_and_never_shown() -> None:
    async with ModelServer(api_key="s3cret") as server:
        api = OpenAIApi(server.url, "s3cret")
        assert len(await OpenAIEmbedder(api, "m").embed(["a"])) == 1
        assert "s3cret" not in repr(api)
        await api.close()
        wrong = OpenAIApi(server.url, "other")
        with pytest.raises(ModelError, match=r"401; check api_key; the server says: Incorrect API key provided") as caught:
            await OpenAIEmbedder(wrong, "m").embed(["a"])
        assert "other" not in str(caught.value)
        await wrong.close()


async def test_without_a_working_embedder_words_are_searched_and_the_log_says_so_once(
    open_knowledge: OpenKnowledge, models: ModelServer, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("searching by words only")
    knowledge = open_knowledge(models)
    await knowledge.add(REFUNDS, "refunds")
    models.failures = [400, 400]
    for _ in range(2):
        assert await hit_texts(knowledge.search("refund policy")) == [REFUNDS]
    assert caplog.text.count("searching by words only") == 1
    assert "/v1/embeddings: answered HTTP 400\n" in caplog.text
    assert "refund policy" not in caplog.text  # which the server quotes


# Another model


async def test_a_model_whose_vectors_change_their_length_is_noticed_while_it_runs(
    open_knowledge: OpenKnowledge, models: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    knowledge = open_knowledge(models)
    await knowledge.add(REFUNDS, "refunds")
    assert await hit_texts(knowledge.search("reimbursed", threshold=0.6)) == [REFUNDS]
    models.dimension = 64
    assert await hit_texts(knowledge.search("reimbursed", threshold=0.6)) == []
    assert await hit_texts(knowledge.search("refund policy")) == [REFUNDS], "by its words"
    assert caplog.text.count("`spade-coreason knowledge reindex agent@localhost`") == 1
    assert await knowledge.reindex() == 1
    assert await hit_texts(knowledge.search("reimbursed", threshold=0.6)) == [REFUNDS]


async def test_vectors_of_another_model_are_never_compared_and_reindexing_repairs_it(
    open_knowledge: OpenKnowledge, models: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_knowledge(models, "first")
    await before.add(REFUNDS, "refunds")
    for number in range(70):
        await before.add(f"Something else, number {number}.", f"other {number}")
    after = open_knowledge(models, "second")
    await after.add("money, money", "new")
    # The old document has as near a meaning, by vectors that say nothing here: it is found by its words alone.
    assert [hit.document for hit in await after.search("reimbursed", threshold=0.6)] == ["new"]
    assert caplog.text.count("`spade-coreason knowledge reindex agent@localhost`") == 1
    assert "not all of 72 passages have a vector of second (256 values): 71 by first (256 values)" in caplog.text
    assert await after.missing() == {"first": 71}
    models.failures = []
    calls = len(models.requests)

    def stop(done: int, total: int) -> None:
        assert total == 71
        if done >= 64:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await after.reindex(stop)
    assert await after.missing() == {"first": 7}  # what was done is kept
    assert await after.reindex() == 7
    assert sum(len(asked["input"]) for _, asked in models.requests[calls:]) == 71 + 2
    assert await after.missing() == {}
    assert {hit.document for hit in await after.search("reimbursed", threshold=0.6)} == {"new", "refunds"}


async def test_a_model_that_gives_other_lengths_under_the_same_name_is_noticed(
    open_knowledge: OpenKnowledge, models: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    await open_knowledge(models).add(REFUNDS, "refunds")
    models.dimension = 32
    knowledge = open_knowledge(models)
    assert await knowledge.search("reimbursed", threshold=0.5) == []
    assert "1 by small (256 values)" in caplog.text
    assert await knowledge.reindex() == 1
    assert len(await knowledge.search("reimbursed", threshold=0.6)) == 1


# Whose it is


@on_both_databases
@pytest.mark.parametrize("has_vectors", [False, True], ids=["by words", "by meaning"])
async def test_nothing_crosses_between_agents_people_and_conversations(
    open_knowledge: OpenKnowledge, models: ModelServer, has_vectors: bool
) -> None:
    server = models if has_vectors else None
    knowledge, other = open_knowledge(server), open_knowledge(server, jid=OTHER)
    await knowledge.add("a secret of the agent", "doc")
    await knowledge.add("a secret of alice", "doc", person=ALICE)
    await knowledge.add("a secret of bob", "doc", person=BOB)
    await knowledge.add("a secret of the conversation one", "doc", conversation="one")
    await knowledge.add("a secret of one whose id is a person", "doc", conversation=ALICE)
    await other.add("a secret of the other agent", "doc")

    async def seen(knowledge: Knowledge, **whose: Any) -> set[str]:
        found = await knowledge.search("secret", 100, 0.0, **whose)
        listed = await knowledge.list(**whose) if len(whose) < 2 else []
        assert all(document.name == "doc" for document in listed)
        return {hit.text.removeprefix("a secret of ") for hit in found}

    assert await seen(knowledge) == {"the agent"}
    assert await seen(other) == {"the other agent"}
    assert await seen(knowledge, person=ALICE) == {"the agent", "alice"}
    assert await seen(knowledge, person=BOB, conversation="one") == {"the agent", "bob", "the conversation one"}
    assert await seen(knowledge, conversation=ALICE) == {"the agent", "one whose id is a person"}
    assert await seen(knowledge, person="", conversation="two") == {"the agent"}
    assert await seen(other, person=ALICE, conversation="one") == {"the other agent"}
    with pytest.raises(ValueError, match="not to both"):
        await knowledge.add("x", "x", person=ALICE, conversation="one")
    assert await knowledge.remove("doc", person=ALICE)
    assert len(await knowledge.list(person=BOB)) == len(await knowledge.list()) == 1


@on_both_databases
async def test_erasing_a_person_erases_their_documents(
    open_knowledge: OpenKnowledge, models: ModelServer, database: Database
) -> None:
    knowledge = open_knowledge(models)
    await knowledge.add("the xylophone of alice", "doc", person=ALICE)
    await knowledge.add("the glockenspiel of bob", "doc", person=BOB)
    await knowledge.add("something of the agent", "doc")
    repository = await open_repository(database, AGENT)
    assert [collection for collection, *_ in await knowledge.repository.load_texts([DocumentCollection("person", ALICE)])] == [
        DocumentCollection("person", ALICE)
    ]
    assert (await repository.erase_person(ALICE)).documents == 1
    assert await knowledge.repository.load_texts([DocumentCollection("person", ALICE)]) == []
    assert await knowledge.search("xylophone", person=ALICE, threshold=0.7) == []
    assert await hit_texts(knowledge.search("glockenspiel", person=BOB)) == ["the glockenspiel of bob"]
    assert (await repository.erase_person(ALICE)).documents == 0
    await knowledge.add("a new one of alice", "doc", person=ALICE)
    assert await hit_texts(knowledge.search("new", person=ALICE)) == ["a new one of alice"]


async def test_erased_documents_are_not_in_the_file(tmp_path: Path) -> None:
    database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/platform.db", "off")
    knowledge = Knowledge(KnowledgeRepository(database, AGENT))
    for number in range(50):
        await knowledge.add(f"the glockenspiel of bob, number {number}", f"doc {number}", person=BOB)
        await knowledge.add(f"the xylophone of alice, number {number}", f"doc {number}", person=ALICE)
    assert (await AgentRepository(database, AGENT).erase_person(ALICE)).documents == 50
    await database.close()
    content = await asyncio.to_thread(lambda: b"".join(file.read_bytes() for file in tmp_path.iterdir()))
    assert b"glockenspiel" in content
    assert b"xylophone" not in content


async def test_turns_are_added_only_once(
    open_knowledge: OpenKnowledge, models: ModelServer, expected_errors: ExpectedErrors
) -> None:
    expected_errors("turns are stored without vectors")
    knowledge = open_knowledge(models)
    turns = [(n, Interaction(input={"query": f"question {n}"}, output={"text": "the same answer"})) for n in range(1, 4)]
    await knowledge.add_turns("one", turns[:2])
    await knowledge.add_turns("one", turns)
    assert [document.name for document in await knowledge.list(conversation="one")] == ["turn 1", "turn 2", "turn 3"]
    assert await hit_texts(knowledge.search("question 2", 1, conversation="one")) == ["question 2\nthe same answer"]
    models.failures = [400]
    await knowledge.add_turns("one", [(4, Interaction(input={"query": "question 4"}))])
    assert [document.indexed for document in await knowledge.list(conversation="one")] == [1, 1, 1, 0]
    await knowledge.add_turns("one", [(5, Interaction(input={"query": "question 5"}))])
    assert [document.indexed for document in await knowledge.list(conversation="one")] == [1] * 5


@on_both_databases
async def test_knowledge_is_in_a_backup_and_found_in_either_database(
    open_knowledge: OpenKnowledge, models: ModelServer, database_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    await open_knowledge(models).add(REFUNDS, "refunds")
    reader = await open_database(database_url, is_read_only=True)
    await back_up(reader, tmp_path / "memory", tmp_path / "b.tar", "1", lambda done, total: None)
    await reader.close()
    for target in (f"{SQLITE}{tmp_path}/restored.db", postgres.url()):
        database = await open_database(target, "off")
        await restore(database, tmp_path / target.partition(":")[0] / "memory", tmp_path / "b.tar", lambda done, total: None)
        await database.close()
        database = await open_database(target, "off")
        for query, embedder in (("refund policy", None), ("reimbursed", make_embedder(models))):
            knowledge = Knowledge(KnowledgeRepository(database, AGENT), embedder)
            assert await hit_texts(knowledge.search(query, threshold=0.6)) == [REFUNDS]
            await knowledge.close()
        assert await Knowledge(KnowledgeRepository(database, AGENT)).add(HOURS, "hours") == "new"
        await database.close()


async def test_a_turn_that_retention_deletes_is_removed_from_the_knowledge(
    open_knowledge: OpenKnowledge, database: Database
) -> None:
    store, knowledge = await open_repository(database, AGENT), open_knowledge()
    row = new_conversation(store)
    for number in range(1, 4):
        row = await store_turn(store, row)
        await knowledge.add_turns("t", [(number, Interaction(input={"query": f"question {number}"}))])
    assert await store.retention.delete_oldest(row.id, None, 2, 100) == 2
    assert [document.name for document in await knowledge.list(conversation="t")] == ["turn 3"]
    assert await hit_texts(knowledge.search("question", conversation="t")) == ["question 3"]


# In an agent


async def test_an_agent_is_given_its_knowledge_and_recalls_it() -> None:
    class KnowledgeAgent:
        """Store notes for the person who sends them, and recall."""

        def __init__(self, manifest: Any, knowledge: Knowledge) -> None:
            self.manifest = manifest
            self.knowledge = knowledge

        async def startup(self) -> None:
            await self.knowledge.add(HOURS, "hours")

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            if keep := request.payload.get("keep"):
                await self.knowledge.add(keep, "note", person=session.identity.id)
            await response.data({"found": await session.recall(request.payload.get("query", ""), 3, 0.5)})

    async with AgentTester(KnowledgeAgent) as t:
        await t.ask({"keep": "my office is in Berlin"}, user=ALICE)

        async def found(query: str, user: str) -> list[str]:
            known: list[str] = (await t.ask({"query": query}, user=user)).data[0]["data"]["found"]
            return known

        assert sorted(await found("office", ALICE)) == sorted(
            [HOURS, "my office is in Berlin", '{"keep": "my office is in Berlin"}']
        )
        await t.restart()
        assert await found("Where is the office?", BOB) == [HOURS]
        assert (await found("Where is my office in Berlin?", ALICE))[0] == "my office is in Berlin"
        assert "1 document" in (await t.say("/forget me yes", user=ALICE))[0]
        assert await found("Berlin office", ALICE) == [HOURS]


async def test_an_agent_without_a_knowledge_parameter_recalls_its_turns() -> None:
    @agent
    async def recalling(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.data({"found": await session.recall(request.payload["query"])})

    async with AgentTester(recalling) as t:
        await t.say("my plane leaves on Friday", user=ALICE)
        assert "my plane leaves on Friday" in (await t.say("When does the plane leave?", user=ALICE))[0]
        assert "plane" not in (await t.say("When does the plane leave?", user=BOB))[0]
