"""Sending is fair: many stanzas to one recipient do not delay those to another."""

from __future__ import annotations

import asyncio

import pytest

from spade_coreason.runtime import OutboundMessage
from spade_coreason.xmpp.connection.connection import Connection
from spade_coreason.xmpp.connection.fair_queue import FairQueue
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.connection.session_handler import SessionHandler
from spade_coreason.xmpp.connection.stream_management import REQUEST_ACK
from tests.support.hosting import endpoint_of, texts
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

BACKLOG = 2000


def _message(to: str, text: str) -> OutboundMessage:
    return OutboundMessage(to, f"<message to='{to}' type='chat'><body>{text}</body></message>")


def test_each_recipient_has_its_turn_and_keeps_its_order() -> None:
    queue = FairQueue()
    queue.extend(_message("mallory@localhost/one", str(number)) for number in range(3))
    queue.extend([_message("mallory@localhost/two", "3"), _message("bob@localhost", "a"), _message("bob@localhost", "b")])
    first, rest = queue.take(3, 10_000), queue.take(10, 10_000)
    assert [stanza.recipient for stanza in first] == ["mallory@localhost/one", "bob@localhost", "mallory@localhost/one"]
    assert [stanza.recipient for stanza in rest] == ["bob@localhost", "mallory@localhost/one", "mallory@localhost/two"]
    assert not queue.recipients


def test_the_queue_gives_no_more_characters_than_there_is_room_for() -> None:
    queue = FairQueue()
    queue.extend(_message("mallory@localhost", "x" * 20_000) for _ in range(5))
    assert queue.take(10, 0) == []
    assert len(queue.take(10, 1)) == 1
    assert len(queue.take(10, 40_000)) == 2
    assert len(queue.take_all()) == 2


def test_a_recipient_without_room_keeps_its_turn_and_the_others_go_on() -> None:
    queue = FairQueue()
    queue.extend(_message("mallory@localhost", str(number)) for number in range(4))
    queue.extend([_message("bob@localhost", "a"), _message("carol@localhost", "b")])
    first = queue.take(10, 10_000, {"mallory@localhost": 1, "bob@localhost": 5})
    assert [stanza.recipient for stanza in first] == ["mallory@localhost", "bob@localhost", "carol@localhost"]
    assert list(queue.recipients) == ["mallory@localhost"]
    assert queue.take(10, 10_000, {"mallory@localhost": 0}) == []
    assert len(queue.take(10, 10_000)) == 3


async def test_one_recipient_of_several_takes_a_share_of_the_stream_only(real_server: XmppServer) -> None:
    account = await real_server.account()
    sender = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(real_server), SessionHandler())
    async with (
        StockClient(*await real_server.account(), real_server) as mallory,
        StockClient(*await real_server.account(), real_server) as bob,
    ):
        await sender.open()
        unacknowledged = sender.client.stream_management.unacked_queue
        sender.send([_message(bob.jid, "hello")])
        assert await sender.wait_until_acknowledged(TIMEOUT_S)
        sender.send([_message(mallory.jid, str(number)) for number in range(100)])
        assert len(unacknowledged) == 32
        sender.send([_message(bob.jid, "not late")])
        await asyncio.sleep(0)  # one round: it is written
        assert len(unacknowledged) == 33
        assert [(await bob.answer())["body"] for _ in range(2)] == ["hello", "not late"]
        await eventually(lambda: mallory.messages.qsize() == 100)
        await sender.close()


def test_small_stanzas_pass_large_ones_that_have_to_wait() -> None:
    queue = FairQueue()
    queue.extend(_message(f"{name}@localhost", text) for name in ("mallory", "bob") for text in ("x" * 20_000, "small"))
    queue.extend(_message("carol@localhost", text) for text in ("a", "b"))
    assert [stanza.recipient for stanza in queue.take(10, 0)] == ["carol@localhost", "carol@localhost"]
    assert [stanza.recipient for stanza in queue.take(10, 1)] == ["mallory@localhost", "mallory@localhost"]
    assert [len(stanza.content) > 20_000 for stanza in queue.take(10, 1)] == [True, False]
    assert not queue.recipients


@pytest.mark.parametrize(("backlog", "text"), [(2000, "x"), (100, "x" * 60_000)], ids=["many", "long"])
async def test_a_backlog_for_one_person_does_not_delay_the_message_to_another(
    real_server: XmppServer, backlog: int, text: str
) -> None:
    account = await real_server.account()
    sender = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(real_server), SessionHandler())
    async with (
        StockClient(*await real_server.account(), real_server) as mallory,
        StockClient(*await real_server.account(), real_server) as bob,
    ):
        await sender.open()
        sender.send([_message(mallory.jid, f"{number} {text}") for number in range(backlog)])
        sender.send([_message(bob.jid, "hello")])
        assert (await bob.answer())["body"] == "hello"
        assert mallory.messages.qsize() < backlog / 2
        await eventually(lambda: mallory.messages.qsize() == backlog)
        assert texts(mallory.messages.unread()) == [f"{number} {text}" for number in range(backlog)]
        assert await sender.wait_until_acknowledged(TIMEOUT_S)
        await sender.close()


async def test_what_waits_is_sent_before_a_connection_closes(real_server: XmppServer) -> None:
    account = await real_server.account()
    sender = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(real_server), SessionHandler())
    async with StockClient(*await real_server.account(), real_server) as alice:
        await sender.open()
        sender.send([_message(alice.jid, str(number)) for number in range(BACKLOG)])
        await asyncio.sleep(0)  # one round: it is written
        await sender.close()
        await eventually(lambda: alice.messages.qsize() == BACKLOG)


def _record_writes(connection: Connection) -> list[str]:
    client, written = connection.client, list[str]()
    send_raw = client.send_raw

    def write(data: str) -> None:
        written.append(data)
        send_raw(data)

    client.send_raw = write
    return written


async def test_the_write_of_what_had_to_wait_asks_for_its_acknowledgement(real_server: XmppServer) -> None:
    """Turns wait until it has arrived. Without the request that took a second."""
    account = await real_server.account()
    sender = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(real_server), SessionHandler())
    async with StockClient(*await real_server.account(), real_server) as alice:
        await sender.open()
        assert await sender.wait_until_acknowledged(TIMEOUT_S)
        written = _record_writes(sender)
        sender.send([_message(alice.jid, str(number)) for number in range(129)])
        await eventually(lambda: alice.messages.qsize() == 129)
        first, *_, last = [text for text in written if "<body>" in text]
        assert (first.count("<body>"), last.count("<body>")) == (32, 1)
        assert last.endswith(REQUEST_ACK)
        await sender.close()


async def test_a_large_stanza_that_has_to_wait_asks_for_the_acknowledgement_that_makes_room(real_server: XmppServer) -> None:
    account = await real_server.account()
    sender = Connection(Login(f"{account[0]}/agent", account[1]), endpoint_of(real_server), SessionHandler())
    async with StockClient(*await real_server.account(), real_server) as alice:
        await sender.open()
        assert await sender.wait_until_acknowledged(TIMEOUT_S)
        written = _record_writes(sender)
        for _ in range(3):
            sender.send([_message(alice.jid, "x" * 20_000)])
            await asyncio.sleep(0)  # one round: it is written
        assert [("<body>" in text, text.endswith(REQUEST_ACK)) for text in written] == [
            (True, False),
            (True, False),
            (False, True),
        ]
        await eventually(lambda: alice.messages.qsize() == 3)
        await sender.close()
