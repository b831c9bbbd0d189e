"""Settings: what a file says, and what they are without one."""

from __future__ import annotations

import ast
import dataclasses
import json
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from spade_coreason.config import settings as settings_module
from spade_coreason.config.loader import load_settings
from spade_coreason.config.relative_paths import resolve_paths
from spade_coreason.config.setting_types import SQLITE_PREFIX, DatabaseUrl, ProjectPath
from spade_coreason.config.settings import (
    AgentSettings,
    RoomSettings,
    Settings,
    find_section,
)
from spade_coreason.domain.policy import Keep, MemoryLimits, Policy, RetentionStates, section_keys
from spade_coreason.domain.quotas import Quota, Quotas, Role
from spade_coreason.domain.rooms import RoomConfig
from tests.support.certificates import sign_by_itself
from tests.support.configurations import ECHO, agents_section, config_error, load_config

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "config"


def test_the_documented_settings_are_read(project: Path) -> None:
    shutil.copy(sign_by_itself(project, "example.org").ca_file, project / "config/ca.pem")
    settings = load_config(
        project,
        """
        server: {mode: external, domain: example.org, host: 127.0.0.1, port: 5222, tls: {verify: true, ca_file: ca.pem}}
        storage: {url: "sqlite+aiosqlite:///../data/platform.db", memory_dir: ../data/memory}
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
    assert settings.server.tls.ca_file == project / "config/ca.pem"
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


def test_a_default_that_an_options_value_has_does_not_stand_in_the_settings_too() -> None:
    names = {field.name for options in (MemoryLimits, Policy, RoomConfig) for field in dataclasses.fields(options)}
    names |= {"batch"}  # of `EMBEDDING_BATCH`
    source = Path(settings_module.__file__).read_text(encoding="utf-8")
    keys = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert len(keys) > 100
    literals = {ast.unparse(key) for key in keys if isinstance(key.value, ast.Constant) and key.value.value is not None}
    assert [text for text in literals if text.partition(":")[0] in names] == []


def test_reference_yaml_names_every_key_with_its_default_and_nothing_else() -> None:
    text = (CONFIG / "reference.yaml").read_text(encoding="utf-8")
    written = yaml.safe_load(text)

    def compare(values: dict[str, Any], section: type[BaseModel], place: str) -> None:
        assert list(values) == list(section_keys(section)), place
        for name, field in section.model_fields.items():
            key = field.alias or name
            inner = find_section(field.annotation)
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
                is_stored = key in ("data_dir", "memory_dir") or (place, key) == ("storage", "url")
                # A relative path would begin beside the file.
                assert values[key] == (None if is_stored else plain), f"{place}.{key}"

    compare(written, Settings, "reference.yaml")
    room = text.partition("# The keys of a room, with their defaults:\n")[2].partition("\n    rooms: []")[0]
    compare(yaml.safe_load(re.sub("^    # ?", "", room, flags=re.MULTILINE))[0], RoomSettings, "rooms[0]")
    for key in re.findall(r"^ *-? *(\w+): ", text, re.MULTILINE):
        before = re.split(rf"^ *-? *{key}: ", text, maxsplit=1, flags=re.MULTILINE)[0]
        assert "#" in before.rsplit("\n\n", 1)[-1], f"{key} has no comment"


def test_platform_yaml_has_the_keys_that_most_people_need() -> None:
    text = (CONFIG / "platform.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 12
    assert "config/reference.yaml" in text
    assert set(yaml.safe_load(text)) <= set(section_keys(Settings))


@pytest.mark.parametrize("name", ["platform.yaml", "reference.yaml"])
def test_the_configurations_say_the_same_as_no_file(name: str) -> None:
    by_file = load_settings(CONFIG / name, ROOT, {})
    assert by_file.model_copy(update={"agents": ()}).model_dump() == load_settings(None, ROOT, {}).model_dump()
    assert [agent.jid for agent in by_file.agents] == ["echo@localhost"]
    assert by_file.warnings == ()


def test_demo_yaml_names_the_agents_of_the_demonstration() -> None:
    settings = load_settings(Path("config/demo.yaml"), ROOT, {})
    assert {agent.jid: agent.agent for agent in settings.agents} == {
        "echo@localhost": "spade_coreason.agents.echo:EchoAgent",
        "notes@localhost": "spade_coreason.agents.notes:NotesAgent",
        "relay@localhost": "spade_coreason.agents.relay:RelayAgent",
        "refunds@localhost": "spade_coreason.agents.refunds:RefundsAgent",
        "assistant@localhost": "spade_coreason.agents.assistant:AssistantAgent",
    }
    assert settings.agents[2].options["ask"] == ["echo@localhost", "notes@localhost"]
    assert settings.warnings == ()


def test_an_empty_file_and_sections_without_content_are_defaults(project: Path) -> None:
    default = load_settings(None, project, {}).model_dump()
    assert load_config(project, "").model_dump() == default
    assert load_config(project, "# nothing\n").model_dump() == default
    assert (
        load_config(project, "server:\nlimits:\n  # all commented out\nconversation: {cooldown_s: }\n").model_dump() == default
    )


def test_toml_says_the_same_as_yaml(project: Path) -> None:
    by_yaml = load_config(project, f"server: {{mode: prosody, port: 5300}}\n{agents_section(ECHO + ', options: {delay_s: 1}')}")
    by_toml = load_config(
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
    settings = load_config(project, agents_section(ECHO))
    with pytest.raises(ValidationError, match="frozen"):
        settings.server.port = 1  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError):
        settings.agents[0].options["x"] = 1  # type: ignore[index]  # likewise


def test_an_agent_may_have_rules_of_its_own(project: Path) -> None:
    settings = load_config(
        project,
        "conversation: {cooldown_s: 7, timeout_s: 8, command_prefixes: [/, '!']}\naccess: {allow: [example.org]}\n"
        + agents_section(
            ECHO + ", conversation: {timeout_s: 9, lifecycle: on_demand}, access: {allow: ['*']}",
            'jid: plain@localhost, agent: "a:B"',
        ),
    )
    own, common = (settings.conversation_of(agent) for agent in settings.agents)
    assert (own.cooldown_s, own.timeout_s, own.lifecycle) == (7, 9, "on_demand")
    assert common == settings.conversation
    assert own.command_prefixes == ("/", "!")
    assert [settings.access_of(agent).allow for agent in settings.agents] == [("*",), ("example.org",)]


def test_an_agent_may_have_other_notifications_and_takes_the_common_keys_for_the_rest(project: Path) -> None:
    settings = load_config(
        project,
        "notifications: {quiet: '22:00-07:00', zone: Europe/Berlin}\n"
        + agents_section(
            ECHO + ", notifications: {per_day: 3, quiet: none}",
            'jid: plain@localhost, agent: "a:B"',
        ),
    )
    own, common = (settings.notifications_of(agent) for agent in settings.agents)
    assert (own.per_day, own.quiet, own.zone) == (3, "none", "Europe/Berlin")
    assert common == settings.notifications
    assert (common.per_day, common.quiet) == (20, "22:00-07:00")


def test_an_agent_may_override_single_keys_of_inner_sections(project: Path) -> None:
    common = """
conversation: {retention: {days: 90, turns: 1000, states: {error: {turns: 5}, timeout: {days: 1}}}}
memory: {summariser: {url: "http://127.0.0.1:1/v1", model: small, api_key: secret, timeout_s: 9}}
"""
    own = (
        ", conversation: {retention: {days: 30}}, memory: {summariser: {timeout_s: 5}}",
        ", conversation: {retention: {states: {error: {turns: 7}}}}, memory: {summariser: {url: 'http://b/v1', model: big}}",
    )
    settings = load_config(
        project, common + agents_section(ECHO + own[0], 'jid: other@localhost, agent: "agents.echo:EchoAgent"' + own[1])
    )
    first, second = (settings.conversation_of(agent).retention for agent in settings.agents)
    assert first == settings.conversation.retention.model_copy(update={"days": 30})
    assert (second.days, second.turns) == (90, 1000)
    assert second.states == RetentionStates(error=Keep(turns=7))
    near, far = (settings.memory_of(agent).summariser for agent in settings.agents)
    assert near == settings.memory.summariser.model_copy(update={"timeout_s": 5})
    assert (far.url, far.model, far.timeout_s) == ("http://b/v1", "big", 9)
    assert far.api_key is None  # a key for one server never goes to another


def test_paths_of_a_file_begin_beside_it_and_the_default_in_the_project(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("etc") / "platform.yaml"
    elsewhere.write_text("storage: {url: 'sqlite+aiosqlite:///x.db?timeout=3', memory_dir: /var/memory}")
    settings = load_settings(elsewhere, project, {})
    assert settings.storage.url == f"sqlite+aiosqlite:///{elsewhere.parent}/x.db?timeout=3"
    assert settings.storage.memory_dir == Path("/var/memory")
    assert settings.data_dir == project / "data"
    assert settings.place("server") == f"{elsewhere}: server"


def test_data_are_stored_in_the_data_directory_unless_another_place_is_named(project: Path) -> None:
    settings = load_config(project, "data_dir: var\nstorage: {durability: normal}")
    assert settings.storage.url == f"sqlite+aiosqlite:///{project}/config/var/platform.db"
    assert settings.storage.memory_dir == project / "config/var/memory"
    settings = load_config(project, "storage: {memory_dir: m}", SPADE_COREASON_DATA_DIR="/srv/data")
    assert settings.data_dir == Path("/srv/data")
    assert settings.storage.url == "sqlite+aiosqlite:////srv/data/platform.db"
    assert settings.storage.memory_dir == project / "config/m"


def list_path_keys(section: type[BaseModel] = Settings, above: str = "") -> list[str]:
    """List the keys of paths, found by how their values are described in the documentation."""
    paths = []
    for key, annotation in get_type_hints(section, include_extras=True).items():
        inner = find_section(annotation)
        if inner is not None:
            paths += list_path_keys(inner, f"{above}{key}.")
        elif annotation in (ProjectPath, ProjectPath | None, DatabaseUrl):
            paths.append(above + key)
    return paths


def test_every_path_of_a_file_begins_beside_it_and_that_of_a_variable_in_the_project(project: Path) -> None:
    keys = list_path_keys()
    assert {"server.tls.ca_file", "storage.url", "data_dir", "agents.avatar"} <= set(keys)
    for key in keys:
        text = f"{SQLITE_PREFIX}x" if key.endswith("url") else "x"
        value: Any = text
        for step in reversed(key.split(".")):
            value = {step: value}
        values = {**value, "agents": [value["agents"]]} if "agents" in value else value
        found = json.dumps(resolve_paths(values, project / "config"))
        assert found == json.dumps(values).replace('x"', f'{project}/config/x"'), key
    assert load_config(project, "data_dir: a", SPADE_COREASON_DATA_DIR="b").data_dir == project / "b"
    options = "options: {endpoint: {api_key_file: key, url: 'http://h/v1'}, mcp: {a: {command: [x], cwd: there}}}"
    agent = load_config(project, agents_section(f"{ECHO}, {options}")).agents[0]
    assert agent.options["endpoint"] == {"api_key_file": f"{project}/config/key", "url": "http://h/v1"}
    assert agent.options["mcp"] == {"a": {"command": ["x"], "cwd": f"{project}/config/there"}}


def test_a_file_is_shown_as_a_person_would_write_it(project: Path) -> None:
    assert load_config(project, "").place("agents[0].agent") == "config/platform.yaml: agents[0].agent"
    assert load_settings(project / "config" / "platform.yaml", project, {}).place("x") == "config/platform.yaml: x"
    assert load_settings(None, project, {}).place("server.port") == "server.port"


def test_an_agent_joins_the_rooms_of_its_configuration_and_is_invited_into_no_other(project: Path) -> None:
    settings = load_config(project, agents_section(ECHO + ", rooms: [{jid: Room@Muc.localhost, nick: Echo}]"))
    room = settings.agents[0].rooms[0]
    assert (room.jid, room.nick, room.answers, room.agent_turns) == ("room@muc.localhost", "Echo", "mention", 6)
    assert settings.access_of(settings.agents[0]).rooms == ()


def test_an_agent_may_override_the_inviters_and_keep_the_common_allow_list(project: Path) -> None:
    text = "access: {allow: [example.org], rooms: [muc.localhost]}\n" + agents_section(
        ECHO + ", access: {rooms: [r@muc.localhost]}"
    )
    access = load_config(project, text)
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
    assert problem in config_error(project, agents_section(ECHO + f", rooms: [{{{room}}}]"))


def test_a_room_is_named_once(project: Path) -> None:
    assert "agents[0].rooms[1].jid" in config_error(
        project, agents_section(ECHO + ", rooms: [{jid: r@muc.localhost}, {jid: R@muc.localhost}]")
    )


def test_reading_settings_imports_neither_spade_nor_a_database() -> None:
    code = "import sys, spade_coreason.config; print(*(m for m in ('spade', 'slixmpp', 'sqlalchemy') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_warnings_and_origin_stay_with_a_copy(project: Path) -> None:
    settings = load_config(project, agents_section(ECHO + ", password: literal"))
    copy = settings.model_copy(update={"agents": ()})
    assert copy.warnings == settings.warnings
    assert copy.place("x") == settings.place("x")
    assert pickle.loads(pickle.dumps(copy)) == copy


def test_quotas_of_an_agent_are_its_own_keys_and_the_common_ones_for_the_rest(project: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "quotas.md").read_text(encoding="utf-8")
    example = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    agents = """
agents:
  - {jid: one@localhost, agent: "spade_coreason.agents.echo:EchoAgent"}
  - jid: two@localhost
    agent: "spade_coreason.agents.echo:EchoAgent"
    quotas: {person: {user: {messages_per_day: 7}, groups: {staff: {turns: 1}}}, room: {messages_per_minute: 9}}
"""
    settings = load_config(project, example + agents)
    one, two = (settings.quotas_of(agent) for agent in settings.agents)
    default = Quotas()
    assert one.user == replace(default.user, messages_per_minute=20, messages_per_day=500)
    assert one.groups == (
        Role("staff", frozenset({"alice@example.org", "example.com"}), replace(one.user, messages_per_day=5000)),
    )
    assert (one.room, one.domain, one.operator) == (default.room, default.domain, Quota())
    assert one.total == replace(default.total, messages_per_day=100_000)
    assert two.user == replace(one.user, messages_per_day=7)
    assert two.groups[0].quota == replace(one.groups[0].quota, turns=1)
    assert two.room == replace(default.room, messages_per_minute=9)


def test_a_quota_of_null_is_the_default(project: Path) -> None:
    text = "quotas: {person: {user: {turns: null}, operator: {turns: null}}, domain: {turns: null}, total: {turns: null}}"
    settings = load_config(project, f"{text}\n{agents_section(ECHO)}")
    assert settings.quotas_of(settings.agents[0]) == Quotas()
    pages = [(ROOT / "docs" / page).read_text("utf-8") for page in ("how-to/quotas.md", "reference/configuration.md")]
    assert not any(re.search(r"turns: null|null means a quarter", page) for page in pages)


def test_the_page_about_quotas_names_the_defaults() -> None:
    page = (ROOT / "docs" / "how-to" / "quotas.md").read_text(encoding="utf-8")
    quotas = Quotas()
    for quota in (quotas.user, quotas.domain, quotas.total):
        text = f"{quota.messages_per_minute:,} messages a minute, {quota.messages_per_day:,} a day"
        assert text in page
        sizes = (f"{quota.bytes_per_minute // 2**20} MiB a minute", f"{quota.bytes_per_minute // 2**30} GiB a minute")
        assert any(size in page for size in sizes)
        assert f"{quota.bytes_per_day // 2**30} GiB a day" in page
