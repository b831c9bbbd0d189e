"""Faults around a turn: a failing store, a message at a bad moment, a peer that sends everything back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    AgentTester,
    PeerError,
    Peers,
    ResponseHandler,
    Session,
    SessionHandle,
    StoreError,
    agent,
    command,
)
from spade_coreason.contracts import ConversationState, MemoryConfig, MemoryStrategy
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.memory.interaction.file import MemoryLimits
from spade_coreason.runtime import AgentRuntime
from spade_coreason.runtime.access.admission import MAX_HOPS
from spade_coreason.storage import COMPACTION_VARIABLE, open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import Commit
from spade_coreason.storage.backends.statements import RECEIVE
from spade_coreason.storage.inbox import Inbox
from spade_coreason.storage.records import StoredConversation
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import PlatformLimits, Policy, Rules, RunnerTimings
from spade_coreason.xmpp.codec.evidence import Receiver
from spade_coreason.xmpp.transport import receive_stanza
from tests.support.databases import SAME_STANZA, WriterGate, expect_failing_database, on_both_databases, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import NOT_REMEMBERED
from tests.support.requests import build_incoming
from tests.support.runner import make_runtime
from tests.support.servers.postgres import Postgres
from tests.support.transports import make_network
from tests.support.wait import TIMEOUT_S, eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class FaultyInbox(Inbox):
    """Fails when told to."""

    fails_to_receive = fails_to_finish = False
    finishing: Commit[bool] | None = None
    finish_count = 0

    def receive(self, *args: Any, **kwargs: Any) -> tuple[int, Commit[bool], bool]:
        if self.fails_to_receive:
            return 0, Commit.failed(StoreError("the disk is full")), False
        return super().receive(*args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> Commit[bool]:
        self.finish_count += 1
        if self.fails_to_finish:
            raise StoreError("the disk is full")
        return self.finishing or super().finish(*args, **kwargs)


class FaultyRepository(AgentRepository):
    """A repository that fails on demand, and counts the searches for idle conversations."""

    lookup_failures = 0
    lookups = 0
    during_lookup: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, database: Database, agent: str) -> None:
        super().__init__(database, agent)
        self.inbox: FaultyInbox = FaultyInbox(database, agent)

    async def find_conversations(self, ids: Iterable[str]) -> dict[str, StoredConversation]:
        self.lookups += 1
        if self.lookup_failures:
            self.lookup_failures -= 1
            raise StoreError("locked")
        found = await super().find_conversations(ids)
        self.during_lookup()
        return found


class RecordingAgent:
    """Record the questions."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("echo")
        self.asked: list[str] = []
        self.waits_for: asyncio.Event | None = None

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        self.asked.append(request.payload["query"])
        if self.waits_for is not None:
            await self.waits_for.wait()
        await response.markdown(request.payload["query"])

    @command("shout", "be loud")
    async def shout(self, session: SessionHandle) -> str:
        return "AH"


def make_request(text: str, sender: str = ALICE, thread: str | None = None) -> InboundRequest:
    return build_incoming(text, sender, thread=thread)


