"""`run --reload` and `up --reload`: a change of the project is answered by the new code, and a mistake changes nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from spade_coreason.domain.environment.installation import install_hint
from spade_coreason.storage.backends.lock import lock_directory
from tests.support.processes import find_state
from tests.support.program import RunningCommand, run_command, run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.processes import has_ended
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S, wait_until

AGENT = """
import asyncio
from pathlib import Path
from spade_coreason import agent

@agent(description="Tells its version")
async def version(request, session, response):
    while request.payload["query"] == "wait" and not Path("go").exists():
        Path("waiting").touch()
        await asyncio.sleep(0.02)
    await response.markdown(f"{VERSION}: {request.payload['query']}")

VERSION = 1
Path(f"imported-{VERSION}").touch()
"""
AGENT_WITH_PROCESS = f"import os\n{AGENT}Path(f'process-{{VERSION}}').symlink_to(str(os.getpid()))\n"
EMBEDDED_WARNING = "warning: embedded server"
MAX_RATIO = 3
"""From save to the first answer of the new code, as a multiple of a cold start."""


@pytest.fixture(params=["prosody", "embedded"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project with the agent, and a configuration for a local server of each kind."""
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
    (tmp_path / "version.py").write_text(AGENT)
    (tmp_path / "config").mkdir()
    settings = {
        "server": {"mode": request.param},
        "agents": [{"jid": "version@localhost", "agent": "version:version"}],
        "limits": {"grace_s": TIMEOUT_S},
    }
    (tmp_path / "config" / "platform.yaml").write_text(json.dumps(settings))
    return tmp_path


on_one_server = pytest.mark.parametrize("project", ["prosody"], indirect=True)
"""Mark a test in which the kind of the server makes no difference."""


@pytest.fixture
def up(project: Path) -> Iterator[RunningCommand]:
    """The platform of the project, with --reload."""
    with run_in_background("up", "--reload", cwd=project, until="^Ready") as running:
        yield running


def set_version(project: Path, number: int) -> None:
    file = project / "version.py"
    file.write_text(AGENT.replace("VERSION = 1", f"VERSION = {number}"))


def ask(project: Path, text: str) -> str:
    done = run_command("ask", "version", text, cwd=project)
    assert done.returncode == 0, done.stderr
    return done.stdout


def next_problem(up: RunningCommand) -> str:
    """Return the next line of standard error, without the warning of the embedded server."""
    assert up.process.stderr is not None
    while (line := up.process.stderr.readline().decode()).startswith(EMBEDDED_WARNING):
        pass
    return line


def wait_for_file(file: Path) -> None:
    wait_until(file.exists, f"{file} does not come")


def test_a_change_is_answered_by_the_new_code_and_an_open_chat_goes_on(project: Path, up: RunningCommand) -> None:
    with closing(Terminal("chat", "version", cwd=project)) as chat:
        chat.wait_for_prompt("version")
        chat.type("hello\r")
        chat.wait_for("1: hello\r\n.*version ▸")
        for number in (2, 3):
            set_version(project, number)
            up.wait_for("^Reloaded: version.py\\.$")
            up.output = ""
            chat.type("hello\r")
            chat.wait_for(f"{number}: hello\r\n.*version ▸")
    code, out, err = up.stop(signal.SIGTERM)
    assert (code, out.lstrip()) == (
        0,
        "Stopping: answers in progress are finished first. Press Ctrl-C again to stop at once.\nStopped.\n",
    )
    assert not [line for line in err.splitlines() if not line.startswith(EMBEDDED_WARNING)]


@pytest.mark.parametrize("project", ["prosody", "embedded"], indirect=True)
def test_what_runs_is_finished_by_the_old_code_and_what_is_asked_meanwhile_is_answered_by_the_new(
    project: Path, up: RunningCommand
) -> None:
    with ThreadPoolExecutor() as threads:
        running = threads.submit(ask, project, "wait")
        wait_for_file(project / "waiting")
        set_version(project, 2)
        wait_for_file(project / "imported-2")  # the new process is about to take over
        meanwhile = threads.submit(ask, project, "meanwhile")
        (project / "go").touch()
        assert running.result() == "1: wait\n"
        up.wait_for("^Reloaded")
        assert meanwhile.result() in ("1: meanwhile\n", "2: meanwhile\n")
    assert ask(project, "after") == "2: after\n"


