"""Interceptors decide on new requests before they are stored, and run around the agent. A fault lets no request pass."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ConfigError, Interaction, Response, Session, command
from spade_coreason.config import load_settings
from spade_coreason.contracts import Accept, CloudEvent, ErrorCode, Interceptor, Next, ReceivedRequest, Refuse, ResponseWrapper
from spade_coreason.domain.channel_kinds import PROGRAM
from spade_coreason.domain.identifiers import derive_inbox_key
from spade_coreason.domain.messages import RequestContext
from spade_coreason.exceptions import PeerFailedError, PeerRefusedError
from spade_coreason.runtime.access.admission import MAX_HOPS
from spade_coreason.runtime.interceptors import chain_around
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.support.databases import SAME_STANZA
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE
from tests.support.requests import build_incoming
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
        first = await collect_replies(t, message("one", "1", is_unique=True))
        assert len(first) == 1
        recorder.decide = lambda request: TOO_FAST
        assert await collect_replies(t, message("one", "1", is_unique=True)) == []
        await t.restart()
        assert await collect_replies(t, message("one", "1", is_unique=True)) == []
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
        incoming = build_incoming("one", ALICE, stanza_id="1")
        assert harness.runner.intake.receive(incoming) is None
        await harness.database.write(lambda connection: None)
        assert await harness.repository.inbox.load_received_from(ALICE) == []
        recorder.decide = lambda request: Accept()
        stored = harness.runner.intake.receive(incoming)
        assert stored is not None
        assert await stored
        await harness.runner.mailboxes.wait_until_idle()
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
    async with AgentTester(
        EchoAgent(), user=ALICE, policy=Policy(limits=PlatformLimits(queue=2)), interceptors=[recorder]
    ) as t:
        t.runners[t.jid].control.set_paused(True)
        for number in range(4):
            t.send(f"{number}", thread="t")
        await eventually(
            lambda: any("This conversation already has 2 messages waiting" in (m.text or "") for m in t.messages())
        )
        assert recorder.received == ["0", "1"]
        t.runners[t.jid].control.set_paused(False)
        await t.settled()
        incoming = build_incoming(
            "circle", BOB, PROGRAM, stanza_id="1", thread="u", content="", context=RequestContext(MAX_HOPS + 1)
        )
        assert t.runners[t.jid].intake.receive(incoming) is None
        assert recorder.received == ["0", "1"]


async def test_a_new_request_that_looks_like_a_duplicate_is_decided_before_its_turn(database_url: str) -> None:
    recorder = Recorder(refuse_word("no"))
    async with RunnerHarness(database_url, EchoAgent(), interceptors=[recorder]) as harness:
        for number, query in enumerate(("no", "yes")):
            incoming = build_incoming(query, ALICE, stanza_id=f"{number}", evidence=SAME_STANZA)
            key = derive_inbox_key(AGENT, ALICE, incoming.stanza_id, incoming.content)
            harness.database.inbox_index.keys.add(key.bytes, 10**6)  # no request has this row
            stored = harness.runner.intake.receive(incoming)
            assert stored is not None
            assert await stored
            await harness.runner.mailboxes.wait_until_idle()
        assert recorder.received == ["no", "yes"]
        assert harness.agent.queries == ["yes"]
        assert "Too fast." in harness.sent[0]


class CommandedAgent(EchoAgent):
    """Has a command of its own."""

    @command("secret", "tells a secret")
    async def tell(self, session: Session) -> str:
        return "It is 7."


async def test_the_commands_of_the_agent_are_decided_and_those_of_the_platform_are_not() -> None:
    recorder = Recorder(lambda request: TOO_FAST)
    async with AgentTester(CommandedAgent(), user=ALICE, interceptors=[recorder]) as t:
        assert "/secret" in (await t.say("/help"))[0]
        assert await t.say("/cancel") == ["There is nothing to stop."]
        assert recorder.received == []
        assert await t.say("/secret") == ["Too fast."]
        runner = t.runners[t.jid]
        [secret] = [known for known in runner.executor.commands.all if known.name == "secret"]
        result = await runner.executor.run_command(ALICE, secret, {})  # as from the menu of a client
        assert (result.text, result.is_error) == ("Too fast.", True)
        assert recorder.received == ["/secret", "/secret"]
        recorder.decide = lambda request: Accept()
        assert (await runner.executor.run_command(ALICE, secret, {})).text == "It is 7."


async def test_an_instance_may_set_its_methods_when_it_is_made() -> None:
    class Switch(Interceptor):
        def __init__(self) -> None:
            self.receive = self.refuse  # type: ignore[method-assign]

        def refuse(self, request: ReceivedRequest) -> Accept | Refuse:
            return TOO_FAST

    async with AgentTester(EchoAgent(), interceptors=[Switch()]) as t:
        with pytest.raises(PeerRefusedError):
            await t.ask("one")


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


def raise_interrupt(request: ReceivedRequest) -> Accept:
    raise KeyboardInterrupt


def divide(request: ReceivedRequest) -> Accept:
    raise ZeroDivisionError


def wait_for_a_cancelled_future(request: ReceivedRequest) -> Accept:
    future: asyncio.Future[Accept] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future.result()


def write_into_the_payload(request: ReceivedRequest) -> Accept:
    request.payload["query"] = "/help"  # type: ignore[index]
    return Accept()


@pytest.mark.parametrize(
    ("decide", "logged"),
    [
        (wait_for_a_cancelled_future, "CancelledError"),
        (write_into_the_payload, "TypeError: 'mappingproxy' object does not support item assignment"),
        (lambda request: Refuse(ErrorCode.INTERNAL, ""), "ValueError: the text of a refusal"),
        (lambda request: Refuse("too fast", ErrorCode.TOO_MANY_REQUESTS), "ValueError: 'too fast' is not a valid ErrorCode"),  # type: ignore[arg-type]
        (
            lambda request: Refuse(ErrorCode.INTERNAL, "No.", float("inf")),
            "ValueError: retry_after_s must be a number of seconds",
        ),
        (raise_exit, "SystemExit: out"),
        (raise_interrupt, "KeyboardInterrupt"),
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


async def test_without_an_interceptor_around_it_an_agent_has_no_chain() -> None:
    warnings: list[tuple[str, object]] = []
    agent = EchoAgent()
    assert chain_around(agent, [], lambda *warning: warnings.append(warning)) is None
    assert chain_around(agent, [Recorder()], lambda *warning: warnings.append(warning)) is None
    assert warnings == []


@pytest.mark.parametrize("interceptors", [[], [Bracket("a", [])]], ids=["no chain", "a chain"])
async def test_an_agent_may_replace_its_assist_when_it_starts(interceptors: list[Interceptor]) -> None:
    class LateAgent(EchoAgent):
        async def startup(self) -> None:
            self.assist = self.really_assist  # type: ignore[method-assign]

        async def really_assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await response.markdown("started")

    async with AgentTester(LateAgent, interceptors=interceptors) as t:
        assert (await t.ask("one")).text == "started"


async def test_each_assist_that_returns_something_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class ReturningAgent(EchoAgent):
        async def assist(self, request: AgentRequest, session: Session, response: Response) -> str:  # type: ignore[override]
            return "for nobody"

    class ReturningInterceptor(Interceptor):
        async def assist(  # type: ignore[override]
            self, request: AgentRequest, session: Session, response: Response, next: Next
        ) -> Refuse:
            await next(request, session, response)
            return TOO_FAST

    async with AgentTester(ReturningAgent(), interceptors=[ReturningInterceptor()]) as t:
        await t.ask("one")
        await t.ask("two")
    warnings = [record.getMessage() for record in caplog.records if "return values are ignored" in record.getMessage()]
    assert len(warnings) == 2
    assert "assist returned a str" in warnings[0]
    assert "ReturningInterceptor.assist returned a Refuse" in warnings[1]


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


class EloquentAgent(EchoAgent):
    """Uses every method of a response."""

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.thought("hm")
        await response.step("looks")
        await response.markdown("text")
        await response.data({"a": 1}, "title", "KEY_VALUE")
        stream = await response.create_stream("stream")
        await stream.write("streamed")
        await stream.close()
        await response.ask("which?", ["this", "that"])
        await response.log("info", "noted", {"b": 2})
        await response.audit("me", "did", "it", True)
        await response.emit(CloudEvent(type="own", source="here", data={"c": 3}))
        await response.error("not quite", {"d": 4}, recoverable=True)


async def test_a_wrapped_response_passes_everything_on() -> None:
    class Wrapping(Interceptor):
        async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
            await next(request, session, ResponseWrapper(response))

    seen = []
    for interceptors in ([], [Wrapping()]):
        async with AgentTester(EloquentAgent, interceptors=interceptors) as t:
            events: list[Any] = []
            try:
                async for event in t.stream("go"):
                    events.append(event)
            except PeerFailedError as error:
                events.append(error)
            repository = t.runners[t.jid].repository
            [record] = await repository.list_conversations()
            [turn] = [Interaction.model_validate_json(text) for text in await repository.turns.load_history(record.id, 1)]
            kinds = [(event.type, event.data.get("content"), event.data.get("data")) for event in events[:-1]]
            seen.append(
                (
                    kinds,
                    str(events[-1]),
                    turn.output["text"],
                    turn.output["error"]["user_message"],
                    [e["type"] for e in turn.events],
                )
            )
    assert seen[0] == seen[1]
    assert len(seen[0][0]) >= 7
    assert len(seen[0][4]) == 3


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

    async with AgentTester(EchoAgent(), policy=Policy(rules=Rules(assist_timeout_s=0.05)), interceptors=[Slow()]) as t:
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
    assert stack[stack.index("mailboxes.run") :] == [
        "mailboxes.run",
        "mailboxes._run_item",
        "request_handler.handle",
        "request_handler.answer",
        "turn_execution.execute",
        "turn.run",
        "concurrency.run",
        "interceptors.assist",
        "test_interceptors.assist",
        "interceptors.assist_of_agent",
        "test_interceptors.assist",
    ]


# Making


class PerAgent(Interceptor):
    """Keeps the agent that it is made for."""

    made: list[str] = []  # noqa: RUF012 - of all instances, for the test

    def __init__(self, agent: str) -> None:
        self.made.append(agent)

    def receive(self, request: ReceivedRequest) -> Accept:
        return Accept()


class AsyncReceive(Interceptor):
    async def receive(self, request: ReceivedRequest) -> Accept:  # type: ignore[override]
        return Accept()


class PlainAssist(Interceptor):
    def assist(self, *_: Any) -> None:  # type: ignore[override]
        return None


class Misspelt(Interceptor):
    def recieve(self, request: ReceivedRequest) -> Accept:
        return Accept()


class Needs(Interceptor):
    def __init__(self, limit: int, *, burst: int, name: str = "") -> None:
        self.limit = limit

    def receive(self, request: ReceivedRequest) -> Accept:
        return Accept()


class Exits(Interceptor):
    def __init__(self) -> None:
        sys.exit("no licence")


def make_nothing() -> None:
    return None


def traced(function: Any) -> Any:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    return call


class Traced(Interceptor):
    @traced
    async def assist(self, request: AgentRequest, session: Session, response: Response, next: Next) -> None:
        await response.markdown("traced")


async def test_a_decorated_assist_is_one() -> None:
    async with AgentTester(EchoAgent(), interceptors=[Traced]) as t:
        assert (await t.ask("one")).text == "traced"


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
        (AsyncReceive, "AsyncReceive.receive must not be a coroutine; write def receive, without async"),
        (PlainAssist, "PlainAssist.assist is not a coroutine function; write async def assist"),
        (FailsToBeMade, "FailsToBeMade cannot be created: OSError"),
        (EchoAgent, "EchoAgent returned a value of type EchoAgent, not an interceptor; derive its class from"),
        (make_nothing, "make_nothing returned a value of type NoneType, not an interceptor; derive its class from"),
        (5, "it returned a value of type int, not an interceptor; derive its class from"),
        (Misspelt, "Misspelt overrides neither receive nor assist; define a method of exactly that name"),
        (Needs, "Needs needs limit, burst; add defaults, or name an instance"),
        (Exits, "Exits cannot be created: SystemExit: no licence"),
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
