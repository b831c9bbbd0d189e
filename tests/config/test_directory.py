"""A directory agent in a configuration, and the directories of other platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configurations import config_error, load_config

DIRECTORY_LINE = "agents:\n  - {jid: directory@localhost, directory: true"


def test_a_directory_needs_no_code_in_the_configuration(project: Path) -> None:
    settings = load_config(project, f"{DIRECTORY_LINE}}}\npeers: {{directories: [Directory@Example.org]}}")
    assert settings.agents[0].directory
    assert settings.peers.directories == ("directory@example.org",)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (", agent: 'a:A'", "directory: true needs no agent; remove it, or remove directory: true"),
        (", options: {a: 1}", "directory: true needs no options; remove it, or remove directory: true"),
    ],
)
def test_a_directory_with_code_of_its_own_is_a_mistake(project: Path, keys: str, problem: str) -> None:
    assert config_error(project, f"{DIRECTORY_LINE}{keys}}}").endswith(f"agents[0]: {problem}")


def test_an_agent_without_code_is_a_mistake_that_names_the_key(project: Path) -> None:
    assert "agents[0].agent" in config_error(project, "agents:\n  - {jid: a@localhost, directory: false}")


def test_the_directories_are_accounts(project: Path) -> None:
    assert "peers.directories[0]" in config_error(project, "peers: {directories: ['*']}")
