"""Only requests to this server, from where they may come, reach a route."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from spade_coreason.doors.addresses import Proxies, group_address
from spade_coreason.doors.connections import ConnectionPools
from spade_coreason.doors.guard import RequestGuard
from tests.support.doors import ExampleDoor, ask, connect, request_of, serve, web_settings
from tests.support.errors import ExpectedErrors


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]", 200),
        ("agents.example.org", 200),
        ("Agents.Example.Org:443", 200),
        ("agents.example.org.", 200),
        ("evil.example", 421),
        ("agents.example.org.evil.example", 421),
        ("evil.example#agents.example.org", 421),
        ("evil@agents.example.org", 421),
        ("agents.example.org/x", 421),
        ("localhost:x", 421),
        ("10.0.0.1", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1].evil.example", 421),
        ("[::1]evil.example:80", 421),
        ("evil.example[::1]", 421),
        ("[::1]8080", 421),
    ],
)
async def test_a_request_for_another_host_is_refused(host: str, status: int) -> None:
    settings, door = web_settings(url="https://agents.example.org"), ExampleDoor()
    async with serve(settings, door):
        reply = await ask(settings, "/whoami", host=host)
    assert (reply.status, door.calls) == (status, int(status == 200))


async def test_a_request_needs_exactly_one_host() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        for hosts in ("", "Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nHost: evil.example\r\n"):
            async with connect(settings) as client:
                await client.send(f"GET /whoami HTTP/1.1\r\n{hosts}\r\n".encode())
                assert (await client.read_reply()).status == 400
    assert door.calls == 0


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://chat.example.org", 200),
        ("HTTPS://CHAT.example.org", 200),
        ("https://agents.example.org", 200),
        ("http://chat.example.org", 403),
        ("https://chat.example.org.evil.example", 403),
        ("https://evil.example", 403),
        ("http://localhost", 403),
        ("null", 403),
    ],
)
async def test_a_page_of_another_web_site_is_refused(origin: str, status: int) -> None:
    door = ExampleDoor()
    settings = web_settings(url="https://agents.example.org", cors_origins=["https://chat.example.org"])
    async with serve(settings, door):
        reply = await ask(settings, "/whoami", f"Origin: {origin}")
    assert (reply.status, door.calls) == (status, int(status == 200))


async def test_a_browser_may_ask_only_from_a_configured_site() -> None:
    preflight = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"]
    settings = web_settings(cors_origins=["https://chat.example.org"])
    async with serve(settings):
        for origin, status in (("https://chat.example.org", 200), ("https://evil.example", 403)):
            reply = await ask(settings, "/body", f"Origin: {origin}", *preflight, method="OPTIONS", key=None)
            assert reply.status == status
            assert reply.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
            assert "access-control-allow-credentials" not in reply.headers
    closed = web_settings()
    async with serve(closed):
        reply = await ask(closed, "/body", "Origin: https://chat.example.org", *preflight, method="OPTIONS", key=None)
    assert (reply.status, "access-control-allow-origin" in reply.headers) == (403, False)


async def test_a_page_of_a_configured_site_can_read_each_error_and_its_headers(expected_errors: ExpectedErrors) -> None:
    expected_errors("a request failed with ValueError")
    origin = "Origin: https://chat.example.org"
    settings = web_settings(cors_origins=["https://chat.example.org"], limits={"body_bytes": 1024, "header_bytes": 2048})
    async with serve(settings) as server:
        replies = [
            await ask(settings, "/whoami", origin),
            await ask(settings, "/whoami", origin, key=None),
            await ask(settings, "/nothing", origin),
            await ask(settings, "/body", origin, method="POST", body=bytes(2000)),
            await ask(settings, "/body", origin, "Content-Encoding: gzip", method="POST", body=b"x"),
            await ask(settings, "/whoami", origin, f"X-Large: {'x' * 3000}"),
            await ask(settings, "/whoami", origin, host="evil.example"),
            await ask(settings, "/fail", origin),
        ]
        other = await ask(settings, "/whoami", "Origin: https://evil.example")
        plain = await ask(settings, "/whoami")
        server.begin_stop()
        replies.append(await ask(settings, "/whoami", origin))
    assert [reply.status for reply in replies] == [200, 401, 404, 413, 415, 431, 421, 500, 503]
    for reply in replies:
        assert reply.headers["access-control-allow-origin"] == "https://chat.example.org"
        assert reply.headers["vary"] == "Origin"
        exposed = {name.strip().lower() for name in reply.headers["access-control-expose-headers"].split(",")}
        assert exposed >= {"mcp-session-id", "x-request-id", "retry-after", "x-should-retry"}
    assert not [name for reply in (other, plain) for name in reply.headers if name.startswith("access-control")]


async def test_a_page_of_a_configured_site_can_read_that_there_are_too_many_connections() -> None:
    settings = web_settings(cors_origins=["https://chat.example.org"], limits={"connections": 1})
    async with serve(settings), AsyncExitStack() as stack:
        for _ in range(2):
            client = await stack.enter_async_context(connect(settings))
            await client.send(request_of("/stream", "Origin: https://chat.example.org"))
            reply = await client.read_head()
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (503, "https://chat.example.org")
    assert reply.headers["retry-after"]


FORWARDING = ["X-Forwarded-For: 6.6.6.6, 203.0.113.9", "X-Forwarded-Proto: https", "X-Forwarded-Host: agents.example.org"]


async def test_only_a_proxy_that_is_named_is_believed() -> None:
    url = "https://agents.example.org"
    trusting, other = web_settings(url=url, proxies=["127.0.0.0/8"]), web_settings(url=url, proxies=["10.0.0.1"])
    async with serve(trusting), serve(other):
        found = [json.loads((await ask(settings, "/whoami", *FORWARDING)).body) for settings in (trusting, other)]
    assert found == [
        {"caller": "website@callers.invalid", "client": "203.0.113.9", "scheme": "https", "host": "agents.example.org"},
        {"caller": "website@callers.invalid", "client": "127.0.0.1", "scheme": "http", "host": "localhost"},
    ]


@pytest.mark.parametrize(
    ("keys", "client", "status"),
    [
        ({}, "203.0.113.9", 403),
        ({}, "127.0.0.1", 200),
        ({}, "::1", 200),
        ({}, "::ffff:127.0.0.1", 200),
        ({"proxies": ["10.0.0.1"]}, "203.0.113.9", 403),
        ({"proxies": ["10.0.0.1"]}, "10.0.0.1", 200),
        ({"tls": {"certificate": "cert.pem", "key": "key.pem"}}, "203.0.113.9", 200),
    ],
)
async def test_without_tls_only_proxies_and_this_machine_are_served(keys: dict[str, object], client: str, status: int) -> None:
    """Without a network: the tests have only this machine."""
    settings = web_settings(**keys)
    app = JSONResponse({})
    pools = ConnectionPools(settings.limits, Proxies(settings.proxies))
    guard = RequestGuard(app, settings, pools)

    async def serve_placed(scope: Scope, receive: Receive, send: Send) -> None:
        await guard({**scope, "state": {"slot": pools.enter(client)}}, receive, send)

    transport = httpx.ASGITransport(serve_placed, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/whoami")).status_code == status
        assert (await http.get("/whoami", headers={"X-Forwarded-For": "127.0.0.1"})).status_code == status
        assert (await http.get("/healthz")).status_code == 200  # it tells nothing, and a watching program is elsewhere


async def test_a_forwarded_host_is_checked_too() -> None:
    settings, door = web_settings(proxies=["127.0.0.1"]), ExampleDoor()
    async with serve(settings, door):
        assert (await ask(settings, "/whoami", "X-Forwarded-Host: evil.example")).status == 421
        assert (await ask(settings, "/whoami", "X-Forwarded-Host: localhost, evil.example")).status == 421
    assert door.calls == 0


async def test_a_forwarded_client_needs_a_key_and_has_its_own_count_of_wrong_ones() -> None:
    settings = web_settings(proxies=["127.0.0.1"])
    async with serve(settings):
        assert (await ask(settings, "/whoami", "X-Forwarded-For: 127.0.0.1", key=None)).status == 401
        for address, statuses in (("203.0.113.9", [401] * 30 + [429]), ("203.0.113.10", [401])):
            header = f"X-Forwarded-For: 203.0.113.9, {address}"  # the first one is forged
            assert [(await ask(settings, "/whoami", header, key="sc_wrong")).status for _ in statuses] == statuses


async def test_a_client_behind_a_proxy_has_a_limited_number_of_requests() -> None:
    settings = web_settings(proxies=["127.0.0.1"], limits={"connections_per_address": 1})
    async with serve(settings), connect(settings) as client:
        stranger = "X-Forwarded-For: 203.0.113.9"
        await client.send(request_of("/open-body", stranger, "Expect: 100-continue", "Content-Length: 1", method="POST"))
        assert (await client.read_head()).status == 100
        refused = await ask(settings, "/whoami", stranger)
        assert (refused.status, "retry-after" in refused.headers) == (429, True)
        assert (await ask(settings, "/whoami", "X-Forwarded-For: 203.0.113.10")).status == 200
        await client.send(b"x")
        assert (await client.read_reply()).status == 200
        assert (await ask(settings, "/whoami", stranger)).status == 200


async def test_a_request_behind_a_proxy_counts_for_its_key_once_that_is_shown() -> None:
    settings, door = web_settings(proxies=["127.0.0.1"], limits={"connections_per_address": 1}), ExampleDoor()
    async with serve(settings, door), connect(settings) as client:
        await client.send(request_of("/stream", "X-Forwarded-For: 203.0.113.9"))
        assert (await client.read_head()).status == 200
        assert (await ask(settings, "/whoami", "X-Forwarded-For: 203.0.113.9")).status == 200


async def test_strangers_behind_a_proxy_do_not_keep_out_another_block_or_a_key() -> None:
    """Of 16 connections, strangers have 12, and a block of them 6."""
    settings = web_settings(proxies=["127.0.0.1"], limits={"connections": 16, "connections_per_address": 3})
    async with serve(settings), AsyncExitStack() as stack:

        async def occupy(address: str) -> int:
            client = await stack.enter_async_context(connect(settings))
            headers = f"X-Forwarded-For: {address}", "Expect: 100-continue", "Content-Length: 1"
            await client.send(request_of("/open-body", *headers, method="POST", key=None))
            return (await client.read_head()).status

        assert (await ask(settings, "/whoami", "X-Forwarded-For: 192.0.2.9")).status == 200
        assert [await occupy(f"203.0.113.{number}") for number in range(8)] == [100] * 6 + [503] * 2
        assert [await occupy(f"198.51.100.{number}") for number in range(7)] == [100] * 6 + [503]
        assert (await ask(settings, "/whoami", "X-Forwarded-For: 192.0.2.1")).status == 503
        assert (await ask(settings, "/whoami", "X-Forwarded-For: 192.0.2.9")).status == 200


@pytest.mark.parametrize("path", ["http://localhost/whoami", "whoami", "*", "/whoami%0a", "/who%00ami", "/%1b[31m"])
async def test_a_path_of_another_form_is_refused(path: str) -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        assert (await ask(settings, path)).status == 400
    assert door.calls == 0


async def test_every_answer_has_the_headers_of_the_server_and_no_other_names_it() -> None:
    settings = web_settings()
    async with serve(settings):
        replies = [await ask(settings, path) for path in ("/whoami", "/nothing", "/healthz")]
        replies.append(await ask(settings, "/whoami", key=None))
        replies.append(await ask(settings, "/whoami", host="evil.example"))
        replies.append(await ask(settings, "/body", "Content-Encoding: gzip", method="POST", body=b"x"))
    for reply in replies:
        assert (reply.headers["cache-control"], reply.headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert (reply.headers["referrer-policy"], "date" in reply.headers) == ("no-referrer", True)
        assert not {"server", "set-cookie", "x-powered-by"} & reply.headers.keys()


async def test_no_path_lists_files_or_documents_or_redirects() -> None:
    settings = web_settings()
    async with serve(settings):
        for path in ("/", "/docs", "/openapi.json", "/static/", "/whoami/", "/v1", "/.git/config", "/../../etc/passwd"):
            reply = await ask(settings, path)
            assert (reply.status, json.loads(reply.body)["error"]["message"].partition(";")[0]) == (
                404,
                "there is nothing at this path",
            )


@pytest.mark.parametrize(
    ("forwarded_for", "client"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("203.0.113.9, ::ffff:10.0.0.2", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.0.0.2", None),
        ("unknown", None),
        ("203.0.113.9, evil", None),
        ("", None),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(forwarded_for: str, client: str | None) -> None:
    assert Proxies(["10.0.0.0/24"]).find_client(forwarded_for) == client


def test_a_client_with_many_ipv6_addresses_is_counted_once() -> None:
    assert group_address("2001:db8::1") == group_address("2001:db8::ffff:2") == "2001:db8::/64"
    assert group_address("::ffff:192.0.2.1") == group_address("192.0.2.1") == "192.0.2.1"
