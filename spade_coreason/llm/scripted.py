"""A model server for demonstrations: OpenAI's chat completions on the wire, and behind it a script that says that it is one.

`python -m spade_coreason.llm.scripted [PORT]` serves it until Ctrl-C, and prints the variables for an agent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from types import TracebackType
from typing import Self

from aiohttp import web

from .script import DELAY_S, MODEL_NAME, stream_reply


class ScriptedModel:
    """Serve the script: `async with ScriptedModel() as model: …` listens at `model.url`, on loopback.

    It speaks `/v1/chat/completions` with `stream: true`, and nothing else. `delay_s` is the seconds between two words. `port` 0
    means a free port.
    """

    def __init__(self, delay_s: float = DELAY_S, port: int = 0) -> None:
        self._delay_s = delay_s
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=2**24)
        application.router.add_post("/v1/chat/completions", self._answer_completion)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer_completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async for event in stream_reply(body, self._delay_s):
            await response.write(event)
        return response


async def _serve(port: int) -> None:
    async with ScriptedModel(port=port) as model:
        print("A script stands in for a language model until Ctrl-C. For an agent in another terminal:", file=sys.stderr)
        print(f"export OPENAI_BASE_URL={model.url} OPENAI_MODEL={MODEL_NAME}", flush=True)
        await asyncio.Event().wait()


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number up to 65535, not {text!r}")
    return int(text)


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m spade_coreason.llm.scripted",
        description="Run a scripted language model with OpenAI's API on 127.0.0.1, and print the variables for an agent.",
    )
    parser.add_argument("port", metavar="PORT", nargs="?", type=_parse_port, help="default: any free port")
    port = parser.parse_args().port or 0
    try:
        asyncio.run(_serve(port))
    except OSError as error:
        sys.exit(f"error: port {port}: {os.strerror(error.errno or 0)}; name another one")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _main()
