"""Each change is in the audit trail with who made it, whatever the way: an operation, a chat, a menu or the command line."""

from __future__ import annotations

import asyncio
import getpass
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Knowledge, Response, Session
from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.config import Settings
from spade_coreason.domain.forms.adhoc import CommandCall, CommandStage
from spade_coreason.exceptions import ConfigError, KnowledgeError, StoreError
from spade_coreason.operations.definition import PLATFORM_TRAIL, Actor, Call, CallerKind
from spade_coreason.operations.knowledge import AddDocument
from spade_coreason.operations.memory import ImportMemory
from spade_coreason.operations.status import PlatformStatus, WebStatus
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.runtime.commands.dialogs import AdHocSessions
from spade_coreason.storage import (
    Database,
    KeyRepository,
    LoginRepository,
    WebhookRepository,
    hash_secret,
    record_crash,
)
from spade_coreason.testing import Policy
from tests.cli.conftest import Invoke, invoke
from tests.support.errors import ExpectedErrors
from tests.support.stored_initiative import NOTIFICATION, SCHEDULE, store_initiative
from tests.support.stored_questions import APPROVAL, store_approval
from tests.support.wait import TIMEOUT_S

__all__ = ["invoke"]

AGENT, ALICE, BOSS, CAROL = "agent@localhost", "alice@localhost", "boss@localhost", "carol@example.com"
CONVERSATION = f"{ALICE}_{AGENT}"
TESTER = Actor(CallerKind.MACHINE_USER, "user tester")
MACHINE_USER = f"user {getpass.getuser()}"


class WaitingAgent:
    """Answer, wait for ever or fail."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.working = asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "wait":
            self.working.set()
            await asyncio.Event().wait()
        if request.payload["query"] == "fail":
            raise ValueError("secret")
        await response.markdown("done")


class Lengths:
    """Vectors of the lengths of texts."""

    model = "lengths"

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of the log."""
    logger = logging.getLogger("spade_coreason")
    level = logger.level
    yield
    logger.setLevel(level)


@asynccontextmanager
async def open_tester(**options: Any) -> AsyncIterator[AgentTester]:
    async with AgentTester(WaitingAgent, user=ALICE, policy=Policy(operators=frozenset({BOSS})), **options) as t:
        yield t


