"""Stored data is listed, shown and deleted, in all stores."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import termios
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from spade_coreason import AgentInteractionMemory, Interaction
from spade_coreason.cli import completion
from spade_coreason.config.runfile import RunFile
from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.identifiers import derive_session_id
from spade_coreason.memory.erasure import erase_conversation, erase_person
from spade_coreason.storage import TopicItem, open_database
from spade_coreason.storage.backends.lock import lock_directory
from spade_coreason.storage.records import StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.program import COMMAND, clean_environment
from tests.support.records import new_conversation
from tests.support.servers.postgres import Postgres
from tests.support.stored_initiative import NOTIFICATION, SCHEDULE, store_initiative
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

AGENT = "notes@localhost"
ALICE, BOB = "alice@localhost", "bob@localhost"
NOW = datetime(2025, 1, 9, 10, 30, tzinfo=UTC)
SEED_KEYS = ["conversation_id", "state", "interaction_count", "max_interactions", "created_at", "last_interaction"]


async def store_conversation(
    repository: AgentRepository, memory: AgentInteractionMemory, owner: str, conversation_id: str
) -> StoredConversation:
    """Store one turn of a conversation, with a variable of each scope and a memory."""
    status = ConversationStatus(ConversationState.ACTIVE, 1, NOW, NOW)
    session = str(derive_session_id(repository.agent, owner, conversation_id))
    row = StoredConversation(repository.database.row_ids.next(), conversation_id, owner, session, status, 100, turns=1)
    turn = Interaction(timestamp=NOW, input={"query": f"a secret of {owner}"}, output={"text": "I'll remember"})
    received, is_new, _ = repository.inbox.receive(uuid4().bytes, owner, "{}", NOW)
    await is_new
    variables = [Variable("conversation", conversation_id, "v", "1"), Variable("person", owner, "v", "2")]
    await repository.inbox.finish(received, row, TurnRecord(str(turn.interaction_id), NOW, turn.to_json()), None, variables)
    await memory.aadd_information(conversation_id, f"a memory of {owner}")
    return row


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with three conversations of two people with one agent."""
    data_dir = tmp_path / "data"

    async def fill() -> None:
        database = await open_database(f"sqlite+aiosqlite:///{data_dir / 'platform.db'}", "off")
        store, memory = AgentRepository(database, AGENT), AgentInteractionMemory(AGENT, data_dir / "memory")
        await store_conversation(store, memory, ALICE, f"{ALICE}_{AGENT}")
        await store_conversation(store, memory, ALICE, "holiday")
        await store_conversation(store, memory, BOB, f"holiday_{BOB}")
        await database.close()

    asyncio.run(fill())
    (data_dir / "accounts.json").write_text(json.dumps({AGENT: "x", "guest@localhost": "y"}))
    return data_dir


def test_topics_and_their_subscribers_are_listed(data_dir: Path, invoke: Invoke) -> None:
    assert invoke("topics").stdout == "No topics.\n"

    async def publish() -> None:
        database = await open_database(f"sqlite+aiosqlite:///{data_dir / 'platform.db'}", "off")
        topics = AgentRepository(database, "topics@localhost").topics
        await topics.subscribe(BOB, ["news/#", "weather"])
        await topics.publish(TopicItem("1", "news/sport", ALICE, NOW, {}))
        await database.close()

    asyncio.run(publish())
    topics, subscribers = invoke("topics").stdout.split("\n\n")
    assert topics.splitlines()[1].split()[:3] == ["topics@localhost", "news/sport", "1"]
    assert subscribers.splitlines()[1].split()[:5] == ["topics@localhost", BOB, "news/#", "weather", "1"]
    [found] = json.loads(invoke("topics", "--json").stdout)
    assert (found["agent"], found["subscribers"][0]["waiting"]) == ("topics@localhost", 1)
    assert invoke("topics", "--agent", AGENT).stdout == "No topics.\n"


