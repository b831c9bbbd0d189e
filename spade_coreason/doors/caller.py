"""A caller, who asks by a door with a key."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from ..domain.callers import person_below

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The header `traceparent` of the HTTP request that this task answers; "" without one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key, or one of the people for whom a front end uses its key."""

    name: str
    """The name of the key."""
    address: str
    """The bare JID of the caller, in the domain of callers."""
    account: str
    """The bare JID for whom the key stands; "" without one."""
    agents: frozenset[str]
    """The agents (bare JIDs) that the key opens."""
    names_users: bool
    """True if a header of each request names the user."""

    def for_user(self, user: str) -> Caller:
        """Return the person below the key, as the front end names them."""
        return replace(self, address=person_below(self.name, user))
