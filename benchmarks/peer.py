"""Environments of their own for the packages that we are measured against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"


def environment(*requirements: str) -> Path | None:
    """The Python of an environment with these packages; it is made once and kept in `build/`. None if they cannot be had."""
    directory = BUILD / requirements[0].replace("==", "-")
    python, ready = directory / "bin" / "python", directory / "ready"
    if not ready.exists():
        print(f"  installing {requirements[0]} in {directory} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            print(f"  {requirements[0]} is not compared: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        ready.touch()
    return python
