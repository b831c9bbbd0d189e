"""Commands change the data of a platform while it runs, and without it; whatever ends them, nothing is left half done."""

from __future__ import annotations

import asyncio
import getpass
import http.client
import json
import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL

import pytest

from spade_coreason import AgentInteractionMemory
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE
from tests.support.program import COMMAND, RunningCommand, clean_environment, run_in_background, write_project
from tests.support.records import new_conversation, store_turn
from tests.support.tester_host import find_text
from tests.support.wait import TIMEOUT_S, wait_until
from tests.support.warm import WarmProcess

NOTES, MOODY = "notes@localhost", "moody@localhost"
GUEST = "guest@localhost"
PEOPLE = [f"person{number}@localhost" for number in range(40)]
NOBODY = 65534
STOPPED = "Stopped. What is done stays; run the same command again for the rest.\n"
USER = f"user {getpass.getuser()}"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[RunningCommand]:
    project = write_project(tmp_path / "project", "auto")
    with run_in_background("up", cwd=project, until=r"^Ready") as up:
        yield up
        up.stop()


def start(project: Path, *arguments: str) -> WarmProcess[str]:
    command, pipe = [*COMMAND, *arguments], subprocess.PIPE
    return WarmProcess[str](command, cwd=project, env=clean_environment(), stdin=DEVNULL, stdout=pipe, stderr=pipe, text=True)


def audited(platform: RunningCommand, agent: str) -> list[tuple[str, str, str]]:
    entries = json.loads(platform.run_command("audit", "list", "--agent", agent, "--json").stdout)
    return [(entry["actor"], entry["action"], entry["resource"]) for entry in entries]


def test_what_runs_or_waits_of_a_person_ends_before_their_data_is_deleted(platform: RunningCommand) -> None:
    assert platform.run_command("ask", "notes", "my plane leaves on Friday").returncode == 0
    assert platform.run_command("ask", "moody", "hello").returncode == 0
    with start(platform.cwd, "ask", "moody", "sleep", "--timeout", "3600") as asking:
        while json.loads(platform.run_command("status", "--json").stdout)["agents"][2]["in_flight"] == 0:
            assert asking.poll() is None
        cleared = platform.run_command("sessions", "clear", "--person", GUEST, "--agent", "*", "--yes")
        assert cleared.returncode == 0, cleared.stderr
        assert f"{MOODY}: deleted: 1 conversation, 1 turn" in cleared.stdout
        assert json.loads(platform.run_command("status", "--json").stdout)["agents"][2]["in_flight"] == 0
        asking.kill()
    assert platform.run_command("sessions", "list").stdout == "No sessions.\n"
    assert platform.run_command("memory", "list").stdout == "No interaction memories.\n"
    assert audited(platform, NOTES) == [(USER, "sessions.clear", "a person")]
    # The agents go on, and remember nothing.
    assert "Friday" not in platform.run_command("ask", "notes", "when does my plane leave?").stdout
    assert platform.run_command("ask", "moody", "hello").returncode == 0


def test_a_drain_that_is_interrupted_says_that_the_platform_runs_on(platform: RunningCommand) -> None:
    with start(platform.cwd, "ask", "moody", "sleep", "--timeout", "3600") as asking:
        while json.loads(platform.run_command("status", "--json").stdout)["agents"][2]["in_flight"] == 0:
            assert asking.poll() is None
        with start(platform.cwd, "drain") as draining:
            while not audited(platform, "platform"):
                assert draining.poll() is None
            draining.send_signal(signal.SIGINT)
            assert draining.communicate(timeout=TIMEOUT_S) == ("", "Interrupted. The platform runs on.\n")
        assert draining.returncode == 130
        asking.kill()
    assert platform.run_command("ask", "notes", "hello").returncode == 0


def test_what_was_used_of_the_quotas_is_the_same_beside_a_platform_and_without_it(platform: RunningCommand) -> None:
    for words in ("one", "two"):
        assert platform.run_command("ask", "notes", words).returncode == 0

    def used(*options: str) -> dict[str, int]:
        shown = platform.run_command("quotas", "notes", *options, "--json")
        assert shown.returncode == 0, shown.stderr
        return {usage["scope"]: usage["messages"] for usage in json.loads(shown.stdout)}

    everybody = {"total": 2, "domain": 2, "person": 2}
    assert used() == everybody
    assert used("--person", GUEST) == {"person": 2}
    platform.stop()
    assert used() == everybody
    assert used("--limit", "1").keys() < everybody.keys()
    assert used("--person", GUEST) == {"person": 2}
    assert used("--person", PEOPLE[0]) == {"person": 0}
    [_, *others] = json.loads(platform.run_command("quotas", "notes", "--json").stdout)
    assert all(usage["messages_per_day"] > 0 for usage in others)


