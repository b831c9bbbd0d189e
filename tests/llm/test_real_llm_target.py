"""`make test-llm` passes with a model that does what it should, and is skipped without one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.chat_completions import (
    ChatCompletionsServer,
    CompletionStream,
    error_answer,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.wait import TIMEOUT_S

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]


async def answer_correctly(wire: CompletionStream) -> web.Response | None:
    """Answer each question of that run correctly."""
    question = message_contents(wire.body, "user")[-1]
    is_told = wire.body["messages"][-1]["role"] == "tool"
    if wire.body["model"] != "small":
        return await error_answer(404)(wire)
    if "Count" in question:
        answer = text_answer(*(f"{word} " for word in "one two three four five six seven eight nine ten".split()))
    elif "Please remember" in question and not is_told:
        answer = tool_call_answer(("remember_interaction_info", {"information": "The boat is called Marigold"}))
    elif "boat" in question:
        answer = text_answer(message_contents(wire.body, "system")[-1])
    elif "Turin" in question:
        answer = (
            text_answer(wire.body["messages"][-1]["content"]) if is_told else tool_call_answer(("code_of", {"city": "Turin"}))
        )
    else:
        answer = text_answer('{"sum": 5}')
    return await answer(wire)


async def run_real_llm_tests(**environment: str) -> str:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "tests/real_llm"]
    process = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


async def test_the_real_llm_run_passes_with_a_correct_model() -> None:
    async with ChatCompletionsServer(answer_correctly) as server:
        output = await run_real_llm_tests(OPENAI_BASE_URL=server.url, OPENAI_MODEL="small")
    assert "....." in output
    assert "skipped" not in output
    assert len(server.requests) >= 7


async def test_the_real_llm_run_is_skipped_without_a_model() -> None:
    assert "5 skipped" in await run_real_llm_tests()
