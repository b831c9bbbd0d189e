"""Feeds, bodies and files that are too many, too large, or wrong: others are served meanwhile, and the server stops."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from sqlalchemy import update

from spade_coreason.config import WebSettings
from spade_coreason.doors.addresses import Proxies
from spade_coreason.doors.connections import ConnectionPools
from spade_coreason.doors.page.feed import Feed
from spade_coreason.storage.schema import door_files
from tests.support.errors import ExpectedErrors
from tests.support.long_forms import short_and_long_in_release
from tests.support.page import ADA, BOB, DESK, PageDesk, RunningPage, Visitor, wish
from tests.support.wait import TIMEOUT_S, eventually

PLACE = [[DESK, "", 40]]


async def test_an_account_has_eight_feeds_and_another_one_as_many(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page, AsyncExitStack() as stack:
        ada, again, bob = await page.log_in(ADA), await page.log_in(ADA), await page.log_in(BOB)
        feeds = [await stack.enter_async_context((ada, again)[number % 2].feed()) for number in range(8)]
        for visitor in (ada, again):
            refused = await visitor.post("/chat/feed", places=PLACE)
            assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        for feed in feeds:
            await feed.find("agents")
        async with bob.feed() as feed:
            await feed.find("agents")
        await feeds[0].reply.aclose()
        async with asyncio.timeout(30):
            while True:
                async with ada.feed() as feed:
                    if feed.reply.status_code == 200:
                        break


async def test_feeds_that_were_left_at_once_count_no_longer(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        body = json.dumps({"places": PLACE}).encode()
        head = (
            f"POST /chat/feed HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {page.url}\r\nCookie: {'='.join(ada.cookie)}\r\n"
            f"X-Page-Key: {ada.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", page.web.port)
            writer.write(head + body)
            await writer.drain()
            writer.transport.abort()
            del reader
        await eventually(lambda: page_connections(page) == 0)
        async with ada.feed() as feed:
            await feed.find("agents")


def page_connections(page: RunningPage) -> int:
    """Return the number of open connections."""
    status = page.platform.web_status
    assert status is not None
    return status.connections


def test_thousands_of_people_with_feeds_leave_room_for_a_key_that_is_known() -> None:
    """Each has as many as they may."""
    pools = ConnectionPools(WebSettings().limits, Proxies([]))
    pools.enter("198.51.100.1").show_key("friend")
    for number in range(2000):
        for _ in range(8):
            slot = pools.enter(f"203.0.{number // 250}.{number % 250}")
            if slot.refusal is None:
                slot.show_key(f"person{number}@localhost")
    assert [pools.enter("198.51.100.1").refusal for _ in range(5)] == [None] * 5


async def test_a_client_that_does_not_read_keeps_nobody_waiting_and_is_left(tmp_path: Path) -> None:
    """Its connection is closed, and it holds little memory until then."""
    async with RunningPage.open(tmp_path, {"limits": {"unread_s": 1}}) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        for number in range(8):
            await ada.ask("x" * 250_000, thread=str(number))
        await ada.turns(1, DESK, "7")
        body = json.dumps({"places": [[DESK, str(number), 40] for number in range(8)]}).encode()
        head = (
            f"POST /chat/feed HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {page.url}\r\nCookie: {'='.join(ada.cookie)}\r\n"
            f"X-Page-Key: {ada.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        sockets = list[socket.socket]()
        try:
            for _ in range(8):
                sockets.append(client := socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", page.web.port))
                client.sendall(head + body)
            for number in range(5):
                await bob.ask(f"{number}")
                await bob.turns(number + 1)
            async with asyncio.timeout(30):
                while (await _open_status(ada)) == 429:
                    pass
        finally:
            for client in sockets:
                client.close()


async def _open_status(visitor: Visitor) -> int:
    async with visitor.feed() as feed:
        return int(feed.reply.status_code)


async def test_the_server_stops_within_seconds_while_feeds_are_open(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with RunningPage.open(tmp_path, limits={"grace_s": 0.5}) as page:
            for number in range(10):
                visitor = await page.log_in(f"person{number}@localhost")
                for _ in range(4):
                    feed = await stack.enter_async_context(visitor.feed())
                    await feed.find("agents")
            await visitor.ask(wish("hold", text="a"))
            begin = time.monotonic()
        assert time.monotonic() - begin < 6


@short_and_long_in_release("PAGE_FEEDS", 240, 1000)
async def test_hundreds_of_open_feeds_keep_nobody_out_end_with_the_platform_and_leave_no_memory(
    tmp_path: Path, count: int
) -> None:
    """Each person has eight, as many as they may, from an address of their own."""
    limits = {"connections": 2 * count + 500}
    async with RunningPage.open(tmp_path, {"limits": limits}) as page:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        await ada.ask("before")
        await ada.turns(1)
        visitors = [await page.log_in(f"person{number}@localhost") for number in range(count // 8)]
        clients = list[RawFeed]()
        for number, visitor in enumerate(visitors):
            clients += await asyncio.gather(*(RawFeed.open(visitor, page.web.port, number) for _ in range(8)))
        assert {client.status for client in clients} == {200}
        for visitor in visitors[::10]:
            refused = await visitor.post("/chat/feed", places=PLACE)
            assert refused.status_code == 429
            assert "retry-after" in refused.headers
            assert "too many browsers. Close one." in refused.json()["error"]["message"]
        assert page_connections(page) >= len(clients)
        async with ada.feed() as feed:
            await feed.find_turns(1)
            assert (await ada.ask("meanwhile")).status_code == 200
            assert "meanwhile" in str(await feed.find_turns(1))
        assert (await bob.ask("of Bob")).status_code == 200
        await bob.turns(1)
        left, clients = clients[: len(clients) // 2], clients[len(clients) // 2 :]
        while left:
            await left.pop().close()
        await eventually(lambda: page_connections(page) <= len(clients))
        assert count_feeds() <= len(clients) + 2
        again = [await RawFeed.open(visitors[0], page.web.port, 0) for _ in range(8)]
        assert {client.status for client in again} == {200}
        ending = [asyncio.create_task(client.read_end()) for client in (*clients, *again)]
    async with asyncio.timeout(TIMEOUT_S):
        ends = await asyncio.gather(*ending)
    assert set(ends) == {b"0\r\n\r\n"}  # none was cut off
    for client in (*clients, *again):
        await client.close()
    clients.clear()
    assert count_feeds() == 0


def count_feeds() -> int:
    """Count the feeds that are in the memory, with all that they hold."""
    gc.collect()
    return sum(isinstance(each, Feed) for each in gc.get_objects())


@dataclass
class RawFeed:
    """An open feed of a client that needs little itself."""

    status: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, visitor: Visitor, port: int, number: int) -> RawFeed:
        """Open one from an address of loopback with a number. Wait for its first states."""
        address = f"127.0.{1 + number // 250}.{1 + number % 250}", 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=address)
        body = json.dumps({"places": PLACE}).encode()
        head = (
            f"POST /chat/feed HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {visitor.url}\r\nCookie: {'='.join(visitor.cookie)}\r\n"
            f"X-Page-Key: {visitor.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        writer.write(head + body)
        async with asyncio.timeout(TIMEOUT_S):
            status = int((await reader.readline()).split()[1])
            if status == 200:
                await reader.readuntil(b'"type":"agents"')
        return cls(status, reader, writer)

    async def read_end(self) -> bytes:
        """Read until the server ends the feed, and return the last bytes: of one that is complete, those of an empty chunk."""
        last = b""
        with suppress(ConnectionError):
            while data := await self.reader.read(65_536):
                last = (last + data)[-5:]
        return last

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def test_wrong_bodies_of_a_feed_are_refused_and_large_ones_are_bounded(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        wrong = [
            [[DESK, "", 0]],
            [[DESK, "", 2001]],
            [[DESK, "", -1]],
            [[DESK, "", 1e9]],
            [[DESK, ""]],
            [[DESK, "", 1, 1]],
            [[DESK, None, 1]],
            [DESK],
            "x",
            None,
            {"a": 1},
            PLACE * 21,
            [[DESK, "\x00", 1]],
        ]
        for places in wrong:
            assert (await ada.post("/chat/feed", places=places)).status_code == 400, places
        async with ada.client() as http:
            for content in (b"{", b"\xff", b"[[[[", b'{"places": ' + b"[" * 30_000):
                assert (await http.post("/chat/feed", content=content)).status_code in (400, 413)
        for number in range(3):
            await ada.ask(str(number))
            await ada.turns(number + 1)
        unknown = [["nobody@localhost", "", 1], ["", "", 1], ["private@localhost", "x", 1], [DESK, "\u202e", 1]]
        async with ada.feed(*unknown, *[[DESK, "", limit] for limit in (1, 2, 2000)], *[[DESK, "", 1]] * 13) as feed:
            assert feed.reply.status_code == 200
            assert len((await feed.find("turns", thread=""))["turns"]) == 1


async def test_the_same_id_is_the_same_message_of_one_person_at_one_agent(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, bob, ident = await page.log_in(ADA), await page.log_in(BOB), str(uuid4())
        replies = await asyncio.gather(*(ada.ask("once", id=ident) for _ in range(20)))
        assert {reply.status_code for reply in replies} == {200}
        await ada.turns(1)
        assert (await bob.ask("of Bob", id=ident)).status_code == 200
        assert (await ada.ask("private", "private@localhost", id=ident)).status_code == 200
        assert (await bob.turns(1))[0]["me"]["text"] == "of Bob"
        assert (await ada.turns(1, "private@localhost"))[0]["me"]["text"] == "private"
        assert sorted(PageDesk.seen) == [(ADA, "once"), (BOB, "of Bob")]


async def test_another_message_with_a_known_id_is_refused(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, ident = await page.log_in(ADA), str(uuid4())
        assert (await ada.ask("once", id=ident)).status_code == 200
        await ada.turns(1)
        assert (await ada.ask("another text", id=ident)).status_code == 400


async def test_an_answer_grows_for_two_people_with_the_same_id(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, bob, ident = await page.log_in(ADA), await page.log_in(BOB), str(uuid4())
        await ada.ask(wish("hold", text="for Ada"), id=ident)
        await bob.ask(wish("hold", text="for Bob"), id=ident)
        try:
            async with asyncio.timeout(5), bob.feed() as feed:
                assert "for Bob" in str(await feed.find_part())
        finally:
            PageDesk.release.set()


async def test_files_of_any_size_and_number_are_taken_or_refused(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada, ident = await page.log_in(ADA), str(uuid4())
        async with ada.client() as http:
            path = f"/chat/file/{DESK}/{ident}"
            assert (await http.post(f"{path}/large.bin", content=bytes(12 * 2**20 + 1))).status_code == 413
            largest = await http.post(f"{path}/12.bin", content=bytes(12 * 2**20))
            assert (largest.status_code, largest.json()["size"]) == (200, 12 * 2**20)
            empty = await http.post(f"{path}/empty", content=b"")
            assert (empty.status_code, empty.json()["size"], (await http.get(empty.json()["url"])).content) == (200, 0, b"")
            again = await http.post(f"{path}/empty", content=b"")
            assert again.json() == empty.json()
            files = [(await http.post(f"{path}/{number}.txt", content=b"x")).json() for number in range(100)]
            assert len({file["url"] for file in files}) == 100
            long = (await http.post(f"{path}/{'n' * 3000}.txt", content=b"x")).json()
            assert len(long["name"]) == 200
            assert (await http.post(f"/chat/file/{DESK}/no-id/a.txt", content=b"x")).status_code in (401, 404)
            # As after a thousand large ones.
            assert page.platform.database is not None
            change = update(door_files).where(door_files.c.name == "12.bin").values(size=256 * 2**20)
            await page.platform.database.write(lambda connection: connection.execute(change))
            assert (await http.post(f"{path}/more.txt", content=b"x")).status_code == 507
        assert (await ada.ask("many", id=ident, files=files[:21])).status_code == 400
        assert (await ada.ask("many", id=ident, files=files[:20])).status_code == 200
        assert len((await ada.turns(1))[0]["me"]["files"]) == 20


_AMPLIFIES = (
    "each of 20 equal places is read and parsed anew, and nothing bounds what a feed makes of 2,000 turns of any length"
)


async def test_a_place_that_is_named_often_is_sent_once(tmp_path: Path) -> None:
    async with RunningPage.open(tmp_path) as page:
        ada = await page.log_in(ADA)
        await ada.ask("x" * 100_000)
        await ada.turns(1)
        async with ada.feed(*[[DESK, "", 2000]] * 20) as feed:
            await feed.find("problem")
        assert sum(state["type"] == "turns" for state in feed.states) == 1


async def test_feeds_of_one_person_keep_nobody_waiting(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    """With eight feeds and 20 turns, another person waited for half a minute; with 40 long turns, the memory grew by 2.7 GB."""
    expected_errors.allowed += ["too many reads run at once"]
    async with RunningPage.open(tmp_path) as page, AsyncExitStack() as stack:
        ada, bob = await page.log_in(ADA), await page.log_in(BOB)
        for _ in range(5):
            await ada.ask("[" * 9_999)
        await ada.turns(5)
        for _ in range(4):
            await stack.enter_async_context(ada.feed(*[[DESK, "", 2000]] * 20))
        begin = time.process_time()  # what this process does: a busy machine changes nothing
        assert (await bob.post("/chat/me")).status_code == 200
        assert time.process_time() - begin < 2
