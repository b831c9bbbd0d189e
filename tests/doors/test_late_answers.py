"""Answers by doors that come after the time of their question, or without the right to give one, change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from spade_coreason.exceptions import ConfigError
from tests.support.all_doors import WITH_KEYS, AllDoors, run_all_doors
from tests.support.databases import SQLITE, execute
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

LATE = 1
"""The end of the time of a question, long ago (microseconds)."""


@asynccontextmanager
async def ask(
    door: str, running: AllDoors, http: httpx.AsyncClient, query: str = "ask me"
) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Let the agent ask the caller, and yield a function that answers."""
    if door == "openai":
        first = await running.ask_openai(http, query, "", running.name())
        history = [{"role": "user", "content": query}, first.json()["choices"][0]["message"]]
        messages = [*history, {"role": "user", "content": "red"}]
        yield lambda: _text(http.post("/v1/chat/completions", json={"model": running.name(), "messages": messages}))
    elif door == "a2a":
        task = (await running.ask_a2a(http, query, "", running.name())).json()["result"]["task"]
        yield lambda: _text(running.ask_a2a(http, "red", "", running.name(), taskId=task["id"]))
    else:
        given: dict[str, Any] = {"request_id": str(uuid4())}
        first = await running.ask_mcp(http, query, "", running.name(), **given)
        result = first.json()["result"]
        name, arguments = f"{running.name()}_chat", {"query": query, **given}
        if (state := result.get("requestState")) is not None:
            [key] = result["inputRequests"]
            inputs = {key: {"action": "accept", "content": {"answer": "red"}}}
            params = {"name": name, "arguments": arguments, "requestState": state, "inputResponses": inputs}
            yield lambda: _text(running.mcp(http, "tools/call", params))
        else:
            question = result.get("structuredContent", {}).get("question")
            answered = {**arguments, "answer": "red", **({"question": question} if isinstance(question, str) else {})}
            yield lambda: _text(running.mcp(http, "tools/call", {"name": name, "arguments": answered}))


async def _text(reply: Awaitable[httpx.Response]) -> str:
    return str((await reply).text)


def run_sql(directory: Path, statement: str) -> list[dict[str, Any]]:
    return [dict(row) for row in execute(f"{SQLITE}{directory / 'data' / 'platform.db'}", statement)]


@pytest.mark.parametrize("door", WITH_KEYS)
async def test_an_answer_by_a_door_counts_before_the_end_of_its_time_only(
    prosody: XmppServer, tmp_path: Path, door: str
) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        async with ask(door, running, http) as answer:
            run_sql(tmp_path, f"UPDATE questions SET expires_at = {LATE}")  # the clock of the agent looks at it later
            assert "painted red" not in await answer()
        await eventually(lambda: "answered" not in {row["state"] for row in run_sql(tmp_path, "SELECT state FROM questions")})
        async with ask(door, running, http, "ask again") as answer:
            assert "painted red" in await answer()


@pytest.mark.parametrize("door", WITH_KEYS)
async def test_an_answer_by_a_door_does_not_count_once_the_key_is_revoked(
    prosody: XmppServer, tmp_path: Path, door: str
) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        async with ask(door, running, http, "ask again") as answer:
            await running.call("keys.revoke", name="website")
            assert "painted red" not in await answer()
        assert {row["state"] for row in run_sql(tmp_path, "SELECT state FROM questions")} == {"open"}


async def test_the_user_of_the_machine_decides_before_the_end_of_the_time_only(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running, running.http("website") as http:
        await running.ask_a2a(http, "pay", "", running.name())
        [approval] = await running.call("approvals.list")
        run_sql(tmp_path, f"UPDATE questions SET expires_at = {LATE}")
        with pytest.raises(ConfigError, match="it is expired already; nothing was changed"):
            await running.call("approvals.approve", id=approval.id)
        with pytest.raises(ConfigError, match="it is decided already, or its time is over"):
            await running.call("approvals.reassign", id=approval.id)
