"""Mail that the server still keeps for an agent that is there (XEP-0013).

A server hands over what waits with the first presence. What ejabberd is just storing in that moment stays with it until the
next login: that is asked for here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import SubElement

from slixmpp.exceptions import IqError, IqTimeout

from ..domain.jid import bare_jid
from .connection.connection import Connection

log = logging.getLogger(__name__)

OFFLINE = "http://jabber.org/protocol/offline"

_FETCH_DELAYS_S = (2.0, 30.0)
"""So long after the first presence it is asked for: a busy server may take a while to store something."""
_RESPONSE_TIMEOUT_S = 10.0
_BATCH_SIZE = 100


class OfflineMessages:
    """Asks, with each new session, for what the server still keeps. It comes as any message does, in its order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._own_jid = bare_jid(connection.jid)
        self._task: asyncio.Task[None] | None = None
        self._arriving: list[asyncio.Future[Any]] | None = None
        self.batch_size = _BATCH_SIZE

    def start(self) -> None:
        """With a new session, after the first presence."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._fetch_later())

    async def close(self) -> None:
        """Asks for nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def record_received(self, stored: asyncio.Future[Any] | None) -> None:
        """A message came in; `stored` is done when it need not come again (None: at once)."""
        if self._arriving is not None and stored is not None:
            self._arriving.append(stored)

    async def fetch(self) -> int:
        """Has the server hand over what it keeps; it keeps that no longer, once all of it is durable. How many messages.

        IqError where the server has no such thing, IqTimeout where it does not answer.
        """
        seen: set[str] = set()
        while nodes := [node for node in await self._list_nodes() if node not in seen][: self.batch_size]:
            coming: list[asyncio.Future[Any]] = []
            self._arriving = coming
            try:
                await self._send_request("get", "view", nodes)  # they come before the answer
            finally:
                self._arriving = None
            if coming:
                await asyncio.wait(coming)
            if any(one.cancelled() or one.exception() is not None for one in coming):
                break  # what could not be stored stays there
            await self._send_request("set", "remove", nodes)
            seen.update(nodes)
        return len(seen)

    async def _list_nodes(self) -> list[str]:
        """The server's names of the messages, the oldest first."""
        disco = self._connection.client.plugin["xep_0030"]
        found = await disco.get_items(jid=self._own_jid, node=OFFLINE, local=False, timeout=_RESPONSE_TIMEOUT_S)
        return [node for item in found["disco_items"].xml if (node := item.get("node"))]

    async def _send_request(self, kind: str, action: str, nodes: Sequence[str]) -> None:
        iq = self._connection.client.make_iq(itype=kind)
        query = SubElement(iq.xml, f"{{{OFFLINE}}}offline")
        for node in nodes:
            SubElement(query, f"{{{OFFLINE}}}item", {"action": action, "node": node})
        await iq.send(timeout=_RESPONSE_TIMEOUT_S)

    async def _fetch_later(self) -> None:
        waited_s = 0.0
        for after_s in _FETCH_DELAYS_S:
            await asyncio.sleep(after_s - waited_s)
            waited_s = after_s
            try:
                if count := await self.fetch():
                    log.info("%s: its server still kept %d messages for it", self._own_jid, count)
            except IqTimeout:
                log.debug("%s: its server does not say what it keeps", self._own_jid)
            except IqError as error:  # most servers know nothing of it, and keep nothing back
                log.debug("%s: its server does not say what it keeps: %s", self._own_jid, error.condition)
                return
