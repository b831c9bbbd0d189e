"""A model server for demonstrations: OpenAI's chat completions on the wire, and behind it a script that says that it is one.

`python -m spade_coreason.llm.scripted [PORT]` serves it until Ctrl-C, and prints the variables for an agent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from ..domain.text import extract_keywords, keyword_coverage, split_words

MODEL_NAME = "script"
REMEDY = "For a real one set OPENAI_API_KEY (or OPENAI_BASE_URL) and OPENAI_MODEL."
NOTICE = f"(I am a script that plays a language model. {REMEDY})"
REMEMBER_TOOL = "remember_interaction_info"
TIME_TOOL = "current_time"

_MEMORY_HEADING = "Previous interactions:\n- "
_REMEMBER_PREFIX = re.compile(r"^\s*(please )?remember( that)?\b[\s:,]*", re.IGNORECASE)
_PIECE = re.compile(r"\S+\s*")
_FRAGMENT_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A text of the script, or the tool that it calls."""

    text: str = ""
    tool: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


def choose_reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> ScriptedReply:
    """Remember a statement by a tool; answer a question from the facts in the system message."""
    reply = _choose_plain_reply(messages, tools)
    if not reply.tool and not any(message["role"] == "assistant" and message.get("content") for message in messages):
        return ScriptedReply(f"{reply.text}\n\n{NOTICE}")
    return reply


def _choose_plain_reply(messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> ScriptedReply:
    if messages[-1]["role"] == "tool":
        return ScriptedReply(_render_tool_result(messages))
    question = str(messages[-1].get("content") or "").strip()
    if not question.endswith("?"):
        information = _REMEMBER_PREFIX.sub("", question)
        if information and REMEMBER_TOOL in tools:
            return ScriptedReply(tool=REMEMBER_TOOL, arguments={"information": information})
        return ScriptedReply("Tell me something that I should remember.")
    keywords = extract_keywords(question)
    if "time" in keywords and TIME_TOOL in tools:
        return ScriptedReply(tool=TIME_TOOL)
    best = max(
        _find_remembered_facts(messages), key=lambda fact: keyword_coverage(keywords, " ".join(split_words(fact))), default=""
    )
    if best and keyword_coverage(keywords, " ".join(split_words(best))):
        return ScriptedReply(f'You told me: "{best}"')
    return ScriptedReply("I know only what you tell me, and of that you told me nothing.")


def _render_tool_result(messages: Sequence[Mapping[str, Any]]) -> str:
    """Render the result of a tool as an answer."""
    result = str(messages[-1]["content"])
    function = next(message["tool_calls"][0]["function"] for message in reversed(messages) if message.get("tool_calls"))
    if result.startswith("error:"):
        return f"My tool {function['name']} does not work: {result.removeprefix('error:').strip()}"
    if function["name"] == REMEMBER_TOOL:
        return f'I will remember: "{json.loads(function["arguments"])["information"]}"'
    return f"It is {result}."


def _find_remembered_facts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    texts = [str(message["content"]) for message in messages if message["role"] == "system"]
    return [
        fact for text in texts if text.startswith(_MEMORY_HEADING) for fact in text.removeprefix(_MEMORY_HEADING).split("\n- ")
    ]


class ScriptedModel:
    """Serve the script: `async with ScriptedModel() as model: …` listens at `model.url`, on loopback.

    It speaks `/v1/chat/completions` with `stream: true`, and nothing else. `delay_s` is the seconds between two words. `port` 0
    means a free port.
    """

    def __init__(self, delay_s: float = 0.02, port: int = 0) -> None:
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
        reply = choose_reply(body["messages"], [tool["function"]["name"] for tool in body.get("tools", ())])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for choice in _build_choices(reply):
            chunk = {"id": "script", "object": "chat.completion.chunk", "created": 0, "model": MODEL_NAME, "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(self._delay_s)
        await response.write(b"data: [DONE]\n\n")
        return response


def _build_choices(reply: ScriptedReply) -> Iterator[dict[str, Any]]:
    yield _build_choice({"role": "assistant", "content": None if reply.tool else ""})
    if reply.tool:
        function = {"name": reply.tool, "arguments": ""}
        yield _build_choice({"tool_calls": [{"index": 0, "id": "call_script", "type": "function", "function": function}]})
        arguments = json.dumps(dict(reply.arguments))
        for start in range(0, len(arguments), _FRAGMENT_CHARACTERS):
            fragment = {"arguments": arguments[start : start + _FRAGMENT_CHARACTERS]}
            yield _build_choice({"tool_calls": [{"index": 0, "function": fragment}]})
    for piece in _PIECE.findall(reply.text):
        yield _build_choice({"content": piece})
    yield _build_choice({}, "tool_calls" if reply.tool else "stop")


def _build_choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


async def _serve(port: int) -> None:
    async with ScriptedModel(port=port) as model:
        print("A script plays a language model until Ctrl-C. For an agent in another terminal:", file=sys.stderr)
        print(f"export OPENAI_BASE_URL={model.url} OPENAI_MODEL={MODEL_NAME}", flush=True)
        await asyncio.Event().wait()


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number up to 65535, not {text!r}")
    return int(text)


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m spade_coreason.llm.scripted",
        description="Plays a language model with OpenAI's API on 127.0.0.1 until Ctrl-C; prints the variables for an agent.",
    )
    parser.add_argument("port", metavar="PORT", nargs="?", type=_parse_port, help="default: one that is free")
    port = parser.parse_args().port or 0
    try:
        asyncio.run(_serve(port))
    except OSError as error:
        sys.exit(f"error: port {port}: {os.strerror(error.errno or 0)}; name another one")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _main()
