"""Many occupants of a chat room over one connection: a component (XEP-0114) whose addresses are people."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.wait import TIMEOUT_S

HOST = "crowd.localhost"
MUC = "http://jabber.org/protocol/muc"
_SELF = re.compile(rb"code=['\"]110['\"]")
_LONGEST_STATUS = 16
_GROUP = 50


@dataclass(frozen=True)
class ComponentEndpoint:
    """The port, secret and host by which a crowd connects to a server."""

    port: int = field(default_factory=lambda: find_free_ports(1)[0])
    secret: str = field(default_factory=lambda: secrets.token_hex(8))
    host: str = HOST


class Crowd:
    """Many occupants of a room: `async with Crowd(endpoint) as crowd: await crowd.join(room, 1000)`.

    Received stanzas are counted, not parsed: a thousand occupants receive a million presences of each other.
    """

    def __init__(self, endpoint: ComponentEndpoint) -> None:
        self._endpoint = endpoint
        self._joined = 0
        self._join_condition = asyncio.Condition()

    async def __aenter__(self) -> Crowd:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._endpoint.port)
        self._writer.write(
            b"<stream:stream xmlns='jabber:component:accept' xmlns:stream='http://etherx.jabber.org/streams' to='%s'>"
            % self._endpoint.host.encode()
        )
        header = b""
        while (stream_id := re.search(rb"<stream:stream[^>]* id=['\"]([^'\"]+)['\"]", header)) is None:
            header += await self._reader.read(4096)
        proof = hashlib.sha1(stream_id[1] + self._endpoint.secret.encode(), usedforsecurity=False).hexdigest()
        self._writer.write(b"<handshake>%s</handshake>" % proof.encode())
        assert b"<handshake" in await self._reader.read(4096)
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._counting.cancel()
        await asyncio.gather(self._counting, return_exceptions=True)
        self._writer.close()

    def jid(self, number: int) -> str:
        return f"person{number}@{self._endpoint.host}/room"

    async def join(self, room: str, count: int, timeout_s: float = TIMEOUT_S) -> None:
        """Join a room with `count` occupants and return when all are in.

        They join in groups, because ejabberd cannot handle a thousand requests at once.
        """
        join_element = f"<x xmlns='{MUC}'><history maxstanzas='0'/></x>"
        async with asyncio.timeout(timeout_s):
            for number in range(count):
                self._presence(room, number, join_element)
                if (number + 1) % _GROUP == 0 or number + 1 == count:
                    async with self._join_condition:
                        await self._join_condition.wait_for(lambda expected=number + 1: self._joined >= expected)  # type: ignore[misc]  # mypy knows no type of a lambda with a default

    def leave(self, room: str, *numbers: int) -> None:
        for number in numbers:
            self._presence(room, number, "", " type='unavailable'")

    def say(self, room: str, number: int, text: str) -> None:
        self._send(f"<message from='{self.jid(number)}' to='{room}' type='groupchat'><body>{text}</body></message>")

    def whisper(self, room: str, nick: str, number: int, text: str) -> None:
        self._send(
            f"<message from='{self.jid(number)}' to={quoteattr(f'{room}/{nick}')} type='chat'><body>{text}</body></message>"
        )

    def _presence(self, room: str, number: int, inner: str, kind: str = "") -> None:
        self._send(f"<presence from='{self.jid(number)}' to='{room}/person{number}'{kind}>{inner}</presence>")

    def _send(self, stanza: str) -> None:
        self._writer.write(stanza.encode())

    async def _count(self) -> None:
        rest = b""
        while data := await self._reader.read(1 << 20):
            data = rest + data
            found = [match.end() for match in _SELF.finditer(data)]
            # A tail that may be the start of another match is kept for the next read.
            rest = data[max([len(data) - _LONGEST_STATUS, *found]) :]
            if found:
                async with self._join_condition:
                    self._joined += len(found)
                    self._join_condition.notify_all()
