"""What the devices of the people who are online can show, as far as they let the agent see them (presence, XEP-0030)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from slixmpp import Presence
from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ..codec.namespaces import CORRECTION_NAMESPACE, REPLY_NAMESPACE
from ..names import bare

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 10
_PEOPLE = 10_000
_DEVICES = 20
_OF_INTEREST = frozenset({CORRECTION_NAMESPACE, REPLY_NAMESPACE})
_NOTHING: frozenset[str] = frozenset()


class Abilities:
    """The devices of people, by bare JID and resource. Nobody is asked who is not admitted."""

    def __init__(self, client: Any, admits: Callable[[str], bool]) -> None:
        self._client = client
        self._admits = admits
        self._devices: dict[str, dict[str, frozenset[str]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def corrects(self, person: str) -> bool:
        """Whether every available device of a person (a bare JID) shows corrections (XEP-0308); False if none is known."""
        devices = self._devices.get(person, {})
        return bool(devices) and all(CORRECTION_NAMESPACE in features for features in devices.values())

    def refers(self, device: str) -> bool:
        """Whether a device (a full JID) shows replies (XEP-0461)."""
        person, _, resource = device.partition("/")
        return REPLY_NAMESPACE in self._devices.get(person, {}).get(resource, _NOTHING)

    def see(self, presence: Presence) -> None:
        """Takes a presence that came in."""
        sender = presence["from"]
        person, resource, kind = sender.bare, sender.resource, presence.xml.get("type")
        if not resource or person == self._client.boundjid.bare:
            return
        if kind == "unavailable":
            devices = self._devices.get(person)
            if devices is not None:
                devices.pop(resource, None)
                if not devices:
                    del self._devices[person]
        elif kind is None and self._admits(person):
            self._arrived(person, resource)

    def forget(self) -> None:
        """After a new session: whoever is there says so again."""
        self._devices.clear()

    async def close(self) -> None:
        """Asks nobody any more."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _arrived(self, person: str, resource: str) -> None:
        if person not in self._devices and len(self._devices) >= _PEOPLE:
            return
        devices = self._devices.setdefault(person, {})
        if resource in devices or len(devices) >= _DEVICES:
            return
        devices[resource] = _NOTHING
        task = asyncio.create_task(self._ask(person, resource))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, person: str, resource: str) -> None:
        try:
            info = await self._client.plugin["xep_0030"].get_info(f"{person}/{resource}", timeout=_ANSWER_WITHIN_S)
            features = frozenset(info["disco_info"]["features"]) & _OF_INTEREST
        except (IqError, IqTimeout, XMPPError) as error:
            log.debug("%s/%s does not say what it can do: %s", person, resource, type(error).__name__)
            return
        devices = self._devices.get(bare(person), {})
        if resource in devices:
            devices[resource] = features
