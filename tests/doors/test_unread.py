"""Clients that read nothing of their answers: what waits for them is bounded in bytes, and each reply can be fetched."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import pytest
from a2a.types import a2a_pb2

from spade_coreason.doors.a2a.live_tasks import Follower
from spade_coreason.doors.unread import MAX_BYTES, UnreadBytes, _all_unread, has_room
from tests.support import mcp_door
from tests.support.a2a_door import message_of, send, serve_a2a, state_of, text_of
from tests.support.door_agents import Desk
from tests.support.doors import OTHER_KEY, RawClient, request_of
from tests.support.openai_door import MODEL, OpenAIDoor, serve_agent
from tests.support.wait import TIMEOUT_S, eventually

MIB = 2**20
HALF = MAX_BYTES // 2
BLOCK = 8 * MIB
"""More than the 4 MiB that Linux takes from a server for a client that does not read."""
STREAMS = 12


@pytest.mark.parametrize(
    ("of_key", "in_all", "fits"),
    [
        (0, 0, True),
        (HALF, HALF, True),
        (HALF + 1, HALF + 1, False),
        (MAX_BYTES // 4, MAX_BYTES * 3 // 4, True),
        (MAX_BYTES // 4 + 1, MAX_BYTES * 3 // 4, False),
        (MIB, MAX_BYTES - MIB, True),
        (MIB, MAX_BYTES, False),
    ],
)
def test_a_key_may_leave_as_much_unread_as_is_still_free(of_key: int, in_all: int, fits: bool) -> None:
    assert has_room(of_key, in_all) == fits


def test_keys_that_read_nothing_leave_room_for_another() -> None:
    greedy = [UnreadBytes(f"key{number}") for number in range(20)]
    for _ in range(MAX_BYTES // MIB):
        for each in greedy:
            if not each.add(MIB):
                each.size -= MIB
    assert sum(each.size for each in greedy) <= MAX_BYTES
    assert UnreadBytes("other").add(MAX_BYTES // 40)
    assert UnreadBytes("key0").add(1000)  # little is always read on


def test_what_is_closed_counts_no_longer() -> None:
    for _ in range(10):
        unread = UnreadBytes("gone")
        assert unread.add(HALF)
        del unread


@asynccontextmanager
async def connect_slowly(door: OpenAIDoor) -> AsyncIterator[RawClient]:
    """Connect with a small buffer, and read nothing before the test does."""
    address = urlsplit(door.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4 * BLOCK)
    writer.transport.pause_reading()  # type: ignore[attr-defined] # the transport of a socket has it
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def ask_greeting(number: int, *, stream: bool) -> bytes:
    body = json.dumps({"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "greet"}]}).encode()
    headers = f"Idempotency-Key: {number}", "Content-Type: application/json"
    return request_of("/v1/chat/completions", *headers, method="POST", body=body)


def held() -> int:
    return sum(each.size for each in _all_unread if each.key == "website")


@pytest.mark.parametrize("stream", [True, False])
async def test_replies_that_nobody_reads_are_bounded_and_can_be_fetched(url: str, stream: bool) -> None:
    desk = Desk()
    desk.greeting = "g" * BLOCK
    async with serve_agent(url, desk, limits={"unread_s": 600}) as door, AsyncExitStack() as stack:
        clients = []
        for number in range(STREAMS):
            clients.append(await stack.enter_async_context(connect_slowly(door)))
            await clients[-1].send(ask_greeting(number, stream=stream))
        await eventually(lambda: len(desk.seen) == STREAMS and not door.running.runtime.runner.mailboxes.busy_count)
        await eventually(lambda: held() >= HALF // 2)
        assert held() <= HALF + MIB
        # Another key is served meanwhile.
        async with door.http(OTHER_KEY) as http:
            other = {"model": MODEL, "messages": [{"role": "user", "content": "greet"}]}
            answer = (await http.post("/v1/chat/completions", json=other)).json()
            assert len(answer["choices"][0]["message"]["content"]) == BLOCK
        ends = []
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
            async with asyncio.timeout(TIMEOUT_S):
                head = await client.read_head()
                if stream:
                    ends.append(await client.reader.readuntil(b"0\r\n\r\n"))
                else:
                    ends.append(await client.reader.readexactly(int(head.headers["content-length"])))
        cut = [number for number, text in enumerate(ends) if b'"code":"interrupted"' in text]
        whole = [number for number, text in enumerate(ends) if desk.greeting.encode() in text]
        assert len(cut) + len(whole) == STREAMS
        assert len(cut) >= STREAMS - HALF // BLOCK
        assert b"too much waits to be read with this key; send it again with its Idempotency-Key" in ends[cut[0]]
        async with door.http() as http:
            for number in (cut[0], cut[-1]):
                again = await http.post(
                    "/v1/chat/completions",
                    content=ask_greeting(number, stream=False).partition(b"\r\n\r\n")[2],
                    headers={"Idempotency-Key": str(number), "Content-Type": "application/json"},
                )
                assert len(again.json()["choices"][0]["message"]["content"]) == BLOCK
        assert len(desk.seen) == STREAMS + 1
    assert held() == 0


@contextmanager
def occupied(key: str) -> Iterator[None]:
    """Let much wait for a key."""
    unread = UnreadBytes(key)
    unread.add(HALF)
    yield
    unread.size = 0


async def test_a_call_of_a_tool_says_how_to_fetch_what_was_cut(url: str) -> None:
    desk = Desk()
    desk.greeting = "g" * BLOCK
    async with mcp_door.serve_agent(url, desk) as door, mcp_door.connect(door) as client:
        with occupied("website"):
            result = await client.call_tool("notes_chat", {"query": "greet", "request_id": "7"})
            assert result.is_error
            assert 'request_id="7" to get the answer' in mcp_door.texts_of(result)[-1]
        assert mcp_door.texts_of(await client.call_tool("notes_chat", {"request_id": "7"})) == [desk.greeting]
    assert len(desk.seen) == 1


async def test_a_task_whose_reply_was_cut_is_read_again(url: str) -> None:
    desk = Desk()
    desk.greeting = "g" * BLOCK
    async with serve_a2a(url, desk) as server, server.client() as client:
        with occupied("website"):
            task = await send(client, message_of("greet", "m1"))
            assert state_of(task) == "WORKING"
        stored = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        assert (state_of(stored), text_of(stored)) == ("COMPLETED", desk.greeting)


async def test_one_who_follows_a_task_and_reads_nothing_is_left() -> None:
    artifact = a2a_pb2.Artifact(parts=[a2a_pb2.Part(text="g" * MIB)])
    update = a2a_pb2.TaskArtifactUpdateEvent(artifact=artifact)
    follower = Follower("website", lambda _: None)
    follower.put(update)
    assert held() > MIB
    assert await anext(aiter(follower)) == update
    with occupied("website"):
        follower.put(update)
        follower.put(update)
    assert [each async for each in follower] == []
    assert held() == 0


async def test_a_file_is_not_sent_to_an_address_that_leaves_much_unread(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, door.http() as http:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 50_000}}
        asked = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}, picture]}]}
        assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200
        link = urlsplit(desk.requests[0].payload["attachments"][0]["url"]).path
        assert len((await http.get(link)).content) == 150_000
        with occupied("127.0.0.1"):
            refused = await http.get(link)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert len((await http.get(link)).content) == 150_000
