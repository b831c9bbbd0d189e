"""The code of an agent changes between a question and its answer: what does not fit runs nothing, and fails the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.exceptions import MissingStepError, StepMismatchError, UnknownStepError
from spade_coreason.storage.schema import steps
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Assist
from tests.support.questions import ChangingAgent, asked, nothing_is_left, parked

Work = Callable[[ChangingAgent, Session, Response], Any]


async def two_steps(agent: ChangingAgent, session: Session, response: Response) -> None:
    await session.run_once("book", agent.call, "book")
    await session.run_once("pay", agent.call, "pay")


async def ask(response: Response) -> None:
    answer = await response.ask_person("Which?", choices=["red", "blue"])
    await response.markdown(f"you took {answer.text}")


async def run_changed(before: Work, after: Work, *, restarts: bool = False) -> tuple[list[str], list[Any], AgentTester]:
    """Ask, change the code, answer, and return the texts of the second run, and what it called."""
    agent = ChangingAgent(_nothing)

    def assist(work: Work) -> Assist:
        async def run(request: AgentRequest, session: Session, response: Response) -> None:
            await work(agent, session, response)

        return run

    agent.assist = assist(before)
    async with AgentTester(agent) as t:
        await t.say("go")
        assert len(await parked(t)) == 1
        agent.calls.clear()
        agent.assist = assist(after)
        if restarts:
            await t.restart()
        answer = await t.say("red")
        assert await nothing_is_left(t)
        assert await asked(t) == []
        return answer + t.unread(), agent.calls, t


async def _nothing(request: AgentRequest, session: Session, response: Response) -> None: ...


async def before(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await ask(response)


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_same_code_runs_no_step_again(restarts: bool) -> None:
    texts, calls, _ = await run_changed(before, before, restarts=restarts)
    assert (texts, calls) == (["you took red"], [])


async def test_steps_in_another_order_are_the_same() -> None:
    async def reordered(agent: ChangingAgent, session: Session, response: Response) -> None:
        assert await session.run_once("pay", agent.call, "pay") == [2, "pay"]
        assert await session.run_once("book", agent.call, "book") == [1, "book"]
        await ask(response)

    texts, calls, _ = await run_changed(before, reordered)
    assert (texts, calls) == (["you took red"], [])


async def test_steps_that_were_gathered_are_the_same_in_any_order() -> None:
    runs = 0

    async def gathered(agent: ChangingAgent, session: Session, response: Response) -> None:
        nonlocal runs
        runs += 1

        async def step(name: str, delay: int) -> Any:
            for _ in range(delay):
                await asyncio.sleep(0)
            return await session.run_once(name, agent.call, name)

        results = await asyncio.gather(*(step(f"step {number}", number * runs % 5) for number in range(5)))
        assert [result[1] for result in results] == [f"step {number}" for number in range(5)]
        await ask(response)

    texts, calls, _ = await run_changed(gathered, gathered)
    assert (texts, calls, runs) == (["you took red"], [], 2)


async def renamed(agent: ChangingAgent, session: Session, response: Response) -> None:
    await session.run_once("reserve", agent.call, "book")
    await session.run_once("pay", agent.call, "pay")
    await ask(response)


async def removed(agent: ChangingAgent, session: Session, response: Response) -> None:
    await session.run_once("book", agent.call, "book")
    await ask(response)


async def added(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await session.run_once("ship", agent.call, "ship")
    await ask(response)


async def used_once_more(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await session.run_once("pay", agent.call, "pay")
    await ask(response)


async def other_arguments(agent: ChangingAgent, session: Session, response: Response) -> None:
    await session.run_once("book", agent.call, "book", "twice")
    await session.run_once("pay", agent.call, "pay")
    await ask(response)


async def other_question(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await response.ask_person("Which one of these?", choices=["red", "blue"])


async def other_question_first(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await response.ask_person("Are you sure?", choices=["yes", "no"])
    await ask(response)


async def approval_first(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await session.run_approved("refund", agent.call, "refund")
    await ask(response)


async def without_question(agent: ChangingAgent, session: Session, response: Response) -> None:
    await two_steps(agent, session, response)
    await response.markdown("done")


async def without_anything(agent: ChangingAgent, session: Session, response: Response) -> None:
    await response.markdown("done")


CHANGES: list[tuple[Work, type[StepMismatchError], str]] = [
    (renamed, UnknownStepError, "'reserve' (use 1)"),
    (removed, MissingStepError, "'pay' (use 1)"),
    (added, UnknownStepError, "'ship' (use 1)"),
    (used_once_more, UnknownStepError, "'pay' (use 2)"),
    (other_arguments, StepMismatchError, "'book'"),
    (other_question, StepMismatchError, "'response.ask_person'"),
    (other_question_first, StepMismatchError, "'response.ask_person'"),
    (approval_first, UnknownStepError, "'approval: refund' (use 1)"),
]
WITHOUT_QUESTION: list[tuple[Work, type[StepMismatchError], str]] = [
    (without_question, MissingStepError, "'response.ask_person' (use 1)"),
    (without_anything, MissingStepError, "'response.ask_person' (use 1)"),
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", "") or str(value)


@pytest.mark.parametrize(("after", "error", "step"), [*CHANGES, *WITHOUT_QUESTION], ids=name_of)
async def test_a_change_before_the_question_fails_the_turn_and_runs_nothing(
    after: Work, error: type[StepMismatchError], step: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(error.__name__, step)
    texts, calls, _ = await run_changed(before, after)
    assert calls == []
    [text] = texts
    assert text.startswith("Something went wrong on my side (incident ")


@pytest.mark.parametrize(("after", "error", "step"), CHANGES, ids=name_of)
async def test_an_agent_that_catches_the_error_runs_nothing_either(
    after: Work, error: type[StepMismatchError], step: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(error.__name__, step)

    async def caught(agent: ChangingAgent, session: Session, response: Response) -> None:
        with suppress(Exception):
            await after(agent, session, response)
        with suppress(Exception):
            await session.run_once("compensate", agent.call, "compensate")
        with suppress(Exception):
            await session.run_once("book", agent.call, "book")

    [text], calls, _ = await run_changed(before, caught)
    assert calls == []
    assert text.startswith("Something went wrong on my side (incident ")


async def test_the_incident_names_the_step(expected_errors: ExpectedErrors) -> None:
    expected_errors("UnknownStepError")
    agent = ChangingAgent(_nothing)

    async def ask_now(request: AgentRequest, session: Session, response: Response) -> None:
        await session.run_once("book", agent.call, "book")
        await ask(response)

    async def ask_later(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await session.run_once("reserve", agent.call, "book")
        except Exception as error:
            raise LookupError("no room is free") from error

    agent.assist = ask_now
    async with AgentTester(agent) as t:
        await t.say("go")
        agent.assist = ask_later
        [text] = await t.say("red")
        repository = t.runners[t.jid].repository
        [incident] = await repository.incidents.load_page()
        assert incident.incident in text
        found = await repository.incidents.find_with_texts(incident.id)
        assert found is not None
        assert "'reserve'" in found.texts
        assert await nothing_is_left(t)
        agent.assist = ask_now
        await t.say("again")
        assert await t.say("blue") == ["you took blue"]  # the conversation goes on


async def test_a_run_whose_steps_are_lost_calls_none_of_their_functions(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    agent = ChangingAgent(_nothing)

    async def work(request: AgentRequest, session: Session, response: Response) -> None:
        await before(agent, session, response)

    agent.assist = work
    async with AgentTester(agent) as t:
        await t.say("go")
        agent.calls.clear()
        await t.runners[t.jid].repository.database.write(lambda connection: connection.execute(delete(steps)))
        [text] = [*await t.say("red"), *t.unread()]
        assert "Something went wrong on my side" in text
        assert agent.calls == []
        assert await nothing_is_left(t)
