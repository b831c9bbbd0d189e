"""Who may talk to an agent."""

from __future__ import annotations

from collections.abc import Iterable

from .names import bare, domain


class Access:
    """A list of bare JIDs, domains and "*"; without one, the agent's own domain."""

    def __init__(self, agent: str, allow: Iterable[str] | None = None) -> None:
        self._allow = frozenset([domain(agent)] if allow is None else allow)

    def admits(self, jid: str) -> bool:
        """Whether whoever sends as `jid` is answered."""
        return "*" in self._allow or bare(jid) in self._allow or domain(jid) in self._allow
