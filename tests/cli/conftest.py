"""Fixtures of the commands' tests."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spade_coreason.cli.app import cli
from tests.support.program import RunningCommand, run_in_background, write_project
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require

NOTES, ECHO = "notes@localhost", "echo@localhost"

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Run a command in this process, in an empty project: `invoke("check", "-c", "some.yaml")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    root, loggers = logging.getLogger(), [logging.getLogger(name) for name in ("", "spade_coreason", "alembic")]
    handlers, levels = root.handlers[:], [logger.level for logger in loggers]
    yield lambda *arguments, stdin=None: CliRunner().invoke(cli, arguments, input=stdin)
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def project(tmp_path: Path, invoke: Invoke) -> Invoke:
    """Run commands in a project with two agents. Nothing is stored, and no platform runs."""
    agents = [
        {"jid": NOTES, "agent": "spade_coreason.agents.notes:NotesAgent"},
        {"jid": ECHO, "agent": "spade_coreason.agents.echo:EchoAgent"},
    ]
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "platform.yaml").write_text(json.dumps({"data_dir": str(tmp_path / "data"), "agents": agents}))
    return invoke


@pytest.fixture
def invoke_beside_platform(platform: RunningCommand, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process, in the directory of a running platform."""
    monkeypatch.chdir(platform.cwd)
    return invoke


@pytest.fixture(scope="session", params=["prosody", "embedded"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCommand]:
    """`spade-coreason up` with three agents, on a managed Prosody and on the embedded server."""
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
    project = write_project(tmp_path_factory.mktemp(f"up-{request.param}") / "project", request.param)
    moody_error = "moody@localhost: incident"  # some tests make it raise
    with run_in_background("up", cwd=project, until=r"^Ready", may_log=[moody_error]) as up:
        yield up
