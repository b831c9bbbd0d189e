"""The pools of connections: as a table of numbers, and with the sockets of six addresses against one with a key."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from spade_coreason.config.settings import WebSettings
from spade_coreason.doors.addresses import Proxies, group_address
from spade_coreason.doors.connections import ConnectionPools, find_full, pools_of_key, pools_of_stranger
from tests.support.doors import KEY, RawClient, Reply, request_of, serve, web_settings
from tests.support.wait import TIMEOUT_S, eventually

LIMITS = WebSettings().limits
NEAR, OTHER_BLOCK = "192.0.2.9", "198.51.100.1"
STRANGER = pools_of_stranger(LIMITS, NEAR)


@pytest.mark.parametrize(
    ("pools", "counts", "full"),
    [
        (STRANGER, {}, ""),
        (STRANGER, {"address 192.0.2.9": 199}, ""),
        (STRANGER, {"address 192.0.2.9": 200}, "address 192.0.2.9"),
        (STRANGER, {"address 192.0.2.8": 200, "strangers": 200}, ""),
        (STRANGER, {"block 192.0.2.0/24": 374, "strangers": 374}, ""),
        (STRANGER, {"block 192.0.2.0/24": 375, "strangers": 375}, "block 192.0.2.0/24"),
        (pools_of_stranger(LIMITS, OTHER_BLOCK), {"block 192.0.2.0/24": 375, "strangers": 375}, ""),
        (STRANGER, {"strangers": 749, "all": 749}, ""),
        (STRANGER, {"strangers": 750, "all": 750}, "strangers"),
        (STRANGER, {"key a": 200, "key b": 200, "key c": 200, "key d": 200, "all": 874}, ""),
        (STRANGER, {"key a": 200, "key b": 200, "key c": 200, "key d": 200, "all": 875}, "all"),
        (pools_of_key(LIMITS, "a", 0), {}, ""),
        (pools_of_key(LIMITS, "a", 750), {"strangers": 750, "all": 750}, ""),
        (pools_of_key(LIMITS, "a", 750), {"key a": 200, "all": 750}, "key a"),
        (pools_of_key(LIMITS, "a", 875), {"key a": 124, "all": 875}, ""),
        (pools_of_key(LIMITS, "a", 875), {"key a": 125, "all": 875}, "key a"),
        (pools_of_key(LIMITS, "b", 875), {"key a": 125, "all": 875}, ""),
        (pools_of_key(LIMITS, "b", 999), {"all": 999}, ""),
        (pools_of_key(LIMITS, "b", 1000), {"all": 1000}, "key b"),
    ],
)
def test_a_connection_needs_room_in_all_its_pools(pools: Mapping[str, int], counts: Mapping[str, int], full: str) -> None:
    assert find_full(counts, pools) == full


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("192.0.2.9", "192.0.2.0/24"),
        ("::ffff:192.0.2.9", "192.0.2.0/24"),
        ("2001:db8:0:12ff::1", "2001:db8:0:1200::/56"),
        ("2001:db8:0:1200::2", "2001:db8:0:1200::/56"),
        ("unknown", "unknown"),
    ],
)
def test_a_block_is_a_network_of_256_addresses_or_of_a_customer(address: str, block: str) -> None:
    assert group_address(address, 24, 56) == block


def test_greedy_keys_and_strangers_always_leave_room_for_a_key_that_is_known() -> None:
    """In any order: ten keys take what they get, and strangers of a hundred blocks too."""
    for order in ("keys first", "strangers first"):
        pools = ConnectionPools(LIMITS, Proxies([]))
        pools.enter(OTHER_BLOCK).show_key("friend")
        for _ in range(400):
            for number in range(10):
                if order == "keys first":
                    pools.enter(f"10.{number}.0.1").show_key(f"key{number}")
            for number in range(100):
                pools.enter(f"203.{number}.0.{_ % 256}")
            for number in range(10):
                pools.enter(f"10.{number}.0.1").show_key(f"key{number}")
        slot = pools.enter(OTHER_BLOCK)
        assert slot.refusal is None, order
        assert pools.counts["all"] <= 1000


def test_one_key_from_many_blocks_leaves_room_for_another_key() -> None:
    pools = ConnectionPools(LIMITS, Proxies([]))
    pools.enter(OTHER_BLOCK).show_key("friend")
    for number in range(5000):
        pools.enter(f"203.{number % 200}.0.{number // 200}").show_key("greedy")
    assert pools.counts["key greedy"] <= 200
    assert [pools.enter(OTHER_BLOCK).refusal for _ in range(10)] == [None] * 10


def test_all_that_left_counts_no_longer() -> None:
    pools = ConnectionPools(LIMITS, Proxies(["10.0.0.1"]))
    slots = [pools.enter(NEAR), pools.enter(OTHER_BLOCK), pools.enter("10.0.0.1"), pools.enter(NEAR)]
    slots[1].show_key("a")
    slots[1].show_key("b")
    slots[3].show_key("a")
    assert pools.counts == Counter(
        {"all": 3, "proxies": 1, "strangers": 1, f"address {NEAR}": 1, "block 192.0.2.0/24": 1, "key a": 1, "key b": 1}
    )
    for slot in slots:
        slot.move()
    assert not pools.counts


@asynccontextmanager
async def connect_from(settings: WebSettings, address: str) -> AsyncIterator[RawClient]:
    """Connect with an address of this machine."""
    reader, writer = await asyncio.open_connection(settings.host, settings.port, local_addr=(address, 0))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


async def ask_from(settings: WebSettings, address: str, path: str = "/whoami", **options: Any) -> Reply:
    """Send one request, and return the answer. What ends otherwise than by a close is an error (RST)."""
    async with connect_from(settings, address) as client, asyncio.timeout(TIMEOUT_S):
        await client.send(request_of(path, **options))
        reply = await client.read_reply()
        if reply.headers.get("connection") == "close":
            assert await client.reader.read() == b""
        return reply


@asynccontextmanager
async def hold(settings: WebSettings, addresses: list[str], each: int) -> AsyncIterator[None]:
    """Open connections and send nothing."""
    held = list[socket.socket]()
    try:
        for number in range(each * len(addresses)):
            held.append(client := socket.socket())
            client.setblocking(False)
            client.bind((addresses[number % len(addresses)], 0))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await asyncio.get_running_loop().sock_connect(client, (settings.host, settings.port))
        yield
    finally:
        for client in held:
            client.close()


SIX = [f"127.0.0.{number}" for number in range(1, 7)]


async def test_six_addresses_lock_out_neither_a_key_nor_a_stranger_elsewhere() -> None:
    settings = web_settings(host="127.0.0.1", limits={"header_s": 60})
    async with serve(settings) as server:
        assert (await ask_from(settings, "127.0.0.7")).status == 200
        async with hold(settings, SIX, 199):
            await eventually(lambda: server.refused_connections >= 6 * 199 - 375)
            assert server.connections <= 375 + 64
            # They have shown a key within the hour, or are elsewhere.
            for address in ("127.0.0.7", "127.0.1.1"):
                replies = await asyncio.gather(*(ask_from(settings, address) for _ in range(20)))
                assert {reply.status for reply in replies} == {200}
            assert (await ask_from(settings, "127.0.2.1", "/open/me", key=None)).status == 200
            # A stranger of the same block is told why, and how to go on.
            for path, body in (("/v1/whoami", b""), ("/body", bytes(3_000_000))):
                for key in (KEY, None):
                    refused = await ask_from(settings, "127.0.0.8", path, key=key, body=body, method="POST")
                    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
                    assert "too many connections" in json.loads(refused.body)["error"]["message"]
        await eventually(lambda: server.connections == 0)
        assert (await ask_from(settings, "127.0.0.1")).status == 200


async def test_a_refused_connection_that_sends_nothing_makes_room_for_one_that_asks() -> None:
    settings = web_settings(host="127.0.0.1", limits={"connections_per_address": 1, "header_s": 60})
    async with serve(settings) as server:
        async with hold(settings, ["127.0.0.1"], 150):
            await eventually(lambda: server.refused_connections == 149)
            assert server.connections <= 65
            for _ in range(5):
                assert (await ask_from(settings, "127.0.0.1")).status == 429
        await eventually(lambda: server.connections == 0)


async def test_a_connection_with_a_key_counts_for_the_key_and_not_for_its_address() -> None:
    settings = web_settings(host="127.0.0.1", limits={"connections_per_address": 2})
    async with serve(settings) as server, connect_from(settings, "127.0.0.1") as first, hold(settings, ["127.0.0.1"], 1):
        await eventually(lambda: server.connections == 2)
        assert (await ask_from(settings, "127.0.0.1")).status == 429
        await first.send(request_of("/whoami"))
        assert (await first.read_reply()).status == 200
        assert (await ask_from(settings, "127.0.0.1")).status == 200
