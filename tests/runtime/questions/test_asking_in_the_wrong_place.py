"""People are asked in the task of `assist` only, and a run that has asked ends there, whatever the agent catches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, command
from spade_coreason.contracts import Interceptor, Next
from spade_coreason.testing import Policy, Rules
from tests.support.questions import BOSS, TESTER, ChangingAgent, asked, nothing_is_left, parked

OTHER_TASK = "people are asked in the task of assist only; gather first, and ask then"


async def ask(response: Response) -> None:
    answer = await response.ask_person("Which?", choices=["red", "blue"])
    await response.markdown(f"you took {answer.text}")


async def ask_in_a_task(session: Session, response: Response) -> None:
    await asyncio.create_task(ask(response))


async def ask_in_a_group(session: Session, response: Response) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(response))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def gather_with_a_question(session: Session, response: Response) -> None:
    await asyncio.gather(ask(response), session.run_once("step", int))


async def ask_for_approval_in_a_task(session: Session, response: Response) -> None:
    await asyncio.create_task(session.run_approved("pay", int))


async def ask_with_an_open_stream(session: Session, response: Response) -> None:
    await response.create_stream()
    await ask(response)


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (ask_in_a_task, OTHER_TASK),
        (ask_in_a_group, OTHER_TASK),
        (gather_with_a_question, OTHER_TASK),
        (ask_for_approval_in_a_task, OTHER_TASK),
        (
            ask_with_an_open_stream,
            "close the streams before you ask a person: assist begins anew with the answer",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_question_in_the_wrong_place_is_a_runtime_error(
    work: Callable[[Session, Response], Awaitable[None]], problem: str
) -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(RuntimeError) as caught:
            await work(session, response)
        await response.markdown(str(caught.value))

    async with AgentTester(ChangingAgent(assist)) as t:
        assert await t.say("go") == [problem]
        assert (await parked(t), await asked(t)) == ([], [])
        assert await nothing_is_left(t)


class Commanding:
    """An agent that asks in a command."""

    manifest = AgentDefinition.simple("commanding")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

    @command("order", "order something")
    async def order(self, session: Session) -> str:
        with pytest.raises(RuntimeError) as caught:
            await session.run_approved("order", int)
        return str(caught.value)


async def test_a_command_cannot_wait() -> None:
    async with AgentTester(Commanding()) as t:
        assert await t.say("/order") == ["a command cannot ask and wait; ask in assist"]
        assert (await parked(t), await asked(t)) == ([], [])


async def test_nobody_is_asked_after_the_end() -> None:
    kept: list[tuple[Session, Response]] = []

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        kept.append((session, response))

    async with AgentTester(ChangingAgent(assist)) as t:
        await t.say("go")
        [(session, response)] = kept
        with pytest.raises(RuntimeError, match="no person may be asked after assist has returned"):
            await response.ask_person("Which?")
        with pytest.raises(RuntimeError, match="no person may be asked after assist has returned"):
            await session.run_approved("pay", int)
        assert await asked(t) == []


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"question": " "}, "a question is a text of 1 to 4,000 characters"),
        ({"question": "x" * 4001}, "a question is a text of 1 to 4,000 characters"),
        ({"choices": "red"}, "choices are at most 20 texts"),
        ({"choices": [str(number) for number in range(21)]}, "choices are at most 20 texts"),
        ({"choices": ["red", ""]}, "choices are texts that are not empty"),
        ({"choices": ["red", 1]}, "choices are texts that are not empty"),
        ({"choices": ["red"], "schema": {"type": "string"}}, "give choices or a schema, not both"),
        ({"timeout": timedelta(seconds=1)}, "a question waits for one minute to 7 days"),
        ({"timeout": timedelta(days=8)}, "a question waits for one minute to 7 days"),
        ({"timeout": 60}, "a question waits for one minute to 7 days"),
        ({"to": "bob@localhost/phone"}, "a question goes to a person, not to one device"),
        ({"to": "agent@localhost"}, "is the agent itself; ask a person"),
        ({"to": "eve@elsewhere.example"}, "eve@elsewhere.example has no access to agent@localhost"),
        ({"to": "not a jid@@"}, "not a jid@@"),
    ],
)
async def test_an_unsuitable_question_is_a_value_error_in_every_run(keywords: dict[str, Any], problem: str) -> None:
    problems: list[str] = []

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        question = {"question": "Which?"} | keywords
        try:
            await response.ask_person(**question)
        except ValueError as error:
            problems.append(str(error))
        await ask(response)

    async with AgentTester(ChangingAgent(assist)) as t:
        await t.say("go")
        assert len(await asked(t)) == 1
        assert await t.say("red") == ["you took red"]
        first, second = problems
        assert first == second
        assert problem in first
        assert await nothing_is_left(t)


async def test_a_person_who_has_access_in_the_meantime_is_refused_as_before() -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await response.ask_person("Which?", to="eve@elsewhere.example")
        except ValueError:
            await ask(response)

    async with AgentTester(ChangingAgent(assist), policy=Policy(operators=frozenset({BOSS}))) as t:
        await t.say("go")
        await t.say("/admit eve@elsewhere.example", user=BOSS)
        assert await t.say("red") == ["you took red"]
        assert await nothing_is_left(t)


# What the agent catches


async def test_except_exception_lets_the_end_pass_and_finally_runs() -> None:
    ends: list[str] = []

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await ask(response)
        except Exception:  # noqa: BLE001 - as many agents do
            ends.append("caught")
        finally:
            ends.append("finally")

    async with AgentTester(ChangingAgent(assist)) as t:
        await t.say("go")
        assert ends == ["finally"]
        assert await t.say("red") == ["you took red"]
        assert ends == ["finally"] * 2


async def test_a_finally_that_speaks_does_not_undo_the_question() -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await ask(response)
        finally:
            await response.markdown("bye")

    async with AgentTester(ChangingAgent(assist)) as t:
        [question] = await t.say("go")
        assert question.startswith("Which?")
        assert await t.say("red") == ["you took red", "bye"]
        assert await nothing_is_left(t)


@pytest.mark.parametrize("ending", ["returns", "raises", "asks", "waits", "steps", "stores", "streams", "cancels itself"])
async def test_an_agent_that_swallows_the_end_and_goes_on_has_ended(ending: str) -> None:
    calls: list[str] = []
    runs = 0

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        nonlocal runs
        runs += 1
        with suppress(BaseException):
            await ask(response)
            return
        if ending == "raises":
            raise LookupError("no luck")
        if ending == "asks":
            await response.ask_person("And now?")
        if ending == "waits":
            await asyncio.sleep(3600)
        if ending == "steps":
            await session.run_once("step", calls.append, "step")
        if ending == "stores":
            await session.store("name", "value")
        if ending == "streams":
            await response.create_stream()
        if ending == "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with AgentTester(ChangingAgent(assist), policy=Policy(rules=Rules(assist_timeout_s=0.5))) as t:
        [question] = await t.say("go")
        assert question.startswith("Which?")
        assert len(await asked(t)) == len(await parked(t)) == 1
        assert await t.say("red") == ["you took red"]
        assert (runs, calls) == (2, [])
        assert await nothing_is_left(t)


async def test_a_question_in_the_body_of_a_task_group_ends_the_run() -> None:
    calls: list[str] = []

    async def step(session: Session) -> None:
        await session.run_once("step", calls.append, "step")

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        async with asyncio.TaskGroup() as group:
            await group.create_task(step(session))
            sleeping = group.create_task(asyncio.sleep(3600))
            async with asyncio.timeout(3600):
                await ask(response)
            sleeping.cancel()

    async with AgentTester(ChangingAgent(assist)) as t:
        await t.say("go")
        assert len(await parked(t)) == 1
        assert await t.say("red") == ["you took red"]
        assert calls == ["step"]


class Watching(Interceptor):
    """An interceptor that records what passes it, and swallows it if it says so."""

    swallows = False

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        self.seen.append("begin")
        try:
            await next(request, session, response)
        except Exception:
            self.seen.append("exception")
            raise
        except BaseException:
            self.seen.append("end of the run")
            if not self.swallows:
                raise
        finally:
            self.seen.append("end")


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_interceptor_sees_each_run(swallows: bool) -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        await ask(response)

    watching = Watching()
    watching.swallows = swallows
    async with AgentTester(ChangingAgent(assist), interceptors=[watching]) as t:
        await t.say("go")
        assert await t.say("red") == ["you took red"]
        assert watching.seen == ["begin", "end of the run", "end", "begin", "end"]
        assert await asked(t, TESTER) == []
        assert await nothing_is_left(t)
