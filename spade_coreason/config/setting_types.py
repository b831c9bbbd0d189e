"""The types of values in settings: addresses, names, paths."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, ValidationInfo

from ..domain.callers import refuse_caller
from ..domain.initiative.notifications import QuietHours
from ..domain.initiative.schedules import check_zone
from ..domain.jid import bare_jid, parse_domain, parse_jid
from .importer import suggest_agent_name

_MAX_NICK_CHARACTERS = 100
_TOKENIZERS = ("auto", "o200k", "cl100k", "estimate")
SQLITE_PREFIX = "sqlite+aiosqlite:///"
_POSTGRESQL_PREFIX = "postgresql+asyncpg://"
_AGENT_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _parse_domain(text: str) -> str:
    return parse_domain(refuse_caller(text))


def _parse_jid(text: str) -> str:
    return parse_jid(refuse_caller(text))


def _parse_address(text: str) -> str:
    if text == "*":
        return text
    if "@" not in text:
        return _parse_domain(text)
    jid = _parse_jid(text)
    if jid != bare_jid(jid):
        raise ValueError(f'"{text}" names a device; write {bare_jid(jid)}')
    return jid


def _parse_person(jid: str) -> str:
    return _parse_address(_parse_jid(jid))


def _check_tokenizer(name: str) -> str:
    if name in _TOKENIZERS or _AGENT_SPEC.fullmatch(name):
        return name
    raise ValueError(f"must be {', '.join(_TOKENIZERS)}, or a function of your own, as module:function")


def _parse_room(text: str) -> str:
    jid = _parse_jid(text)
    if jid != bare_jid(jid):
        raise ValueError(f'"{text}" names an occupant; write {bare_jid(text)}, and the nickname as nick')
    return jid


def _check_nick(nick: str) -> str:
    if not nick.strip() or nick != nick.strip() or not nick.isprintable() or len(nick) > _MAX_NICK_CHARACTERS:
        raise ValueError(f"must be a name of 1 to {_MAX_NICK_CHARACTERS} characters, without spaces at its ends")
    return nick


def _resolve_in_project(path: Path, info: ValidationInfo) -> Path:
    project = (info.context or {}).get("project", Path.cwd())
    return Path(project, path.expanduser())


def _check_postgresql_url(url: str) -> str:
    # The error quotes nothing: any part of the address may be a part of the password.
    account, at, _ = url.removeprefix(_POSTGRESQL_PREFIX).rpartition("@")
    if "#" in url or (at and re.search(r"[@/?]", account)):
        raise ValueError(
            'write "@" "/" "?" "#" "%" in a user or password as %40 %2F %3F %23 %25; outside of them there is one "@"'
        )
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not a database address; write {_POSTGRESQL_PREFIX}user:password@host/database") from error
    if not parts.path.strip("/"):
        raise ValueError(f"lacks the name of the database; write {_POSTGRESQL_PREFIX}user:password@host/database")
    if any(key in ("password", "passfile") for key in parse_qs(parts.query)):
        raise ValueError(f"put the user and password before the host: {_POSTGRESQL_PREFIX}user:password@host/database")
    return url


def _parse_database_url(url: str, info: ValidationInfo) -> str:
    if url.startswith(_POSTGRESQL_PREFIX):
        return _check_postgresql_url(url)
    if not url.startswith(SQLITE_PREFIX):
        raise ValueError(
            f"must begin with {SQLITE_PREFIX} and a file, or with {_POSTGRESQL_PREFIX} and user:password@host/database"
        )
    file, question, query = url.removeprefix(SQLITE_PREFIX).partition("?")
    if file in ("", ":memory:"):
        raise ValueError(f"would store nothing; name a file: {SQLITE_PREFIX}data/platform.db")
    return f"{SQLITE_PREFIX}{_resolve_in_project(Path(file), info)}{question}{query}"


def _check_agent_name(name: str, info: ValidationInfo) -> str:
    if not _AGENT_SPEC.fullmatch(name):
        project = _resolve_in_project(Path(), info)
        raise ValueError(f"{name!r} does not name an agent; {suggest_agent_name(name, project)}")
    return name


def _check_import_name(name: str) -> str:
    if not _AGENT_SPEC.fullmatch(name):
        raise ValueError(f'{name!r} does not name a class; write it like "limits:RateLimit"')
    return name


def _check_api_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", url):
        raise ValueError(f'"{url}" is not the address of an API; write it like http://127.0.0.1:11434/v1')
    return url


def _check_web_url(url: str) -> str:
    if not re.fullmatch(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?/?", url):
        raise ValueError(f'"{url}" is not the address of a server; write it without a path: https://agents.example.org')
    return url.rstrip("/").lower()


def _check_listen_address(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (colon and re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f'"{address}" is not an address and a port; write it like 127.0.0.1:9464')
    return address.lower()


def _check_web_origin(origin: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?", origin.lower()):
        raise ValueError(f'"{origin}" is not the origin of a web site; write it like https://chat.example.org')
    return origin.lower()


def _check_network(text: str) -> str:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f'"{text}" is no address and no network; write it like 10.0.0.2 or 10.0.0.0/24') from error
    if not network.prefixlen:
        raise ValueError(f"{text} means every address, so every client could name any other; name your reverse proxies")
    return text


def _check_quiet_hours(hours: str) -> str:
    if hours != "none":
        QuietHours.parse(hours)
    return hours


ApiUrl = Annotated[str, AfterValidator(_check_api_url)]
ProjectPath = Annotated[Path, AfterValidator(_resolve_in_project)]
Domain = Annotated[str, AfterValidator(_parse_domain)]
Jid = Annotated[str, AfterValidator(_parse_jid)]
Address = Annotated[str, AfterValidator(_parse_address)]
Person = Annotated[str, AfterValidator(_parse_person)]
RoomJid = Annotated[str, AfterValidator(_parse_room)]
Nick = Annotated[str, AfterValidator(_check_nick)]
Tokenizer = Annotated[str, AfterValidator(_check_tokenizer)]
AgentName = Annotated[str, AfterValidator(_check_agent_name)]
ImportName = Annotated[str, AfterValidator(_check_import_name)]
WebUrl = Annotated[str, AfterValidator(_check_web_url)]
WebOrigin = Annotated[str, AfterValidator(_check_web_origin)]
ListenAddress = Annotated[str, AfterValidator(_check_listen_address)]
NetworkText = Annotated[str, AfterValidator(_check_network)]
QuietHoursText = Annotated[str, AfterValidator(_check_quiet_hours)]
Zone = Annotated[str, AfterValidator(check_zone)]
DatabaseUrl = Annotated[str, AfterValidator(_parse_database_url)]
