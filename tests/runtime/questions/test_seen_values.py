"""What a turn saw before its question is what it sees after the answer; what it stores must not undo other turns."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts.authoring import VariableScope
from spade_coreason.domain.initiative.notifications import NotificationPolicy
from spade_coreason.exceptions import VariableChangedError
from spade_coreason.testing import Policy
from tests.support.errors import ExpectedErrors
from tests.support.initiative import START
from tests.support.questions import BOB, ChangingAgent, nothing_is_left

SCOPES: list[VariableScope] = ["conversation", "person", "agent"]


class Keeper(ChangingAgent):
    """An agent that stores what `set NAME SCOPE` says, and runs `work` for `go`."""

    def __init__(self, work: Any) -> None:
        super().__init__(self._assist)
        self._work = work
        self.seen: list[Any] = []

    async def _assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        command, *values = request.payload["query"].split()
        if command == "set":
            name, value, scope = values
            await session.store(name, value, scope=scope)
        elif command == "get":
            await response.markdown(str(await session.get(values[0])))
        else:
            await self._work(self, request, session, response)


async def ask(response: Response) -> None:
    await response.ask_person("Which?", choices=["red", "blue"])


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_variable_has_the_value_that_the_first_run_saw(scope: str, restarts: bool) -> None:
    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        values = [await session.get("colour"), await session.get("size", "none")]
        await ask(response)
        agent.seen.append([*values, await session.get("colour"), await session.get("later")])

    agent = Keeper(work)
    async with AgentTester(agent) as t:
        await t.say(f"set colour green {scope}")
        await t.say("go")
        for name, value in (("colour", "black"), ("size", "large"), ("later", "new")):
            await t.say(f"set {name} {value} {scope}")
        if restarts:
            await t.restart()
        assert await t.say("red") == []
        assert agent.seen == [["green", "none", "green", "new"]]
        assert await t.say("get colour") == ["black"]
        assert await nothing_is_left(t)


async def test_variables_that_the_turn_stored_itself_are_stored_with_its_end() -> None:
    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        count = await session.get("count", 0)
        await session.store("count", count + 1)
        await ask(response)
        await session.store("count", await session.get("count") + 1)
        await ask(response)
        await session.store("count", await session.get("count") + 1)

    async with AgentTester(Keeper(work)) as t:
        await t.say("go")
        assert await t.say("get count") == ["None"]
        await t.say("red")
        assert await t.say("get count") == ["None"]
        await t.say("blue")
        assert await t.say("get count") == ["3"]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("when", ["read before", "stored before", "read before, stored before"])
async def test_a_store_over_a_variable_that_another_turn_changed_fails_the_turn(
    scope: VariableScope, catches: bool, when: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("VariableChangedError", "'colour'")

    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        try:
            if "read" in when:
                await session.get("colour")
            if "stored" in when:
                await session.store("colour", "mine", scope=scope)
            await ask(response)
            await session.store("colour", "mine", scope=scope)
        except VariableChangedError:
            if not catches:
                raise
            with suppress(Exception):
                await ask(response)
            await response.markdown("all is well")
        await session.store("other", "mine", scope=scope)

    async with AgentTester(Keeper(work)) as t:
        await t.say("go")
        await t.say(f"set colour theirs {scope}")
        texts = await t.say("red")
        assert texts[-1].startswith("Something went wrong on my side (incident ")
        assert await t.say("get colour") == ["theirs"]
        assert await t.say("get other") == ["None"]
        assert await nothing_is_left(t)


async def test_a_store_over_a_variable_that_the_first_run_did_not_look_at_is_stored() -> None:
    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        await ask(response)
        await session.store("colour", "mine", scope="conversation")

    async with AgentTester(Keeper(work)) as t:
        await t.say("go")
        await t.say("set colour theirs conversation")
        assert await t.say("red") == []
        assert await t.say("get colour") == ["mine"]


async def test_another_person_changes_a_variable_of_the_agent(expected_errors: ExpectedErrors) -> None:
    expected_errors("VariableChangedError")

    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        count = await session.get("stock", "10")
        await ask(response)
        await session.store("stock", int(count) - 1, scope="agent")

    async with AgentTester(Keeper(work)) as t:
        await t.say("go")
        await t.say("set stock 5 agent", user=BOB)
        [text] = await t.say("red")
        assert text.startswith("Something went wrong")
        assert await t.say("get stock", user=BOB) == ["5"]


async def test_the_history_ends_where_it_ended_and_the_window_is_current() -> None:
    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        history = [turn.input["query"] for turn in await session.history(10) if isinstance(turn.input, dict)]
        offset = [turn.input["query"] for turn in await session.history(1, 1) if isinstance(turn.input, dict)]
        window = [turn.input["query"] for turn in await session.window() if isinstance(turn.input, dict)]
        found = await session.recall("green", threshold=0.1)
        agent.seen.append((history, offset, window, len(found)))
        await ask(response)

    agent = Keeper(work)
    async with AgentTester(agent) as t:
        await t.say("set a green conversation")
        await t.say("set b green conversation")
        await t.say("go")
        await t.say("set c green conversation")
        await t.restart()
        await t.say("red")
        first, second = agent.seen
        assert first[0] == second[0] == ["set a green conversation", "set b green conversation"]
        assert first[1] == second[1] == ["set a green conversation"]
        assert first[3] == second[3] == 2
        assert len(first[2]) == 2
        assert second[2][-1] == "set c green conversation"


async def test_the_request_is_the_same_in_every_run() -> None:
    async def work(agent: Keeper, request: AgentRequest, session: Session, response: Response) -> None:
        agent.seen.append(request.model_dump())
        await ask(response)
        await ask(response)

    agent = Keeper(work)
    policy = Policy(notifications=NotificationPolicy(zone="Europe/Berlin"))
    async with AgentTester(agent, policy=policy, clock=lambda: START) as t:
        await t.say("/settings language de")
        await t.say("go")
        await t.say("/settings language es")
        await t.say("/settings zone Asia/Tokyo")
        await t.advance(timedelta(hours=1))
        await t.say("red")
        await t.restart(policy=Policy())
        await t.say("/settings language en")
        await t.say("red")
        assert len(agent.seen) == 3
        assert agent.seen[0] == agent.seen[1] == agent.seen[2]
        assert agent.seen[0]["metadata"]["preferred_language"] == "de"
        assert agent.seen[0]["metadata"]["zone"] == "Europe/Berlin"
        assert agent.seen[0]["created_at"] == START
