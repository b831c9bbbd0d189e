"""Commands act by operations, and an operation refuses callers who may not call it."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session, operations
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.cli.app import COMMANDS, cli
from spade_coreason.cli.shows import SHOWS
from spade_coreason.config import Settings
from spade_coreason.exceptions import ConfigError, ForbiddenError, StoreError
from spade_coreason.operations.definition import Actor, Call, CallerKind, NoArguments, Operation
from spade_coreason.operations.knowledge import StoredDocument
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.operations.view import HIDDEN
from spade_coreason.runtime.commands import builtin
from spade_coreason.testing import Policy
from tests.support.wait import TIMEOUT_S

AGENT, OTHER, ALICE, BOB, BOSS = (f"{name}@localhost" for name in ("agent", "other", "alice", "bob", "boss"))
TESTER = Actor(CallerKind.MACHINE_USER, "user tester")

SLASH_COMMANDS_WITHOUT = {
    "help": "shows what the agent says of itself, and no data",
    "new": "acts on the conversation in which it is sent, between two turns there",
    "cancel": "stops the answer beside which it is sent, and changes no data",
    "settings": "acts on the language and the presentation of the conversation in which it is sent",
    "reminders": "shows what is due for the person who sends it, with the texts, which no operation shows",
    "forget": "waits for its turn in its conversation, and the executor calls sessions.clear then",
    "forget me": "waits for its turn in its conversation, and the executor calls sessions.clear then",
    "forget everywhere": "waits for its turn in its conversation, and the executor calls people.delete then",
}
LINES_WITHOUT = {
    "demo": "runs a platform",
    "up": "runs a platform",
    "run": "runs a platform",
    "chat": "is a client, as that of a person",
    "ask": "is a client, as that of a person",
    "invite": "prints an address",
    "keys person": "prints an address",
    "check": "reads a configuration, and no data",
    "init": "writes a project",
    "completion": "prints a script",
    "tools": "asks the MCP servers of a configuration",
    "storage backup": "copies the files of the data, also while nothing can answer",
    "storage restore": "replaces the data under a platform, which must not run",
    "storage check": "reads the files of the data, also damaged ones",
    "storage migrate": "changes the tables under a platform, which must not run",
}


CODE_NAMES = {
    name: value.name
    for module in pkgutil.walk_packages(operations.__path__, f"{operations.__name__}.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if isinstance(value, Operation)
}
"""The names of the operations, by their names in the code."""


def performed(function: Callable[..., Any], module: Any) -> set[str]:
    """Return the names of the operations that a function performs, also by functions of its own module."""
    if isinstance(function, partial):
        if function.args and isinstance(function.args[0], Operation):
            return {function.args[0].name}
        return performed(function.func, inspect.getmodule(function.func))
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and node.id != function.__name__}
    imported = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    names |= {alias.name for alias in imported if alias.asname in names}
    found = {CODE_NAMES[name] for name in names if name in CODE_NAMES}
    for name in names:
        other = getattr(module, name, None)
        if inspect.isfunction(other) and other.__module__ == module.__name__:
            found |= performed(other, module)
    return found


def lines() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


def test_every_slash_command_performs_an_operation_or_is_named_with_its_reason() -> None:
    commands = {found.name: found for found in (*builtin.COMMANDS_FOR_EVERYBODY, *builtin.COMMANDS_FOR_OPERATORS)}
    without = {name for name, found in commands.items() if not performed(found.handler, inspect.getmodule(found.handler))}
    assert without == set(SLASH_COMMANDS_WITHOUT)


def test_every_command_performs_an_operation_or_is_named_with_its_reason() -> None:
    without = set()
    for name, command in lines():
        callback = inspect.unwrap(command.callback) if command.callback is not None else None
        assert callback is not None
        if not performed(callback, inspect.getmodule(callback)):
            without.add(name)
    assert without == set(LINES_WITHOUT)


class NotingAgent:
    """Answer, and remember one word."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await session.store("word", request.payload["query"], scope="conversation")
        await response.markdown("done")


@asynccontextmanager
async def open_tester() -> AsyncIterator[tuple[AgentTester, Any]]:
    async with AgentTester(NotingAgent, user=ALICE, policy=Policy(operators=frozenset({BOSS}))) as t:
        await t.say("hello")
        await t.say("secret", user=BOB)
        await t.say("secret", user=BOB, thread="of bob")
        yield t, t.runners[AGENT].executor.context.host


