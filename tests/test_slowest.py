"""A run of the tests says which were the slowest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slowest import describe_slowest
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parent.parent


def test_the_slowest_tests_come_first_and_their_sum_last() -> None:
    assert describe_slowest({"a": 0.5, "b": 20.0, "c": 3.25, "d": 0.25}, 2) == [
        "   20.0 s  b",
        "    3.2 s  c",
        "   23.2 s  these 2 together, of 24.0 s that all 4 took",
    ]


@pytest.mark.parametrize("processes", [[], ["-p", "xdist.plugin", "-n", "1"]], ids=["one process", "two processes"])
def test_a_run_prints_its_slowest_tests(tmp_path: Path, processes: list[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(): assert False\ndef test_three(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.slowest", "-p", "no:cacheprovider", *processes]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plugins take most of the time
    done = subprocess.run(
        [*command, "--slowest", "2", str(tmp_path)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert len(re.findall(r"^ +\d+\.\d s  test_it\.py::test_\w+$", done.stdout, re.M)) == 2, done.stdout
    assert re.search(r"^ +\d+\.\d s  these 2 together, of \d+\.\d s that all 3 took$", done.stdout, re.M), done.stdout


@pytest.mark.parametrize(
    ("target", "marks"),
    [
        ("test", ["not release and not servers"]),
        ("test-all", ["not release and not servers", "servers and not release", "release"]),
    ],
)
def test_the_commands_print_the_twenty_slowest_and_only_one_leaves_no_tests_out(target: str, marks: list[str]) -> None:
    recipe = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    runs = [line for line in recipe.splitlines() if "pytest" in line]
    assert [line.partition(" -m ")[2].strip("'") for line in runs] == marks
    assert all("--slowest 20" in line for line in runs)
