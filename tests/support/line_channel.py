"""A channel over TCP: each request and each event of a reply is a line of JSON. The first line is the sender's address."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from spade_coreason.domain.channel_kinds import PROGRAM
from spade_coreason.domain.jid import bare_jid
from spade_coreason.domain.messages import InboundRequest, MalformedRequest
from spade_coreason.runtime import ChannelGateway, OutboundMessage
from tests.support.fetched_channel import JsonChannel

NAME = "line"


class LineChannel(JsonChannel):
    """The channel of one agent. Messages to a sender who is not connected wait, unacknowledged."""

    def __init__(self) -> None:
        self.port = 0
        """The port of the loopback on which it listens, once it is open."""
        self._gateway: ChannelGateway | None = None
        self._server: asyncio.Server | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._waiting: defaultdict[str, list[OutboundMessage]] = defaultdict(list)

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        for message in messages:
            if (writer := self._writers.get(message.recipient)) is None:
                self._waiting[message.recipient].append(message)
            else:
                writer.write(f"{message.content}\n".encode())
                message.acknowledge()

    def encode_malformed_reply(self, message: MalformedRequest) -> list[OutboundMessage]:
        return [OutboundMessage(message.sender, json.dumps({"type": "Malformed", "problem": message.problem}))]

    async def open(self, gateway: ChannelGateway) -> None:
        self._gateway = gateway
        self._server = await asyncio.start_server(self._serve, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._writers.values():
                writer.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = (await reader.readline()).decode().strip()
        self._writers[address] = writer
        self.send(self._waiting.pop(address, []))
        assert self._gateway is not None
        try:
            while line := await reader.readline():
                self._gateway.receive(_decode(line, address), channel=NAME)
        finally:
            if self._writers.get(address) is writer:
                del self._writers[address]
            writer.close()


def _decode(line: bytes, sender: str) -> InboundRequest | MalformedRequest:
    try:
        fields = json.loads(line)
        query, thread, request_id = fields["query"], fields.get("thread"), UUID(fields["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return MalformedRequest(sender, "", None, repr(error))
    content = line.decode()
    owner = bare_jid(sender)
    return InboundRequest(PROGRAM, sender, "", thread, {"query": query}, content, owner=owner, request_id=request_id)