def perform(host: Any, actor: Actor, name: str, **arguments: Any) -> Any:
    operation = OPERATIONS[name]
    return operation(Call(host, actor), operation.read_arguments(arguments))


async def test_a_deletion_is_about_one_person_or_everyone_or_a_conversation() -> None:
    async with open_tester() as (_, host):
        wrong: tuple[dict[str, Any], ...] = {"person": ALICE, "everyone": True}, {"person": ALICE, "conversation": "a"}, {}
        for arguments in wrong:
            with pytest.raises(ConfigError, match="needs exactly one of --person JID, --conversation ID and --all"):
                await perform(host, TESTER, "sessions.clear", **arguments)
        # Nobody is called so.
        cleared = await perform(host, TESTER, "sessions.clear", person="*")
        assert all(each.report.is_empty for each in cleared.erasures)
        assert len(await perform(host, TESTER, "sessions.list")) == 3


def make_unchecked(operation: Operation[Any, Any], **values: Any) -> Any:
    """Make arguments without those that are required."""
    made = object.__new__(operation._hints["arguments"])
    for one in operation.arguments:
        object.__setattr__(made, one.name, values.get(one.name, one.default))
    return made


OF_PEOPLE = [name for name, operation in OPERATIONS.items() if CallerKind.PERSON in operation.callers]
FOREIGN: list[dict[str, Any]] = [
    {"agent": AGENT, "person": BOB},
    {"agent": OTHER, "person": ALICE},
    {"person": ALICE},
    {"agent": AGENT},
    {"agent": AGENT, "conversation": f"{BOB}_{AGENT}"},
    {"agent": AGENT, "person": ALICE, "conversation": f"{BOB}_{AGENT}"},
    {"agent": AGENT, "person": ALICE, "conversation": "of bob"},
    {"agent": AGENT, "person": BOB, "conversation": f"{ALICE}_{AGENT}"},
    {"agent": AGENT, "person": "*"},
    {"agent": AGENT, "everyone": True},
    {"agent": "*", "person": ALICE},
    {"agent": AGENT, "person": ALICE, "conversation": f"carol@localhost_{AGENT}"},
    {"agent": AGENT, "person": BOB, "code": "K7QX", "text": "yes"},
    {"agent": OTHER, "person": ALICE, "code": "K7QX", "text": "yes"},
    {"agent": AGENT, "person": BOB, "code": "K7QX", "is_approved": True},
    {"agent": OTHER, "person": ALICE, "code": "K7QX", "is_approved": True},
]
OTHER_ARGUMENTS = {"id": "0" * 8, "code": "K7QX2M", "text": "yes", "is_approved": True}
OF_ALL_AGENTS = ("people.delete", "people.export", "logins.create")
"""The operations by which people reach themselves at all agents."""


@pytest.mark.parametrize("name", OF_PEOPLE)
async def test_a_person_reaches_nothing_but_their_own_data_at_this_agent(name: str) -> None:
    fields = {one.name for one in OPERATIONS[name].arguments}
    async with open_tester() as (_, host):
        foreign = [{"person": BOB}, {"person": "*"}] if name in OF_ALL_AGENTS else FOREIGN
        given = [arguments for arguments in foreign if set(arguments) <= fields and fields & {"person", "conversation"}]
        required = {one.name for one in OPERATIONS[name].arguments if one.is_required}
        others = {key: value for key, value in OTHER_ARGUMENTS.items() if key in required}
        tried = [arguments | others for arguments in given if required <= {*arguments, *others}]
        if name == "sessions.clear":  # its arguments are about one of these
            tried = [arguments for arguments in tried if len(arguments.keys() & {"person", "conversation", "everyone"}) == 1]
        assert tried
        for arguments in tried:
            with pytest.raises(ForbiddenError):
                await perform(host, Actor(CallerKind.PERSON, ALICE, AGENT), name, **arguments)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in OF_PEOPLE])
async def test_a_person_may_not_call_what_is_for_others(name: str) -> None:
    operation = OPERATIONS[name]
    async with open_tester() as (_, host):
        with pytest.raises(ForbiddenError):
            await operation(Call(host, Actor(CallerKind.PERSON, ALICE, AGENT)), make_unchecked(operation))


