"""A Prosody with accounts, and a model with OpenAI's API. It calls the tool, and then says what the tool has said."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.docs.setups import own_prosody
from tests.support.chat_completions import ChatCompletionsServer, CompletionStream, text_answer, tool_call_answer


async def answer(stream: CompletionStream) -> None:
    """Answer a request of the shop."""
    last = stream.body["messages"][-1]
    await (text_answer(last["content"]) if last["role"] == "tool" else tool_call_answer(("refund", {"order": 7})))(stream)


async def serve(environment: Mapping[str, str]) -> None:
    """Serve until the terminal is closed."""
    closed = asyncio.Event()
    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, closed.set)
    async with ChatCompletionsServer(answer) as server:
        variables = {**environment, "OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "model"}
        print("".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()), end="", flush=True)
        await closed.wait()


if __name__ == "__main__":
    with own_prosody(Path("server").absolute(), "shop", "ada", "fred") as names:
        asyncio.run(serve(names))
