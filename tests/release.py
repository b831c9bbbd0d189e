"""`make release`: builds and tries the wheel, the source distribution and the image, each with its SBOM, and publishes nothing.

All files come from the commit, not from the directory, and the same commit gives the same bytes. The packages are those that
pip finds today. `docker/constraints.txt` pins them in the context of the image, so that its SBOM names what it has.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
CONSTRAINTS = "docker/constraints.txt"
CONTEXT = (f":(exclude){CONSTRAINTS}", "LICENSE", "README.md", "agents", "docker", "pyproject.toml", "spade_coreason")
IMAGE = "spade-coreason"


@dataclass(frozen=True, slots=True)
class ReleaseCommit:
    """The commit that is released."""

    root: Path
    version: str
    time_s: str
    """The time of the commit in seconds since 1970, or that of SOURCE_DATE_EPOCH."""

    @classmethod
    def read(cls, root: Path, environment: Mapping[str, str] = os.environ) -> ReleaseCommit:
        """Read the commit that is checked out in a directory."""
        project = tomllib.loads(run("git", "show", "HEAD:pyproject.toml", cwd=root))["project"]
        time_s = environment.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct", cwd=root).strip()
        return cls(root, project["version"], time_s)

    def find_mistakes(self) -> list[str]:
        """Return why the commit must not be published, each with the remedy."""
        mistakes = []
        if run("git", "status", "--porcelain", cwd=self.root):
            mistakes.append("files are changed or new: commit them, or move them away")
        if f"v{self.version}" not in run("git", "tag", "--points-at", "HEAD", cwd=self.root).split():
            mistakes.append(f"the commit has no tag v{self.version}: git tag -s v{self.version}")
        module = self.show("spade_coreason/_version.py")
        if f'"{self.version}"' not in module:
            mistakes.append(f"spade_coreason/_version.py is not at {self.version}, the version of pyproject.toml: correct one")
        [newest] = re.findall(r"^## (.*)$", self.show("CHANGELOG.md"), re.M)[:1]
        if not re.fullmatch(rf"{re.escape(self.version)} - \d{{4}}-\d\d-\d\d", newest):
            mistakes.append(f'CHANGELOG.md begins with "{newest}": write "{self.version} - YEAR-MONTH-DAY"')
        return mistakes

    def show(self, path: str) -> str:
        """Return a file of the commit."""
        return run("git", "show", f"HEAD:{path}", cwd=self.root)

    def export(self, *paths: str) -> bytes:
        """Return files of the commit as a tar archive; by default all."""
        command = ["git", "archive", "--format=tar", "HEAD", *paths]
        return subprocess.run(command, cwd=self.root, capture_output=True, check=True).stdout


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a program and return its output. SystemExit with what it says if it fails."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def build(commit: ReleaseCommit, output: Path) -> list[Path]:
    """Build all files, try the wheel, and return them. The directory must be empty or not exist. It takes some minutes."""
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise SystemExit(f"error: {output} is not empty: remove it first")
    name = f"spade-coreason-{commit.version}"
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        wheel = build_distributions(commit, work, output)
        venv.create(work / "venv", symlinks=True)
        _describe(commit, wheel, (), work, output / f"{name}-wheel.cdx.json")
        extras = re.findall(r"^ARG EXTRAS=(.*)$", commit.show("docker/Dockerfile"), re.M)[0].split(",")
        pinned = _describe(commit, wheel, extras, work, output / f"{name}-image.cdx.json")
        pack_context(commit, pinned, output / f"{name}-image-context.tar.gz")
    return sorted(output.iterdir())


def build_distributions(commit: ReleaseCommit, work: Path, output: Path) -> Path:
    """Build the source distribution, and from that the wheel, which is returned. `work` is for temporary files."""
    _unpack(commit.export(), work / "source")
    sdist = _build_distribution(commit, "sdist", work / "source", output)
    _unpack(gzip.decompress(sdist.read_bytes()), work)
    return _build_distribution(commit, "wheel", work / sdist.name.removesuffix(".tar.gz"), output)


def _unpack(archive: bytes, directory: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="tar")


def _build_distribution(commit: ReleaseCommit, target: str, source: Path, output: Path) -> Path:
    before = set(output.iterdir())
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(output))
    run(*command, cwd=source, SOURCE_DATE_EPOCH=commit.time_s)
    [built] = set(output.iterdir()) - before
    return built


def _describe(commit: ReleaseCommit, wheel: Path, extras: Sequence[str], work: Path, sbom: Path) -> str:
    """Install the wheel with extras into the environment, try it, write its SBOM, and return the packages for pip."""
    python = str(work / "venv" / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "-q", f"{wheel}[{','.join(extras)}]" if extras else str(wheel), cwd=work)
    run(*pip, "check", cwd=work)
    _check_version(commit, run(str(work / "venv" / "bin" / "spade-coreason"), "--version", cwd=work), "the wheel")
    options = ("--output-reproducible", "--pyproject", str(work / "source" / "pyproject.toml"), "-o", str(sbom))
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, python, cwd=work, SOURCE_DATE_EPOCH=commit.time_s)
    return run(*pip, "freeze", "--exclude", IMAGE, cwd=work)


def pack_context(commit: ReleaseCommit, pinned: str, file: Path) -> None:
    """Write the files from which the image is built, with the versions of its packages."""
    context = io.BytesIO(commit.export(*CONTEXT))
    constraints = tarfile.TarInfo(CONSTRAINTS)
    constraints.size, constraints.mtime = len(pinned), int(commit.time_s)
    with tarfile.open(fileobj=context, mode="a") as files:
        files.addfile(constraints, io.BytesIO(pinned.encode()))
    file.write_bytes(gzip.compress(context.getvalue(), mtime=int(commit.time_s)))


def build_image(commit: ReleaseCommit, context: Path) -> None:
    """Build the image from its context, and try it. If there is no engine, print the command that does."""
    tag = f"{IMAGE}:{commit.version}"
    options = f"--build-arg SOURCE_DATE_EPOCH={commit.time_s} -f docker/Dockerfile -t {tag}"
    command = f"docker build {options} - < {context.name}"
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        print(f"There is no Docker engine here, so the image is not built, only its context. This builds it:\n  {command}")
    elif subprocess.run(command, shell=True, cwd=context.parent, check=False).returncode != 0:
        raise SystemExit(f"error: the image cannot be built: {command}")
    else:
        _check_version(commit, run("docker", "run", "--rm", tag, "--version", cwd=context.parent), "the image")


def _check_version(commit: ReleaseCommit, shown: str, thing: str) -> None:
    if commit.version not in shown.split():
        raise SystemExit(f"error: {thing} of {commit.version} says {shown.strip()}")


def main() -> None:
    """Build a release, and print what a maintainer publishes. Exit with 1 if the commit must not be published."""
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout of the commit")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--trial", action="store_true", help="build a commit that must not be published, too")
    options = parser.parse_args()
    commit = ReleaseCommit.read(options.root)
    mistakes = commit.find_mistakes()
    for mistake in mistakes:
        print(f"{'warning' if options.trial else 'error'}: {mistake}", file=sys.stderr)
    if mistakes and not options.trial:
        raise SystemExit(1)
    files = build(commit, options.output.absolute())
    [context] = [file for file in files if file.name.endswith("-image-context.tar.gz")]
    build_image(commit, context)
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (options.output / "SHA256SUMS").write_text(sums)
    print(sums)
    if mistakes:
        print("Built for a trial. Nothing of this is to be published.")
        return
    print(_instructions(commit, options.output))


def _instructions(commit: ReleaseCommit, output: Path) -> str:
    name = f"spade-coreason-{commit.version}"
    distribution = name.replace("-", "_", 1)
    options = f"--sbom=true --provenance=true --build-arg SOURCE_DATE_EPOCH={commit.time_s} -f docker/Dockerfile"
    return f"""Publish it, in this directory ({output}):
  git push origin v{commit.version}
  python -m twine upload {distribution}-py3-none-any.whl {distribution}.tar.gz
  docker buildx build --push {options} -t REGISTRY/{IMAGE}:{commit.version} - \\
    < {name}-image-context.tar.gz
and attach SHA256SUMS and both *.cdx.json to the release."""


if __name__ == "__main__":
    main()
