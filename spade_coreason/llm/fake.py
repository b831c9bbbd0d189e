"""A fake model for tests: it gives scripted replies, and shows what it was asked.

```python
async def test_it_looks_up_the_price():
    model = FakeModel([tool_call("price", item="rye"), "Rye is 3 €."])
    async with AgentTester(Bakery, model=model) as t:
        assert await t.say("What is rye?") == ["Rye is 3 €."]
    assert model.requests[1].tool_results == ["3"]
```
"""

from __future__ import annotations

import asyncio
import inspect
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from .model.stand_in import StandInAnswer, encode_event, install_stand_in
from .options import Endpoint
from .prompts import content_pictures, content_texts

if TYPE_CHECKING:
    import openai

_PATH = "/chat/completions"
_SHOWN_CHARACTERS = 200

Interruption: TypeAlias = Literal["timeout", "unreachable", "broken"]
"""A failure without an HTTP status: silence, no connection, or a connection that breaks in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class FakeToolCall:
    """A call of a tool. `arguments` is the JSON that the model sends, or its attempt at it."""

    name: str
    arguments: str

    def __str__(self) -> str:
        return f"tool_call({self.name!r}, {self.arguments!r})"


@dataclass(frozen=True, slots=True)
class FakeReply:
    """One completion: pieces of text, then calls of tools."""

    pieces: tuple[str, ...] = ()
    calls: tuple[FakeToolCall, ...] = ()
    reasoning: tuple[str, ...] = ()
    finish_reason: str = ""
    """The reason as the server sends it. By default "tool_calls" or "stop"."""
    tokens: tuple[int, int] | None = None
    """The tokens of the request and of the completion, as the server counts them. None if it sends no count."""

    def __str__(self) -> str:
        texts = [repr("".join(self.pieces))] if self.pieces or not self.calls else []
        return " and ".join([*texts, *map(str, self.calls)])


@dataclass(frozen=True, slots=True)
class FakeFailure:
    """A request that fails: with an HTTP status, or by an interruption after some pieces of text."""

    problem: int | Interruption
    after: tuple[str, ...] = ()
    retry_after_s: float | None = None
    code: str = ""

    def __str__(self) -> str:
        return f"error({self.problem!r})"


def tool_call(name: str, raw: str | None = None, /, **arguments: Any) -> FakeToolCall:
    """Call a tool with these arguments, or with `raw` as its arguments: any text, such as JSON that is cut off."""
    if raw is not None and arguments:
        raise TypeError("tool_call takes its arguments as one text or by name, not both")
    return FakeToolCall(name, json.dumps(arguments) if raw is None else raw)


def stream(
    *pieces: str,
    calls: Sequence[FakeToolCall] = (),
    reasoning: Sequence[str] = (),
    finish_reason: str = "",
    tokens: tuple[int, int] | None = None,
) -> FakeReply:
    """Reply in pieces.

    Parameters:
        pieces: The pieces of the text.
        calls: Calls of tools after the text.
        reasoning: The pieces of the reasoning, which come before the text.
        finish_reason: Such as "length" for a text that is cut off, or "content_filter".
        tokens: The tokens of the request and of the completion, for budgets. By default the agent estimates them.
    """
    return FakeReply(pieces, tuple(calls), tuple(reasoning), finish_reason, tokens)


def error(
    problem: int | Interruption, *, after: Sequence[str] = (), retry_after_s: float | None = None, code: str = ""
) -> FakeFailure:
    """Fail.

    Parameters:
        problem: An HTTP status from 400 to 599, such as 429 for a limit of requests or 401 for a refused key. Or "timeout":
            the server sends nothing more. "unreachable": it refuses the connection. "broken": the answer breaks off.
        after: The pieces of text before a "timeout", or before an answer is "broken".
        retry_after_s: The seconds of the header Retry-After, with a status.
        code: The code of the error, with a status, such as "insufficient_quota" or "context_length_exceeded".
    """
    if isinstance(problem, int):
        if not 400 <= problem <= 599:
            raise ValueError(f"error({problem}): the status of an error is 400 to 599")
        if after:
            raise ValueError(f'error({problem}): a status comes before any text; write error("broken", after=[…])')
    elif problem not in get_args(Interruption):
        raise ValueError(f"error({problem!r}): write a status, or one of {', '.join(get_args(Interruption))}")
    elif retry_after_s is not None or code:
        raise ValueError(f"error({problem!r}): retry_after_s and code belong to a status")
    elif after and problem == "unreachable":
        raise ValueError('error("unreachable"): an unreachable server sends no text; write error("broken", after=[…])')
    return FakeFailure(problem, tuple(after), retry_after_s, code)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to the model, as plain values."""

    agent: str
    """The JID of the agent that asked."""
    model: str
    messages: list[dict[str, Any]]
    """The messages, as on the wire: each with `role` and `content`, which is a list of parts in a message with pictures."""
    tools: dict[str, dict[str, Any]]
    """The tools by name: `description`, and `parameters` as a JSON Schema."""
    options: dict[str, Any]
    """All other fields: temperature, tool_choice, response_format, …"""

    @property
    def prompt(self) -> str:
        """The texts of all system messages."""
        return "\n\n".join(self._texts("system"))

    @property
    def question(self) -> str:
        """The text of the last message of the user's role."""
        return next(reversed(self._texts("user")), "")

    @property
    def pictures(self) -> list[bytes]:
        """The pictures in the messages, oldest first."""
        links = [link for message in self.messages for link in content_pictures(message.get("content"))]
        return [b64decode(link.partition(",")[2]) for link in links]

    @property
    def tool_results(self) -> list[str]:
        """The results of the tools that were called since the question."""
        roles = [message["role"] for message in self.messages]
        start = len(roles) - roles[::-1].index("user") if "user" in roles else 0
        return [message["content"] for message in self.messages[start:] if message["role"] == "tool"]

    def _texts(self, role: str) -> list[str]:
        return ["\n\n".join(content_texts(message.get("content"))) for message in self.messages if message["role"] == role]

    @classmethod
    def read(cls, agent: str, body: Mapping[str, Any]) -> ModelRequest:
        """Read the body of a request for a chat completion."""
        rest = dict(body)
        functions = [tool["function"] for tool in rest.pop("tools", None) or ()]
        tools = {function["name"]: {key: function[key] for key in function if key != "name"} for function in functions}
        return cls(agent, rest.pop("model", ""), rest.pop("messages", []), tools, rest)


