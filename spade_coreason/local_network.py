"""A network within one process, for tests: it carries the very stanzas of the wire between agents and users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import quote
from xml.etree.ElementTree import Element, fromstring

from .codec import Bounce, Reply, decode
from .codec.namespaces import BODY, CHAT_STATES, DISPLAYED, OOB, OOB_URL, REPLACE, REPLY, THREAD
from .devices import UnknownDevices
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


ClientFeature: TypeAlias = Literal["corrections", "replies"]
"""What a person's client shows: corrections (XEP-0308), so that a streamed answer grows; replies (XEP-0461)."""


class LocalDevices(UnknownDevices):
    """The devices of all people: they show `features`, which may change."""

    def __init__(self, features: Set[ClientFeature]) -> None:
        self.features = features

    def corrects(self, person: str) -> bool:
        """The same for everybody."""
        return "corrections" in self.features

    def refers(self, device: str) -> bool:
        """The same for everybody."""
        return "replies" in self.features


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as it came to a person. What it does not have is None."""

    id: str
    sender: str
    """A bare JID."""
    thread: str | None
    text: str | None
    """None for one that shows typing only, or is a receipt or a marker."""
    reply_to: str | None
    """The id of the person's message that it replies to (XEP-0461)."""
    corrects: str | None
    """The id of the agent's message whose text it replaces (XEP-0308)."""
    link: str | None
    """The file that clients show it as (XEP-0066)."""
    state: str | None
    """A chat state (XEP-0085): "active", "composing", "paused", "inactive" or "gone"."""
    displayed: str | None
    """The id of the person's message that the agent has begun to work on (XEP-0333)."""
    xml: Element = field(repr=False, compare=False)

    @classmethod
    def read(cls, xml: Element) -> ReceivedMessage:
        """Reads a `<message/>`."""
        reply, replaced, displayed = (xml.find(tag) for tag in (REPLY, REPLACE, DISPLAYED))
        return cls(
            id=xml.get("id", ""),
            sender=bare(xml.get("from", "")),
            thread=xml.findtext(THREAD),
            text=xml.findtext(BODY),
            reply_to=reply.get("id") if reply is not None else None,
            corrects=replaced.get("id") if replaced is not None else None,
            link=xml.findtext(f"{OOB}/{OOB_URL}"),
            state=next((child.tag.rpartition("}")[2] for child in xml if child.tag in CHAT_STATES), None),
            displayed=displayed.get("id") if displayed is not None else None,
            xml=xml,
        )


class LocalUser:
    """A user who talks to agents: a program's open requests and a person's messages."""

    def __init__(self, jid: str, network: LocalNetwork) -> None:
        self.jid = jid
        self.requests = OpenRequests()
        self.send = network.sender(f"{jid}/test")
        self.messages: list[ReceivedMessage] = []
        """All that came, in the order of its arrival."""
        self._unread: list[ReceivedMessage] = []
        self._arrival = asyncio.Event()
        network.attach(jid, self._receive)

    def take(self, *of: str | None) -> list[str]:
        """The texts that nobody took: all, or those `of` a sender and a thread."""
        taken = [one for one in self._unread if not of or of == (one.sender, one.thread)]
        self._unread = [one for one in self._unread if one not in taken]
        return [one.text for one in taken if one.text is not None]

    async def next(self) -> ReceivedMessage:
        """Takes the first message with a text that nobody took; waits for it."""
        while not self._unread:
            self._arrival.clear()
            await self._arrival.wait()
        return self._unread.pop(0)

    def _receive(self, stanza: Element) -> None:
        received = ReceivedMessage.read(stanza)
        self.messages.append(received)
        message = decode(stanza)
        if isinstance(message, Reply):
            self.requests.deliver(message)
        elif isinstance(message, Bounce):
            self.requests.bounce(message)
        elif received.text is not None:
            self._unread.append(received)
            self._arrival.set()


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
