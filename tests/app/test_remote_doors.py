"""The events of a reply on their way from the worker of an agent to the one that was asked, by a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason.app.workers.calls import CallTargets, WorkerCalls
from spade_coreason.app.workers.doors import IncomingReply, RemoteDoorAgents
from spade_coreason.app.workers.served_replies import Accepted, Reader
from spade_coreason.domain.callers import caller_address
from spade_coreason.doors import Caller, DoorAgents, DoorEvent, DoorReply
from spade_coreason.storage import CallRepository, Database, Leases, WorkerTerms, open_database
from spade_coreason.storage.workers.leases import Lease, LeaseState, read_leases
from tests.support.databases import execute
from tests.support.records import AGENT
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

CALLER = Caller("website", caller_address("website"), "", frozenset({AGENT}), False)
LEASE_S = 30.0


class _Source:
    """The origin of a reply of the test."""

    def forget(self, reply: DoorReply) -> None:
        pass


@asynccontextmanager
async def open_doors(url: str) -> AsyncIterator[RemoteDoorAgents]:
    """Run the remote doors of a worker of its own."""
    database: Database = await open_database(url, "off", terms=WorkerTerms("one", LEASE_S))
    calls = WorkerCalls(CallRepository(database), CallTargets())
    doors = RemoteDoorAgents(database, Leases(database), calls, DoorAgents(), {AGENT: ["openai"]})
    doors.start()
    await doors.mailbox.wait_until_open()
    try:
        yield doors
    finally:
        await doors.close()
        await calls.close()
        await database.close()


@asynccontextmanager
async def run_two(postgres: Postgres) -> AsyncIterator[tuple[RemoteDoorAgents, RemoteDoorAgents, str]]:
    """Run two workers on one database: that of the agent, and the one that is asked."""
    url = postgres.url()
    async with open_doors(url) as owner, open_doors(url) as asked:
        yield owner, asked, url


async def begin(owner: RemoteDoorAgents, asked: RemoteDoorAgents) -> tuple[DoorReply, IncomingReply, Reader]:
    """Begin a reply. Return it as the owner has it, and as it comes."""
    incoming, reader = await asked.expect(AGENT, CALLER, uuid4(), waits=False)
    reply = DoorReply(_Source(), CALLER, incoming.reply.request_id, waits=False)
    owner.deliver(reader, reply, True)
    return reply, incoming, reader


def accept(owner: RemoteDoorAgents, incoming: IncomingReply) -> None:
    incoming.accept(Accepted(owner.worker, owner.mailbox.address, True))


def piece(text: str) -> DoorEvent:
    return DoorEvent("stream.chunk", {"chunk": text})


END = DoorEvent("request.completed", {})


async def read_all(incoming: IncomingReply) -> list[DoorEvent]:
    async with asyncio.timeout(TIMEOUT_S):
        return [event async for event in incoming.reply]


def send_raw(url: str, mailbox: str, message: str) -> None:
    """Send any message to a mailbox."""
    quoted = message.replace("'", "''")
    execute(url, f"SELECT pg_notify('{mailbox}', '{quoted}')")


async def test_events_come_whole_and_in_order_also_before_the_reply_is_accepted(postgres: Postgres) -> None:
    async with run_two(postgres) as (owner, asked, _):
        reply, incoming, _ = await begin(owner, asked)
        sent = [piece("ä€𝄞\0\n" * length) for length in (0, 1, 3_000, 100_000)]
        reply.put(sent[0])
        await eventually(lambda: len(incoming.early) == 1)
        accept(owner, incoming)
        for event in (*sent[1:], END):
            reply.put(event)
        assert await read_all(incoming) == [*sent, END]
        assert not asked._incoming
        await eventually(lambda: not owner._outgoing)


@pytest.mark.parametrize(
    "make_message",
    [
        lambda owner, key: "",
        lambda owner, key: "no message at all",
        lambda owner, key: f". {owner} {key} number []",
        lambda owner, key: f". {owner} {uuid4().hex} 0 []",
        lambda owner, key: f". nowhere {uuid4().hex} 0 []",
        lambda owner, key: f"x {owner} {key} 0 ",
        lambda owner, key: f". spade_coreason_mail_other {key} 0 [1]",
    ],
)
async def test_a_message_that_is_wrong_changes_nothing(postgres: Postgres, make_message: Any) -> None:
    async with run_two(postgres) as (owner, asked, url):
        reply, incoming, reader = await begin(owner, asked)
        accept(owner, incoming)
        send_raw(url, asked.mailbox.address, make_message(owner.mailbox.address, reader.key))
        reply.put(piece("one"))
        reply.put(END)
        assert await read_all(incoming) == [piece("one"), END]


@pytest.mark.parametrize("text", ["", "{", "7", "[7]", '[["a"]]', '[["a", 7]]', '[["a", {}, 1]]'])
async def test_events_that_cannot_be_read_and_a_gap_end_the_reply_so_that_it_is_fetched(postgres: Postgres, text: str) -> None:
    async with run_two(postgres) as (owner, asked, url):
        for number in (0, 1):  # the next message, and one after a gap
            reply, incoming, reader = await begin(owner, asked)
            accept(owner, incoming)
            send_raw(url, asked.mailbox.address, f". {owner.mailbox.address} {reader.key} {number} {text}")
            assert [event.type for event in await read_all(incoming)] == ["request.interrupted"]
            # The worker of the agent stops to send it.
            await eventually(lambda: not owner._outgoing)
            assert reply.has_begun


async def test_a_lost_connection_ends_what_may_have_lost_something_and_the_next_is_whole(postgres: Postgres) -> None:
    async with run_two(postgres) as (owner, asked, url):
        _, incoming, _ = await begin(owner, asked)
        accept(owner, incoming)
        execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spade-coreason mailbox'")
        assert [event.type for event in await read_all(incoming)] == ["request.interrupted"]
        await eventually(lambda: not asked.mailbox.is_open)
        reply, incoming, _ = await begin(owner, asked)
        accept(owner, incoming)
        sent = [piece(str(number)) for number in range(20)]
        for event in (*sent, END):
            reply.put(event)
        assert await read_all(incoming) == [*sent, END]


async def test_a_reply_that_is_not_read_any_more_is_not_sent_any_more(postgres: Postgres) -> None:
    async with run_two(postgres) as (owner, asked, _):
        _, incoming, _ = await begin(owner, asked)
        accept(owner, incoming)
        incoming.reply.close()
        await eventually(lambda: not owner._outgoing)
        # One whose reader has gone before it was accepted ends with its first event.
        reply, incoming, _ = await begin(owner, asked)
        incoming.reply.close()
        reply.put(piece("one"))
        await eventually(lambda: not owner._outgoing)


async def test_replies_end_with_the_worker_of_either_side(postgres: Postgres) -> None:
    async with run_two(postgres) as (owner, asked, _):
        state = await owner.database.read(read_leases)
        lease = Lease(AGENT, owner.worker, 0, "", False, None, None, None, 0)
        served = LeaseState(state.workers, {AGENT: lease})
        _, incoming, _ = await begin(owner, asked)
        accept(owner, incoming)
        await asked.note(served)
        await owner.note(served)
        await asked.note(LeaseState(state.workers, {AGENT: lease._replace(worker=None)}))
        assert [event.type for event in await read_all(incoming)] == ["request.interrupted"]
        _, incoming, _ = await begin(owner, asked)
        await owner.note(LeaseState([worker for worker in state.workers if worker.id == owner.worker], {AGENT: lease}))
        await eventually(lambda: not owner._outgoing)


async def test_a_worker_that_stops_waits_for_replies_but_for_those_that_wait_for_a_person(postgres: Postgres) -> None:
    async with run_two(postgres) as (owner, asked, _):
        incoming, reader = await asked.expect(AGENT, CALLER, uuid4(), waits=True)
        reply = DoorReply(_Source(), CALLER, uuid4(), waits=True)
        owner.deliver(reader, reply, True)
        accept(owner, incoming)
        stopping = asyncio.create_task(asked.drain(TIMEOUT_S))
        reply.put(piece("one"))
        assert await anext(incoming.reply) == piece("one")
        assert not stopping.done()
        reply.put(DoorEvent("request.parked", {}))
        await asyncio.wait_for(stopping, TIMEOUT_S / 2)
        assert [event.type for event in await read_all(incoming)] == ["request.parked", "request.interrupted"]
