"""A data directory of an older version: open requests are answered, and stored data is still there.

tests/fixtures/data_9d7501a/README.md says what is in it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, Knowledge, MemoryConfig, Platform, load_settings
from spade_coreason.domain.identifiers import candidate_conversation_ids, derive_inbox_key, derive_session_id, derive_thread
from spade_coreason.runtime import OutboundMessage, Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.audit import AuditVerification
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.knowledge import KnowledgeRepository
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.codec.evidence import Receiver
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.databases import SQLITE, execute
from tests.support.runner import make_runtime
from tests.support.servers.clients import StockClient
from tests.support.servers.prosody import installed
from tests.support.servers.requirements import require
from tests.support.transports import STANZA_BYTES
from tests.support.wait import eventually

PROJECT = Path(__file__).parents[2]
FIXTURE = PROJECT / "tests" / "fixtures" / "data_9d7501a"
NOW = datetime(2026, 11, 22, 23, 50, tzinfo=UTC)
"""Four minutes after it was killed."""
KEEPER, SLIDER, COUNTER, SHELVER = (f"{name}@localhost" for name in ("keeper", "slider", "counter", "shelver"))
ALICE, BOB, CAROL = "alice@localhost", "bob@localhost", "carol@localhost"
PASSWORD = "the password of alice"
FACTS = [
    "The rake is in the shed.",
    "The roses are red.",
    "The gate squeaks.",
    "The pond has six frogs.",
    "The hedge is high.",
]
GARDEN_QUERIES = [*FACTS, "Learn these.", "The bench is new."]
PENDING_QUERIES = ["Wait with this: waiting", "This waits behind it.", "Wait with this of a program: waiting3"]
UNSENT_ANSWER_ID = "fe978512-7579-5ded-b6d3-f98d3dbea246-0-f2d6d26c"
UNSENT_EVENT_IDS = [
    "91455a26-e784-5fbb-b76e-8952e693070e-0-28953efe",
    "91455a26-e784-5fbb-b76e-8952e693070e-1-11badad6",
]
PENDING_ANSWER_IDS = [
    "6dc7b849-4b70-5f6c-8378-32eaaea79a1d-0-65922d60",
    "247ebfd0-95c2-5440-a4f9-9546db5562bd-0-59d9e8a0",
    "6481e129-8137-5236-af28-fea60d2b541d-0-2df2996f",
]
"""The ids of the answers of `Reader` to these requests."""
AUDIT_HEADS = {
    KEEPER: (15, "6bf93b3b0cb0945c696c428e62461ce23f95fc03e8009a4a07fa6ddac0bd381a"),
    SLIDER: (5, "0b2f0068d5a293eeaadf6df8dc290c9580c5714d4f224d093727bd7a1a8268ca"),
    COUNTER: (5, "d122ec90664f264f862ba1e7552914e31dcd156125eafb4957bc22bcf5f36ab6"),
    SHELVER: (5, "2665b2016d012e2828c8c9a29e674a7a2a54139c0185b4a59937de1c7bbef15d"),
}
MEMORY_CONFIGS = {
    KEEPER: MemoryConfig.model_validate({"strategy": "summary", "limit": 2, "summary_prompt": "Summarise."}),
    SLIDER: MemoryConfig.model_validate({"strategy": "sliding_window", "limit": 2}),
    COUNTER: MemoryConfig.model_validate({"strategy": "token_buffer", "limit": 40}),
    SHELVER: MemoryConfig.model_validate({"strategy": "vector_store", "limit": 2}),
}
SUMMARY = "\n".join(f"User: {fact}\nAgent: Kept: {fact}" for fact in FACTS)
MEMORIES = {
    "garden": GARDEN_QUERIES,
    f"garden_{BOB}": ["I am Bob.", "Goodbye."],
    f"{ALICE}_{KEEPER}": ["Without a thread."],
    "program": ["A program asks.", "Hold this of a program: held2"],
    "shed": ["Hold this: held"],
}


class Reader:
    """Reads all the data that an agent can see. Answers a question with it, as JSON, and anything else with a short text."""

    def __init__(self, memory: AgentInteractionMemory | None = None) -> None:
        self.manifest = AgentDefinition.simple("reader")
        self._memory = memory
        self.seen: list[dict[str, Any]] = []

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        query, conversation = request.payload["query"], request.metadata["conversation_id"]
        found = {
            "query": query,
            "redelivered": request.metadata.get("redelivered", False),
            "conversation": conversation,
            "session": session.session_id,
            "history": [(turn.input["query"], turn.output["text"]) for turn in await session.history(100)],
            "summary": session.summary,
            "window": [(turn.input or {}).get("query") for turn in await session.window()],
            "told": await session.get("told"),
            "newest": await session.get("newest"),
            "recalled": await session.recall("Are the roses red?"),
            "remembered": self._memory.get_information(conversation) if self._memory is not None else [],
        }
        self.seen.append(found)
        await response.audit(KEEPER, "look", query, True)
        await response.markdown(json.dumps(found) if query.endswith("?") else f"Seen: {query}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the data directory."""
    return Path(shutil.copytree(FIXTURE / "data", tmp_path / "data"))