@on_one_server
@pytest.mark.parametrize("is_first", [True, False], ids=["at the first start", "after a change"])
def test_changes_while_code_starts_are_not_missed(project: Path, is_first: bool) -> None:
    slow = f'{AGENT}import time\nwhile VERSION == 2 and not Path("start").exists():\n    time.sleep(0.02)\n'
    if is_first:
        (project / "version.py").write_text(slow.replace("VERSION = 1", "VERSION = 2"))
    with run_in_background("up", "--reload", cwd=project, until="" if is_first else "^Ready") as up:
        if not is_first:
            (project / "version.py").write_text(slow.replace("VERSION = 1", "VERSION = 2"))
        wait_for_file(project / "imported-2")
        (project / "other.py").write_text("")
        set_version(project, 3)
        (project / "start").touch()
        up.wait_for(r"^Reloaded: ")
        wait_until(lambda: ask(project, "hello") == "3: hello\n", "the last change is not answered")


@on_one_server
def test_code_that_cannot_be_imported_is_one_line_and_the_code_before_goes_on(project: Path) -> None:
    with run_in_background("up", "--reload", cwd=project, until="^Ready") as up:
        file = project / "version.py"
        file.write_text(f"{AGENT}\ndef broken(:\n")
        problem, outcome = next_problem(up), next_problem(up)
        assert problem.startswith("error: ")
        assert "version cannot be imported: SyntaxError: invalid syntax (version.py:16); correct the module" in problem
        assert outcome == "The code of before the change goes on.\n"
        assert ask(project, "still") == "1: still\n"
        set_version(project, 2)
        up.wait_for("^Reloaded")
        assert ask(project, "mended") == "2: mended\n"


@on_one_server
def test_a_project_that_cannot_start_is_tried_again_after_a_change(project: Path) -> None:
    (project / "version.py").write_text("def broken(:\n")
    with run_in_background("up", "--reload", cwd=project, until="") as up:
        assert "cannot be imported" in next_problem(up)
        assert next_problem(up) == "Nothing runs. The next change is tried.\n"
        set_version(project, 2)
        up.wait_for("^Ready")
        assert ask(project, "mended") == "2: mended\n"


@pytest.mark.release
@on_one_server
def test_a_platform_that_ends_by_itself_is_started_again_after_a_change(project: Path) -> None:
    file = project / "version.py"
    file.write_text(AGENT + 'async def startup():\n    raise OSError("no disk")\n\nversion.startup = startup\n')
    with run_in_background("up", "--strict", "--reload", cwd=project, until="") as up:
        assert "no disk" in next_problem(up)
        assert next_problem(up) == "The platform has ended. The next change is tried.\n"
        set_version(project, 2)
        up.wait_for("^Reloaded")
        assert ask(project, "mended") == "2: mended\n"


@pytest.mark.release
def test_an_agent_that_is_added_to_the_configuration_comes_online(project: Path, up: RunningCommand) -> None:
    file = project / "config" / "platform.yaml"
    settings = json.loads(file.read_text())
    settings["agents"].append({"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"})
    file.write_text(json.dumps(settings))
    up.wait_for(r"^Reloaded: platform\.yaml\.$")
    assert run_command("ask", "echo", "hello", cwd=project).stdout == "hello\n"


@pytest.mark.release
@on_one_server
@pytest.mark.parametrize("directory", ["config", "../settings"])
def test_a_configuration_is_watched_from_another_directory(project: Path, directory: str) -> None:
    root = project / "root"
    root.mkdir()
    (project / "version.py").rename(root / "version.py")
    (project / "config").rename(root / directory)
    file = root / directory / "platform.yaml"
    options = [] if directory == "config" else ["-c", f"{directory}/platform.yaml"]
    elsewhere = project / "a" / "b"
    elsewhere.mkdir(parents=True)
    with run_in_background("up", "--project", "../../root", "--reload", *options, cwd=elsewhere, until="^Ready") as up:
        file.write_text(f"{file.read_text()}\n")
        up.wait_for(r"^Reloaded: platform\.yaml\.$")


