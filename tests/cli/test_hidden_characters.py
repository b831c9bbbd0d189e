"""No command prints a hidden character of others: labels have escapes, and running text ends what it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentInteractionMemory, Interaction
from spade_coreason.cli.app import COMMANDS
from spade_coreason.cli.logging import OneLineFormatter, TracebackFormatter, configure_logging
from spade_coreason.contracts import AuditEntry
from spade_coreason.domain.cards import AgentCard
from spade_coreason.domain.quotas import QuotaUsage
from spade_coreason.domain.texts.error_chain import ChainedError, StackFrame
from spade_coreason.domain.texts.terminal_text import clean_running_text, escape_label, escape_lines
from spade_coreason.memory.knowledge.knowledge import Knowledge
from spade_coreason.operations.status import AgentStatus, PlatformStatus
from spade_coreason.storage import TopicItem, open_database
from spade_coreason.storage.knowledge import KnowledgeRepository
from spade_coreason.storage.records import TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.platform_status import serve_status
from tests.support.program import run_in_background, write_project
from tests.support.records import NOW, new_conversation, receive_request
from tests.support.stored_initiative import store_initiative
from tests.support.stored_questions import APPROVAL, store_approval

HIDDEN = "\u202e\x1b[8m\x1b]8;;https://evil.example\x07\x9b1m\x85\r\n\b\u200b\u2066\u2028\u061c\ufeff\U000e0041"
LABEL = f"label{HIDDEN}"
TEXT = f"text \u05e9\u05dc\u05d5\u05dd\u200f {HIDDEN}"
AGENT = f"{LABEL}@localhost"

# For each command that prints something of others: its arguments. The others print their own words, or are tested below.
SHOWN: dict[str, list[tuple[str, ...]]] = {
    "status": [()],
    "agents": [()],
    "pause": [(LABEL,)],
    "resume": [(LABEL,)],
    "access": [("list",), ("admit", LABEL)],
    "log": [(LABEL,)],
    "drain": [()],
    "conversations": [(), ("end", "none" + HIDDEN)],
    "sessions": [("list",), ("show", LABEL), ("show", "none" + HIDDEN), ("clear", "--all", "--yes")],
    "requests": [("list",), ("show", "1"), ("drop", "1", "--yes")],
    "notifications": [("list",), ("drop", LABEL, "--yes")],
    "schedules": [("list",), ("cancel", LABEL, "--yes")],
    "approvals": [("list",), ("approve", APPROVAL), ("deny", "none none" + HIDDEN)],
    "keys": [("list",), ("create", LABEL, "--agent", LABEL), ("revoke", "none" + HIDDEN)],
    "incident": [(), ("1f2e3d4c",), ("1f2e3d4c", "--message"), (HIDDEN,)],
    "memory": [("list",), ("show", LABEL), ("show", "none" + HIDDEN), ("compact",), ("clear", "--all", "--yes")],
    "storage": [("check",), ("restore", LABEL)],
    "knowledge": [("list", AGENT), ("search", AGENT, "text", "--threshold", "0"), ("remove", AGENT, "--all", "--yes")],
    "topics": [()],
    "webhooks": [("list",), ("create", LABEL, LABEL), ("revoke", "none" + HIDDEN)],
    "quotas": [(AGENT,), (LABEL,)],
    "people": [("export", LABEL), ("delete", LABEL, "--yes")],
    "audit": [("list",), ("verify",)],
    "check": [("-c", "hostile.yaml")],
    "web": [(LABEL,), ("--revoke", LABEL)],
    "invite": [(LABEL,)],
    "ask": [(LABEL, "hello")],
    "chat": [(LABEL,)],
    "tools": [(LABEL, "-c", "empty.yaml")],
    "init": [(LABEL.replace("/", ""),), ("x", "--name", LABEL)],
    "run": [(LABEL,), ("x:y", "--option", LABEL)],
    "up": [("-c", LABEL)],
    "demo": [("--data", LABEL)],
    "completion": [(LABEL,)],
}
WITH_JSON = {
    "status",
    "agents",
    "sessions",
    "requests",
    "notifications",
    "schedules",
    "approvals",
    "incident",
    "memory",
    "storage",
    "knowledge",
    "topics",
    "audit",
}


def is_safe(output: str) -> bool:
    """Return True if each line is safe, and no label in it goes on with a hidden character."""
    lines = output.split("\n")
    is_label_safe = all(escape_label(begin) == begin for begin in re.findall("label.", output))
    return is_label_safe and all(clean_running_text(line) == line for line in lines)


def test_each_command_has_a_row() -> None:
    assert SHOWN.keys() == COMMANDS.keys()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory in which every name and every text has hidden characters."""
    data_dir = tmp_path / "data"

    async def fill() -> None:
        database = await open_database(f"sqlite+aiosqlite:///{data_dir / 'platform.db'}", "off")
        repository, memory = AgentRepository(database, AGENT), AgentInteractionMemory(AGENT, data_dir / "memory")
        turn = Interaction(timestamp=NOW, input={"query": TEXT}, output={"text": TEXT, "error": {"user_message": TEXT}})
        row = new_conversation(repository, LABEL, LABEL, turns=1)
        received = await receive_request(repository, LABEL)
        variables = [Variable("conversation", LABEL, LABEL, json.dumps(TEXT)), Variable("person", LABEL, LABEL, '"x"')]
        record = TurnRecord(str(turn.interaction_id), NOW, turn.to_json())
        await repository.inbox.finish(received, row, record, None, variables)
        await memory.aadd_information(LABEL, TEXT)
        frame = StackFrame(f"/{LABEL}.py", 1, LABEL, True)
        await repository.incidents.record(
            "1f2e3d4c", LABEL, LABEL, NOW, (ChainedError(LABEL, (frame,), "", 0, f"label{HIDDEN}"),)
        )
        entry = AuditEntry(actor=LABEL, action=LABEL, resource=LABEL, outcome=LABEL)
        await repository.audit_trail.append(entry, LABEL)
        await Knowledge(KnowledgeRepository(database, AGENT), None).add(TEXT, "document")
        await store_initiative(repository, LABEL)
        await store_approval(repository, LABEL, LABEL, LABEL)
        await repository.topics.subscribe(LABEL, [LABEL])
        await repository.topics.publish(TopicItem("1", LABEL, LABEL, NOW, {}))
        await database.close()

    asyncio.run(fill())
    with closing(sqlite3.connect(data_dir / "platform.db")) as connection, connection:
        connection.execute("UPDATE documents SET name = ?", (LABEL,))
        request = json.dumps({"payload": {"query": TEXT}})
        connection.execute(
            "INSERT INTO crashed_requests (id, agent, sender, received_at, request, crashes, failed_at)"
            " VALUES (1, ?, ?, 0, ?, 3, 1)",
            (AGENT, LABEL, request),
        )
    (data_dir / "accounts.json").write_text(json.dumps({AGENT: "x"}))
    (tmp_path / "hostile.yaml").write_text(json.dumps({LABEL: 1, "agents": [{"jid": AGENT, "agent": LABEL}]}))
    (tmp_path / "empty.yaml").write_text("agents: []\n")
    return data_dir