@pytest.fixture
async def database(data: Path) -> AsyncIterator[Database]:
    database = await open_database(f"sqlite+aiosqlite:///{data}/platform.db", "off")
    yield database
    await database.close()


@asynccontextmanager
async def run_reader(
    database: Database, jid: str = KEEPER, now: datetime = NOW
) -> AsyncIterator[tuple[Runner, Reader, list[Element]]]:
    """Run an agent without a network that resumes the stored work. Yield its runner, itself and its acknowledged stanzas."""
    reader, sent = Reader(), list[Element]()

    def send(messages: Sequence[OutboundMessage]) -> None:
        for message in messages:
            sent.append(fromstring(message.content))
            message.acknowledge()

    policy = Policy(memory=MEMORY_CONFIGS[jid])
    network = XmppTransport(jid, send, STANZA_BYTES).network
    runner = make_runtime(reader, AgentRepository(database, jid), network, policy, clock=lambda: now).runner
    await runner.open()
    runner.send_unsent()
    await runner.mailboxes.wait_until_idle()
    try:
        yield runner, reader, sent
    finally:
        await runner.drain(1.0)
        await runner.close()


async def receive(runner: Runner, sender: str, stanza: str) -> bool:
    """Receive a stanza from a client and wait for its answer. Return True if it was new to the agent."""
    message = fromstring(stanza)
    message.set("from", f"{sender}/phone")
    received: Any = decode(message, Receiver(KEEPER))
    is_new = runner.intake.receive(received)
    assert is_new is not None
    await runner.mailboxes.wait_until_idle()
    return await is_new


def chat_message(text: str, thread: str) -> str:
    """Build a message as a person's client sends it; an empty `thread` means no thread."""
    thread_element = f"<thread>{thread}</thread>" if thread else ""
    return f"<message xmlns='jabber:client' type='chat' id='new'><body>{text}</body>{thread_element}</message>"


def body(message: Element) -> str | None:
    return message.findtext("{jabber:client}body") or message.findtext("body")


def event(message: Element) -> dict[str, Any]:
    """Parse the CloudEvent in a message to a program."""
    found: dict[str, Any] = json.loads(message.findtext("{urn:xmpp:json:0}json") or "{}")
    return found


# The inbox


