"""Agents that ask each other, in a platform without a network: conversations, failures, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    Capability,
    PeerError,
    Peers,
    ResponseHandler,
    SessionHandle,
    agent,
)
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError
from spade_coreason.runtime.peers.peer_answers import collect_answer
from tests.support.clock import LoopClock
from tests.support.errors import ExpectedErrors
from tests.support.peer_replies import OTHER, PEER
from tests.support.wait import TIMEOUT_S

ALICE, BOB = "alice@localhost", "bob@localhost"


@agent
async def witness(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    past = [turn.input.get("query") if isinstance(turn.input, dict) else None for turn in await session.history()]
    await response.data({"request": request.dump(), "history": past, "who": session.identity.id})


@agent
async def relay(
    request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers, to: str = "witness@localhost"
) -> None:
    answer = await peers.ask(to, request.create_child(request.payload))
    await response.data({"own": request.dump(), "next": answer.data[0]["data"]})


async def test_lineage_goes_through_a_chain_of_agents() -> None:
    @agent
    async def first(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        answer = await peers.ask("relay@localhost", request.create_child({"query": "x"}))
        await response.data({"own": request.dump(), "next": answer.data[0]["data"]})

    async with AgentTester(first, peers={"relay@localhost": relay, "witness@localhost": witness}) as t:
        asked = AgentRequest(session_id=uuid4(), payload={})
        one = (await t.ask(asked)).data[0]["data"]
        two = one["next"]
        three = two["next"]["request"]
        chain = [one["own"], two["own"], three]
        assert {request["root_request_id"] for request in chain} == {str(asked.request_id)}
        assert [request.get("parent_request_id") for request in chain[1:]] == [request["request_id"] for request in chain[:2]]
        assert len({request["session_id"] for request in chain} | {str(asked.session_id)}) == 4


async def test_two_people_behind_one_agent_keep_two_conversations_at_the_next_agent() -> None:
    async with AgentTester(relay, peers={"witness@localhost": witness}) as t:
        seen: dict[str, list[Any]] = {}
        for text, user, thread in (("a", ALICE, None), ("b", BOB, None), ("c", ALICE, "t"), ("d", ALICE, None)):
            answer = await t.ask(text, user=user, thread=thread)
            seen[text] = [answer.data[0]["data"]["next"][key] for key in ("request", "history", "who")]
        await t.restart()
        after = (await t.ask("e", user=ALICE)).data[0]["data"]["next"]
    conversations = {text: request["metadata"]["conversation_id"] for text, (request, _, _) in seen.items()}
    assert len({conversations[text] for text in "abc"}) == 3
    assert conversations["d"] == conversations["a"] == after["request"]["metadata"]["conversation_id"]
    assert [history for _, history, _ in seen.values()] == [[], [], [], ["a"]]
    assert after["history"] == ["a", "d"]
    assert {who for _, _, who in seen.values()} == {"agent@localhost"}


@agent
async def broken(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    raise ZeroDivisionError("a secret")


@agent
async def complaining(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    await response.error("out of paper", {"tray": 2})


@agent
async def asking(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
    jid = request.payload["query"]
    try:
        await response.markdown(str(await peers.ask(jid, "x", 0.05 if "hanging" in jid else 10)))
    except PeerError as error:
        await response.data({"type": type(error).__name__, "jid": error.jid, "text": str(error)})


@pytest.mark.parametrize(
    ("jid", "error", "text"),
    [
        ("broken@localhost", PeerFailedError, "broken@localhost reports: Something went wrong on my side (incident "),
        ("complaining@localhost", PeerFailedError, "complaining@localhost reports: out of paper"),
        ("hanging@localhost", PeerTimeoutError, "hanging@localhost did not answer in 0.05 s"),
        ("nobody@localhost", PeerUnavailableError, "nobody@localhost is not available: service unavailable"),
        ("elsewhere@closed.example", PeerRefusedError, "elsewhere@closed.example refuses: You don't have access to me yet."),
    ],
)
async def test_a_peer_that_fails_is_named_and_the_agent_continues(
    jid: str, error: type[PeerError], text: str, expected_errors: ExpectedErrors
) -> None:
    if jid == "broken@localhost":
        expected_errors("ZeroDivisionError: a secret")
    release = asyncio.Event()

    @agent
    async def hanging(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()

    others = {
        "broken@localhost": broken,
        "complaining@localhost": complaining,
        "hanging@localhost": hanging,
        "elsewhere@closed.example": witness,
    }
    async with AgentTester(asking, peers=others) as t:
        raised = (await t.ask(jid)).data[0]["data"]
        assert (raised["type"], raised["jid"]) == (error.__name__, jid)
        assert raised["text"].startswith(text)
        assert "secret" not in raised["text"]
        assert (await t.ask("nobody@localhost")).data[0]["data"]["type"] == "PeerUnavailableError"
        release.set()


async def test_an_agent_without_access_is_refused_each_time_up_to_a_limit_per_minute() -> None:
    stranger = "stranger@elsewhere.example"
    async with AgentTester(witness) as t:
        with LoopClock() as clock:
            for _ in range(31):
                with pytest.raises(PeerRefusedError, match="You don't have access to me yet"):
                    await t.ask("let me in", user=stranger)
            asking = asyncio.create_task(t.ask("let me in", user=stranger, timeout=60))
            await t.delivered()
            await clock.advance(61)
            with pytest.raises(PeerTimeoutError):
                await asking
            with pytest.raises(PeerRefusedError):
                await t.ask("let me in", user=stranger)
        assert t.gateways[t.jid].dropped["not admitted"] == 33
        assert await t.conversations() == []


async def test_many_questions_at_once_get_each_its_own_answer() -> None:
    @agent
    async def echo(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])

    @agent
    async def many(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        asked = [(jid, f"{jid} {n}") for n in range(20) for jid in ("one@localhost", "two@localhost")]
        answers = await asyncio.gather(*(peers.ask(jid, text) for jid, text in asked))
        await response.data({"equal": [answer.text for answer in answers] == [text for _, text in asked]})
        assert {answer.jid for answer in answers} == {"one@localhost", "two@localhost"}

    async with AgentTester(many, peers={"one@localhost": echo, "two@localhost": echo}) as t:
        assert (await t.ask("x")).data[0]["data"] == {"equal": True}


async def test_a_stream_is_forwarded_piece_by_piece() -> None:
    forwarded = asyncio.Event()

    @agent
    async def source(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stream = await response.create_stream("title")
        await stream.write("one ")
        await forwarded.wait()  # the next piece is not written before this one was passed on
        await stream.write("two")
        await stream.close()
        await response.markdown("three")

    @agent
    async def passing(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        stream = await response.create_stream()
        kinds = []
        async for event in peers.stream("source@localhost", "x"):
            kinds.append(event.type)
            if event.type == "stream.chunk":
                await stream.write(event.data["chunk"].upper())
        await response.data({"kinds": kinds})

    async with AgentTester(passing, peers={"source@localhost": source}) as t:
        seen = []
        async for event in t.stream("go"):
            seen.append(event)
            if event.type == "stream.chunk":
                forwarded.set()
    answer = collect_answer("x", seen)
    assert answer.text == "ONE TWO"
    assert answer.data[0]["data"]["kinds"] == [
        "stream.start",
        "stream.chunk",
        "stream.chunk",
        "stream.end",
        "block.markdown",
        "request.completed",
    ]


async def test_tell_starts_a_turn_and_ends_nothing() -> None:
    done = asyncio.Event()

    @agent
    async def worker(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("nobody hears this")
        done.set()

    @agent
    async def boss(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        await peers.tell("worker@localhost", "work")
        await response.markdown("told")

    async with AgentTester(boss, peers={"worker@localhost": worker}) as t:
        assert (await t.ask("x")).text == "told"
        await t.settled()
        assert done.is_set()
        assert t.unread() == []


async def test_cancelling_stops_the_work_of_every_agent_that_was_asked() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @agent
    async def last(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "go":
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        await response.markdown("done")

    def passing_on(to: str) -> Any:
        class Passing:
            manifest = AgentDefinition.simple("passing")

            def __init__(self, peers: Peers) -> None:
                self.peers = peers

            async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
                await response.markdown((await self.peers.ask(to, request.payload["query"])).text)

        return Passing

    async with AgentTester(passing_on(OTHER), peers={OTHER: passing_on(PEER), PEER: last}) as t:
        t.send_stanza("<message to='agent@localhost' type='chat' id='q1'><body>go</body></message>")
        await asyncio.wait_for(started.wait(), TIMEOUT_S)
        await t.say("/cancel")
        await asyncio.wait_for(stopped.wait(), TIMEOUT_S)
        await t.settled()
        assert await t.say("and now?") == ["done"]
        conversations = [await t.runners[jid].repository.list_conversations() for jid in (OTHER, PEER)]
    assert [[row.turns for row in rows] for rows in conversations] == [[1], [1]]  # of what was cancelled nothing


async def test_a_timeout_stops_the_work_of_the_agent_that_was_asked() -> None:
    stopped = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        await response.markdown("done")

    class ImpatientAgent:
        manifest = AgentDefinition.simple("impatient")

        def __init__(self, peers: Peers) -> None:
            self.peers = peers

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            query = request.payload["query"]
            try:
                answer = await self.peers.ask(PEER, query, timeout=1.0 if query == "slow" else TIMEOUT_S)
            except PeerTimeoutError:
                await response.markdown("too slow")
            else:
                await response.markdown(answer.text)

    async with AgentTester(ImpatientAgent, peers={PEER: slow}) as t:
        assert await t.say("slow") == ["too slow"]
        await asyncio.wait_for(stopped.wait(), TIMEOUT_S)
        await t.settled()
        assert await t.say("and now?") == ["done"]


async def leave_a_closed_stream(peers: Peers, jid: str | Capability) -> None:
    async with aclosing(peers.stream(jid, "endless")) as events:
        async for _ in events:
            return


async def break_out_of_a_stream(peers: Peers, jid: str | Capability) -> None:
    async for _ in peers.stream(jid, "endless"):
        break


async def be_cancelled_in_the_loop(peers: Peers, jid: str | Capability) -> None:
    entered = asyncio.Event()

    async def read() -> None:
        async for _ in peers.stream(jid, "endless"):
            entered.set()
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await entered.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("leave", [leave_a_closed_stream, break_out_of_a_stream, be_cancelled_in_the_loop])
@pytest.mark.parametrize("jid", [PEER, Capability("chat")], ids=["JID", "capability"])
async def test_a_stream_that_is_left_early_stops_the_work_of_the_agent_that_was_asked(
    leave: Callable[[Peers, str | Capability], Awaitable[None]], jid: str | Capability
) -> None:
    stopped = asyncio.Event()

    class Talker:
        manifest = AgentDefinition.simple("talker")

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            await response.markdown("first")
            if request.payload["query"] == "endless":
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()

    @agent
    async def hasty(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        await leave(peers, jid)
        await asyncio.wait_for(stopped.wait(), TIMEOUT_S)
        await response.markdown((await peers.ask(jid, "and now?")).text)

    async with AgentTester(hasty, peers={PEER: Talker}) as t:
        assert await t.say("go", timeout=2 * TIMEOUT_S) == ["first"]
