"""`chat` with an agent whose conversations have a limit: it says so each time, and how to go on."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.program import run_in_background, write_project
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.terminal import Terminal


@pytest.mark.servers
def test_at_the_limit_a_new_conversation_is_offered_as_an_answer(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    project = write_project(tmp_path / "project", "prosody")
    file = project / "config" / "platform.yaml"
    file.write_text(json.dumps({**json.loads(file.read_text()), "conversation": {"max_interactions": 1}}))
    with (
        run_in_background("up", cwd=project, until=r"^Ready"),
        closing(Terminal("chat", "echo", cwd=project, columns=200)) as terminal,
    ):
        terminal.wait_for("echo ▸")
        terminal.type("one\r")
        terminal.wait_for("  one\r\n.*echo ▸")
        for _ in range(2):
            terminal.type("more\r")
            terminal.wait_for(r"a conversation is limited to 1 message\. Write again in 5 min.*1 /new.*echo ▸")
        terminal.type("1\r")
        terminal.wait_for("Your next message starts a new conversation.*echo ▸")
        terminal.type("two\r")
        terminal.wait_for("  two\r\n.*echo ▸")
