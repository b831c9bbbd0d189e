"""A server with OpenAI's chat completions as on the wire: server-sent events and every kind of failure."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from aiohttp import web

from tests.support.openai_refusals import find_refusal

RequestBody: TypeAlias = dict[str, Any]


class CompletionStream:
    """One answer while it is sent: `await wire.delta(content="Hel")`."""

    def __init__(self, request: web.Request, body: RequestBody) -> None:
        self.body = body
        self.headers = dict(request.headers)
        self._request = request
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self._is_prepared = False

    def status(self, status: int) -> None:
        """Set the HTTP status, before the first write."""
        self.response.set_status(status)

    async def raw(self, data: str) -> None:
        if not self._is_prepared:
            await self.response.prepare(self._request)
            self._is_prepared = True
        await self.response.write(data.encode())

    async def event(self, value: Any) -> None:
        await self.raw(f"data: {json.dumps(value)}\n\n")

    async def delta(self, finish: str | None = None, **delta: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await self.event({"id": "c1", "object": "chat.completion.chunk", "model": self.body["model"], "choices": [choice]})

    async def done(self, finish: str = "stop") -> None:
        await self.delta(finish)
        if self.body.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            await self.event({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        await self.raw("data: [DONE]\n\n")

    def cut(self) -> None:
        """Cut the connection without closing the stream."""
        assert self._request.transport is not None
        self._request.transport.abort()


Answer: TypeAlias = Callable[[CompletionStream], Awaitable[web.Response | None]]


def text_answer(*pieces: str, finish: str = "stop", reasoning: Sequence[str] = ()) -> Answer:
    """Answer with a text in these pieces."""

    async def answer(stream: CompletionStream) -> None:
        await stream.delta(role="assistant", content="")
        for piece in reasoning:
            await stream.delta(reasoning_content=piece)
        for piece in pieces:
            await stream.delta(content=piece)
        await stream.done(finish)

    return answer


def tool_call_answer(*calls: tuple[str, Any], text: str = "") -> Answer:
    """Answer with tool calls, each in interleaved fragments. Arguments that are not a string are sent as JSON."""

    async def answer(stream: CompletionStream) -> None:
        texts = [arguments if isinstance(arguments, str) else json.dumps(arguments) for _, arguments in calls]
        if text:
            await stream.delta(content=text)
        for index, (name, _) in enumerate(calls):
            function = {"name": name, "arguments": ""}
            await stream.delta(tool_calls=[{"index": index, "id": f"call-{index}", "type": "function", "function": function}])
        for start in range(0, max(map(len, texts), default=0), 7):
            for index, json_text in enumerate(texts):
                if fragment := json_text[start : start + 7]:
                    await stream.delta(tool_calls=[{"index": index, "function": {"arguments": fragment}}])
        await stream.done("tool_calls")

    return answer


def error_answer(status: int, message: str = "told to fail", **headers: str) -> Answer:
    """Answer with an error in OpenAI's format."""

    async def answer(stream: CompletionStream) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=status, headers=headers)

    return answer


async def html_answer(stream: CompletionStream) -> web.Response:
    """Answer with the HTML page of a gateway and status 200."""
    return web.Response(text="<html><body>Welcome</body></html>", content_type="text/html")


def hanging_answer(*pieces: str) -> Answer:
    """Answer with these pieces, then hang."""

    async def answer(stream: CompletionStream) -> None:
        for piece in pieces:
            await stream.delta(content=piece)
        await asyncio.Event().wait()

    return answer


def broken_answer(*pieces: str, way: str = "cut") -> Answer:
    """Answer with these pieces, then fail: the connection is cut, the answer ends, or it holds an error or malformed JSON."""

    async def answer(stream: CompletionStream) -> None:
        for piece in pieces:
            await stream.delta(content=piece)
        if way == "cut":
            await stream.raw(": still there\n\n")
            stream.cut()
        elif way == "error":
            await stream.event({"error": {"message": "told to fail", "type": "server_error"}})
        elif way == "no JSON":
            await stream.raw("data: {what?\n\n")

    return answer


class ChatCompletionsServer:
    """A server that gives its answers in turn, then repeats the last: `async with ChatCompletionsServer(text_answer("Hello"))`.

    It refuses the tools that OpenAI refuses.

    `requests` are the bodies, `keys` their API keys; `closed_count` counts the requests that the client closed.
    """

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self._tls = tls
        self.requests: list[RequestBody] = []
        self.keys: list[str] = []
        self.closed_count = 0
        self.open_count = 0
        self.url = ""
        self.models: list[str] | int = 404
        """The models that it lists, or the status of its refusal."""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> ChatCompletionsServer:
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/v1/chat/completions", self._completions)
        application.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """The number of open connections, busy or idle."""
        assert self._runner is not None
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    async def _models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization", ""))
        if isinstance(self.models, int):
            return web.json_response({"error": {"message": "no list"}}, status=self.models)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        stream = CompletionStream(request, await request.json())
        self.requests.append(stream.body)
        self.keys.append(request.headers.get("Authorization", ""))
        if (refusal := find_refusal(stream.body.get("tools", []))) is not None:
            return web.json_response(refusal, status=400)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.open_count += 1
        try:
            return await answer(stream) or stream.response
        except (asyncio.CancelledError, ConnectionResetError):
            self.closed_count += 1
            raise
        finally:
            self.open_count -= 1


def message_contents(body: RequestBody, role: str) -> list[str]:
    """Return the contents of the messages with this role."""
    return [message["content"] or "" for message in body["messages"] if message["role"] == role]