def test_conversations_have_exactly_the_keys_of_the_seed(data_dir: Path, invoke: Invoke) -> None:
    records = json.loads(invoke("conversations", "--json").stdout)
    assert [list(record) for record in records] == [SEED_KEYS] * 3
    assert json.loads(invoke("conversations", "list", "--json").stdout) == records  # as the commands beside it
    [holiday] = [record for record in records if record["conversation_id"] == "holiday"]
    assert holiday == {
        "conversation_id": "holiday",
        "state": "active",
        "interaction_count": 1,
        "max_interactions": 100,
        "created_at": "2025-01-09T10:30:00Z",
        "last_interaction": "2025-01-09T10:30:00Z",
    }
    assert json.loads(invoke("conversations", "--json", "--state", "completed").stdout) == []
    assert invoke("conversations", "--state", "completed").stdout == "No completed conversations.\n"


def test_lists_are_tables_with_whole_lines(data_dir: Path, invoke: Invoke) -> None:
    lines = invoke("sessions", "list", "--person", ALICE).stdout.splitlines()
    assert lines[0].split() == ["AGENT", "PERSON", "CONVERSATION", "TURNS", "LAST"]
    assert sorted(line.split()[:4] for line in lines[1:]) == [
        [AGENT, ALICE, f"{ALICE}_{AGENT}", "1"],
        [AGENT, ALICE, "holiday", "1"],
    ]
    assert invoke("sessions", "list", "--person", "Alice@LOCALHOST/phone").stdout.splitlines() == lines
    assert len(invoke("memory", "list").stdout.splitlines()) == 4


def test_stored_data_is_found_without_accounts_as_in_a_restored_backup(data_dir: Path, invoke: Invoke) -> None:
    commands = (
        ["sessions", "list"],
        ["memory", "list"],
        ["conversations"],
        ["audit", "verify"],
        ["knowledge", "list", "notes"],
    )
    before = [invoke(*command).stdout for command in commands]
    assert AGENT in before[0]
    (data_dir / "accounts.json").unlink()
    assert [invoke(*command).stdout for command in commands] == before


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_narrow_terminal_breaks_no_id(data_dir: Path, kind: str) -> None:
    controller, tty = pty.openpty()
    termios.tcsetwinsize(tty, (24, 40))
    for arguments in (["sessions", "list"], ["memory", "list"], ["conversations"]):
        env = clean_environment({"TERM": kind})
        assert WarmProcess[bytes]([*COMMAND, *arguments], cwd=data_dir.parent, env=env, stdout=tty).wait(TIMEOUT_S) == 0
        lines = os.read(controller, 65536).decode().splitlines()
        assert len(lines) == 4
        assert sum(f"{ALICE}_{AGENT}" in line for line in lines) == 1
    os.close(tty)
    os.close(controller)


def test_a_session_is_shown_with_its_turns_and_variables(data_dir: Path, invoke: Invoke) -> None:
    shown = invoke("sessions", "show", "holiday").stdout
    assert f"▸ a secret of {ALICE}\n  I'll remember\n" in shown
    assert "Variables of the person\n  v = 2" in shown
    whole = json.loads(invoke("sessions", "show", "holiday", "--json").stdout)
    assert whole["variables"] == {"v": 1}
    assert whole["session_id"] == str(derive_session_id(AGENT, ALICE, "holiday"))
    assert whole["created_at"] == "2025-01-09T10:30:00Z"
    unknown = invoke("sessions", "show", "nothing")
    assert (unknown.exit_code, unknown.stderr.count("\n")) == (2, 1)


