"""Many requests to peers: together, as a race, again after a refusal, within a time, in no circle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentRequest, AgentTester, PeerAnswer, PeerError, Peers, Response, Retry, Session, agent, contracts
from spade_coreason.domain.messages import ReplyEvent, RequestContext
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError
from spade_coreason.runtime import FanOutLimit
from spade_coreason.xmpp.codec.decode import decode
from tests.support.transports import request_stanza
from tests.support.wait import TIMEOUT_S

ONE, TWO, THREE, NOBODY = "one@localhost", "two@localhost", "three@localhost", "nobody@localhost"


@agent
async def echo(request: AgentRequest, session: Session, response: Response) -> None:
    if request.payload["query"] == "fail":
        await response.error("no")
    else:
        await response.markdown(request.payload["query"])


def run(work: Any) -> Any:
    """Make an agent of a function that takes `peers`, whose result is the data of the answer."""

    @agent
    async def running(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
        await response.data({"result": await work(peers)})

    return running


async def result_of(work: Any, peers: dict[str, Any], **options: Any) -> Any:
    async with AgentTester(run(work), peers=peers, **options) as t:
        result = (await t.ask("go", timeout=TIMEOUT_S)).data[0]["data"]["result"]
        assert not any(runner.mailboxes.busy_count for runner in t.runners.values())
    return result


def outcome(answer: PeerAnswer | PeerError) -> str:
    return answer.text if isinstance(answer, PeerAnswer) else type(answer).__name__


async def test_gather_returns_answers_and_errors_in_the_order_of_the_asks() -> None:
    async def work(peers: Peers) -> Any:
        asks = [(ONE, "a"), (NOBODY, "b"), (TWO, "fail"), (ONE, "c"), (TWO, "d")]
        return [outcome(answer) for answer in await peers.gather(asks)]

    assert await result_of(work, {ONE: echo, TWO: echo}) == ["a", "PeerUnavailableError", "PeerFailedError", "c", "d"]


@pytest.mark.parametrize("separate", [True, False])
async def test_gather_keeps_its_limit_and_separate_asks_of_one_peer_run_at_once(separate: bool) -> None:
    running, most = Counter[str](), Counter[str]()
    enough = asyncio.Event()

    @agent
    async def busy(request: AgentRequest, session: Session, response: Response) -> None:
        running["now"] += 1
        most["at once"] = max(most["at once"], running["now"])
        if running["now"] == 4 or not separate:
            enough.set()
        await enough.wait()
        running["now"] -= 1
        await response.markdown(f"{request.payload['query']} {len(await session.history(100))}")

    async def work(peers: Peers) -> Any:
        answers = await peers.gather([(ONE, str(n)) for n in range(12)], limit=4, separate=separate)
        return [outcome(answer) for answer in answers]

    answers = await result_of(work, {ONE: busy})
    assert [answer.partition(" ")[0] for answer in answers] == [str(n) for n in range(12)]
    assert most["at once"] == (4 if separate else 1)
    histories = {answer.partition(" ")[2] for answer in answers}
    assert histories == ({"0"} if separate else {str(n) for n in range(12)})


async def test_gather_needs_a_limit_of_one_or_more() -> None:
    async def work(peers: Peers) -> Any:
        with pytest.raises(ValueError, match="limit must be 1 or more, not 0"):
            await peers.gather([(ONE, "a")], limit=0)

    await result_of(work, {ONE: echo})


class Waiting:
    """Waits until it is released or cancelled."""

    def __init__(self) -> None:
        self.begun, self.cancelled, self.release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def build(self) -> Any:
        @agent
        async def waiting(request: AgentRequest, session: Session, response: Response) -> None:
            self.begun.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            await response.markdown("released")

        return waiting


async def test_first_returns_the_first_answer_and_stops_the_others() -> None:
    slow = Waiting()

    @agent
    async def quick(request: AgentRequest, session: Session, response: Response) -> None:
        await slow.begun.wait()
        await response.markdown("quick")

    async def work(peers: Peers) -> Any:
        return [outcome(await peers.first([NOBODY, ONE, TWO], "go"))]

    async with AgentTester(run(work), peers={ONE: slow.build(), TWO: quick}) as t:
        assert (await t.ask("go")).data[0]["data"]["result"] == ["quick"]
        async with asyncio.timeout(TIMEOUT_S):
            await slow.cancelled.wait()
            await t.settled()
        assert [row.turns for row in await t.runners[ONE].repository.list_conversations()] == [0]


async def test_first_raises_the_last_failure_and_names_the_others() -> None:
    async def work(peers: Peers) -> Any:
        with pytest.raises(PeerError) as error:
            await peers.first([ONE, NOBODY], "fail")
        with pytest.raises(ValueError, match="at least one agent"):
            await peers.first([], "go")
        return [str(error.value), *error.value.__notes__]

    assert sorted(await result_of(work, {ONE: echo})) == [
        "nobody@localhost is not available: service unavailable",
        "one@localhost reports: no",
    ]


def test_a_retry_is_for_bounces_and_for_refusals_that_say_when() -> None:
    retry = Retry(attempts=3, wait_s=0.5, factor=3)
    assert retry.wait_after(1, PeerUnavailableError(ONE, "x")) == 0.5
    assert retry.wait_after(2, PeerUnavailableError(ONE, "x")) == 1.5
    assert retry.wait_after(3, PeerUnavailableError(ONE, "x")) is None
    assert retry.wait_after(1, PeerRefusedError(ONE, "x", 7.0)) == 7.0
    assert retry.wait_after(2, PeerRefusedError(ONE, "x", 1.0)) == 1.5
    assert retry.wait_after(1, PeerRefusedError(ONE, "x")) is None
    assert retry.wait_after(1, PeerTimeoutError(ONE, 1.0, has_started=False)) is None
    assert retry.wait_after(1, PeerFailedError(ONE, "x", 500)) is None


async def test_an_ask_is_sent_again_after_a_refusal_with_the_same_id() -> None:
    seen: list[str] = []

    class RefuseTwice(contracts.Interceptor):
        def receive(self, request: contracts.ReceivedRequest) -> contracts.Accept | contracts.Refuse:
            if request.payload.get("query") != "again":
                return contracts.Accept()
            seen.append(str(request.request_id))
            if len(seen) <= 2:
                return contracts.Refuse(contracts.ErrorCode.TOO_MANY_REQUESTS, "not now", 0.01)
            return contracts.Accept()

    async def work(peers: Peers) -> Any:
        with pytest.raises(PeerRefusedError, match="not now"):
            await peers.ask(ONE, "again", retry=Retry(attempts=1))
        seen.clear()
        answer = await peers.ask(ONE, "again", retry=Retry(attempts=3, wait_s=0.001))
        return answer.text

    assert await result_of(work, {ONE: echo}, interceptors=[RefuseTwice()]) == "again"
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    async def work(peers: Peers) -> Any:
        with pytest.raises(PeerUnavailableError):
            await peers.ask(NOBODY, "x", timeout=60.0, retry=Retry(wait_s=3600.0))
        return "at once"

    assert await result_of(work, {}) == "at once"


async def test_a_child_never_has_more_time_than_its_parent() -> None:
    deadlines: list[float] = []
    times: list[float] = []

    @agent
    async def last(request: AgentRequest, session: Session, response: Response) -> None:
        times.append(time.time())
        deadlines.append(request.metadata["deadline"])

    @agent
    async def middle(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
        deadlines.append(request.metadata["deadline"])
        times.append(time.time())
        await peers.ask(TWO, "x", timeout=1000.0)
        await peers.ask(TWO, "x", timeout=1.0)

    async def work(peers: Peers) -> Any:
        await peers.ask(ONE, "x", timeout=20.0)

    await result_of(work, {ONE: middle, TWO: last})
    parent, inherited, shorter = deadlines
    asked_at, received_at, _ = times
    on_the_way_s = received_at - asked_at  # whole milliseconds travel, so that no clocks are compared
    assert parent - 0.002 <= inherited <= parent + on_the_way_s
    assert shorter < parent - 10


def send_request(t: AgentTester, query: str, context: RequestContext) -> None:
    """Send a request of a program with attributes that `AgentTester.ask` does not set."""
    request = AgentRequest(session_id=uuid4(), payload={"query": query})
    t.send_stanza(request_stanza(t.jid, request.dump(), source="x", thread=None, stanza_id="1", context=context))


def replies(t: AgentTester) -> list[tuple[str, Any]]:
    """Return the types and messages of the events that the program got for `send_request`."""
    decoded = [decode(message.xml) for message in t.messages()]
    return [(reply.type, reply.data.get("message")) for reply in decoded if isinstance(reply, ReplyEvent)]


async def test_a_request_whose_time_is_over_is_refused_without_a_run() -> None:
    first, runs = Waiting(), []

    @agent
    async def one_by_one(request: AgentRequest, session: Session, response: Response) -> None:
        runs.append(request.payload["query"])
        first.begun.set()
        await first.release.wait()

    async with AgentTester(one_by_one) as t:
        t.send("ahead")
        await first.begun.wait()
        send_request(t, "late", RequestContext(deadline=1.0))
        await t.delivered()
        first.release.set()
        await t.settled()
        assert replies(t) == [("request.refused", "There is no time left for this request. It waited too long.")]
        assert runs == ["ahead"]


async def test_an_ask_without_time_left_is_not_sent() -> None:
    async def work(peers: Peers) -> Any:
        with pytest.raises(PeerTimeoutError):
            await peers.ask(ONE, "x", timeout=0.0)
        return "not sent"

    seen: list[str] = []

    @agent
    async def never(request: AgentRequest, session: Session, response: Response) -> None:
        seen.append("x")

    assert await result_of(work, {ONE: never}) == "not sent"
    assert seen == []


async def test_a_circle_is_refused_with_its_chain() -> None:
    def passing_on(to: str) -> Any:
        @agent
        async def passing(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
            try:
                answer = await peers.ask(to, "x")
            except PeerRefusedError as error:
                await response.data({"error": str(error), "chain": request.metadata.get("chain", [])})
            else:
                await response.data(dict(answer.data[0]["data"]))

        return passing

    async with AgentTester(passing_on(ONE), peers={ONE: passing_on(TWO), TWO: passing_on(ONE)}) as t:
        told = (await t.ask("go")).data[0]["data"]
        assert told["chain"] == ["agent@localhost", ONE]
        assert told["error"] == (f"{ONE} was not asked: agents would ask in a circle: agent@localhost → {ONE} → {TWO} → {ONE}")


async def test_a_circle_through_an_agent_that_does_not_look_is_refused_where_it_closes() -> None:
    async with AgentTester(echo) as t:
        send_request(t, "x", RequestContext(hops=2, chain=("agent@localhost", "careless@example.org")))
        await t.settled()
        chain = "agent@localhost → careless@example.org → agent@localhost"
        assert replies(t) == [("request.refused", f"Agents ask each other in a circle: {chain}.")]


async def test_one_request_leads_to_a_limited_number_of_others() -> None:
    limit = FanOutLimit(2)
    root, other = uuid4(), uuid4()
    assert [limit.allow(root), limit.allow(root), limit.allow(root), limit.allow(other)] == [True, True, False, True]


async def test_a_stop_takes_no_request_back_and_the_peer_goes_on() -> None:
    peer = Waiting()

    async def work(peers: Peers) -> Any:
        return (await peers.ask(ONE, "x")).text

    async with AgentTester(run(work), peers={ONE: peer.build()}) as t:
        t.send("go")
        await peer.begun.wait()
        assert not await t.runners[t.jid].drain(0.0)
        await t.delivered()
        peer.release.set()
        await t.runners[ONE].mailboxes.wait_until_idle()
        assert not peer.cancelled.is_set()
        assert [row.turns for row in await t.runners[ONE].repository.list_conversations()] == [1]