def test_a_parent_that_is_killed_leaves_nothing_behind(project: Path, up: RunningCommand) -> None:
    pid = json.loads((project / "data" / "run.json").read_text())["pid"]
    assert pid != up.process.pid
    up.process.send_signal(signal.SIGKILL)
    assert has_ended(pid, TIMEOUT_S), "the platform goes on"
    with run_in_background("up", cwd=project, until="^Ready"):  # the server has ended, and the data are free
        assert ask(project, "hello") == "1: hello\n"


def signal_until_ended(up: RunningCommand, number: signal.Signals, pid: int) -> None:
    """Send a signal to the parent until its child has ended. The child may get one before it has begun to stop."""
    deadline = time.monotonic() + TIMEOUT_S
    while not has_ended(pid, 0.5):
        assert time.monotonic() < deadline, "the child goes on"
        up.process.send_signal(number)


@on_one_server
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)])
def test_a_second_signal_stops_at_once(project: Path, number: signal.Signals) -> None:
    with run_in_background("up", "--reload", cwd=project, until="^Ready") as up:
        pid = json.loads((project / "data" / "run.json").read_text())["pid"]
        with run_in_background("ask", "version", "wait", cwd=project, until=""):
            wait_for_file(project / "waiting")  # the turn goes on when `ask` is killed
        up.process.send_signal(number)
        up.wait_for("^Stopping")
        signal_until_ended(up, number, pid)
        assert up.process.wait(TIMEOUT_S) == 130, "it was 0, as after an orderly stop"
        with lock_directory(project / "data"):
            pass


@pytest.mark.release
@on_one_server
def test_after_a_signal_no_new_code_starts(project: Path) -> None:
    (project / "version.py").write_text(AGENT_WITH_PROCESS)
    with run_in_background("up", "--reload", cwd=project, until="^Ready") as up, ThreadPoolExecutor() as threads:
        asked = threads.submit(ask, project, "wait")
        wait_for_file(project / "waiting")
        (project / "version.py").write_text(AGENT_WITH_PROCESS.replace("VERSION = 1", "VERSION = 2"))
        wait_until((project / "process-2").is_symlink, "the new process does not come")
        pid = int(os.readlink(project / "process-2"))
        wait_until(lambda: find_state(pid) == "S", "the new process does not wait for the old one")
        up.process.send_signal(signal.SIGTERM)
        assert has_ended(pid, TIMEOUT_S), "the new process goes on"
        (project / "go").touch()
        assert asked.result() == "1: wait\n"
        up.wait_for("^Stopped\\.$")
        assert "Reloaded" not in up.output
        assert up.process.wait(TIMEOUT_S) == 0


@pytest.mark.release
@on_one_server
def test_a_reload_takes_at_most_three_times_a_cold_start(project: Path) -> None:
    cold_s = []
    for _ in range(3):
        began_at = time.monotonic()
        with run_in_background("up", cwd=project, until="^Ready", is_cold=True) as up:
            ask(project, "hello")
            cold_s.append(time.monotonic() - began_at)
            up.stop(signal.SIGTERM)
    with run_in_background("up", "--reload", cwd=project, until="^Ready", is_cold=True) as up:
        reload_s = []
        for number in (2, 3, 4):
            began_at = time.monotonic()
            set_version(project, number)
            up.wait_for("^Reloaded")
            up.output = ""
            assert ask(project, "hello") == f"{number}: hello\n"
            reload_s.append(time.monotonic() - began_at)
    assert min(reload_s) <= MAX_RATIO * max(cold_s)


@on_one_server
def test_without_watchfiles_the_error_names_the_package(project: Path) -> None:
    hidden = project / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.modules['watchfiles'] = None\n")
    done = run_command("up", "--reload", cwd=project, env={"PYTHONPATH": f"{hidden}:{os.environ.get('PYTHONPATH', '')}"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: --reload needs watchfiles: {install_hint('reload')}\n"