async def test_a_received_request_is_run_and_answered_marked_as_redelivered(database: Database) -> None:
    async with run_reader(database) as (_, reader, sent):
        assert sorted(one["query"] for one in reader.seen) == sorted(PENDING_QUERIES)
        assert all(one["redelivered"] for one in reader.seen)
        turns = [(one["query"], one["history"], one["session"]) for one in reader.seen if one["conversation"] == "waits"]
        assert turns == [
            (PENDING_QUERIES[0], [], "6e613e7c-5e7b-5186-8576-87b04c7c7936"),
            (PENDING_QUERIES[1], [(PENDING_QUERIES[0], f"Seen: {PENDING_QUERIES[0]}")], "6e613e7c-5e7b-5186-8576-87b04c7c7936"),
        ]
        answers = [(message.get("id"), body(message)) for message in sent if body(message)][1:]
        assert answers == [
            (ident, f"Seen: {query}") for ident, query in zip(PENDING_ANSWER_IDS[:2], PENDING_QUERIES[:2], strict=True)
        ]
        request_id = "00000000-0000-4000-8000-000000000003"
        types = [event(message)["type"] for message in sent if event(message).get("requestid") == request_id]
        assert types == ["ai.coreason.block.markdown", "ai.coreason.request.completed"]


async def test_an_answered_request_is_answered_again_with_the_same_id_and_is_not_run(database: Database) -> None:
    async with run_reader(database) as (_, reader, sent):
        assert [message.get("id") for message in sent[:3]] == [UNSENT_ANSWER_ID, *UNSENT_EVENT_IDS]
        assert body(sent[0]) == "Kept: Hold this: held"
        assert event(sent[1])["data"]["content"] == "Kept: Hold this of a program: held2"
        assert event(sent[2])["type"] == "ai.coreason.request.completed"
        assert not [one for one in reader.seen if one["query"].startswith("Hold")]
    async with run_reader(database) as (_, reader, sent):  # it was acknowledged
        assert (reader.seen, sent) == ([], [])


async def test_new_conversations_and_answers_get_the_ids_that_they_got_before(database: Database) -> None:
    requests = [
        (ALICE, chat_message("Hello.", "fresh")),
        (BOB, chat_message("Hello.", "fresh")),
        (CAROL, chat_message("Hello.", "garden")),
    ]
    async with run_reader(database) as (runner, reader, sent):
        del reader.seen[:], sent[:]
        assert [await receive(runner, *one) for one in requests] == [True, True, True]
        assert [(one["conversation"], one["session"]) for one in reader.seen] == [
            ("fresh", "ae3dd8b8-962e-5f32-a382-40b633e306af"),
            (f"fresh_{BOB}", "8f236a01-6daf-52ad-9cdb-80e9cf7e31d9"),
            (f"garden_{CAROL}", "f3e2220b-b8c5-526b-868e-b5b774eb3cbd"),
        ]
        assert [message.get("id") for message in sent] == [  # the key of the request in the inbox comes first
            "3e92f68e-9a81-53ca-ba1f-028e828fa876-0-d53be7a6",
            "9ddccfcc-f76c-5b62-8849-27a27e3e8575-0-d53be7a6",
            "95f002ea-c863-5d01-a4fd-2a32923617f7-0-d53be7a6",
        ]


def test_derived_ids_are_the_same_as_before() -> None:
    session = derive_session_id(KEEPER, ALICE, "garden")
    assert str(session) == "cef958ba-be79-5d54-af71-a1a3ceb2fc0f"
    assert str(derive_thread(session, SLIDER)) == "4fc6029b-0284-585f-b3c7-bcc142faf3bd"
    assert str(derive_inbox_key(KEEPER, ALICE, "1", "hello")) == "2a2bc219-8b27-5733-8850-c955e38f5438"
    assert str(derive_inbox_key(KEEPER, ALICE, "", "hello", "archive-1")) == "dd20c0fa-f11f-511a-8537-7528e7a14087"
    assert candidate_conversation_ids("garden", BOB, KEEPER) == ["garden", f"garden_{BOB}", f"garden_{BOB}_405010d6c16c16de"]


# What was said and kept


