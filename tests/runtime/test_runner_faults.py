"""What goes wrong around a turn: a store that fails, a message at a bad moment, a peer that sends everything back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    AgentTester,
    ConversationState,
    PeerError,
    PeerFailedError,
    Peers,
    ResponseHandler,
    SessionHandle,
    StoreError,
    agent,
    command,
)
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.conversation import Rules
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.memory.interaction.file import MemoryLimits
from spade_coreason.memory.session import Session
from spade_coreason.runtime.gateway import InboundGateway
from spade_coreason.runtime.peers import OpenRequests
from spade_coreason.runtime.policy import Policy, RunnerTimings
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.database import Database
from spade_coreason.storage.inbox import Inbox
from spade_coreason.storage.records import StoredConversation
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.statements import RECEIVE
from tests.support.databases import SQLITE, WriteInterceptor, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import NOT_REMEMBERED
from tests.support.servers.postgres import Postgres
from tests.support.wait import PATIENCE_S, eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class Requests(Inbox):
    """Fails when told to."""

    fails_to_finish = False

    def finish(self, *args: Any, **kwargs: Any) -> asyncio.Future[bool]:
        if self.fails_to_finish:
            raise StoreError("the disk is full")
        return super().finish(*args, **kwargs)


class Store(AgentRepository):
    """Fails when told to, and counts how often idle conversations are looked for."""

    fails_to_look = 0
    looks = 0
    while_looking: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, database: Database, agent: str) -> None:
        super().__init__(database, agent)
        self.inbox: Requests = Requests(database, agent)

    async def find_conversations(self, ids: Iterable[str]) -> dict[str, StoredConversation]:
        self.looks += 1
        if self.fails_to_look:
            self.fails_to_look -= 1
            raise StoreError("locked")
        found = await super().find_conversations(ids)
        self.while_looking()
        return found


class Echo:
    """Keeps what it was asked."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("echo")
        self.asked: list[str] = []
        self.waits_for: asyncio.Event | None = None

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.asked.append(request.payload["query"])
        if self.waits_for is not None:
            await self.waits_for.wait()
        await response.markdown(request.payload["query"])

    @command("shout", "be loud")
    async def shout(self, session: SessionHandle) -> str:
        return "AH"


def asked(text: str, sender: str = ALICE, thread: str | None = None) -> InboundRequest:
    return InboundRequest("person", f"{sender}/x", str(uuid4()), thread, {"query": text}, text)


