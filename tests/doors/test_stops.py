"""A platform that stops with a hundred open streams of all doors: each ends well, or is told how to fetch its answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.all_doors import AllDoors, Desk, run_again, run_all_doors
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

STREAMS = 100
KINDS = ("chat", "response", "task", "tool")


async def read(running: AllDoors, http: httpx.AsyncClient, number: int) -> list[dict[str, Any]]:
    """Ask by the door whose turn it is, and read the whole stream. Return its events."""
    kind, text, name, ident = KINDS[number % len(KINDS)], f"hold {number}", running.name(), f"ask-{number}"
    body: dict[str, Any] = {"model": name, "stream": True}
    headers = {"Idempotency-Key": ident}
    match kind:
        case "chat":
            body["messages"] = [{"role": "user", "content": text}]
            reply = await http.post("/v1/chat/completions", json=body, headers=headers)
        case "response":
            reply = await http.post("/v1/responses", json={**body, "input": text}, headers=headers)
        case "task":
            message = {"messageId": ident, "role": "ROLE_USER", "parts": [{"text": text}]}
            reply = await running.rpc(http, name, "SendStreamingMessage", {"message": message})
        case _:
            reply = await running.ask_mcp(http, text, "", name, request_id=ident)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines or [reply.text]]


def settings(grace_s: float) -> dict[str, Any]:
    return {
        "limits": {"grace_s": grace_s, "concurrency": STREAMS},
        "quotas": {"person": {"user": {"turns": STREAMS, "messages_per_minute": 10 * STREAMS}}},
    }


async def begin(running: AllDoors, http: httpx.AsyncClient) -> list[asyncio.Task[list[dict[str, Any]]]]:
    """Open the streams, and wait until the agent works for all of them."""
    reading = [asyncio.create_task(read(running, http, number)) for number in range(STREAMS)]
    await eventually(lambda: len(Desk.seen) == STREAMS)
    assert running.platform.door_agents.open_count == STREAMS
    return reading


@pytest.mark.timeout(300)
async def test_a_hundred_streams_of_all_doors_end_well_while_the_platform_stops(prosody: XmppServer, tmp_path: Path) -> None:
    async with asyncio.timeout(4 * TIMEOUT_S):
        async with run_all_doors(prosody, tmp_path, **settings(3600)) as running:
            http = running.http("website")
            reading = await begin(running, http)
            server = running.platform._web
            assert server is not None

            async def release_during_the_stop() -> None:
                try:
                    await eventually(lambda: server._guard.is_stopping)
                    assert not any(task.done() for task in reading)
                    async with running.http("website") as late:  # the connections of the other are all in use
                        assert (await late.get("/v1/models")).status_code == 503
                finally:
                    Desk.release.set()

            releasing = asyncio.create_task(release_during_the_stop())
        await releasing
        for number, events in enumerate(await asyncio.gather(*reading)):
            assert f"done: hold {number}" in json.dumps(events)
            assert "interrupted" not in json.dumps(events)
        await http.aclose()


@pytest.mark.timeout(300)
async def test_a_hundred_streams_that_do_not_end_name_their_requests_which_are_fetched_later(
    prosody: XmppServer, tmp_path: Path
) -> None:
    async with asyncio.timeout(4 * TIMEOUT_S):
        async with run_all_doors(prosody, tmp_path, **settings(0.2)) as running, running.http("website") as http:
            reading = await begin(running, http)
            await running.platform.__aexit__(None, None, None)
            ends = await asyncio.gather(*reading)
        assert not Desk.release.is_set()
        tasks, responses = {}, {}
        for number, events in enumerate(ends):
            first, last = events[0], events[-1]
            match KINDS[number % len(KINDS)]:
                case "chat":
                    assert last["error"]["code"] == "interrupted"
                    assert last["error"]["request_id"].replace("-", "") == first["id"].removeprefix("chatcmpl-")
                case "response":
                    responses[number] = first["response"]["id"]
                    assert responses[number].removeprefix("resp_") in json.dumps(last).replace("-", "")
                    assert "interrupted" in json.dumps(last)
                case "task":
                    tasks[number] = first["result"]["task"]["id"]
                    status = last["result"]["statusUpdate"]
                    assert (status["taskId"], status["status"]["state"]) == (tasks[number], "TASK_STATE_WORKING")
                    assert "subscribe" in status["status"]["message"]["parts"][0]["text"]
                case _:
                    assert last["result"]["isError"]
                    assert f'request_id="ask-{number}"' in last["result"]["content"][-1]["text"]
        async with run_again(running, tmp_path) as again, again.http("website") as http:
            Desk.release.set()
            for number in range(STREAMS):
                if number in responses:
                    answer = json.dumps(await again.fetch_response(http, responses[number]))
                elif number in tasks:
                    await eventually_completed(again, http, tasks[number])
                    answer = (await again.rpc(http, again.name(), "GetTask", {"id": tasks[number]})).text
                else:
                    answer = json.dumps(await read(again, http, number))
                assert f"done: hold {number}" in answer
            assert len(Desk.seen) == STREAMS  # once in this run


async def eventually_completed(running: AllDoors, http: httpx.AsyncClient, task: str) -> None:
    """Ask for a task until it is over."""
    async with asyncio.timeout(TIMEOUT_S):
        while "COMPLETED" not in (await running.rpc(http, running.name(), "GetTask", {"id": task})).text:  # noqa: ASYNC110 - as a client does
            await asyncio.sleep(0.02)
