"""The access policy of an agent: the people, agents and rooms that may talk to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .callers import CALLERS_DOMAIN, is_caller, key_of
from .jid import bare_jid, jid_domain
from .texts.translation import N_

NO_ACCESS = N_("You don't have access to me yet. Please ask my operator.")
"""The answer to a sender without access."""


class TrustedAgents:
    """The agents that are believed about the person whose request they pass on: bare JIDs, and all accounts of some domains."""

    def __init__(self, jids: Iterable[str] = (), domains: Iterable[str] = ()) -> None:
        self._jids = frozenset(jids)
        self._domains = frozenset(domains)

    def __contains__(self, jid: str) -> bool:
        return bare_jid(jid) in self._jids or jid_domain(jid) in self._domains


class AccessPolicy:
    """The rules for the senders that may talk to an agent.

    `allow` is a list of bare JIDs, domains and "*"; by default it is the agent's own domain. These are allowed too:

    - the `operators` (bare JIDs),
    - with `roster`, everyone in the roster of the agent's account,
    - everyone whom an operator approves; with `ask`, operators are asked about people.

    None of these covers the callers of doors: only a key admits them (`callers`).

    `rooms` are the rooms, domains or "*" that may invite the agent; by default none. With `is_silent`, all others get no
    answer at all.
    """

    def __init__(
        self,
        agent: str,
        allow: Iterable[str] | None = None,
        rooms: Iterable[str] = (),
        *,
        operators: Iterable[str] = (),
        roster: bool = False,
        ask: bool = False,
        is_silent: bool = False,
    ) -> None:
        self._allow = frozenset([jid_domain(agent)] if allow is None else allow)
        self._rooms = frozenset(rooms)
        self.has_roster = roster
        """True if everyone in the roster is allowed."""
        self.operators = frozenset(operators)
        self.asks_operators = ask and bool(self.operators)
        """True if operators are asked about people who are not allowed."""
        self.is_silent = is_silent
        """True if strangers are not told that they have no access, nor that there is an agent."""
        self.approved: set[str] = set()
        """The people whom operators have approved (bare JIDs)."""
        self.contacts: set[str] = set()
        """The people in the roster, as the server reports it (bare JIDs), without those that the agent itself has added."""
        self.callers: Mapping[str, str] = {}
        """The live keys for this agent: the address of each, and the bare JID for whom it stands, "" for itself."""
        self.is_known = not roster
        """True once the roster was received, or without `roster`. Until then more people may be allowed than it seems."""

    def is_allowed(self, jid: str) -> bool:
        """Return True if a sender with this JID may talk to the agent."""
        person = bare_jid(jid)
        if is_caller(person):
            return self._is_caller_allowed(person)
        return (
            "*" in self._allow
            or person in self._allow
            or jid_domain(person) in self._allow
            or person in self.operators
            or person in self.approved
            or (self.has_roster and person in self.contacts)
        )

    def _is_caller_allowed(self, person: str) -> bool:
        # `is_caller` is true for other spellings of the domain too, so that no other rule covers them. No key has them.
        account = self.callers.get(key_of(person)) if jid_domain(person) == CALLERS_DOMAIN else None
        return account == "" or (account is not None and not is_caller(account) and self.is_allowed(account))

    @property
    def admitted(self) -> frozenset[str]:
        """The JIDs and domains that may talk to the agent at this moment; "*" for everyone."""
        contacts = self.contacts if self.has_roster else ()
        return self._allow.union(self.operators, self.approved, contacts)

    @property
    def accepts_invitations(self) -> bool:
        """True if at least one room may invite the agent."""
        return bool(self._rooms)

    def is_room_allowed(self, room: str) -> bool:
        """Return True if the agent follows an invitation into `room` (a bare JID)."""
        return "*" in self._rooms or self.is_room_trusted(room)

    def is_room_trusted(self, room: str) -> bool:
        """Return True if the configuration names the room or its service.

        The agent trusts only such a room to tell who its occupants are.
        """
        return room in self._rooms or jid_domain(room) in self._rooms
