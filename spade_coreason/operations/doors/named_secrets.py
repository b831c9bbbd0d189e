"""Names and rotation of keys and webhooks: a name is used once, and the secret of before is accepted for a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

from annotated_types import Ge, Le

from ... import storage
from ...domain.jid import local_part
from ...exceptions import ConfigError
from ..definition import About, Call
from ..host import OperationHost, describe_agents

T = TypeVar("T", "storage.StoredKey", "storage.StoredWebhook")
Kind: TypeAlias = Literal["key", "webhook"]

KEEP_S, MAX_KEEP_S = 86_400, 30 * 86_400
"""The default time for which the secret of before is accepted after a rotation, and the longest."""
OverlapSeconds: TypeAlias = Annotated[
    int, Ge(0), Le(MAX_KEEP_S), About('The time for which the old secret works; "0" ends it now.', "DURATION", "keep")
]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)


def check_name(kind: Kind, name: str, reserved: str = "") -> None:
    """Raise ConfigError at `name` for one that no key or webhook can have."""
    if _NAME.fullmatch(name) is None or name == reserved:
        problem = f"{name!r:.60} cannot be the name of a {kind}; write 1 to 40 of a-z, 0-9 and -, and a letter or digit first"
        raise ConfigError("name", problem)


async def find_named(
    host: OperationHost, open_rows: Callable[[storage.Database], storage.RowRepository[T]], kind: Kind, name: str
) -> tuple[storage.Database, T]:
    """Return the key or webhook with a name, and its database. Raise ConfigError for a name that nothing has."""
    database = host.database
    if database is None or (stored := await open_rows(database).find(name)) is None:
        raise ConfigError("name", f"there is no {kind} {name!r:.60}; `spade-coreason {kind}s list` shows all")
    return database, stored


def name_taken(kind: Kind, name: str) -> ConfigError:
    """Return the error for a new name that is, or was, in use."""
    problem = f"is, or was, the name of another {kind}, and its conversations must not pass on; choose another name"
    return ConfigError("name", f"{name} {problem}")


def name_revoked(kind: Kind, name: str) -> ConfigError:
    """Return the error for a rotation of what is revoked."""
    return ConfigError("name", f"the {kind} {name} is revoked for good; create another one, with another name")


async def store_new(
    call: Call, kind: Kind, new: storage.StoredKey | storage.StoredWebhook, commit: storage.Commit[bool]
) -> None:
    """Wait until a new key or webhook is stored, and let the doors take it. Raise ConfigError if its name is taken."""
    commit.on_stored(lambda is_stored: call.host.take_secret(new) if is_stored else None)
    if not await commit:
        raise name_taken(kind, new.name)


async def store_change(call: Call, kind: Kind, name: str, commit: storage.Commit[T | None]) -> T:
    """Wait until a change is stored, let the doors take it, and return it. Raise ConfigError if the name is revoked."""
    commit.on_stored(lambda changed: None if changed is None else call.host.take_secret(changed))
    if (changed := await commit) is None:
        raise name_revoked(kind, name)
    return changed


def find_agent(known: Sequence[str], name: str, argument: str) -> str:
    """Return the agent (a bare JID) of a JID, or of the part before its @. Raise ConfigError at `argument` if none is."""
    wanted = name.partition("/")[0].lower()
    matching = [jid for jid in known if wanted == jid] or [jid for jid in known if wanted == local_part(jid)]
    if len(matching) != 1:
        problem = "several agents have this name" if matching else f'there is no agent "{name}"'
        raise ConfigError(argument, f"{problem}; {describe_agents(known)}")
    return matching[0]
