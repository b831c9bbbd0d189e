"""The inbox and the outbox of the runner: nothing leaves before it is stored, nothing is lost, nothing finished runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from xml.etree.ElementTree import fromstring

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.runtime import OutboundMessage
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.xmpp.codec.decode import decode
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.databases import read_rows
from tests.support.errors import ExpectedErrors
from tests.support.runner import make_runtime
from tests.support.transports import STANZA_BYTES

AGENT = "agent@localhost"


class Echo:
    """Counts its turns."""

    manifest = AgentDefinition.simple("echo")

    def __init__(self) -> None:
        self.turns = 0

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.turns += 1
        await response.markdown(request.payload["query"])


class StanzaRecorder:
    """Record the sent stanzas, and acknowledge them when the test says so."""

    def __init__(self) -> None:
        self.sent: list[OutboundMessage] = []
        self.is_slow = False

    def __call__(self, messages: Sequence[OutboundMessage]) -> bool:
        self.sent += messages
        return self.is_slow

    @property
    def bodies(self) -> list[str | None]:
        return [fromstring(message.content).findtext("body") for message in self.sent]

    @property
    def ids(self) -> list[str | None]:
        return [fromstring(message.content).get("id") for message in self.sent]

    def acknowledge(self) -> None:
        for message in self.sent:
            message.acknowledge()


@asynccontextmanager
async def run_runner(
    agent: Any, recorder: Any, url: str, database: Database | None = None, **settings: Any
) -> AsyncIterator[Runner]:
    """Run one life of a process, with its own connection or `database`; `settings` are those of its runner."""
    database = database or await open_database(url, "off")
    network = XmppTransport(AGENT, recorder, STANZA_BYTES).network
    runner = make_runtime(agent, AgentRepository(database, AGENT), network, **settings).runner
    await runner.open()
    runner.send_unsent()
    try:
        yield runner
    finally:
        await runner.drain(0)
        await runner.close()
        await database.close()


def person_question(text: str, stanza_id: str = "1", sender: str = "alice@localhost/x") -> InboundRequest:
    stanza = f"<message xmlns='jabber:client' from='{sender}' type='chat' id='{stanza_id}'><body>{text}</body>"
    stanza += f"<origin-id xmlns='urn:xmpp:sid:0' id='of-a-person-{stanza_id}-fb0c9d47'/></message>"
    decoded = decode(fromstring(stanza))
    assert isinstance(decoded, InboundRequest)
    return decoded


def inbox_states(url: str) -> list[tuple[int, bool]]:
    """Read the state of every request and if it has a reply, as another process would."""
    return [(row["state"], row["answer"] is not None) for row in read_rows(url, "inbox")]


RECEIVED, ANSWERED, CLOSED = range(3)


async def receive_stored(runner: Runner, incoming: InboundRequest) -> bool:
    """Receive a request, wait until it is on disk, and tell if it was new."""
    stored = runner.intake.receive(incoming)
    assert stored is not None
    return await stored


async def test_a_request_is_on_disk_when_it_may_be_acknowledged(database_url: str) -> None:
    async with run_runner(Echo(), StanzaRecorder(), database_url) as runner:
        assert await receive_stored(runner, person_question("hi"))
        assert len(inbox_states(database_url)) == 1
        assert not await receive_stored(runner, person_question("hi"))
        assert len(inbox_states(database_url)) == 1


async def test_a_final_answer_leaves_when_it_is_stored(database_url: str) -> None:
    states = []

    def send(stanzas: list[str]) -> None:
        states.append(inbox_states(database_url))

    async with run_runner(Echo(), send, database_url) as runner:
        runner.intake.receive(person_question("hi"))
        await runner.mailboxes.wait_until_idle()
    assert states == [[(ANSWERED, 1)]]


async def test_an_unacknowledged_reply_is_sent_again_with_the_same_id_and_not_run_again(
    database_url: str,
) -> None:
    first, second, third = StanzaRecorder(), StanzaRecorder(), StanzaRecorder()
    async with run_runner(Echo(), first, database_url) as runner:
        runner.intake.receive(person_question("hi", "1"))
        runner.intake.receive(person_question("ho", "2"))
        await runner.mailboxes.wait_until_idle()
    agent = Echo()
    async with run_runner(agent, second, database_url) as runner:
        await runner.mailboxes.wait_until_idle()
        assert (first.bodies, first.ids) == (second.bodies, second.ids)
        assert second.bodies == ["hi", "ho"]
        second.acknowledge()
    assert inbox_states(database_url) == [(CLOSED, 0)] * 2
    async with run_runner(agent, third, database_url) as runner:
        await runner.mailboxes.wait_until_idle()
    assert third.sent == []
    assert agent.turns == 0


async def test_the_next_turns_of_a_sender_wait_while_the_server_is_slow_to_take_its_replies(database_url: str) -> None:
    agent, recorder = Echo(), StanzaRecorder()
    recorder.is_slow = True
    async with run_runner(agent, recorder, database_url) as runner:
        runner.intake.receive(person_question("one", "1"))
        await runner.mailboxes.wait_until_idle()
        runner.intake.receive(person_question("two", "2"))
        await receive_stored(runner, person_question("me too", "1", sender="bob@localhost/x"))
        await runner.mailboxes.wait_until_idle("bob@localhost", None)
        assert (agent.turns, recorder.bodies) == (2, ["one", "me too"])
        recorder.is_slow = False
        recorder.acknowledge()
        await runner.mailboxes.wait_until_idle()
        assert (agent.turns, recorder.bodies) == (3, ["one", "me too", "two"])
        runner.intake.receive(person_question("three", "3"))
        await runner.mailboxes.wait_until_idle()
        assert recorder.bodies[-1] == "three"


async def test_an_acknowledged_reply_is_not_sent_again(database_url: str) -> None:
    first, second = StanzaRecorder(), StanzaRecorder()
    async with run_runner(Echo(), first, database_url) as runner:
        runner.intake.receive(person_question("hi"))
        await runner.mailboxes.wait_until_idle()
        first.acknowledge()
    async with run_runner(Echo(), second, database_url):
        pass
    assert (first.bodies, second.bodies) == (["hi"], [])


async def test_a_silent_turn_is_closed_at_once(database_url: str) -> None:
    class Silent(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            self.turns += 1

    recorder = StanzaRecorder()
    async with run_runner(Silent(), recorder, database_url) as runner:
        runner.intake.receive(person_question("hi"))
        await runner.mailboxes.wait_until_idle()
    assert recorder.sent == []
    assert inbox_states(database_url) == [(CLOSED, 0)]


async def test_stanzas_sent_before_an_interruption_are_sent_again_with_the_same_ids(database_url: str) -> None:
    first_block_sent = asyncio.Event()

    class InterruptedAgent(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            await response.markdown("first")
            await response.markdown("second")  # with which the first leaves
            if not request.metadata.get("redelivered"):
                first_block_sent.set()
                await asyncio.Event().wait()

    first, second = StanzaRecorder(), StanzaRecorder()
    async with run_runner(InterruptedAgent(), first, database_url) as runner:
        runner.intake.receive(person_question("hi"))
        await first_block_sent.wait()
    assert first.bodies == ["first"]
    assert inbox_states(database_url) == [(RECEIVED, 0)]
    async with run_runner(InterruptedAgent(), second, database_url) as runner:
        await runner.mailboxes.wait_until_idle()
    assert second.bodies == ["first", "second"]
    assert second.ids[0] == first.ids[0]


async def test_a_turn_that_cannot_be_stored_runs_after_the_next_start(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the database is closed")

    class FailingDiskAgent(Echo):
        """The disk fails during the turn."""

        def __init__(self, database: Database) -> None:
            super().__init__()
            self.database = database

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            if not request.metadata.get("redelivered"):
                await self.database.close()
            await response.markdown(request.payload["query"])

    first, second = StanzaRecorder(), StanzaRecorder()
    database = await open_database(database_url, "off")
    agent = FailingDiskAgent(database)
    async with run_runner(agent, first, database_url, database) as runner:
        runner.intake.receive(person_question("hi"))
        await runner.mailboxes.wait_until_idle()
    assert first.bodies == []
    async with run_runner(agent, second, database_url) as runner:
        await runner.mailboxes.wait_until_idle()
    assert second.bodies == ["hi"]


async def test_messages_during_a_drain_are_kept_for_the_next_start(database_url: str) -> None:
    first, second = StanzaRecorder(), StanzaRecorder()
    async with run_runner(Echo(), first, database_url) as runner:
        await runner.drain(1)
        assert await receive_stored(runner, person_question("hi"))
        await runner.mailboxes.wait_until_idle()
        assert first.sent == []
    async with run_runner(Echo(), second, database_url) as runner:
        await runner.mailboxes.wait_until_idle()
    assert second.bodies == ["hi"]