@contextmanager
def hostile_platform(data_dir: Path) -> Iterator[None]:
    """Answer `status` and `agents` as a platform would that has hidden characters everywhere."""
    usage = QuotaUsage("person", LABEL, "guest", 9, 9, 1, 1, 1, 1)
    agent = AgentStatus(
        AGENT,
        "offline",
        connection_problem=LABEL,
        start_problem=LABEL,
        storage_problem=LABEL,
        rooms={LABEL: LABEL},
        rejected={LABEL: 1},
        quotas=(QuotaUsage("total", "", "", 9, 9, 1, 1, 1, 1), usage),
        card=AgentCard(AGENT, LABEL, TEXT),
    )
    with serve_status(data_dir, PlatformStatus(1, LABEL, (agent,))):
        yield


@pytest.mark.parametrize(
    "arguments",
    [(name, *more) for name, rows in SHOWN.items() for more in rows],
    ids=ascii,
)
def test_no_command_prints_hidden_characters_of_others(arguments: tuple[str, ...], data_dir: Path, invoke: Invoke) -> None:
    with hostile_platform(data_dir) if arguments[0] in ("status", "agents") else lock_nothing():
        plain = invoke(*arguments)
        as_json = invoke(*arguments, "--json") if arguments[0] in WITH_JSON and "--yes" not in arguments else None
    assert is_safe(plain.output), ascii(plain.output)
    assert plain.output
    if as_json is not None:
        assert escape_lines(as_json.stdout) == as_json.stdout
        if as_json.stdout and as_json.exit_code == 0:
            assert "\u202e" in json.dumps(json.loads(as_json.stdout), ensure_ascii=False) or arguments[0] == "storage"


