"""The features of people's devices that are online and visible to the agent (presence, XEP-0030)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from slixmpp import Presence
from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ..concurrency import RateLimiter, Tasks
from ..domain.jid import bare_jid
from .codec import CORRECTION_NAMESPACE, REPLY_NAMESPACE

log = logging.getLogger(__name__)

_RESPONSE_TIMEOUT_S = 10
_MAX_PEOPLE = 10_000
_MAX_DEVICES_PER_PERSON = 20
_MAX_QUERIES_PER_MINUTE = 60  # of one person, whose devices may come and go without end
# Profanity up to 0.13 knows a message only by the id of its last correction. It ignores a correction that names the first id.
_CHAINED_CORRECTION_CLIENTS = re.compile(r"Profanity 0\.(\d|1[0-3])(\.|$)")


class _CorrectionSupport(Enum):
    """The support of a device for corrections (XEP-0308)."""

    NONE = 0
    ALL = 1
    LAST_VERSION_ONLY = 2


class _Device(NamedTuple):
    corrections: _CorrectionSupport
    has_replies: bool


_UNKNOWN = _Device(_CorrectionSupport.NONE, False)


class PeerFeatures:
    """The devices of people, by bare JID and resource. Only admitted people's devices are queried."""

    def __init__(self, client: Any, is_allowed: Callable[[str], bool]) -> None:
        self._client = client
        self._is_allowed = is_allowed
        self._devices: dict[str, dict[str, _Device]] = {}
        self._queries = Tasks()
        self._rate_limiter = RateLimiter(_MAX_QUERIES_PER_MINUTE)

    def has_corrections(self, person: str) -> bool:
        """Return True if every available device of a person (a bare JID) shows corrections (XEP-0308).

        False if no device is known.
        """
        devices = self._devices.get(person)
        if not devices:
            return False
        return (
            all(d.corrections is _CorrectionSupport.ALL for d in devices.values())
            or self.find_chained_device(person) is not None
        )

    def has_replies(self, device: str) -> bool:
        """Return True if a device (a full JID) shows replies (XEP-0461)."""
        person, _, resource = device.partition("/")
        return self._devices.get(person, {}).get(resource, _UNKNOWN).has_replies

    def find_chained_device(self, person: str) -> str | None:
        """Return the resource of a person's only device if corrections must name the version before them, not the first one."""
        match list(self._devices.get(person, {}).items()):
            case [(resource, _Device(_CorrectionSupport.LAST_VERSION_ONLY))]:
                return resource
            case _:
                return None

    def handle_presence(self, presence: Presence) -> None:
        """Update the devices after a presence."""
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
        elif kind is None and self._is_allowed(person):
            self._add_device(person, resource)

    def clear(self) -> None:
        """Delete all devices for a new session: those that are online send their presence again."""
        self._devices.clear()

    async def close(self) -> None:
        """Cancel the queries in progress."""
        await self._queries.cancel()

    def _add_device(self, person: str, resource: str) -> None:
        if person not in self._devices and len(self._devices) >= _MAX_PEOPLE:
            return
        devices = self._devices.setdefault(person, {})
        if resource in devices or len(devices) >= _MAX_DEVICES_PER_PERSON:
            return
        devices[resource] = _UNKNOWN
        if not self._rate_limiter.allow(person):
            return
        self._queries.start(self._query_device(person, resource))

    async def _query_device(self, person: str, resource: str) -> None:
        try:
            info = await self._client.plugin["xep_0030"].get_info(f"{person}/{resource}", timeout=_RESPONSE_TIMEOUT_S)
            device = _parse_device(info["disco_info"])
        except (IqError, IqTimeout, XMPPError) as error:
            log.debug("cannot query the features of %s/%s: %s", person, resource, type(error).__name__)
            return
        devices = self._devices.get(bare_jid(person), {})
        if resource in devices:
            devices[resource] = device


def _parse_device(info: Any) -> _Device:
    replies = REPLY_NAMESPACE in info["features"]
    if CORRECTION_NAMESPACE not in info["features"]:
        return _Device(_CorrectionSupport.NONE, replies)
    names = [name or "" for *_, name in info["identities"]]
    return _Device(
        _CorrectionSupport.LAST_VERSION_ONLY if any(map(_CHAINED_CORRECTION_CLIENTS.match, names)) else _CorrectionSupport.ALL,
        replies,
    )
