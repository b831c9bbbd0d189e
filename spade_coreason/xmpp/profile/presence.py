"""What an agent's presence says: that it is there, how busy it is, and what it is about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement

XUPDATE = "vcard-temp:x:update"

_UPDATE_DELAY_S = 0.5
# Of its concurrency: from there on an agent is busy, and until there it stays so.
_BUSY_FROM = 0.75
_AVAILABLE_BELOW = 0.5
_BUSY_SHOW = "dnd"


class Availability(NamedTuple):
    """The show and the status of a presence; None where it has none."""

    show: str | None = None
    status: str | None = None


AVAILABLE = Availability()
STARTING = Availability("away", "starting")
STOPPING = Availability("away", "stopping")
PAUSED = Availability("away", "paused")
FAILING = Availability("away", "cannot store anything at the moment")


def decide_availability(
    turns: int, concurrency: int, is_busy: bool, is_paused: bool = False, is_failing: bool = False
) -> Availability:
    """What to say while `count_turns` of at most `concurrency` run or wait, and `is_busy` was said before."""
    if is_failing:
        return FAILING
    if is_paused:
        return PAUSED
    if turns < concurrency * (_AVAILABLE_BELOW if is_busy else _BUSY_FROM):
        return AVAILABLE
    return Availability(_BUSY_SHOW, f"busy: {turns} conversation{'s' if turns != 1 else ''}")


class PresencePublisher:
    """Sends the presence of one agent, and again when it changes, at most once in `every_s`.

    `build_caps` makes the element that stands for its features; `count_turns` says how many conversations are at work, `is_paused`
    whether no new one is, `is_failing` whether nothing can be stored.
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
        every_s: float,
    ) -> None:
        self._client = client
        self._build_caps = build_caps
        self._count_turns = count_turns
        self._concurrency = concurrency
        self._is_paused = is_paused
        self._is_failing = is_failing
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._last_sent = AVAILABLE
        self._last_sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_announced = False
        self.photo_hash: str | None = None
        """The hash of the picture in the vCard (XEP-0153); None while the server has none."""

    def announce(self) -> None:
        """The agent is there. From here on its presence follows what it does."""
        self._is_announced = True
        self._send(self._current_availability())
        self.on_activity()

    def send_starting(self, contacts: Iterable[str]) -> None:
        """Says so to each of the contacts."""
        # One by one: after a presence for all, the server would deliver the mail that came meanwhile, to nobody. And one for
        # all with a negative priority would be the first one; Prosody delivers such mail after the first one only.
        for contact in contacts:
            self._client.send_presence(pto=contact, pshow=STARTING.show, pstatus=STARTING.status)

    def send_stopping(self) -> None:
        """Says so to everybody. With the negative priority new mail stays at the server."""
        self.stop()
        self._send(STOPPING, priority=-1)

    def send_unavailable(self) -> None:
        """The agent is not there any more."""
        self.stop()
        self._client.send_presence(ptype="unavailable")

    def stop(self) -> None:
        """Says nothing more by itself."""
        self._is_announced = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_activity(self) -> None:
        """Something came in: the presence may have to change soon. Costs next to nothing."""
        if self._timer is None and self._is_announced:
            self._timer = self._loop.call_later(_UPDATE_DELAY_S, self._update)

    def update_now(self) -> None:
        """It is paused or goes on, which a person did, or has a picture: said at once, unless the agent has left."""
        if self._is_announced:
            self._send(self._current_availability())
            self.on_activity()

    def _current_availability(self) -> Availability:
        is_busy = self._last_sent.show == _BUSY_SHOW
        return decide_availability(self._count_turns(), self._concurrency, is_busy, self._is_paused(), self._is_failing())

    def _update(self) -> None:
        self._timer = None
        now = self._current_availability()
        wait_s = self._last_sent_at + self._every_s - self._loop.time()
        if now != self._last_sent and wait_s <= 0:
            self._send(now)
            wait_s = self._every_s
        if self._last_sent != now or now not in (AVAILABLE, PAUSED):
            # What ends is not noticed by itself; the end of a pause is.
            self._timer = self._loop.call_later(max(wait_s, _UPDATE_DELAY_S), self._update)

    def _send(self, availability: Availability, priority: int | None = None) -> None:
        self._last_sent, self._last_sent_at = availability, self._loop.time()
        presence = self._client.make_presence(pshow=availability.show, pstatus=availability.status, ppriority=priority)
        presence.xml.append(self._build_caps())
        update = SubElement(presence.xml, f"{{{XUPDATE}}}x")
        if self.photo_hash is not None:  # without it: not known yet
            SubElement(update, f"{{{XUPDATE}}}photo").text = self.photo_hash
        presence.send()
