"""A network within one process, for tests: it carries the very stanzas of the wire between agents and users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree.ElementTree import Element, fromstring

from .codec import Bounce, Reply, decode
from .codec.namespaces import BODY, THREAD
from .files import Fetched, Progress, fetch
from .names import bare
from .peers import OpenRequests
from .tracked import Tracked


class LocalNetwork:
    """Carries stanzas in the order in which they are sent. It says who sent what, and keeps it for the absent."""

    def __init__(self) -> None:
        self._receivers: dict[str, Callable[[Element], object]] = {}
        self._away: dict[str, list[Element]] = {}
        self.under_way = 0
        """How many stanzas were sent and have not arrived."""

    def attach(self, jid: str, receive: Callable[[Element], object]) -> None:
        """From now on `receive` gets what is sent to the bare JID, and first what came while it was away."""
        self._receivers[jid] = receive
        for message in self._away.pop(jid, []):
            receive(message)

    def detach(self, jid: str) -> None:
        """Keeps what is sent to the bare JID until it is attached again."""
        self._receivers.pop(jid, None)
        self._away.setdefault(jid, [])

    def sender(self, jid: str) -> Callable[[list[str]], None]:
        """What the full JID sends through."""

        def send(stanzas: list[str]) -> None:
            for stanza in stanzas:
                self.under_way += 1
                asyncio.get_running_loop().call_soon(self._carry, jid, str(stanza))
                if isinstance(stanza, Tracked):
                    stanza.acknowledge()

        return send

    async def carried(self) -> None:
        """Waits until everything that was sent before has arrived."""
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.call_soon(arrived.set_result, None)  # stanzas are carried in the order in which they were sent
        await arrived

    def _carry(self, sender: str, stanza: str) -> None:
        self.under_way -= 1
        message = fromstring(stanza.replace("<message ", "<message xmlns='jabber:client' ", 1))
        message.set("from", sender)
        to = bare(message.get("to", ""))
        if (receive := self._receivers.get(to)) is not None:
            receive(message)
        elif to in self._away:
            self._away[to].append(message)
        elif message.get("type") != "error":
            self._bounce(message)

    def _bounce(self, message: Element) -> None:
        error = (
            "<message xmlns='jabber:client' type='error'><error type='cancel'>"
            "<service-unavailable xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error></message>"
        )
        bounce = fromstring(error)
        bounce.set("from", message.get("to", ""))
        bounce.set("id", message.get("id", ""))
        receive = self._receivers.get(bare(message.get("from", "")))
        if receive is not None:
            receive(bounce)


class _Text(NamedTuple):
    """What a person reads, from whom, and on which thread."""

    sender: str
    thread: str | None
    text: str


class LocalUser:
    """Somebody who talks to agents: a program's open requests and a person's texts."""

    def __init__(self, jid: str, network: LocalNetwork) -> None:
        self.jid = jid
        self.requests = OpenRequests()
        self.send = network.sender(f"{jid}/test")
        self._texts: list[_Text] = []
        network.attach(jid, self._receive)

    def take(self, *of: str | None) -> list[str]:
        """The texts that nobody took: all, or those `of` a sender and a thread."""
        taken = [text for text in self._texts if not of or of == (text.sender, text.thread)]
        self._texts = [text for text in self._texts if text not in taken]
        return [text.text for text in taken]

    def _receive(self, stanza: Element) -> None:
        message = decode(stanza)
        if isinstance(message, Reply):
            self.requests.deliver(message)
        elif isinstance(message, Bounce):
            self.requests.bounce(message)
        elif (text := stanza.findtext(BODY)) is not None:
            self._texts.append(_Text(bare(stanza.get("from", "")), stanza.findtext(THREAD), text))


class LocalFiles:
    """What agents uploaded, by link. Such a link is fetched from here, every other from where it leads."""

    def __init__(self) -> None:
        self.kept: dict[str, Fetched] = {}

    async def put(self, name: str, data: bytes, type: str, progress: Progress | None) -> str:
        """Keeps it."""
        url = f"https://files.localhost/{len(self.kept) + 1}/{quote(name, safe='')}"
        self.kept[url] = Fetched(url, name, type, data)
        if progress is not None:
            progress(len(data), len(data))
        return url

    async def get(self, url: str, **limits: Any) -> Fetched:
        """As `fetch`."""
        return self.kept[url] if url in self.kept else await fetch(url, **limits)
