"""Every key of the settings has an effect: a platform that has another value of it has other parts."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path
from types import MethodType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from spade_coreason import AgentDefinition, Platform, load_settings
from spade_coreason.app.factories import build_memory_limits, build_policy
from spade_coreason.config import AgentSettings, Settings, WebLimits
from spade_coreason.config.settings import (
    AccessSettings,
    ApprovalSettings,
    MetricsSettings,
    NotificationSettings,
    RoomSettings,
    WebSettings,
    find_section,
)
from spade_coreason.domain.initiative.notifications import NotificationPolicy, QuietHours
from spade_coreason.domain.policy import Keep, MemoryLimits, Policy, RetentionStates, Rules, Section
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.certificates import sign_by_itself
from tests.support.picture_files import make_picture

WEB_PORT, OTHER_WEB_PORT, METRICS_PORT, OTHER_METRICS_PORT = find_free_ports(4)
BASE: dict[str, Any] = {
    "server": {"mode": "external", "domain": "localhost", "host": "127.0.0.1", "port": 1},
    "memory": {"summariser": {"url": "http://127.0.0.1:1/v1", "model": "small"}},
    "knowledge": {"embedder": "openai", "url": "http://127.0.0.1:1/v1", "model": "small"},
    "access": {"groups": {"staff": ["alice@localhost"]}, "operators": ["alice@localhost"]},
    "quotas": {"person": {"groups": {"staff": {"turns": 3}}}},
    "web": {"port": WEB_PORT},
    "metrics": {"listen": f"127.0.0.1:{METRICS_PORT}"},
    "agents": [
        {
            "jid": f"{name}@localhost",
            "agent": "project_code:Remembering",
            "password": "secret",
            "rooms": [{"jid": "room@rooms.localhost"}],
        }
        for name in ("echo", "other")
    ],
}
"""Settings in which each key has a use, for a server that does not answer."""
CODE = """
from spade_coreason import AgentInteractionMemory
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.contracts import Interceptor

class Remembering(EchoAgent):
    def __init__(self, manifest, memory: AgentInteractionMemory, delay_s=0.0):
        super().__init__(manifest, delay_s)
        self.memory = memory

class Limit(Interceptor):
    def receive(self, request):
        raise NotImplementedError