FixedReply: TypeAlias = str | FakeToolCall | FakeReply | FakeFailure | Sequence[str | FakeToolCall]
"""A text, a call of a tool, a list of calls that are made at once, `stream(…)` or `error(…)`."""
ReplyFunction: TypeAlias = Callable[[ModelRequest], FixedReply | Awaitable[FixedReply]]
"""A function of the request, sync or async, that returns a reply."""
Reply: TypeAlias = FixedReply | ReplyFunction
"""A reply of a FakeModel."""


class FakeModel:
    """A language model for tests, without a network and without a key.

    It replaces the server of the model. The client, the agent's loop, its tools, guardrails, budgets and memory are real.

    Parameters:
        replies: The replies in the order of the requests, or a function that replies to each request. A reply is

            - a text,
            - `tool_call(name, …)`, or a list of them for several calls at once,
            - `stream(…)`: a text in pieces,
            - `error(…)`: a failure,
            - a function of the ModelRequest that returns one of these.

    A request without a reply, a reply that is left over and an error of a function are an AssertionError or that error. The
    AgentTester raises it where it is noticed: from a call that waits for an answer, or at its end.
    """

    def __init__(self, replies: Iterable[Reply] | ReplyFunction) -> None:
        self.requests: list[ModelRequest] = []
        """The requests so far. An attempt after a failure is a request of its own."""
        self.pauses: list[float] = []
        """Seconds that agents had to wait before further attempts. Nothing waits for them."""
        self._function = replies if callable(replies) else None
        if isinstance(replies, str):
            raise TypeError(f"FakeModel takes a list of replies: FakeModel([{replies!r}])")
        self._replies: list[Reply] = [] if callable(replies) else list(replies)
        for number, reply in enumerate(self._replies, 1):
            if not callable(reply):
                _normalise(reply, f"reply {number}")
        self._reply_count = len(self._replies)
        self._problems: list[Exception] = []

    @property
    def replies_left(self) -> int:
        """The number of replies that no request has had yet."""
        return len(self._replies)

    def install(self, agent: str) -> AbstractContextManager[None]:
        """Return a context in which each LLMAgent that is built asks this model; `agent` is the JID that requests show."""
        return install_stand_in(_FakeServer(self, agent))

    def openai_client(self, agent: str = "") -> openai.AsyncOpenAI:
        """Return a client of the package openai that asks this model, for an agent that takes one as a parameter."""
        from .model.client import ModelClient

        client: openai.AsyncOpenAI = ModelClient(Endpoint(), _FakeServer(self, agent)).open()
        return client

    def raise_problem(self) -> None:
        """Raise the first problem that no call has raised yet, if there is one."""
        problems, self._problems = self._problems, []
        if problems:
            raise problems[0]

    def check(self) -> None:
        """Raise the first problem, or an AssertionError if a reply is left over."""
        self.raise_problem()
        if self._replies:
            first = self._replies[0]
            count = f"{len(self._replies)} of {self._reply_count} replies"
            number = len(self.requests)
            asked = f"the last was {_describe(self.requests[-1], number)}" if self.requests else "the model received no request"
            raise AssertionError(f"FakeModel: {count} not used, first {_describe_reply(first)}; {asked}")

    async def reply(self, request: ModelRequest) -> FakeReply | FakeFailure:
        """Return the reply to a request. What goes wrong is a problem, and an error 400."""
        self.requests.append(request)
        try:
            return await self._choose(request)
        except Exception as problem:  # noqa: BLE001 - a function is code of the test; its error is raised there
            return self.fail(problem)

    def fail(self, problem: Exception) -> FakeFailure:
        """Keep a problem for `raise_problem`, and return an error that ends the turn."""
        self._problems.append(problem)
        return FakeFailure(400)

    async def _choose(self, request: ModelRequest) -> FakeReply | FakeFailure:
        number = len(self.requests)
        if self._function is not None:
            reply: Any = self._function
        elif self._replies:
            reply = self._replies.pop(0)
        else:
            given = f"{self._reply_count} {'reply was' if self._reply_count == 1 else 'replies were'} given"
            raise AssertionError(f"FakeModel: no reply for {_describe(request, number)}; {given}")
        if callable(reply):
            reply = reply(request)
            if inspect.isawaitable(reply):
                reply = await reply
        return _normalise(reply, f"the reply to request {number}")