@pytest.mark.parametrize(
    ("jid", "session", "window"),
    [
        (KEEPER, "cef958ba-be79-5d54-af71-a1a3ceb2fc0f", [None, *GARDEN_QUERIES[-2:]]),  # the summary has no question
        (SLIDER, "86f87517-9ee7-5c9e-8591-fb94ede27c97", FACTS[-2:]),
        (COUNTER, "fae17ed5-4ed7-55ed-bf79-bfb3cf34f267", FACTS[-3:]),
        (SHELVER, "4d5c88ee-73ef-5ee3-9616-dca5f22e8874", FACTS[-2:]),
    ],
    ids=["summary", "sliding_window", "token_buffer", "vector_store"],
)
async def test_a_conversation_continues_with_its_history_window_and_variables(
    database: Database, jid: str, session: str, window: list[str | None]
) -> None:
    queries = GARDEN_QUERIES if jid == KEEPER else FACTS
    async with run_reader(database, jid) as (runner, reader, _):
        assert await receive(runner, ALICE, chat_message("And now?", "garden"))
        assert reader.seen[-1] == {
            "query": "And now?",
            "redelivered": False,
            "conversation": "garden",
            "session": session,
            "history": [(fact, f"Kept: {fact}") for fact in queries],
            "summary": SUMMARY if jid == KEEPER else "",
            "window": window,
            "told": len(queries),
            "newest": {"text": "Hold this: held", "thread": "shed"}
            if jid == KEEPER
            else {"text": FACTS[-1], "thread": "garden"},
            "recalled": ["The roses are red.\nKept: The roses are red."],
            "remembered": [],
        }


async def test_other_conversations_continue_with_their_own_history_and_variables(database: Database) -> None:
    async with run_reader(database) as (runner, reader, _):
        del reader.seen[:]
        assert await receive(runner, BOB, chat_message("Hello again.", "garden"))
        assert await receive(runner, ALICE, chat_message("Still here.", ""))
        bob, unthreaded = reader.seen
        assert (bob["conversation"], bob["session"]) == (f"garden_{BOB}", "f7788f66-c3f5-570f-a24d-1511b39180d5")
        assert [query for query, _ in bob["history"]] == ["I am Bob.", "Goodbye."]  # with which he ended it
        assert (bob["told"], bob["newest"]) == (2, {"text": "Goodbye.", "thread": "garden"})
        assert (unthreaded["conversation"], unthreaded["session"]) == (
            f"{ALICE}_{KEEPER}",
            "b418b8f6-84b6-5148-9743-13127ba7dba4",
        )
        assert [query for query, _ in unthreaded["history"]] == ["Without a thread."]


async def test_documents_are_found_only_by_their_owners(database: Database) -> None:
    knowledge = Knowledge(KnowledgeRepository(database, KEEPER))

    async def found(query: str, person: str | None = None, conversation: str | None = None) -> list[tuple[str, str]]:
        hits = await knowledge.search(query, threshold=0.5, person=person, conversation=conversation)
        return [(hit.document, hit.text) for hit in hits]

    wasps = [("alice.txt", "Alice is allergic to wasps.")]
    bench = [("plans.txt", "Plans: a bench beside the pond.")]
    [(name, text)] = await found("Behind which door hangs the rake?", person=BOB)
    assert name == "tools.md"
    assert "The *rake* hangs behind the door of the shed." in text
    assert await found("Is Alice allergic?", person=ALICE) == wasps
    assert await found("Is Alice allergic?", person=BOB) == []
    assert await found("Is there a bench at the pond?", conversation="garden") == bench
    assert await found("Is there a bench at the pond?", person=ALICE) == []
    assert await knowledge.add("Alice is allergic to wasps.", "alice.txt", person=ALICE) == "same"
    assert await knowledge.add("Alice is allergic to bees.", "alice.txt", person=ALICE) == "changed"
    assert await found("Is Alice allergic?", person=ALICE) == [("alice.txt", "Alice is allergic to bees.")]
    turns = await Knowledge(KnowledgeRepository(database, SHELVER)).list(conversation="garden")
    assert [document.name for document in turns] == ["turn 1", "turn 2", "turn 3"]


