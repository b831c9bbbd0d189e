"""Settings: what a file and the environment say, and the one line for everything that is wrong."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from spade_coreason.config import AgentSettings, Settings, load_settings, parse_domain, parse_jid
from spade_coreason.config.settings import RoomSettings, keys_of, section_in
from spade_coreason.exceptions import ConfigError

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "config"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path


def load(project: Path, text: str, name: str = "platform.yaml", **environ: str) -> Settings:
    path = Path("config") / name
    (project / path).write_text(text, encoding="utf-8")
    return load_settings(path, project, environ)


def mistake(project: Path, text: str, name: str = "platform.yaml", **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(project, text, name, **environ)
    assert str(caught.value) == f"{caught.value.place}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def agents(*lines: str) -> str:
    return "agents:\n" + "\n".join(f"  - {{{line}}}" for line in lines)


ECHO = 'jid: echo@localhost, agent: "agents.echo:EchoAgent"'


# The shape


def test_the_documented_shape(project: Path) -> None:
    (project / "ca.pem").write_text("")
    settings = load(
        project,
        """
        server: {mode: external, domain: example.org, host: 127.0.0.1, port: 5222, tls: {verify: true, ca_file: ca.pem}}
        storage: {url: "sqlite+aiosqlite:///data/platform.db", memory_dir: data/memory}
        conversation: {max_interactions: 100, cooldown_s: 300, timeout_s: 3600, assist_timeout_s: 120}
        limits: {stanza_bytes: 65536}
        access: {allow: ["example.org"]}
        agents:
          - {jid: echo@example.org, agent: "agents.echo:EchoAgent", password: "${ECHO_PASSWORD}", register: true, options: {}}
        """,
        ECHO_PASSWORD="s3cret",
    )
    assert settings.server.mode == "external"
    assert settings.server.port == 5222
    assert settings.server.tls.ca_file == project / "ca.pem"
    assert settings.storage.url == f"sqlite+aiosqlite:///{project}/data/platform.db"
    assert settings.access.allow == ("example.org",)
    (agent,) = settings.agents
    assert agent.register_account is True
    assert agent.password is not None
    assert agent.password.get_secret_value() == "s3cret"
    assert settings.warnings == ()


def test_without_a_file_everything_has_its_default(project: Path) -> None:
    settings = load_settings(None, project, {})
    assert settings.server.mode == "auto"
    assert settings.server.domain == "localhost"
    assert settings.server.tls.verify is True
    assert settings.access.allow is None
    assert settings.limits.stanza_bytes == 65536
    assert settings.agents == ()
    assert settings.project == project


def test_platform_yaml_names_every_key_with_its_default_and_nothing_else() -> None:
    text = (CONFIG / "platform.yaml").read_text(encoding="utf-8")
    written = yaml.safe_load(text)

    def compare(values: dict[str, Any], section: type[BaseModel], place: str) -> None:
        assert list(values) == list(keys_of(section)), place
        for name, field in section.model_fields.items():
            key = field.alias or name
            inner = section_in(field.annotation)
            if key == "agents":
                assert inner is AgentSettings
                assert field.get_default() == ()
                compare(values[key][0], inner, "agents[0]")
            elif key == "rooms" and inner is RoomSettings:
                assert (values[key], field.get_default()) == ([], ())
            elif inner and field.get_default(call_default_factory=True) is not None:
                compare(values[key], inner, key)
            elif not field.is_required():
                default = field.get_default(call_default_factory=True)
                plain = list(default) if isinstance(default, tuple) else str(default) if isinstance(default, Path) else default
                assert values[key] == plain, f"{place}.{key}"

    compare(written, Settings, "platform.yaml")
    room = re.findall(r"^    # (- jid: room@|  )(.*)$", text, re.MULTILINE)
    compare(yaml.safe_load("\n".join(start + rest for start, rest in room))[0], RoomSettings, "rooms[0]")
    for key in re.findall(r"^ *-? *(\w+): ", text, re.MULTILINE):
        before = text[: re.search(rf"^ *-? *{key}: ", text, re.MULTILINE).start()]  # type: ignore[union-attr]
        assert "#" in before.rsplit("\n\n", 1)[-1] or key in ("mode",), f"{key} has no comment"


def test_platform_yaml_says_the_same_as_no_file() -> None:
    by_file = load_settings(CONFIG / "platform.yaml", ROOT, {})
    assert by_file.model_copy(update={"agents": ()}).model_dump() == load_settings(None, ROOT, {}).model_dump()
    assert [agent.jid for agent in by_file.agents] == ["echo@localhost"]
    assert by_file.warnings == ()


def test_demo_yaml_names_the_agents_of_the_demonstration() -> None:
    settings = load_settings(Path("config/demo.yaml"), ROOT, {})
    assert {agent.jid: agent.agent for agent in settings.agents} == {
        "echo@localhost": "agents.echo:EchoAgent",
        "notes@localhost": "agents.notes:NotesAgent",
        "relay@localhost": "agents.relay:RelayAgent",
        "assistant@localhost": "agents.assistant:AssistantAgent",
    }
    assert all(agent.register_account for agent in settings.agents)
    assert settings.agents[2].options["ask"] == ["echo@localhost", "notes@localhost"]
    assert settings.warnings == ()


def test_an_empty_file_and_sections_without_content_are_defaults(project: Path) -> None:
    default = load_settings(None, project, {}).model_dump()
    assert load(project, "").model_dump() == default
    assert load(project, "# nothing\n").model_dump() == default
    assert load(project, "server:\nlimits:\n  # all commented out\nconversation: {cooldown_s: }\n").model_dump() == default


def test_toml_says_the_same_as_yaml(project: Path) -> None:
    by_yaml = load(project, f"server: {{mode: prosody, port: 5300}}\n{agents(ECHO + ', options: {delay_s: 1}')}")
    by_toml = load(
        project,
        """
        [server]
        mode = "prosody"
        port = 5300
        [[agents]]
        jid = "echo@localhost"
        agent = "agents.echo:EchoAgent"
        options = {delay_s = 1}
        """,
        "platform.toml",
    )
    assert by_toml.model_dump() == by_yaml.model_dump()


def test_settings_cannot_be_changed(project: Path) -> None:
    settings = load(project, agents(ECHO))
    with pytest.raises(ValidationError, match="frozen"):
        settings.server.port = 1  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        settings.agents[0].options["x"] = 1  # type: ignore[index]  # likewise


def test_an_agent_may_have_rules_of_its_own(project: Path) -> None:
    settings = load(
        project,
        "conversation: {cooldown_s: 7, timeout_s: 8}\naccess: {allow: [example.org]}\n"
        + agents(
            ECHO + ", conversation: {timeout_s: 9, lifecycle: on_demand}, access: {allow: ['*']}",
            'jid: plain@localhost, agent: "a:B"',
        ),
    )
    own, common = (settings.conversation_of(agent) for agent in settings.agents)
    assert (own.cooldown_s, own.timeout_s, own.lifecycle) == (7, 9, "on_demand")
    assert common == settings.conversation
    assert [settings.access_of(agent).allow for agent in settings.agents] == [("*",), ("example.org",)]


# Paths


def test_paths_count_from_the_project_wherever_the_file_lies(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("etc") / "platform.yaml"
    elsewhere.write_text("storage: {url: 'sqlite+aiosqlite:///x.db?timeout=3', memory_dir: /var/memory}")
    settings = load_settings(elsewhere, project, {})
    assert settings.storage.url == f"sqlite+aiosqlite:///{project}/x.db?timeout=3"
    assert settings.storage.memory_dir == Path("/var/memory")
    assert settings.data_dir == project / "data"
    assert settings.place("server") == f"{elsewhere}: server"


def test_what_is_kept_is_in_the_data_directory_unless_it_is_named(project: Path) -> None:
    settings = load(project, "data_dir: var\nstorage: {durability: normal}")
    assert settings.storage.url == f"sqlite+aiosqlite:///{project}/var/platform.db"
    assert settings.storage.memory_dir == project / "var" / "memory"
    settings = load(project, "storage: {memory_dir: m}", SPADE_COREASON_DATA_DIR="/srv/data")
    assert settings.data_dir == Path("/srv/data")
    assert settings.storage.url == "sqlite+aiosqlite:////srv/data/platform.db"
    assert settings.storage.memory_dir == project / "m"


def test_a_file_is_shown_as_a_person_would_write_it(project: Path) -> None:
    assert load(project, "").place("agents[0].agent") == "config/platform.yaml: agents[0].agent"
    assert load_settings(project / "config" / "platform.yaml", project, {}).place("x") == "config/platform.yaml: x"
    assert load_settings(None, project, {}).place("server.port") == "server.port"


# The environment


def test_variables_override_the_file(project: Path) -> None:
    settings = load(
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


def test_variables_are_put_in_everywhere(project: Path) -> None:
    settings = load(
        project,
        "server: {port: '${PORT}', mode: '${MODE:-prosody}'}\nlimits: {queue: '${EMPTY:-5}'}\n"
        + agents(ECHO + ", options: {a: {b: ['${WORD} and ${WORD}', '$${WORD}', '$WORD', 'costs 5$']}, c: '${NONE:-}'}"),
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
        ("SEVER__PORT", "1", 'SPADE_COREASON_SEVER__PORT: there is no such setting; did you mean "SPADE_'),
        ("ACCESS__ALLOW", "[a", 'SPADE_COREASON_ACCESS__ALLOW: must be a list, like [one, two], not "[a"'),
        ("ACCESS__ALLOW", "a.org", 'SPADE_COREASON_ACCESS__ALLOW: must be a list, like [one, two], not "a.org"'),
        ("AGENTS", "[{jid: 1}]", "SPADE_COREASON_AGENTS: agents[0].jid: must be a text; put it into quotes"),
        ("SERVER__TLS__CA_FILE", "/none", "SPADE_COREASON_SERVER__TLS__CA_FILE: there is no file /none; "),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(project: Path, variable: str, value: str, line: str) -> None:
    assert mistake(project, "", **{f"SPADE_COREASON_{variable}": value}).startswith(line)


# Mistakes in a file

PREFIX = "config/platform.yaml: "
MISTAKES = [
    (
        agents(ECHO, 'jid: a@localhost, agent: "a:B"', 'jdi: b@localhost, agent: "a:B"'),
        'agents[2].jdi: unknown key; did you mean "jid"?',
    ),
    ("sever: {port: 1}", 'sever: unknown key; did you mean "server"?'),
    ("port: 5222", 'port: unknown key here; did you mean "server.port"?'),
    (
        agents(ECHO + ", max_interactions: 3"),
        'agents[0].max_interactions: unknown key here; did you mean "conversation.max_interactions"?',
    ),
    (agents(ECHO + ", conversation: {timeout: 3}"), 'agents[0].conversation.timeout: unknown key; did you mean "timeout_s"?'),
    ("server: {tls: {zzz: 1}}", "server.tls.zzz: unknown key; there are verify, ca_file"),
    ("1: x", "[1]: keys must be texts; put it into quotes"),
    (
        "server: {mode: prosodi}",
        'server.mode: must be auto, embedded, prosody or external, not "prosodi"; did you mean "prosody"?',
    ),
    ("server: {port: 70000}", "server.port: must be at most 65535, not 70000"),
    ("server: {port: x}", 'server.port: must be a whole number, not "x"'),
    ("server: {port: true}", "server.port: must be a number, not true"),
    ("server: {port: 1.5}", "server.port: must be a whole number, not 1.5"),
    ("server: [1]", "server: must hold keys with values, like {key: value}"),
    ("server: {tls: {verify: perhaps}}", 'server.tls.verify: must be true or false, not "perhaps"'),
    ("server: {tls: {ca_file: none.pem}}", "server.tls.ca_file: there is no file "),
    ("server: {domain: example.org}", 'server.domain: a local server (mode: auto) is "localhost"; leave it out, or '),
    ("server: {host: xmpp.example.org}", "server.host: a local server (mode: auto) is on this machine only; leave it "),
    ("server: {mode: external, domain: 'a b'}", "server.domain: 'a b' is no domain"),
    ("storage: {url: 'postgres://u:pw@h/d'}", "storage.url: must begin with sqlite+aiosqlite:/// and a file, or with p"),
    (
        "storage: {url: 'postgresql+asyncpg://u:pw@h'}",
        "storage.url: names no database; write postgresql+asyncpg://user:password@h",
    ),
    ("storage: {url: 'postgresql+asyncpg://h:x/d'}", "storage.url: is no address of a database; write postgresql+asyncpg://us"),
    ("storage: {url: 'postgresql+asyncpg://h/d?password=p'}", "storage.url: the password stands before the host: "),
    ("storage: {url: 'sqlite+aiosqlite:///:memory:'}", "storage.url: would keep nothing; name a file: "),
    ("storage: {durability: fast}", 'storage.durability: must be full or normal, not "fast"'),
    ("conversation: {timeout_s: -1}", "conversation.timeout_s: must be at least 0, not -1"),
    ("conversation: {timeout_s: .inf}", "conversation.timeout_s: must be a finite number, not inf"),
    ("conversation: {assist_timeout_s: 0}", "conversation.assist_timeout_s: must be more than 0, not 0"),
    ("conversation: {max_interactions: many}", 'conversation.max_interactions: must be a whole number, not "many"'),
    ("limits: {concurrency: 0}", "limits.concurrency: must be at least 1, not 0"),
    ("access: {allow: example.org}", 'access.allow: must be a list, like [one, two], not "example.org"'),
    ("access: {ask: true}\n" + agents(ECHO), "access.ask: nobody is there to ask; name the operators: "),
    ("access: {ask: true, operators: [example.org]}", "access.operators[0]: 'example.org' is not a JID; "),
    ("access: {operators: [a@example.org/desk]}", 'access.operators[0]: "a@example.org/desk" names a device; '),
    ("access: {allow: [a@b@c]}", "access.allow[0]: 'a@b@c' is not a JID: "),
    ("agents: {echo: 1}", "agents: must be a list, like [one, two]"),
    ("agents: [echo]", 'agents[0]: must hold keys with values, like {key: value}, not "echo"'),
    (agents("jid: echo@localhost"), "agents[0].agent: is missing; every agent needs it"),
    (agents("jid: echo, agent: 'a:B'"), "agents[0].jid: 'echo' is not a JID; write it like name@example.org"),
    (
        agents("jid: 'a b@localhost', agent: 'a:B'"),
        "agents[0].jid: 'a b@localhost' is not a JID: ' ' may not stand before the @",
    ),
    (
        agents("jid: echo@localhost, agent: agents.echo.EchoAgent"),
        "agents[0].agent: 'agents.echo.EchoAgent' does not name an agent; write",
    ),
    (
        agents("jid: echo@localhost, agent: 'agents/echo.py:EchoAgent'"),
        "agents[0].agent: 'agents/echo.py:EchoAgent' does not name an agent; write it like \"agents.echo:EchoAgent\"",
    ),
    (agents(ECHO, ECHO), "agents[1].jid: echo@localhost is agents[0] already; every agent needs a JID of its own"),
    (agents(ECHO, ECHO.replace("echo@localhost", "ECHO@LocalHost/desk")), "agents[1].jid: echo@localhost is agents[0] already"),
    (
        agents("jid: echo@example.org, agent: 'a:B'"),
        "agents[0].jid: echo@example.org is not on the local server, which is localhost; write echo@l",
    ),
    (agents(ECHO + ", password: 12345"), "agents[0].password: must be a text; put it into quotes"),
    (agents(ECHO + ", password: ''"), "agents[0].password: is empty; "),
    (agents(ECHO + ", password: a, password_file: b"), "agents[0].password_file: there is a password too; keep one of the two"),
    (agents(ECHO + ", password_file: secrets/echo"), "agents[0].password_file: "),
    (agents(ECHO + ", options: {1: 2}"), "agents[0].options[1]: must be a text; put it into quotes"),
    (agents(ECHO + ", options: [1]"), "agents[0].options: must hold keys with values, like {key: value}"),
    (agents(ECHO + ", manifest: none.yaml"), "agents[0].manifest: there is no file "),
    (
        agents(ECHO + ", password: '${ECHO_PASSWORD}'"),
        "agents[0].password: the environment variable ECHO_PASSWORD is not set; set it, or write ${ECHO_PASS",
    ),
    (
        agents(ECHO + ", options: {a: ['${no name}']}"),
        "agents[0].options.a[0]: ${no name} names no variable; write ${VARIABLE} or ",
    ),
    (agents(ECHO + ", options: {a: 'x${HOME'}"), 'agents[0].options.a: "${" is not closed; '),
    (
        "server: {mode: external}\n" + agents("jid: my-echo@example.org, agent: 'a:B'"),
        'agents[0].password: is missing, and an external server asks for it; write password: "${MY_ECHO_',
    ),
    ("agents: &a [*a]", "an anchor (&) contains itself"),
    ("- 1", "must hold keys with values, like server: {mode: auto}"),
    ("just text", "must hold keys with values"),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line.split(":")[0] for _, line in MISTAKES])
def test_a_mistake_is_one_line_with_file_place_cause_and_remedy(project: Path, text: str, line: str) -> None:
    assert mistake(project, text).startswith(PREFIX + line)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("p.yaml", "server: {mode: auto\nagents: []", "config/p.yaml:2:"),
        ("p.yaml", "server:\n\tmode: auto", "config/p.yaml:2:1: is not valid YAML: found character '\\t'"),
        ("p.yaml", "a: b: c", "config/p.yaml:1:5: is not valid YAML: mapping values are not allowed here"),
        ("p.yaml", "a: !!python/object:os.system x", "config/p.yaml:1:4: is not valid YAML: could not determine a con"),
        ("p.yaml", "a: 1\nb: \x00", "config/p.yaml:2:4: is not valid YAML: the character U+0000 may not stand there"),
        ("p.yaml", "a: *b", "config/p.yaml:1:4: is not valid YAML: found undefined alias"),
        ("p.yaml", "a: 2025-02-31", "config/p.yaml: has a value that cannot be"),
        ("p.yaml", "server:\n  port: 1\n  port: 2", 'config/p.yaml:3:3: the key "port" stands there twice, first in line 2'),
        ("p.toml", "[server]\nport = ", "config/p.toml:2:8: is not valid TOML: invalid value"),
        ("p.toml", "[server]\nport = 1\nport = 2", "config/p.toml:3:9: is not valid TOML: cannot overwrite a value"),
        ("p.txt", "", "config/p.txt: must be a YAML or TOML file"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(project: Path, name: str, text: str, line: str) -> None:
    assert mistake(project, text, name).startswith(line)


def test_a_file_that_is_not_there_or_no_file(project: Path) -> None:
    (project / "d.yaml").mkdir()
    (project / "latin.yaml").write_bytes(b"a: \xff")
    for name, line in {
        "nope.yaml": f"nope.yaml: there is no such file (in {project}); name one with -c FILE",
        "no/pe.yaml": f"no/pe.yaml: there is no such file (no directory {project}/no either); name one with -c FILE",
        "d.yaml": "d.yaml: cannot be read: Is a directory; name a file with -c FILE",
        "latin.yaml": "latin.yaml: is not UTF-8 (byte 3); save it as UTF-8",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_settings(Path(name), project, {})
        assert str(caught.value) == line


def test_one_anchor_may_be_merged_into_several_agents(project: Path) -> None:
    settings = load(
        project,
        """
        agents:
          - &first {jid: a@localhost, agent: "a:B", register: true}
          - {<<: *first, jid: b@localhost}
        """,
    )
    assert [(agent.jid, agent.register_account) for agent in settings.agents] == [("a@localhost", True), ("b@localhost", True)]


# Secrets


def test_the_password_of_the_database_is_in_no_text(project: Path) -> None:
    settings = load(project, "storage: {url: 'postgresql+asyncpg://me:${DB_PASSWORD}@h:5433/d'}", DB_PASSWORD="s%2Fcr%40t")
    assert settings.storage.url == "postgresql+asyncpg://me:s%2Fcr%40t@h:5433/d"
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "s%2Fcr" not in text


def test_a_literal_password_works_with_one_warning(project: Path) -> None:
    external = "server: {mode: external, domain: example.org}\n"
    one = "jid: a@example.org, agent: 'a:B', password: hunter2"
    settings = load(project, external + agents(one, one.replace("a@", "b@")))
    assert settings.agents[1].password is not None
    assert settings.agents[1].password.get_secret_value() == "hunter2"
    (warning,) = settings.warnings
    assert warning.startswith("config/platform.yaml: agents[0].password: a password stands in the file (and 1 more)")
    assert "hunter2" not in warning


def test_a_password_file_is_read(project: Path) -> None:
    (project / "secret").write_text("hunter2\n")
    settings = load(project, agents(ECHO + ", password_file: secret"))
    assert settings.agents[0].password is not None
    assert settings.agents[0].password.get_secret_value() == "hunter2"
    assert settings.warnings == ()
    for content in ("", "\n", "one\ntwo\n"):
        (project / "secret").write_text(content)
        assert "must hold the password in one line" in mistake(project, agents(ECHO + ", password_file: secret"))


def test_no_secret_is_in_any_text_of_the_settings(project: Path) -> None:
    text = agents(ECHO + ", password: '${SECRET}', options: {api_key: '${SECRET}', nested: {key: '${SECRET}'}}")
    settings = load(project, text, SECRET="hunter2")
    assert settings.agents[0].options["api_key"] == "hunter2"
    for shown in (repr(settings), str(settings), repr(settings.model_dump()), settings.model_dump_json()):
        assert "hunter2" not in shown
        assert "echo@localhost" in shown


@pytest.mark.parametrize(
    "text",
    [
        agents(ECHO + ", password: {a: '${SECRET}'}"),
        agents(ECHO + ", options: '${SECRET}'"),
        "server: {port: '${SECRET}'}",
        "server: {mode: '${SECRET}'}",
        "storage: {url: '${SECRET}'}",
    ],
)
def test_no_mistake_shows_what_a_variable_holds(project: Path, text: str) -> None:
    assert "hunter2" not in mistake(project, text, SECRET="hunter2")


def test_unverified_certificates_are_a_warning(project: Path) -> None:
    text = "server: {mode: external, domain: example.org, tls: {verify: false}}"
    (warning,) = load(project, text).warnings
    assert warning.startswith("config/platform.yaml: server.tls.verify: is off")


def test_the_domain_of_an_external_server_is_that_of_its_agents(project: Path) -> None:
    text = agents("jid: a@example.org, agent: 'a:B', password: '${P}'")
    assert load(project, "server: {mode: external}\n" + text, P="x").server.domain == "example.org"


# JIDs


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Echo@Example.ORG", "echo@example.org"),
        ("a@b", "a@b"),
        ("a.b-c_d+e!#$%*=?^`{|}~@example.org.", "a.b-c_d+e!#$%*=?^`{|}~@example.org"),
        ("écho@müller.example/Tisch 1", "écho@müller.example/Tisch 1"),
        ("e\u0301cho@example.org", "écho@example.org"),
        ("a@127.0.0.1", "a@127.0.0.1"),
        ("a@[::0001]", "a@[::1]"),
        ("a@b/c@d/e", "a@b/c@d/e"),
    ],
)
def test_a_jid_is_brought_into_one_form(text: str, parsed: str) -> None:
    assert parse_jid(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "@b", "a@", "a@b@c", "a b@c", "a:b@c", "a&b@c", "a'b@c", 'a"b@c', "<a>@b", "🙂@b", "a\n@b"),
        *("a@b/", "a@b/\x00", "a@b c", "a@-b", "a@b-", "a@b..c", "a@.b", "a@b_c", "a@[::1", "a@[x]"),
        *("a@" + "b" * 64, "x" * 1024 + "@b", "a@b/" + "r" * 1024),
    ],
)
def test_what_is_no_jid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JID"):
        parse_jid(text)


def test_a_domain() -> None:
    assert parse_domain("Example.ORG.") == "example.org"
    with pytest.raises(ValueError, match="the domain is missing"):
        parse_domain("")


# Weight


def test_reading_settings_imports_neither_spade_nor_a_database() -> None:
    code = "import sys, spade_coreason.config; print(*(m for m in ('spade', 'slixmpp', 'sqlalchemy') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_warnings_and_origin_stay_with_a_copy(project: Path) -> None:
    settings = load(project, agents(ECHO + ", password: literal"))
    copy = settings.model_copy(update={"agents": ()})
    assert copy.warnings == settings.warnings
    assert copy.place("x") == settings.place("x")
    assert pickle.loads(pickle.dumps(copy)) == copy


# Rooms


def test_an_agent_joins_the_rooms_of_its_configuration_and_is_invited_into_no_other(project: Path) -> None:
    settings = load(project, agents(ECHO + ", rooms: [{jid: Room@Muc.localhost, nick: Echo}]"))
    room = settings.agents[0].rooms[0]
    assert (room.jid, room.nick, room.answers, room.agent_turns) == ("room@muc.localhost", "Echo", "mention", 6)
    assert settings.access_of(settings.agents[0]).rooms == ()


def test_who_may_invite_is_set_beside_who_may_ask(project: Path) -> None:
    text = "access: {allow: [example.org], rooms: [muc.localhost]}\n" + agents(ECHO + ", access: {rooms: [r@muc.localhost]}")
    access = load(project, text)
    own = access.access_of(access.agents[0])
    assert (own.allow, own.rooms) == (("example.org",), ("r@muc.localhost",))


@pytest.mark.parametrize(
    ("room", "problem"),
    [
        ("jid: room@muc.localhost/Echo", "names an occupant"),
        ("jid: muc.localhost", "is not a JID"),
        ("jid: room@muc.localhost, nick: ' '", "must be a name"),
        ("jid: room@muc.localhost, answers: some", "mention"),
    ],
)
def test_a_room_that_cannot_be_joined_is_a_mistake(project: Path, room: str, problem: str) -> None:
    assert problem in mistake(project, agents(ECHO + f", rooms: [{{{room}}}]"))


def test_a_room_is_named_once(project: Path) -> None:
    assert "agents[0].rooms[1].jid" in mistake(
        project, agents(ECHO + ", rooms: [{jid: r@muc.localhost}, {jid: R@muc.localhost}]")
    )
