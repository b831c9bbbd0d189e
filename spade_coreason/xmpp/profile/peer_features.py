"""What the devices of the people who are online can show, as far as they let the agent see them (presence, XEP-0030)."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from slixmpp import Presence
from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ...codec import CORRECTION_NAMESPACE, REPLY_NAMESPACE
from ...domain.jid import bare

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 10
_PEOPLE = 10_000
_DEVICES = 20
# Profanity up to 0.13 knows a message by the id of its last correction only, and shows nothing of one that names the first.
_NAMES_THE_LAST = re.compile(r"Profanity 0\.(\d|1[0-3])(\.|$)")


class _Shows(Enum):
    """What a device makes of corrections (XEP-0308)."""

    NONE = 0
    ALL = 1
    OF_THE_LAST = 2


class _Device(NamedTuple):
    corrections: _Shows
    replies: bool


_UNKNOWN = _Device(_Shows.NONE, False)


class Abilities:
    """The devices of people, by bare JID and resource. Nobody is asked who is not admitted."""

    def __init__(self, client: Any, admits: Callable[[str], bool]) -> None:
        self._client = client
        self._admits = admits
        self._devices: dict[str, dict[str, _Device]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def corrects(self, person: str) -> bool:
        """Whether every available device of a person (a bare JID) shows corrections (XEP-0308); False if none is known."""
        devices = self._devices.get(person)
        if not devices:
            return False
        return all(d.corrections is _Shows.ALL for d in devices.values()) or self.chained_to(person) is not None

    def refers(self, device: str) -> bool:
        """Whether a device (a full JID) shows replies (XEP-0461)."""
        person, _, resource = device.partition("/")
        return self._devices.get(person, {}).get(resource, _UNKNOWN).replies

    def chained_to(self, person: str) -> str | None:
        """The resource of a person's only device, where a correction has to name the version before it instead of the first."""
        match list(self._devices.get(person, {}).items()):
            case [(resource, _Device(_Shows.OF_THE_LAST))]:
                return resource
            case _:
                return None

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
        devices[resource] = _UNKNOWN
        task = asyncio.create_task(self._ask(person, resource))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, person: str, resource: str) -> None:
        try:
            info = await self._client.plugin["xep_0030"].get_info(f"{person}/{resource}", timeout=_ANSWER_WITHIN_S)
            device = _shown_by(info["disco_info"])
        except (IqError, IqTimeout, XMPPError) as error:
            log.debug("%s/%s does not say what it can do: %s", person, resource, type(error).__name__)
            return
        devices = self._devices.get(bare(person), {})
        if resource in devices:
            devices[resource] = device


def _shown_by(info: Any) -> _Device:
    replies = REPLY_NAMESPACE in info["features"]
    if CORRECTION_NAMESPACE not in info["features"]:
        return _Device(_Shows.NONE, replies)
    names = [name or "" for *_, name in info["identities"]]
    return _Device(_Shows.OF_THE_LAST if any(map(_NAMES_THE_LAST.match, names)) else _Shows.ALL, replies)