def test_a_deleted_person_is_told_how_many_of_their_requests_waited(platform: RunningCommand) -> None:
    assert platform.run_command("pause", "notes").returncode == 0
    with start(platform.cwd, "ask", "notes", "hello", "--timeout", "3600") as asking:
        wait_until(lambda: count_requests(platform, NOTES) == (1, 0), "the request does not wait")
        assert asking.poll() is None
        deleted = platform.run_command("people", "delete", GUEST, "--yes")
        assert f"{NOTES}: deleted" in deleted.stdout
        assert "1 unanswered request" in deleted.stdout
        assert asking.wait(TIMEOUT_S) != 0
    assert platform.run_command("people", "delete", GUEST, "--yes").stdout == "There was nothing to delete.\n"


def count_requests(platform: RunningCommand, agent: str) -> tuple[int, int]:
    """Return the numbers of requests that wait, and of conversations with a running turn."""
    agents = json.loads(platform.run_command("status", "--json").stdout)["agents"]
    [found] = [(one["waiting"], one["in_flight"]) for one in agents if one["jid"] == agent]
    return found


def test_the_status_counts_what_waits_at_a_paused_agent(platform: RunningCommand) -> None:
    assert platform.run_command("pause", "notes").returncode == 0
    with start(platform.cwd, "ask", "notes", "hello", "--timeout", "3600") as asking:
        wait_until(lambda: count_requests(platform, NOTES) == (1, 0), "the request does not wait")
        assert asking.poll() is None
        assert "paused (1 waiting)" in platform.run_command("status").stdout
        assert platform.run_command("resume", "notes").returncode == 0
        assert asking.wait(TIMEOUT_S) == 0
    assert count_requests(platform, NOTES) == (0, 0)


def test_a_command_about_one_agent_or_without_one_says_how_all_are_named(platform: RunningCommand) -> None:
    refused = platform.run_command("quotas", "*").stderr
    assert refused.startswith('error: AGENT: one is needed, and "*" means all; the agents are ')
    assert 'name one, or "*" for all: the agents are ' in platform.run_command("pause").stderr


def test_a_piped_chat_runs_commands(platform: RunningCommand) -> None:
    told = platform.run_command("chat", "notes", stdin="my secret\n//not a command\n/forget me yes\n")
    assert (told.returncode, told.stderr) == (0, "")
    assert '"/not a command"' in told.stdout
    assert "/forget" not in told.stdout
    assert platform.run_command("sessions", "list").stdout == "No sessions.\n"


def test_one_conversation_and_one_memory_are_deleted_while_the_platform_runs(platform: RunningCommand) -> None:
    for thread in ("work", "holiday"):
        platform.run_command("ask", "notes", f"I am at {thread}", "--thread", thread)
    names = [one["conversation_id"] for one in json.loads(platform.run_command("sessions", "list", "--json").stdout)]
    assert sorted(names) == ["holiday", "work"]
    cleared = platform.run_command("memory", "clear", "--agent", "notes", "--conversation", "work", "--yes")
    assert cleared.stdout == f"{NOTES}: deleted the memories of 1 conversation.\n  work\n"
    assert platform.run_command("memory", "show", "work").returncode == 2
    cleared = platform.run_command("sessions", "clear", "--conversation", "holiday", "--yes")
    assert cleared.stdout.startswith(f"{NOTES}: deleted: 1 conversation, 1 turn")
    assert platform.run_command("sessions", "show", "holiday").returncode == 2
    assert [action for _, action, _ in audited(platform, NOTES)] == ["memory.clear", "sessions.clear"]
    assert "1 conversation" in platform.run_command("sessions", "clear", "--agent", "notes", "--all", "--yes").stdout
    assert platform.run_command("sessions", "list").stdout == "No sessions.\n"


def fill(data_dir: Path) -> None:
    """Store a conversation and a memory of each of forty people."""

    async def store() -> None:
        database = await open_database(f"{SQLITE}{data_dir / 'platform.db'}", "off")
        repository, memory = AgentRepository(database, NOTES), AgentInteractionMemory(NOTES, data_dir / "memory")
        for person in PEOPLE:
            await store_turn(repository, new_conversation(repository, f"of {person}", person))
            await memory.aadd_information(f"of {person}", "a secret")
        await memory.aclose()
        await database.close()

    asyncio.run(store())


