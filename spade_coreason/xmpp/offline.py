"""Offline messages that the server still stores for an agent that is online (XEP-0013).

A server delivers offline messages after the first presence. A message that ejabberd is storing at that moment would stay on
the server until the next login, so it is fetched here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import SubElement

from slixmpp.exceptions import IqError, IqTimeout

from ..domain.jid import bare_jid
from .connection.connection import Connection

if TYPE_CHECKING:
    from ..storage import Commit

log = logging.getLogger(__name__)

OFFLINE = "http://jabber.org/protocol/offline"

_FETCH_DELAYS_S = (2.0, 30.0)
"""The times after the first presence when messages are fetched. A busy server may need a while to store one."""
_RESPONSE_TIMEOUT_S = 10.0
_BATCH_SIZE = 100


class OfflineMessages:
    """The offline messages of one agent, fetched in each new session. They arrive like all other messages, in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._own_jid = bare_jid(connection.jid)
        self._task: asyncio.Task[None] | None = None
        self.arriving: list[Commit[Any]] | None = None
        """The commits of the messages of a batch that have arrived; None while no batch is fetched."""
        self.batch_size = _BATCH_SIZE

    def start(self) -> None:
        """Start to fetch in a new session, after the first presence."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._fetch_later())

    async def close(self) -> None:
        """Stop fetching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def record_received(self, stored: Commit[Any] | None) -> None:
        """Record a received message. The server may delete it when it is `stored` (None: at once)."""
        if self.arriving is not None and stored is not None:
            self.arriving.append(stored)

    async def fetch(self) -> int:
        """Fetch the messages, and delete each batch on the server when all of it is durable. Return the number of messages.

        Raise IqError if the server does not support this, IqTimeout if it does not answer.
        """
        seen: set[str] = set()
        while nodes := [node for node in await self._list_nodes() if node not in seen][: self.batch_size]:
            arriving: list[Commit[Any]] = []
            self.arriving = arriving
            try:
                await self._send_request("get", "view", nodes)  # the messages come before the reply
            finally:
                self.arriving = None
            if not all([await stored.wait() for stored in arriving]):
                break  # messages that could not be stored stay on the server
            await self._send_request("set", "remove", nodes)
            seen.update(nodes)
        return len(seen)

    async def _list_nodes(self) -> list[str]:
        """Return the server's names of the messages, oldest first."""
        disco = self._connection.client.plugin["xep_0030"]
        reply = await disco.get_items(jid=self._own_jid, node=OFFLINE, local=False, timeout=_RESPONSE_TIMEOUT_S)
        return [node for item in reply["disco_items"].xml if (node := item.get("node"))]

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
                    log.info("%s: received %d messages that its server had stored while it was offline", self._own_jid, count)
            except IqTimeout:
                log.debug("%s: the server did not answer the query for offline messages", self._own_jid)
            except IqError as error:  # most servers do not support XEP-0013, and have no messages left
                log.debug("%s: the server does not list offline messages: %s", self._own_jid, error.condition)
                return
