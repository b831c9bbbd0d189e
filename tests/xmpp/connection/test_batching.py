"""Messages to one recipient that leave in one write are one message, and are acknowledged and sent again as one."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from spade_coreason.domain.jid import bare_jid
from spade_coreason.runtime import OutboundMessage
from spade_coreason.xmpp.codec.cloud_events import EventStanzaWriter, retraction_stanza
from spade_coreason.xmpp.connection.batching import Batch, build_batches
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from tests.support.hosting import Tunnel, endpoint_of
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.transports import request_stanza
from tests.support.wait import TIMEOUT_S, eventually

PEER = "peer@localhost"
OTHER = "other@localhost"
JSON = "{urn:xmpp:json:0}json"


def request(number: int, to: str = PEER, size: int = 0, *, reads_batches: bool = True) -> OutboundMessage:
    data = {"payload": {"number": number, "text": "é" * size}}
    stanza = request_stanza(
        to, data, source="xmpp:me@localhost", thread=None, stanza_id=f"r{number}", reads_batches=reads_batches
    )
    return OutboundMessage(to, stanza)


def reply(number: int, to: str = PEER) -> OutboundMessage:
    writer = EventStanzaWriter(
        to=to,
        source="xmpp:me@localhost",
        thread=None,
        id_prefix=f"e{number}",
        request_id="r",
        stanza_bytes=65_536,
        accepts_batches=True,
    )
    writer.add("block.markdown", {"number": number})
    [stanza] = writer.flush()
    return OutboundMessage(to, stanza)


def text(number: int, to: str = PEER) -> OutboundMessage:
    return OutboundMessage(to, f"<message to='{to}' id='t{number}'><body>{number}</body></message>")


def numbers(message: OutboundMessage | Element) -> list[int]:
    """Return the numbers of the messages that are in one."""
    stanza = fromstring(message.content) if isinstance(message, OutboundMessage) else message
    container = stanza.find(JSON)
    if container is None or container.text is None:
        return [int(stanza.get("id", "").removeprefix("t"))]
    events = json.loads(container.text)
    data = [event["data"] for event in (events if isinstance(events, list) else [events])]
    return [one["number"] if "number" in one else one["payload"]["number"] for one in data]


def shapes(messages: Sequence[OutboundMessage]) -> list[list[int]]:
    return [numbers(message) for message in build_batches(messages)]


def test_requests_and_replies_to_one_recipient_are_one_message_each() -> None:
    assert shapes([request(0), request(1), request(2)]) == [[0, 1, 2]]
    assert shapes([reply(0), reply(1)]) == [[0, 1]]
    assert shapes([request(0), reply(1), reply(2), request(3), request(4)]) == [[0], [1, 2], [3, 4]]


def test_a_message_without_another_is_sent_as_it_is() -> None:
    messages = [request(0), request(1, OTHER), text(2), reply(3), request(4)]
    assert build_batches(messages) == messages


def test_recipients_do_not_delay_each_other() -> None:
    assert shapes([request(0), request(1, OTHER), request(2), text(3, OTHER), request(4), request(5, OTHER)]) == [
        [0, 2, 4],
        [1],
        [3],
        [5],
    ]


@pytest.mark.parametrize(
    "between",
    [text(1), request(1, reads_batches=False), request(1, size=5000), OutboundMessage(PEER, retraction_stanza(PEER, "t1"))],
)
def test_what_is_for_no_batch_stays_between(between: OutboundMessage) -> None:
    first, second, third = build_batches([request(0), between, request(2), request(3)])
    assert (numbers(first), second, numbers(third)) == ([0], between, [2, 3])


def test_the_resources_of_one_account_get_their_own_messages_in_order() -> None:
    one, two = f"{PEER}/one", f"{PEER}/two"
    messages = [request(0, one), request(1, one), request(2, two), request(3, one), text(4, two), request(5, one)]
    assert shapes(messages) == [[0, 1], [2], [3], [4], [5]]


def test_a_batch_has_16_messages_and_10_000_bytes_at_most() -> None:
    assert [len(shape) for shape in shapes([request(number) for number in range(40)])] == [16, 16, 8]
    messages = [request(number, size=1000) for number in range(16)]  # 2,000 bytes in 1,000 characters
    batches = build_batches(messages)
    assert max(len(batch.content.encode()) for batch in batches) <= 10_000
    assert [len(numbers(batch)) for batch in batches] == [4, 4, 4, 4]
    long = request(1, size=4500)  # alone it has more bytes than a batch may have, in fewer characters
    assert len(long.content) < 5000 < 9000 < len(long.content.encode())
    assert shapes([request(0, size=500), long, request(2)]) == [[0], [1, 2]]
    assert shapes([request(0, size=500), long, request(2, size=500)]) == [[0], [1], [2]]


def test_a_batch_that_is_sent_again_gets_nothing_more() -> None:
    [batch] = build_batches([request(0), request(1)])
    again = build_batches([batch, request(2), request(3)])
    assert again[0] is batch
    assert [numbers(message) for message in again] == [[0, 1], [2, 3]]


def test_the_acknowledgement_of_a_batch_acknowledges_each_message_once() -> None:
    acknowledged: list[int] = []
    messages = [request(number) for number in range(3)]
    for number, message in enumerate(messages):
        message.on_acknowledged = lambda number=number: acknowledged.append(number)
    [batch] = build_batches(messages)
    assert isinstance(batch, Batch)
    assert not any(message.is_acknowledged for message in messages)
    for _ in range(2):
        batch.acknowledge()
    assert acknowledged == [0, 1, 2]
    assert all(message.is_acknowledged for message in [batch, *messages])


def test_the_id_of_a_batch_names_all_its_requests_or_its_last_event() -> None:
    [requests], [replies] = build_batches([request(0), request(1)]), build_batches([reply(0), reply(1)])
    assert fromstring(requests.content).get("id") == "r0 r1"
    assert (fromstring(replies.content).get("id") or "").startswith("e1-0-")


def test_an_odd_address_is_in_the_batch_as_in_its_messages() -> None:
    to = f'{PEER}/it\'s <&> "odd"'
    [batch] = build_batches([request(0, to), request(1, to)])
    assert fromstring(batch.content).get("to") == to


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_and_each_account_gets_its_messages_in_order(seed: int) -> None:
    rng = random.Random(seed)
    messages = []
    for number in range(rng.randrange(1, 120)):
        to = rng.choice([PEER, f"{PEER}/one", f"{PEER}/two", OTHER])
        make = rng.choice([request, request, request, reply, reply, text])
        messages.append(make(number, to, rng.choice([0, 0, 500, 3000])) if make is request else make(number, to))
    sent = build_batches(messages)
    for account in (PEER, OTHER):
        expected = [(message.recipient, *numbers(message)) for message in messages if bare_jid(message.recipient) == account]
        found = [(one.recipient, number) for one in sent if bare_jid(one.recipient) == account for number in numbers(one)]
        assert found == expected
    for message in sent:
        message.acknowledge()
    assert all(message.is_acknowledged for message in messages)


# On a server


@asynccontextmanager
async def open_connection(server: XmppServer, port: int) -> AsyncIterator[Connection]:
    account = await server.account()
    connection = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(server, port), SessionHandler())
    await connection.open()
    connection.client.send_presence()
    try:
        yield connection
    finally:
        await connection.close()


async def receive_requests(client: StockClient, count: int) -> list[list[int]]:
    """Return the numbers of the requests in each message that the client gets, until it has that many."""
    received: list[list[int]] = []
    async with asyncio.timeout(TIMEOUT_S):
        while sum(map(len, received)) < count:
            received.append(numbers((await client.messages.get()).xml))
    return received


@pytest.mark.parametrize("is_resumed", [True, False])
async def test_a_batch_is_sent_again_whole_after_a_cut(real_server: XmppServer, is_resumed: bool) -> None:
    """The server has not read it, or has not acknowledged it: then it comes twice, and its receiver knows the ids."""
    async with (
        Tunnel(real_server) as tunnel,
        StockClient(*await real_server.account(), real_server) as peer,
        open_connection(real_server, tunnel.port) as connection,
    ):
        written: list[str] = []
        send_raw = connection.client.send_raw

        def write(data: Any) -> None:
            written.append(str(data))
            send_raw(data)

        connection.client.send_raw = write
        messages = [request(number, peer.jid) for number in range(5)]
        acknowledged: list[int] = []
        for number, message in enumerate(messages):
            message.on_acknowledged = lambda number=number: acknowledged.append(number)
        assert await connection.wait_until_acknowledged(TIMEOUT_S)
        tunnel.dropped_direction = "to the server"
        connection.send(messages)
        await eventually(lambda: any("r0 r1 r2 r3 r4" in data for data in written))
        tunnel.is_open = is_resumed
        tunnel.cut()
        if not is_resumed:
            connection.client.stream_management.sm_id = None
        tunnel.dropped_direction, tunnel.is_open = "", True
        assert await receive_requests(peer, 5) == [[0, 1, 2, 3, 4]]
        await eventually(lambda: connection.state == "online")
        assert await connection.wait_until_acknowledged(TIMEOUT_S)
        assert acknowledged == [0, 1, 2, 3, 4]
        assert (connection.resumption_count, connection.session_count) == ((1, 1) if is_resumed else (0, 2))
        assert len(re.findall("r0 r1 r2 r3 r4", "".join(written))) == 2


async def test_messages_of_one_moment_travel_as_one_and_arrive_in_order(real_server: XmppServer) -> None:
    async with (
        StockClient(*await real_server.account(), real_server) as peer,
        StockClient(*await real_server.account(), real_server) as other,
        open_connection(real_server, real_server.port) as connection,
    ):
        for number in range(100):
            connection.send([request(number, peer.jid), text(number, other.jid)])
        received = await receive_requests(peer, 100)
        assert [number for message in received for number in message] == list(range(100))
        assert len(received) <= 25
        assert max(map(len, received)) == 8  # of 16 that leave at once, half are for the other
        assert [str((await other.answer())["body"]) for _ in range(100)] == [str(number) for number in range(100)]
