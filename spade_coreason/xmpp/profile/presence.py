"""The presence of an agent: it shows that the agent is online, busy, paused, starting, stopping or failing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement

XUPDATE = "vcard-temp:x:update"
DIRECTORY = "urn:spade-coreason:directory:0"
"""The namespace of the element with the version of a directory's list."""

_UPDATE_DELAY_S = 0.5
# Shares of the concurrency: an agent becomes busy at the first, and available again below the second.
_BUSY_FROM = 0.75
_AVAILABLE_BELOW = 0.5
_BUSY_SHOW = "dnd"


class Availability(NamedTuple):
    """The show and the status of a presence; None if it has none."""

    show: str | None = None
    status: str | None = None


AVAILABLE = Availability()
STARTING = Availability("away", "starting")
STOPPING = Availability("away", "stopping")
PAUSED = Availability("away", "paused")
FAILING = Availability("away", "cannot store anything at the moment")


def read_list_version(presence: Element) -> str | None:
    """Read the version of a directory's list from its presence: "" if it is offline, None if the presence has none."""
    if presence.get("type") == "unavailable":
        return ""
    element = presence.find(f"{{{DIRECTORY}}}directory")
    return None if element is None or presence.get("type") is not None else element.get("ver")


def decide_availability(
    turns: int, concurrency: int, is_busy: bool, is_paused: bool = False, is_failing: bool = False
) -> Availability:
    """Decide the presence while `turns` conversations run or wait and at most `concurrency` can run.

    `is_busy` is True if the last presence was busy.
    """
    if is_failing:
        return FAILING
    if is_paused:
        return PAUSED
    if turns < concurrency * (_AVAILABLE_BELOW if is_busy else _BUSY_FROM):
        return AVAILABLE
    return Availability(_BUSY_SHOW, f"busy: {turns} conversation{'s' if turns != 1 else ''}")


class PresencePublisher:
    """The sender of one agent's presence: at the start, and after changes at most once in `interval_s` seconds.

    `build_caps` builds the element that stands for its features. `count_turns` returns the number of conversations at work.
    `is_paused` returns True if no new one may start, and `is_failing` if nothing can be stored. For a directory,
    `get_list_version` returns the version of its list.
    """

    def __init__(
        self,
        client: Any,
        build_caps: Callable[[], Element],
        count_turns: Callable[[], int],
        concurrency: int,
        is_paused: Callable[[], bool] = lambda: False,
        is_failing: Callable[[], bool] = lambda: False,
        *,
        get_list_version: Callable[[], str] | None = None,
        interval_s: float,
    ) -> None:
        self._client = client
        self._build_caps = build_caps
        self._count_turns = count_turns
        self._concurrency = concurrency
        self._is_paused = is_paused
        self._is_failing = is_failing
        self._get_list_version = get_list_version
        self._last_list_version = ""
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._last_sent = AVAILABLE
        self._last_sent_at = 0.0
        self.update_timer: asyncio.TimerHandle | None = None
        """The timer of the next update; None if none is scheduled."""
        self._is_announced = False
        self.photo_hash: str | None = None
        """The hash of the picture in the vCard (XEP-0153); None while the server has no vCard."""

    def announce(self) -> None:
        """Announce that the agent is online. From now on its presence follows its activity."""
        self._is_announced = True
        self._send(self._current_availability())
        self.on_activity()

    def send_starting(self, contacts: Iterable[str]) -> None:
        """Tell each of the contacts that the agent is starting."""
        # One by one: after a presence for all, the server would deliver stored messages before the agent can receive them.
        # A presence for all with a negative priority would be the first one, and Prosody delivers them only after the first.
        for contact in contacts:
            self._client.send_presence(pto=contact, pshow=STARTING.show, pstatus=STARTING.status)

    def send_stopping(self) -> None:
        """Tell all contacts that the agent is stopping. With the negative priority new messages stay on the server."""
        self.stop()
        self._send(STOPPING, priority=-1)

    def send_unavailable(self) -> None:
        """Announce that the agent is offline."""
        self.stop()
        self._client.send_presence(ptype="unavailable")

    def stop(self) -> None:
        """Stop the automatic updates."""
        self._is_announced = False
        if self.update_timer is not None:
            self.update_timer.cancel()
            self.update_timer = None

    def on_activity(self) -> None:
        """Schedule an update because a message came in. The call costs almost nothing."""
        if self.update_timer is None and self._is_announced:
            self.update_timer = self._loop.call_later(_UPDATE_DELAY_S, self._update)

    def update_now(self) -> None:
        """Send the presence at once, unless the agent is not announced: a person paused or resumed it, or it has an avatar."""
        if self._is_announced:
            self._send(self._current_availability())
            self.on_activity()

    def _current_availability(self) -> Availability:
        is_busy = self._last_sent.show == _BUSY_SHOW
        return decide_availability(self._count_turns(), self._concurrency, is_busy, self._is_paused(), self._is_failing())

    def _update(self) -> None:
        self.update_timer = None
        availability = self._current_availability()
        has_changed = availability != self._last_sent or self._list_version != self._last_list_version
        wait_s = self._last_sent_at + self._interval_s - self._loop.time()
        if has_changed and wait_s <= 0:
            self._send(availability)
            has_changed, wait_s = False, self._interval_s
        if has_changed or availability not in (AVAILABLE, PAUSED):
            # No event reports the end of other states, so they are polled; the end of a pause is reported.
            self.update_timer = self._loop.call_later(max(wait_s, _UPDATE_DELAY_S), self._update)

    @property
    def _list_version(self) -> str:
        return "" if self._get_list_version is None else self._get_list_version()

    def _send(self, availability: Availability, priority: int | None = None) -> None:
        self._last_sent, self._last_sent_at = availability, self._loop.time()
        presence = self._client.make_presence(pshow=availability.show, pstatus=availability.status, ppriority=priority)
        presence.xml.append(self._build_caps())
        self._last_list_version = self._list_version
        if self._last_list_version:
            SubElement(presence.xml, f"{{{DIRECTORY}}}directory", {"ver": self._last_list_version})
        update = SubElement(presence.xml, f"{{{XUPDATE}}}x")
        if self.photo_hash is not None:  # without this element: not known yet (XEP-0153)
            SubElement(update, f"{{{XUPDATE}}}photo").text = self.photo_hash
        presence.send()
