"""The port of the metrics: few threads, each for a short time, and only for the names of the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client.registry import Collector

from spade_coreason.app.metrics.server import MetricsServer
from spade_coreason.config import MetricsSettings
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.wait import TIMEOUT_S, eventually

HALF = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: "


class NoMetrics(Collector):
    """A collector that waits as long as it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()

    def collect(self) -> list[Any]:
        self.go_on.wait(TIMEOUT_S)
        return []


@asynccontextmanager
async def serve_metrics(listen: str = "127.0.0.1", **keys: Any) -> AsyncIterator[tuple[MetricsSettings, NoMetrics]]:
    settings = MetricsSettings.model_validate({"listen": f"{listen}:{find_free_ports(1)[0]}", **keys})
    collector = NoMetrics()
    server = MetricsServer(settings, collector)  # type: ignore[arg-type] # it only collects
    await server.start()
    try:
        yield settings, collector
    finally:
        collector.go_on.set()
        await server.close()


def connect(settings: MetricsSettings) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", settings.address[1]), timeout=TIMEOUT_S)
    return client


def read_status(client: socket.socket) -> int:
    """Return the status of the answer, which ends with the connection."""
    with client.makefile("rb") as reader:
        text = reader.read()
    return int(text.split()[1])


def scrape(settings: MetricsSettings, *headers: str) -> int:
    lines = ["GET /metrics HTTP/1.1", *(headers or ["Host: localhost"]), "", ""]
    with connect(settings) as client:
        client.sendall("\r\n".join(lines).encode())
        return read_status(client)


def serving_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Host: localhost"], 200),
        (["Host: LOCALHOST:9464"], 200),
        (["Host: 127.0.0.1:1"], 200),
        (["Host: [::1]:9464"], 200),
        (["Host: metrics.example.org"], 421),
        (["Host: evil.example"], 421),
        (["Host: [::1].evil.example"], 421),
        (["Host: 127.0.0.1.evil.example"], 421),
        (["Host: evil.example@localhost"], 421),
        (["Host: evil.example", "Host: localhost"], 421),
        (["X: none"], 421),
    ],
)
async def test_on_loopback_only_its_names_are_served(headers: list[str], status: int) -> None:
    """No web site reads the metrics through a browser here by a name of its own (DNS rebinding)."""
    async with serve_metrics() as (settings, _):
        assert scrape(settings, *headers) == status


@pytest.mark.parametrize(
    ("keys", "statuses"),
    [
        ({}, [200, 200, 200]),
        ({"hosts": ["Metrics.example.org"]}, [200, 421, 200]),
    ],
)
async def test_elsewhere_the_names_of_the_settings_are_served(keys: dict[str, Any], statuses: list[int]) -> None:
    async with serve_metrics("0.0.0.0", **keys) as (settings, _):
        hosts = ("metrics.example.org:9464", "evil.example", "127.0.0.1")
        assert [scrape(settings, f"Host: {host}") for host in hosts] == statuses


async def test_half_requests_have_few_threads_and_others_are_answered() -> None:
    async with serve_metrics() as (settings, _):
        before = serving_threads()
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(client := connect(settings))
                client.sendall(HALF)
                assert scrape(settings) == 200
            await eventually(lambda: serving_threads() <= before + 16)
        await eventually(lambda: serving_threads() == before)


async def test_the_address_with_the_most_half_requests_loses_them() -> None:
    async with serve_metrics() as (settings, _):
        with ExitStack() as stack:
            stack.enter_context(friend := socket.create_connection(settings.address, TIMEOUT_S, ("127.0.1.1", 0)))
            friend.sendall(HALF)
            for _ in range(40):
                stack.enter_context(client := connect(settings))
                client.sendall(HALF)
                assert scrape(settings) == 200
            friend.sendall(b"y\r\n\r\n")
            assert read_status(friend) == 200


async def test_a_half_request_ends_after_a_time() -> None:
    async with serve_metrics() as (settings, _):
        before = serving_threads()
        with connect(settings) as silent, connect(settings) as half:
            half.sendall(HALF)
            assert (silent.recv(1), half.recv(1)) == (b"", b"")
        await eventually(lambda: serving_threads() == before)


async def test_complete_requests_have_few_threads_too() -> None:
    async with serve_metrics() as (settings, collector):
        collector.go_on.clear()
        before = serving_threads()
        with ExitStack() as stack:
            clients = []
            for _ in range(60):
                clients.append(stack.enter_context(connect(settings)))
                clients[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(lambda: 0 < serving_threads() - before <= 16)
            collector.go_on.set()
            await eventually(lambda: serving_threads() == before)
            assert scrape(settings) == 200


async def test_what_anyone_can_send_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    async with serve_metrics() as (settings, _):
        for text in (b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", HALF, b""):
            with connect(settings) as client:
                client.sendall(text)
        assert scrape(settings) == 200
        await eventually(lambda: serving_threads() == 0)
    assert capfd.readouterr() == ("", "")
