"""Every code block of the README is run, or checked for what it says."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from spade_coreason import AgentTester
from spade_coreason.runtime.commands.builtin import COMMANDS_FOR_EVERYBODY, COMMANDS_FOR_OPERATORS
from spade_coreason.runtime.commands.parser import find_command
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.support.records import AGENT, new_conversation, store_turn
from tests.support.servers import prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parents[1]
COMMAND = [str(Path(sys.executable).with_name("spade-coreason"))]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the README's Python files."""
    names = []
    for text in blocks("python"):
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text, encoding="utf-8")
        names.append(name.removesuffix(".py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def test_every_kind_of_block_is_tested_here() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "console", "yaml"}


def test_every_make_target_is_there() -> None:
    targets = [line for text in blocks("sh") for line in text.splitlines() if line.startswith("make ")]
    assert targets
    for line in targets:
        done = subprocess.run([*shlex.split(line, comments=True), "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("python", "remedy"),
    [
        ("#!/bin/sh\nexit 1\n", "python3-venv is missing: apt-get install python3-venv"),
        (None, "PYTHON is missing: apt-get install python3 python3-venv"),
    ],
    ids=["without venv", "without Python"],
)
def test_a_missing_program_of_the_set_up_is_named_in_one_line(tmp_path: Path, python: str | None, remedy: str) -> None:
    program = tmp_path / "python"
    if python is not None:
        program.write_text(python)
        program.chmod(0o755)
    arguments = ["make", "--no-print-directory", "demo", f"PYTHON={program}", f"VENV={tmp_path}/venv"]
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines() == [remedy.replace("PYTHON", str(program))]


def test_every_other_command_is_tested_here() -> None:
    commands = [line for text in blocks("sh") for line in text.splitlines() if not line.startswith("make ")]
    others = {line for line in commands if not line.startswith("spade-coreason storage ")}
    own = {"spade-coreason check -c platform.yaml", "spade-coreason up -c platform.yaml"}
    assert others == {"spade-coreason run weather:weather", *own}


def test_the_commands_for_the_storage_work_one_after_the_other(tmp_path: Path) -> None:
    async def fill() -> None:
        database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/data/platform.db")
        repository = AgentRepository(database, AGENT)
        await store_turn(repository, new_conversation(repository))
        await database.close()

    asyncio.run(fill())
    lines = [line for text in blocks("sh") for line in text.splitlines() if line.startswith("spade-coreason storage ")]
    assert len(lines) == 4
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "restored" / "platform.db").is_file()


@pytest.mark.parametrize("name", ["test_weather.py", "test_bakery.py"])
def test_the_test_of_an_agent_passes(project: Path, name: str) -> None:
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", name]
    done = subprocess.run([sys.executable, *arguments], cwd=project, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_the_class_of_the_first_page_greets(project: Path) -> None:
    greeter = import_module("greeter")
    async with AgentTester(greeter.Greeter, options={"greeting": "Good morning"}) as t:
        assert (await t.ask("hi", user="ada@localhost")).text == "Good morning ada"


async def test_the_forecast_is_a_command(project: Path) -> None:
    example = re.search(r"`(/forecast .*?)` answers \"(.*?)\"", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert example is not None
    async with AgentTester(import_module("forecast").Forecast) as t:
        assert await t.say(example[1]) == [example[2]]
        assert "- /forecast Berlin" in (await t.ask("?")).text


def test_the_commands_for_people_are_all_there_are() -> None:
    section = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Commands for people")[2].partition("An agent adds")[0]
    )
    named = {
        find_command(text, (*COMMANDS_FOR_EVERYBODY, *COMMANDS_FOR_OPERATORS)) for text in re.findall(r"`(/[^`]+)`", section)
    }
    assert {found[0] for found in named if found is not None} == {*COMMANDS_FOR_EVERYBODY, *COMMANDS_FOR_OPERATORS}


async def test_the_reporter_asks_the_weather(project: Path) -> None:
    news, weather = import_module("news"), import_module("weather")
    async with AgentTester(news.Reporter, jid="news@localhost", peers={"weather@localhost": weather.weather}) as t:
        assert (await t.ask("")).text == "It is sunny in **Berlin**.\n\nIt is sunny in **Valencia**."


async def test_the_configuration_runs_on_a_server_of_ones_own(project: Path, tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    text, _ = blocks("yaml")
    (project / "platform.yaml").write_text(text)
    with prosody_server.prosody(tmp_path / "server", other_domain="example.org") as server:
        env = {
            **os.environ,
            "SPADE_COREASON_SERVER__HOST": server.host,
            "SPADE_COREASON_SERVER__PORT": str(server.port),
            "SPADE_COREASON_SERVER__TLS__CA_FILE": str(server.ca_file),
        }
        for name in ("echo", "weather"):
            _, env[f"{name.upper()}_PASSWORD"] = await server.account(name, domain="example.org")
        check, up = [line for text in blocks("sh") for line in text.splitlines() if line.endswith(" -c platform.yaml")]
        arguments = [*COMMAND, *check.split()[1:]]
        checked = await asyncio.to_thread(
            subprocess.run, arguments, cwd=project, env=env, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        account = await server.account(domain="example.org")
        with run_command_line(project, up, env):
            async with StockClient(*account, server) as client:
                assert await client.ask("Berlin", "weather@example.org") == "It is sunny in *Berlin*."
                assert await client.ask("hello", "echo@example.org") == "hello"


@contextmanager
def run_command_line(project: Path, line: str = "", env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """`spade-coreason run weather:weather`, as the README has it, or another line of it."""
    line = line or next(text.strip() for text in blocks("sh") if "run weather" in text)
    environment = {**env, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*COMMAND, *line.split()[1:]], cwd=project, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        lines = [""]
        while not re.search("is online|Ready", lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        yield
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_two_agents_talk_on_one_local_server(project: Path) -> None:
    _, newsroom = blocks("yaml")
    (project / newsroom.partition("\n")[0].removeprefix("# ")).write_text(newsroom)
    console = next(text for text in blocks("console") if "newsroom" in text)
    start, ask, *answer = console.splitlines()
    question = ask.partition('"')[2].rstrip('"')
    with run_command_line(project, start.removeprefix("$ ").removesuffix(" &")):
        done = subprocess.run(
            [*COMMAND, "ask", "news@localhost", question], cwd=project, capture_output=True, text=True, check=False
        )
    assert (done.stdout.splitlines(), done.returncode) == (answer, 0), done.stderr


def test_the_first_agent_answers_from_another_terminal(project: Path) -> None:
    console = blocks("console")[0]
    command, _, answer = console.partition("\n")
    question = command.rpartition(" ")[2].strip('"')
    assert command == f'$ spade-coreason ask weather@localhost "{question}"'
    with run_command_line(project):
        done = subprocess.run(
            [*COMMAND, "ask", "weather@localhost", question], cwd=project, capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.returncode) == (answer, 0), done.stderr


def test_the_agent_with_a_language_model_answers_as_it_says(project: Path) -> None:
    console = next(text for text in blocks("console") if "model=script" in text)
    run, *questions = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.M)
    names = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    with run_command_line(project, run[0].removesuffix(" &"), environment):
        for line, answer in questions:
            done = subprocess.run([*COMMAND, *shlex.split(line)[1:]], cwd=project, capture_output=True, text=True, check=False)
            assert (done.stdout, done.returncode) == (answer, 0), done.stderr


def test_any_program_can_ask(project: Path) -> None:
    with run_command_line(project):
        done = subprocess.run([sys.executable, "ask.py"], cwd=project, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "It is sunny in **Berlin**.",
        "block.thought",
        "block.markdown",
        "request.completed",
    ], done.stderr
