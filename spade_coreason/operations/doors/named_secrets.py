"""Names and rotation of keys and webhooks: a name is used once, and the secret of before is accepted for a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ...domain.jid import local_part
from ...exceptions import ConfigError
from ..host import describe_agents

Kind: TypeAlias = Literal["key", "webhook"]

KEEP_S, MAX_KEEP_S = 86_400, 30 * 86_400
"""The default time for which the secret of before is accepted after a rotation, and the longest."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)


def check_name(kind: Kind, name: str, reserved: str = "") -> None:
    """Raise ConfigError at `name` for one that no key or webhook can have."""
    if _NAME.fullmatch(name) is None or name == reserved:
        problem = f"{name!r:.60} cannot be the name of a {kind}; write 1 to 40 of a-z, 0-9 and -, and a letter or digit first"
        raise ConfigError("name", problem)


def name_unknown(kind: Kind, name: str) -> ConfigError:
    """Return the error for a name that nothing has."""
    return ConfigError("name", f"there is no {kind} {name!r:.60}; `spade-coreason {kind}s list` shows all")


def name_taken(kind: Kind, name: str) -> ConfigError:
    """Return the error for a new name that is, or was, in use."""
    problem = f"is, or was, the name of another {kind}, and its conversations must not pass on; choose another name"
    return ConfigError("name", f"{name} {problem}")


def name_revoked(kind: Kind, name: str) -> ConfigError:
    """Return the error for a rotation of what is revoked."""
    return ConfigError("name", f"the {kind} {name} is revoked for good; create another one, with another name")


def find_agent(known: Sequence[str], name: str, argument: str) -> str:
    """Return the agent (a bare JID) of a JID, or of the part before its @. Raise ConfigError at `argument` if none is."""
    wanted = name.partition("/")[0].lower()
    matching = [jid for jid in known if wanted == jid] or [jid for jid in known if wanted == local_part(jid)]
    if len(matching) != 1:
        problem = "several agents have this name" if matching else f'there is no agent "{name}"'
        raise ConfigError(argument, f"{problem}; {describe_agents(known)}")
    return matching[0]
