"""An agent that cannot be made or may not log in stays away: `up` serves the others, and names it. `up --strict` ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from spade_coreason.memory.interaction.store import AgentInteractionMemory
from tests.cli.test_up import ECHO, agent_of, echo_on, one_line, wait_for_status, write_external_config
from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

UNTIMELY_AGENT_SOURCE = """\
from spade_coreason import AgentDefinition, every


class Untimely:
    manifest = AgentDefinition.simple("Untimely")

    def __init__(self, people):
        self.people = people

    @every("0 25 * * *")
    async def report(self, request, session, response):
        await self.people.notify("boss@localhost", "good morning")

    async def assist(self, request, session, response):
        await response.markdown("yes")
"""
FAILING_AGENTS_SOURCE = '''\
"""Agents that cannot be made."""

import os
import sys

from spade_coreason import AgentDefinition


class Failing:
    """Can be made."""

    manifest = AgentDefinition.simple("failing")

    async def assist(self, request, session, response):
        await response.markdown("I am here after all.")


class Raises(Failing):
    def __init__(self):
        raise ValueError("no licence")


class Exits(Failing):
    def __init__(self):
        sys.exit("no licence")


class Interrupts(Failing):
    def __init__(self):
        raise KeyboardInterrupt


class Cancels(Failing):
    def __init__(self):
        import asyncio

        raise asyncio.CancelledError


class Waits(Failing):
    def __init__(self, fifo):
        open(fifo).close()  # waits for a writer


class HasAStrangeManifest(Failing):
    @property
    def manifest(self):
        sys.exit("no manifest")


def no_tool():
    raise KeyboardInterrupt


class Counts:
    """An interceptor."""

    def __init__(self):
        raise KeyboardInterrupt
'''
CREATED = "cannot be created: "
NOTES = "spade_coreason.agents.notes:NotesAgent"
LLM = "spade_coreason.llm:LLMAgent"

FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "a constructor that raises": ({"agent": "failing:Raises"}, f"{CREATED}ValueError: no licence (failing.py:"),
    "a constructor that exits": ({"agent": "failing:Exits"}, f"{CREATED}SystemExit: no licence (failing.py:"),
    "a constructor that interrupts": ({"agent": "failing:Interrupts"}, f"{CREATED}KeyboardInterrupt (failing.py:"),
    "a constructor that cancels": ({"agent": "failing:Cancels"}, f"{CREATED}CancelledError (failing.py:"),
    "a property that exits": ({"agent": "failing:HasAStrangeManifest"}, "has no manifest: SystemExit: no manifest"),
    "an import that exits": ({"agent": "exits:Agent"}, "exits cannot be imported: SystemExit: enough (exits.py:1)"),
    "an import that interrupts": ({"agent": "interrupts:Agent"}, "interrupts cannot be imported: KeyboardInterrupt"),
    "times that there are not": ({"agent": "untimely:Untimely"}, "untimely cannot be imported: ValueError: "),
    "no such module": ({"agent": "nowhere:Agent"}, "there is no module nowhere"),
    "an unknown option": ({"agent": ECHO, "options": {"dely": 1}}, "options.dely: unknown option"),
    "a manifest that is no YAML": ({"agent": NOTES, "manifest": "../manifest.yaml"}, "manifest.yaml:2:1: is not valid YAML"),
    "an interceptor that interrupts": (
        {"agent": ECHO, "interceptors": ["failing:Counts"]},
        f"Counts {CREATED}KeyboardInterrupt",
    ),
    "a tool whose import interrupts": (
        {"agent": LLM, "options": {"model": "script", "tools": ["interrupts:tool"]}},
        "options.tools: interrupts cannot be imported: KeyboardInterrupt",
    ),
}


def write_project(directory: Path, *agents: dict[str, Any]) -> Path:
    """Write a project with these agents on a local server; `bad@localhost` has no other address."""
    (directory / "failing.py").write_text(FAILING_AGENTS_SOURCE)
    (directory / "untimely.py").write_text(UNTIMELY_AGENT_SOURCE)
    (directory / "timely.py").write_text(UNTIMELY_AGENT_SOURCE.replace("0 25 ", "0 5 "))
    (directory / "exits.py").write_text("import sys; sys.exit('enough')\n")
    (directory / "interrupts.py").write_text("raise KeyboardInterrupt\n")
    (directory / "manifest.yaml").write_text("metadata: [\n")
    (directory / "config").mkdir()
    settings = {"agents": agents}
    (directory / "config" / "platform.yaml").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="module")
def many_failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an agent for each failure, and one that answers."""
    agents = [{"jid": f"bad{number}@localhost", **agent} for number, (agent, _) in enumerate(FAILURES.values())]
    return write_project(tmp_path_factory.mktemp("failures"), *agents, {"jid": "echo@localhost", "agent": ECHO})


