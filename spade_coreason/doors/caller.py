"""A caller, who asks by a door with a key, or by the page in the browser."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from ..domain.callers import person_below
from ..domain.channel_kinds import DOOR, DOOR_CHANNEL, PAGE, PAGE_CHANNEL, ChannelKind

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The header `traceparent` of the HTTP request that this task answers; "" without one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a key, one of the people for whom a front end uses its key, or a person in the page."""

    name: str
    """The name of the key."""
    address: str
    """The bare JID of the caller, in the domain of callers unless it `is_person`."""
    account: str
    """The bare JID for whom the key stands; "" without one."""
    agents: frozenset[str]
    """The agents (bare JIDs) that the key opens."""
    names_users: bool
    """True if a header of each request names the user."""
    is_person: bool = False
    """True for a person who is logged in to the page: `address` is their own bare JID."""

    @property
    def kind(self) -> ChannelKind:
        """The kind of the channel by which they ask."""
        return PAGE if self.is_person else DOOR

    @property
    def channel(self) -> str:
        """The name of that channel."""
        return PAGE_CHANNEL if self.is_person else DOOR_CHANNEL

    def for_user(self, user: str) -> Caller:
        """Return the person below the key, as the front end names them."""
        return replace(self, address=person_below(self.name, user))
