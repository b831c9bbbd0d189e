"""Lists of the rows of agents, page by page, and one row by its id: each in one query over all agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias, TypeVar, cast

from annotated_types import Ge, Le, MaxLen, MinLen

from ..domain.texts.enumeration import join_names
from ..exceptions import ConfigError
from .definition import About, OfAgents
from .host import OperationHost, stored_agents

if TYPE_CHECKING:
    from ..storage import Database, RowRepository

T = TypeVar("T")
OpenRows: TypeAlias = "Callable[[Database, str], RowRepository[T]]"
"""A function that opens the rows of an agent (a bare JID), or for "" those of all."""
MIN_ID_CHARACTERS = 8
MAX_LISTED = 1000
_MAX_CURSOR = 2000
Limit: TypeAlias = Annotated[int, Ge(1), Le(MAX_LISTED), About("List at most this many, of all agents together.")]
_COMMANDS = {"approval": "approvals list --state any", "incident": "incident", "failed request": "requests list"}
"""The commands that list the rows of a noun, if it is not its plural with `list`."""


class Page(OfAgents):
    """A page of a list, the newest first: what is about a person, if they are given, and follows `before`."""

    person: Annotated[str | None, About("List only those of this person or room.", "JID")] = None
    limit: Limit = 100
    before: Annotated[
        str | None, MaxLen(_MAX_CURSOR), About("List what follows this id, or is from before this time.", "ID|TIME")
    ] = None


class OfId(OfAgents):
    """One row of a list, by its id or the first characters of it, 8 at least."""

    id: Annotated[str, MinLen(MIN_ID_CHARACTERS), MaxLen(36)]


def read_time(text: str | None, place: str) -> datetime | None:
    """Return the time of a text (RFC 3339, in the zone of the machine without one). ConfigError at `place` for another text."""
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigError(place, f'"{text}" is no time; write one as 2026-12-31 or 2026-12-31T23:59') from None


async def load_page(
    host: OperationHost,
    open_rows: OpenRows[T],
    noun: str,
    agent: str | None,
    *,
    person: str | None,
    limit: int,
    cursor: str | None,
    kind: str | None = None,
    place: str = "before",
    **values: object,
) -> list[T]:
    """Return a page of the rows of agents that have a kind and some values, of which None is any. `noun` is that of one row.

    It begins behind the `cursor`: the id of a row, whose values may have changed since, else a time (`read_time`). ConfigError
    at `place` if it is neither.
    """
    agents = await stored_agents(host, agent)
    if not agents or host.database is None:
        return []
    rows, beyond = open_rows(host.database, ""), cast("T | datetime | None", None)
    own = {"agent": agents, **({} if kind is None else {"kind": kind})}
    if cursor is not None:
        found = await rows.find_last(cursor, **own, **({} if person is None else {rows.person: person}))
        try:
            beyond = found[0] if len(found) == 1 else read_time(cursor, place)
        except ConfigError:
            problem = f'"{cursor}" is neither the id of a {noun} nor a time; write one as 2026-12-31T23:59'
            if found:
                problem = f'there are several {noun}s "{cursor}"; name one agent, or give the time of the last row'
            raise ConfigError(place, problem) from None
    return await rows.load_page(beyond, person=person, limit=limit, **own, **values)


async def load_newest(host: OperationHost, open_rows: OpenRows[T], noun: str, wanted: Page, **values: Any) -> list[T]:
    """Return a page of the rows of agents, as `load_page`, the newest first."""
    page: dict[str, Any] = {"person": wanted.person, "limit": wanted.limit, "cursor": wanted.before}
    return await load_page(host, open_rows, noun, wanted.agent, **page, **values)


async def find_row(
    host: OperationHost, open_rows: OpenRows[T], agent: str | None, ident: str, noun: str, **values: object
) -> T:
    """Return the one row whose id begins with a text, of one agent if given. ConfigError at `id` without it."""
    agents, found = await stored_agents(host, agent), list[T]()
    if agents and host.database is not None:
        found = await open_rows(host.database, "").find_by_prefix(ident.lower(), agent=agents, **values)
    if len(found) != 1:
        raise_missing(ident, noun, has_many=bool(found))
    return found[0]


def choose_one(found: Mapping[str, T | None], ident: str, what: str, command: str) -> tuple[str, T]:
    """Return the one agent that has something, and that. Raise ConfigError if none has it, or several have."""
    having = [(agent, one) for agent, one in found.items() if one]
    if not having:
        raise ConfigError("conversation", f'there is no {what} "{ident}"; `{command}` shows them all')
    if len(having) > 1:
        names = join_names(agent for agent, _ in having)
        raise ConfigError("agent", f'is missing; {names} have a {what} "{ident}"; name one')
    return having[0]


def raise_missing(ident: str, noun: str, *, has_many: bool = False) -> NoReturn:
    """Raise the ConfigError at `id` of one that begins that of no row, or of several."""
    problem = f"several {noun}s begin with" if has_many else f"there is no {noun}"
    how_long = ", for seven days after their last change" if noun == "notification" else ""
    command = _COMMANDS.get(noun, f"{noun}s list")
    raise ConfigError("id", f"{problem} {ident}; `{command}` shows them{how_long}")
