"""The work for one body is bounded at each door, and others are answered: values, texts, and bodies of strangers."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from base64 import b64encode

import httpx
import pytest

from spade_coreason.contracts.times import utc_now
from tests.support.door_agents import Desk
from tests.support.doors import KEY, connect, request_of
from tests.support.large_bodies import DOORS, NAME, SHAPES, BodyDoors, serve_bodies
from tests.support.wait import TIMEOUT_S
from tests.support.webhooks import sign

SETTINGS = {"openai": "values", "a2a": "a2a_values", "mcp": "values", "webhook": "values"}
TEXT = 262_144
"""The most characters of the text of a message."""


def limit_of(served: BodyDoors, door: str) -> int:
    limit: int = getattr(served.settings.limits, SETTINGS[door])
    return limit


async def check_innocent(served: BodyDoors) -> None:
    """Fail unless a chat is answered."""
    reply = await served.post("openai", text="hello")
    assert (reply.status, b"done: hello" in reply.body) == (200, True)


@pytest.mark.parametrize("door", DOORS)
async def test_json_of_more_values_is_refused_with_the_name_of_the_setting_and_others_are_answered(url: str, door: str) -> None:
    desk = Desk()
    async with serve_bodies(url, desk) as served:
        limit = limit_of(served, door)
        for shape, make in SHAPES.items():
            attack = asyncio.create_task(served.post(door, make(limit + 100)))
            await check_innocent(served)
            reply = await attack
            message = json.loads(reply.body)["error"]["message"]
            assert (reply.status, f"web.limits.{SETTINGS[door]};" in message) == (413, True), shape
        assert {query for _, query in desk.seen} == {"hello"}


@pytest.mark.parametrize("door", DOORS)
async def test_json_of_as_many_values_as_the_limit_is_served(url: str, door: str) -> None:
    desk = Desk()
    async with serve_bodies(url, desk) as served:
        for shape in ("numbers", "objects"):
            reply = await served.post(door, SHAPES[shape](limit_of(served, door) - 100))
            assert reply.status in (200, 202), shape
            assert b"done: hi" in reply.body or door == "webhook"
        await served.running.runtime.runner.mailboxes.wait_until_idle()
        assert len(desk.seen) == 2


async def test_the_limits_are_settings(url: str) -> None:
    async with serve_bodies(url, Desk(), limits={"values": 100, "a2a_values": 60, "webhook_bytes": 5000}) as served:
        for door in DOORS:
            limit = limit_of(served, door)
            assert (await served.post(door, SHAPES["numbers"](limit - 40))).status in (200, 202)
            assert (await served.post(door, SHAPES["numbers"](limit + 1))).status == 413
        large = await served.post("webhook", text="x" * 5000)
        assert (large.status, b"5,000 bytes, the limit web.limits.webhook_bytes" in large.body) == (413, True)


@pytest.mark.parametrize("door", DOORS)
async def test_a_long_text_is_no_work_and_has_a_limit_of_its_own(url: str, door: str) -> None:
    """Marks in a text are no values. A text of more characters is refused before the agent, with the remedy."""
    desk = Desk()
    async with serve_bodies(url, desk) as served:
        text = ',:[{"\\' * (TEXT // 6) + "é" * (TEXT % 6)
        reply = await served.post(door, text=text)
        assert reply.status in (200, 202)
        await served.running.runtime.runner.mailboxes.wait_until_idle()
        assert [query for _, query in desk.seen] == [text]
        too_long = await served.post(door, text=text + "x")
        assert b"more than 262,144 characters; send it as a file" in too_long.body
        assert too_long.status == (413 if door in ("openai", "webhook") else 200)
        assert len(desk.seen) == 1


@pytest.mark.parametrize("door", ["a2a", "mcp"])
async def test_texts_in_data_are_bounded_too(url: str, door: str) -> None:
    desk = Desk()
    async with serve_bodies(url, desk) as served:
        reply = await served.post(door, json.dumps(["x" * 100_000] * 20).encode())
        assert b"more than 262,144 characters; send it as a file" in reply.body
        assert desk.seen == []


async def test_an_event_in_a_form_has_the_limit_of_json(url: str) -> None:
    async with serve_bodies(url, Desk()) as served:
        form = b"payload=" + SHAPES["numbers"](60_000).replace(b",", b"%2C")
        reply = await served.post_event(form, "application/x-www-form-urlencoded")
        assert (reply.status, b"web.limits.values" in reply.body) == (413, True)


async def test_a_history_of_two_thousand_messages_is_served(url: str) -> None:
    desk = Desk()
    async with serve_bodies(url, desk) as served, httpx.AsyncClient(base_url=served.settings.public_url) as http:
        roles = ["user", "assistant"] * 999
        messages = [{"role": role, "content": [{"type": "text", "text": "a, b: [c] " * 50}]} for role in roles]
        body = {"model": NAME, "messages": [*messages, {"role": "user", "content": "hello"}]}
        headers = {"Authorization": f"Bearer {KEY}"}
        reply = await http.post("/v1/chat/completions", json=body, headers=headers, timeout=TIMEOUT_S)
        assert (reply.status_code, "done: hello" in reply.text) == (200, True)


async def test_a_file_of_eight_mebibytes_is_served(url: str) -> None:
    desk = Desk()
    async with serve_bodies(url, desk) as served, httpx.AsyncClient(base_url=served.settings.public_url) as http:
        headers = {"Authorization": f"Bearer {KEY}", "A2A-Version": "1.0"}
        data = b64encode(b"\xff" * 8 * 2**20).decode()
        part = {"type": "file", "file": {"filename": "a.bin", "file_data": data}}
        chat = {"model": NAME, "messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, part]}]}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "two"}, {"raw": data, "filename": "a.bin"}]}
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        for path, body in {"/v1/chat/completions": chat, f"/a2a/{NAME}": rpc}.items():
            reply = await http.post(path, json=body, headers=headers, timeout=TIMEOUT_S)
            assert (reply.status_code, "done" in reply.text) == (200, True)
        assert [request.payload["attachments"][0]["size"] for request in desk.requests] == [8 * 2**20] * 2


async def test_a_file_that_is_no_part_of_the_message_does_not_hide_a_text(url: str) -> None:
    async with serve_bodies(url, Desk()) as served:
        reply = await served.post("a2a", json.dumps({"raw": "x" * 2_000_000}).encode())
        assert reply.status == 413


@pytest.mark.parametrize("door", DOORS)
async def test_a_refused_body_takes_a_few_times_its_size_of_memory(url: str, door: str) -> None:
    async with serve_bodies(url, Desk()) as served:
        body = SHAPES["numbers"](500_000)
        await served.post(door, body)  # loads what the first request loads
        tracemalloc.start()
        try:
            assert (await served.post(door, body)).status == 413
            assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
        finally:
            tracemalloc.stop()


async def test_the_body_of_a_stranger_is_not_read(url: str) -> None:
    """Nothing of the body is sent here, and the answer comes. One for a known webhook that is too long is not read either."""
    async with serve_bodies(url, Desk()) as served:
        signed = [f"{name}: {value}" for name, value in sign(served.webhook, b"x", "m", utc_now()).items()]
        for path, size, status in (("/webhooks/other", 1_000_000, 401), ("/webhooks/ci", 1_048_577, 413)):
            async with connect(served.settings) as client, asyncio.timeout(TIMEOUT_S):
                await client.send(request_of(path, *signed, f"Content-Length: {size}", method="POST", key=None))
                assert (await client.read_head()).status == status
        assert (await served.post("webhook")).status == 202
