"""The inbox and the outbox of the runner: nothing leaves before it is stored, nothing is lost, nothing finished runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from xml.etree.ElementTree import fromstring

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.codec.decode import decode
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.memory.session import Session
from spade_coreason.runtime.outbound_stanza import OutboundStanza
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import NOT_REMEMBERED

AGENT = "agent@localhost"


class Echo:
    """Counts its turns."""

    manifest = AgentDefinition.simple("echo")

    def __init__(self) -> None:
        self.turns = 0

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.turns += 1
        await response.markdown(request.payload["query"])


class Wire:
    """Keeps what is sent, and acknowledges it when told to."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def __call__(self, stanzas: list[str]) -> None:
        self.sent += stanzas

    @property
    def bodies(self) -> list[str | None]:
        return [fromstring(stanza).findtext("body") for stanza in self.sent]

    @property
    def ids(self) -> list[str | None]:
        return [fromstring(stanza).get("id") for stanza in self.sent]

    def acknowledge(self) -> None:
        for stanza in self.sent:
            if isinstance(stanza, OutboundStanza):
                stanza.acknowledge()


@asynccontextmanager
async def running(agent: Any, wire: Any, url: str, **settings: Any) -> AsyncIterator[Runner]:
    """One life of a process; `settings` are those of its runner."""
    database = await open_database(url, "off")
    runner = Runner(agent, AGENT, AgentRepository(database, AGENT), **settings)
    await runner.open(wire)
    runner.send_unsent()
    try:
        yield runner
    finally:
        await runner.drain(0)
        await runner.close()
        await database.close()


def question(text: str, stanza_id: str = "1") -> InboundRequest:
    stanza = (
        f"<message xmlns='jabber:client' from='alice@localhost/x' type='chat' id='{stanza_id}'><body>{text}</body></message>"
    )
    decoded = decode(fromstring(stanza))
    assert isinstance(decoded, InboundRequest)
    return decoded


def inbox(url: str) -> list[tuple[int, bool]]:
    """State, and whether there is an answer, of every request; read as another process would."""
    return [(row["state"], row["answer"] is not None) for row in read_rows(url, "inbox")]


RECEIVED, ANSWERED, CLOSED = range(3)


async def received(runner: Runner, incoming: InboundRequest) -> bool:
    """Whether a request that is on disk by now was new."""
    taken = runner.receive(incoming)
    assert taken is not None
    return await taken


async def test_a_request_is_on_disk_when_it_may_be_acknowledged(database_url: str) -> None:
    async with running(Echo(), Wire(), database_url) as runner:
        assert await received(runner, question("hi"))
        assert len(inbox(database_url)) == 1
        assert not await received(runner, question("hi"))
        assert len(inbox(database_url)) == 1


async def test_a_final_answer_leaves_when_it_is_stored(database_url: str) -> None:
    states = []

    def send(stanzas: list[str]) -> None:
        states.append(inbox(database_url))

    async with running(Echo(), send, database_url) as runner:
        runner.receive(question("hi"))
        await runner.wait_until_idle()
    assert states == [[(ANSWERED, 1)]]


async def test_what_was_answered_and_not_acknowledged_is_sent_again_with_the_same_id_and_not_run_again(
    database_url: str,
) -> None:
    first, second, third = Wire(), Wire(), Wire()
    async with running(Echo(), first, database_url) as runner:
        runner.receive(question("hi", "1"))
        runner.receive(question("ho", "2"))
        await runner.wait_until_idle()
    agent = Echo()
    async with running(agent, second, database_url) as runner:
        await runner.wait_until_idle()
        assert (first.bodies, first.ids) == (second.bodies, second.ids)
        assert second.bodies == ["hi", "ho"]
        second.acknowledge()
    assert inbox(database_url) == [(CLOSED, 0)] * 2
    async with running(agent, third, database_url) as runner:
        await runner.wait_until_idle()
    assert third.sent == []
    assert agent.turns == 0


async def test_what_the_server_has_acknowledged_is_not_sent_again(database_url: str) -> None:
    first, second = Wire(), Wire()
    async with running(Echo(), first, database_url) as runner:
        runner.receive(question("hi"))
        await runner.wait_until_idle()
        first.acknowledge()
    async with running(Echo(), second, database_url):
        pass
    assert (first.bodies, second.bodies) == (["hi"], [])


async def test_a_silent_turn_is_closed_at_once(database_url: str) -> None:
    class Silent(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            self.turns += 1

    wire = Wire()
    async with running(Silent(), wire, database_url) as runner:
        runner.receive(question("hi"))
        await runner.wait_until_idle()
    assert wire.sent == []
    assert inbox(database_url) == [(CLOSED, 0)]


async def test_what_left_before_a_turn_was_broken_off_leaves_again_with_the_same_ids(database_url: str) -> None:
    left = asyncio.Event()

    class Breaking(Echo):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            await response.markdown("first")
            await response.markdown("second")  # with which the first leaves
            if not request.metadata.get("redelivered"):
                left.set()
                await asyncio.Event().wait()

    first, second = Wire(), Wire()
    async with running(Breaking(), first, database_url) as runner:
        runner.receive(question("hi"))
        await left.wait()
    assert first.bodies == ["first"]
    assert inbox(database_url) == [(RECEIVED, 0)]
    async with running(Breaking(), second, database_url) as runner:
        await runner.wait_until_idle()
    assert second.bodies == ["first", "second"]
    assert second.ids[0] == first.ids[0]


async def test_a_turn_that_cannot_be_stored_says_so_and_runs_after_the_next_start(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the database is closed")

    class Full(Echo):
        """While it works, the disk goes away."""

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            assert isinstance(session, Session)
            if not request.metadata.get("redelivered"):
                await session._repository._database.close()
            await response.markdown(request.payload["query"])

    first, second = Wire(), Wire()
    async with running(Full(), first, database_url) as runner:
        runner.receive(question("hi"))
        await runner.wait_until_idle()
    assert first.bodies == [NOT_REMEMBERED]
    async with running(Full(), second, database_url) as runner:
        await runner.wait_until_idle()
    assert second.bodies == ["hi"]


async def test_what_comes_while_it_drains_is_kept_for_the_next_start(database_url: str) -> None:
    first, second = Wire(), Wire()
    async with running(Echo(), first, database_url) as runner:
        await runner.drain(1)
        assert await received(runner, question("hi"))
        await runner.wait_until_idle()
        assert first.sent == []
    async with running(Echo(), second, database_url) as runner:
        await runner.wait_until_idle()
    assert second.bodies == ["hi"]
