"""Only a request with exactly one valid key, in the header Authorization, reaches a route that needs one."""

from __future__ import annotations

import json
import logging

import pytest

from spade_coreason.domain.callers import person_below
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY, ExampleDoor, ask, connect, request_of, serve, web_settings
from tests.support.errors import ExpectedErrors

WRONG_KEY = "sc_" + "w" * 43


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Basic dXNlcjpwYXNz"],
        [f"Authorization: {KEY}"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer "],
        [f"Authorization: Bearer {KEY}, Bearer {OTHER_KEY}"],
        [f"Authorization: Bearer {KEY}", f"Authorization: Bearer {KEY}"],
        [f"Authorization: Bearer {WRONG_KEY}", f"Authorization: Bearer {KEY}"],
        [f"Authorization: Bearer {KEY}", f"X-API-Key: {OTHER_KEY}"],
        [f"Authorization: Bearer {KEY}", f"Api-Key: {KEY}"],
        [f"X-API-Key: {KEY}"],
        [f"Cookie: token={KEY}; Authorization={KEY}"],
        [f"Authorization: Bearer {WRONG_KEY}"],
        [f"Authorization: Bearer {KEY}x"],
        [f"Authorization: Bearer {KEY.upper()}"],
        ["Authorization: Bearer s\xe4c"],
    ],
)
async def test_a_request_without_exactly_one_valid_key_is_refused_from_loopback_too(headers: list[str]) -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        reply = await ask(settings, "/whoami", *headers, key=None)
    assert (reply.status, door.calls) == (401, 0)
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("query", ["key=K", "a=1&api_key=K", "access_token=K", "q=K", "API-KEY=K"])
@pytest.mark.parametrize("header", [[], [f"Authorization: Bearer {KEY}"]])
async def test_a_key_in_an_address_is_refused(query: str, header: list[str]) -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        reply = await ask(settings, f"/whoami?{query.replace('K', KEY)}", *header, key=None)
    assert (reply.status, door.calls) == (401, 0)


@pytest.mark.parametrize(
    "path",
    [
        "/whoami/healthz",
        "/whoami/health",
        "/v1/whoami/readyz",
        "/healthz/whoami",
        "/healthz/../whoami",
        "/healthz/..%2fwhoami",
        "/healthz;/whoami",
        "/healthz%3b/whoami",
        "//whoami",
        "//healthz",
        "/healthz/",
        "/HEALTHZ",
        "/open/x/../../whoami",
        "/open/..%2f..%2fwhoami",
        "/open",
        "/open/",
        "/nothing",
    ],
)
async def test_no_form_of_a_path_reaches_a_route_without_a_key(path: str) -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        reply = await ask(settings, path, key=None)
        assert (reply.status, door.calls) == (401, 0)
        assert (await ask(settings, path)).status == 404
    assert door.calls == 0


async def test_other_methods_and_upgrades_need_a_key_too() -> None:
    settings, door = web_settings(), ExampleDoor()
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"]
    async with serve(settings, door):
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
            assert (await ask(settings, "/healthz", key=None, method=method)).status == 401
        assert (await ask(settings, "/whoami", *upgrade, key=None)).status == 401
        assert (await ask(settings, "/whoami", *upgrade)).status == 200  # the wish for another protocol is ignored
        reply = await ask(settings, "/whoami", method="PUT")
    assert (reply.status, set(reply.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert f"this path is for other methods: {reply.headers['allow']}" in reply.body.decode()


async def test_a_wrong_method_is_told_all_methods_of_the_path() -> None:
    settings = web_settings()
    async with serve(settings, ExampleDoor()):
        reply = await ask(settings, "/body", method="PUT")
        assert (reply.status, reply.headers["allow"]) == (405, "DELETE, POST")
        reply = await ask(settings, "/open/ada", method="POST", key=None)
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert (await ask(settings, "/body", method="PUT", key=None)).status == 401


async def test_wrong_keys_are_limited_and_a_right_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    settings = web_settings()
    with caplog.at_level(logging.DEBUG):
        async with serve(settings):
            statuses = [(await ask(settings, "/whoami", key=WRONG_KEY)).status for _ in range(32)]
            refused = await ask(settings, "/whoami", key=WRONG_KEY)
            assert (await ask(settings, "/whoami")).status == 200
            assert (await ask(settings, "/whoami", key=None)).status == 401
    assert statuses == [401] * 30 + [429] * 2
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in warnings if "wrong key" in line] == [
        "a request from 127.0.0.1 has a wrong key",
        "more than 30 requests from 127.0.0.1 within a minute have a wrong key",
    ]
    assert not [record for record in caplog.records if "sc_" in record.getMessage()]


async def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors) -> None:
    expected_errors("a request failed with ValueError")
    settings = web_settings()
    with caplog.at_level(logging.DEBUG, "uvicorn"), caplog.at_level(logging.INFO, "spade_coreason"):
        async with serve(settings):
            reply = await ask(settings, "/fail?word=hunter2", "X-Other: hunter2")
            await ask(settings, "/open/hunter2", key=None)
            await ask(settings, f"/whoami?key={KEY}", key=None)
            async with connect(settings) as client:
                await client.send(b"GET hunter2 sc_ HTTP/9.9\r\n\r\n")
                await client.read_end()
    assert (reply.status, json.loads(reply.body)["error"].keys()) == (500, {"message"})
    assert b"ValueError" not in reply.body
    assert "a request failed with ValueError" in caplog.text
    assert not [word for word in (KEY, "hunter2", "a secret of the person", "sc_") if word in caplog.text]


