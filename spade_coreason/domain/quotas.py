"""Quotas as values: what one person, room or domain, and all of them together, may use of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .jid import bare_jid, jid_domain
from .texts.translation import translate, translate_plural

_MEBIBYTE = 2**20

QuotaScope: TypeAlias = Literal["person", "room", "domain", "total"]
"""The kind of holder that a quota has."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The largest number of messages and bytes a minute and a day (UTC), and of turns at once. 0 means no limit.

    Bytes are those of the text or the JSON of messages. `turns` None is a quarter of the agent's turns.
    """

    messages_per_minute: int = 0
    messages_per_day: int = 0
    bytes_per_minute: int = 0
    bytes_per_day: int = 0
    turns: int | None = 0


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """The use of one quota today (UTC). Limits are 0 if there is none."""

    scope: str
    """person, room, domain or total."""
    holder: str
    """The bare JID or the domain; empty for the total."""
    role: str
    """The role of a person; empty for others."""
    messages: int
    bytes: int
    messages_per_day: int
    messages_per_minute: int
    bytes_per_day: int
    refused: int
    """The number of messages refused since the platform started or the day began."""

    @classmethod
    def of(cls, scope: str, holder: str, role: str, quota: Quota, messages: int, size: int, refused: int = 0) -> QuotaUsage:
        """Make it of a quota and what was counted: the messages, their bytes, and the messages that were refused."""
        limits = quota.messages_per_day, quota.messages_per_minute, quota.bytes_per_day
        return cls(scope, holder, role, messages, size, *limits, refused)

    def __str__(self) -> str:
        number, limit = self.messages, self.messages_per_day
        counted = (
            translate_plural("{used} of {number} message", "{used} of {number} messages", limit, used=number)
            if limit
            else translate_plural("{number} message", "{number} messages", number)
        )
        return translate("{messages} ({refused} refused)", messages=counted, refused=self.refused) if self.refused else counted


@dataclass(frozen=True, slots=True)
class Role:
    """A group of people with a quota of its own: bare JIDs and domains."""

    name: str
    members: frozenset[str]
    quota: Quota

    def has_member(self, jid: str) -> bool:
        """Return True if a person with this JID is in the group."""
        return bare_jid(jid) in self.members or jid_domain(jid) in self.members


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one agent.

    A person has the quota of `operator` or of the first of `groups` that they are in, else that of `user`. A room has that of
    `room`. `domain` is for all accounts of one domain together, and `total` for everybody together.
    """

    user: Quota = Quota(60_000, 1_000_000, 64 * _MEBIBYTE, 1024 * _MEBIBYTE, None)
    operator: Quota = Quota()
    groups: tuple[Role, ...] = ()
    room: Quota = Quota(60_000, 1_000_000, 64 * _MEBIBYTE, 1024 * _MEBIBYTE, None)
    domain: Quota = Quota(300_000, 10_000_000, 512 * _MEBIBYTE, 16 * 1024 * _MEBIBYTE, 0)
    total: Quota = Quota(600_000, 20_000_000, 1024 * _MEBIBYTE, 32 * 1024 * _MEBIBYTE, 0)
    operators: frozenset[str] = field(default_factory=frozenset)
    """The bare JIDs of the operators."""

    def quota_of(self, scope: QuotaScope, holder: str) -> tuple[str, Quota]:
        """Return the quota of a holder (a bare JID or a domain; empty for the total), and the role of a person, else ""."""
        match scope:
            case "person":
                return self.role_of(holder)
            case "room":
                return "", self.room
            case "domain":
                return "", self.domain
            case "total":
                return "", self.total

    def role_of(self, person: str) -> tuple[str, Quota]:
        """Return the name and the quota of the role of a person (a bare JID)."""
        if person in self.operators:
            return "operator", self.operator
        for role in self.groups:
            if role.has_member(person):
                return role.name, role.quota
        return "user", self.user