def test_a_person_is_forgotten_in_all_stores_and_nobody_else(data_dir: Path, invoke: Invoke) -> None:
    done = invoke("sessions", "clear", "--person", ALICE, "--yes")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{AGENT}: deleted: 2 conversations, 2 turns, 3 variables, memory of 2 conversations.\n")
    assert [record["user_id"] for record in json.loads(invoke("sessions", "list", "--json").stdout)] == [BOB]
    assert [record["conversation_id"] for record in json.loads(invoke("memory", "list", "--json").stdout)] == [f"holiday_{BOB}"]
    for path in (data_dir / "memory").iterdir():
        assert ALICE.encode() not in path.read_bytes()
    assert invoke("sessions", "clear", "--person", ALICE, "--yes").stdout == f"{AGENT}: there was nothing to delete.\n"


def test_a_conversation_is_deleted_with_its_memory(data_dir: Path, invoke: Invoke) -> None:
    assert invoke("sessions", "clear", "--conversation", "holiday", "--yes").exit_code == 0
    assert invoke("memory", "show", "holiday").exit_code == 2
    assert len(json.loads(invoke("conversations", "--json").stdout)) == 2


def test_everything_is_deleted(data_dir: Path, invoke: Invoke) -> None:
    assert "deleted: 3 conversations, 3 turns, 5 variables" in invoke("sessions", "clear", "--all", "--yes").stdout
    assert invoke("conversations").stdout == "No conversations.\n"
    assert invoke("memory", "list").stdout == "No interaction memories.\n"


def test_memories_alone_are_deleted_and_sessions_stay(data_dir: Path, invoke: Invoke) -> None:
    done = invoke("memory", "clear", "--all", "--yes")
    assert done.stdout.startswith(f"{AGENT}: deleted the memories of 3 conversations.\n")
    assert len(json.loads(invoke("conversations", "--json").stdout)) == 3


def test_memories_are_compacted_beside_a_running_platform(data_dir: Path, invoke: Invoke) -> None:
    with lock_directory(data_dir):
        done = invoke("memory", "compact")
        path = (data_dir / "memory" / f"{AGENT}.json").absolute()
        assert (done.exit_code, done.stdout.splitlines()) == (0, [f"{AGENT}: {path} is complete."])
        assert len(json.loads(path.read_text())["interactions"]) == 3
        assert not list(data_dir.glob("memory/*.journal"))
        assert invoke("memory", "compact", "--agent", "new@localhost").stdout == "new@localhost: no memories.\n"


def test_a_memory_of_spade_llm_is_imported_once(data_dir: Path, invoke: Invoke) -> None:
    spade_llm_file = (
        Path(__file__).parents[1] / "memory" / "interaction" / "spade_llm" / "support_agent_example.com_interactions.json"
    )
    arguments = ("memory", "import", str(spade_llm_file), "--agent", "support_agent@example.com")
    for count in ("3 entries", "0 entries"):
        expected = f"support_agent@example.com: imported {count}; {spade_llm_file} is unchanged and no longer needed.\n"
        assert invoke(*arguments).stdout == expected
    known = json.loads(invoke("memory", "show", "customer_123", "--agent", "support_agent@example.com", "--json").stdout)
    assert known == ["Customer prefers email notifications", "Línea uno\nlínea dos 🙂 \x1b"]
    refused = invoke("memory", "import", str(spade_llm_file), "--agent", AGENT)
    assert refused.exit_code == 1
    assert "belongs to the agent 'support_agent@example.com'" in refused.stderr


