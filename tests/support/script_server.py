"""The script that plays a language model behind HTTP, for pages and examples: `python -m tests.support.script_server`.

It prints the variables for an agent and serves until it is ended.
"""

from __future__ import annotations

import asyncio

from spade_coreason.llm.script import MODEL_NAME, ScriptStandIn
from tests.support.chat_completions import ChatCompletionsServer, CompletionStream


async def script_answer(stream: CompletionStream) -> None:
    """Answer as the script does."""
    answer = await ScriptStandIn().answer("", stream.body)
    async for event in answer.parts:
        await stream.raw(event.decode())


async def _serve() -> None:
    async with ChatCompletionsServer(script_answer) as server:
        print(f"OPENAI_BASE_URL={server.url} OPENAI_MODEL={MODEL_NAME}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