@pytest.mark.parametrize("header", ["X-Forwarded-User", "X-OpenWebUI-User-Id", "x-openwebui-user-id"])
async def test_a_front_end_names_the_person_below_its_key(header: str) -> None:
    settings = web_settings()
    async with serve(settings):
        replies = [await ask(settings, "/whoami", f"{header}: {name}", key=FRONT_END_KEY) for name in ("alice", "bob@x.org")]
        accented = await ask(settings, "/whoami", f"{header}: {'é'.encode().decode('latin-1')}", key=FRONT_END_KEY)
        plain = await ask(settings, "/whoami", f"{header}: alice")
    assert [json.loads(reply.body)["caller"] for reply in replies] == [
        person_below("chat", "alice"),
        person_below("chat", "bob@x.org"),
    ]
    assert json.loads(accented.body)["caller"] == person_below("chat", "é")
    assert json.loads(plain.body)["caller"] == "website@callers.invalid"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["X-Forwarded-User:"],
        ["X-Forwarded-User:   "],
        ["X-Forwarded-User: alice", "X-Forwarded-User: bob"],
        ["X-Forwarded-User: alice", "X-OpenWebUI-User-Id: bob"],
        ["X-Forwarded-User: alice", "X-OpenWebUI-User-Id: alice"],
        [f"X-Forwarded-User: {'a' * 201}"],
        ["X-Forwarded-User: \xff\xfe"],
    ],
)
async def test_a_key_for_a_front_end_needs_exactly_one_user(headers: list[str]) -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        reply = await ask(settings, "/whoami", *headers, key=FRONT_END_KEY)
    assert (reply.status, door.calls) == (400, 0)
    assert "X-OpenWebUI-User-Id" in reply.body.decode() or "user" in reply.body.decode()


async def test_one_key_has_a_limited_number_of_requests_at_once() -> None:
    settings, door = web_settings(limits={"requests_per_key": 2}), ExampleDoor()
    async with serve(settings, door), connect(settings) as first, connect(settings) as second:
        for client in (first, second):
            await client.send(request_of("/stream"))
            assert (await client.read_head()).status == 200
        refused = await ask(settings, "/v1/whoami")
        assert (refused.status, refused.headers["retry-after"]) == (429, "2")
        assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
        assert (await ask(settings, "/whoami", key=OTHER_KEY)).status == 200
        door.end.set()
        await first.reader.readuntil(b"last")
        await first.reader.readuntil(b"0\r\n\r\n")
        assert (await ask(settings, "/whoami")).status == 200


async def test_one_user_of_a_front_end_leaves_half_of_its_requests_to_the_others() -> None:
    settings, door = web_settings(limits={"requests_per_key": 4}), ExampleDoor()
    ada, ben = "X-Forwarded-User: ada", "X-Forwarded-User: ben"
    async with serve(settings, door), connect(settings) as first, connect(settings) as second:
        for client in (first, second):
            await client.send(request_of("/stream", ada, key=FRONT_END_KEY))
            assert (await client.read_head()).status == 200
        refused = await ask(settings, "/whoami", ada, key=FRONT_END_KEY)
        assert (refused.status, refused.headers["retry-after"]) == (429, "2")
        assert "user" in refused.body.decode()
        assert (await ask(settings, "/whoami", ben, key=FRONT_END_KEY)).status == 200
        door.end.set()
        await first.reader.readuntil(b"last")
        await first.reader.readuntil(b"0\r\n\r\n")
        assert (await ask(settings, "/whoami", ada, key=FRONT_END_KEY)).status == 200


async def test_the_error_has_the_shape_of_the_door() -> None:
    settings = web_settings()
    async with serve(settings):
        openai = await ask(settings, "/v1/whoami", key=None)
        plain = await ask(settings, "/whoami", key=None)
    assert json.loads(openai.body)["error"] == {
        "message": json.loads(plain.body)["error"]["message"],
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
