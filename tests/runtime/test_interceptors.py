"""Interceptors decide on new requests before they are stored, and run around the agent. A fault lets no request pass."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ConfigError, Response, Session
from spade_coreason.config import load_settings
from spade_coreason.contracts import Accept, ErrorCode, Interceptor, Next, ReceivedRequest, Refuse
from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError
from spade_coreason.runtime.admission import MAX_HOPS
from spade_coreason.runtime.interceptors import chain_around
from spade_coreason.testing import Policy
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE
from tests.support.runner import RunnerHarness
from tests.support.stanzas import collect_replies, message
from tests.support.wait import eventually

BOB = "bob@localhost"
TOO_FAST = Refuse(ErrorCode.TOO_MANY_REQUESTS, "Too fast.", 12.5)


class EchoAgent:
    """Repeats each query."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("echo")
        self.queries: list[Any] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.queries.append(request.payload.get("query"))
        if request.payload.get("query") == "raise":
            raise ValueError("out of order")
        await response.markdown(f"{request.payload.get('query')}")


class Recorder(Interceptor):
    """Records the queries of the requests that it decides on, and answers with a verdict."""

    def __init__(self, decide: Callable[[ReceivedRequest], Any] = lambda request: Accept()) -> None:
        self.decide = decide
        self.received: list[Any] = []

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        self.received.append(request.payload.get("query"))
        verdict: Accept | Refuse = self.decide(request)
        return verdict


class Bracket(Interceptor):
    """Writes its name before and after the rest of the chain."""

    def __init__(self, name: str, steps: list[str]) -> None:
        self.name = name
        self.steps = steps

    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        self.steps.append(f"{self.name} begins")
        try:
            await next(request, session, response)
        finally:
            self.steps.append(f"{self.name} ends")


def refuse_word(word: str) -> Callable[[ReceivedRequest], Accept | Refuse]:
    return lambda request: TOO_FAST if request.payload.get("query") == word else Accept()


# Receiving


async def test_requests_are_decided_once_and_in_the_order_of_their_arrival() -> None:
    recorder = Recorder()
    async with AgentTester(EchoAgent(), user=ALICE, interceptors=[recorder]) as t:
        for number in range(5):
            t.send(f"{number}", thread="t" if number % 2 else None)
        await t.settled()
        assert recorder.received == [f"{number}" for number in range(5)]
        assert sorted(t.unread()) == recorder.received


async def test_a_duplicate_is_not_decided_again() -> None:
    recorder = Recorder()
    async with AgentTester(EchoAgent(), user=ALICE, interceptors=[recorder]) as t:
        first = await collect_replies(t, message("one", "1"))
        assert len(first) == 1
        recorder.decide = lambda request: TOO_FAST
        assert await collect_replies(t, message("one", "1")) == []
        await t.restart()
        assert await collect_replies(t, message("one", "1")) == []
        assert recorder.received == ["one"]


async def test_a_request_that_runs_again_after_a_restart_is_not_decided_again() -> None:
    class HangingAgent(EchoAgent):
        def __init__(self) -> None:
            super().__init__()
            self.begun = asyncio.Event()

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            if not request.metadata.get("redelivered"):
                self.begun.set()
                await asyncio.Event().wait()
            await super().assist(request, session, response)

    hanging, recorder = HangingAgent(), Recorder()
    async with AgentTester(hanging, user=ALICE, interceptors=[recorder]) as t:
        t.send("one")
        await hanging.begun.wait()
        recorder.decide = lambda request: TOO_FAST
        await t.restart(grace_s=0)
        await t.settled()
        assert t.unread() == ["one"]
        assert recorder.received == ["one"]


async def test_a_refused_request_is_not_stored_and_may_be_sent_again(database_url: str) -> None:
    recorder = Recorder(lambda request: TOO_FAST)
    async with RunnerHarness(database_url, EchoAgent(), interceptors=[recorder]) as harness:
        incoming = InboundRequest("person", f"{ALICE}/x", "1", "t", {"query": "one"}, "one", owner=ALICE)
        assert harness.runner.receive(incoming) is None
        await harness.database.write(lambda connection: None)
        assert await harness.repository.inbox.load_received_from(ALICE) == []
        recorder.decide = lambda request: Accept()
        stored = harness.runner.receive(incoming)
        assert stored is not None
        assert await stored
        await harness.runner.wait_until_idle()
        assert recorder.received == ["one", "one"]
        assert harness.agent.queries == ["one"]


async def test_a_program_is_told_of_each_refusal_and_a_person_once_a_minute() -> None:
    agent = EchoAgent()
    async with AgentTester(agent, user=ALICE, interceptors=[Recorder(lambda request: TOO_FAST)]) as t:
        for _ in range(3):
            with pytest.raises(PeerRefusedError, match=r"Too fast\.") as caught:
                await t.ask("one")
            assert caught.value.retry_after_s == 12.5
        t.send("one")
        t.send("two")
        await t.settled()
        assert t.unread() == ["Too fast."]
        assert agent.queries == []
        assert await t.conversations() == []


