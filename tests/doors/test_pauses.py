"""An agent that an operator has paused: who waits for an answer is told so, and what can be fetched later is stored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.all_doors import AllDoors, Desk, run_all_doors
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


async def state_of(running: AllDoors, http: Any, task: str) -> tuple[str, str]:
    """Return the state of a task of A2A, and its message."""
    status = (await running.rpc(http, running.name(), "GetTask", {"id": task})).json()["result"]["status"]
    return status["state"], "".join(part["text"] for part in status.get("message", {}).get("parts", ()))


async def test_who_waits_for_an_answer_of_a_paused_agent_is_told(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        client = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.keys["website"], timeout=TIMEOUT_S)
        before = asyncio.create_task(running.ask("openai", "website", "hold", **{"Idempotency-Key": "before"}))
        await eventually(lambda: len(Desk.seen) == 1)
        await running.call("agents.pause", agent=running.desk)
        for is_stream in (False, True):
            chat: Any = client.chat.completions.create
            response: Any = client.responses.create
            for asking in (
                chat(model=running.name(), messages=[{"role": "user", "content": "hello"}], stream=is_stream),
                response(model=running.name(), input="hello", stream=is_stream),
            ):
                with pytest.raises(openai.InternalServerError, match="an operator has paused the agent") as refused:
                    await asking
                error = refused.value
                assert (error.status_code, error.code, error.response.headers["retry-after"]) == (503, "paused", "60")
        called = (await running.ask_mcp(http, "hello", "", running.name(), request_id="1")).json()["result"]
        assert (called["isError"], called["_meta"]["ai.coreason/code"]) == (True, 503)
        assert "paused" in called["content"][-1]["text"]
        # What runs already goes on, and is fetched while the pause lasts.
        again = asyncio.create_task(running.ask("openai", "website", "hold", **{"Idempotency-Key": "before"}))
        Desk.release.set()
        for answer in (
            await before,
            await again,
            await running.ask("openai", "website", "hold", **{"Idempotency-Key": "before"}),
        ):
            assert (answer.status, "done: hold" in answer.text) == (200, True)
        await running.call("agents.resume", agent=running.desk)
        assert "done: hello" in (await running.ask_mcp(http, "hello", "", running.name(), request_id="1")).text
        assert [query for _, query in Desk.seen] == ["hold", "hello"]  # what was refused is not asked later


async def test_what_can_be_fetched_later_waits_for_the_end_of_a_pause(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http, running.http() as open_http:
        name = running.name()
        await running.call("agents.pause", agent=running.desk)
        response = (await http.post("/v1/responses", json={"model": name, "input": "one", "background": True})).json()
        assert response["status"] == "in_progress"
        event = (await running.post_event(open_http, "two")).json()
        assert (await open_http.get(event["answer"])).status_code == 202
        task = (await running.ask_a2a(http, "three", "", name)).json()["result"]["task"]  # it does not block
        paused = "An operator has paused the agent. The task is stored, and goes on when the pause ends."
        assert await state_of(running, http, task["id"]) == ("TASK_STATE_WORKING", paused)
        message = {"messageId": "m4", "role": "ROLE_USER", "parts": [{"text": "hold four"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
        states: list[tuple[str, str]] = []
        async with asyncio.timeout(TIMEOUT_S):
            async with http.stream("POST", f"/a2a/{name}", json=body, headers={"A2A-Version": "1.0"}) as stream:
                async for line in stream.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    result = json.loads(line.removeprefix("data: "))["result"]
                    status = (result.get("task") or result.get("statusUpdate") or {}).get("status")
                    if status is None:
                        continue
                    said = "".join(part["text"] for part in status.get("message", {}).get("parts", ()))
                    states.append((status["state"].removeprefix("TASK_STATE_"), said))
                    if len(states) == 1:
                        assert Desk.seen == []
                        await running.call("agents.resume", agent=running.desk)
                        await eventually(lambda: len(Desk.seen) == 4)
                        Desk.release.set()
        assert states[0] == ("WORKING", paused)
        assert states[1:] == [("WORKING", ""), ("COMPLETED", "")]
        assert (await running.fetch_response(http, response["id"]))["output"][-1]["content"][0]["text"] == "done: one"
        assert (await running.fetch_answer(open_http, event["answer"])).json()["text"] == "done: two"
        async with asyncio.timeout(TIMEOUT_S):
            while (await state_of(running, http, task["id"])) != ("TASK_STATE_COMPLETED", ""):  # noqa: ASYNC110 - as a client does
                await asyncio.sleep(0.02)
