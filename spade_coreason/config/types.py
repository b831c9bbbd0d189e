"""What the values of keys may be: numbers, addresses, names, paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from ..domain.jid import bare, parse_domain, parse_jid
from .importer import how_to_name

_LONGEST_NICK = 100
_TOKENIZERS = ("auto", "o200k", "cl100k", "estimate")
SQLITE = "sqlite+aiosqlite:///"
_POSTGRESQL = "postgresql+asyncpg://"
_AGENT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


def _address(who: str) -> str:
    if who == "*":
        return who
    if "@" not in who:
        return parse_domain(who)
    jid = parse_jid(who)
    if jid != bare(jid):
        raise ValueError(f'"{who}" names a device; write {bare(jid)}')
    return jid


def _person(jid: str) -> str:
    return _address(parse_jid(jid))


def _tokenizer(name: str) -> str:
    if name in _TOKENIZERS or _AGENT.fullmatch(name):
        return name
    raise ValueError(f"must be {', '.join(_TOKENIZERS)}, or a function of your own, as module:function")


def _room(jid: str) -> str:
    if parse_jid(jid) != bare(parse_jid(jid)):
        raise ValueError(f'"{jid}" names an occupant; write {bare(jid)}, and the nickname as nick')
    return parse_jid(jid)


def _nick(nick: str) -> str:
    if not nick.strip() or nick != nick.strip() or not nick.isprintable() or len(nick) > _LONGEST_NICK:
        raise ValueError(f"must be a name of 1 to {_LONGEST_NICK} characters, with no space before or behind it")
    return nick


def _in_project(path: Path, info: ValidationInfo) -> Path:
    project = (info.context or {}).get("project", Path.cwd())
    return Path(project, path.expanduser())


def _postgresql(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is no address of a database; write {_POSTGRESQL}user:password@host/database") from error
    if not parts.path.strip("/"):
        raise ValueError(f"names no database; write {_POSTGRESQL}user:password@host/database")
    if any(key in ("password", "passfile") for key in parse_qs(parts.query)):
        raise ValueError(f"the password stands before the host: {_POSTGRESQL}user:password@host/database")
    return url


def _database_url(url: str, info: ValidationInfo) -> str:
    if url.startswith(_POSTGRESQL):
        return _postgresql(url)
    if not url.startswith(SQLITE):
        raise ValueError(f"must begin with {SQLITE} and a file, or with {_POSTGRESQL} and user:password@host/database")
    file, question, query = url.removeprefix(SQLITE).partition("?")
    if file in ("", ":memory:"):
        raise ValueError(f"would keep nothing; name a file: {SQLITE}data/platform.db")
    return f"{SQLITE}{_in_project(Path(file), info)}{question}{query}"


def _agent_name(name: str, info: ValidationInfo) -> str:
    if not _AGENT.fullmatch(name):
        project = _in_project(Path(), info)
        raise ValueError(f"{name!r} does not name an agent; {how_to_name(name, project)}")
    return name


def _api_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", url):
        raise ValueError(f'"{url}" is no address of an API; write it like http://127.0.0.1:11434/v1')
    return url


Number = BeforeValidator(_no_bool)
"""Of a number, for which YAML's yes and no are none."""
ApiUrl = Annotated[str, AfterValidator(_api_url)]
Count = Annotated[int, Number, Field(ge=1)]
CountOrNone = Annotated[int, Number, Field(ge=0)]
Seconds = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
ProjectPath = Annotated[Path, AfterValidator(_in_project)]
Domain = Annotated[str, AfterValidator(parse_domain)]
Jid = Annotated[str, AfterValidator(parse_jid)]
Address = Annotated[str, AfterValidator(_address)]
Person = Annotated[str, AfterValidator(_person)]
RoomJid = Annotated[str, AfterValidator(_room)]
Nick = Annotated[str, AfterValidator(_nick)]
Tokenizer = Annotated[str, AfterValidator(_tokenizer)]
AgentName = Annotated[str, AfterValidator(_agent_name)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
