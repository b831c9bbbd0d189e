"""Fixtures of the commands' tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spade_coreason.cli.app import cli

from ..support.program import Running, running, write_project
from ..support.servers import prosody as prosody_server
from ..support.servers.requirements import require

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Runs a command in this process, in an empty project: `invoke("check", "-c", "some.yaml")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    root, ours = logging.getLogger(), logging.getLogger("spade_coreason")
    before = root.handlers[:], root.level, ours.level
    yield lambda *arguments, stdin=None: CliRunner().invoke(cli, arguments, input=stdin)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def beside(platform: Running, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in this process, in the directory of a running platform."""
    monkeypatch.chdir(platform.cwd)
    return invoke


@pytest.fixture(scope="session", params=["prosody", "embedded"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`spade-coreason up` with three agents, on a managed Prosody and on the embedded server."""
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
    project = write_project(tmp_path_factory.mktemp(f"up-{request.param}") / "project", request.param)
    raised = "moody@localhost: incident"  # some tests ask for it
    with running("up", cwd=project, until=r"^Ready", may_log=[raised]) as up:
        yield up