class FaultHarness:
    """A runner on a database, and its output."""

    def __init__(
        self, runtime: AgentRuntime, store: FaultyRepository, agent: RecordingAgent, said: list[str], writes: WriterGate
    ) -> None:
        self.runtime, self.runner = runtime, runtime.runner
        self.store, self.agent, self.output, self.writes = store, agent, said, writes

    async def ask(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.runner.intake.receive(make_request(text, sender, thread))
        await self.runner.mailboxes.wait_until_idle()

    async def states(self) -> list[ConversationState]:
        return [row.status.state for row in await self.store.list_conversations()]

    async def wait_until_expired(self) -> None:
        """Waits until no conversation is active."""
        async with asyncio.timeout(TIMEOUT_S):
            while ConversationState.ACTIVE in await self.states():  # noqa: ASYNC110 - read from the database
                await asyncio.sleep(0.01)


@asynccontextmanager
async def run_harness(url: str, send: Callable[[list[str]], None] | None = None, **policy: Any) -> AsyncIterator[FaultHarness]:
    writes = WriterGate()
    database = await open_without_sync(url, writes)
    store, agent, said = FaultyRepository(database, AGENT), RecordingAgent(), list[str]()
    send = send or (lambda stanzas: said.extend(fromstring(stanza).findtext("body") or "" for stanza in stanzas))
    runtime = make_runtime(agent, store, make_network(AGENT, send), Policy(**policy))
    runner = runtime.runner
    await runner.open()
    try:
        yield FaultHarness(runtime, store, agent, said, writes)
    finally:
        await runner.drain(0)
        await runner.close()
        await database.close()


def idle_after(seconds: float) -> Rules:
    return Rules(timeout_s=seconds)


# Idle conversations


async def test_messages_during_an_expiry_start_no_second_timer(database_url: str) -> None:
    async with run_harness(database_url, rules=idle_after(0.1)) as harness:
        harness.store.during_lookup = lambda: harness.runner.intake.receive(
            make_request("hi", f"u{harness.store.lookups}@localhost")
        )
        began = asyncio.get_running_loop().time()
        harness.runner.intake.receive(make_request("hi"))
        await eventually(lambda: harness.store.lookups >= 15)
        harness.store.during_lookup = lambda: None
        took_s = asyncio.get_running_loop().time() - began
        assert took_s > 15 * 0.1 / 5  # several watches at once would look ever more often
        await harness.wait_until_expired()


@on_both_databases
async def test_a_conversation_whose_turn_could_not_be_stored_times_out_like_any_other(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a request of alice@localhost: the disk is full")
    async with run_harness(database_url, rules=idle_after(0.2), timings=RunnerTimings(retry_s=0.2)) as harness:
        await harness.ask("one")
        harness.store.inbox.fails_to_finish = True
        await harness.ask("two")
        harness.store.inbox.fails_to_finish = False
        await harness.wait_until_expired()
        assert await harness.states() == [ConversationState.TIMEOUT]
        assert harness.store.lookups <= 6


async def test_a_failed_lookup_does_not_end_the_expiry(
    database_url: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot end idle conversations at the moment: locked")
    async with run_harness(database_url, rules=idle_after(0.1), timings=RunnerTimings(retry_s=0.05)) as harness:
        harness.store.lookup_failures = 2
        await harness.ask("one")
        await harness.wait_until_expired()
        assert caplog.text.count("cannot end idle conversations at the moment: locked") == 2


async def test_a_first_turn_that_was_interrupted_leaves_a_conversation_that_times_out(database_url: str) -> None:
    rules = Rules(timeout_s=0.3, on_restart="report")
    async with run_harness(database_url, rules=rules) as harness:
        harness.agent.waits_for = asyncio.Event()
        harness.runner.intake.receive(make_request("one"))
        await eventually(lambda: bool(harness.agent.asked))
    async with run_harness(database_url, rules=rules) as harness:
        assert await harness.states() == [ConversationState.ACTIVE]
        await harness.wait_until_expired()


@pytest.mark.parametrize("how", ["exits", "interrupts", "cancels", "hangs"])
async def test_a_faulty_end_callback_delays_no_conversation(
    how: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    logged = {"exits": "failed: SystemExit: 1", "interrupts": "failed: KeyboardInterrupt"}
    expected_errors(logged.get(how, "failed: CancelledError"))
    if how == "hangs":  # it is cancelled then, which the log calls a second failure
        expected_errors("took longer than 0.05 s")

    class EndingAgent(RecordingAgent):
        async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
            session.end()
            await super().assist(request, session, response)

        async def on_conversation_end(self, name: str, reason: str) -> None:
            if how == "exits":
                raise SystemExit(1)
            if how == "interrupts":
                raise KeyboardInterrupt
            if how == "cancels":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.Event().wait()

    async with AgentTester(EndingAgent(), policy=Policy(timings=RunnerTimings(conversation_end_s=0.05))) as t:
        tasks = [asyncio.create_task(t.ask(str(number))) for number in range(3)]
        assert [answer.text for answer in await asyncio.gather(*tasks)] == ["0", "1", "2"]
        assert await t.say("hi") == ["hi"]
    assert "on_conversation_end of" in caplog.text


# Messages at a bad moment


@on_both_databases
async def test_a_message_that_comes_in_while_the_runner_opens_runs_once(database_url: str) -> None:
    class EarlyInbox(Inbox):
        async def load_pending(self) -> Any:
            before = runner.intake.receive(make_request("before"))
            assert before is not None
            await before
            found = await super().load_pending()
            runner.intake.receive(make_request("after"))
            return found

    database = await open_database(database_url, "off")
    agent = RecordingAgent()
    repository = AgentRepository(database, AGENT)
    repository.inbox = EarlyInbox(database, AGENT)
    runner = make_runtime(agent, repository, make_network(AGENT)).runner
    await repository.inbox.open()  # as a host does before it connects
    first = runner.intake.receive(make_request("first"))
    assert first is not None
    await first
    await runner.open()
    await runner.mailboxes.wait_until_idle()
    assert agent.asked == ["first", "before", "after"]
    await runner.drain(0)
    await runner.close()
    await database.close()


@on_both_databases
async def test_a_turn_may_begin_before_its_request_is_on_disk_and_does_not_end_before(database_url: str) -> None:
    async with run_harness(database_url) as harness:
        await harness.ask("known")
        with harness.writes.hold_batches() as held_batches:
            is_durable = harness.runner.intake.receive(make_request("quick"))
            await eventually(lambda: bool(held_batches))
            assert harness.agent.asked == ["known", "quick"]
            assert is_durable is not None
            assert not is_durable.is_done
            assert harness.output == ["known"]
        await harness.runner.mailboxes.wait_until_idle()
        assert is_durable.is_stored
        assert harness.output == ["known", "quick"]


@on_both_databases
async def test_a_reply_that_cannot_be_sent_is_kept_and_the_log_names_its_recipient(
    database_url: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot send the answer to alice@localhost/x: ZeroDivisionError")
    said: list[str] = []

    def send(stanzas: list[str]) -> None:
        if not said and "quick" in stanzas[-1]:
            raise ZeroDivisionError
        said.extend(stanzas)

    async with run_harness(database_url, send) as harness:
        await harness.ask("quick")
        assert f"{AGENT}: cannot send the answer to {ALICE}/x" in caplog.text
        assert [one.reply is not None for one in await harness.store.inbox.load_pending()] == [True]
        await harness.ask("next")
    assert len(said) == 1


@pytest.mark.parametrize("text", ["quick", "/shout"])
@on_both_databases
async def test_a_request_that_was_not_stored_is_not_answered(
    database_url: str, text: str, expected_errors: ExpectedErrors
) -> None:
    expect_failing_database(expected_errors, database_url, "cannot store a request of alice@localhost")
    async with run_harness(database_url) as harness:
        await harness.ask("known")
        with harness.writes.hold_batches() as held_batches:
            is_durable = harness.runner.intake.receive(make_request(text))
            assert is_durable is not None
            await eventually(lambda: bool(held_batches))
            held_batches[0][0].rows = [(RECEIVE, ("no",) * 3)]
        await harness.runner.mailboxes.wait_until_idle()
        assert isinstance(is_durable.error, Exception)
        assert harness.output == ["known", NOT_REMEMBERED]


async def test_an_immediate_duplicate_is_dropped(database_url: str) -> None:
    async with run_harness(database_url) as harness:
        twice = replace(make_request("hi"), evidence=SAME_STANZA)
        stored = [harness.runner.intake.receive(twice) for _ in range(3)]
        assert [await one for one in stored if one is not None] == [True, False, False]
        await harness.runner.mailboxes.wait_until_idle()
        assert (harness.agent.asked, harness.output) == (["hi"], ["hi"])


# Storms


async def test_with_a_full_queue_a_peer_that_sends_everything_back_gets_one_notice(database_url: str) -> None:
    notices: list[str] = []

    def echo(stanzas: list[str]) -> None:
        for stanza in stanzas:
            notices.append(text := fromstring(stanza).findtext("body") or "")
            asyncio.get_running_loop().call_soon(harness.runner.intake.receive, make_request(text))

    async with run_harness(database_url, echo, limits=PlatformLimits(queue=3)) as harness:
        harness.agent.waits_for = asyncio.Event()
        for number in range(10):
            harness.runner.intake.receive(make_request(str(number)))
            await asyncio.sleep(0.01)
        assert len(notices) == 1
        assert notices[0].startswith("This conversation already has 3 messages waiting")


@on_both_databases
async def test_with_a_failing_store_a_peer_that_sends_everything_back_gets_one_apology(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(*(f"cannot store a request of {sender}: the disk is full" for sender in (ALICE, BOB)))
    apologies: list[str] = []

    def echo(stanzas: list[str]) -> None:
        for stanza in stanzas:
            apologies.append(text := fromstring(stanza).findtext("body") or "")
            asyncio.get_running_loop().call_soon(harness.runner.intake.receive, make_request(text))

    async with run_harness(database_url, echo) as harness:
        harness.store.inbox.fails_to_receive = True
        for number in range(5):
            await harness.ask(str(number))
        await harness.ask("from bob", BOB)
        assert apologies == [NOT_REMEMBERED] * 2


async def test_a_request_that_passed_through_too_many_agents_is_refused() -> None:
    names = [f"agent{number}@localhost" for number in range(MAX_HOPS + 2)]
    turns: list[int] = []

    def passes_on_to(other: str) -> Any:
        @agent
        async def passing(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
            turns.append(request.metadata.get("hops", 0))
            try:
                answer = await peers.ask(other, request.create_child(request.payload))
            except PeerError as error:
                await response.markdown(str(error))
            else:
                await response.markdown(answer.text)

        return passing

    chain = {name: passes_on_to(following) for name, following in zip(names, [*names[1:], "nobody@localhost"], strict=True)}
    async with AgentTester(passes_on_to(names[0]), peers=chain) as t:
        answer = await t.ask("on and on")
        assert turns == list(range(MAX_HOPS + 1))
        assert f"This request came through {MAX_HOPS + 1} agents." in answer.text


async def test_a_peer_that_sends_malformed_messages_gets_at_most_thirty_replies(
    database_url: str,
) -> None:
    sent: list[str] = []

    def deliver(container: str, number: int) -> None:
        json = f"<json xmlns='urn:xmpp:json:0'>{container}</json>"
        stanza = f"<message xmlns='jabber:client' from='{ALICE}/x' id='{number}'>{json}</message>"
        assert receive_stanza(harness.runtime.gateway, Receiver(AGENT), fromstring(stanza)) is None

    async with run_harness(database_url, sent.extend) as harness:
        for number in range(50):
            deliver('{"error": "cannot parse"}', number)
        assert len(sent) == 30
        for number in range(3):  # each request has its answer
            deliver(f'{{"type": "ai.coreason.request", "id": "1", "data": {{"request_id": "r{number}"}}}}', number)
        assert len(sent) == 33


async def test_a_person_whose_message_has_an_overlong_id_is_told_at_most_thirty_times_a_minute() -> None:
    async with AgentTester(RecordingAgent()) as t:
        for _ in range(40):
            t.send("hello", id="x" * 1025)
        await t.settled()
        problem = "I cannot read your message: its id or thread is too long. Please send it with another client."
        assert t.unread() == [problem] * 30
        assert await t.say("hello") == ["hello"]


async def test_information_that_could_not_be_stored_is_reported_as_not_remembered(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the memory of the conversation 'c' is full")
    memory = AgentInteractionMemory(AGENT, tmp_path, limits=MemoryLimits(conversation_bytes=100))

    @agent
    async def remembering(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await memory.aadd_information("c", request.payload["query"])
        await response.markdown("I'll remember.")

    async with AgentTester(remembering) as t:
        assert await t.say("a short one") == ["I'll remember."]
        [said] = await t.say("a long one" * 10)
        assert said.startswith("I cannot read or write my memory, so this is not stored. Please try again later (incident ")
        with pytest.raises(PeerFailedError) as failed:
            await t.ask("a long one" * 10)
        assert failed.value.code == 503
    assert memory.get_information("c") == ["a short one"]


@on_both_databases
async def test_a_turn_that_could_not_be_stored_runs_again_when_it_can_marked_as_redelivered(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a request of alice@localhost: the disk is full")
    async with run_harness(database_url, timings=RunnerTimings(retry_s=0.05)) as harness:
        harness.store.inbox.fails_to_finish = True
        await harness.ask("one")
        await eventually(lambda: len(harness.agent.asked) >= 3)
        harness.store.inbox.fails_to_finish = False
        await eventually(lambda: bool(harness.output))
        assert harness.output == ["one"]
        assert await harness.store.inbox.load_pending() != []  # answered, and not acknowledged
        [row] = await harness.store.list_conversations()
        assert row.turns == 1


@on_both_databases
async def test_a_request_whose_turn_could_not_be_stored_keeps_its_place(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(*(f"cannot store a request of {sender}: the disk is full" for sender in (ALICE, BOB)))
    async with run_harness(database_url, timings=RunnerTimings(retry_s=0.05)) as harness:
        harness.store.inbox.fails_to_finish = True
        for text in ("one", "two", "three", "/shout"):
            harness.runner.intake.receive(make_request(text))
        await harness.ask("from bob", BOB)
        await eventually(lambda: harness.agent.asked.count("one") >= 3)
        harness.runner.intake.receive(make_request("four"))
        await harness.runner.mailboxes.wait_until_idle()
        assert "two" not in harness.agent.asked
        harness.store.inbox.fails_to_finish = False
        await eventually(lambda: len(harness.output) == 6)
        assert [text for text in harness.output if text != "from bob"] == ["one", "two", "three", "AH", "four"]


@on_both_databases
async def test_a_request_that_waits_for_the_database_is_answered_first_after_the_next_start(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a request of alice@localhost: the disk is full")
    async with run_harness(database_url) as harness:
        harness.store.inbox.fails_to_finish = True
        await harness.ask("one")
        await harness.ask("two")
        assert harness.runner.mailboxes.waiting_count == 2
        assert harness.output == []
    async with run_harness(database_url) as harness:
        await harness.ask("three")
        assert harness.output == ["one", "two", "three"]


@on_both_databases
async def test_a_request_that_waits_for_the_database_is_cancelled(database_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("cannot store a request of alice@localhost: the disk is full")
    async with run_harness(database_url, timings=RunnerTimings(retry_s=0.05)) as harness:
        harness.store.inbox.fails_to_finish = True
        await harness.ask("one")
        for text in ("two", "/cancel"):
            harness.runner.intake.receive(make_request(text))
        await eventually(lambda: "two" in harness.agent.asked)
        harness.store.inbox.fails_to_finish = False
        await eventually(lambda: len(harness.output) == 2)
        assert harness.output == ["two", "Stopped."]
        assert len(await harness.store.inbox.load_pending()) == 2  # answered, and not acknowledged


@pytest.mark.parametrize("moment", ["while it waits", "while its turn is stored"])
@on_both_databases
async def test_a_request_that_waits_for_the_database_does_not_run_after_its_person_was_deleted(
    database_url: str, moment: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot store a request of alice@localhost: the disk is full")
    async with run_harness(database_url) as harness:
        inbox, control = harness.store.inbox, harness.runner.control
        if moment == "while it waits":
            inbox.fails_to_finish = True
            await harness.ask("one")
            await control.erasure.erase_person(ALICE)
        else:
            inbox.finishing = Commit()
            harness.runner.intake.receive(make_request("one"))
            await eventually(lambda: inbox.finish_count == 1)
            [mailbox] = harness.runner.mailboxes
            erasure = asyncio.create_task(control.erasure.erase_person(ALICE))
            await eventually(lambda: mailbox.is_cancelled)
            inbox.finishing.resolve(StoreError("the disk is full"))
            await erasure
        inbox.fails_to_finish, inbox.finishing = False, None
        assert harness.runner.mailboxes.waiting_count == 0
        assert await harness.store.list_people() == []
        await harness.ask("two")
        assert (harness.agent.asked, harness.output) == (["one", "two"], ["two"])


async def test_a_turn_that_ends_while_the_database_server_is_away_is_answered_first_when_it_is_back(
    own_postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("retrying every 5 s", "cannot store a request of alice@localhost")
    async with run_harness(own_postgres.url(), timings=RunnerTimings(retry_s=0.1)) as harness:
        await harness.ask("before")
        harness.agent.waits_for = asyncio.Event()
        stored = [harness.runner.intake.receive(make_request(text)) for text in ("during", "behind")]
        assert [await one for one in stored if one is not None] == [True, True]
        await eventually(lambda: harness.agent.asked == ["before", "during"])
        await asyncio.to_thread(own_postgres.stop)
        harness.agent.waits_for.set()
        await eventually(lambda: harness.runner.mailboxes.waiting_count == 2)
        await harness.ask("not stored")
        await eventually(lambda: len(harness.output) == 2)
        assert harness.output[1] == NOT_REMEMBERED
        assert harness.agent.asked == ["before", "during"]
        await asyncio.to_thread(own_postgres.start)
        await eventually(lambda: len(harness.output) == 4)
        await harness.ask("after")
        assert harness.output[2:] == ["during", "behind", "after"]
        [row] = await harness.store.list_conversations()
        assert row.turns == 4


# Starting and stopping


async def test_a_hanging_startup_is_an_error_reply_and_delays_nothing(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 0.05 s")

    class Hanging(RecordingAgent):
        async def startup(self) -> None:
            await asyncio.Event().wait()

        async def shutdown(self) -> None:
            raise AssertionError("it was never up")

    async with AgentTester(Hanging(), policy=Policy(rules=Rules(lifecycle="on_demand", assist_timeout_s=0.05))) as t:
        for _ in range(2):
            assert (await t.say("hi"))[0].startswith("I could not finish this within 0.05 s (incident ")


async def test_a_shutdown_that_exits_or_hangs_delays_nothing(
    caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors(
        "shutdown() of Exiting failed: SystemExit: 3",
        "shutdown() of Interrupting failed: KeyboardInterrupt",
        "shutdown() of Hanging took longer than 0.05 s",
        "shutdown() of Hanging failed: CancelledError",
    )

    class Exiting(RecordingAgent):
        def shutdown(self) -> None:
            raise SystemExit(3)

    class Interrupting(RecordingAgent):
        async def shutdown(self) -> None:
            raise KeyboardInterrupt

    class Hanging(RecordingAgent):
        async def shutdown(self) -> None:
            await asyncio.Event().wait()

    for faulty in (Exiting(), Interrupting(), Hanging()):
        async with AgentTester(faulty, policy=Policy(timings=RunnerTimings(shutdown_s=0.05))) as t:
            assert await t.say("hi") == ["hi"]
    assert "shutdown() of Exiting failed" in caplog.text
    assert "shutdown() of Hanging took longer than 0.05 s" in caplog.text


async def test_a_returned_answer_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    @agent
    async def returning(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        return "hello"  # type: ignore[return-value]  # the point of the test

    async with AgentTester(returning) as t:
        for _ in range(2):
            assert (await t.ask("hi")).text == ""
    said = "agent@localhost: assist returned a str; return values are ignored. Send it with `await response.markdown(…)`"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [said]


@on_both_databases
async def test_a_conversation_that_cannot_be_read_is_an_error_and_no_endless_retry(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(f"a request of {ALICE} failed")
    memory = MemoryConfig(strategy=MemoryStrategy.SUMMARY, summary_prompt="In short.")
    async with run_harness(database_url, memory=memory) as harness:
        await harness.ask("hi")
        [conversation] = await harness.store.list_conversations()
        await harness.store.save_variable("conversation", conversation.conversation_id, COMPACTION_VARIABLE, "damaged")
    async with run_harness(database_url, memory=memory) as harness:
        await harness.ask("hi again")
        assert harness.output == ["Something went wrong on my side. Please try again later."]
        assert all(pending.reply is not None for pending in await harness.store.inbox.load_pending())
