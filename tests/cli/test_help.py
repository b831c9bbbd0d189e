"""The commands explain themselves, quickly."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import click
import pytest

from spade_coreason import __version__
from spade_coreason.cli.app import COMMANDS, cli
from tests.cli.conftest import Invoke
from tests.support.wait import TIMEOUT_S

HEAVY = {"spade", "slixmpp", "sqlalchemy", "rich", "prompt_toolkit", "aiosqlite", "asyncpg"}
NEEDED = {"click", "lazy_loader", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
CONTEXT = click.Context(cli)
PRINT_MODULES = """
import json, sys
from spade_coreason.cli import main
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def commands() -> list[tuple[str, click.Command]]:
    """List every command that does something, subcommands included."""
    found = []
    for name in COMMANDS:
        command = cli.get_command(CONTEXT, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", each) for inner, each in command.commands.items()]
        else:
            found.append((name, command))
    return found


def test_help_lists_every_command_and_needs_no_spade(invoke: Invoke) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES, "--help"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    loaded = json.loads(result.stderr)
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    for name, summary in COMMANDS.items():
        assert name in result.stdout
        assert summary.split()[0] in result.stdout


@pytest.mark.parametrize("line", ["ask w", "sessions list --agent w", "sessions show x"])
def test_completing_needs_no_spade(line: str) -> None:
    env = {
        "_SPADE_COREASON_COMPLETE": "bash_complete",
        "COMP_WORDS": f"spade-coreason {line}",
        "COMP_CWORD": str(line.count(" ") + 1),
    }
    result = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert not HEAVY & {name.partition(".")[0] for name in json.loads(result.stderr)}


def test_help_loads_what_it_needs_and_no_more() -> None:
    bare = set(loaded_modules("import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"))
    loaded = [name for name in loaded_modules(PRINT_MODULES) if name not in bare]
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"spade_coreason"}
    assert {name for name in others if not name.startswith("_")} <= NEEDED
    assert len([name for name in loaded if name.startswith("spade_coreason")]) < 40
    assert len(loaded) < 400


def test_help_takes_little_more_than_what_it_imports() -> None:
    assert measure_cpu_s(PRINT_MODULES) < 3 * measure_cpu_s("import click, pydantic, json, logging, asyncio")


def loaded_modules(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    loaded: list[str] = json.loads(done.stderr)
    return loaded


def measure_cpu_s(program: str) -> float:
    """Measure the CPU seconds of a program with `--help`, the best of three runs; other load does not change it."""
    durations = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        durations.append(usage.ru_utime + usage.ru_stime)
    return min(durations)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_sentence_in_the_list_is_the_commands_own(name: str) -> None:
    command = cli.get_command(CONTEXT, name)
    assert command is not None
    assert command.get_short_help_str(300).rstrip(".") == COMMANDS[name].rstrip(".")


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_command_shows_an_example_and_explains_its_options(name: str, command: click.Command) -> None:
    assert f"  spade-coreason {name}" in (command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts}"
        elif isinstance(parameter, click.Argument):
            assert str(parameter.metavar or parameter.name).strip("[].").upper() in (command.help or "").upper()


def test_the_version_is_shown(invoke: Invoke) -> None:
    assert invoke("--version").output == f"spade-coreason {__version__}\n"


def test_the_package_is_the_command_too() -> None:
    result = subprocess.run([sys.executable, "-m", "spade_coreason", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"spade-coreason {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_completion(invoke: Invoke, shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_SPADE_COREASON_COMPLETE" in result.output


def test_completion_knows_the_commands(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SPADE_COREASON_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "1")
    for prefix, command in (("conv", "conversations"), ("st", "status")):
        monkeypatch.setenv("COMP_WORDS", f"spade-coreason {prefix}")
        assert command in invoke().output


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["ask"],
        ["ask", "echo@localhost", "hi", "--timeout", "soon"],
        ["ask", "echo@localhost", "hi", "there"],
        ["check", "all"],
        ["up", "--frobnicate"],
        ["sessions", "x"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(invoke: Invoke, arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert re.search(r"[.?] See spade-coreason.* --help$", result.stderr)


@pytest.mark.parametrize("group", [[], ["sessions"], ["memory"]])
def test_without_a_command_the_help_is_shown_with_exit_code_2(invoke: Invoke, group: list[str]) -> None:
    result = invoke(*group)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == invoke(*group, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["chekc"], 'There is no command "chekc"; did you mean "check"?'),
        (["asks", "weather", "Rome"], 'did you mean "ask"?'),
        (["sesions"], 'did you mean "sessions"?'),
        (["memory", "lits"], 'did you mean "list"?'),
        (["memory", "frobnicate"], "the commands are clear, compact, export, import, list, show."),
        (["ask", "weather", "New", "York"], "TEXT is one argument; quote it: weather 'New York'."),
    ],
)
def test_wrong_usage_says_what_may_be_meant(invoke: Invoke, arguments: list[str], hint: str) -> None:
    assert hint in invoke(*arguments).stderr