async def test_the_first_interceptor_that_refuses_decides() -> None:
    first, second, third = Recorder(), Recorder(refuse_word("no")), Recorder()
    async with AgentTester(EchoAgent(), interceptors=[first, second, third]) as t:
        await t.ask("yes")
        with pytest.raises(PeerRefusedError):
            await t.ask("no")
        assert [interceptor.received for interceptor in (first, second, third)] == [["yes", "no"], ["yes", "no"], ["yes"]]


async def test_the_limits_of_hops_and_capacity_come_first() -> None:
    recorder = Recorder()
    async with AgentTester(EchoAgent(), user=ALICE, policy=Policy(queue=2), interceptors=[recorder]) as t:
        t.runners[t.jid].control.pause()
        for number in range(4):
            t.send(f"{number}", thread="t")
        await eventually(lambda: any("2 messages of this conversation wait already" in (m.text or "") for m in t.messages()))
        assert recorder.received == ["0", "1"]
        t.runners[t.jid].control.resume()
        await t.settled()
        incoming = InboundRequest("program", f"{BOB}/x", "1", "u", {"query": "circle"}, "", hops=MAX_HOPS + 1, owner=BOB)
        assert t.runners[t.jid].receive(incoming) is None
        assert recorder.received == ["0", "1"]


async def test_a_new_request_that_looks_like_a_duplicate_is_decided_before_its_turn(database_url: str) -> None:
    recorder = Recorder(refuse_word("no"))
    async with RunnerHarness(database_url, EchoAgent(), interceptors=[recorder]) as harness:
        for number, query in enumerate(("no", "yes")):
            incoming = InboundRequest("person", f"{ALICE}/x", f"{number}", "t", {"query": query}, query, owner=ALICE)
            key = derive_inbox_key(AGENT, ALICE, incoming.stanza_id, incoming.content)
            harness.database.inbox_keys.add(key.bytes, 10**6)  # no request has this row
            stored = harness.runner.receive(incoming)
            assert stored is not None
            assert await stored
            await harness.runner.wait_until_idle()
        assert recorder.received == ["no", "yes"]
        assert harness.agent.queries == ["yes"]
        assert "Too fast." in harness.sent[0]


async def test_the_request_says_who_sends_what_and_how() -> None:
    seen: list[tuple[Any, ...]] = []

    def see(request: ReceivedRequest) -> Accept:
        known = request.sender.partition("/")[0], request.owner, request.channel, request.thread, request.hops
        seen.append((*known, dict(request.payload), request.request_id is not None))
        return Accept()

    async with AgentTester(EchoAgent(), user=ALICE, interceptors=[Recorder(see)]) as t:
        t.send("hello", thread="t")
        await t.settled()
        await t.ask({"query": "and", "more": 1}, user=BOB)
    assert seen == [
        (ALICE, ALICE, "person", "t", 0, {"query": "hello"}, False),
        (BOB, BOB, "program", None, 0, {"query": "and", "more": 1}, True),
    ]


def raise_exit(request: ReceivedRequest) -> Accept:
    sys.exit("out")


