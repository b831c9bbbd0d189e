"""The clock of an agent's server (XEP-0202), which marks messages with the time at which it stored them."""

from __future__ import annotations

import asyncio
import time
from xml.etree.ElementTree import Element

from slixmpp.exceptions import XMPPError

from ..domain.jid import bare_jid, jid_domain
from .codec import Receiver, read_time
from .connection.connection import Connection

_TIME_NAMESPACE = "urn:xmpp:time"
_RESPONSE_TIMEOUT_S = 10.0


class ServerClock:
    """How far the clock of the server is ahead of ours, asked in each new session. Most servers answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self.receiver = Receiver(bare_jid(connection.jid))
        """The account of the agent, with what is known of the clock."""

    def start(self) -> None:
        """Ask the server in a new session, before the first presence: it answers before the messages that it has stored."""
        self._cancel()
        self._task = asyncio.create_task(self._ask())

    async def close(self) -> None:
        """Wait for no answer any more."""
        if self._task is not None:
            self._cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        client = self._connection.client
        query = Element(f"{{{_TIME_NAMESPACE}}}time")
        asked_at = time.time()
        try:
            reply = await client.make_iq_get(sub=query, ito=jid_domain(self.receiver.jid)).send(timeout=_RESPONSE_TIMEOUT_S)
        except XMPPError:
            return  # the server does not say its time, or not in time
        server_time = read_time(reply.xml.findtext(f"{{{_TIME_NAMESPACE}}}time/{{{_TIME_NAMESPACE}}}utc") or "")
        if server_time is not None:
            answered_at = time.time()
            self.receiver = self.receiver._replace(clock_offset=server_time - round((asked_at + answered_at) * 500_000))
