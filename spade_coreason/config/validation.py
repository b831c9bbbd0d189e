"""Validation of settings: the text for a mistake in one key, and checks across several keys and of files."""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..domain.access import AccessPolicy
from ..domain.avatar import read_avatar
from ..domain.environment.installation import install_hint
from ..domain.environment.loopback import is_loopback
from ..domain.jid import bare_jid, jid_domain, local_part
from ..domain.policy import section_keys
from ..domain.texts.enumeration import join_names
from .environment import KeyPath, format_key
from .mistakes import MESSAGES
from .settings import AccessSettings, AgentSettings, QuotaSettings, Settings, WebSettings, find_section

LOCAL_DOMAIN = "localhost"

_MESSAGES = {**MESSAGES, "missing": "is missing; every agent needs it"}
_EXTRAS = {
    "web": ("starlette", "uvicorn"),
    "a2a": ("a2a",),
    "mcp": ("mcp",),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
}
"""The extras that doors, metrics and traces need, and the modules that each brings."""
_GONE_FROM_AGENTS = ("isolation", "memory_mb")
"""The keys of agents that were taken away."""
_OWN_PLATFORM = "is gone; remove it. An agent that blocks or crashes gets a platform and a configuration of its own"
SECRET = re.compile(r"\b(password|options|url)\b")


