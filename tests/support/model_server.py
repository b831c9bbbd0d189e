"""An OpenAI-compatible server with a tiny embedding model: each word is a direction, and synonyms share one."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from aiohttp import web

from spade_coreason.domain.texts.text import extract_keywords

SYNONYMS = {"money": "refund", "reimbur": "refund", "automobile": "car", "vehicle": "car"}


def bag_of_words(text: str, dimension: int) -> list[float]:
    """Embed a text with a direction for each word; texts without a common word are nearly orthogonal."""
    vector = [0.0] * dimension
    for form in extract_keywords(text) or ["nothing"]:
        word = form.removesuffix("ed").removesuffix("s")
        seed = hashlib.sha256(SYNONYMS.get(word, word).encode()).digest()
        for place in range(4):
            number = int.from_bytes(seed[4 * place : 4 * place + 4], "big")
            vector[number % dimension] += 1.0 if number & 1 << 31 else -1.0
    return vector


class ModelServer:
    """A model server: `async with ModelServer() as server`; `server.url` is its base URL.

    `requests` are its requests. `failures` are used up before answers: a status, a text that is sent with 200, or None to hang.
    """

    def __init__(
        self,
        *,
        dimension: int = 256,
        embed: Callable[[Sequence[str]], list[list[float]]] | None = None,
        chat: Callable[[list[dict[str, str]]], str] = lambda messages: "a summary",
        api_key: str | None = None,
    ) -> None:
        self.dimension = dimension
        self.failures: list[int | str | None] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.url = ""
        self._embed = embed or (lambda texts: [bag_of_words(text, self.dimension) for text in texts])
        self._chat = chat
        self._api_key = api_key
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def __aenter__(self) -> ModelServer:
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/v1/embeddings", self._embeddings)
        application.router.add_post("/v1/chat/completions", self._completions)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _accept(self, request: web.Request) -> dict[str, Any] | web.Response:
        body: dict[str, Any] = await request.json()
        self.requests.append((request.path, body))
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": {"message": "Incorrect API key provided"}}, status=401)
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                await asyncio.Event().wait()
            if isinstance(failure, str):
                return web.Response(text=failure, content_type="application/json")
            assert failure is not None
            message = f"told to fail: {json.dumps(body)}"  # as servers do that quote a request which they refuse
            return web.json_response({"error": {"message": message}}, status=failure, headers={"retry-after-ms": "1"})
        return body

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = await self._accept(request)
        if isinstance(body, web.Response):
            return body
        vectors = self._embed(body["input"])
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        # In reverse order: the API allows any.
        return web.json_response({"object": "list", "model": body["model"], "data": data[::-1]})

    async def _completions(self, request: web.Request) -> web.Response:
        body = await self._accept(request)
        if isinstance(body, web.Response):
            return body
        message = {"role": "assistant", "content": self._chat(body["messages"])}
        return web.json_response({"choices": [{"index": 0, "message": message}]})
