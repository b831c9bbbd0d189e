"""The door under `kill -9`: each accepted request is answered once, and a client that comes back gets the answer."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.long_forms import short_and_long_in_release
from tests.support.program import run_command, run_in_background
from tests.support.wait import ANSWER_S

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
_PIECES = 30
AGENT_SOURCE = f'''
import asyncio

from spade_coreason import AgentDefinition


class Teller:
    """Tells a text piece by piece."""

    manifest = AgentDefinition.simple("teller")

    async def assist(self, request, session, response):
        stream = await response.create_stream()
        for number in range({_PIECES}):
            await stream.write(f"{{request.payload['query']}}-{{number}} ")
            await asyncio.sleep(0.01)
        await stream.close()
'''


def expected(query: str) -> str:
    return "".join(f"{query}-{number} " for number in range(_PIECES)).strip()


@pytest.mark.timeout(3000)
@short_and_long_in_release("OPENAI_KILLS", 2, 10)
async def test_each_accepted_request_is_answered_once_after_kill_9(tmp_path: Path, count: int) -> None:
    print(f"CHAOS_SEED={SEED}")
    rng, [port] = random.Random(SEED), find_free_ports(1)
    (tmp_path / "config").mkdir()
    (tmp_path / "teller.py").write_text(AGENT_SOURCE)
    agent = {"jid": "teller@localhost", "agent": "teller:Teller", "doors": ["openai"]}
    settings = {"server": {"mode": "embedded"}, "web": {"port": port}, "agents": [agent]}
    (tmp_path / "config" / "platform.yaml").write_text(json.dumps(settings))
    key = run_command("keys", "create", "website", "--agent", "teller", cwd=tmp_path).stdout.strip().split()[-1]
    queries = []
    headers = {"Authorization": f"Bearer {key}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1", headers=headers, timeout=ANSWER_S)
    ids: dict[str, str] = {}
    async with client:
        for number in range(count):
            new = [(f"{kind}{number}", kind) for kind in ("chat", "stream", "response")]
            queries += [query for query, _ in new]
            with _run(tmp_path):
                asked = [asyncio.create_task(ask(client, query, kind, ids)) for query, kind in new]
                await asyncio.sleep(rng.random() * 0.6)  # the instant of the kill is random, and nothing waits for it
            await asyncio.gather(*asked, return_exceptions=True)
            with _run(tmp_path):
                for query, kind in new:
                    known = ids.get(query)
                    assert (await ask(client, query, kind, ids)).strip() == expected(query)
                    assert known in (None, ids[query])
                    if kind == "response":
                        fetched = (await client.get(f"/responses/{ids[query]}")).json()
                        assert fetched["output"][0]["content"][0]["text"].strip() == expected(query)
    with closing(sqlite3.connect(tmp_path / "data" / "platform.db")) as database:
        bodies = [json.loads(body) for (body,) in database.execute("SELECT body FROM interactions")]
    asked_queries = [body["input"]["query"] for body in bodies]
    assert sorted(asked_queries) == sorted(queries)


def _run(directory: Path) -> Any:
    """Run the platform, and kill it at the end."""
    return run_in_background("up", cwd=directory, until="^Ready")


async def ask(client: httpx.AsyncClient, query: str, kind: str, ids: dict[str, str]) -> str:
    """Ask with the query as the key, and return the answer. Note the id of the completion or response once it is known."""
    headers = {"Idempotency-Key": query}
    messages = [{"role": "user", "content": query}]
    if kind == "response":
        body: dict[str, Any] = {"model": "teller", "input": query}
        reply = await client.post("/responses", json=body, headers=headers)
        reply.raise_for_status()
        ids[query] = reply.json()["id"]
        return str(reply.json()["output"][0]["content"][0]["text"])
    body = {"model": "teller", "messages": messages, "stream": kind == "stream"}
    if kind == "chat":
        reply = await client.post("/chat/completions", json=body, headers=headers)
        reply.raise_for_status()
        ids[query] = reply.json()["id"]
        return str(reply.json()["choices"][0]["message"]["content"])
    text = ""
    async with client.stream("POST", "/chat/completions", json=body, headers=headers) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                return text
            if line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                ids.setdefault(query, chunk["id"])
                text += chunk["choices"][0]["delta"].get("content") or ""
    raise ConnectionError("the stream was cut off")
