"""A2A under `kill -9`: each accepted message is answered once, and a client that comes back gets the answer."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.a2a_process import A2AProcess
from tests.support.doors import KEY
from tests.support.long_forms import short_and_long_in_release
from tests.support.wait import ANSWER_S

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_MESSAGES = 8
_MAX_S = 0.4


@pytest.mark.timeout(3000)
@short_and_long_in_release("A2A_KILLS", 2, 10)
async def test_each_accepted_message_is_answered_once_after_kill_9(tmp_path: Path, count: int) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, process = random.Random(SEED), A2AProcess(tmp_path)
    accepted = 0
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {KEY}", "A2A-Version": "1.0"}, trust_env=False, timeout=ANSWER_S
    ) as http:
        try:
            for number in range(count):
                await process.start()
                texts = {f"{number}-{each}": f"{'ask' if each == 0 else 'say'} {number} {each}" for each in range(_MESSAGES)}
                sending = asyncio.gather(*(_send(http, process.url, *item) for item in texts.items()))
                await asyncio.sleep(rng.random() * _MAX_S)
                await process.kill()
                known = [task for task in await sending if task is not None]
                accepted += len(known)
                await process.start()
                for task in known:
                    assert (await _call(http, process.url, "GetTask", {"id": task["id"]}))["contextId"] == task["contextId"]
                for ident, text in texts.items():
                    await _finish(http, process.url, ident, text)
                listed = await _call(http, process.url, "ListTasks", {"pageSize": 1})
                assert listed["totalSize"] == (number + 1) * _MESSAGES
                await process.kill()
        finally:
            await process.kill()
    print(f"{count} kills; {accepted} of {count * _MESSAGES} messages were accepted before")


async def _finish(http: httpx.AsyncClient, url: str, ident: str, text: str) -> None:
    """Send a message again, answer its question if it has one, and check its answer."""
    task = await _send(http, url, ident, text, waits=True)
    assert task is not None
    if task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED":
        assert text.startswith("ask")
        answer = {"messageId": f"{ident}-answer", "role": "ROLE_USER", "parts": [{"text": text}], "taskId": task["id"]}
        task = (await _call(http, url, "SendMessage", {"message": answer}))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    stored = await _call(http, url, "GetTask", {"id": task["id"]})
    assert stored["artifacts"][-1]["parts"][0]["text"].strip().endswith(text)


async def _send(http: httpx.AsyncClient, url: str, ident: str, text: str, *, waits: bool = False) -> dict[str, Any] | None:
    """Send a message, and return its task; None if the process is killed meanwhile."""
    message = {"messageId": ident, "role": "ROLE_USER", "parts": [{"text": text}]}
    try:
        sent = await _call(http, url, "SendMessage", {"message": message, "configuration": {"returnImmediately": not waits}})
    except httpx.HTTPError:
        if waits:
            raise
        return None
    task: dict[str, Any] = sent["task"]
    return task


async def _call(http: httpx.AsyncClient, url: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    reply = (await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).json()
    assert "result" in reply, reply
    result: dict[str, Any] = reply["result"]
    return result