async def test_audit_trails_are_complete_and_continue(database: Database) -> None:
    for jid, (entries, head) in AUDIT_HEADS.items():
        trail = AgentRepository(database, jid).audit_trail
        assert await trail.verify(head) == AuditVerification(entries, 0, head, ())
        async with run_reader(database, jid) as (runner, reader, _):
            assert await receive(runner, ALICE, chat_message("And now?", "garden"))
        verdict = await trail.verify(head)
        assert (verdict.entries, verdict.problems) == (entries + len(reader.seen), ())


def test_an_interaction_memory_combines_its_file_and_its_journal(data: Path) -> None:
    memory = AgentInteractionMemory(KEEPER, data / "memory")
    assert memory.path.exists()
    assert memory.journal_path.exists()
    remembered = memory.get_entries()
    assert {name: [text for text, _ in entries] for name, entries in remembered.items()} == MEMORIES
    assert remembered["garden"][0] == (FACTS[0], "2026-11-22T23:45:55.565Z")
    assert remembered["shed"] == [("Hold this: held", "2026-11-22T23:46:33.191Z")]
    memory.add_information("shed", "Now it is empty.")
    memory.close()
    assert not memory.journal_path.exists()
    remembered["shed"] += memory.get_entries()["shed"][1:]
    assert AgentInteractionMemory(KEEPER, data / "memory").get_entries() == remembered
    assert AgentInteractionMemory(SLIDER, data / "memory").get_information("garden") == FACTS


# Over a server


@pytest.mark.servers
async def test_a_platform_that_was_killed_resumes(data: Path, tmp_path: Path) -> None:
    """The clock is today's, so every request is too old to be a duplicate."""
    require("Prosody", installed())
    configuration = (FIXTURE / "platform.yaml").read_text(encoding="utf-8")
    (tmp_path / "platform.yaml").write_text(configuration.replace("make:Keeper", f"{__name__}:Reader"), encoding="utf-8")
    settings = load_settings(tmp_path / "platform.yaml", PROJECT, {**os.environ, "SPADE_COREASON_DATA_DIR": str(data)})
    accounts = json.loads((data / "accounts.json").read_text())
    async with Platform(settings) as platform:
        assert platform.guest == ("guest@localhost", accounts["guest@localhost"])
        url = f"{SQLITE}{data}/platform.db"
        await eventually(lambda: not execute(url, "SELECT id FROM passages WHERE word_rules = ''"))
        assert all("en0" in row["words"] for row in execute(url, "SELECT words FROM passages"))
        server: Any = platform.server
        async with StockClient(ALICE, PASSWORD, server, resource="phone") as alice:
            arrived: dict[str, Element] = {}
            while not {UNSENT_ANSWER_ID, *UNSENT_EVENT_IDS, *PENDING_ANSWER_IDS} <= arrived.keys():
                message = (await alice.message()).xml
                arrived[message.get("id")] = message
            assert body(arrived[UNSENT_ANSWER_ID]) == "Kept: Hold this: held"
            answers = [arrived[ident] for ident in PENDING_ANSWER_IDS]
            assert [body(answer) or event(answer)["data"]["content"] for answer in answers] == [
                f"Seen: {q}" for q in PENDING_QUERIES
            ]
            seen = platform.runners[KEEPER].agent.seen  # type: ignore[attr-defined]  # it is a Reader
            assert [one["redelivered"] for one in seen] == [True, True, True]

            garden, shed, waits = [
                json.loads(await alice.ask("And now?", KEEPER, thread=t)) for t in ("garden", "shed", "waits")
            ]
            assert [query for query, _ in garden["history"]] == GARDEN_QUERIES
            assert (garden["summary"], garden["told"], garden["remembered"]) == (SUMMARY, 7, MEMORIES["garden"])
            assert garden["recalled"] == ["The roses are red.\nKept: The roses are red."]
            assert shed["history"] == [["Hold this: held", "Kept: Hold this: held"]]
            assert shed["remembered"] == MEMORIES["shed"]
            assert waits["history"] == [[query, f"Seen: {query}"] for query in PENDING_QUERIES[:2]]
