"""Commands refuse the address of a caller of a door where it makes no sense, with the remedy."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Invoke

COMMANDS = {
    "an agent to invite": ["invite", "website@callers.invalid"],
    "an agent to ask": ["ask", "website@CALLERS.invalid", "hello", "--jid", "me@example.org", "--host", "127.0.0.1"],
    "the own account": ["ask", "echo@example.org", "hello", "--jid", "website@callers.invalid"],
    "a person to admit": ["access", "admit", "website@callers.invalid"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_refuses_a_caller_with_the_remedy(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("SPADE_COREASON_PASSWORD", "secret")
    result = invoke(*command)
    assert result.exit_code != 0
    assert "where no account can be; callers of doors get access by a key: spade-coreason keys create" in " ".join(
        result.stderr.split()
    )
