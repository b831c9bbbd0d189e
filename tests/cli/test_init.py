"""A new project runs as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.support.program import run_in_background, run_pytest
from tests.support.wait import TIMEOUT_S


@pytest.fixture
def project(invoke: Invoke) -> Path:
    assert invoke("init", "town", "--name", "climate").exit_code == 0
    return Path("town").absolute()


def test_a_new_project_has_an_agent_its_configuration_and_its_test(
    project: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert files == {
        "climate.py",
        "config/platform.yaml",
        "tests/test_climate.py",
        "README.md",
        "pytest.ini",
        ".gitignore",
    }
    code = [line for line in (project / "climate.py").read_text().splitlines() if line and not line.startswith('"""')]
    assert len(code) <= 10
    checked = invoke("--project", str(project), "check")
    assert checked.exit_code == 0, checked.output
    assert "climate:climate (climate 0.1.0)" in checked.stdout


def test_the_test_of_a_new_project_passes(project: Path) -> None:
    done = run_pytest(cwd=project)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_new_project_starts_and_answers(project: Path) -> None:
    with run_in_background("up", cwd=project, until="^Ready") as up:
        assert "climate@localhost   Knows the weather" in up.output
        assert up.run_command("ask", "climate", "Berlin").stdout == "It is sunny in **Berlin**.\n"
        assert up.stop()[0] == 0


def test_with_llm_its_agent_has_a_language_model_and_its_test_needs_none(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = invoke("init", "town", "--llm", "--name", "town_guide")
    assert made.exit_code == 0
    assert "export OPENAI_API_KEY=…" in made.stdout
    assert "ask town_guide@localhost 'How is the weather in Berlin?'" in made.stdout
    code = Path("town/town_guide.py").read_text().partition("class TownGuide(LLMAgent)")[2].splitlines()
    assert len([line for line in code if line]) <= 4
    done = run_pytest(cwd=Path("town"))
    assert "2 passed" in done.stdout, done.stdout
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = invoke("--project", "town", "check")
    assert refused.exit_code == 2
    assert (
        "agents[0].options.endpoint: no server of a language model is named; set OPENAI_BASE_URL or OPENAI_API_KEY"
        in refused.stdout
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    checked = invoke("--project", "town", "check")
    assert checked.exit_code == 0, checked.output
    assert "town_guide:TownGuide (TownGuide 0.1.0)" in checked.stdout
    assert "the language model at http://127.0.0.1:9/v1: cannot be reached" in checked.stdout


@pytest.mark.parametrize(
    ("directory", "module", "account", "option"),
    [
        ("my-bot", "my_bot", "my-bot", ()),
        ("Weather.Bot 2", "weather_bot_2", "weather-bot-2", ("--llm",)),
        ("snake_case", "snake_case", "snake_case", ()),
        ("Wetter ü", "wetter_u", "wetter-u", ("--llm",)),
        ("日本", "my_agent", "my-agent", ()),
        ("9 lives", "agent_9_lives", "agent-9-lives", ("--llm",)),
        ("class", "class_agent", "class-agent", ()),
        ("none", "none_agent", "none-agent", ("--llm",)),
        ("json", "json_agent", "json-agent", ()),
        ("click", "click_agent", "click-agent", ("--llm",)),
        ("spade", "spade_agent", "spade-agent", ()),
        ("x" * 200, "x" * 40, "x" * 40, ("--llm",)),
        (".", "here_i_am", "here-i-am", ()),
    ],
)
def test_the_agent_is_named_after_its_directory(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, directory: str, module: str, account: str, option: tuple[str, ...]
) -> None:
    Path("here I am").mkdir()
    monkeypatch.chdir("here I am")
    made = invoke("init", directory, *option)
    assert made.exit_code == 0, made.output
    assert f"is ready: the agent {account}@localhost is in {module}.py." in made.stdout
    for file in (f"{module}.py", f"tests/test_{module}.py"):
        compile((Path(directory) / file).read_text(), file, "exec")
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    checked = invoke("--project", directory, "check")
    assert checked.exit_code == 0, checked.output
    assert f"{account}@localhost" in checked.stdout


@pytest.mark.parametrize("directory", ["my agents", "-o x", "it's; ls", "$HOME"])
def test_the_printed_commands_can_be_pasted_into_a_shell(invoke: Invoke, directory: str) -> None:
    made = invoke("init", "--llm", "--", directory)
    commands = [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")]
    assert len(commands) == 4
    script = "\n".join(["set -e", "spade-coreason() { printf '<%s>' \"$@\"; pwd; }", *commands])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    up, ask = done.stdout.splitlines()
    assert up == f"<up>{Path(directory).absolute()}"
    assert ask.startswith("<ask><")
    assert "@localhost><How is the weather in Berlin?>" in ask


def test_no_generated_file_sends_anybody_to_a_package_index(invoke: Invoke) -> None:
    for option in ((), ("--llm",)):
        invoke("init", f"town{len(option)}", *option)
    lines = [line for file in Path().rglob("*") if file.is_file() for line in file.read_text().splitlines()]
    installing = [line.strip() for line in lines if "pip install" in line]
    assert installing == [
        "pip install '/path/to/the/checkout[llm]'",
        "pip install --no-index --find-links wheels 'spade-coreason[llm]'",
    ]


def test_a_directory_that_is_not_empty_is_left_alone(invoke: Invoke) -> None:
    Path("full").mkdir()
    Path("full/thing").touch()
    refused = invoke("init", "full")
    assert refused.exit_code == 2
    assert refused.stderr == "error: full: is not empty; name a directory that is empty or does not exist\n"
    assert [path.name for path in Path("full").iterdir()] == ["thing"]


@pytest.mark.parametrize("name", ["has-dash", "Upper", "class", "json", "spade", "1st", "wetter_ü"])
def test_a_name_that_cannot_be_a_module_is_refused(invoke: Invoke, name: str) -> None:
    refused = invoke("init", "new", "--name", name)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f'error: --name: "{name}"')
    assert not Path("new").exists()
