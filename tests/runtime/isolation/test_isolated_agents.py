"""Agents in a process of their own do the same as in the platform's process."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, AgentTester, Response, Session, agent
from spade_coreason.contracts import Interceptor
from spade_coreason.contracts.interceptors import Next, ResponseWrapper
from spade_coreason.exceptions import ConfigError, PeerError
from spade_coreason.testing import Isolation, Policy
from tests.runtime.isolation.scripted_agent import ScriptedAgent
from tests.support.databases import execute
from tests.support.errors import ExpectedErrors
from tests.support.isolation import WARM_ISOLATION
from tests.support.llm_agent import stored_turns
from tests.support.processes import is_running
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

SCRIPTS = [
    "blocks",
    "streams",
    "wrong calls",
    "session",
    "steps",
    "request",
    "events",
    "memory",
    "knowledge",
    "peers",
    "files",
    "error",
    "end",
    "initiative",
    "return",
    "seen",
]
FAULTS = ["raise", "exit", "interrupt", "cancel itself", "base exception", "timeout", "group"]
VOLATILE = {"id", "stream_id", "interaction_id", "timestamp", "time", "conversation_id", "duration_ms", "request_id"}
VOLATILE |= {"root_request_id", "previous_hash", "integrity_hash", "incident"}


@agent
async def peer(request: AgentRequest, session: Session, response: Response) -> None:
    """Answer, or fail."""
    if request.payload["query"] == "fail":
        raise ValueError("a secret")
    metadata = request.metadata
    await response.markdown(
        f"{request.payload['query']} after {metadata.get('hops', 0)} hops for {metadata.get('root_sender')}"
    )


class PassOn(Interceptor):
    """An interceptor that wraps the response, and refuses one text."""

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        await next(request, session, RefusingResponse(response))


class RefusingResponse(ResponseWrapper):
    """A response that does not send "hello"."""

    async def markdown(self, content: str) -> None:
        if content == "refused":
            raise PermissionError("not this word")
        await super().markdown(content)


def normalise(value: Any) -> Any:
    """Replace what differs from one run to the next."""
    if isinstance(value, dict):
        return {key: "…" if key in VOLATILE else normalise(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalise(item) for item in value]
    return re.sub(r"incident [0-9a-f]{8}|[0-9a-f]{8}-[0-9a-f-]{27}", "…", value) if isinstance(value, str) else value


async def play(
    script: str, isolation: Isolation | None, interceptors: tuple[type[Interceptor], ...] = (), database: str | None = None
) -> Any:
    """Play a script twice as a program and once as a person. Return all that is sent and stored."""
    sent: list[Any] = []
    async with AgentTester(
        ScriptedAgent,
        peers={"peer": peer},
        options={"greeting": "good day "},
        isolation=isolation,
        interceptors=interceptors,
        database=database,
    ) as t:
        for _ in range(2):
            try:
                async for event in t.stream(script, user="program@localhost", thread="p"):
                    sent.append([event.type, dict(event.data)])
            except PeerError as error:
                sent.append(f"{type(error).__name__}: {error}")
        sent.append(await t.say(script, user="person@localhost"))
        await t.settled()
        stored = [await stored_turns(t, user) for user in ("program@localhost", "person@localhost")]
        variables = [
            await t.runners[t.jid].repository.load_variables("person", user)
            for user in ("program@localhost", "person@localhost")
        ]
        return normalise(json.loads(json.dumps([sent, stored, variables], default=str)))


@pytest.mark.parametrize("script", SCRIPTS)
async def test_an_agent_does_the_same_in_its_own_process(script: str, expected_errors: ExpectedErrors) -> None:
    if script == "peers":
        expected_errors("peer@localhost: incident")
    assert await play(script, WARM_ISOLATION) == await play(script, None)


async def test_the_interaction_memory_of_a_process_is_in_the_table_of_postgresql(postgres: Postgres) -> None:
    url = postgres.url()
    assert await play("memory", WARM_ISOLATION, database=url) == await play("memory", None)
    assert len(execute(url, "SELECT id FROM interaction_memory")) == 6  # two in each of three turns


class EagerAgent:
    """Uses its memory in the constructor, where the platform waits for it."""

    manifest = AgentDefinition.simple("eager")

    def __init__(self, memory: AgentInteractionMemory) -> None:
        memory.get_information("c")


async def test_a_process_that_needs_its_memory_in_the_constructor_is_told_where_it_may(postgres: Postgres) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be used here: the platform cannot answer .*; use it in startup\(\) or later"
    ):
        async with AgentTester(EagerAgent, isolation=WARM_ISOLATION, database=postgres.url()):
            pass


@pytest.mark.parametrize("script", ["blocks", "streams", "wrong calls", "session", "steps", "events", "initiative"])
async def test_an_agent_behind_an_interceptor_does_the_same_in_its_own_process(script: str) -> None:
    assert await play(script, WARM_ISOLATION, (PassOn,)) == await play(script, None, (PassOn,))


async def test_what_an_interceptor_refuses_is_refused_in_the_agents_code(expected_errors: ExpectedErrors) -> None:
    expected_errors("agent@localhost: incident")
    assert await play("refused", WARM_ISOLATION, (PassOn,)) == (sent := await play("refused", None, (PassOn,)))
    assert "PermissionError: not this word" in json.dumps(sent)


@pytest.mark.parametrize("script", FAULTS)
async def test_an_agent_fails_in_its_own_process_as_it_does_here(
    script: str, expected_errors: ExpectedErrors, caplog: pytest.LogCaptureFixture
) -> None:
    expected_errors("agent@localhost: incident")
    assert await play(script, WARM_ISOLATION) == await play(script, None)
    if script == "raise":
        assert 'raise ZeroDivisionError("a secret")' in caplog.text
        assert caplog.text.count("in play_raise") == 6


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_the_reply_of_a_job_comes_from_its_process(isolation: Isolation | None) -> None:
    async with AgentTester(ScriptedAgent, isolation=isolation) as t:
        t.send("job")
        assert (await t.message()).text == "done: bread"


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_a_method_that_runs_at_times_runs_in_its_process(isolation: Isolation | None) -> None:
    async with AgentTester(ScriptedAgent, isolation=isolation) as t:
        scheduler = t.runners[t.jid].initiative.scheduler
        [schedule] = await scheduler.find_all(t.jid)
        assert (schedule.kind, schedule.cron, schedule.zone) == ("every", "0 6 * * *", "Europe/Berlin")
        for _ in range(2):
            assert await scheduler.run_now(schedule.id)
            await t.settled()
        assert (await t.ask("seen")).data[0]["data"]["seen"][1:] == ["every_morning schedule"] * 2
        values = await t.runners[t.jid].repository.load_variables("shared", t.jid)
        assert values["mornings"] == "2"


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_commands_feedback_ends_and_lifecycle(isolation: Isolation | None, expected_errors: ExpectedErrors) -> None:
    expected_errors("agent@localhost: incident")
    async with AgentTester(ScriptedAgent, isolation=isolation) as t:
        assert await t.say("/count") == ["1 visits"]
        assert await t.say("/count 5") == ["6 visits"]
        assert await t.say("/count -1") == ["Done."]
        assert (await t.say("/count 0"))[0].startswith("Something went wrong on my side")
        assert (await t.say("/count many"))[0].startswith('step must be a number, not "many".')
        assert "count" in "".join(await t.say("/help"))
        t.send("end")
        reply = await t.message()
        t.react(reply.id, "👍")
        await t.settled()
        await t.say("late")

        async def seen() -> list[str]:
            answer = await t.ask("seen", user="other@localhost")
            values: list[str] = answer.data[0]["data"]["seen"]
            return values

        while len(values := await seen()) < 5:
            pass
        assert values[0] == "startup"
        assert sorted(values[1:]) == sorted(
            [
                values[1] if values[1].endswith("completed") else values[2],
                "{'query': 'end'} ('👍',)",
                "RuntimeError: nothing may be emitted after assist has returned",
                "RuntimeError: nothing may be stored after assist has returned",
            ]
        )


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_a_cancelled_turn_ends_in_the_agent(isolation: Isolation | None) -> None:
    async with AgentTester(ScriptedAgent, isolation=isolation) as t:
        t.send("wait")
        assert (await t.message()).text == "I wait"
        assert await t.say("/cancel") == ["Stopped."]
        assert (await t.ask("seen", user="other@localhost")).data[0]["data"]["seen"] == ["startup", "cancelled"]


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_a_stream_that_the_agent_leaves_stops_the_peer(isolation: Isolation | None) -> None:
    stopped = asyncio.Event()

    @agent
    async def endless(request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown("I begin")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with AgentTester(ScriptedAgent, peers={"peer": endless}, isolation=isolation) as t:
        assert await t.say("leave a stream") == ["I begin"]
        await asyncio.wait_for(stopped.wait(), TIMEOUT_S)


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_a_turn_that_takes_too_long_ends_in_the_agent(
    isolation: Isolation | None, expected_errors: ExpectedErrors
) -> None:
    expected_errors("assist took longer than 0.5 s")
    async with AgentTester(ScriptedAgent, isolation=isolation, policy=Policy(assist_timeout_s=0.5)) as t:
        assert (await t.say("wait"))[-1].startswith("I could not finish this within 0.5 s")
        assert (await t.ask("seen", user="other@localhost")).data[0]["data"]["seen"] == ["startup", "cancelled"]


async def test_an_agent_keeps_its_data_over_a_restart_of_the_platform() -> None:
    async with AgentTester(ScriptedAgent, isolation=WARM_ISOLATION) as t:
        assert await t.say("/count 3") == ["3 visits"]
        await t.say("memory")
        await t.restart()
        assert await t.say("/count 3") == ["6 visits"]
        assert "two" in "".join(await t.say("/memory"))


async def test_processes_end_with_the_tester() -> None:
    async with AgentTester(ScriptedAgent, isolation=WARM_ISOLATION) as t:
        pid = t.agent.process_status.pid  # type: ignore[attr-defined]
        assert is_running(pid)
    await eventually(lambda: not is_running(pid))


class HalvesAgent:
    """Streams an emoji in two halves, and ends with half of one."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("halves")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        stream = await response.create_stream()
        for piece in ("a", "\ud83d", "\ude80b", "\ud83d"):
            await stream.write(piece)


@pytest.mark.parametrize("isolation", [None, WARM_ISOLATION], ids=["here", "process"])
async def test_an_emoji_in_two_halves_arrives_whole(isolation: Isolation | None) -> None:
    async with AgentTester(HalvesAgent, isolation=isolation) as t:
        events = [event async for event in t.stream("go", user="program@localhost")]
        assert [event.data["chunk"] for event in events if event.type == "stream.chunk"] == ["a", "\N{ROCKET}b"]
        assert await t.say("go", user="person@localhost") == ["a\N{ROCKET}b"]
