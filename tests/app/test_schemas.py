"""A text that no check against a schema would come to an end with: one agent refuses it, and the others answer throughout."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from tests.contracts.test_json_schema import MAIL, NO_MAIL
from tests.support.chat_completions import ChatCompletionsServer, text_answer
from tests.support.hosting import run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

_TEXTS = 2


async def test_another_agent_answers_while_texts_are_checked_against_a_pattern_that_backtracks(
    prosody: XmppServer, tmp_path: Path
) -> None:
    guardrail = {"json_schema": {"properties": {"mail": {"pattern": MAIL}}}, "message": "No address."}
    async with (
        ChatCompletionsServer(text_answer("Hello!")) as model,
        StockClient(*await prosody.account(), prosody) as mallory,
        StockClient(*await prosody.account(), prosody) as bob,
        run_platform(
            prosody,
            tmp_path,
            agent="spade_coreason.agents.assistant:AssistantAgent",
            options={"model": "small", "endpoint": {"url": model.url}, "input_guardrails": [guardrail]},
            other_agents=1,
        ) as (platform, jid),
    ):
        for number in range(_TEXTS):
            mallory.send(json.dumps({"mail": f"{NO_MAIL}{number}"}), jid, thread=f"thread {number}")
        refused = asyncio.create_task(_receive(mallory, _TEXTS))
        answered = 0
        while not refused.done():
            assert await bob.ask('{"mail": "bob@example.com"}', platform.other_agents[0]) == "Hello!"
            answered += 1
        assert await refused == ["No address."] * _TEXTS
        assert answered > 1
        assert await platform.signal(signal.SIGTERM) == 0


async def _receive(client: StockClient, count: int) -> list[str]:
    async with asyncio.timeout(TIMEOUT_S):
        return [str((await client.answer())["body"]) for _ in range(count)]
