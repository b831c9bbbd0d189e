"""Environment variables: as settings, and inside the values of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.configurations import ECHO, agents_section, config_error, load_config


def test_variables_override_the_file(project: Path) -> None:
    settings = load_config(
        project,
        "server: {port: 1, tls: {verify: true}}\nlimits: {queue: 2}",
        SPADE_COREASON_SERVER__PORT="5223",
        SPADE_COREASON_SERVER__TLS__VERIFY="false",
        SPADE_COREASON_ACCESS__ALLOW='["a@example.org", "example.net"]',
        SPADE_COREASON_AGENTS="[{jid: echo@localhost, agent: 'agents.echo:EchoAgent'}]",
        SPADE_COREASON_LIMITS__QUEUE="",
        SPADE_COREASON_PASSWORD="for another command",
        PATH="/bin",
    )
    assert settings.server.port == 5223
    assert settings.server.tls.verify is False
    assert settings.access.allow == ("a@example.org", "example.net")
    assert settings.agents[0].jid == "echo@localhost"
    assert settings.limits.queue == 2


def test_a_variable_with_json_is_read_as_json(project: Path) -> None:
    options = {"greet": "hi 😀", "limit": float("inf"), "small": 1e-07, "deep": [{"word": "ünï 🦉"}]}
    agents = [{"jid": "echo@localhost", "agent": "agents.echo:EchoAgent", "password": "🔑", "options": options}]
    [agent] = load_config(project, "", SPADE_COREASON_AGENTS=json.dumps(agents)).agents
    assert agent.options == options
    assert agent.password is not None
    assert agent.password.get_secret_value() == "🔑"


def test_variables_are_substituted_everywhere(project: Path) -> None:
    settings = load_config(
        project,
        "server: {port: '${PORT}', mode: '${MODE:-prosody}'}\nlimits: {queue: '${EMPTY:-5}'}\n"
        + agents_section(
            ECHO + ", options: {a: {b: ['${WORD} and ${WORD}', '$${WORD}', '$WORD', 'costs 5$']}, c: '${NONE:-}'}"
        ),
        PORT="5300",
        WORD="tea",
        EMPTY="",
    )
    assert settings.server.port == 5300
    assert settings.server.mode == "prosody"
    assert settings.limits.queue == 5
    options = settings.agents[0].options
    assert options["a"]["b"] == ["tea and tea", "${WORD}", "$WORD", "costs 5$"]
    assert options["c"] == ""


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("SERVER__PORT", "many", 'SPADE_COREASON_SERVER__PORT: must be a whole number, not "many"'),
        ("SERVER__PROT", "1", 'SPADE_COREASON_SERVER__PROT: unknown key; did you mean "port"?'),
        ("SEVER__PORT", "1", 'SPADE_COREASON_SEVER__PORT: no such setting; did you mean "SPADE_'),
        ("ACCESS__ALLOW", "[a", 'SPADE_COREASON_ACCESS__ALLOW: must be a list, like [one, two], not "[a"'),
        ("ACCESS__ALLOW", "a.org", 'SPADE_COREASON_ACCESS__ALLOW: must be a list, like [one, two], not "a.org"'),
        ("AGENTS", "[{jid: 1}]", "SPADE_COREASON_AGENTS: agents[0].jid: must be a text; quote it"),
        ("SERVER__TLS__CA_FILE", "/none", "SPADE_COREASON_SERVER__TLS__CA_FILE: no such file: /none; "),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(project: Path, variable: str, value: str, line: str) -> None:
    assert config_error(project, "", **{f"SPADE_COREASON_{variable}": value}).startswith(line)


@pytest.mark.parametrize("text", ["", agents_section(ECHO)])
@pytest.mark.parametrize(
    ("key", "whole"),
    [("AGENTS__0__JID", "AGENTS"), ("AGENTS__0__PASSWORD", "AGENTS"), ("ACCESS__ALLOW__0", "ACCESS__ALLOW")],
)
def test_a_variable_for_an_item_of_a_list_is_an_error(project: Path, text: str, key: str, whole: str) -> None:
    assert config_error(project, text, **{f"SPADE_COREASON_{key}": "x"}) == (
        f"SPADE_COREASON_{key}: lists cannot be overridden by index; "
        f"set SPADE_COREASON_{whole} as JSON, or use ${{VAR}} in the file"
    )


def test_a_group_may_have_a_number_as_its_name(project: Path) -> None:
    settings = load_config(
        project,
        "access: {groups: {'7': [example.org]}}\nquotas: {person: {groups: {'7': {turns: 1}}}}",
        SPADE_COREASON_QUOTAS__PERSON__GROUPS__7__TURNS="5",
    )
    assert settings.quotas.person.groups["7"].turns == 5