async def test_agents_that_cannot_be_made_stay_away_and_the_others_serve(many_failures: Path) -> None:
    problems = {f"bad{number}@localhost": problem for number, (_, problem) in enumerate(FAILURES.values())}
    logged = [f"error: {jid}: config/platform.yaml: agents[" for jid in problems]
    with run_in_background("up", cwd=many_failures, until="^Ready", errors=logged) as up:
        status = await wait_for_status(many_failures / "data", lambda status: agent_of(status, "echo@localhost").is_healthy)
        assert {agent.jid for agent in status.agents if agent.state == "offline"} == set(problems)
        for jid, problem in problems.items():
            assert problem in str(agent_of(status, jid).start_problem)
        asked = await asyncio.to_thread(up.run_command, "ask", "echo", "hello")
        assert (asked.returncode, asked.stdout) == (0, "hello\n")
        shown = await asyncio.to_thread(up.run_command, "status")
        assert shown.returncode == 1
        assert f"1 of {len(FAILURES) + 1} agents online" in shown.stdout
        code, out, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert (code, out.splitlines()[-1]) == (0, "Stopped.")
    for jid, problem in problems.items():
        line = one_line(err, f"error: {jid}: ")
        assert problem in line
        assert line.endswith("; the agent stays offline until the platform is started again")


def test_check_names_every_agent_that_cannot_be_made(tmp_path: Path) -> None:
    agents = [{"jid": f"bad{number}@localhost", **agent} for number, (agent, _) in enumerate(FAILURES.values())]
    done = run_command("check", cwd=write_project(tmp_path, *agents, {"jid": "echo@localhost", "agent": ECHO}))
    assert done.returncode == 2
    for number, (_, problem) in enumerate(FAILURES.values()):
        assert problem in one_line(done.stdout, f"bad{number}@localhost")
    assert "(Echo" in one_line(done.stdout, "echo@localhost")


def test_check_makes_an_agent_that_writes_first(tmp_path: Path) -> None:
    agents = [{"jid": "timely@localhost", "agent": "timely:Untimely"}, {"jid": "bad@localhost", "agent": "untimely:Untimely"}]
    done = run_command("check", cwd=write_project(tmp_path, *agents))
    assert done.returncode == 2
    assert "(Untimely" in one_line(done.stdout, "timely@localhost")
    line = one_line(done.stdout, "bad@localhost")
    assert "0 25 * * *" in line


@pytest.mark.parametrize("failure", ["a constructor that exits", "an import that interrupts"])
def test_a_strict_start_ends_with_the_agent_that_cannot_be_made(failure: str, tmp_path: Path) -> None:
    agent, problem = FAILURES[failure]
    project = write_project(tmp_path, {"jid": "bad@localhost", **agent}, {"jid": "echo@localhost", "agent": ECHO})
    done = run_command("up", "--strict", cwd=project)
    assert done.returncode == 2
    assert problem in one_line(done.stderr, "error: ")
    run = run_command("run", agent["agent"], cwd=project)
    assert run.returncode == 2
    assert problem in one_line(run.stderr, "error: ")


def test_up_ends_if_no_agent_can_be_made(tmp_path: Path) -> None:
    agents = [{"jid": f"{name}@localhost", "agent": f"failing:{name.title()}"} for name in ("raises", "exits")]
    done = run_command("up", cwd=write_project(tmp_path, *agents))
    assert done.returncode == 2
    first, second = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "agents[0].agent: failing:Raises cannot be created" in first
    assert "agents[1].agent: failing:Exits cannot be created" in second
    assert "stays offline" not in done.stderr