def describe_mistakes(error: ValidationError, raw: Any) -> list[tuple[KeyPath, str]]:
    """Return the key and the text of each mistake, unknown keys first. `raw` are the values before `${VAR}` was replaced."""
    errors = sorted(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
    mistyped = {details["loc"][:-1] for details in errors if details["type"] == "extra_forbidden"}
    mistakes = []
    for details in errors:
        if details["type"] == "missing" and details["loc"][:-1] in mistyped:
            continue  # the unknown key beside it says more
        path: KeyPath = tuple(step for step in details["loc"] if step != "[key]")
        mistakes.append((path, _describe(details, path, raw)))
    return mistakes


def _describe(details: ErrorDetails, path: KeyPath, raw: Any) -> str:
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return _unknown_key(path)
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return _unknown_choice(re.findall(r"'([^']*)'", context["expected"]), _value_at(raw, path), path)
        case kind if kind in _MESSAGES:
            return _MESSAGES[kind].format(**context, given=_format_given(_value_at(raw, path), path))
        case _:
            return details["msg"][:1].lower() + details["msg"][1:]


def _format_given(value: Any, path: KeyPath) -> str:
    # A text is shown as written in the file, so that the value of a variable is not disclosed.
    if value is None or isinstance(value, dict | list) or SECRET.search(format_key(path)):
        return ""
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    return f', not "{value}"' if isinstance(value, str) else f", not {value}"


def _value_at(raw: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _unknown_choice(choices: list[str], value: Any, path: KeyPath) -> str:
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f"must be {join_names(choices, 'or')}{_format_given(value, path)}{hint}"


def _unknown_key(path: KeyPath) -> str:
    *above, key = path
    if above[:1] == ["agents"] and len(above) == 2 and key in _GONE_FROM_AGENTS:
        return _OWN_PLATFORM
    section = _section_at(tuple(above))
    keys = list(section_keys(section))
    given = str(key).lower().replace("-", "_")
    near = difflib.get_close_matches(given, keys, n=1)
    elsewhere = [other for other in _all_keys(Settings) if other[-1] == key]
    if (len(elsewhere) == 1 or (elsewhere and not above)) and not difflib.get_close_matches(given, keys, n=1, cutoff=0.75):
        return f'unknown key here; did you mean "{".".join(elsewhere[0])}"?'
    if near:
        return f'unknown key; did you mean "{near[0]}"?'
    return f"unknown key; the keys are {', '.join(keys)}"


def _section_at(path: KeyPath) -> type[BaseModel]:
    section: type[BaseModel] = Settings
    for step in path:
        inner = None if isinstance(step, int) else find_section(section_keys(section).get(step))
        section = inner or section
    return section


def _all_keys(section: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, annotation in section_keys(section).items():
        yield (*above, key)
        inner = find_section(annotation)
        if inner is not None and key != "agents":
            yield from _all_keys(inner, (*above, key))


def _find_unknown_groups(
    quotas: QuotaSettings | None, path: KeyPath, *sections: AccessSettings | None
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the groups in `quotas` that none of the sections defines."""
    known = [name for section in sections if section is not None for name in section.groups]
    for group in quotas.person.groups if quotas is not None else ():
        if group not in known:
            near = difflib.get_close_matches(group, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"define it: access: {{groups: {{{group}: [JID, domain]}}}}"
            yield (*path, "person", "groups", group), f"the group is not defined; {hint}"


def find_approver_problem(settings: Settings, agent: AgentSettings, group: str) -> str | None:
    """Return why a group cannot approve calls of an agent, or None: it is unknown, names no account, or one has no access."""
    access = settings.access_of(agent)
    if group not in access.groups:
        near = difflib.get_close_matches(group, access.groups, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"define it: access: {{groups: {{{group}: [JID]}}}}"
        return f'there is no group "{group}"; {hint}'
    people = [member for member in access.groups[group] if "@" in member]
    if not people:
        return f'the group "{group}" names no account that can be asked; add JIDs to access.groups.{group}'
    if access.roster or access.ask:
        return None  # people may be admitted whom the configuration does not name
    policy = AccessPolicy(bare_jid(agent.jid), access.allow, operators=access.operators)
    without = [person for person in people if not policy.is_allowed(person)]
    if without:
        return f'{", ".join(without)} of the group "{group}" cannot answer without access; add them to access.allow'
    return None


def find_problems(settings: Settings, *, logs_in: bool) -> Iterator[tuple[KeyPath, str]]:
    """Yield the mistakes that concern several keys or a file, each as its key and a sentence.

    Accounts are checked only with `logs_in`.
    """
    yield from _find_server_problems(settings)
    if settings.web is not None:
        yield from _find_web_problems(settings.web)
    if settings.metrics is not None:
        if problem := _find_missing_extra("metrics"):
            yield ("metrics",), problem
        if settings.web is not None and settings.metrics.address == (settings.web.host, settings.web.port):
            yield ("metrics", "listen"), f"{settings.metrics.listen} is the address of web; choose another port"
    if settings.tracing.enabled and (problem := _find_missing_extra("otel")):
        yield ("tracing", "enabled"), problem
    all_access = (settings.access, *(agent.access for agent in settings.agents))
    yield from _find_unknown_groups(settings.quotas, ("quotas",), *all_access)
    yield from _find_together_problems(settings)
    first: dict[str, int] = {}
    for number, agent in enumerate(settings.agents):
        place = ("agents", number)
        before = first.setdefault(bare_jid(agent.jid), number)
        if before != number:
            yield (*place, "jid"), f"{bare_jid(agent.jid)} is already the JID of agents[{before}]; give each agent its own JID"
        if logs_in:
            yield from _find_account_problems(settings, agent, place)
        access = settings.access_of(agent)
        if access.ask and not access.operators:
            key = (*place, "access", "ask") if agent.access is not None else ("access", "ask")
            yield key, "no operators are configured; name them: access: {ask: true, operators: [me@example.org]}"
        yield from _find_unknown_groups(agent.quotas, (*place, "quotas"), access)
        if (group := settings.approvals_of(agent).approvers) is not None:
            is_own = agent.approvals is not None and "approvers" in agent.approvals.model_fields_set
            if problem := find_approver_problem(settings, agent, group):
                yield (*place, "approvals", "approvers") if is_own else ("approvals", "approvers"), problem
        rooms = [room.jid for room in agent.rooms]
        for index, room in enumerate(rooms):
            if room in rooms[:index]:
                yield (*place, "rooms", index, "jid"), f"{room} is already rooms[{rooms.index(room)}]; name it once"
        yield from _find_door_problems(settings, agent, place)
        if agent.manifest is not None and not agent.manifest.is_file():
            yield (*place, "manifest"), f"no such file: {agent.manifest}; correct the name, or remove the key"
        if agent.avatar is not None:
            try:
                read_avatar(agent.avatar)
            except ValueError as error:
                yield (*place, "avatar"), str(error)


def find_ca_file_problem(file: Path | None) -> str | None:
    """Return why a file with authorities cannot be used, or None."""
    if file is None:
        return None
    if not file.is_file():
        return f"no such file: {file}; correct the name, or remove the key"
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # an SSLError too
        reason = "is no PEM file with a certificate" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
        return f"{file} {reason}; correct the file, or name another one"
    return None


def _find_server_problems(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    server = settings.server
    if problem := find_ca_file_problem(server.tls.ca_file):
        yield ("server", "tls", "ca_file"), problem
    if not server.is_local:
        if server.people:
            yield ("server", "people"), "an external server has its own accounts; remove the key"
        return
    for number, person in enumerate(server.people):
        if jid_domain(person) != server.domain:
            place = ("server", "people", number)
            remedy = f"write {local_part(person)}@{server.domain}"
            yield place, f"{person} is not on the domain of the local server, {server.domain}; {remedy}"
        elif person in (bare_jid(agent.jid) for agent in settings.agents):
            yield ("server", "people", number), f"{person} is the JID of an agent; give the person another one"
    if server.domain != LOCAL_DOMAIN:
        remedy = f"remove the key, or write mode: external if {server.domain} is your own server"
        yield ("server", "domain"), f'a local server (mode: {server.mode}) has the domain "{LOCAL_DOMAIN}"; {remedy}'
    if server.host is not None and not is_loopback(server.host):
        remedy = f"remove the key, or write mode: external if {server.host} is your own server"
        yield ("server", "host"), f"a local server (mode: {server.mode}) runs on this machine only; {remedy}"


def _find_web_problems(web: WebSettings) -> Iterator[tuple[KeyPath, str]]:
    if problem := _find_missing_extra("web"):
        yield ("web",), problem
    if not is_loopback(web.host) and web.tls is None and not web.proxies:
        remedy = "set web.tls, or name your reverse proxy in web.proxies, or write host: 127.0.0.1"
        yield ("web", "host"), f"{web.host} is reached from the network, where keys must not travel in plain text; {remedy}"
    if web.host in ("0.0.0.0", "::") and web.url is None:
        yield ("web", "url"), f"is missing, and host: {web.host} names none; write url: https://agents.example.org"
    if web.tls is None:
        return
    files = {"certificate": web.tls.certificate, "key": web.tls.key}
    if missing := [name for name, file in files.items() if not file.is_file()]:
        yield from ((("web", "tls", name), f"no such file: {files[name]}; correct the name") for name in missing)
    else:
        try:
            web.tls.load()
        except ssl.SSLError:
            problem = "are no certificate and its key, in PEM and without a password; correct the files"
            yield ("web", "tls"), f"{web.tls.certificate} and {web.tls.key} {problem}"
        except OSError as error:
            yield ("web", "tls"), f"the files cannot be read: {error.strerror}; correct their permissions"


def _find_door_problems(settings: Settings, agent: AgentSettings, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if agent.doors and settings.web is None:
        yield (*place, "doors"), "needs the HTTP server; add it: web: {port: 8080}"
    for number, door in enumerate(agent.doors):
        if door in agent.doors[:number]:
            yield (*place, "doors", number), f"{door} is already doors[{agent.doors.index(door)}]; name it once"
        elif problem := _find_missing_extra(door if door in _EXTRAS else "web"):
            yield (*place, "doors", number), problem


def _find_missing_extra(extra: str) -> str | None:
    if all(map(find_spec, _EXTRAS[extra])):
        return None
    return f"needs the extra {extra}; run: {install_hint(extra)}"


def _find_together_problems(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    agents = [bare_jid(agent.jid) for agent in settings.agents]
    first: dict[str, int] = {}
    for number, group in enumerate(settings.workers.together):
        for index, jid in enumerate(group):
            place = ("workers", "together", number, index)
            if jid not in agents:
                near = difflib.get_close_matches(jid, agents, n=1)
                hint = f"did you mean {near[0]}?" if near else "name agents of this configuration"
                yield place, f"{jid} is none of the agents; {hint}"
            elif first.setdefault(jid, number) != number:
                yield place, f"{jid} is already in together[{first[jid]}]; make one group of both, or name it once"


def _find_account_problems(settings: Settings, agent: AgentSettings, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    server, name = settings.server, local_part(agent.jid)
    if server.is_local and jid_domain(agent.jid) != server.domain:
        remedy = f"write {name}@{server.domain}, or set server.mode: external"
        yield (*place, "jid"), f"{agent.jid} is not on the domain of the local server, {server.domain}; {remedy}"
    if agent.password is not None and agent.password_file is not None:
        yield (*place, "password_file"), "conflicts with password; keep one of them"
    if agent.password is not None and not agent.password.get_secret_value():
        yield (*place, "password"), "is empty; set the password, or remove the key on a local server"
    if not server.is_local and agent.password is None and agent.password_file is None:
        variable = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()
        remedy = f'password: "${{{variable}_PASSWORD}}" with that variable set, or password_file: FILE'
        yield (*place, "password"), f"is missing, and an external server requires it; write {remedy}"


def find_warnings(settings: Settings, literal_passwords: list[KeyPath]) -> Iterator[tuple[KeyPath, str]]:
    """Yield warnings about settings that work but should be changed, each as its key and a sentence.

    `literal_passwords` are the keys of the passwords that stand in the file itself.
    """
    if literal_passwords:
        also = f" (and {len(literal_passwords) - 1} more)" if len(literal_passwords) > 1 else ""
        remedy = 'put it in the environment ("${NAME}") or in a password_file'
        yield (
            literal_passwords[0],
            f"the file contains a password in plain text{also}, which every reader of the file can see; {remedy}",
        )
    if not settings.server.is_local and not settings.server.tls.verify:
        remedy = "for your own certificate, set tls.ca_file instead"
        yield ("server", "tls", "verify"), f"is off, so an attacker in the network can read and change all messages; {remedy}"
    if not settings.server.is_local and not settings.server.tls.required:
        problem = "is off, so every program on this machine that can listen on the server's port can read all messages"
        yield ("server", "tls", "required"), f"{problem}; enable TLS on the server, and remove this key"