def has_begun(file: Path) -> bool:
    """Return True if the audit trail has an entry, which a deletion writes first."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return bool(connection.execute("SELECT count(*) FROM audit").fetchone()[0])


def left(project: Path) -> set[str]:
    """Return the conversations that are left. The memory of one goes first, so a kill may leave one without."""

    def names(*arguments: str) -> set[str]:
        with start(project, *arguments, "--json") as command:
            output, _ = command.communicate(timeout=TIMEOUT_S)
        return {record["conversation_id"] for record in json.loads(output)}

    found = names("sessions", "list")
    remembered = names("memory", "list")
    assert remembered <= found
    assert len(found - remembered) <= 1
    return found


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_deletion_is_finished_by_the_same_command(
    tmp_path: Path, is_running: bool, number: signal.Signals
) -> None:
    project = write_project(tmp_path / "project", "auto")
    (project / "data").mkdir(mode=0o700)
    fill(project / "data")
    clear = ("sessions", "clear", "--agent", "notes", "--all", "--yes")

    def interrupt() -> None:
        with start(project, *clear) as command:
            while command.poll() is None and not has_begun(project / "data" / "platform.db"):
                pass
            command.send_signal(number)
            output, log = command.communicate(timeout=TIMEOUT_S)
        # A running platform goes on for a moment after its caller was killed.
        remaining = set() if is_running and number == signal.SIGKILL else left(project)
        if number == signal.SIGINT and remaining:  # else it was done before the signal came
            assert (command.returncode, log) == (130, STOPPED)
            deleted = 0 if "nothing to delete" in output else int(output.split("deleted: ")[1].split()[0])
            assert deleted == len(PEOPLE) - len(remaining)
        with start(project, *clear) as command:
            output, _ = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 0
        assert left(project) == set()

    if is_running:
        with run_in_background("up", cwd=project, until=r"^Ready") as up:
            interrupt()
            assert up.stop()[0] == 0
    else:
        interrupt()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_gets_in_nowhere(platform: RunningCommand) -> None:
    data = platform.cwd / "data"
    context = multiprocessing.get_context("fork")

    def ask_as_nobody() -> str:
        ours, theirs = context.Pipe()
        process = context.Process(target=_ask_as_nobody, args=(data, theirs))
        process.start()
        theirs.close()
        answer = str(ours.recv())
        process.join(TIMEOUT_S)
        return answer

    # The directories above belong to root too. First only the way to the socket is opened, then the socket itself.
    modes = {directory: directory.stat().st_mode for directory in (data, *data.parents[:-1])}
    try:
        for directory, mode in modes.items():
            directory.chmod(mode | 0o005)
        assert ask_as_nobody() == "Permission denied"
        (data / "platform.sock").chmod(0o666)
        assert "another user of the machine owns this platform" in ask_as_nobody()
    finally:
        for directory, mode in modes.items():
            directory.chmod(mode)


def _ask_as_nobody(data: Path, result: Connection) -> None:
    connection = http.client.HTTPConnection("platform")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.chdir(data)
        connection.sock.connect("platform.sock")
    except OSError as error:
        result.send(error.strerror)
        return
    connection.request("POST", "/v1/status", b"{}")
    result.send(connection.getresponse().read().decode())


AGENTS = [f"agent{number}@localhost" for number in range(20)]


def fill_many_agents(data_dir: Path) -> None:
    """Store turns of a person at twenty agents: in a conversation of their own, and beside a turn of another person."""

    async def store() -> None:
        database = await open_database(f"{SQLITE}{data_dir / 'platform.db'}", "off")
        for agent in AGENTS:
            repository, memory = AgentRepository(database, agent), AgentInteractionMemory(agent, data_dir / "memory")
            await repository.inbox.open()
            await store_turn(repository, new_conversation(repository, "own", PEOPLE[0]))
            shared = new_conversation(repository, "shared", NOTES)
            for person in PEOPLE[:2]:
                shared = await store_turn(repository, shared, root=person)
            await memory.aadd_information("own", f"a secret of {PEOPLE[0]}")
            await memory.aclose()
        await database.close()

    asyncio.run(store())


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_deletion_of_a_person_is_finished_by_the_same_command(
    tmp_path: Path, is_running: bool, number: signal.Signals
) -> None:
    project = write_project(tmp_path / "project", "auto")
    data = project / "data"
    data.mkdir(mode=0o700)
    fill_many_agents(data)
    delete = ("people", "delete", PEOPLE[0], "--yes", "--json")

    def count(text: str) -> int:
        with closing(sqlite3.connect(f"file:{data / 'platform.db'}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM interactions WHERE body LIKE ?", [f"%{text}%"]).fetchone()[0])

    def interrupt() -> None:
        with start(project, *delete) as command:
            while command.poll() is None and not has_begun(data / "platform.db"):
                pass
            command.send_signal(number)
            output, log = command.communicate(timeout=TIMEOUT_S)
        if number == signal.SIGINT:
            found = json.loads(output)
            if not found["is_complete"]:  # else it was done before the signal came
                assert (command.returncode, log) == (130, STOPPED)
            deleted = sum(erasure["report"]["interactions"] for erasure in found["erasures"])
            assert deleted == 2 * len(AGENTS) - count(PEOPLE[0])
        with start(project, *delete) as command:
            output, log = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 0, log
        assert json.loads(output)["is_complete"]

    assert (count(PEOPLE[0]), count(PEOPLE[1])) == (2 * len(AGENTS), len(AGENTS))
    if is_running:
        with run_in_background("up", cwd=project, until=r"^Ready") as up:
            interrupt()
            up.stop()
    else:
        interrupt()
    assert (count(PEOPLE[0]), count(PEOPLE[1])) == (0, len(AGENTS))
    assert find_text(data, PEOPLE[0]) == []
