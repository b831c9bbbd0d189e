"""Mail that the server still keeps for an agent that is there (XEP-0013).

A server hands over what waits with the first presence. What ejabberd is just storing in that moment stays with it until the
next login: that is asked for here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from xml.etree.ElementTree import SubElement

from slixmpp.exceptions import XMPPError

from ..names import bare
from .connection import Connection

log = logging.getLogger(__name__)

OFFLINE = "http://jabber.org/protocol/offline"

_AFTER_S = (2.0, 30.0)
"""So long after the first presence it is asked for: a busy server may take a while to store something."""
_ANSWER_WITHIN_S = 10.0
_AT_ONCE = 100


class OfflineMail:
    """Asks for it with each new session. It comes as any message does, and the inbox knows what came before."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """With a new session, after the first presence."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._fetch_later())

    async def close(self) -> None:
        """Asks for nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def fetch(self) -> int:
        """Has the server hand over what it keeps, which keeps it no longer then; how many messages. XMPPError if it cannot."""
        count, nodes = 0, await self._nodes()
        while nodes:
            # They come before the answer. Until they are durable they are not acknowledged, and not lost with the session.
            await self._ask("get", "view", nodes)
            await self._ask("set", "remove", nodes)
            count += len(nodes)
            left = await self._nodes()
            nodes = left if left != nodes else []
        return count

    async def _nodes(self) -> list[str]:
        """The server's names of the messages, the oldest first."""
        disco = self._connection.client.plugin["xep_0030"]
        own = bare(self._connection.jid)
        found = await disco.get_items(jid=own, node=OFFLINE, local=False, timeout=_ANSWER_WITHIN_S)
        return [node for _, node, _ in found["disco_items"]["items"] if node][:_AT_ONCE]

    async def _ask(self, kind: str, action: str, nodes: Iterable[str]) -> None:
        iq = self._connection.client.make_iq(itype=kind)
        query = SubElement(iq.xml, f"{{{OFFLINE}}}offline")
        for node in nodes:
            SubElement(query, f"{{{OFFLINE}}}item", {"action": action, "node": node})
        await iq.send(timeout=_ANSWER_WITHIN_S)

    async def _fetch_later(self) -> None:
        waited_s = 0.0
        for after_s in _AFTER_S:
            await asyncio.sleep(after_s - waited_s)
            waited_s = after_s
            try:
                if count := await self.fetch():
                    log.info("%s: its server still kept %d messages for it", bare(self._connection.jid), count)
            except XMPPError as error:  # most servers know nothing of it, and keep nothing back
                log.debug("%s: does not say what it keeps: %s", bare(self._connection.jid), type(error).__name__)
                return
