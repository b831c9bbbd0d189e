"""Passwords: where they may be written, and that nothing shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from spade_coreason.config.loader import load_settings
from spade_coreason.config.settings import StorageSettings
from spade_coreason.exceptions import ConfigError
from spade_coreason.storage.backends.backend import display_name
from tests.support.configurations import ECHO, agents_section, config_error, load_config


def test_the_password_of_the_database_is_in_no_text(project: Path) -> None:
    settings = load_config(
        project, "storage: {url: 'postgresql+asyncpg://me:${DB_PASSWORD}@h:5433/d'}", DB_PASSWORD="s%2Fcr%40t"
    )
    assert settings.storage.url == "postgresql+asyncpg://me:s%2Fcr%40t@h:5433/d"
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "s%2Fcr" not in text


@pytest.mark.parametrize(
    "password", ["sec@ret", "p@ss/w#rd%1", "sec/ret", "sec?ret", "sec#ret", "a/b@secret", "sec@ret@secret"]
)
def test_a_database_password_that_is_not_percent_encoded_is_refused_and_not_shown(project: Path, password: str) -> None:
    url = f"postgresql+asyncpg://me:{password}@127.0.0.1:5433/d"
    message = config_error(project, f"storage: {{url: '{url}'}}")
    assert message == (
        'config/platform.yaml: storage.url: write "@" "/" "?" "#" "%" in a user or password as %40 %2F %3F %23 %25; '
        'outside of them there is one "@"'
    )
    assert display_name(make_url(url)) == "postgresql://127.0.0.1:5433/d"
    assert StorageSettings.model_construct(url=url).model_dump()["url"] == "postgresql+asyncpg://me:**********@127.0.0.1:5433/d"


def test_a_literal_password_works_with_one_warning(project: Path) -> None:
    external = "server: {mode: external, domain: example.org}\n"
    agent_line = "jid: a@example.org, agent: 'a:B', password: hunter2"
    settings = load_config(project, external + agents_section(agent_line, agent_line.replace("a@", "b@")))
    assert settings.agents[1].password is not None
    assert settings.agents[1].password.get_secret_value() == "hunter2"
    (warning,) = settings.warnings
    assert warning.startswith(
        "config/platform.yaml: agents[0].password: the file contains a password in plain text (and 1 more)"
    )
    assert "hunter2" not in warning


def test_a_password_file_is_read(project: Path) -> None:
    (project / "config/secret").write_text("hunter2\n")
    settings = load_config(project, agents_section(ECHO + ", password_file: secret"))
    assert settings.agents[0].password is not None
    assert settings.agents[0].password.get_secret_value() == "hunter2"
    assert settings.warnings == ()
    for content in ("", "\n", "one\ntwo\n"):
        (project / "config/secret").write_text(content)
        assert "must contain the password on one line" in config_error(
            project, agents_section(ECHO + ", password_file: secret")
        )


def test_the_secrets_of_agents_are_not_needed_without_a_login(project: Path) -> None:
    external = "server: {mode: external, domain: example.org}\n"
    text = external + agents_section(
        "jid: a@example.org, agent: 'a:B', password: '${NOT_SET}', options: {key: '${NEITHER}'}",
        "jid: b@example.org, agent: 'a:B', password_file: not-there",
        "jid: c@example.org, agent: 'a:B'",
    )
    (project / "config/platform.yaml").write_text(text)
    settings = load_settings(Path("config/platform.yaml"), project, {}, logs_in=False)
    assert [agent.jid for agent in settings.agents] == ["a@example.org", "b@example.org", "c@example.org"]
    (project / "config/platform.yaml").write_text("storage: {url: '${NOT_SET}'}")
    with pytest.raises(ConfigError, match=r"storage\.url: the environment variable NOT_SET is not set"):
        load_settings(Path("config/platform.yaml"), project, {}, logs_in=False)


def test_no_secret_is_in_any_text_of_the_settings(project: Path) -> None:
    text = agents_section(ECHO + ", password: '${SECRET}', options: {api_key: '${SECRET}', nested: {key: '${SECRET}'}}")
    settings = load_config(project, text, SECRET="hunter2")
    assert settings.agents[0].options["api_key"] == "hunter2"
    for shown in (repr(settings), str(settings), repr(settings.model_dump()), settings.model_dump_json()):
        assert "hunter2" not in shown
        assert "echo@localhost" in shown


@pytest.mark.parametrize(
    "text",
    [
        agents_section(ECHO + ", password: {a: '${SECRET}'}"),
        agents_section(ECHO + ", options: '${SECRET}'"),
        "server: {port: '${SECRET}'}",
        "server: {mode: '${SECRET}'}",
        "storage: {url: '${SECRET}'}",
    ],
)
def test_no_error_shows_the_value_of_a_variable(project: Path, text: str) -> None:
    assert "hunter2" not in config_error(project, text, SECRET="hunter2")


def test_unverified_certificates_are_a_warning(project: Path) -> None:
    text = "server: {mode: external, domain: example.org, tls: {verify: false}}"
    (warning,) = load_config(project, text).warnings
    assert warning.startswith("config/platform.yaml: server.tls.verify: is off")


def test_the_domain_of_an_external_server_is_that_of_its_agents(project: Path) -> None:
    text = agents_section("jid: a@example.org, agent: 'a:B', password: '${P}'")
    assert load_config(project, "server: {mode: external}\n" + text, P="x").server.domain == "example.org"
