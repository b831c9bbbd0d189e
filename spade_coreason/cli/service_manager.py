"""Notices to systemd, if it has started this process: ready, alive, stopping (sd_notify(3), without its library)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 1.0


class ServiceManager:
    """The systemd that has started this process. Without one, which is so if `NOTIFY_SOCKET` is not set, nothing happens.

    Its variables are removed from `environ`, so that no child process speaks for this one. If the unit has `WatchdogSec`, the
    event loop reports at half of that time from `report_ready` until `close`. So systemd notices a loop that is blocked.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        watchdog_s = int(environ.pop("WATCHDOG_USEC", "0")) / 1_000_000
        is_watched = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._beat_s = watchdog_s / 2 if is_watched else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def report_ready(self) -> None:
        """Report that the start is over. Call it in the event loop."""
        self._send("READY=1")
        if self._address and self._beat_s:
            self._beat()

    def report_stopping(self) -> None:
        """Report that the stop begins."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """End the reports of the event loop."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(_SEND_TIMEOUT_S)
                connection.sendto(state.encode(), address)
        except OSError as error:
            log.warning("systemd cannot be told %s: %s", state, error)
