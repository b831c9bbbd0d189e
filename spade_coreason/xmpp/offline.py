"""Offline messages, which the server stored while an agent was away, fetched one by one (XEP-0013).

Without a request, a server delivers them after the first presence. With its own database (Mnesia), ejabberd then deletes all
that it has of the account, and with it a message that it is storing at that moment, which is neither delivered nor returned.
So each session asks for the list of messages before its first presence: such a session gets none by itself (XEP-0013, 2.1).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement

from slixmpp.exceptions import IqError, IqTimeout

from ..domain.jid import bare_jid
from .connection.connection import Connection

if TYPE_CHECKING:
    from ..storage import Commit

log = logging.getLogger(__name__)

OFFLINE = "http://jabber.org/protocol/offline"

_FETCH_DELAYS_S = (0.0, 2.0, 30.0)
"""The times after the first presence when messages are fetched. A busy server may need a while to store one."""
_RESPONSE_TIMEOUT_S = 10.0
_BATCH_SIZE = 25
"""The messages of one request. ejabberd reads all that it has for each of them, and the agent's stream waits for that."""


class OfflineMessages:
    """The offline messages of one agent, fetched in each new session. They arrive like all other messages, in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._own_jid = bare_jid(connection.jid)
        self._task: asyncio.Task[None] | None = None
        self.arriving: list[tuple[str, Commit[Any] | None]] | None = None
        """The messages that have arrived, each with its name on the server and its commit; None while none are fetched."""
        self.is_fetching = False
        """True from `begin` until the messages are fetched that the server had stored at the first presence."""
        self.batch_size = _BATCH_SIZE

    async def begin(self) -> None:
        """Fetch before the first presence of a session, while no newer messages come. The server delivers none by itself then.

        What takes longer than ten seconds, and messages that have one name, are left for `start`.
        """
        if not self._connection.client.is_full_server:
            return
        self.stop()
        try:
            await self._list_nodes()
        except IqError as error:  # most servers do not support XEP-0013, and deliver all by themselves
            log.debug("%s: the server does not list offline messages: %s", self._own_jid, error.condition)
            return
        except IqTimeout:  # it may withhold them all the same
            log.debug("%s: the server did not answer the first request for offline messages", self._own_jid)
        self.is_fetching = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                await self._try_to_fetch(is_present=False)

    def start(self, on_fetched: Callable[[], None]) -> None:
        """Fetch after the first presence of a session. Call `on_fetched` when that is done, or when there is nothing to do."""
        if self._task is not None:
            self._task.cancel()
        if self.is_fetching:
            self._task = asyncio.create_task(self._fetch_repeatedly(on_fetched))
        else:
            on_fetched()

    def stop(self) -> None:
        """Stop fetching, because the session has ended."""
        self.is_fetching = False
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop fetching, and wait until it has stopped."""
        self.stop()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def read_node(self, message: Element) -> str:
        """Return the server's name of a message that is fetched here, or "". Names of other messages may be forged."""
        item = None if self.arriving is None else message.find(f"{{{OFFLINE}}}offline/{{{OFFLINE}}}item")
        return "" if item is None else item.get("node", "")

    def record_received(self, node: str, stored: Commit[Any] | None) -> None:
        """Record a message that was fetched. The server may delete it when it is `stored` (None: at once)."""
        if self.arriving is not None:
            self.arriving.append((node, stored))

    async def fetch(self, *, is_present: bool = True) -> int:
        """Fetch the messages, and delete them on the server when they are durable. Return their number.

        Without a presence, `is_present` is False, and messages that have one name are left.

        Raise IqError if the server does not support this, IqTimeout if it does not answer.
        """
        requested: set[str] = set()
        received = 0
        while counts := Counter([node for node in await self._list_nodes() if node not in requested]):
            requested.update(counts)
            # Messages that ejabberd stored in the same microsecond have one name. By it ejabberd returns one of them and
            # deletes all. All messages can be requested too, and come to the resource that has a presence.
            single = [node for node, count in counts.items() if count == 1]
            batches = [single[start : start + self.batch_size] for start in range(0, len(single), self.batch_size)]
            for batch in batches:
                if (count := await self._receive(batch, dict.fromkeys(batch, 1))) is None:
                    return received
                received += count
            if is_present and (shared := {node: count for node, count in counts.items() if count > 1}):
                received += await self._receive((), shared) or 0
        return received

    async def _receive(self, nodes: Collection[str], counts: Mapping[str, int]) -> int | None:
        """Request messages by their names, or all, and delete those with the names in `counts` when they are durable.

        Return their number, or None if messages could not be stored. They stay on the server.
        """
        arriving: list[tuple[str, Commit[Any] | None]] = []
        self.arriving = arriving
        try:
            await self._send_request("get", "view", nodes)  # the messages come before the reply
        finally:
            self.arriving = None
        if not all([stored is None or await stored.wait() for _, stored in arriving]):
            return None
        arrived = Counter([node for node, _ in arriving])
        whole = [node for node, count in counts.items() if arrived[node] >= count]
        if whole:
            await self._send_request("set", "remove", whole)
        return sum([counts[node] for node in whole])

    async def _list_nodes(self) -> list[str]:
        """Return the server's names of the messages, oldest first."""
        disco = self._connection.client.plugin["xep_0030"]
        reply = await disco.get_items(jid=self._own_jid, node=OFFLINE, local=False, timeout=_RESPONSE_TIMEOUT_S)
        return [node for item in reply["disco_items"].xml if (node := item.get("node"))]

    async def _send_request(self, kind: str, action: str, nodes: Collection[str] = ()) -> None:
        """Request messages by their names, with the action "view" or "remove". Without names, request all."""
        iq = self._connection.client.make_iq(itype=kind)
        query = SubElement(iq.xml, f"{{{OFFLINE}}}offline")
        for node in nodes:
            SubElement(query, f"{{{OFFLINE}}}item", {"action": action, "node": node})
        if not nodes:
            SubElement(query, f"{{{OFFLINE}}}fetch")
        await iq.send(timeout=_RESPONSE_TIMEOUT_S)

    async def _fetch_repeatedly(self, on_fetched: Callable[[], None]) -> None:
        waited_s = 0.0
        for after_s in _FETCH_DELAYS_S:
            await asyncio.sleep(after_s - waited_s)
            waited_s = after_s
            await self._try_to_fetch()
            if self.is_fetching:
                self.is_fetching = False
                on_fetched()

    async def _try_to_fetch(self, *, is_present: bool = True) -> None:
        try:
            if count := await self.fetch(is_present=is_present):
                log.info("%s: received %d messages that its server had stored while it was offline", self._own_jid, count)
        except IqTimeout:
            log.debug("%s: the server did not answer a request for offline messages", self._own_jid)
        except IqError as error:  # with `use_mam_for_storage` ejabberd has them in its archive only, and knows no names
            level = logging.DEBUG if error.condition == "item-not-found" else logging.WARNING
            log.log(level, "%s: the server does not deliver offline messages: %s", self._own_jid, error.condition)
