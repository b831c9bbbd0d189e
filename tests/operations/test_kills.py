"""`kill -9` during an operation leaves the data as before it or as after it, and the same operation then finishes."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, AgentTester, Response, Session
from spade_coreason.app.stored_host import StoredHost, open_stored_host
from spade_coreason.config import load_settings
from spade_coreason.exceptions import ConfigError, ServerError
from spade_coreason.operations.definition import PLATFORM_TRAIL, CallerKind
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage import (
    KeyRepository,
    LoginRepository,
    Variable,
    WebhookRepository,
    hash_secret,
    record_crash,
)
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.operations.test_people import BOB, SECRET, TEA, in_room
from tests.support.databases import SQLITE
from tests.support.killed_process import BEGIN, PROGRAM, perform_stored
from tests.support.long_forms import short_and_long_in_release
from tests.support.model_server import ModelServer
from tests.support.program import clean_environment, run_in_background
from tests.support.records import new_conversation, store_turn
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.stored_initiative import NOTIFICATION, SCHEDULE, store_initiative
from tests.support.stored_questions import APPROVAL, store_approval
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

ROOT = Path(__file__).parents[2]
AGENT, ASKER, ALICE, CAROL = "notes@localhost", "asker@localhost", "alice@localhost", "carol@example.com"
CONVERSATION = f"{ALICE}_{AGENT}"
COLUMNS = {
    "conversations": "conversation_id, owner, state, interaction_count, turns",
    "interactions": "body",
    "variables": "scope, holder, name, value",
    "inbox": "sender, state, request",
    "crashed_requests": "sender, request",
    "incidents": "incident",
    "documents": "name, passages",
    "passages": "text",
    "vectors": "model",
    "tasks": "kind, key, owner, state",
    "questions": "question_id, state, decided_by",
    "parked_requests": "owner",
    "api_keys": "name, agents, withdrawn, account, issued_at > created_at, previous_hash IS NULL, revoked_at IS NULL",
    "webhooks": "name, agent, secret_number > 1, previous_secret IS NULL, secret = '', revoked_at IS NULL",
    "logins": "person, is_link",
}
"""What of the tables is the same in two runs, also if one that was killed had finished already."""

State = dict[str, list[Any]]


class FailingAgent:
    """Answer, and store a word; fail or wait for ever."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.working = asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "wait":
            self.working.set()
            await asyncio.Event().wait()
        if request.payload["query"] == "fail":
            raise ValueError("secret")
        await session.store(f"word {request.payload['query']}", request.payload["query"])
        await response.markdown("done")