def store_three_facts(memory_dir: Path, jid: str) -> AgentInteractionMemory:
    memory = AgentInteractionMemory(jid, memory_dir)
    for word in ("one", "two", "three"):
        memory.add_information("c", word)
    return memory


def damage_journal(memory: AgentInteractionMemory) -> Path:
    memory.journal_path.write_bytes(memory.journal_path.read_bytes().replace(b"two", b"tXo"))
    return memory.journal_path


def damage_file(memory: AgentInteractionMemory) -> Path:
    memory.close()
    memory.path.write_bytes(memory.path.read_bytes()[:-5])
    return memory.path


def write_newer_journal(memory: AgentInteractionMemory) -> Path:
    body = b'{"surprise":"of a later version"'
    with memory.journal_path.open("ab") as journal:
        journal.write(b'%b,"crc32":"%08x"}\n' % (body, crc32(body)))
    return memory.journal_path


def replace_by_directory(memory: AgentInteractionMemory) -> Path:
    """Replace the file by what no user can read, not even root."""
    memory.journal_path.unlink()
    memory.journal_path.mkdir()
    return memory.journal_path


DAMAGES: dict[str, tuple[Callable[[AgentInteractionMemory], Path], str]] = {
    "journal@localhost": (damage_journal, "is damaged at byte"),
    "file@localhost": (damage_file, "file@localhost.json: "),
    "newer@localhost": (write_newer_journal, "has a line of another version"),
    "unreadable@localhost": (replace_by_directory, "cannot be read: Is a directory"),
}


def damage(project: Path) -> list[Path]:
    """Damage the memories of all agents of `DAMAGES`. Return the damaged files."""
    memories = {jid: store_three_facts(project / "data" / "memory", jid) for jid in DAMAGES}
    return [how(memories[jid]) for jid, (how, _) in DAMAGES.items()]


def write_damaged_project(directory: Path) -> Path:
    agents = [{"jid": jid, "agent": NOTES} for jid in DAMAGES]
    return write_project(directory, *agents, {"jid": "echo@localhost", "agent": ECHO})


async def test_agents_with_damaged_memory_stay_away_until_the_files_are_removed(tmp_path: Path) -> None:
    project = write_damaged_project(tmp_path)
    damaged = damage(project)
    with run_in_background("up", cwd=project, until="", errors=[f"error: {jid}: " for jid in DAMAGES]) as up:
        status = await wait_for_status(project / "data", lambda status: agent_of(status, "echo@localhost").is_healthy)
        for jid, (_, problem) in DAMAGES.items():
            assert agent_of(status, jid).state == "offline"
            assert problem in str(agent_of(status, jid).start_problem)
        asked = await asyncio.to_thread(up.run_command, "ask", "echo", "hello")
        assert (asked.returncode, asked.stdout) == (0, "hello\n")
        for path in damaged:
            path.rmdir() if path.is_dir() else path.unlink()
        await asyncio.to_thread(up.wait_for, "^Ready")
        assert all(jid in up.output for jid in DAMAGES)
        status = await wait_for_status(project / "data", lambda status: status.is_healthy)
        assert not any(agent.start_problem for agent in status.agents)
        asked = await asyncio.to_thread(up.run_command, "ask", "journal", "I like tea.")
        assert asked.returncode == 0
        code, _, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert code == 0
    for jid, (_, problem) in DAMAGES.items():
        line = one_line(err, f"error: {jid}: ")
        assert problem in line
        assert line.endswith("; the agent stays offline and its start is retried")


def test_check_names_damaged_memories_and_a_strict_start_ends(tmp_path: Path) -> None:
    project = write_damaged_project(tmp_path)
    damage(project)
    checked = run_command("check", cwd=project)
    assert checked.returncode == 1
    for jid, (_, problem) in DAMAGES.items():
        assert problem in one_line(checked.stdout, f"{jid}  ")
    strict = run_command("up", "--strict", cwd=project)
    assert strict.returncode == 1
    assert "is damaged at byte" in one_line(strict.stderr, "error: ")


