"""Offline messages, which the server stored while an agent was away, fetched one by one (XEP-0013).

Without a request, a server delivers them after the first presence. With its own database (Mnesia), ejabberd then deletes all
that it has of the account, and with it a message that it is storing at that moment, which is neither delivered nor returned.
So each session asks for the list of messages before its first presence: such a session gets none by itself (XEP-0013, 2.1).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
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
_MAX_SINGLE = 100
"""More messages than these are fetched at once: ejabberd reads all of them for each single one."""


class OfflineMessages:
    """The offline messages of one agent, fetched in each new session. They arrive like all other messages, in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._own_jid = bare_jid(connection.jid)
        self._task: asyncio.Task[None] | None = None
        self._arriving: list[tuple[str, Commit[Any] | None]] | None = None
        """The messages that have arrived, each with its name on the server and its commit; None while none are fetched."""
        self.is_fetching = False
        """True from `start` until the messages are fetched that the server had stored until then."""
        self.max_single = _MAX_SINGLE

    async def begin(self) -> None:
        """Fetch before the first presence of a session, while no newer messages come. The server delivers none by itself then.

        Without a presence it has no way for the messages of a request for all, so many messages are left for `start`.
        """
        self.stop()
        try:
            await self._list_nodes()
        except IqError as error:  # most servers do not support XEP-0013, and deliver all by themselves
            log.debug("%s: the server does not list offline messages: %s", self._own_jid, error.condition)
            return
        except IqTimeout:
            pass  # it may withhold them all the same
        self.is_fetching = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
                await self._try_to_fetch(only_single=True)

    def start(self, on_fetched: Callable[[], None]) -> None:
        """Fetch after the first presence of a session. Call `on_fetched` when that is done, or when there is nothing to do."""
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
        item = None if self._arriving is None else message.find(f"{{{OFFLINE}}}offline/{{{OFFLINE}}}item")
        return "" if item is None else item.get("node", "")

    def record_received(self, node: str, stored: Commit[Any] | None) -> None:
        """Record a message that was fetched. The server may delete it when it is `stored` (None: at once)."""
        if self._arriving is not None:
            self._arriving.append((node, stored))

    async def fetch(self, *, only_single: bool = False) -> int:
        """Fetch the messages, and delete them on the server when they are durable. Return their number.

        `only_single` is True if messages that cannot be fetched one by one are left.

        Raise IqError if the server does not support this, IqTimeout if it does not answer.
        """
        requested, received = Counter[str](), Counter[str]()
        stored_nodes = Counter(await self._list_nodes())
        while new := stored_nodes - requested:
            arriving: list[tuple[str, Commit[Any] | None]] = []
            self._arriving = arriving
            try:  # the messages come before the reply
                # Messages that ejabberd stored in the same microsecond have one name. By it ejabberd returns one of them only.
                are_single = new.total() == len(new) <= self.max_single and await self._view(new)
                if not are_single:
                    if only_single:
                        break
                    await self._send_request("get", "fetch")
            finally:
                self._arriving = None
            if not all([stored is None or await stored.wait() for _, stored in arriving]):
                break  # messages that could not be stored stay on the server
            arrived = Counter([node for node, _ in arriving])
            requested, received = requested | stored_nodes, received | arrived
            if are_single and arrived:
                await self._send_request("set", "remove", arrived)
            stored_nodes = Counter(await self._list_nodes())
        if stored_nodes and stored_nodes <= received:
            await self._send_request("set", "purge")
        return received.total()

    async def _list_nodes(self) -> list[str]:
        """Return the server's names of the messages, oldest first."""
        disco = self._connection.client.plugin["xep_0030"]
        reply = await disco.get_items(jid=self._own_jid, node=OFFLINE, local=False, timeout=_RESPONSE_TIMEOUT_S)
        return [node for item in reply["disco_items"].xml if (node := item.get("node"))]

    async def _view(self, nodes: Collection[str]) -> bool:
        """Request single messages. Return False if they cannot be named: ejabberd may keep them in its archive only."""
        try:
            await self._send_request("get", "view", nodes)
        except IqError as error:
            if error.condition != "item-not-found":
                raise
            return False
        return True

    async def _send_request(self, kind: str, action: str, nodes: Collection[str] = ()) -> None:
        """Request an action: "view" or "remove" of these nodes, or "fetch" or "purge" of all."""
        iq = self._connection.client.make_iq(itype=kind)
        query = SubElement(iq.xml, f"{{{OFFLINE}}}offline")
        for node in nodes:
            SubElement(query, f"{{{OFFLINE}}}item", {"action": action, "node": node})
        if not nodes:
            SubElement(query, f"{{{OFFLINE}}}{action}")
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

    async def _try_to_fetch(self, *, only_single: bool = False) -> None:
        try:
            if count := await self.fetch(only_single=only_single):
                log.info("%s: received %d messages that its server had stored while it was offline", self._own_jid, count)
        except IqTimeout:
            log.debug("%s: the server did not answer a request for offline messages", self._own_jid)
        except IqError as error:
            log.warning("%s: the server does not deliver offline messages: %s", self._own_jid, error.condition)