class HostWithPage:
    """The host of an agent, on a platform with the page in the browser."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    @property
    def whole(self) -> Any:
        """The host itself."""
        return self

    async def status(self) -> PlatformStatus:
        """Return the status of a platform with the page."""
        return PlatformStatus(1, "", (), WebStatus("http://127.0.0.1:8080", ("page",)))


def host_of(t: AgentTester) -> Any:
    return t.runners[AGENT].executor.context.host


async def read_trail(t: AgentTester, trail: str = AGENT) -> list[tuple[str, str, str]]:
    """Return the actor, the action and the resource of each entry."""
    records = await host_of(t).repository(trail).audit_trail.load_newest()
    return [tuple((record.entry or {})[key] for key in ("actor", "action", "resource")) for record in records]


async def fail_request(t: AgentTester) -> int:
    """Leave a request that ended the platform, and return its number."""
    sent = asyncio.create_task(t.say("wait", thread="waiting"))
    agent = t.agent
    assert isinstance(agent, WaitingAgent)
    await asyncio.wait_for(agent.working.wait(), TIMEOUT_S)
    database = host_of(t).database
    inbox = host_of(t).repository(AGENT).inbox
    await inbox.flush()  # a first turn may begin before its request is stored
    [pending] = await inbox.load_pending()
    row: int = pending.inbox_row
    await record_crash(database, [row], datetime.now(UTC), row)
    t.runners[AGENT].executor.context.withdrawal.cancel_turns(ALICE)
    sent.cancel()
    return row


async def store_key(database: Database, name: str = "old") -> None:
    keys = KeyRepository(database)
    new = keys.make(name, [AGENT], "", hash_secret(name), users="", created_by="user tester", now=datetime.now(UTC))
    assert await keys.create(new)


async def store_webhook(database: Database, name: str = "old") -> None:
    webhooks = WebhookRepository(database)
    new = webhooks.make(name, AGENT, "github", None, "s" * 16, created_by="user tester", now=datetime.now(UTC))
    assert await webhooks.add(new)


ARGUMENTS: dict[str, Callable[[AgentTester, int, str], dict[str, Any]]] = {
    "platform.drain": lambda t, row, number: {},
    "agents.pause": lambda t, row, number: {"agent": AGENT},
    "agents.resume": lambda t, row, number: {"agent": AGENT},
    "access.admit": lambda t, row, number: {"person": CAROL},
    "access.reject": lambda t, row, number: {"person": CAROL},
    "log.set": lambda t, row, number: {"level": "error"},
    "conversations.end": lambda t, row, number: {"conversation": CONVERSATION},
    "conversations.reset": lambda t, row, number: {"conversation": CONVERSATION},
    "sessions.export": lambda t, row, number: {"person": ALICE},
    "sessions.clear": lambda t, row, number: {"conversation": CONVERSATION},
    "people.delete": lambda t, row, number: {"person": ALICE},
    "people.export": lambda t, row, number: {"person": ALICE},
    "memory.clear": lambda t, row, number: {"everything": True},
    "memory.import": lambda t, row, number: {"source": f"{host_of(t).memory(AGENT).path}.imported"},
    "knowledge.add": lambda t, row, number: {"name": "a", "text": "b"},
    "knowledge.remove": lambda t, row, number: {"names": ["a"]},
    "knowledge.reindex": lambda t, row, number: {},
    "requests.retry": lambda t, row, number: {"id": row},
    "requests.drop": lambda t, row, number: {"id": row},
    "incidents.messages": lambda t, row, number: {"id": number},
    "notifications.retry": lambda t, row, number: {"id": NOTIFICATION},
    "notifications.drop": lambda t, row, number: {"id": NOTIFICATION[:8]},
    "approvals.approve": lambda t, row, number: {"id": APPROVAL},
    "approvals.deny": lambda t, row, number: {"id": APPROVAL[:8], "reason": "secret"},
    "approvals.reassign": lambda t, row, number: {"id": APPROVAL},
    "schedules.cancel": lambda t, row, number: {"id": SCHEDULE[:8]},
    "schedules.run": lambda t, row, number: {"id": SCHEDULE},
    "keys.create": lambda t, row, number: {"name": "website", "agents": [AGENT], "account": CAROL},
    "keys.rotate": lambda t, row, number: {"name": "old"},
    "keys.revoke": lambda t, row, number: {"name": "old"},
    "webhooks.create": lambda t, row, number: {"name": "ci", "agent": AGENT, "kind": "github", "secret": "secret" * 3},
    "webhooks.rotate": lambda t, row, number: {"name": "old"},
    "webhooks.revoke": lambda t, row, number: {"name": "old"},
    "logins.create": lambda t, row, number: {"person": CAROL},
    "logins.revoke": lambda t, row, number: {"person": CAROL},
}


def test_there_are_arguments_for_every_operation_that_changes_something() -> None:
    changing = {name: operation for name, operation in OPERATIONS.items() if operation.is_change}
    assert set(ARGUMENTS) == {name for name, operation in changing.items() if CallerKind.MACHINE_USER in operation.callers}


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_every_change_leaves_an_entry_that_names_its_actor(name: str, expected_errors: ExpectedErrors) -> None:
    async with open_tester(embedder=Lengths()) as t:
        host = host_of(t)
        await t.say("hello")
        row, number = 0, ""
        if name.startswith("requests."):
            row = await fail_request(t)
        elif name == "incidents.messages":
            expected_errors("incident")
            await t.say("fail", thread="failing")
            [incident] = await host.repository(AGENT).incidents.load_page()
            number = incident.incident
        if name.startswith(("notifications.", "schedules.")):
            await store_initiative(host.repository(AGENT), ALICE)
        if name.startswith("approvals."):
            await store_approval(host.repository(AGENT), ALICE, BOSS)
            await t.runners[AGENT].control.set_paused(True)  # its request does not run again
        if name.startswith(("knowledge.", "memory.")):
            await host.memory(AGENT).aadd_information(CONVERSATION, "something")
            await host.memory(AGENT).aflush()
        if name == "memory.import":
            path = host.memory(AGENT).path
            shutil.copy(path, f"{path}.imported")
            await host.memory(AGENT).aclear_conversation(CONVERSATION)
        if name == "knowledge.reindex":
            await Knowledge(host.knowledge(AGENT).repository).add("text", "a")
        if name == "knowledge.remove":
            await host.knowledge(AGENT).add("text", "a")
        if name.startswith("keys."):
            await store_key(host.database)
        if name.startswith("webhooks."):
            await store_webhook(host.database)
        if name == "logins.create":
            host = HostWithPage(host)
        if name == "logins.revoke":
            await LoginRepository(host.database).create_link(CAROL, datetime.now(UTC))
        if name == "agents.resume":
            await t.runners[AGENT].control.set_paused(True)
        operation = OPERATIONS[name]
        await operation(Call(host, TESTER), operation.read_arguments(ARGUMENTS[name](t, row, number)))
        entries = [*await read_trail(t), *await read_trail(t, PLATFORM_TRAIL)]
        assert [entry[:2] for entry in entries] == [("user tester", name)]
        assert not any(text in entry[2] for entry in entries for text in ("hello", "something", "secret", "fail"))


async def test_what_is_deleted_of_a_conversation_is_not_named_in_the_trail_after_its_person_is_deleted() -> None:
    async with open_tester() as t:
        host = host_of(t)
        await t.say("hello")
        await host.memory(AGENT).aadd_information(CONVERSATION, "something")
        for name, arguments in (
            ("memory.clear", {"conversation": CONVERSATION}),
            ("knowledge.add", {"name": f"letter of {ALICE}", "text": "b", "conversation": CONVERSATION}),
        ):
            await OPERATIONS[name](Call(host, TESTER), OPERATIONS[name].read_arguments(arguments))
        assert all(ALICE in resource for _, _, resource in await read_trail(t))
        clear = OPERATIONS["sessions.clear"]
        await clear(Call(host, TESTER), clear.read_arguments({"person": ALICE}))
        trail = await host.repository(AGENT).audit_trail.load_newest()
        assert [record.entry is None for record in trail] == [True, True, False]
        assert not any(ALICE in str(record) for record in trail)


LINES = [
    "/pause",
    "/resume",
    f"/admit {CAROL}",
    f"/reject {CAROL}",
    "/log error",
    f"/end {CONVERSATION}",
    f"/reset {CONVERSATION}",
]
ENTRIES = [
    (BOSS, "agents.pause", "the agent"),
    (BOSS, "agents.resume", "the agent"),
    (BOSS, "access.admit", CAROL),
    (BOSS, "access.reject", CAROL),
    (BOSS, "conversations.end", f"conversation {CONVERSATION}"),
    (BOSS, "conversations.reset", f"conversation {CONVERSATION}"),
]


async def test_what_an_operator_does_in_a_chat_is_in_the_trail_with_their_jid() -> None:
    async with open_tester() as t:
        await t.say("hello")
        for line in LINES:
            await t.say(line, user=BOSS)
        assert await read_trail(t) == ENTRIES
        assert await read_trail(t, PLATFORM_TRAIL) == [(BOSS, "log.set", "error")]


async def test_what_an_operator_does_in_a_menu_is_in_the_trail_with_their_jid() -> None:
    async with open_tester() as t:
        await t.say("hello")
        menu = AdHocSessions(t.runners[AGENT].executor, t.runners[AGENT].languages)
        for line, field in zip(LINES, ["", "", "person", "person", "level", "conversation", "conversation"], strict=True):
            node, _, value = line[1:].partition(" ")
            stage = await menu.answer(CommandCall(f"{BOSS}/phone", "1", node, "", "execute", {field: value} if field else None))
            assert isinstance(stage, CommandStage)
            assert not stage.is_error, stage.text
        assert await read_trail(t) == ENTRIES
        assert await read_trail(t, PLATFORM_TRAIL) == [(BOSS, "log.set", "error")]
        await menu.close()


async def test_a_command_that_changes_nothing_or_is_refused_leaves_no_entry() -> None:
    async with open_tester() as t:
        for line in ("/resume", "/log", "/end nobody", "/reset nobody", "/admit @"):
            assert await t.say(line, user=BOSS)
        for line in LINES:
            await t.say(line)
        assert [*await read_trail(t), *await read_trail(t, PLATFORM_TRAIL)] == []


WITHOUT_CHANGE: dict[str, tuple[dict[str, Any], type[Exception] | None]] = {
    "access.admit": ({"person": CAROL}, None),
    "access.reject": ({"person": f"d{CAROL}"}, None),
    "log.set": ({"level": "error"}, None),
    "agents.resume": ({"agent": AGENT}, None),
    "conversations.end": ({"conversation": CONVERSATION}, None),
    "memory.clear": ({"everything": True}, None),
    "memory.import": ({"source": "/dev/zero"}, StoreError),
    "knowledge.add": ({"name": "same", "text": "a text"}, None),
    "knowledge.remove": ({"names": ["b"]}, None),
    "knowledge.reindex": ({}, None),
    "requests.retry": ({"id": 1}, ConfigError),
    "requests.drop": ({"id": 1}, ConfigError),
    "incidents.messages": ({"id": "1"}, ConfigError),
    "notifications.retry": ({"id": NOTIFICATION}, ConfigError),
    "notifications.drop": ({"id": "short"}, ConfigError),
    "approvals.approve": ({"id": APPROVAL}, ConfigError),
    "approvals.deny": ({"id": APPROVAL}, ConfigError),
    "approvals.reassign": ({"id": APPROVAL}, ConfigError),
    "schedules.cancel": ({"id": SCHEDULE}, ConfigError),
    "schedules.run": ({"id": SCHEDULE}, ConfigError),
    "keys.create": ({"name": "old", "agents": [AGENT]}, ConfigError),
    "keys.rotate": ({"name": "nothing"}, ConfigError),
    "keys.revoke": ({"name": "revoked"}, None),
    "webhooks.create": ({"name": "old", "agent": AGENT}, ConfigError),
    "webhooks.rotate": ({"name": "revoked"}, ConfigError),
    "webhooks.revoke": ({"name": "revoked"}, None),
    "logins.create": ({"person": AGENT}, ConfigError),
    "logins.revoke": ({"person": CAROL}, None),
}


@pytest.mark.parametrize("name", WITHOUT_CHANGE)
async def test_an_operation_that_changes_nothing_leaves_no_entry(name: str) -> None:
    async with open_tester(embedder=Lengths()) as t:
        host = host_of(t)
        await t.say("hello")
        await host.knowledge(AGENT).add("a text", "same")
        logging.getLogger("spade_coreason").setLevel("ERROR")
        control = t.runners[AGENT].control
        await control.access_requests.decide(CAROL, True)
        await control.access_requests.decide(f"d{CAROL}", False)
        await control.end(CONVERSATION)
        await store_key(host.database)
        await store_key(host.database, "revoked")
        await KeyRepository(host.database).revoke("revoked", datetime.now(UTC))
        await store_webhook(host.database)
        await store_webhook(host.database, "revoked")
        await WebhookRepository(host.database).revoke("revoked", datetime.now(UTC))
        arguments, error = WITHOUT_CHANGE[name]
        operation = OPERATIONS[name]
        with nullcontext() if error is None else pytest.raises(error):
            await operation(Call(host, TESTER), operation.read_arguments(arguments))
        assert [*await read_trail(t), *await read_trail(t, PLATFORM_TRAIL)] == []


async def test_what_cannot_be_added_leaves_no_entry() -> None:
    async with open_tester() as t:
        for name, text in (("\0", "a text"), ("a", " ")):
            with pytest.raises(KnowledgeError):
                await OPERATIONS["knowledge.add"](Call(host_of(t), TESTER), AddDocument(agent=AGENT, name=name, text=text))
        assert await read_trail(t) == []


async def test_an_import_that_adds_nothing_leaves_no_entry() -> None:
    async with open_tester() as t:
        host = host_of(t)
        memory = host.memory(AGENT)
        await memory.aadd_information(CONVERSATION, "something")
        await memory.aflush()
        imported = await OPERATIONS["memory.import"](Call(host, TESTER), ImportMemory(agent=AGENT, source=memory.path))
        assert imported.entries == 0
        assert await read_trail(t) == []


async def test_missing_vectors_of_a_document_that_is_stored_already_are_a_change() -> None:
    async with open_tester(embedder=Lengths()) as t:
        host = host_of(t)
        knowledge = host.knowledge(AGENT)
        await Knowledge(knowledge.repository).add("a text", "same")
        added = await OPERATIONS["knowledge.add"](Call(host, TESTER), AddDocument(agent=AGENT, name="same", text="a text"))
        assert added.outcome == "same"
        assert await read_trail(t) == [("user tester", "knowledge.add", "same")]


async def test_a_stopped_addition_tells_whether_the_document_was_there_before() -> None:
    async with open_tester(embedder=Lengths()) as t:
        for outcome, text in (("new", "a text"), ("changed", "another text")):
            call = Call(host_of(t), TESTER)
            call.stop()
            added = await OPERATIONS["knowledge.add"](call, AddDocument(agent=AGENT, name="a", text=text))
            assert (added.outcome, added.is_complete) == (outcome, False)


async def test_who_deletes_a_conversation_or_exports_is_named_until_they_delete_everything() -> None:
    async with open_tester() as t:
        await t.say("hello")
        await t.say("/export")
        await t.say("/forget yes")
        named = [(ALICE, "sessions.export", "a person"), (ALICE, "sessions.clear", f"conversation {CONVERSATION}")]
        assert await read_trail(t) == named
        await t.say("/forget me yes")
        records = await host_of(t).repository(AGENT).audit_trail.load_newest()
        assert [record.entry and record.entry["actor"] for record in records] == [None, None, "a person"]
        assert ALICE not in str(records)


def test_what_a_user_does_by_the_command_line_on_stored_data_is_in_the_trail_with_their_name(
    tmp_path: Path, invoke: Invoke
) -> None:
    async def fill() -> None:
        directory = tmp_path / "data"
        directory.mkdir()
        url = f"sqlite+aiosqlite:///{directory / 'platform.db'}"
        async with AgentTester(WaitingAgent, user=ALICE, database=url) as t:
            await t.say("hello")

    asyncio.run(fill())
    lines = [
        ["pause", "agent"],
        ["pause", "agent"],
        ["resume"],
        ["access", "admit", CAROL],
        ["access", "reject", CAROL],
        ["conversations", "end", CONVERSATION],
        ["conversations", "reset", CONVERSATION],
        ["sessions", "export", "--person", ALICE],
    ]
    for line in lines:
        done = invoke(*line)
        assert done.exit_code == 0, done.output

    async def read() -> list[tuple[str, str]]:
        async with open_stored_host(Settings(data_dir=tmp_path / "data"), []) as host:
            records = await host.repository(AGENT).audit_trail.load_newest()
        return [(record.entry["actor"], record.entry["action"]) for record in records if record.entry is not None]

    assert asyncio.run(read()) == [
        *((MACHINE_USER, action) for _, action, _ in ENTRIES),
        (MACHINE_USER, "sessions.export"),
    ]
