"""The measurements run; what they measure is for `make bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.servers import prosody
from tests.servers.requirements import require

ROOT = Path(__file__).parents[1]


def test_a_quick_run_measures_every_agent_beside_the_others(tmp_path: Path) -> None:
    require("Prosody", prosody.installed())
    figures = tmp_path / "figures.json"
    arguments = ["-m", "benchmarks", "--quick", "--only", "prosody", "--json", str(figures)]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())["measured"]["prosody"]
    assert set(measured) == {"slixmpp", "SPADE", "hosted", "hosted, durability normal"}
    assert all(value > 0 for figure in measured.values() for value in figure.values())
    assert "answers/s against slixmpp" in done.stdout
