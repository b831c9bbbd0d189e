"""`make test-llm` is right: it passes at a model that does what it should, and without one it is skipped."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from aiohttp import web

from tests.support.chat_completions import (
    ChatServer,
    CompletionStream,
    error_answer,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.wait import PATIENCE_S

ROOT = Path(__file__).parents[2]


async def perfect(wire: CompletionStream) -> web.Response | None:
    """Does what the questions of that run want."""
    question = message_contents(wire.asked, "user")[-1]
    is_told = wire.asked["messages"][-1]["role"] == "tool"
    if wire.asked["model"] != "small":
        return await error_answer(404)(wire)
    if "Count" in question:
        answer = text_answer(*(f"{word} " for word in "one two three four five six seven eight nine ten".split()))
    elif "Please remember" in question and not is_told:
        answer = tool_call_answer(("remember_interaction_info", {"information": "The boat is called Marigold"}))
    elif "boat" in question:
        answer = text_answer(message_contents(wire.asked, "system")[-1])
    elif "Turin" in question:
        answer = (
            text_answer(wire.asked["messages"][-1]["content"]) if is_told else tool_call_answer(("code_of", {"city": "Turin"}))
        )
    else:
        answer = text_answer('{"sum": 5}')
    return await answer(wire)


async def real_run(**environment: str) -> str:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "tests/real_llm"]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


async def test_the_run_with_real_tokens_passes_at_a_model_that_does_right() -> None:
    async with ChatServer(perfect) as server:
        said = await real_run(OPENAI_BASE_URL=server.url, OPENAI_MODEL="small")
    assert "....." in said
    assert "skipped" not in said
    assert len(server.asked) >= 7


async def test_the_run_with_real_tokens_is_skipped_without_a_model() -> None:
    assert "5 skipped" in await real_run()
