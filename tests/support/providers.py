"""Servers with the shapes and the strictness of known providers, as answers of a ChatCompletionsServer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from aiohttp import web

from tests.support.chat_completions import Answer, CompletionStream, RequestBody

Check: TypeAlias = Callable[[RequestBody], "tuple[int, Any] | None"]
"""Return the status and the body of a refusal, or None for a request that is accepted."""

_MESSAGE_FIELDS = {"role", "content", "tool_calls", "name", "refusal"}


def refusal(status: int, body: Any) -> Answer:
    """Refuse a request with this body."""

    async def answer(stream: CompletionStream) -> web.Response:
        return web.json_response(body, status=status)

    return answer


def strict(check: Check, answer: Answer) -> Answer:
    """Give an answer if a check accepts the request."""

    async def checked(stream: CompletionStream) -> web.Response | None:
        refused = check(stream.body)
        return await (answer if refused is None else refusal(*refused))(stream)

    return checked


def chunks(*deltas: dict[str, Any], finish: str | None = "stop", **choice_fields: Any) -> Answer:
    """Answer with exactly these deltas, the finish reason with the last one, and `[DONE]`."""

    async def answer(stream: CompletionStream) -> None:
        for number, delta in enumerate(deltas, 1):
            is_last = number == len(deltas)
            choice = {"index": 0, "delta": delta, "finish_reason": finish if is_last else None}
            choice |= choice_fields if is_last else {}
            await stream.event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})
        await stream.raw("data: [DONE]\n\n")

    return answer


def whole(finish: str | None = "stop", **message: Any) -> Answer:
    """Answer with a whole message, for `stream: false`."""

    async def answer(stream: CompletionStream) -> web.Response:
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
        return web.json_response({"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice]})

    return answer


def call(name: str = "look", arguments: str = "{}", call_id: str = "call-1", **fields: Any) -> dict[str, Any]:
    """A call of a tool, as a delta has it whole."""
    return {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def assistant_messages(body: RequestBody, *, are_of_loop: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the assistant's messages after the last of the user, or before it, with their numbers."""
    roles = [message["role"] for message in body["messages"]]
    last_question = len(roles) - 1 - roles[::-1].index("user")
    for number, message in enumerate(body["messages"]):
        if message["role"] == "assistant" and (number > last_question) == are_of_loop:
            yield number, message


def deepseek_check(*reasonings: str) -> Check:
    """DeepSeek's thinking mode: each message of the tool loop has the reasoning that it came with, and no older one has."""

    def check(body: RequestBody) -> tuple[int, Any] | None:
        for (number, message), reasoning in zip(assistant_messages(body), reasonings, strict=True):
            if message.get("reasoning_content") != reasoning:
                return 400, _openai_error(
                    f"Missing `reasoning_content` field in the assistant message at message index {number}."
                )
        if any("reasoning_content" in message for _, message in assistant_messages(body, are_of_loop=False)):
            return 400, _openai_error("The reasoning_content is an intermediate result. Please remove the reasoning_content.")
        return None

    return check


def gemini_check(body: RequestBody) -> tuple[int, Any] | None:
    """Gemini 3: the first call of each message in the tool loop has the thought signature that it came with."""
    for _, message in assistant_messages(body):
        first = message["tool_calls"][0]
        if first.get("extra_content") != {"google": {"thought_signature": f"sig {first['id']}"}}:
            problem = "Function call is missing a thought_signature in functionCall parts."
            return 400, [{"error": {"code": 400, "message": problem, "status": "INVALID_ARGUMENT"}}]
    return None


def groq_check(body: RequestBody) -> tuple[int, Any] | None:
    """Groq: an assistant's message has no field but those of OpenAI, even one that Groq has sent."""
    for number, message in enumerate(body["messages"]):
        if message["role"] == "assistant" and (unknown := message.keys() - _MESSAGE_FIELDS):
            place = f"'messages.{number}'"
            problem = f"({place} : property '{min(unknown)}' is unsupported)"
            return 400, _openai_error(f"{place} : for 'role:assistant' the following must be satisfied[{problem}]")
    return None


def context_check(max_characters: int, status: int, error: Any) -> Check:
    """Refuse a request with more characters than these."""

    def check(body: RequestBody) -> tuple[int, Any] | None:
        characters = sum(len(message["content"] or "") for message in body["messages"])
        return (status, error) if characters > max_characters else None

    return check


def _openai_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}}
