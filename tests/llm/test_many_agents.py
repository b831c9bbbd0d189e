"""Many agents and conversations at once: nothing is shared wrongly, and connections are bounded."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from spade_coreason import AgentTester
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import (
    ChatCompletionsServer,
    CompletionStream,
    error_answer,
    hanging_answer,
    message_contents,
    text_answer,
)
from tests.support.wait import TIMEOUT_S, eventually


async def test_a_hundred_conversations_at_once_use_as_many_connections_as_turns_may_run() -> None:
    connections_seen: list[int] = []

    async def slow(wire: CompletionStream) -> None:
        await wire.delta(content=f"Dear {message_contents(wire.body, 'user')[-1]}")
        connections_seen.append(server.connections)
        await asyncio.sleep(0.01)
        await wire.done()

    async with run_helper_agent(slow, policy=Policy(limits=PlatformLimits(concurrency=8))) as (server, t):
        names = [f"person{number}" for number in range(100)]
        answers = await asyncio.gather(*(t.ask(name, user=f"{name}@localhost", timeout=TIMEOUT_S) for name in names))
    assert [answer.text for answer in answers] == [f"Dear {name}" for name in names]
    assert 1 < max(connections_seen) <= 8


async def test_agents_of_one_process_have_their_own_model_key_tools_and_memory() -> None:
    def make_factory(server: ChatCompletionsServer, name: str) -> Any:
        async def whoami() -> str:
            """Says who it is."""
            return name

        def make(manifest: Any, memory: Any) -> LLMAgent:
            endpoint = {"url": server.url, "api_key": f"sk-{name}"}
            return LLMAgent(manifest, memory, model=name, endpoint=endpoint, tools=[whoami])

        return make

    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(ChatCompletionsServer(text_answer(f"I am {name}"))) for name in ("one", "two")
        }
        jids = {name: f"{name}@localhost" for name in servers}
        factories = {name: make_factory(server, name) for name, server in servers.items()}
        t = await stack.enter_async_context(
            AgentTester(factories["one"], jid=jids["one"], peers={jids["two"]: factories["two"]})
        )
        questions = [t.ask(f"to {name}", to=jids[name]) for name in servers for _ in range(5)]
        answers = await asyncio.gather(*questions)
        assert [answer.text for answer in answers] == [f"I am {name}" for name in servers for _ in range(5)]
        one = t.built_agents[jids["one"]]
        assert isinstance(one, LLMAgent)
        await one.shutdown()  # of one, and the other goes on
        assert (await t.ask("again", to=jids["two"])).text == "I am two"
        assert (await t.ask("again", to=jids["one"])).text == "I am one"
    for name, server in servers.items():
        assert {asked["model"] for asked in server.requests} == {name}
        assert set(server.keys) == {f"Bearer sk-{name}"}
        assert all(f"to {other}" not in str(server.requests) for other in servers if other != name)


async def test_an_agent_on_demand_closes_its_connections_and_opens_them_again() -> None:
    policy = Policy(rules=Rules(lifecycle="on_demand", idle_shutdown_s=0.05))
    async with run_helper_agent(text_answer("Bye.<END>"), policy=policy, termination_markers=["<END>"]) as (server, t):
        for number in range(3):
            assert (await t.ask(f"hi {number}")).text == "Bye."
            await eventually(lambda: server.connections == 0)
    assert len(server.requests) == 3


async def test_cancelling_does_not_wait_for_the_next_attempt() -> None:
    async with run_helper_agent(error_answer(503), endpoint={"first_pause_s": 60, "longest_pause_s": 100}) as (server, t):
        t.send_stanza("<message to='agent@localhost' type='chat' id='q1'><body>a story</body></message>")
        await eventually(lambda: len(server.requests) == 1 and server.open_count == 0)
        assert await t.say("/cancel") != []
        server.answers[:] = [text_answer("yes")]
        assert await t.say("hi") == ["yes"]
    assert len(server.requests) == 2


async def test_a_retry_after_date_is_respected() -> None:
    def http_date(seconds: float) -> str:
        return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)

    async with run_helper_agent(
        error_answer(429, **{"Retry-After": http_date(-9)}), text_answer("yes"), endpoint={"first_pause_s": 60}
    ) as (
        server,
        t,
    ):
        assert (await t.ask("hi")).text == "yes"  # at once
        server.answers[:] = [error_answer(429, **{"Retry-After": http_date(600)})]
        with pytest.raises(PeerFailedError, match=r"My language model is busy \(429\)\. Ask again in 10 min\."):
            await t.ask("hi")
    assert len(server.requests) == 3


async def test_the_fallback_answers_if_the_model_hangs() -> None:
    async with run_helper_agent(
        hanging_answer(), text_answer("yes"), fallback_model="spare", endpoint={"tries": 1, "timeout_s": 1}
    ) as (
        server,
        t,
    ):
        assert (await t.ask("hi")).text == "yes"
        await eventually(lambda: server.open_count == 0)
    assert [asked["model"] for asked in server.requests] == ["small", "spare"]
