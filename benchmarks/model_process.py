"""A language model's server in a process of its own, so that its CPU is not counted as the agent's.

`python -m benchmarks.model_process` prints its URL and ends with its standard input. The name of a model is the number of
tokens of its answer. `GET /last` returns the previous request.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

END_S = 10.0


@asynccontextmanager
async def model_process() -> AsyncIterator[str]:
    """Start the server, and yield its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.model_process"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), END_S)).decode().strip()
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), END_S)


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "bench", "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


_TOKEN, _END = _event({"content": "word "}), _event({}, "stop") + b"data: [DONE]\n\n"


async def _main() -> None:
    last: dict[str, Any] = {}

    async def completions(request: web.Request) -> web.StreamResponse:
        last.update(asked=await request.json())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for _ in range(int(last["asked"]["model"])):
            await response.write(_TOKEN)
        await response.write(_END)
        return response

    async def load_last(request: web.Request) -> web.Response:
        return web.json_response(last["asked"])

    application = web.Application()
    application.add_routes([web.post("/v1/chat/completions", completions), web.get("/v1/last", load_last)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_main())