"""
OTHERS: dict[str, Any] = {
    "server.domain": "example.org",
    "server.host": "127.0.0.2",
    "server.port": 2,
    "server.tls.ca_file": "authority.pem",
    "data_dir": "elsewhere",
    "storage.url": "sqlite+aiosqlite:///elsewhere.db",
    "storage.memory_dir": "elsewhere",
    "conversation.command_prefixes": ["/", "!"],
    "conversation.retention.states.active": {"days": 7},
    "conversation.retention.states.completed": {"days": 7},
    "conversation.retention.states.error": {"days": 7},
    "conversation.retention.states.timeout": {"days": 7},
    "conversation.retention.states.max_interactions_reached": {"days": 7},
    "memory.summary_prompt": "Sum up.",
    "memory.tokenizer": "cl100k",
    "memory.summariser.url": "http://127.0.0.1:2/v1",
    "memory.summariser.model": "large",
    "memory.summariser.api_key": "key",
    "knowledge.url": "http://127.0.0.1:2/v1",
    "knowledge.model": "large",
    "knowledge.api_key": "key",
    "knowledge.embedder": "none",
    "access.allow": ["example.org"],
    "quotas.person.user.turns": 7,
    "quotas.room.turns": 7,
    "access.operators": ["bob@localhost"],
    "access.rooms": ["rooms.example.org"],
    "access.groups": {"staff": ["bob@localhost"]},
    "access.trusted_domains": ["example.org"],
    "quotas.person.groups": {"staff": {"turns": 4}},
    "notifications.quiet": "22:00-07:00",
    "notifications.zone": "Europe/Berlin",
    "approvals.approvers": "staff",
    "peers.topics": "topics@example.org",
    "peers.directories": ["directory@example.org"],
    "web.host": "localhost",
    "web.port": OTHER_WEB_PORT,
    "web.url": "https://agents.example.org",
    "web.tls": {"certificate": "cert.pem", "key": "key.pem"},
    "web.cors_origins": ["https://chat.example.org"],
    "metrics.listen": f"127.0.0.1:{OTHER_METRICS_PORT}",
    "interceptors": ["project_code:Limit"],
    "agents[].doors": ["openai"],
    "agents[].jid": "third@localhost",
    "agents[].agent": "spade_coreason.agents.echo:EchoAgent",
    "agents[].password": "other",
    "agents[].options": {"delay_s": 7},
    "agents[].manifest": "manifest.yaml",
    "agents[].avatar": "avatar.png",
    "agents[].conversation": {"max_interactions": 7},
    "agents[].notifications": {"quiet": "22:00-07:00"},
    "agents[].approvals": {"approvers": "staff"},
    "agents[].access": {"roster": True},
    "agents[].quotas": {"room": {"turns": 7}},
    "agents[].memory": {"limit": 7},
    "agents[].interceptors": ["project_code:Limit"],
    "agents[].rooms[].jid": "tea@rooms.localhost",
    "agents[].rooms[].nick": "Echo",
    "agents[].rooms[].password": "key",
}
"""Another value of each key whose type and default do not give one."""
READ_RULES = ("max_interactions", "cooldown_s", "timeout_s", "max_failures")
"""The rules that parts read from `Rules`. They get the others one by one."""
READ_SECTIONS = (Rules, Keep, RetentionStates)
PLAIN = (str, int, float, bytes, Path, timedelta, frozenset, type(None))
UNSEEN = {
    "server.domain": "it is in the file for other commands: tests/cli/test_ask.py",
    "server.people": "they have accounts on a local server: tests/cli/test_ask.py",
    "server.mode": "another value starts a server: tests/xmpp/servers/test_local_servers.py",
    "conversation.on_restart": "it is read at a restart: tests/runtime/test_runner_restart.py",
    "memory.tokenizer": "it chooses a function: tests/memory/test_memory_docs.py",
    "limits.grace_s": "it is read when the platform stops: tests/cli/test_reload.py",
    "web.openai.system_prompt": "it is read with a request: tests/doors/openai/test_chat.py",
    "metrics.hosts": "they are served at the port: tests/app/test_metrics_port.py",
    "web.proxies": "they are believed about clients: tests/doors/test_guard.py",
    "web.page.approvals_h": "it is read when a person decides: tests/page/",
    "tracing.texts": "it is read if `tracing.enabled` is true: tests/app/test_tracing.py",
    "workers.lease_s": "it is for several platforms: tests/app/test_workers.py",
    "workers.together": "it is for several platforms: tests/app/test_shares.py",
    "agents[].password_file": "it is in place of the password: tests/config/test_secrets.py",
    "agents[].directory": "it is in place of an agent: tests/app/test_directory.py",
}
"""The keys whose effect is not in the parts of a platform, each with the reason and the tests of its effect."""
UNSEEN |= {f"web.limits.{name}": "the server has the section itself: tests/doors/" for name in WebLimits.model_fields}


def find_keys(section: type[Section] = Settings, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Iterate over the keys that are no sections: the path, the annotation and the default of each."""
    hints = get_type_hints(section, include_extras=True)
    for attribute, field in section.model_fields.items():
        place, inner = f"{path}{field.alias or attribute}", find_section(field.annotation)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if inner is WebSettings or inner is MetricsSettings:
            yield from find_keys(inner, f"{place}.")
        elif inner in (AgentSettings, RoomSettings):
            yield from find_keys(inner, f"{place}[].")
        elif isinstance(default, Section):
            yield from find_keys(type(default), f"{place}.")
        else:
            yield place, hints[attribute], default


def find_choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return next(filter(None, map(find_choices, get_args(annotation))), ())
    return ()


def change(values: dict[str, Any], path: str, other: Any) -> dict[str, Any]:
    """Return a copy of the values of a configuration with another value of one key."""
    changed = copy.deepcopy(values)
    *sections, key = path.split(".")
    place = changed
    for name in sections:
        place = place[name.removesuffix("[]")][0] if name.endswith("[]") else place.setdefault(name, {})
    place[key] = other
    return changed


def find_parts(root: object) -> dict[str, str]:
    """Return the plain values in an object, and in the objects of the package that it refers to, by the path to each.

    Settings and `Policy` are left out: a value that goes no further has no effect. Parts read the rules of conversations and
    their retention themselves.
    """
    found, seen, places = dict[str, str](), set[int](), [("", root)]
    while places:
        path, part = places.pop()
        if is_plain(part) or (isinstance(part, list) and all(map(is_plain, part))):
            found[path] = repr(part)
        elif id(part) not in seen and (isinstance(part, READ_SECTIONS) or not isinstance(part, Section | Policy)):
            seen.add(id(part))
            places += [(f"{path}.{name}", inner) for name, inner in find_inner(part)]
    return found


def is_plain(part: object) -> bool:
    return isinstance(part, PLAIN)


def find_inner(part: object) -> Iterator[tuple[object, object]]:
    if isinstance(part, MethodType):
        yield "self", part.__self__
    elif isinstance(part, Mapping):
        yield from list(part.items())
    elif isinstance(part, list | tuple):
        yield from enumerate(part)
    elif isinstance(part, Rules):
        yield from ((name, getattr(part, name)) for name in READ_RULES)
    elif type(part).__module__.startswith(("spade_coreason", "project_code")):
        yield "type", type(part).__name__
        yield from getattr(part, "__dict__", {}).items()
        for kind in type(part).__mro__:
            yield from ((name, getattr(part, name, None)) for name in slots_of(kind))


