"""`up`, `run` and `demo` as programs: started, asked, stopped."""

from __future__ import annotations

import json
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.program import MOODY_AGENT_SOURCE, run_command, run_in_background, write_project
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal
from tests.support.wait import TIMEOUT_S

STOPPED = "Stopping: answers in progress are finished first. Press Ctrl-C again to stop at once.\nStopped.\n"
ECHO = "spade_coreason.agents.echo:EchoAgent"
NOTES = "spade_coreason.agents.notes:NotesAgent"
WEATHER = """
from spade_coreason import agent

@agent(description="Knows the weather")
async def weather(request, session, response):
    await response.markdown(f"It is sunny in **{request.payload['query']}**.")
"""


@pytest.fixture(params=["prosody", "embedded"])
def server_env(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment for a local server of each kind."""
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
    return {"SPADE_COREASON_SERVER__MODE": request.param}


def test_run_says_how_to_ask_and_stops_with_0(tmp_path: Path, server_env: dict[str, str]) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    with run_in_background("run", "weather:weather", cwd=tmp_path, env=server_env, until=r'"Hello"\n') as run:
        kind = server_env["SPADE_COREASON_SERVER__MODE"]
        greeting = rf"weather@localhost is online \({kind} server, 127\.0\.0\.1:\d+\)\.\nAsk it from another terminal:\n  "
        assert re.match(greeting + 'spade-coreason ask weather@localhost "Hello"\n', run.output)
        assert run.run_command("ask", "weather@localhost", "Berlin").stdout == "It is sunny in **Berlin**.\n"
        code, out, err = run.stop()
        assert (code, out.lstrip()) == (0, STOPPED)
        assert "Traceback" not in err


def test_several_agents_run_together(tmp_path: Path, server_env: dict[str, str]) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    until = r'"Hello" --data own\n'
    command = ("run", "weather:weather", "moody:MoodyAgent", NOTES, "--data", "own")
    with run_in_background(*command, cwd=tmp_path, env=server_env, until=until) as run:
        assert run.output.startswith("weather@localhost, moody@localhost and notes@localhost are online (")
        assert "Ask one of them from another terminal:\n  spade-coreason ask weather@localhost " in run.output
        assert run.run_command("ask", "weather", "Berlin", "--data", "own").stdout == "It is sunny in **Berlin**.\n"
        assert run.run_command("ask", "moody", "hello", "--data", "own").returncode == 0
        refused = run.run_command("run", "weather:weather", ECHO, "--data", "own")
        together = f"spade-coreason run weather:weather moody:MoodyAgent {NOTES} {ECHO} --data own"
        assert refused.returncode == 2
        assert f"in use by process {run.process.pid}; stop it, and run all agents together: {together};" in refused.stderr


def test_run_names_the_configuration_of_the_platform_that_uses_the_data(tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    write_project(tmp_path, "auto")
    with run_in_background("up", cwd=tmp_path, until="Ready") as run:
        refused = run.run_command("run", "weather:weather")
        assert refused.returncode == 2
        assert "; add weather:weather to `agents` in config/platform.yaml, and restart the platform; or name" in refused.stderr


@pytest.mark.parametrize("options", [[], pytest.param(["--reload"], marks=pytest.mark.release)])
def test_run_shows_the_traceback_of_an_exception(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    command = ("run", "moody:MoodyAgent", *options)
    with run_in_background(*command, cwd=tmp_path, until="Hello", errors=["moody@localhost: incident"]) as run:
        assert run.run_command("ask", "moody@localhost", "raise").returncode == 1
        _, _, err = run.stop()
        expected = (
            r"^error: moody@localhost: incident \w{8}\n"
            r"Traceback \(most recent call last\):\n"
            rf'  File "{tmp_path}/moody\.py", line \d+, in MoodyAgent\.assist\n'
            r'    raise ValueError\("a secret of the person"\)\n'
            r"ValueError: a secret of the person$"
        )
        assert re.search(expected, err, re.MULTILINE), err


def test_sigterm_stops_with_0_too_and_the_run_file_is_gone(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    command = ("run", "moody:MoodyAgent", "--option", "sleep_s=0.5", "--jid", "grump@localhost", "--data", "d")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json.part").touch(0o644)  # a crash may leave one, and others may have touched it
    with run_in_background(*command, cwd=tmp_path, until="spade-coreason ask") as run:
        assert (tmp_path / "d" / "run.json").stat().st_mode & 0o777 == 0o600
        assert run.output.splitlines()[-1].endswith("--data d")
        code, out, _ = run.stop(signal.SIGTERM)
        assert (code, out.lstrip()) == (0, STOPPED)
    assert not (tmp_path / "d" / "run.json").exists()


def test_threads_that_an_agent_started_do_not_keep_the_process_alive(tmp_path: Path) -> None:
    (tmp_path / "clingy.py").write_text(
        """import asyncio, threading, time


class Clingy:
    def __init__(self, manifest):
        self.manifest = manifest

    async def assist(self, request, session, response):
        threading.Thread(target=time.sleep, args=(3600,)).start()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        await response.markdown("begun")

    async def shutdown(self):
        raise asyncio.CancelledError
"""
    )
    errors = ["shutdown() of Clingy failed"]
    with run_in_background("run", "clingy:Clingy", cwd=tmp_path, until="is online", errors=errors) as run:
        assert run.run_command("ask", "clingy", "hi").stdout == "begun\n"
        code, _, err = run.stop(signal.SIGTERM)
    assert code == 0
    assert "shutdown() of Clingy failed" in err
    assert "Threads of an agent were still running" in err


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY_AGENT_SOURCE)
    env = {"SPADE_COREASON_LIMITS__GRACE_S": "60"}
    with run_in_background("run", "moody:MoodyAgent", cwd=tmp_path, env=env, until="spade-coreason ask") as run:
        with run_in_background("ask", "moody", "yawn", cwd=tmp_path, until="^Well,"):  # then it sleeps for an hour
            pass
        run.process.send_signal(signal.SIGINT)
        run.wait_for("Stopping")
        code, _, err = run.stop()
        assert code == 130
        assert "resumed at the next start" in err


def test_the_demo_by_itself_streams_remembers_relays_and_restarts(tmp_path: Path, server_env: dict[str, str]) -> None:
    done = run_command("demo", cwd=tmp_path, env=server_env, timeout_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("✓ right") == 8
    assert "in 8 pieces" in done.stdout
    assert done.stdout.index("A restart") < done.stdout.rindex("You told me")
    assert "Model         none: a script stands in for it. For a real one set OPENAI_API_KEY" in done.stdout
    assert "I will remember" in done.stdout
    assert done.stdout.count("I am a script that plays a language model") == 1
    assert done.stdout.endswith("All 8 answers were right.\n")


def test_the_demo_uses_the_language_model_of_the_environment(tmp_path: Path) -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_MODEL": "small"}
    terminal = Terminal("demo", cwd=tmp_path, env=env)
    try:
        terminal.wait_for("Model         small, asked by assistant.*notes ▸")
        terminal.type("/to assistant\r")
        terminal.wait_for_prompt("assistant")
        terminal.type("hello\r")
        terminal.wait_for("My language model cannot be reached")
    finally:
        terminal.close()


def test_sigterm_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    with run_in_background("demo", cwd=tmp_path, until="echo ▸ ") as demo:
        code, _, err = demo.stop(signal.SIGTERM)
    assert (code, err) == (130, "")
    assert not (tmp_path / "data" / "run.json").exists()


def test_the_demo_ends_with_1_if_an_answer_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    agents = [
        f"  - {{jid: {name}@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}}"
        for name in ("echo", "notes", "relay", "assistant")
    ]
    (tmp_path / "config" / "demo.yaml").write_text("agents:\n" + "\n".join(agents))
    done = run_command("demo", cwd=tmp_path, timeout_s=90)
    assert done.returncode == 1
    assert "✗ wrong" in done.stdout
    assert "of 6 answers were right" in done.stdout  # another agent of the name assistant is none with a language model
    assert "Traceback" not in done.stderr


def test_the_demo_in_a_terminal_is_a_chat(tmp_path: Path) -> None:
    terminal = Terminal("demo", cwd=tmp_path, env={"SPADE_COREASON_SERVER__MODE": "embedded"})
    try:
        terminal.wait_for("You are       guest@localhost.  Tab switches agents, /help shows more, Ctrl-D quits.*notes ▸")
        terminal.type("my plane leaves on Friday at 7\r")
        terminal.wait_for('I\'ll remember: "my plane leaves on Friday at 7".*notes ▸')
        terminal.type("\t")
        terminal.wait_for("relay")
        terminal.type("hello\r")
        terminal.wait_for("echo: hello.*relay ▸")
        terminal.type("/to assistant\r")
        terminal.wait_for_prompt("assistant")
        terminal.type("My train leaves at noon.\r")
        terminal.wait_for('  I will remember: "My train leaves at noon."\r\n.*assistant ▸')
        terminal.type("When does my train leave?\r")
        terminal.wait_for('You told me: "My train leaves at noon.".*assistant ▸')
        terminal.type("/to relay\r")
        terminal.wait_for_prompt("relay")
        terminal.type("/help\r")
        terminal.wait_for("Tab switches to the next agent.*relay ▸")
        terminal.type("\x04")
        terminal.wait_for("Stopped. Your notes are stored in data/; run the demo again and ask for them.")
        assert terminal.process.wait(TIMEOUT_S) == 0
    finally:
        terminal.close()


@pytest.mark.servers
def test_a_chat_without_its_server_says_that_it_waits_for_the_server(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    project = write_project(tmp_path / "project", "prosody")
    with (
        run_in_background("up", cwd=project, until=r"^Ready") as up,
        closing(Terminal("chat", "echo", cwd=project)) as terminal,
    ):
        terminal.wait_for("echo ▸")
        up.process.send_signal(signal.SIGINT)
        up.process.wait(TIMEOUT_S)
        terminal.wait_for("connection lost")
        terminal.type("hello\r")
        terminal.wait_for("waiting for the server…")
        terminal.type("\x03")
        terminal.wait_for(r"\(taken back\).*echo ▸")
    assert "waiting for echo" not in terminal.screen


def test_run_takes_the_port_of_its_local_server_and_demo_too(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    agent = "spade_coreason.agents.echo:EchoAgent"
    with run_in_background("run", agent, "--port", str(port), cwd=tmp_path, until="spade-coreason ask"):
        asked = run_command("ask", "echo", "hello", cwd=tmp_path)
        assert (asked.returncode, asked.stdout) == (0, "hello\n")
        assert json.loads((tmp_path / "data" / "run.json").read_text())["port"] == port
        (tmp_path / "config").mkdir()
        names = ("echo", "notes", "relay")
        agents = ", ".join(f"{{jid: {name}@localhost, agent: '{agent}'}}" for name in names)
        (tmp_path / "config" / "demo.yaml").write_text(f"agents: [{agents}]\n")
        demo = run_command("demo", "--port", str(port), "--data", "demo", cwd=tmp_path)
        assert demo.returncode == 4
        assert f"server.port: port {port} on 127.0.0.1 is in use" in demo.stderr