@contextmanager
def lock_nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("sessions", "list"), "label\\u202e\\x1b[8m"),
        (("sessions", "show", LABEL), "text \u05e9\u05dc\u05d5\u05dd\u200f \u202e[8m"),
        (("requests", "show", "1"), "text \u05e9\u05dc\u05d5\u05dd\u200f \u202e[8m"),
        (("memory", "show", LABEL), "- text \u05e9\u05dc\u05d5\u05dd\u200f \u202e[8m"),
        (("incident", "1f2e3d4c", "--message"), "label\\u202e\\x1b[8m"),
        (("audit", "list"), "label\\u202e\\x1b[8m"),
        (("knowledge", "list", AGENT), "label\\u202e\\x1b[8m"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_labels_have_escapes_and_running_text_keeps_its_marks(
    arguments: tuple[str, ...], expected: str, data_dir: Path, invoke: Invoke
) -> None:
    shown = invoke(*arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert expected in shown.stdout


def test_completion_offers_only_names_that_a_shell_takes_literally(data_dir: Path, invoke: Invoke) -> None:
    names = [
        "fine@localhost_notes@localhost",
        "x$(touch evil)",
        "x`id`",
        "x;id",
        "x\nid",
        "x\u202e",
        "-x",
        "~x",
        "caf\xe9@localhost",
    ]
    with closing(sqlite3.connect(data_dir / "platform.db")) as connection, connection:
        [row] = connection.execute("SELECT * FROM conversations").fetchall()
        for name in names:
            values = [name if value == LABEL else value for value in row]
            values[0], marks = row[0] + 1 + names.index(name), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO conversations VALUES ({marks})", values)
    from click.shell_completion import BashComplete

    from spade_coreason.cli.app import cli

    offered = BashComplete(cli, {}, "spade-coreason", "_X").get_completions(["sessions", "show"], "")
    assert {item.value for item in offered} == {names[0], names[-1]}


@pytest.mark.parametrize("verbosity", [0, 2])
def test_a_log_record_is_one_line_without_hidden_characters(
    verbosity: int, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(verbosity)
    logging.getLogger(f"agents.{LABEL}").error("from %s", LABEL)
    [line] = capsys.readouterr().err.splitlines()
    assert escape_label(line) == line
    assert "from label\\u202e" in line


@pytest.mark.parametrize("make_formatter", [OneLineFormatter, TracebackFormatter])
def test_a_logged_exception_has_no_hidden_characters(make_formatter: Callable[[], logging.Formatter]) -> None:
    kind: Any = type(LABEL, (ValueError,), {})
    try:
        raise kind(LABEL)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "%s", (LABEL,), sys.exc_info())
    text = make_formatter().format(record)
    assert escape_lines(text) == text


HOSTILE_AGENT = '''
import logging
HIDDEN = {hidden!r}


class HostileAgent:
    """An agent that writes hidden characters wherever it can."""

    def __init__(self, manifest):
        self.manifest = manifest

    async def assist(self, request, session, response):
        if request.payload["query"] == "fail":
            await response.error("label" + HIDDEN)
        elif request.payload["query"] == "log":
            logging.getLogger("label" + HIDDEN).warning("label" + HIDDEN)
            await response.markdown("logged")
        else:
            await response.thought("text" + HIDDEN)
            stream = await response.create_stream()
            await stream.write("text \\u05e9\\u202b" + HIDDEN)
            await stream.write("more \\u2067")
'''


def test_ask_chat_and_the_log_have_no_hidden_characters(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", "auto")
    (project / "hostile.py").write_text(HOSTILE_AGENT.format(hidden=HIDDEN))
    file = project / "config" / "platform.yaml"
    settings = json.loads(file.read_text())
    settings["agents"] = [{"jid": "hostile@localhost", "agent": "hostile:HostileAgent"}]
    file.write_text(json.dumps(settings))
    with run_in_background("up", cwd=project, until=r"^Ready", may_log=["label"]) as up:
        asked = up.run_command("ask", "hostile", "hello")
        assert "text \u05e9\u202b\u202e[8m" in asked.stdout
        assert asked.stdout.endswith("more \u2067\u2069\n")
        failed = up.run_command("ask", "hostile", "fail")
        assert "label\\u202e\\x1b[8m" in failed.stderr
        events = up.run_command("ask", "hostile", "hello", "--json")
        assert escape_lines(events.stdout) == events.stdout
        assert any("\u202e" in json.dumps(json.loads(line), ensure_ascii=False) for line in events.stdout.splitlines())
        chat = up.run_command("chat", "hostile", stdin="hello\nfail\n")
        assert "more \u2067\u2069\n" in chat.stdout
        assert up.run_command("ask", "hostile", "log").stdout == "logged\n"
        assert all(is_safe(text) for one in (asked, failed, chat) for text in (one.stdout, one.stderr))
        _, _, log = up.stop()
    assert "label\\u202e\\x1b[8m" in log
    assert escape_lines(log) == log