def slots_of(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


async def build_parts(project: Path, values: dict[str, Any]) -> dict[str, str]:
    (project / "platform.yaml").write_text(yaml.safe_dump(values))
    async with Platform(load_settings(project / "platform.yaml", project, {}), is_strict=False) as platform:
        assert len(platform.agents) == len(values["agents"])
        return find_parts(platform)


async def test_each_key_of_the_settings_has_an_effect(tmp_path: Path) -> None:
    (tmp_path / "project_code.py").write_text(CODE)
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(AgentDefinition.simple("other").model_dump(mode="json")))
    shutil.copy(sign_by_itself(tmp_path, "authority").certificate, tmp_path / "authority.pem")
    (tmp_path / "avatar.png").write_bytes(make_picture("png"))
    _, parts, again = [await build_parts(tmp_path, BASE) for _ in range(3)]
    varying = {path for path, value in parts.items() if again.get(path) != value}
    paths, without_effect = {path for path, _, _ in find_keys()}, []
    assert paths >= OTHERS.keys() | UNSEEN.keys()
    for path, annotation, default in find_keys():
        if path in UNSEEN:
            continue
        choices = [choice for choice in find_choices(annotation) if choice != default]
        if path in OTHERS:
            other = OTHERS[path]
        elif isinstance(default, bool):
            other = not default
        else:
            other = choices[0] if choices else default + 7
        changed = await build_parts(tmp_path, change(BASE, path, other))
        if not {place for place, _ in parts.items() ^ changed.items()} - varying:
            without_effect.append(path)
    assert without_effect == []


def test_the_policy_of_an_agent_has_its_quiet_hours_its_zone_and_the_time_of_its_jobs() -> None:
    agent = AgentSettings(
        jid="echo@localhost",
        agent="spade_coreason.agents.echo:EchoAgent",
        notifications=NotificationSettings(quiet="22:00-07:00", zone="Europe/Berlin"),
        conversation=Rules(job_timeout_s=60),
    )
    common = Settings(agents=(agent,), notifications=NotificationSettings(per_day=3))
    policy = build_policy(common, agent, None)
    assert policy.notifications == NotificationPolicy(3, QuietHours(time(22), time(7)), "Europe/Berlin")
    assert (policy.rules.job_timeout_s, policy.rules.assist_timeout_s) == (60, 120)


def test_the_policy_of_an_agent_has_its_approvers_and_their_time() -> None:
    agent = AgentSettings(
        jid="echo@localhost",
        agent="spade_coreason.agents.echo:EchoAgent",
        approvals=ApprovalSettings(approvers="finance", from_risk="never"),
    )
    access = AccessSettings(groups={"finance": ("alice@localhost",)}, operators=("bob@localhost",))
    common = Settings(agents=(agent,), access=access, approvals=ApprovalSettings(timeout_h=2))
    policy = build_policy(common, agent, None).approvals
    assert (policy.approvers, policy.from_risk, policy.timeout, policy.refusal) == ("finance", None, timedelta(hours=2), "")
    assert (policy.find_approvers(None), policy.groups) == (("alice@localhost",), access.groups)
    assert policy.operators == ("bob@localhost",)


async def test_approvals_are_refused_without_the_page_where_senders_can_be_forged(tmp_path: Path) -> None:
    for mode in ("embedded", "external"):
        values = BASE | {"web": None, "server": {"mode": mode, "host": "127.0.0.1"}, "data_dir": str(tmp_path / mode)}
        (tmp_path / "project_code.py").write_text(CODE)
        (tmp_path / "platform.yaml").write_text(yaml.safe_dump(values))
        async with Platform(load_settings(tmp_path / "platform.yaml", tmp_path, {}), is_strict=False) as platform:
            refusals = {runner.policy.approvals.refusal.partition(";")[0] for runner in platform.runners.values()}
        refused = "approvals are decided in the browser only on the embedded server, where senders can be forged"
        assert refusals == {refused if mode == "embedded" else ""}


def test_with_the_page_approvals_are_decided_there_where_senders_can_be_forged() -> None:
    agent = AgentSettings(jid="echo@localhost", agent="spade_coreason.agents.echo:EchoAgent")
    for web, page in ((WebSettings(), "http://127.0.0.1:8080"), (WebSettings(page=False), ""), (None, "")):
        settings = Settings(agents=(agent,), web=web)
        forged, verified = (build_policy(settings, agent, None, has_forgery=has_forgery) for has_forgery in (True, False))
        assert (forged.approvals.page, bool(forged.approvals.refusal)) == (page, not page)
        assert (verified.approvals.page, verified.approvals.refusal) == ("", "")
        assert forged.has_page is verified.has_page is bool(page)


def test_the_defaults_of_the_settings_are_those_of_the_policy() -> None:
    agent = AgentSettings(jid="echo@localhost", agent="spade_coreason.agents.echo:EchoAgent")
    policy = build_policy(Settings(agents=(agent,)), agent, None)
    assert replace(policy, memory=policy.memory.model_copy(update={"summary_prompt": None})) == Policy()
    assert build_memory_limits(Settings()) == MemoryLimits()