@pytest.mark.parametrize("name", [name for name, found in OPERATIONS.items() if CallerKind.OPERATOR in found.callers])
async def test_an_operator_reaches_their_own_agent_only(name: str) -> None:
    operation = OPERATIONS[name]
    if "agent" not in {one.name for one in operation.arguments}:
        assert name.startswith("log.") or name in OF_ALL_AGENTS  # tests/operations/test_people.py shows what these reach
        return
    async with open_tester() as (_, host):
        for agent in (OTHER, None, "*", "agent"):
            arguments = make_unchecked(operation, agent=agent)
            with pytest.raises(ForbiddenError):
                await operation(Call(host, Actor(CallerKind.OPERATOR, BOSS, AGENT)), arguments)


@pytest.mark.parametrize("name", [name for name, found in OPERATIONS.items() if CallerKind.OPERATOR not in found.callers])
async def test_an_operator_may_not_call_what_is_for_the_user_of_the_machine(name: str) -> None:
    operation = OPERATIONS[name]
    async with open_tester() as (_, host):
        with pytest.raises(ForbiddenError):
            await operation(Call(host, Actor(CallerKind.OPERATOR, BOSS, AGENT)), make_unchecked(operation, agent=AGENT))


async def test_a_person_reaches_a_conversation_of_their_own() -> None:
    async with open_tester() as (_, host):
        alice = Actor(CallerKind.PERSON, ALICE, AGENT)
        name = f"{ALICE}_{AGENT}"
        shown = await perform(host, alice, "sessions.show", agent=AGENT, conversation=name)
        assert [turn["input"]["query"] for turn in shown.history] == ["hello"]
        recalled = await perform(host, alice, "memory.recall", agent=AGENT, person=ALICE, conversation=name)
        assert recalled.variables == {"word": '"hello"'}
        listed = await perform(host, alice, "sessions.list", agent=AGENT, person=ALICE)
        assert [session.conversation_id for session in listed] == [name]


class StepAgent:
    """Run a durable step, then wait for the test."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.working, self.release = asyncio.Event(), asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await session.run_once("other", self.step)
        await session.run_once("first", self.step)
        await session.run_once("other", self.step)
        self.working.set()
        await self.release.wait()
        await response.markdown("done")

    async def step(self) -> int:
        return 1


@asynccontextmanager
async def open_running_turn() -> AsyncIterator[tuple[Any, StepAgent, asyncio.Task[list[str]]]]:
    """Yield the host of an agent with a running turn, the agent, and the task that gets the answer."""
    async with AgentTester(StepAgent, user=ALICE) as t:
        agent, host = t.agent, t.runners[AGENT].executor.context.host
        assert isinstance(agent, StepAgent)
        assert await perform(host, TESTER, "turns.list") == []
        said = asyncio.create_task(t.say("hello"))
        await asyncio.wait_for(agent.working.wait(), TIMEOUT_S)
        yield host, agent, said
        agent.release.set()
        await asyncio.wait_for(said, TIMEOUT_S)


async def test_the_running_turns_tell_whose_they_are_and_where_they_wait() -> None:
    async with open_running_turn() as (host, _, _):
        [turn] = await perform(host, TESTER, "turns.list")
        assert (turn.agent, turn.person, turn.conversation_id, turn.last_step) == (AGENT, ALICE, f"{ALICE}_{AGENT}", "other")
        assert turn.since <= datetime.now(UTC)
        assert turn.waits_in.startswith("StepAgent.assist (test_commands.py:")
        assert turn.waits_in.endswith("): Event.wait")


async def test_draining_waits_for_the_running_turns_and_reports_them() -> None:
    async with open_running_turn() as (host, agent, said):
        reported: list[tuple[int, int]] = []

        def on_progress(done: int, total: int) -> None:
            reported.append((done, total))
            agent.release.set()

        drained = await OPERATIONS["platform.drain"](Call(host, TESTER, on_progress), NoArguments())
        assert (drained.turns, drained.is_complete) == (1, True)
        assert reported[0] == (0, 1)
        assert await said == ["done"]
        assert not (await host.running_agent(AGENT)).is_paused


async def test_a_drain_that_is_stopped_lets_the_platform_run_on() -> None:
    async with open_running_turn() as (host, _, _):
        call = Call(host, TESTER)
        call.on_progress = lambda done, total: call.stop()
        drained = await OPERATIONS["platform.drain"](call, NoArguments())
        assert (drained.turns, drained.is_complete) == (0, False)
        assert not (await host.running_agent(AGENT)).is_paused


async def test_a_drain_that_is_stopped_leaves_a_pause_of_an_operator() -> None:
    async with open_running_turn() as (host, _, _):
        await (await host.running_agent(AGENT)).set_paused(True)
        call = Call(host, TESTER)
        call.on_progress = lambda done, total: call.stop()
        await OPERATIONS["platform.drain"](call, NoArguments())
        assert (await host.running_agent(AGENT)).is_paused


class AskingAgent(StepAgent):
    """Ask another agent, once it may."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self._peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.working.set()
        await self.release.wait()
        await response.markdown((await self._peers.ask("echo@localhost", "hello")).text)


