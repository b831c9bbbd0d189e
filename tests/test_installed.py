"""The wheel in an environment of its own, used in empty directories: nothing needs a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import read_page
from tests.docs.setups import own_prosody
from tests.support.wait import TIMEOUT_S

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, which has the other packages of this one. Return its directory of programs."""
    directory = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    [wheel] = directory.glob("*.whl")
    venv.create(directory / "venv", with_pip=False, symlinks=True)
    python = directory / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, cwd=directory, capture_output=True, check=True)
    [packages] = (directory / "venv" / "lib").glob("python*/site-packages")
    # A directory that a .pth file names is searched last, and its own .pth files, such as that of a checkout, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def environment(programs: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
    return {**kept, "PATH": f"{programs}{os.pathsep}{kept['PATH']}", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def run(programs: Path, directory: Path, command: str, **more: str) -> str:
    """Run a command of the shell in a directory, and return its output."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env={**environment(programs), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def running(programs: Path, directory: Path, *arguments: str, **more: str) -> Iterator[None]:
    """Run the platform in a directory, from when its agents are online until the block ends."""
    up = subprocess.Popen(
        ["spade-coreason", *arguments],
        cwd=directory,
        env={**environment(programs), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    with up:
        try:
            assert up.stdout is not None
            assert any(line.startswith("Ready") or " is online" in line for line in up.stdout)
            yield
        finally:
            up.terminate()


def test_the_package_is_that_of_the_environment(programs: Path, tmp_path: Path) -> None:
    where = run(programs, tmp_path, "python -c 'import spade_coreason; print(spade_coreason.__file__)'")
    assert Path(where.strip()).is_relative_to(programs.parent)


def test_the_demo_runs_in_an_empty_directory(programs: Path, tmp_path: Path) -> None:
    run(programs, tmp_path, "spade-coreason demo")


def test_a_new_project_passes_its_test(programs: Path, tmp_path: Path) -> None:
    run(programs, tmp_path, "spade-coreason init sunny")
    assert "passed" in run(programs, tmp_path / "sunny", "python -m pytest -q -p no:cacheprovider")


def test_the_ready_made_agents_run_and_answer(programs: Path, tmp_path: Path) -> None:
    with running(programs, tmp_path, "run", "spade_coreason.agents.echo:EchoAgent"):
        assert run(programs, tmp_path, "spade-coreason ask echo hello") == "hello\n"


def test_the_configuration_of_the_readme_runs_on_a_server_of_ones_own(programs: Path, tmp_path: Path) -> None:
    for block in read_page(ROOT / "README.md").blocks:
        if block.title in ("weather.py", "platform.yaml"):
            (tmp_path / block.title).write_text(block.text)
    with own_prosody(tmp_path / "server", "echo", "weather", "alice") as names:
        invitation = run(programs, tmp_path, "spade-coreason invite echo -c platform.yaml", **names)
        assert invitation == "xmpp:echo@example.org?roster\n"
        assert "✓ weather@example.org" in run(programs, tmp_path, "spade-coreason check -c platform.yaml", **names)
        with running(programs, tmp_path, "up", "-c", "platform.yaml", **names):
            answer = run(
                programs,
                tmp_path,
                "spade-coreason ask weather@example.org Berlin --jid alice@example.org"
                ' --host "$XMPP_HOST" --port "$XMPP_PORT" --ca-file "$XMPP_CA_FILE"',
                **names,
                SPADE_COREASON_PASSWORD=names["ALICE_PASSWORD"],
            )
    assert answer == "It is sunny in **Berlin**.\n"
