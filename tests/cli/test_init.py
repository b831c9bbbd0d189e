"""A new project runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.support.program import clean_environment, run_in_background
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
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_new_project_starts_and_answers(project: Path) -> None:
    with run_in_background("up", cwd=project, env={"SPADE_COREASON_SERVER__MODE": "embedded"}, until="^Ready") as up:
        assert "climate@localhost   Knows the weather" in up.output
        assert up.run_command("ask", "climate", "Berlin").stdout == "It is sunny in **Berlin**.\n"
        assert up.stop()[0] == 0


def test_with_llm_its_agent_has_a_language_model_and_its_test_needs_none(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = invoke("init", "town", "--llm", "--name", "town_guide")
    assert made.exit_code == 0
    assert "export OPENAI_API_KEY=…" in made.stdout
    assert 'ask town_guide@localhost "How is the weather in Berlin?"' in made.stdout
    code = Path("town/town_guide.py").read_text().partition("class TownGuide(LLMAgent)")[2].splitlines()
    assert len([line for line in code if line]) <= 4
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd="town",
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = invoke("--project", "town", "check")
    assert refused.exit_code == 2
    assert "agents[0].options.endpoint: no language model is named; set OPENAI_BASE_URL or OPENAI_API_KEY" in refused.stdout
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    checked = invoke("--project", "town", "check")
    assert checked.exit_code == 0, checked.output
    assert "town_guide:TownGuide (TownGuide 0.1.0)" in checked.stdout
    assert "the language model at http://127.0.0.1:9/v1: cannot be reached" in checked.stdout


def test_a_directory_that_is_not_empty_is_left_alone(invoke: Invoke) -> None:
    Path("full").mkdir()
    Path("full/thing").touch()
    refused = invoke("init", "full")
    assert refused.exit_code == 2
    assert refused.stderr == "error: full: is not empty; name a new directory\n"
    assert [path.name for path in Path("full").iterdir()] == ["thing"]


@pytest.mark.parametrize("name", ["has-dash", "Upper", "class", "json", "spade", "1st", "wetter_ü"])
def test_a_name_that_cannot_be_a_module_is_refused(invoke: Invoke, name: str) -> None:
    refused = invoke("init", "new", "--name", name)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f'error: --name: "{name}"')
    assert not Path("new").exists()