class Running:
    """A runner on a file, and what it says."""

    def __init__(self, runner: Runner, store: Store, agent: Echo, said: list[str], writes: WriteInterceptor) -> None:
        self.runner, self.store, self.agent, self.output, self.writes = runner, store, agent, said, writes

    async def ask(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.runner.receive(asked(text, sender, thread))
        await self.runner.wait_until_idle()

    async def states(self) -> list[ConversationState]:
        return [row.status.state for row in await self.store.list_conversations()]

    async def ended(self) -> None:
        """Waits until no conversation is active."""
        async with asyncio.timeout(PATIENCE_S):
            while ConversationState.ACTIVE in await self.states():  # noqa: ASYNC110 - read from the database
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(url: str, send: Callable[[list[str]], None] | None = None, **policy: Any) -> AsyncIterator[Running]:
    writes = WriteInterceptor()
    database = await open_without_sync(url, writes)
    store, agent, said = Store(database, AGENT), Echo(), list[str]()
    runner = Runner(agent, AGENT, store, Policy(**policy))
    await runner.open(send or (lambda stanzas: said.extend(fromstring(s).findtext("body") or "" for s in stanzas)))
    try:
        yield Running(runner, store, agent, said, writes)
    finally:
        await runner.drain(0)
        await runner.close()
        await database.close()


def idle_after(seconds: float) -> Rules:
    return Rules(timeout=timedelta(seconds=seconds))


# Idle conversations


async def test_messages_that_come_while_idle_conversations_are_ended_begin_no_second_watch(database_url: str) -> None:
    async with running(database_url, rules=idle_after(0.1)) as r:
        r.store.while_looking = lambda: r.runner.receive(asked("hi", f"u{r.store.looks}@localhost"))
        began = asyncio.get_running_loop().time()
        r.runner.receive(asked("hi"))
        await eventually(lambda: r.store.looks >= 15)
        r.store.while_looking = lambda: None
        took_s = asyncio.get_running_loop().time() - began
        assert took_s > 15 * 0.1 / 5  # several watches at once would look ever more often
        await r.ended()


async def test_a_conversation_whose_turn_could_not_be_stored_times_out_like_any_other(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a request of alice@localhost is not stored: the disk is full")
    async with running(database_url, rules=idle_after(0.2)) as r:
        await r.ask("one")
        r.store.inbox.fails_to_finish = True
        await r.ask("two")
        r.store.inbox.fails_to_finish = False
        await r.ended()
        assert await r.states() == [ConversationState.TIMEOUT]
        assert r.store.looks <= 6


async def test_one_look_that_fails_does_not_end_the_watch(
    database_url: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("idle conversations cannot be ended at the moment: locked")
    async with running(database_url, rules=idle_after(0.1), timings=RunnerTimings(retry_s=0.05)) as r:
        r.store.fails_to_look = 2
        await r.ask("one")
        await r.ended()
        assert caplog.text.count("idle conversations cannot be ended at the moment: locked") == 2


async def test_a_first_turn_that_was_interrupted_leaves_a_conversation_that_times_out(database_url: str) -> None:
    rules = idle_after(0.3)
    async with running(database_url, rules=rules, on_restart="report") as r:
        r.agent.waits_for = asyncio.Event()
        r.runner.receive(asked("one"))
        await eventually(lambda: bool(r.agent.asked))
    async with running(database_url, rules=rules, on_restart="report") as r:
        assert await r.states() == [ConversationState.ACTIVE]
        await r.ended()


@pytest.mark.parametrize("how", ["raises", "cancels", "hangs"])
async def test_whoever_is_told_of_an_end_holds_up_no_conversation(
    how: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("failed: SystemExit: 1" if how == "raises" else "failed: CancelledError")
    if how == "hangs":  # it is cancelled then, which the log calls a second failure
        expected_errors("took longer than 0.05 s")

    class Talkative(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            assert isinstance(session, Session)
            session.end()
            await super().assist(request, session, response)

        async def on_conversation_end(self, name: str, reason: str) -> None:
            if how == "raises":
                raise SystemExit(1)
            if how == "cancels":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.Event().wait()

    async with AgentTester(Talkative(), policy=Policy(timings=RunnerTimings(conversation_end_s=0.05))) as t:
        asked = [asyncio.create_task(t.ask(str(number))) for number in range(3)]
        assert [answer.text for answer in await asyncio.gather(*asked)] == ["0", "1", "2"]
        assert await t.say("hi") == ["hi"]
    assert "on_conversation_end of" in caplog.text


# Messages at a bad moment


async def test_a_message_that_comes_in_while_the_runner_opens_runs_once(database_url: str) -> None:
    class Early(Inbox):
        async def load_pending(self) -> Any:
            before = runner.receive(asked("before"))
            assert before is not None
            await before
            found = await super().load_pending()
            runner.receive(asked("after"))
            return found

    database = await open_database(database_url, "off")
    agent = Echo()
    store = AgentRepository(database, AGENT)
    store.inbox = Early(database, AGENT)
    runner = Runner(agent, AGENT, store)
    first = runner.receive(asked("first"))
    assert first is not None
    await first
    await runner.open(lambda stanzas: None)
    await runner.wait_until_idle()
    assert agent.asked == ["first", "before", "after"]
    await runner.drain(0)
    await runner.close()
    await database.close()


async def test_a_turn_may_begin_before_its_request_is_on_disk_and_does_not_end_before(database_url: str) -> None:
    async with running(database_url) as r:
        await r.ask("known")
        with r.writes.held() as held:
            is_durable = r.runner.receive(asked("quick"))
            await eventually(lambda: bool(held))
            assert r.agent.asked == ["known", "quick"]
            assert is_durable is not None
            assert not is_durable.done()
            assert r.output == ["known"]
        await r.runner.wait_until_idle()
        assert is_durable.done()
        assert r.output == ["known", "quick"]


async def test_an_answer_that_cannot_be_sent_is_kept_and_the_log_says_whose(
    database_url: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the answer to alice@localhost/x cannot be sent: ZeroDivisionError")
    said: list[str] = []

    def send(stanzas: list[str]) -> None:
        if not said and "quick" in stanzas[-1]:
            raise ZeroDivisionError
        said.extend(stanzas)

    async with running(database_url, send) as r:
        await r.ask("quick")
        assert f"{AGENT}: the answer to {ALICE}/x cannot be sent" in caplog.text
        assert [one.reply is not None for one in await r.store.inbox.load_pending()] == [True]
        await r.ask("next")
    assert len(said) == 1


@pytest.mark.parametrize("text", ["quick", "/shout"])
async def test_what_is_not_on_disk_is_not_answered_though_its_answer_is(
    database_url: str, text: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a request of alice@localhost is not stored")
    if not database_url.startswith(SQLITE):
        expected_errors("it is tried again every 5 s")
    async with running(database_url) as r:
        await r.ask("known")
        with r.writes.held() as held:
            is_durable = r.runner.receive(asked(text))
            assert is_durable is not None
            await eventually(lambda: bool(held))
            (_, *waiting), *others = held[0]
            held[0] = [([(RECEIVE, ("no",))], *waiting), *others]
        await r.runner.wait_until_idle()
        assert isinstance(is_durable.exception(), Exception)
        assert r.output == ["known", NOT_REMEMBERED]


async def test_a_duplicate_that_comes_at_once_goes_no_further(database_url: str) -> None:
    async with running(database_url) as r:
        twice = asked("hi")
        taken = [r.runner.receive(twice) for _ in range(3)]
        assert [await one for one in taken if one is not None] == [True, False, False]
        await r.runner.wait_until_idle()
        assert (r.agent.asked, r.output) == (["hi"], ["hi"])


# Storms


async def test_a_peer_that_sends_everything_back_beside_a_full_queue_gets_one_notice(database_url: str) -> None:
    notices: list[str] = []

    def echo(stanzas: list[str]) -> None:
        for stanza in stanzas:
            notices.append(text := fromstring(stanza).findtext("body") or "")
            asyncio.get_running_loop().call_soon(r.runner.receive, asked(text))

    async with running(database_url, echo, queue=3) as r:
        r.agent.waits_for = asyncio.Event()
        for number in range(10):
            r.runner.receive(asked(str(number)))
            await asyncio.sleep(0.01)
        assert len(notices) == 1
        assert notices[0].startswith("3 messages of this conversation wait already")


async def test_a_peer_that_sends_everything_back_beside_a_store_that_fails_gets_one_apology(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors(*(f"a request of {sender} is not stored: the disk is full" for sender in (ALICE, BOB)))
    apologies: list[str] = []

    def echo(stanzas: list[str]) -> None:
        for stanza in stanzas:
            apologies.append(text := fromstring(stanza).findtext("body") or "")
            asyncio.get_running_loop().call_soon(r.runner.receive, asked(text))

    async with running(database_url, echo) as r:
        r.store.inbox.fails_to_finish = True
        for number in range(5):
            await r.ask(str(number))
        await r.ask("from bob", BOB)
        assert apologies == [NOT_REMEMBERED] * 2


@pytest.mark.parametrize("how", ["ask", "tell"])
async def test_agents_that_ask_each_other_in_a_circle_come_to_an_end(how: str) -> None:
    turns: list[int] = []

    def passes_on_to(other: str) -> Any:
        class PassesOn:
            def __init__(self, peers: Peers) -> None:
                self.manifest = AgentDefinition.simple("passes-on")
                self.peers = peers

            async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
                turns.append(request.metadata.get("hops", 0))
                if how == "tell":
                    await self.peers.tell(other, request.create_child(request.payload))
                    return
                try:
                    answer = await self.peers.ask(other, request.create_child(request.payload))
                    await response.markdown(answer.text)
                except PeerError as error:
                    await response.markdown(str(error))

        return PassesOn

    async with AgentTester(passes_on_to(BOB), peers={BOB: passes_on_to(AGENT)}) as t:
        answer = await t.ask("round and round")
        await t.settled()
        assert turns == list(range(17))
        if how == "ask":
            assert "This was asked through 17 agents one after the other: they seem to ask in a circle." in answer.text


async def test_a_peer_that_answers_what_it_cannot_read_with_the_same_gets_no_more_than_thirty_answers(
    database_url: str,
) -> None:
    sent: list[str] = []

    def deliver(container: str, number: int) -> None:
        json = f"<json xmlns='urn:xmpp:json:0'>{container}</json>"
        stanza = f"<message xmlns='jabber:client' from='{ALICE}/x' id='{number}'>{json}</message>"
        assert door.receive_stanza(fromstring(stanza)) is None

    async with running(database_url) as r:
        door = InboundGateway(r.runner, OpenRequests(), AccessPolicy(AGENT), sent.extend)
        for number in range(50):
            deliver('{"error": "cannot parse"}', number)
        assert len(sent) == 30
        for number in range(3):  # each request has its answer
            deliver(f'{{"type": "ai.coreason.request", "id": "1", "data": {{"request_id": "r{number}"}}}}', number)
        assert len(sent) == 33


async def test_what_an_agent_could_not_remember_is_reported_as_not_remembered(
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
        assert said.startswith("My memory cannot be read or written, so this is not remembered (incident ")
        with pytest.raises(PeerFailedError) as failed:
            await t.ask("a long one" * 10)
        assert failed.value.code == 503
    assert memory.get_information("c") == ["a short one"]


async def test_a_turn_that_could_not_be_stored_runs_again_when_it_can_marked_as_redelivered(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("a request of alice@localhost is not stored: the disk is full")
    async with running(database_url, timings=RunnerTimings(retry_s=0.05)) as r:
        r.store.inbox.fails_to_finish = True
        await r.ask("one")
        await eventually(lambda: len(r.agent.asked) >= 3)
        r.store.inbox.fails_to_finish = False
        await eventually(lambda: r.output[-1] == "one")
        assert r.output[:-1] == [r.output[0]]
        assert await r.store.inbox.load_pending() != []  # answered, and not acknowledged
        [row] = await r.store.list_conversations()
        assert row.turns == 1


async def test_a_turn_that_ends_while_the_database_server_is_away_is_answered_when_it_is_back(
    own_postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("it is tried again every 5 s", "a request of alice@localhost is not stored")
    async with running(own_postgres.url(), timings=RunnerTimings(retry_s=0.1)) as r:
        await r.ask("before")
        r.agent.waits_for = asyncio.Event()
        taken = r.runner.receive(asked("during"))
        assert taken is not None
        assert await taken
        await eventually(lambda: r.agent.asked == ["before", "during"])
        await asyncio.to_thread(own_postgres.stop)
        r.agent.waits_for.set()
        await eventually(lambda: len(r.output) == 2)
        assert r.output[1] == NOT_REMEMBERED
        await asyncio.to_thread(own_postgres.start)
        await eventually(lambda: r.output[-1] == "during")
        await r.ask("after")
        assert r.output[-1] == "after"
        [row] = await r.store.list_conversations()
        assert row.turns == 3


# Starting and stopping


async def test_a_startup_that_hangs_is_an_answer_with_an_error_and_holds_up_nothing(expected_errors: ExpectedErrors) -> None:
    expected_errors("assist took longer than 0.05 s")

    class Hanging(Echo):
        async def startup(self) -> None:
            await asyncio.Event().wait()

        async def shutdown(self) -> None:
            raise AssertionError("it was never up")

    async with AgentTester(Hanging(), policy=Policy(lifecycle="on_demand", assist_timeout_s=0.05)) as t:
        for _ in range(2):
            assert (await t.say("hi"))[0].startswith("I could not finish this within 0.05 s (incident ")


async def test_a_shutdown_that_exits_or_hangs_holds_up_nothing(
    caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors(
        "shutdown() of Exiting failed: SystemExit: 3",
        "shutdown() of Hanging took longer than 0.05 s",
        "shutdown() of Hanging failed: CancelledError",
    )

    class Exiting(Echo):
        def shutdown(self) -> None:
            raise SystemExit(3)

    class Hanging(Echo):
        async def shutdown(self) -> None:
            await asyncio.Event().wait()

    for faulty in (Exiting(), Hanging()):
        async with AgentTester(faulty, policy=Policy(timings=RunnerTimings(shutdown_s=0.05))) as t:
            assert await t.say("hi") == ["hi"]
    assert "shutdown() of Exiting failed" in caplog.text
    assert "shutdown() of Hanging took longer than 0.05 s" in caplog.text


async def test_an_answer_that_is_returned_instead_of_said_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    @agent
    async def returning(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        return "hello"  # type: ignore[return-value]  # the point of the test

    async with AgentTester(returning) as t:
        for _ in range(2):
            assert (await t.ask("hi")).text == ""
    said = "agent@localhost: assist returned a str, which nobody hears; say it: await response.markdown(…)"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [said]
