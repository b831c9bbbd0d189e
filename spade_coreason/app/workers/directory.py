"""The directory of a platform with several workers: the cards of its agents in the database, and whether they are online."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from ...domain.access import AccessPolicy
from ...domain.cards import AgentCard
from ...domain.value import value
from ...exceptions import StoreError
from ...runtime import PlatformDirectory
from ...storage import Leases

log = logging.getLogger(__name__)

_MARGIN_MICROS = 60_000_000
"""A card may become visible so long after its time: its transaction took that long."""


@value
class Listing:
    """The card and the rules of an agent for the other workers, as its worker stores them."""

    card: AgentCard
    admitted: list[str]
    """The JIDs and domains that may talk to it; "*" for everyone."""


class SharedDirectory:
    """Stores the cards of the agents of this worker, and adds those of the other workers to its directory.

    `callers_of` returns the keys with which callers of doors reach an agent (a bare JID). `agents` are those of the
    configuration: the database still has the cards of earlier ones.
    """

    def __init__(
        self,
        leases: Leases,
        directory: PlatformDirectory,
        callers_of: Callable[[str], Mapping[str, str]],
        agents: Collection[str],
    ) -> None:
        self._leases = leases
        self._agents = frozenset(agents)
        self._directory = directory
        self._callers_of = callers_of
        self._stored: dict[str, tuple[AgentCard, frozenset[str]]] = {}
        """The cards of the own agents as they are stored, with their rules."""
        self._read: dict[str, Listing] = {}
        """All cards as they are stored."""
        self._texts: dict[str, str] = {}
        self._owners: dict[str, int] | None = None
        """The workers of the agents at the last look; None before the first."""
        self._since = 0
        self._is_refreshing = False

    async def refresh(self) -> None:
        """Store what has changed of the own agents, and read what has changed of the others."""
        if self._is_refreshing:
            return
        self._is_refreshing = True
        try:
            await self._store()
            await self._load()
        except StoreError as error:
            log.debug("the directory of the other workers cannot be read: %s", error)
        finally:
            self._is_refreshing = False

    async def _store(self) -> None:
        own = self._directory.list_own()
        for agent in self._stored.keys() - own.keys():
            del self._stored[agent]  # it was given back
        changed = {agent: known for agent, known in own.items() if self._stored.get(agent) != known}
        if not changed:
            return
        texts = {agent: _adapter().dump_json(Listing(card, sorted(rules))).decode() for agent, (card, rules) in changed.items()}
        await self._leases.save_cards(texts)
        self._stored |= changed

    async def _load(self) -> None:
        found, owners = await self._leases.read_cards(self._since - _MARGIN_MICROS)
        has_changed, self._owners = owners != self._owners, owners
        for agent, text, stored_at in found:
            self._since = max(self._since, stored_at)
            if self._texts.get(agent) != text:
                has_changed = True
                self._texts[agent] = text
                try:
                    self._read[agent] = _adapter().validate_json(text)
                except ValueError:
                    log.warning("%s: its card was stored by another version; this worker shows an older one, or none", agent)
        if not has_changed:  # this runs at each renewal, and there may be thousands of agents
            return
        others: dict[str, tuple[AgentCard, AccessPolicy]] = {}
        for agent, listing in self._read.items():
            owner = owners.get(agent)
            if owner is None and agent not in self._agents:
                continue
            # One of this worker is shown by its stored card until it is built.
            is_served = owner not in (None, self._leases.worker)
            access = AccessPolicy(agent, listing.admitted)
            access.callers = self._callers_of(agent)
            others[agent] = replace(listing.card, is_online=listing.card.is_online and is_served), access
        self._directory.set_elsewhere(others)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Listing)