def test_nothing_is_deleted_without_confirmation(data_dir: Path, invoke: Invoke) -> None:
    refused = invoke("sessions", "clear", "--all")
    assert refused.exit_code == 2
    assert "--yes: is missing" in refused.stderr
    assert invoke("sessions", "clear", "--yes").exit_code == 2
    assert len(json.loads(invoke("conversations", "--json").stdout)) == 3


Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return a function that lists bash's completions for the last word of a line."""

    def list_completions(line: str) -> list[str]:
        monkeypatch.setenv("_SPADE_COREASON_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"spade-coreason {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
        return [found.partition(",")[2] for found in invoke().stdout.splitlines() if found]

    return list_completions


@pytest.mark.parametrize("line", ["ask n", "chat ", "sessions list --agent n", "memory show x --agent no"])
def test_a_shell_completes_agents(data_dir: Path, complete: Complete, line: str) -> None:
    assert complete(line) == [AGENT]
    assert complete("ask x") == []


def test_a_shell_completes_the_agents_of_a_platform_that_runs(invoke: Invoke, complete: Complete) -> None:
    directory = Path("elsewhere")
    directory.mkdir()
    run = RunFile(os.getpid(), "external", None, None, "example.org", True, None, None, [{"jid": "sun@example.org"}])
    (directory / "run.json").write_text(json.dumps(asdict(run)))
    with lock_directory(directory):
        assert complete("ask --data elsewhere s") == ["sun@example.org"]
    assert complete("ask --data elsewhere s") == []


def test_a_shell_completes_conversations_of_the_data_directory_that_is_named(data_dir: Path, complete: Complete) -> None:
    assert complete("sessions show holiday_") == [f"holiday_{BOB}"]
    assert sorted(complete("sessions clear --conversation ")) == sorted([f"{ALICE}_{AGENT}", "holiday", f"holiday_{BOB}"])
    data_dir.rename(data_dir.with_name("elsewhere"))
    assert complete("sessions show ") == complete("ask n") == []
    before = sorted(data_dir.with_name("elsewhere").iterdir())
    assert complete("sessions show --data elsewhere holiday_") == [f"holiday_{BOB}"]
    assert complete("chat --data elsewhere n") == [AGENT]
    assert complete(f"--project {data_dir.parent} chat --data elsewhere n") == [AGENT]
    assert sorted(data_dir.with_name("elsewhere").iterdir()) == before


@pytest.mark.parametrize("where", ["a file elsewhere", "a server"])
def test_a_shell_completes_conversations_of_the_configuration(
    tmp_path: Path, postgres: Postgres, complete: Complete, where: str
) -> None:
    url = postgres.url() if where == "a server" else f"sqlite+aiosqlite:///{tmp_path}/elsewhere.db"

    async def fill() -> None:
        database = await open_database(url, "off")
        for name in ("holiday", "holi%", "work"):
            repository = AgentRepository(database, AGENT)
            await repository.save_conversation(new_conversation(repository, name))
        await database.close()

    asyncio.run(fill())
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "platform.yaml").write_text(f"agents: [{{jid: {AGENT}, agent: 'a:B'}}]\nstorage: {{url: '{url}'}}\n")
    assert sorted(complete("sessions show holi")) == ["holi%", "holiday"]
    assert complete("sessions show holi%") == ["holi%"]
    (tmp_path / "config" / "platform.yaml").rename(tmp_path / "p.yaml")
    assert complete("sessions show holid") == []
    assert complete("sessions show -c p.yaml holid") == ["holiday"]


@pytest.mark.parametrize("where", ["a file", "a server"])
def test_a_shell_completes_what_waits(tmp_path: Path, postgres: Postgres, complete: Complete, where: str) -> None:
    url = postgres.url() if where == "a server" else f"sqlite+aiosqlite:///{tmp_path}/elsewhere.db"

    async def fill() -> None:
        database = await open_database(url, "off")
        await store_initiative(AgentRepository(database, AGENT), ALICE)
        await database.close()

    asyncio.run(fill())
    (tmp_path / "p.yaml").write_text(f"agents: [{{jid: {AGENT}, agent: 'a:B'}}]\nstorage: {{url: '{url}'}}\n")
    for line, found in (("notifications retry", NOTIFICATION), ("schedules run", SCHEDULE)):
        assert complete(f"{line} -c p.yaml {found[:2]}") == [found]
        assert complete(f"{line} -c p.yaml x") == []


def test_what_a_shell_reads_of_a_file_is_there(tmp_path: Path) -> None:
    asyncio.run(create_empty(tmp_path / "platform.db"))
    with closing(sqlite3.connect(tmp_path / "platform.db")) as reader:
        assert len(completion.QUERIES) > 5
        for query in completion.QUERIES.values():
            assert reader.execute(query, {"length": 0, "begun": ""}).fetchall() == []


async def create_empty(path: Path) -> None:
    await (await open_database(f"sqlite+aiosqlite:///{path}", "off")).close()


def test_listing_creates_no_files(invoke: Invoke) -> None:
    for arguments in (["sessions", "list"], ["memory", "list"], ["conversations"]):
        assert invoke(*arguments).exit_code == 0
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    "arguments", [("sessions", "list"), ("sessions", "show", "x"), ("memory", "clear", "--all"), ("conversations",)]
)
def test_a_data_directory_that_is_named_must_be_there(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    refused = invoke(*arguments, "--data", "elsewhere")
    assert (refused.exit_code, refused.stdout) == (2, "")
    where = Path("elsewhere").absolute()
    assert refused.stderr == f"error: --data: the directory {where} does not exist; name the data directory of a platform\n"
    assert not where.exists()


def test_an_agent_that_is_unknown_is_named_with_those_that_are_there(data_dir: Path, invoke: Invoke) -> None:
    refused = invoke("sessions", "list", "--agent", "note")
    assert refused.exit_code == 2
    assert refused.stderr == f'error: --agent: there is no agent "note"; the only agent is {AGENT}\n'


async def test_erasure_reports_what_it_deleted(tmp_path: Path) -> None:
    database = await open_database(f"sqlite+aiosqlite:///{tmp_path / 'platform.db'}", "off")
    store, memory = AgentRepository(database, AGENT), AgentInteractionMemory(AGENT, tmp_path / "memory")
    row = await store_conversation(store, memory, ALICE, "holiday")
    report = await erase_conversation(store, memory, row)
    assert (report.conversation_ids, report.interactions, report.variables, report.memories) == (("holiday",), 1, 1, 1)
    # What is in the memory alone belongs to the person too.
    await memory.aadd_information(f"{ALICE}_{AGENT}", "only here")
    report = await erase_person(store, memory, f"{ALICE}/phone")
    assert (report.conversation_ids, report.variables, report.memories) == ((), 1, 1)
    await database.close()


@pytest.mark.parametrize(
    "line",
    [
        "sessions clear --agent any --all --yes",
        "sessions clear --all --conversation any --yes",
        "sessions clear --all --person any --yes",
        "memory clear --agent any --all --yes",
        "memory clear --all --conversation any --yes",
    ],
)
def test_a_name_that_is_a_word_of_the_program_is_a_name(data_dir: Path, invoke: Invoke, line: str) -> None:
    before = json.loads(invoke("sessions", "list", "--json").stdout), json.loads(invoke("memory", "list", "--json").stdout)
    assert invoke(*line.split()).exit_code == 2
    assert (
        json.loads(invoke("sessions", "list", "--json").stdout),
        json.loads(invoke("memory", "list", "--json").stdout),
    ) == before


def test_a_name_of_several_lines_is_shown_in_one(data_dir: Path, invoke: Invoke) -> None:
    """A conversation is named by its thread, which others choose."""
    name = f"x\n{AGENT}: deleted: 100 conversations."

    async def add() -> None:
        database = await open_database(f"sqlite+aiosqlite:///{data_dir / 'platform.db'}", "off")
        repository = AgentRepository(database, AGENT)
        await repository.save_conversation(new_conversation(repository, name))
        await database.close()

    asyncio.run(add())
    for line in (["sessions", "list"], ["conversations", "end", name], ["sessions", "clear", "--conversation", name, "--yes"]):
        shown = invoke(*line).stdout
        assert "x\\n" in shown
        assert not any(each.startswith(f"{AGENT}: deleted: 100") for each in shown.splitlines())
