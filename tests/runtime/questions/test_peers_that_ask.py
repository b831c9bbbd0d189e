"""An agent that asks a person when another agent asks it: the caller hears so, and gets the answer later under the same id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Capability, Peers, Response, Retry, Session
from spade_coreason.contracts import AgentCapability
from spade_coreason.exceptions import PeerError, PeerParkedError
from tests.support.questions import ChangingAgent, asked, code_of, nothing_is_left, parked
from tests.support.wait import TIMEOUT_S

AGENT, OTHER, PLAIN = "agent@localhost", "other@localhost", "plain@localhost"
ID = UUID("6f9619ff-8b86-4011-b42d-00c04fc964ff")
Work = Callable[[Peers, AgentRequest, Session, Response], Awaitable[None]]


async def ask_person(request: AgentRequest, session: Session, response: Response) -> None:
    await response.markdown("before")
    answer = await response.ask_person("Which?", choices=["red", "blue"])
    await response.markdown(f"after {answer.text}")


async def answer_at_once(request: AgentRequest, session: Session, response: Response) -> None:
    await response.markdown("at once")


class Calling:
    """An agent that runs `work` with its peers."""

    manifest = AgentDefinition.simple("calling")

    def __init__(self, peers: Peers, work: Work) -> None:
        self._peers, self._work = peers, work

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await self._work(self._peers, request, session, response)


def calling(work: Work) -> Callable[[Peers], Calling]:
    def build(peers: Peers) -> Calling:
        return Calling(peers, work)

    return build


def with_caller(work: Work, **peers: Any) -> AgentTester:
    """Return a tester of the agent that asks, with one that calls it."""
    return AgentTester(ChangingAgent(ask_person), peers={"calling": calling(work), **peers})


async def answer_all(t: AgentTester) -> None:
    """Answer all questions of the person who is behind the requests."""
    await t.settled()
    for question in await asked(t):
        await t.say(f"/answer {question.code} red")
    await t.settled()


async def test_the_caller_asks_again_under_the_same_id() -> None:
    seen: list[str] = []

    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        question = AgentRequest(session_id=ID, request_id=ID, payload={"query": "go"})
        try:
            seen.append((await peers.ask(AGENT, question)).text)
        except PeerParkedError as error:
            seen.append(f"{error.request_id}: {error}")

    async with with_caller(work) as t:
        for _ in range(2):
            await t.say("go", to="calling@localhost")
        await t.restart()
        await t.say("go", to="calling@localhost")
        assert len(await asked(t)) == len(await parked(t)) == 1
        await answer_all(t)
        for _ in range(2):
            await t.say("go", to="calling@localhost")
        waits = f"{AGENT} waits for a person's answer; ask again later with the request id {ID}"
        assert seen[:3] == [f"{ID}: {waits}"] * 3
        text = "before\n\nafter red"
        assert seen[3:] == [text] * 2
        assert await nothing_is_left(t)


async def test_a_caller_that_asks_while_the_second_run_is_under_way_gets_the_whole_answer() -> None:
    goes_on, is_there = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def ask_slowly(request: AgentRequest, session: Session, response: Response) -> None:
        await ask_person(request, session, response)
        is_there.set()
        await goes_on.wait()
        await response.markdown("the end")

    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        question = AgentRequest(session_id=ID, request_id=ID, payload={"query": "go"})
        with suppress(PeerParkedError):
            seen.append((await peers.ask(AGENT, question)).text)

    async with AgentTester(ChangingAgent(ask_slowly), peers={"calling": calling(work)}) as t:
        await t.say("go", to="calling@localhost")
        await answer_first(t)
        await asyncio.wait_for(is_there.wait(), TIMEOUT_S)
        t.send("go", to="calling@localhost")
        await wait_for_repetition(t)
        goes_on.set()
        await t.settled()
        assert seen == ["before\n\nafter red\n\nthe end"]
        assert await nothing_is_left(t)


async def answer_first(t: AgentTester) -> None:
    [question] = await asked(t)
    await t.say(f"/answer {question.code} red")


async def wait_for_repetition(t: AgentTester) -> None:
    """Wait until the agent has stored the request that is repeated."""
    inbox = t.runners[AGENT].repository.inbox
    async with asyncio.timeout(TIMEOUT_S):
        while len([each for each in await inbox.load_pending() if each.digest]) < 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def test_a_retry_does_not_send_it_again() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(PeerParkedError):
            await peers.ask(AGENT, "go", retry=Retry(attempts=5, wait_s=0.001))
        await response.markdown("parked")

    async with with_caller(work) as t:
        assert await t.say("go", to="calling@localhost") == ["parked"]
        assert len(await parked(t)) == 1


async def test_gather_has_the_error_in_the_place_of_the_answer() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        answers = await peers.gather([(AGENT, "one"), (PLAIN, "two"), (AGENT, "three")])
        kinds = [type(answer).__name__ for answer in answers]
        ids = {answer.request_id for answer in answers if isinstance(answer, PeerParkedError)}
        await response.markdown(f"{kinds} {len(ids)}")

    async with with_caller(work, plain=ChangingAgent(answer_at_once)) as t:
        expected = "['PeerParkedError', 'PeerAnswer', 'PeerParkedError'] 2"
        assert await t.say("go", to="calling@localhost") == [expected]


async def wait_for_parked(t: AgentTester, count: int) -> bool:
    """Wait until so many requests wait for an answer."""
    async with asyncio.timeout(TIMEOUT_S):
        while len(await parked(t)) != count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    return True


async def test_first_takes_an_answer_and_takes_back_what_waits_for_a_person() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        answer = await peers.first([AGENT, PLAIN], "go")
        await response.markdown(answer.text)

    async def answer_later(request: AgentRequest, session: Session, response: Response) -> None:
        await wait_for_parked(t, 1)
        await response.markdown("at last")

    async with with_caller(work, plain=ChangingAgent(answer_later)) as t:
        assert await t.say("go", to="calling@localhost") == ["at last"]
        assert await wait_for_parked(t, 0)
        assert await asked(t) == []


async def test_first_names_what_waits_if_nobody_answers() -> None:
    async def fail(request: AgentRequest, session: Session, response: Response) -> None:
        await wait_for_parked(t, 1)
        await response.error("no luck")

    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(PeerError) as caught:
            await peers.first([AGENT, PLAIN], "go")
        error = caught.value
        assert isinstance(error, PeerParkedError)
        assert any(PLAIN in note for note in error.__notes__)
        question = AgentRequest(session_id=ID, request_id=UUID(error.request_id), payload={"query": "go"})
        await session.store("question", error.request_id)
        with pytest.raises(PeerParkedError):
            await peers.ask(error.jid, question)
        await response.markdown("parked")

    async with with_caller(work, plain=ChangingAgent(fail)) as t:
        assert await t.say("go", to="calling@localhost") == ["parked"]
        assert len(await parked(t)) == 1


async def test_the_last_event_of_a_stream_says_that_it_waits() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        types: list[str] = []
        with suppress(PeerParkedError):
            async for event in peers.stream(AGENT, "go"):
                types.append(event.type)
            types.append("no error")
        await response.markdown(" ".join(types))

    async with with_caller(work) as t:
        [types] = await t.say("go", to="calling@localhost")
        assert types.split() == ["block.markdown", "request.parked"]


async def test_a_caller_that_parks_itself_goes_on_with_the_answer_of_its_peer() -> None:
    calls: list[str] = []

    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        answer = await peers.ask(PLAIN, "go")
        person = await response.ask_person("And you?", choices=["yes", "no"])
        await response.markdown(f"{answer.text} {person.text}")

    async def count(request: AgentRequest, session: Session, response: Response) -> None:
        calls.append(request.payload["query"])
        await response.markdown(f"answer {len(calls)}")

    async with with_caller(work, plain=ChangingAgent(count)) as t:
        await t.say("go", to="calling@localhost")
        repository = t.runners["calling@localhost"].repository
        steps = await repository.database.read(
            lambda connection: connection.exec_driver_sql("SELECT name, result FROM steps ORDER BY name").all()
        )
        assert [(name.split()[0], result is not None) for name, result in steps] == [
            ("ask", True),  # not asked again, though its step is stored without being waited for
            ("response.ask_person", False),
        ]
        assert await t.say("yes", to="calling@localhost") == ["answer 1 yes"]
        assert calls == ["go"]


async def test_a_caller_that_is_retracted_ends_what_waits_at_its_peer() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        await peers.ask(OTHER, "go", timeout=3600)

    hangs = asyncio.Event()

    async def hang(request: AgentRequest, session: Session, response: Response) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async with with_caller(work, other=ChangingAgent(hang)) as t:
        t.send("go", to="calling@localhost", id="mine")
        await asyncio.wait_for(hangs.wait(), 10)
        t.retract("mine", to="calling@localhost")
        await t.settled()
        assert await nothing_is_left(t)


async def test_a_capability_that_asks_a_person_is_not_asked_elsewhere() -> None:
    async def work(peers: Peers, request: AgentRequest, session: Session, response: Response) -> None:
        with pytest.raises(PeerParkedError) as caught:
            await peers.ask(Capability("colour"), {"query": "go"})
        await response.markdown(f"{caught.value.jid} {caught.value.request_id != ''}")

    agents = {"agent": ChangingAgent(ask_person), "other": ChangingAgent(ask_person)}
    for agent in agents.values():
        capability = AgentCapability(name="colour", description="colours", outputs={})
        agent.manifest = agent.manifest.model_copy(update={"capabilities": [capability]})
    async with AgentTester(agents["agent"], peers={"calling": calling(work), "other": agents["other"]}) as t:
        [text] = await t.say("go", to="calling@localhost")
        jid, is_known = text.split()
        assert (jid in (AGENT, OTHER), is_known) == (True, "True")
        waiting = [await parked(t, agent=agent) for agent in (AGENT, OTHER)]
        assert sorted(map(len, waiting)) == [0, 1]
        await t.settled()
        assert code_of(t.unread())
