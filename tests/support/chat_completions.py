"""A server with OpenAI's chat completions, on the wire as the real ones are: server-sent events, and all that goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from aiohttp import web

Asked: TypeAlias = dict[str, Any]


class Wire:
    """One answer on its way: `await wire.delta(content="Hel")`."""

    def __init__(self, request: web.Request, asked: Asked) -> None:
        self.asked = asked
        self.headers = dict(request.headers)
        self._request = request
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self._is_begun = False

    def status(self, status: int) -> None:
        """Before the first word."""
        self._response.set_status(status)

    async def raw(self, data: str) -> None:
        if not self._is_begun:
            await self._response.prepare(self._request)
            self._is_begun = True
        await self._response.write(data.encode())

    async def event(self, value: Any) -> None:
        await self.raw(f"data: {json.dumps(value)}\n\n")

    async def delta(self, finish: str | None = None, **delta: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await self.event({"id": "c1", "object": "chat.completion.chunk", "model": self.asked["model"], "choices": [choice]})

    async def done(self, finish: str = "stop") -> None:
        await self.delta(finish)
        if self.asked.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            await self.event({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        await self.raw("data: [DONE]\n\n")

    def cut(self) -> None:
        """The connection ends without a word."""
        assert self._request.transport is not None
        self._request.transport.abort()


Answer: TypeAlias = Callable[[Wire], Awaitable[web.Response | None]]


def says(*pieces: str, finish: str = "stop", reasoning: Sequence[str] = ()) -> Answer:
    """A text in these pieces."""

    async def answer(wire: Wire) -> None:
        await wire.delta(role="assistant", content="")
        for piece in reasoning:
            await wire.delta(reasoning_content=piece)
        for piece in pieces:
            await wire.delta(content=piece)
        await wire.done(finish)

    return answer


def calls(*wanted: tuple[str, Any], text: str = "") -> Answer:
    """Tool calls, each in fragments, interleaved; arguments that are no text are JSON."""

    async def answer(wire: Wire) -> None:
        texts = [given if isinstance(given, str) else json.dumps(given) for _, given in wanted]
        if text:
            await wire.delta(content=text)
        for index, (name, _) in enumerate(wanted):
            function = {"name": name, "arguments": ""}
            await wire.delta(tool_calls=[{"index": index, "id": f"call-{index}", "type": "function", "function": function}])
        for start in range(0, max(map(len, texts), default=0), 7):
            for index, one in enumerate(texts):
                if fragment := one[start : start + 7]:
                    await wire.delta(tool_calls=[{"index": index, "function": {"arguments": fragment}}])
        await wire.done("tool_calls")

    return answer


def fails(status: int, said: str = "told to fail", **headers: str) -> Answer:
    """An error as OpenAI writes it."""

    async def answer(wire: Wire) -> web.Response:
        return web.json_response({"error": {"message": said}}, status=status, headers=headers)

    return answer


async def html(wire: Wire) -> web.Response:
    """A page of some gateway, with 200."""
    return web.Response(text="<html><body>Welcome</body></html>", content_type="text/html")


def hangs(*pieces: str) -> Answer:
    """Says this much, and then nothing."""

    async def answer(wire: Wire) -> None:
        for piece in pieces:
            await wire.delta(content=piece)
        await asyncio.Event().wait()

    return answer


def breaks(*pieces: str, way: str = "cut") -> Answer:
    """Says this much, and then the connection is cut, or the answer ends, or is an error or no JSON."""

    async def answer(wire: Wire) -> None:
        for piece in pieces:
            await wire.delta(content=piece)
        if way == "cut":
            await wire.raw(": still there\n\n")
            wire.cut()
        elif way == "error":
            await wire.event({"error": {"message": "told to fail", "type": "server_error"}})
        elif way == "no JSON":
            await wire.raw("data: {what?\n\n")

    return answer


class ChatServer:
    """`async with ChatServer(says("Hello")) as server`: gives its answers in turn, the last one again and again.

    `asked` are the requests, `keys` the keys they came with, `closed` counts those that whoever asked closed.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.keys: list[str] = []
        self.closed = 0
        self.open = 0
        self.url = ""
        self.models: list[str] | int = 404
        """What it lists, or the status with which it does not."""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ChatServer:
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/v1/chat/completions", self._completions)
        application.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """How many connections stand, busy or not."""
        assert self._runner is not None
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def _models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization", ""))
        if isinstance(self.models, int):
            return web.json_response({"error": {"message": "no list"}}, status=self.models)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        wire = Wire(request, await request.json())
        self.asked.append(wire.asked)
        self.keys.append(request.headers.get("Authorization", ""))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.open += 1
        try:
            return await answer(wire) or wire._response
        except (asyncio.CancelledError, ConnectionResetError):
            self.closed += 1
            raise
        finally:
            self.open -= 1


def contents(asked: Asked, role: str) -> list[str]:
    """What the messages of a role say."""
    return [message["content"] or "" for message in asked["messages"] if message["role"] == role]
