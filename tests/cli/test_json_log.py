"""`--log-format json`: one object a line, with the turn in which it is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from spade_coreason.exceptions import LeaseLostError
from tests.support.program import run_command, run_in_background, write_project
from tests.support.wait import TIMEOUT_S

MOODY = "moody@localhost"


def read_log(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_failed_turn_is_a_json_object_with_its_names(tmp_path: Path) -> None:
    project = write_project(tmp_path, "embedded")
    with run_in_background("up", "--log-format", "json", cwd=project, until=r"^Ready") as up:
        told = re.search(r"\(incident ([0-9a-f]{8})\)", up.run_command("ask", MOODY, "raise").stderr)
        assert told is not None
        conversations = json.loads(up.run_command("conversations", "list", "--json").stdout)
        _, _, log = up.stop()
    [entry] = [entry for entry in read_log(log) if "incident" in entry]
    assert datetime.fromisoformat(entry.pop("time")).tzname() == "UTC"
    assert re.fullmatch(r"[0-9a-f]{8}-[-0-9a-f]{27}", entry.pop("request"))
    assert re.fullmatch(r"moody\.py:\d+", entry.pop("frame"))
    assert entry == {
        "level": "error",
        "logger": "spade_coreason.runtime.turns.turn",
        "message": f"{MOODY}: incident {told[1]}",
        "agent": MOODY,
        "conversation": conversations[0]["conversation_id"],
        "incident": told[1],
        "error": "ValueError",
    }
    assert "a secret of the person" not in log


def test_every_line_is_an_object_also_of_the_command_itself(tmp_path: Path) -> None:
    project = write_project(tmp_path, "embedded")
    with run_in_background("-v", "--log-format=json", "up", cwd=project, until=r"^Ready") as up:
        assert up.run_command("ask", MOODY, "fail").returncode == 1
        _, _, log = up.stop()
    entries = read_log(log)
    assert {entry["level"] for entry in entries} >= {"info"}
    [answered] = [entry for entry in entries if " answered " in entry["message"]]
    assert {"agent", "conversation", "request"} < answered.keys()
    [started] = [entry for entry in entries if entry["message"] == f"{MOODY}: is online"]
    assert started.keys() == {"time", "level", "logger", "message"}
    (project / "config" / "platform.yaml").write_text("agents: 7\n")
    refused = run_command("up", "--log-format", "json", cwd=project)
    [problem] = read_log(refused.stderr)
    assert (refused.returncode, problem["level"]) == (2, "error")
    assert "config/platform.yaml: agents" in problem["message"]


def test_the_last_line_of_a_worker_that_has_lost_its_lease_is_an_object_too() -> None:
    program = """
from spade_coreason.app.workers.membership import Membership
from spade_coreason.cli.logging import configure_logging

configure_logging(0, "json")
Membership._on_lease_lost(None, "another one has taken over")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    [entry] = read_log(ended.stderr)
    assert (ended.returncode, entry["level"]) == (LeaseLostError.exit_code, "critical")
    assert entry["message"] == "the lease of this worker is lost: another one has taken over. The process ends."