def _normalise(reply: Any, place: str) -> FakeReply | FakeFailure:
    parts = [reply] if isinstance(reply, str | FakeToolCall) else reply
    if isinstance(parts, FakeReply | FakeFailure):
        return parts
    if isinstance(parts, list | tuple) and all(isinstance(part, str | FakeToolCall) for part in parts):
        pieces = tuple(part for part in parts if isinstance(part, str))
        return FakeReply(pieces, tuple(part for part in parts if isinstance(part, FakeToolCall)))
    raise TypeError(f"FakeModel: {place} is {reply!r}; a reply is a text, tool_call(…), a list of them, stream(…) or error(…)")


def _describe_reply(reply: Reply) -> str:
    if callable(reply):
        return f"the function {getattr(reply, '__name__', repr(reply))}"
    return _shorten(str(_normalise(reply, "")))


def _describe(request: ModelRequest, number: int) -> str:
    """Describe a request in one line: who asked, and what came last."""
    asker = f" of {request.agent}" if request.agent else ""
    last = request.messages[-1] if request.messages else {}
    return f"request {number}{asker}: {last.get('role', 'no messages')} {_shorten(repr(_describe_content(last)))}"


def _describe_content(message: Mapping[str, Any]) -> str:
    count = len(content_pictures(message.get("content")))
    pictures = [f"[{count} picture{'' if count == 1 else 's'}]"] if count else []
    return " ".join([*content_texts(message.get("content")), *pictures])


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


# On the wire


