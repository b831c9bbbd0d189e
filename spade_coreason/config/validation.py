"""Validation of settings: checks across several keys and of files."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..domain.access import AccessPolicy
from ..domain.avatar import read_avatar
from ..domain.environment.installation import install_hint
from ..domain.environment.loopback import is_loopback
from ..domain.jid import bare_jid, jid_domain, local_part
from ..domain.questions import ApprovalPolicy
from ..domain.texts.enumeration import did_you_mean
from .mistakes import KeyPath
from .settings import AccessSettings, AgentSettings, QuotaSettings, Settings, WebSettings

LOCAL_DOMAIN = "localhost"

_EXTRAS = {
    "web": ("starlette", "uvicorn"),
    "a2a": ("a2a",),
    "mcp": ("mcp",),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
}
"""The extras that doors, metrics and traces need, and the modules that each brings."""


def _find_unknown_groups(
    quotas: QuotaSettings | None, path: KeyPath, *sections: AccessSettings | None
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the groups in `quotas` that none of the sections defines."""
    known = [name for section in sections if section is not None for name in section.groups]
    for group in quotas.person.groups if quotas is not None else ():
        if group not in known:
            hint = did_you_mean(group, known, f"define it: access: {{groups: {{{group}: [JID, domain]}}}}")
            yield (*path, "person", "groups", group), f"the group is not defined; {hint}"


def find_approver_problem(settings: Settings, agent: AgentSettings, group: str) -> str | None:
    """Return why a group cannot approve calls of an agent, or None: it is unknown, names no account, or one has no access."""
    access = settings.access_of(agent)
    try:
        people = ApprovalPolicy(groups=access.groups).find_approvers(group)
    except ValueError as error:
        return str(error)
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
                hint = did_you_mean(jid, agents, "name agents of this configuration")
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