def divide(request: ReceivedRequest) -> Accept:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("decide", "logged"),
    [
        (raise_exit, "SystemExit: out"),
        (divide, "ZeroDivisionError"),
        (lambda request: None, "Recorder.receive returned None, neither Accept nor Refuse"),
        (lambda request: True, "Recorder.receive returned True, neither Accept nor Refuse"),
        (lambda request: Accept, "neither Accept nor Refuse"),
    ],
)
async def test_a_fault_refuses_the_request_and_is_logged_with_its_incident(
    decide: Callable[[ReceivedRequest], Any], logged: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a request of")
    agent = EchoAgent()
    async with AgentTester(agent, user=ALICE, interceptors=[Recorder(decide)]) as t:
        with pytest.raises(PeerFailedError, match=r"Something went wrong on my side \(incident ([0-9a-f]{8})\)") as caught:
            await t.ask("one")
        assert caught.value.code == ErrorCode.INTERNAL
        incident = str(caught.value).rpartition("incident ")[2][:8]
        assert f"incident {incident}: a request of {ALICE}" in caplog.text
        assert logged in caplog.text
        assert agent.queries == []


# Around the agent


async def test_interceptors_are_around_the_agent_and_the_first_is_outermost() -> None:
    steps: list[str] = []
    async with AgentTester(EchoAgent(), interceptors=[Bracket("a", steps), Recorder(), Bracket("b", steps)]) as t:
        assert (await t.ask("one")).text == "one"
    assert steps == ["a begins", "b begins", "b ends", "a ends"]


async def test_an_empty_chain_is_the_agent_itself() -> None:
    agent = EchoAgent()
    assert chain_around(agent, []) == agent.assist
    assert chain_around(agent, [Recorder()]) == agent.assist


async def test_an_interceptor_may_change_the_request_or_answer_by_itself() -> None:
    class Moderator(Interceptor):
        async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
            if request.payload["query"] == "bad":
                await response.markdown("Not with me.")
                return
            await next(request.model_copy(update={"payload": {"query": "good"}}), session, response)

    agent = EchoAgent()
    async with AgentTester(agent, interceptors=[Moderator()]) as t:
        assert (await t.ask("bad")).text == "Not with me."
        assert (await t.ask("any")).text == "good"
    assert agent.queries == ["good"]


async def test_an_exception_of_an_interceptor_fails_the_turn(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")

    class Faulty(Interceptor):
        async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
            raise ZeroDivisionError

    agent = EchoAgent()
    async with AgentTester(agent, interceptors=[Faulty()]) as t:
        with pytest.raises(PeerFailedError, match="Something went wrong on my side"):
            await t.ask("one")
    assert agent.queries == []


async def test_an_interceptor_sees_the_exception_of_the_agent(expected_errors: ExpectedErrors) -> None:
    expected_errors("incident")
    steps: list[str] = []
    async with AgentTester(EchoAgent(), interceptors=[Bracket("a", steps)]) as t:
        with pytest.raises(PeerFailedError, match="Something went wrong on my side"):
            await t.ask("raise")
    assert steps == ["a begins", "a ends"]


async def test_the_time_limit_of_a_turn_includes_its_interceptors(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than")

    class Slow(Interceptor):
        async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
            await asyncio.Event().wait()

    async with AgentTester(EchoAgent(), policy=Policy(assist_timeout_s=0.05), interceptors=[Slow()]) as t:
        with pytest.raises(PeerFailedError, match="I could not finish this within"):
            await t.ask("one")


async def test_the_stack_inside_an_agent_tells_the_way_of_its_request() -> None:
    stacks: list[list[str]] = []

    class StackAgent(EchoAgent):
        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            stacks.append([f"{Path(frame.filename).stem}.{frame.name}" for frame in traceback.extract_stack()])

    async with AgentTester(StackAgent(), interceptors=[Bracket("a", [])]) as t:
        await t.ask("one")
    [stack] = stacks
    assert stack[stack.index("mailboxes._run_worker") :] == [
        "mailboxes._run_worker",
        "runner.handle",
        "runner._answer",
        "turn.run",
        "concurrency.run",
        "interceptors.assist",
        "test_interceptors.assist",
        "test_interceptors.assist",
    ]


# Making


class PerAgent(Interceptor):
    """Keeps the agent that it is made for."""

    made: list[str] = []  # noqa: RUF012 - of all instances, for the test

    def __init__(self, agent: str) -> None:
        self.made.append(agent)


class AsyncReceive(Interceptor):
    async def receive(self, request: ReceivedRequest) -> Accept:  # type: ignore[override]
        return Accept()


class PlainAssist(Interceptor):
    def assist(self, *_: Any) -> None:  # type: ignore[override]
        return None


class FailsToBeMade(Interceptor):
    def __init__(self) -> None:
        raise OSError("no such limit")


async def test_a_class_is_called_for_each_agent_and_an_instance_is_shared() -> None:
    PerAgent.made.clear()
    shared = Recorder()
    async with AgentTester(EchoAgent, peers={"other": EchoAgent}, interceptors=[PerAgent, shared]) as t:
        await t.ask("one")
        await t.ask("two", to="other@localhost")
    assert PerAgent.made == ["agent@localhost", "other@localhost"]
    assert shared.received == ["one", "two"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (AsyncReceive, "AsyncReceive.receive must not wait; write def receive, without async"),
        (PlainAssist, "PlainAssist.assist is no coroutine function; write async def assist"),
        (FailsToBeMade, "FailsToBeMade cannot be made: OSError"),
        (EchoAgent, "is no interceptor; derive its class from spade_coreason.contracts.Interceptor"),
        (5, "5 is no interceptor; derive its class from spade_coreason.contracts.Interceptor"),
    ],
)
async def test_a_wrong_interceptor_is_one_line(source: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with AgentTester(EchoAgent, interceptors=[source]):
            pass
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["limits", "limits.RateLimit", "", ":x"])
def test_a_name_in_the_configuration_that_is_none_is_one_line(tmp_path: Path, value: str) -> None:
    (tmp_path / "platform.yaml").write_text(f'interceptors: ["{value}"]', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "platform.yaml", tmp_path, {})
    assert "interceptors[0]" in str(caught.value)
    assert 'write it like "limits:RateLimit"' in str(caught.value)