@dataclass(frozen=True)
class _FakeServer:
    """A FakeModel as the server that one agent asks."""

    fake: FakeModel
    agent: str
    url: str = "http://fake-model.invalid/v1"
    model: str = "fake-model"

    async def answer(self, path: str, body: dict[str, Any]) -> StandInAnswer:
        """Answer with the next reply."""
        if not path.endswith(_PATH):
            problem = f"FakeModel: {self.agent} asks for {path}; it answers {_PATH} only"
            return _encode_status(self.fake.fail(AssertionError(problem)), 404)
        reply = await self.fake.reply(ModelRequest.read(self.agent, body))
        if isinstance(reply, FakeFailure):
            if isinstance(reply.problem, int):
                return _encode_status(reply, reply.problem)
            if reply.problem == "unreachable":
                raise ConnectionRefusedError("the server is away")
            if reply.problem == "timeout" and not reply.after:
                raise TimeoutError("no answer")
        if body.get("stream"):
            return StandInAnswer(_stream(body, reply), headers={"Content-Type": "text/event-stream; charset=utf-8"})
        return StandInAnswer(_send_whole(body, reply), headers={"Content-Type": "application/json"})

    async def pause(self, seconds: float) -> None:
        """Note the seconds, and go on at once."""
        self.fake.pauses.append(seconds)


def _encode_status(failure: FakeFailure, status: int) -> StandInAnswer:
    headers = {"Content-Type": "application/json"}
    if failure.retry_after_s is not None:
        headers["Retry-After"] = f"{failure.retry_after_s:.15g}"
    error_fields = {"message": "told to fail", "type": "fake", "code": failure.code or None}
    return StandInAnswer(_yield_json({"error": error_fields}), status, headers)


async def _yield_json(value: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    yield json.dumps(value).encode()


async def _stream(body: Mapping[str, Any], reply: FakeReply | FakeFailure) -> AsyncGenerator[bytes, None]:
    head = {"id": "fake", "object": "chat.completion.chunk", "created": 0, "model": body.get("model", "")}
    for choice in _build_choices(reply):
        yield encode_event({**head, "choices": [{"index": 0, "finish_reason": None, **choice}]})
        await asyncio.sleep(0)  # what has come is passed on before the next piece
    if isinstance(reply, FakeFailure):
        raise _interrupt(reply)
    if reply.tokens is not None:
        yield encode_event({**head, "choices": [], "usage": _count(reply.tokens)})
    yield encode_event(None)


def _build_choices(reply: FakeReply | FakeFailure) -> Iterator[dict[str, Any]]:
    yield {"delta": {"role": "assistant", "content": ""}}
    if isinstance(reply, FakeFailure):
        yield from ({"delta": {"content": piece}} for piece in reply.after)
        return
    yield from ({"delta": {"reasoning_content": piece}} for piece in reply.reasoning)
    yield from ({"delta": {"content": piece}} for piece in reply.pieces)
    for index, call in enumerate(_encode_calls(reply)):
        function = call["function"]
        yield {"delta": {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}}
        yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}}
    yield {"delta": {}, "finish_reason": _finish_reason(reply)}


async def _send_whole(body: Mapping[str, Any], reply: FakeReply | FakeFailure) -> AsyncGenerator[bytes, None]:
    if isinstance(reply, FakeFailure):
        raise _interrupt(reply)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.pieces) or None}
    if reply.reasoning:
        message["reasoning_content"] = "".join(reply.reasoning)
    if reply.calls:
        message["tool_calls"] = _encode_calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
    completion: dict[str, Any] = {"id": "fake", "object": "chat.completion", "created": 0, "model": body.get("model", "")}
    completion["choices"] = [choice]
    if reply.tokens is not None:
        completion["usage"] = _count(reply.tokens)
    yield json.dumps(completion).encode()


def _encode_calls(reply: FakeReply) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{number}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(reply.calls)
    ]


def _finish_reason(reply: FakeReply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _count(tokens: tuple[int, int]) -> dict[str, int]:
    prompt, completion = tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _interrupt(failure: FakeFailure) -> OSError:
    """Return the error of a stream that falls silent or breaks off. Both are OSErrors in Python."""
    return TimeoutError("nothing more comes") if failure.problem == "timeout" else ConnectionResetError("broken off")
