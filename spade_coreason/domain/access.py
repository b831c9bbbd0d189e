"""Who may talk to an agent."""

from __future__ import annotations

from collections.abc import Iterable

from .jid import bare_jid, jid_domain


class AccessPolicy:
    """A list of bare JIDs, domains and "*"; without one, the agent's own domain. `rooms` may invite it: by default none.

    `operators` (bare JIDs) are admitted too; with `roster`, those whom the agent's account has in its roster; and whom an
    operator lets in, where they are asked (`ask`).
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
    ) -> None:
        self._allow = frozenset([jid_domain(agent)] if allow is None else allow)
        self._rooms = frozenset(rooms)
        self._has_roster = roster
        self.operators = frozenset(operators)
        self.asks_operators = ask and bool(self.operators)
        """Whether the operators are asked about whoever is not admitted."""
        self.approved: set[str] = set()
        """Whom they have let in (bare JIDs)."""
        self.contacts: set[str] = set()
        """Who is in the roster (bare JIDs), as the server says."""

    def is_allowed(self, jid: str) -> bool:
        """Whether whoever sends as `jid` is answered."""
        person = bare_jid(jid)
        return (
            "*" in self._allow
            or person in self._allow
            or jid_domain(jid) in self._allow
            or person in self.operators
            or person in self.approved
            or (self._has_roster and person in self.contacts)
        )

    @property
    def accepts_invitations(self) -> bool:
        """Whether there is any room that may invite the agent."""
        return bool(self._rooms)

    def is_room_allowed(self, room: str) -> bool:
        """Whether the agent follows an invitation into a room (a bare JID)."""
        return "*" in self._rooms or self.is_room_trusted(room)

    def is_room_trusted(self, room: str) -> bool:
        """Whether somebody has named the room, or its service; only then is it believed who its occupants are."""
        return room in self._rooms or jid_domain(room) in self._rooms