async def test_a_drain_lets_running_turns_ask_other_agents() -> None:
    async with AgentTester(AskingAgent, user=ALICE, peers={"echo": EchoAgent}) as t:
        agent = t.agent
        assert isinstance(agent, AskingAgent)
        said = asyncio.create_task(t.say("hello"))
        await asyncio.wait_for(agent.working.wait(), TIMEOUT_S)
        controls = [runner.control for runner in t.runners.values()]
        for control in controls:
            await control.hold_turns()
        t.send("and again", to="echo@localhost")  # a request of a person waits
        agent.release.set()
        assert await asyncio.wait_for(said, TIMEOUT_S) == ["hello"]
        assert t.unread() == []
        for control in controls:
            await control.release_turns()
        assert (await t.message(timeout=TIMEOUT_S)).text == "and again"


async def test_a_pause_during_a_drain_is_stored_and_outlives_it() -> None:
    async with open_running_turn() as (host, _, _):
        calls = [Call(host, TESTER), Call(host, TESTER)]
        draining = [asyncio.create_task(OPERATIONS["platform.drain"](call, NoArguments())) for call in calls]
        await asyncio.sleep(0)
        [paused] = await perform(host, TESTER, "agents.pause")
        assert paused.is_changed
        for call in calls:
            call.stop()
        await asyncio.gather(*draining)
        assert (await host.running_agent(AGENT)).is_paused
        assert (await host.repository(AGENT).load_agent()).is_paused
        [resumed] = await perform(host, TESTER, "agents.resume")
        assert resumed.is_changed
        assert not (await host.repository(AGENT).load_agent()).is_paused


@pytest.mark.parametrize("name", [name for name, found in OPERATIONS.items() if found.needs_platform])
async def test_what_is_about_a_running_platform_says_that_none_runs(name: str, tmp_path: Path) -> None:
    operation = OPERATIONS[name]
    async with open_stored_host(Settings(data_dir=tmp_path), []) as host:
        with pytest.raises(StoreError, match=f"{name} needs a running platform; start it with `spade-coreason up`"):
            await operation(Call(host, TESTER), make_unchecked(operation))


@pytest.mark.parametrize("name", [name for name, found in OPERATIONS.items() if found.view is not HIDDEN])
def test_a_view_names_what_there_is(name: str) -> None:
    operation, view = OPERATIONS[name], OPERATIONS[name].view
    table = view.table
    assert {*view.links, *view.beside} <= OPERATIONS.keys() - {name}
    if name.endswith(".list"):
        assert table.columns or view.done or name in SHOWS
    assert set(view.given) <= {one.name for one in operation.arguments}
    titles = [column if isinstance(column, str) else column[0] for column in table.columns]
    assert len(set(titles)) == len(titles)
    assert set(table.texts) <= set(titles)
    kinds: dict[str, list[type]] = {"knowledge.list": [StoredDocument]}
    [row] = kinds.get(name) or (get_args(operation._hints["return"]) if table.columns or table.cursor else [object])
    sources = [column if isinstance(column, str) else column[1] for column in table.columns]
    assert {source for source in sources if isinstance(source, str)} <= set(getattr(row, "__dataclass_fields__", sources))
    assert {table.cursor} - {""} <= set(getattr(row, "__dataclass_fields__", ()))
    if view.slash is not None:
        assert {field.name for field in view.slash.fields} <= {one.name for one in operation.arguments}
    assert bool(view.asks) <= bool(view.question)