@dataclass(frozen=True)
class Project:
    """A configuration and its stored data: the server of its model, the number of a failed request and of an incident."""

    directory: Path
    url: str
    row: int = 0
    incident: str = ""
    has_page: bool = False
    """True if the page, which has a port, is on: for the operations that give out links."""

    @property
    def configuration(self) -> Path:
        return self.directory / "platform.yaml"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def memory_file(self) -> Path:
        """The memory file of a spade_llm agent."""
        return self.directory / "memory.json"

    def configure(self) -> None:
        """Write the configuration."""
        agents = [{"jid": AGENT, "agent": "spade_coreason.agents.notes:NotesAgent"}]
        knowledge = {"embedder": "openai", "url": self.url, "model": "m"}
        access = {"operators": [BOB]}  # he may decide the approval that waits
        # On the embedded server no one may decide an approval, and the start tells that.
        settings = {"server": {"mode": "prosody"}, "agents": agents, "access": access, "knowledge": knowledge}
        settings |= {"data_dir": str(self.data)} | ({"web": {"port": find_free_ports(1)[0]}} if self.has_page else {})
        self.configuration.write_text(json.dumps(settings))

    def copy(self, directory: Path, url: str = "") -> Project:
        """Copy the project. `url` is the server of its model, if that is another one."""
        copy = replace(self, directory=shutil.copytree(self.directory, directory), url=url or self.url)
        copy.configure()
        return copy

    def open(self) -> Any:
        """Open the stored data."""
        return open_stored_host(load_settings(self.configuration, self.directory, {}, logs_in=False), [], is_exclusive=True)

    async def read_state(self) -> State:
        """Return what operations change, and verify the trails."""
        async with self.open() as host:
            for trail in (AGENT, PLATFORM_TRAIL):
                assert (await host.repository(trail).audit_trail.verify()).problems == ()
            entries = (await host.memory(AGENT).aget_entries()).items()
            state: State = {"memory": sorted((name, [text for text, _ in found]) for name, found in entries)}
        with closing(sqlite3.connect(self.data / "platform.db")) as connection:
            for table, columns in COLUMNS.items():
                # A start of the platform writes variables of the agent itself.
                only = " WHERE scope != 'agent'" if table == "variables" else ""
                state[table] = sorted(connection.execute(f"SELECT {columns} FROM {table}{only}"), key=repr)
        return state


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a bit of everything, also in a room and by way of an agent that asks for many people."""
    return asyncio.run(fill(tmp_path_factory.mktemp("filled")))


async def fill(directory: Path) -> Project:
    (directory / "data").mkdir(mode=0o700)
    url = f"{SQLITE}{directory / 'data' / 'platform.db'}"
    async with AgentTester(FailingAgent, jid=AGENT, user=ALICE, database=url) as tester:
        repository = tester.runners[AGENT].executor.context.host.repository(AGENT)
        await tester.say("hello")
        await tester.say("fail", thread="failing")
        for text, person in ((SECRET, ALICE), ("of others", BOB)):
            stored = tester.gateways[AGENT].receive_request(in_room(text, person.partition("@")[0], person))
            assert stored is not None
            await stored
            await tester.settled()
            ended_at = datetime.now(UTC)
            while datetime.now(UTC) - ended_at < timedelta(milliseconds=1):  # interaction memory is exact to that
                pass
        [room] = await repository.list_conversations(owner=TEA)
        room_turns = [json.loads(turn) for turn in await repository.turns.load_history(room.id, 2)]
        asked = await store_turn(repository, new_conversation(repository, "asked", ASKER), root=BOB)
        secret = Variable("conversation", "asked", "secret", json.dumps(SECRET))
        await store_turn(repository, asked, secret, root=ALICE)
        await store_approval(repository, CAROL, BOB)
        await repository.inbox.purge(datetime.now(UTC))  # these requests are old, and a start would delete them
        [incident] = await repository.incidents.load_page()
        waiting = asyncio.create_task(tester.say("wait", thread="waiting"))
        agent = tester.agent
        assert isinstance(agent, FailingAgent)
        await asyncio.wait_for(agent.working.wait(), TIMEOUT_S)
        await repository.inbox.flush()  # a first turn may begin before its request is stored
        [pending] = await repository.inbox.load_pending()
        await store_initiative(repository, CAROL)
        keys = KeyRepository(repository.database)
        for name, account in (("old", ""), ("carols", CAROL)):
            options: dict[str, Any] = {"users": "", "created_by": "tester", "now": datetime.now(UTC)}
            assert await keys.create(keys.make(name, [AGENT], account, hash_secret(name), **options))
        webhooks = WebhookRepository(repository.database)
        new = webhooks.make("old", AGENT, "github", None, "s" * 16, created_by="tester", now=datetime.now(UTC))
        assert await webhooks.add(new)
        logins = LoginRepository(repository.database)
        assert await logins.redeem(await logins.create_link(CAROL, datetime.now(UTC)), datetime.now(UTC))
        await record_crash(repository.database, [pending.inbox_row], datetime.now(UTC), pending.inbox_row)
        waiting.cancel()
    async with ModelServer() as server:
        project = Project(directory, server.url, pending.inbox_row, incident.incident)
        project.configure()
        async with project.open() as host:
            await host.memory(AGENT).aadd_information(CONVERSATION, "a secret")
            await host.memory(AGENT).aflush()
            shutil.copy(host.memory(AGENT).path, project.memory_file)
            for name in ("a", "b"):
                await host.knowledge(AGENT).add(f"The text of {name}.", name)
            for turn in room_turns:  # what it has told the memory
                clock = partial(datetime.fromisoformat, turn["timestamp"])
                memory = AgentInteractionMemory(AGENT, host.memory(AGENT).path.parent, clock=clock)
                await memory.aadd_information(room.conversation_id, turn["input"]["query"])
            await host.memory(AGENT).aflush()
    return project


@pytest.fixture
async def project(filled: Project, tmp_path: Path) -> AsyncIterator[Project]:
    """A copy of the project with a server of its own."""
    async with ModelServer() as server:
        yield filled.copy(tmp_path / "project", server.url)


async def pause(host: StoredHost) -> None:
    await host.repository(AGENT).save_pause(True)


async def delete_vectors(host: StoredHost) -> None:
    assert host.database is not None
    await host.database.write(lambda connection: connection.exec_driver_sql("DELETE FROM vectors"))


async def clear_memory(host: StoredHost) -> None:
    await host.memory(AGENT).aclear_conversation(CONVERSATION)


@dataclass(frozen=True)
class Case:
    """A call of an operation, and what comes before it."""

    arguments: Callable[[Project], dict[str, Any]] = field(default=lambda project: {})
    prepare: Callable[[StoredHost], Awaitable[None]] | None = None
    first: tuple[str, ...] = ()
    """The parts of the state that change first, in steps; a kill may come before the others change too."""


CASES = {
    "platform.drain": Case(),
    "log.set": Case(lambda project: {"level": "error"}),
    "agents.pause": Case(),
    "agents.resume": Case(prepare=pause),
    "access.admit": Case(lambda project: {"person": CAROL}),
    "access.reject": Case(lambda project: {"person": CAROL}),
    "conversations.end": Case(lambda project: {"conversation": CONVERSATION}),
    "conversations.reset": Case(lambda project: {"conversation": CONVERSATION}),
    "sessions.export": Case(lambda project: {"person": ALICE}),
    "sessions.clear": Case(lambda project: {"person": ALICE}, first=("memory",)),
    "people.delete": Case(
        lambda project: {"person": ALICE}, first=("memory", "inbox", "crashed_requests", "interactions", "variables")
    ),
    "people.export": Case(lambda project: {"person": ALICE}),
    "memory.clear": Case(lambda project: {"everything": True}),
    "memory.import": Case(lambda project: {"source": str(project.memory_file)}, clear_memory),
    "knowledge.add": Case(lambda project: {"name": "c", "text": "A third text."}, first=("documents", "passages")),
    "knowledge.remove": Case(lambda project: {"names": ["a"]}),
    "knowledge.reindex": Case(prepare=delete_vectors),
    "requests.retry": Case(lambda project: {"id": project.row}, pause),
    "requests.drop": Case(lambda project: {"id": project.row}),
    "incidents.messages": Case(lambda project: {"id": project.incident}),
    "notifications.retry": Case(lambda project: {"id": NOTIFICATION}, pause),
    "notifications.drop": Case(lambda project: {"id": NOTIFICATION}),
    "approvals.approve": Case(lambda project: {"id": APPROVAL}, pause),
    "approvals.deny": Case(lambda project: {"id": APPROVAL}, pause),
    "approvals.reassign": Case(
        lambda project: {"id": APPROVAL}, pause, first=("tasks", "interactions", "conversations")
    ),  # the clock asks people after it, and tells operators
    "schedules.cancel": Case(lambda project: {"id": SCHEDULE}),
    "schedules.run": Case(lambda project: {"id": SCHEDULE}, pause, first=("inbox", "tasks")),
    "keys.create": Case(lambda project: {"name": "website", "agents": [AGENT]}),
    "keys.rotate": Case(lambda project: {"name": "old"}),
    "keys.revoke": Case(lambda project: {"name": "old"}),
    "webhooks.create": Case(lambda project: {"name": "ci", "agent": AGENT}),
    "webhooks.rotate": Case(lambda project: {"name": "old"}),
    "webhooks.revoke": Case(lambda project: {"name": "old"}),
    "logins.create": Case(lambda project: {"person": CAROL}, first=("logins",)),
    "logins.revoke": Case(lambda project: {"person": CAROL}),
}
ON_STORED_DATA = [name for name in CASES if not OPERATIONS[name].needs_platform]
WITH_A_PLATFORM = [
    name if name in ("sessions.clear", "conversations.end") else pytest.param(name, marks=pytest.mark.release) for name in CASES
]


OF_THE_PERSON = {
    name for name, operation in OPERATIONS.items() if operation.is_change and CallerKind.MACHINE_USER not in operation.callers
}
"""The operations of the person who was asked. They change what `approvals.approve` does, in the same transaction."""


def test_there_is_a_case_for_every_operation_that_changes_something() -> None:
    assert {"questions.answer", "approvals.decide"} == OF_THE_PERSON
    assert set(CASES) | OF_THE_PERSON == {name for name, operation in OPERATIONS.items() if operation.is_change}


async def test_the_killed_deletion_of_a_person_also_has_conversations_of_others_to_cut(project: Project) -> None:
    def find_secrets(state: State) -> set[str]:
        return {part for part, found in state.items() if SECRET in str(found)}

    assert find_secrets(await project.read_state()) == {"interactions", "memory", "variables"}
    await perform(project, "people.delete")
    state = await project.read_state()
    assert find_secrets(state) == set()
    assert "of others" in str(state["memory"])
    assert "of others" in str(state["variables"])


async def prepare_project(project: Project, name: str) -> State:
    """Do what comes before an operation, and return the state then."""
    if (prepare := CASES[name].prepare) is not None:
        async with project.open() as host:
            await prepare(host)
    return await project.read_state()


async def perform(project: Project, name: str) -> int:
    """Perform an operation on stored data, and return the number of function calls that it took."""
    return await perform_stored(project.configuration, name, json.dumps(CASES[name].arguments(project)))


async def perform_killed(project: Project, name: str, kill_at: int) -> None:
    """Perform an operation on stored data in a process that kills itself, unless it has finished before."""
    arguments = str(kill_at), "--stored", str(project.configuration), name, json.dumps(CASES[name].arguments(project))
    options: dict[str, Any] = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": PIPE, "text": True}
    with WarmProcess[str]([*PROGRAM, *arguments], cwd=ROOT, env=clean_environment(), **options) as process:
        _, log = await asyncio.to_thread(process.communicate, None, TIMEOUT_S)
    assert process.returncode in (0, -signal.SIGKILL), log


async def check_and_finish(project: Project, name: str, before: State, after: State) -> None:
    """Check that the state is the one before an operation or after it, and that the same operation finishes it."""
    state = await project.read_state()
    last = set(state) - set(CASES[name].first)
    assert {part: state[part] for part in last} in ({part: known[part] for part in last} for known in (before, after))
    if OPERATIONS[name].needs_platform:
        return
    try:
        await perform(project, name)
    except ConfigError:
        assert state == after  # what it was about is gone
    assert await project.read_state() == after


@pytest.mark.parametrize("name", ON_STORED_DATA)
@short_and_long_in_release("OPERATION_KILLS", 1, 20)
async def test_a_kill_during_an_operation_on_stored_data_leaves_nothing_half_done(
    project: Project, name: str, count: int, tmp_path: Path
) -> None:
    before = await prepare_project(project, name)
    finished = project.copy(tmp_path / "finished")
    calls = await perform(finished, name)
    after = await finished.read_state()
    for number in range(count):
        kill_at = random.randint(1 + calls * number // count, calls * (number + 1) // count)
        killed = project.copy(tmp_path / f"killed at {kill_at}")
        await perform_killed(killed, name, kill_at)
        await check_and_finish(killed, name, before, after)


@pytest.mark.servers
@pytest.mark.parametrize("name", WITH_A_PLATFORM)
@short_and_long_in_release("OPERATION_KILLS", 1, 3)
async def test_a_kill_of_the_platform_during_an_operation_leaves_nothing_half_done(
    project: Project, name: str, count: int, tmp_path: Path
) -> None:
    require("Prosody", prosody_server.installed())
    operation, arguments = OPERATIONS[name], OPERATIONS[name].read_arguments(CASES[name].arguments(project))
    before = after = await prepare_project(project, name)
    project = replace(project, has_page=name.startswith("logins."))
    calls = 3000
    if not operation.needs_platform:
        finished = project.copy(tmp_path / "finished")
        calls = await perform(finished, name)
        after = await finished.read_state()

    def perform_and_kill(killed: Project, kill_at: int) -> None:
        """Perform the operation. The platform kills itself within it, or is killed right after it."""
        options: dict[str, Any] = {"program": [*PROGRAM, str(kill_at)], "may_log": ["has failed; see"]}
        with run_in_background("up", "-c", str(killed.configuration), cwd=ROOT, until=r"^Ready", **options) as platform:
            platform.process.send_signal(BEGIN)
            with suppress(ServerError):
                call_platform(killed.data, operation, arguments)
            platform.process.kill()

    for _ in range(count):
        kill_at = random.randint(1, calls)
        killed = project.copy(tmp_path / f"killed at {kill_at}")
        await asyncio.to_thread(perform_and_kill, killed, kill_at)
        await check_and_finish(killed, name, before, after)
