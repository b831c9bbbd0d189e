"""Packages of npm that tests use, installed once into `build`."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.support.servers.requirements import require

BUILD = Path(__file__).parents[2] / "build"
_INSTALL_TIMEOUT_S = 240


def install_packages(wanted: Path, name: str) -> Path:
    """Install what `package.json` and its lock file in the directory `wanted` name into `build/NAME`, unless it is there."""
    require("npm", shutil.which("npm") is not None, "Debian's package `npm` enables this test")
    directory, manifest = BUILD / name, (wanted / "package.json").read_text()
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed = directory / "package.json"
        if installed.exists() and installed.read_text() == manifest and (directory / "node_modules").is_dir():
            return directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for file in ("package.json", "package-lock.json"):
            shutil.copy(wanted / file, directory)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        try:
            subprocess.run(command, cwd=directory, check=True, timeout=_INSTALL_TIMEOUT_S)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return directory
