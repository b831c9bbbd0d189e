"""`make release`: only the right commit is built, always to the same bytes, and the image gets the packages of its SBOM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.release import ReleaseCommit, build_distributions, pack_context

ROOT = Path(__file__).parents[1]
VERSION = "0.1.0"


def git(checkout: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=A maintainer", "-c", "user.email=maintainer@example.org", "-c", "tag.gpgSign=false")
    subprocess.run(["git", *identity, *arguments], cwd=checkout, capture_output=True, check=True)


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a commit that may be published: its changelog has a date, and it has a tag."""
    checkout = tmp_path / "checkout"
    git(ROOT, "clone", "-q", "--no-tags", "--shared", str(ROOT), str(checkout))  # without a copy of the objects
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(re.sub(r"^## .*$", f"## {VERSION} - 2026-12-01", changelog.read_text(), count=1, flags=re.M))
    git(checkout, "commit", "-q", "--allow-empty", "-am", "Release")
    git(checkout, "tag", f"v{VERSION}")
    return checkout


def release(checkout: Path, output: Path, *options: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.release", "--root", str(checkout), "--output", str(output), *options]
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def change_a_file(checkout: Path) -> None:
    (checkout / "new.txt").touch()


def remove_the_tag(checkout: Path) -> None:
    git(checkout, "tag", "-d", f"v{VERSION}")


def forget_the_date(checkout: Path) -> None:
    replace(checkout / "CHANGELOG.md", f"## {VERSION} - 2026-12-01", f"## {VERSION} - unreleased")
    commit_again(checkout)


def forget_the_module(checkout: Path) -> None:
    replace(checkout / "spade_coreason" / "_version.py", VERSION, "0.0.9")
    commit_again(checkout)


def commit_again(checkout: Path) -> None:
    git(checkout, "commit", "-qam", "Release again")
    git(checkout, "tag", "-f", f"v{VERSION}")


@pytest.mark.parametrize(
    ("break_it", "mistake"),
    [
        (change_a_file, "files are changed or new: commit them, or move them away"),
        (remove_the_tag, "the commit has no tag v0.1.0: git tag -s v0.1.0"),
        (forget_the_date, 'CHANGELOG.md begins with "0.1.0 - unreleased": write "0.1.0 - YEAR-MONTH-DAY"'),
        (forget_the_module, "spade_coreason/_version.py is not at 0.1.0, the version of pyproject.toml: correct one"),
    ],
)
def test_a_commit_that_must_not_be_published_is_not_built(
    checkout: Path, tmp_path: Path, break_it: Callable[[Path], None], mistake: str
) -> None:
    assert ReleaseCommit.read(checkout).find_mistakes() == []
    break_it(checkout)
    done = release(checkout, tmp_path / "dist")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {mistake}\n")
    assert not (tmp_path / "dist").exists()


@pytest.mark.release
def test_a_commit_gives_the_same_bytes_each_time(checkout: Path, tmp_path: Path) -> None:
    built = []
    for name in ("one", "two"):
        output = tmp_path / name / "dist"
        output.mkdir(parents=True)
        git(checkout, "clone", "-q", str(checkout), str(tmp_path / name / "clone"))
        change_a_file(tmp_path / name / "clone")  # only the commit counts
        commit = ReleaseCommit.read(tmp_path / name / "clone")
        build_distributions(commit, tmp_path / name / "work", output)
        pack_context(commit, "spade==4.1.4\n", output / "context.tar.gz")
        built.append({file.name: file.read_bytes() for file in output.iterdir()})
    assert built[0] == built[1]
    assert len(built[0]) == 3
    (checkout / "README.md").write_text("Another commit.")
    git(checkout, "commit", "-qam", "Another")
    pack_context(ReleaseCommit.read(checkout), "spade==4.1.4\n", tmp_path / "other.tar.gz")
    assert (tmp_path / "other.tar.gz").read_bytes() != built[0]["context.tar.gz"]


ENGINE = """#!/bin/sh
echo "$*" >> {log}
case $1 in
  build) cat > {log}.context ;;
  run) echo "spade-coreason, version {version}" ;;
esac
"""


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_a_release_has_the_files_that_its_instructions_publish(checkout: Path, tmp_path: Path) -> None:
    """The packages come from the index. The engine is a script, as there may be none on this machine."""
    log = tmp_path / "engine.log"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(ENGINE.format(log=log, version=VERSION))
    (tmp_path / "bin" / "docker").chmod(0o755)
    output = tmp_path / "dist"
    done = release(checkout, output, path=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    files = {file.name for file in output.iterdir()}
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=output, capture_output=True, check=True)
    assert set(re.findall(r"  (\S+)$", (output / "SHA256SUMS").read_text(), re.M)) == files - {"SHA256SUMS"}
    named = set(re.findall(r"spade.coreason-0\.1\.0\S*\.(?:whl|gz|json)", done.stdout))
    assert named == files - {"SHA256SUMS"}

    # The SBOM of the image names the packages that its context pins. The wheel alone needs some of them.
    with tarfile.open(output / f"spade-coreason-{VERSION}-image-context.tar.gz") as context:
        pins = context.extractfile("docker/constraints.txt")
        assert pins is not None
        pinned = dict(line.split("==") for line in pins.read().decode().splitlines())
        for source in ("pyproject.toml", "docker/Dockerfile", "agents/echo.py", "spade_coreason/cli/app.py"):
            assert context.getmember(source).mtime == int(ReleaseCommit.read(checkout).time_s)
    wheel, image = (read_components(output / f"spade-coreason-{VERSION}-{kind}.cdx.json") for kind in ("wheel", "image"))
    assert image == pinned
    assert wheel.items() < image.items()
    assert image["openai"]
    assert "openai" not in wheel

    # The engine builds it from the context, at the time of the commit, and runs it.
    info, build, run = log.read_text().splitlines()
    assert info == "info"
    assert (
        f"SOURCE_DATE_EPOCH={ReleaseCommit.read(checkout).time_s} -f docker/Dockerfile -t spade-coreason:{VERSION} -" in build
    )
    assert run == f"run --rm spade-coreason:{VERSION} --version"
    built_from = Path(f"{log}.context").read_bytes()
    assert built_from == (output / f"spade-coreason-{VERSION}-image-context.tar.gz").read_bytes()


def read_components(sbom: Path) -> dict[str, str]:
    fields = json.loads(sbom.read_text())
    assert fields["bomFormat"] == "CycloneDX"
    return {component["name"]: component["version"] for component in fields["components"]}
