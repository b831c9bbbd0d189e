"""The wheel that people install, also the one that is built from the source distribution."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.archives import unpack

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("dist")
    _build(ROOT, directory / "direct")
    _run("hatchling", "build", "-t", "sdist", "-d", str(directory), cwd=ROOT)
    [sdist] = directory.glob("*.tar.gz")
    (directory / "source").mkdir()
    unpack(sdist, directory / "source")
    [source] = (directory / "source").iterdir()
    _build(source, directory / "from-sdist")
    return {way: next((directory / way).glob("*.whl")) for way in ("direct", "from-sdist")}


def _build(source: Path, directory: Path) -> None:
    _run("hatchling", "build", "-t", "wheel", "-d", str(directory), cwd=source)


def _run(*module: str, cwd: Path) -> None:
    done = subprocess.run([sys.executable, "-m", *module], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.release
@pytest.mark.parametrize("way", ["direct", "from-sdist"])
def test_the_ready_made_agents_are_in_the_wheel_and_are_no_package_agents(wheels: dict[str, Path], way: str) -> None:
    with zipfile.ZipFile(wheels[way]) as wheel:
        names = set(wheel.namelist())
        for agent in ("echo", "notes", "relay"):
            assert wheel.read(f"spade_coreason/agents/{agent}.py") == (ROOT / "agents" / f"{agent}.py").read_bytes()
    assert {name.split("/")[0] for name in names} == {"spade_coreason", "spade_coreason-0.1.0.dist-info"}


@pytest.mark.release
@pytest.mark.parametrize("way", ["direct", "from-sdist"])
def test_types_and_migrations_are_in_the_wheel(wheels: dict[str, Path], way: str) -> None:
    with zipfile.ZipFile(wheels[way]) as wheel:
        names = set(wheel.namelist())
    assert "spade_coreason/py.typed" in names
    assert "spade_coreason/storage/migrations/env.py" in names
    assert "spade_coreason/storage/migrations/versions/0031_first.py" in names
    assert "spade_coreason-0.1.0.dist-info/licenses/LICENSE" in names


@pytest.mark.release
@pytest.mark.parametrize("way", ["direct", "from-sdist"])
def test_the_files_of_the_page_are_in_the_wheel(wheels: dict[str, Path], way: str) -> None:
    suffixes = {".css", ".html", ".js", ".svg"}
    page = [path for path in (ROOT / "spade_coreason" / "doors" / "page").rglob("*") if path.suffix in suffixes]
    with zipfile.ZipFile(wheels[way]) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if Path(name).suffix in suffixes}
    assert {path.suffix for path in page} == suffixes
    assert files == {str(path.relative_to(ROOT)): path.read_bytes() for path in page}


def test_no_requirement_has_a_copyleft_licence() -> None:
    seen: set[str] = set()
    pending = ["spade-coreason"]
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name.lower())
        metadata = distribution(name).metadata
        stated = [*(metadata.get_all("License-Expression") or ()), *(text[:80] for text in metadata.get_all("License") or ())]
        licences = " ".join([*stated, *(c for c in metadata.get_all("Classifier") or () if c.startswith("License"))])
        assert "AGPL" not in licences, name
        assert "GPL" not in licences.replace("LGPL", ""), name
    assert "spade" in seen
    assert "slixmpp" not in seen  # SPADE brings its own build; both in one environment break each other


def test_make_lists_its_targets() -> None:
    [phony] = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    output = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT)], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[1] for line in output.splitlines()) == sorted({*phony.split()[1:]} - {"help"})
