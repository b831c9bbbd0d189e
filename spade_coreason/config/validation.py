"""What settings must be beyond the single key: things that must agree with each other, and files that must be there."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from ..domain.avatar import read_avatar
from ..domain.jid import bare_jid, jid_domain, local_part
from .environment import KeyPath
from .settings import AgentSettings, Settings

LOCAL_DOMAIN = "localhost"


def find_problems(settings: Settings, *, logs_in: bool) -> Iterator[tuple[KeyPath, str]]:
    """Each mistake with its key and a sentence; none where everything agrees. Accounts matter where somebody `logs_in`."""
    yield from _find_server_problems(settings)
    first: dict[str, int] = {}
    for number, agent in enumerate(settings.agents):
        place = ("agents", number)
        before = first.setdefault(bare_jid(agent.jid), number)
        if before != number:
            yield (*place, "jid"), f"{bare_jid(agent.jid)} is agents[{before}] already; every agent needs a JID of its own"
        if logs_in:
            yield from _find_account_problems(settings, agent, place)
        admitted = settings.access_of(agent)
        if admitted.ask and not admitted.operators:
            key = (*place, "access", "ask") if agent.access is not None else ("access", "ask")
            yield key, "nobody is there to ask; name the operators: access: {ask: true, operators: [me@example.org]}"
        rooms = [room.jid for room in agent.rooms]
        for index, room in enumerate(rooms):
            if room in rooms[:index]:
                yield (*place, "rooms", index, "jid"), f"{room} is rooms[{rooms.index(room)}] already; name it once"
        if agent.manifest is not None and not agent.manifest.is_file():
            yield (*place, "manifest"), f"there is no file {agent.manifest}; correct the name, or leave it out"
        if agent.avatar is not None:
            try:
                read_avatar(agent.avatar)
            except ValueError as error:
                yield (*place, "avatar"), str(error)


def _find_server_problems(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    server = settings.server
    if server.tls.ca_file is not None and not server.tls.ca_file.is_file():
        yield ("server", "tls", "ca_file"), f"there is no file {server.tls.ca_file}; correct the name, or leave it out"
    if not server.is_local:
        return
    if server.domain != LOCAL_DOMAIN:
        remedy = f"leave it out, or write mode: external if {server.domain} runs elsewhere"
        yield ("server", "domain"), f'a local server (mode: {server.mode}) is "{LOCAL_DOMAIN}"; {remedy}'
    if server.host is not None and not _is_loopback(server.host):
        remedy = f"leave it out, or write mode: external if {server.host} is the server"
        yield ("server", "host"), f"a local server (mode: {server.mode}) is on this machine only; {remedy}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _find_account_problems(settings: Settings, agent: AgentSettings, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    server, name = settings.server, local_part(agent.jid)
    if server.is_local and jid_domain(agent.jid) != server.domain:
        remedy = f"write {name}@{server.domain}, or mode: external in server"
        yield (*place, "jid"), f"{agent.jid} is not on the local server, which is {server.domain}; {remedy}"
    if agent.password is not None and agent.password_file is not None:
        yield (*place, "password_file"), "there is a password too; keep one of the two"
    if agent.password is not None and not agent.password.get_secret_value():
        yield (*place, "password"), "is empty; leave it out on a local server, or give the real one"
    if not server.is_local and agent.password is None and agent.password_file is None:
        variable = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()
        remedy = f'password: "${{{variable}_PASSWORD}}" with that variable set, or password_file: FILE'
        yield (*place, "password"), f"is missing, and an external server asks for it; write {remedy}"


def find_warnings(settings: Settings, literal_passwords: list[KeyPath]) -> Iterator[tuple[KeyPath, str]]:
    """What works and should be otherwise. `literal_passwords` are the keys of the passwords that stand in the file itself."""
    if literal_passwords:
        also = f" (and {len(literal_passwords) - 1} more)" if len(literal_passwords) > 1 else ""
        remedy = 'better in the environment ("${NAME}") or in a password_file'
        yield literal_passwords[0], f"a password stands in the file{also}, where everybody sees it who sees the file; {remedy}"
    if not settings.server.is_local and not settings.server.tls.verify:
        remedy = "for a certificate of your own give tls.ca_file instead"
        yield ("server", "tls", "verify"), f"is off: whoever is on the way can read and change everything; {remedy}"
