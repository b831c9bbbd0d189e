"""Durable steps: a turn that runs again gets the results of the steps that it had finished."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, StoreError, command
from spade_coreason.contracts.authoring import OnUncertain
from spade_coreason.exceptions import PeerFailedError, StepMismatchError, StepUncertainError
from spade_coreason.runtime.steps.step_journal import MAX_STEPS, MAX_TOTAL_BYTES, StepJournal
from spade_coreason.runtime.steps.steps import MAX_RESULT_BYTES, DurableStep, dump_result, hash_arguments
from spade_coreason.storage.backends.statements import DELETE_STEPS, SAVE_STEP
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy, Rules, RunnerTimings
from tests.support.databases import SQLITE, count_commits, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import receive_request
from tests.support.runner import RememberingAgent, RunnerHarness
from tests.support.wait import TIMEOUT_S, eventually

KEY = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")


class InterruptedAgent:
    """An agent that runs `work(self, session)`, and hangs at the first wait for `interrupted`; `calls` records what ran."""

    manifest = AgentDefinition.simple("working")

    def __init__(self, work: Callable[[InterruptedAgent, Session], Any]) -> None:
        self._work = work
        self.calls: list[Any] = []
        self.hangs = asyncio.Event()
        self.is_redelivered = False

    async def hang(self) -> None:
        """Hang in the first run only."""
        if not self.is_redelivered:
            self.hangs.set()
            await asyncio.Event().wait()

    def note(self, *call: Any) -> Any:
        """Record a call, and return something that no other call returns."""
        self.calls.append(call)
        return [*call, uuid4().hex]

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.is_redelivered = bool(request.metadata.get("redelivered"))
        await response.markdown(json.dumps(await self._work(self, session)))


async def run_interrupted(agent: InterruptedAgent) -> Any:
    """Ask the agent, restart the platform while it hangs, and return what its second run answers."""
    async with AgentTester(agent) as t:
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await agent.hangs.wait()
        await t.restart(grace_s=0)
        return json.loads((await asking).text)


# The journal


@pytest.fixture
async def journal(repository: AgentRepository) -> StepJournal:
    return StepJournal(repository.inbox, await receive_request(repository), KEY)


async def reopen(repository: AgentRepository, journal: StepJournal) -> StepJournal:
    """Return the journal of the next run of the same request."""
    again = StepJournal(repository.inbox, journal._inbox_row, KEY)
    await again.load()
    return again


async def begin(journal: StepJournal, name: str, *args: Any, on_uncertain: OnUncertain = "retry") -> DurableStep:
    return await journal.open_step(name, args, on_uncertain)


async def finish(journal: StepJournal, step: DurableStep, result: object) -> None:
    await journal.close_step(step, dump_result(step.name, result))


async def test_a_finished_step_has_its_result_in_the_next_run(repository: AgentRepository, journal: StepJournal) -> None:
    step = await begin(journal, "charge", 5, {"b": 1, "a": [None, 1.5, "☂"]})
    assert (step.number, step.is_finished) == (1, False)
    await finish(journal, step, {"id": (1, 2)})
    again = await begin(await reopen(repository, journal), "charge", 5, {"a": [None, 1.5, "☂"], "b": 1})
    assert (again.is_finished, again.result, again.key) == (True, {"id": [1, 2]}, step.key)


async def test_a_step_without_a_result_is_finished_with_null(repository: AgentRepository, journal: StepJournal) -> None:
    await finish(journal, await begin(journal, "mail"), None)
    again = await begin(await reopen(repository, journal), "mail")
    assert (again.is_finished, again.result) == (True, None)


async def test_keys_differ_by_request_name_and_use(journal: StepJournal, repository: AgentRepository) -> None:
    keys = [(await begin(journal, name)).key for name in ("a", "a", "b", "b")]
    other = StepJournal(repository.inbox, 0, uuid4())
    assert len({*keys, (await begin(other, "a")).key}) == 5
    assert all(str(UUID(key)) == key for key in keys)


async def test_uses_of_a_name_are_numbered_in_the_order_of_the_calls(repository: AgentRepository, journal: StepJournal) -> None:
    steps = [await begin(journal, "a", number) for number in range(20)]
    random.shuffle(steps)
    for step in steps[:10]:
        await finish(journal, step, step.number)
    again = await reopen(repository, journal)
    for number in range(20):
        step = await begin(again, "a", number)
        assert step.is_finished == (step.number in {finished.number for finished in steps[:10]})
        assert not step.is_finished or step.result == number + 1


async def test_other_arguments_are_a_mismatch_that_names_both_and_quotes_neither(
    repository: AgentRepository, journal: StepJournal
) -> None:
    await finish(journal, await begin(journal, "charge", "secret one"), 1)
    again = await reopen(repository, journal)
    with pytest.raises(StepMismatchError) as caught:
        await begin(again, "charge", "secret two")
    stored, given = (hash_arguments("charge", [f"secret {number}"])[:8] for number in ("one", "two"))
    assert (caught.value.name, caught.value.number, caught.value.stored, caught.value.given) == ("charge", 1, stored, given)
    text = str(caught.value)
    assert text.startswith(f"the durable step 'charge' (use 1) was stored with the arguments {stored} and now has {given}; ")
    assert "secret" not in text
    assert again.mismatch is caught.value


async def test_an_intended_step_is_uncertain_in_the_next_run(repository: AgentRepository, journal: StepJournal) -> None:
    step = await begin(journal, "charge", 1, on_uncertain="fail")
    with pytest.raises(StepUncertainError, match=r"'charge' \(use 1\) was cut off") as caught:
        await begin(await reopen(repository, journal), "charge", 1, on_uncertain="fail")
    assert caught.value.key == step.key
    retried = await begin(await reopen(repository, journal), "charge", 1, on_uncertain="retry")
    assert not retried.is_finished
    await finish(journal, step, 7)
    assert (await begin(await reopen(repository, journal), "charge", 1, on_uncertain="fail")).result == 7


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1: 2}, object(), {"a": b"bytes"}, "\ud800", [{"deep": {(): 1}}]],
    ids=["NaN", "a key that is no text", "an object", "bytes", "half a character", "a key deep inside"],
)
def test_what_is_no_json_is_refused_with_the_name_of_the_step(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^the durable step 'charge': .*; its arguments must be JSON values$"):
        hash_arguments("charge", [value])
    with pytest.raises(ValueError, match=r"^the durable step 'charge': .*; its result is not stored: it must be a JSON value$"):
        dump_result("charge", value)


def test_a_result_of_more_than_1_mib_is_refused() -> None:
    assert len(dump_result("fetch", "x" * (MAX_RESULT_BYTES - 2))) == MAX_RESULT_BYTES
    with pytest.raises(ValueError, match=r"'fetch': its result has 1,048,578 bytes and is not stored \(limit: 1,048,576\)"):
        dump_result("fetch", "é" * (MAX_RESULT_BYTES // 2))


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "\ud800", 7, None])
def test_a_name_is_a_short_text(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^the (name of a durable step must be a text|durable step '.*)"):
        hash_arguments(name, [])


async def test_one_turn_has_a_limited_number_of_steps_and_of_bytes(repository: AgentRepository) -> None:
    journal = StepJournal(repository.inbox, 0, KEY)
    large = "x" * (MAX_RESULT_BYTES - 2)
    for _ in range(MAX_TOTAL_BYTES // MAX_RESULT_BYTES):
        await finish(journal, await begin(journal, "fetch"), large)
    with pytest.raises(ValueError, match="the results of one turn have more than 67,108,864 bytes"):
        await finish(journal, await begin(journal, "fetch"), 1)
    for _ in range(MAX_STEPS - (await begin(journal, "fetch")).number):
        await begin(journal, "fetch")
    with pytest.raises(RuntimeError, match="at most 10,000 durable steps"):
        await begin(journal, "another")


async def test_outside_of_a_conversation_steps_run_and_nothing_is_stored(
    repository: AgentRepository, database_url: str
) -> None:
    journal = StepJournal(repository.inbox, 0, KEY)
    assert await journal.run_once("a", lambda: (1, 2), (), "fail") == [1, 2]
    assert read_rows(database_url, "steps") == []


# Over the runner


async def test_a_finished_step_does_not_run_again_after_a_restart() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        charged = await session.run_once("charge", agent.note, "order 7", 5)
        agent.calls.append(charged)
        await agent.hang()
        return [charged, await session.run_once("mail", agent.note)]

    agent = InterruptedAgent(work)
    charged, mailed = await run_interrupted(agent)
    assert agent.calls == [("order 7", 5), charged, charged, ()]
    assert charged[:2] == ["order 7", 5]
    assert len(mailed) == 1


async def test_both_runs_get_the_same_json() -> None:
    results: list[Any] = []

    async def make_tuple() -> Any:
        return {"pair": (1, 2)}

    async def work(agent: InterruptedAgent, session: Session) -> Any:
        results.append(await session.run_once("pair", make_tuple))
        await agent.hang()
        return None

    await run_interrupted(InterruptedAgent(work))
    assert results == [{"pair": [1, 2]}] * 2


async def test_steps_of_concurrent_tasks_are_numbered_in_the_order_of_their_calls() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        async def fetch(number: int) -> Any:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)
            if number == 6:
                await eventually(lambda: len(agent.calls) >= 9)  # all others have finished
                await agent.hang()
            return agent.note(number)

        return await asyncio.gather(*(session.run_once("fetch", fetch, number) for number in range(10)))

    agent = InterruptedAgent(work)
    fetched = await run_interrupted(agent)
    assert [result[0] for result in fetched] == list(range(10))
    assert sorted(agent.calls) == [(number,) for number in range(10)]


async def test_a_step_that_raised_runs_again() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        def fail() -> None:
            agent.calls.append("failed")
            raise LookupError("not there")

        with pytest.raises(LookupError, match="not there"):
            await session.run_once("look up", fail)
        await agent.hang()
        return None

    agent = InterruptedAgent(work)
    await run_interrupted(agent)
    assert agent.calls == ["failed", "failed"]


async def test_a_step_that_was_cut_off_runs_again_with_the_same_key() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        async def charge(amount: int, *, idempotency_key: str) -> int:
            agent.calls.append((amount, idempotency_key))
            await agent.hang()
            return amount

        return [await session.run_once("charge", charge, 5), await session.run_once("charge", charge, 6)]

    agent = InterruptedAgent(work)
    assert await run_interrupted(agent) == [5, 6]
    (first, first_key), (second, second_key), (third, third_key) = agent.calls
    assert (first, second, third) == (5, 5, 6)
    assert first_key == second_key != third_key


async def test_a_step_that_must_not_run_twice_tells_the_agent_that_it_was_cut_off() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        async def charge(idempotency_key: str) -> None:
            agent.calls.append(idempotency_key)
            await agent.hang()

        try:
            await session.run_once("charge", charge, on_uncertain="fail")
        except StepUncertainError as error:
            return [error.name, error.number, error.key]
        return None

    agent = InterruptedAgent(work)
    answer = await run_interrupted(agent)
    assert len(agent.calls) == 1
    assert answer == ["charge", 1, agent.calls[0]]


async def test_a_step_that_must_not_run_twice_has_its_result_if_it_had_finished() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        result = await session.run_once("charge", agent.note, on_uncertain="fail")
        await agent.hang()
        return result

    agent = InterruptedAgent(work)
    assert len(await run_interrupted(agent)) == 1
    assert agent.calls == [()]


async def test_a_turn_with_other_arguments_fails_also_if_the_agent_catches_it(expected_errors: ExpectedErrors) -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        try:
            await session.run_once("charge", agent.note, f"secret {agent.is_redelivered}")
        except Exception:  # noqa: BLE001 - as careless agents do
            return "all is well"
        await agent.hang()
        return None

    agent = InterruptedAgent(work)
    with pytest.raises(PeerFailedError, match="Something went wrong"):
        await run_interrupted(agent)
    assert len(agent.calls) == 1
    expected_errors("the durable step 'charge' (use 1) was stored with the arguments")
    assert not any("secret" in line for line in expected_errors.logged)


async def test_mistakes_in_a_step_are_errors_of_the_agent() -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        problems = []
        wrong: Any = session
        for work in (
            wrong.run_once("", agent.note),
            wrong.run_once("a", agent.note, object()),
            wrong.run_once("b", object),
            wrong.run_once("c", agent.note, on_uncertain="hope"),
        ):
            try:
                await work
            except ValueError as error:
                problems.append(str(error))
        return problems

    agent = InterruptedAgent(work)
    async with AgentTester(agent) as t:
        problems = json.loads((await t.ask("go")).text)
    assert agent.calls == []
    not_serializable = "Object of type object is not JSON serializable"
    assert problems == [
        "the name of a durable step must be a text of 1 to 200 characters, not ''",
        f"the durable step 'a': {not_serializable}; its arguments must be JSON values",
        f"the durable step 'b': {not_serializable}; its result is not stored: it must be a JSON value",
        'on_uncertain must be "retry" or "fail", not \'hope\'',
    ]


async def test_after_the_turn_there_are_no_steps() -> None:
    sessions: list[Session] = []

    async def work(agent: InterruptedAgent, session: Session) -> Any:
        sessions.append(session)

    async with AgentTester(InterruptedAgent(work)) as t:
        await t.ask("go")
        with pytest.raises(RuntimeError, match="after assist has returned"):
            await sessions[0].run_once("late", dict)


async def test_a_command_of_an_agent_has_durable_steps() -> None:
    class Shop:
        manifest = AgentDefinition.simple("shop")

        @command("buy", "Buy something")
        async def buy(self, session: Session) -> str:
            bought = await session.run_once("buy", lambda idempotency_key: [idempotency_key])
            return str(UUID(bought[0]))

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None: ...

    async with AgentTester(Shop) as t:
        [text] = await t.say("/buy")
        assert str(UUID(text)) == text


async def test_steps_are_known_when_the_turn_runs_again_because_it_could_not_be_stored(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    file, away, is_first = tmp_path / "platform.db", tmp_path / "away.db", [True]

    async def work(agent: InterruptedAgent, session: Session) -> Any:
        noted = await session.run_once("note", agent.note)
        if is_first.pop():
            file.rename(away)
        is_first.append(False)
        return noted

    agent, policy = InterruptedAgent(work), Policy(timings=RunnerTimings(retry_s=0.05))
    async with AgentTester(agent, database=f"{SQLITE}{file}", policy=policy) as t:
        t.send("go")
        await eventually(lambda: any("cannot store a request" in line for line in expected_errors.logged))
        away.rename(file)
        assert len(json.loads((await t.message()).text or "")) == 1
    assert agent.calls == [()]
    expected_errors("cannot store a request of tester@localhost", "the file is missing")


async def test_a_step_that_cannot_be_stored_raises_and_is_no_result(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    file, away = tmp_path / "platform.db", tmp_path / "away.db"

    async def work(agent: InterruptedAgent, session: Session) -> Any:
        await t.runners[t.jid].repository.inbox.flush()
        file.rename(away)
        with pytest.raises(StoreError, match="the file is missing"):
            await session.run_once("note", agent.note)
        away.rename(file)
        return await session.run_once("note", agent.note)

    agent = InterruptedAgent(work)
    async with AgentTester(agent, database=f"{SQLITE}{file}") as t:
        assert len(json.loads((await t.ask("go")).text)) == 1
    assert agent.calls == [(), ()]
    expected_errors("the file is missing")


# What is left


@pytest.mark.parametrize("text", ["/forget me yes", "/cancel"])
async def test_nothing_is_left_of_a_turn_that_was_erased_or_cancelled(database_url: str, text: str) -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        await session.run_once("note", agent.note, "a secret")
        await agent.hang()

    agent = InterruptedAgent(work)
    async with AgentTester(agent, database=database_url) as t:
        t.send("go", thread="one")
        async with asyncio.timeout(TIMEOUT_S):
            await agent.hangs.wait()
        assert len(read_rows(database_url, "steps")) == 1
        await t.say(text, thread="one" if text == "/cancel" else "two")
        await t.settled()
    assert read_rows(database_url, "steps") == []


async def test_nothing_is_left_of_interrupted_turns_that_are_only_reported(database_url: str) -> None:
    async def work(agent: InterruptedAgent, session: Session) -> Any:
        await session.run_once("note", agent.note)
        await agent.hang()

    agent = InterruptedAgent(work)
    async with AgentTester(agent, database=database_url) as t:
        t.send("go")
        async with asyncio.timeout(TIMEOUT_S):
            await agent.hangs.wait()
        await t.restart(grace_s=0, policy=Policy(rules=Rules(on_restart="report")))
        await t.message()
        await t.settled()
    assert read_rows(database_url, "steps") == []


async def test_a_turn_without_steps_executes_no_statement_about_steps(tmp_path: Path) -> None:
    statements, queries = list[int](), list[str]()

    def record_batch(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        statements.extend(number for item in batch for number, _ in getattr(item, "rows", ()))
        write(batch)

    def record_query(connection: object, cursor: object, statement: str, *_: object) -> None:
        queries.append(statement)

    agent = RememberingAgent(release=asyncio.Event())
    harness = RunnerHarness(f"{SQLITE}{tmp_path}/platform.db", agent)
    for is_redelivered in (False, True):
        async with harness:
            harness.writes.on_batch = record_batch
            database = harness.database
            event.listen(database.backend._writer_engine, "before_cursor_execute", record_query)  # type: ignore[attr-defined]  # SQLite's
            if is_redelivered:
                assert agent.release is not None
                agent.release.set()
                await harness.runner.mailboxes.wait_until_idle()
            else:
                await harness.receive("go")
                await agent.started.wait()
    assert len(agent.observations) == 1
    assert statements
    assert not {SAVE_STEP, DELETE_STEPS} & set(statements)
    assert [query for query in queries if "steps" in query] == []


@pytest.mark.parametrize(("on_uncertain", "commits"), [("retry", 1), ("fail", 2)])
async def test_a_step_costs_one_commit_or_two(tmp_path: Path, on_uncertain: OnUncertain, commits: int) -> None:
    url, counted = f"{SQLITE}{tmp_path}/platform.db", list[int]()

    async def work(agent: InterruptedAgent, session: Session) -> Any:
        counted.append(count_commits(url))
        for number in range(10):
            await session.run_once("note", agent.note, number, on_uncertain=on_uncertain)
        counted.append(count_commits(url))

    async with AgentTester(InterruptedAgent(work), database=url) as t:
        await t.ask("first")
        await t.ask("second")
    assert counted[3] - counted[2] <= 10 * commits + 1  # the request itself may be written meanwhile