async def test_a_lock_that_another_process_holds_keeps_one_agent_away(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"jid": "notes@localhost", "agent": NOTES}, {"jid": "echo@localhost", "agent": ECHO})
    memory = AgentInteractionMemory("notes@localhost", project / "data" / "memory")
    memory.add_information("c", "one")
    [lock_path] = (project / "data" / "memory").glob("*.lock")
    with lock_path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locked = "another process has locked it for 10 s"
        with run_in_background("up", cwd=project, until="", errors=[locked]) as up:
            status = await wait_for_status(project / "data", lambda status: agent_of(status, "echo@localhost").is_healthy)
            assert locked in str(agent_of(status, "notes@localhost").start_problem)
            fcntl.flock(lock, fcntl.LOCK_UN)
            await asyncio.to_thread(up.wait_for, "^Ready")
            assert (await wait_for_status(project / "data", lambda status: status.is_healthy)).is_healthy
            assert (await asyncio.to_thread(up.stop, signal.SIGTERM))[0] == 0


def test_a_constructor_that_does_not_return_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    agent = {"jid": "waits@localhost", "agent": "failing:Waits", "options": {"fifo": str(fifo)}}
    with run_in_background("up", cwd=write_project(tmp_path, agent), until="") as up:
        assert up.process.stderr is not None
        while "its constructor has not returned" not in (line := up.process.stderr.readline().decode()):
            assert line, "it ended"
        assert "warning: waits@localhost: its constructor has not returned for 10 s, and all agents wait for it" in line
        fifo.write_text("")
        up.wait_for("^Ready")
        assert up.stop(signal.SIGTERM)[0] == 0


async def test_an_account_that_is_refused_stays_away_and_the_others_serve(real_server: XmppServer, tmp_path: Path) -> None:
    agents = [await echo_on(real_server) for _ in range(2)]
    refused, served = agents[0]["jid"], agents[1]["jid"]
    file = write_external_config(tmp_path, real_server, real_server.port, {**agents[0], "password": "wrong"}, agents[1])
    with run_in_background(
        "up", "-c", str(file), cwd=tmp_path, until="^Ready", errors=[f"error: {refused}: platform.yaml: agents[0].password: "]
    ) as up:
        assert served in up.output
        assert refused not in up.output
        async with StockClient(*await real_server.account(), real_server) as alice:
            assert await alice.ask("hello", served) == "hello"
        status = await wait_for_status(tmp_path / "data", lambda status: agent_of(status, served).is_healthy)
        assert agent_of(status, refused).state == "offline"
        assert "refuses the login" in str(agent_of(status, refused).connection_problem)
        shown = await asyncio.to_thread(up.run_command, "status", "-c", str(file))
        assert (shown.returncode, "refuses the login" in shown.stdout) == (1, True)
        code, _, err = await asyncio.to_thread(up.stop, signal.SIGTERM)
    assert code == 0
    assert one_line(err, "refuses the login").endswith("; the agent stays offline until the platform is started again")
    strict = await asyncio.to_thread(run_command, "up", "--strict", "-c", str(file), cwd=tmp_path)
    assert strict.returncode == 5


def test_a_reload_reports_a_constructor_that_exits_and_the_next_change_is_tried(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"jid": "bad@localhost", "agent": "failing:Exits"})
    with run_in_background("up", "--reload", cwd=project, until="") as up:
        stderr = up.process.stderr
        assert stderr is not None
        said = ""
        while "The next change is tried." not in said:
            said += stderr.readline().decode()
        assert "failing:Exits cannot be created: SystemExit: no licence" in said
        source = FAILING_AGENTS_SOURCE.replace('sys.exit("no licence")', "pass")
        (project / "failing.py").write_text(source)
        up.wait_for("^Ready")
        asked = up.run_command("ask", "bad", "hello")
        assert (asked.returncode, asked.stdout) == (0, "I am here after all.\n")


async def test_a_reload_serves_the_others_while_memory_is_damaged(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"jid": "journal@localhost", "agent": NOTES}, {"jid": "echo@localhost", "agent": ECHO})
    damaged = damage_journal(store_three_facts(project / "data" / "memory", "journal@localhost"))
    with run_in_background("up", "--reload", cwd=project, until="", errors=["is damaged at byte"]) as up:
        await wait_for_status(project / "data", lambda status: agent_of(status, "echo@localhost").is_healthy)
        damaged.unlink()
        await asyncio.to_thread(up.wait_for, "^Ready")
