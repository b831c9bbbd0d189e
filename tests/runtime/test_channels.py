"""Channels: each request is answered by the one that it came by, also after a restart and if its channel is missing."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from spade_coreason import AgentRequest, Response, Session, agent
from spade_coreason.runtime import OutboundMessage
from spade_coreason.testing import Policy, RunnerTimings
from tests.support.channel_hosts import CHANNEL_HOSTS, PROGRAM_JID, ChannelHost, FetchedHost, run_on_channels
from tests.support.databases import ANSWERED, CLOSED, RECEIVED, SQLITE, execute, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.fetched_channel import NAME, Event, FetchedChannel, texts_of
from tests.support.line_channel import NAME as LINE, LineChannel

NOT_READY = "The answer to this request is not ready yet. Ask for it again in a while."


class Gate:
    """An agent that answers each query once `opened` is set, and counts its turns."""

    def __init__(self) -> None:
        self.opened, self.entered = asyncio.Event(), asyncio.Event()
        self.opened.set()
        self.queries: list[str] = []

    def build(self) -> Any:
        @agent
        async def gated(request: AgentRequest, session: Session, response: Response) -> None:
            self.queries.append(request.payload["query"])
            self.entered.set()
            await self.opened.wait()
            await response.markdown(f"{request.metadata['channel']}: {request.payload['query']}")

        return gated


async def read_all(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"{SQLITE}{tmp_path / 'platform.db'}"


both_channels = pytest.mark.parametrize("channel", CHANNEL_HOSTS)


@both_channels
async def test_a_repeated_request_runs_once_and_gets_the_stored_reply(channel: str, sqlite_url: str) -> None:
    gate, request_id = Gate(), uuid4()
    host: ChannelHost
    async with CHANNEL_HOSTS[channel](sqlite_url, gate.build()) as host:
        assert await host.ask("one", request_id) == ["program: one"]
        assert await host.ask("one", request_id) == ["repeated", "program: one"]
        assert await host.ask("one", request_id, thread="another") == ["repeated", "program: one"]
        await host.restart()
        assert await host.ask("one", request_id) == ["repeated", "program: one"]
        assert await host.ask("two", request_id) == ["refused"]
        assert await host.ask("one", request_id, sender="mallory@localhost") == ["program: one"]
    assert gate.queries == ["one", "one"]


async def test_a_request_that_is_repeated_during_its_turn_gets_the_same_reply(sqlite_url: str) -> None:
    gate, request_id = Gate(), uuid4()
    gate.opened.clear()
    async with FetchedHost(sqlite_url, gate.build()) as host:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(host.ask("one", request_id))
            await gate.entered.wait()
            second = tasks.create_task(host.ask("one", request_id))
            asyncio.get_running_loop().call_soon(gate.opened.set)  # when the second request was received
        assert first.result() == second.result() == ["program: one"]
    assert gate.queries == ["one"]


@both_channels
async def test_requests_of_a_conversation_run_in_their_order(channel: str, sqlite_url: str) -> None:
    gate = Gate()
    async with CHANNEL_HOSTS[channel](sqlite_url, gate.build()) as host, asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(host.ask(str(number), uuid4()))
    assert gate.queries == [str(number) for number in range(20)]


async def test_a_request_whose_turn_was_cut_off_is_answered_after_the_restart_by_its_channel(sqlite_url: str) -> None:
    gate, request_id = Gate(), uuid4()
    gate.opened.clear()
    async with FetchedHost(sqlite_url, gate.build()) as host:
        asking = asyncio.create_task(host.ask("one", request_id))
        await gate.entered.wait()
        await host.restart()
        gate.opened.set()
        assert texts_of(await read_all(host.channel.fetch(PROGRAM_JID, request_id))) == ["program: one"]
        assert await asking == ["program: one"]  # its address is still the one of the request
        assert texts_of(await read_all(host.channel.fetch(PROGRAM_JID, request_id))) == ["program: one"]
        assert await read_all(host.channel.fetch("mallory@localhost", request_id)) == []
        assert [event async for event in host.channel.fetch(PROGRAM_JID, uuid4())] == []
        assert await read_all(host.channel.fetch("stranger@elsewhere.example", request_id)) == []
    assert gate.queries == ["one", "one"]


async def test_a_sender_who_fetches_without_end_is_refused(sqlite_url: str) -> None:
    gate = Gate()
    async with FetchedHost(sqlite_url, gate.build()) as host:
        fetched = [await read_all(host.channel.fetch(PROGRAM_JID, uuid4())) for _ in range(3100)]
        assert fetched[0] == []
        assert [event["type"] for event in fetched[-1]] == ["Refused"]
        assert await read_all(host.channel.fetch("other@localhost", uuid4())) == []
        assert await host.ask("one", uuid4(), sender="other@localhost") == ["program: one"]


async def test_a_reply_is_fetched_after_the_process_was_killed(sqlite_url: str) -> None:
    request_id = uuid4()
    killed = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, sqlite_url, str(request_id), stdout=PIPE)
    assert killed.stdout is not None
    assert await killed.stdout.readline() == b"the turn runs\n"
    killed.kill()
    await killed.wait()
    gate = Gate()
    async with FetchedHost(sqlite_url, gate.build()) as host:
        assert texts_of(await read_all(host.channel.fetch(PROGRAM_JID, request_id))) == ["program: one"]
        assert await host.ask("one", request_id) == ["repeated", "program: one"]
    assert gate.queries == ["one"]


async def ask_and_wait(url: str, request_id: str) -> None:
    """Ask an agent that does not answer, and say when its turn runs."""
    gate = Gate()
    gate.opened.clear()
    async with FetchedHost(url, gate.build()) as host:
        asking = asyncio.create_task(host.ask("one", UUID(request_id)))
        await gate.entered.wait()
        await host.runtime.runner.repository.inbox.flush()  # the turn began before the request was stored
        print("the turn runs", flush=True)
        await asking


async def test_a_request_whose_channel_is_missing_stays_and_hinders_no_start(database_url: str) -> None:
    gate, request_id, channel = Gate(), uuid4(), FetchedChannel()
    gate.opened.clear()
    async with run_on_channels(database_url, gate.build(), {NAME: channel}):
        asking = asyncio.create_task(read_all(channel.ask(PROGRAM_JID, "one", request_id)))
        await gate.entered.wait()
    async with run_on_channels(database_url, gate.build(), {}) as runtime:
        assert runtime.runner.control.recovery.without_channel == {NAME: 1}
        assert runtime.runner.mailboxes.busy_count == 0
        [row] = read_rows(database_url, "inbox")
        assert (row["state"], row["channel"]) == (RECEIVED, NAME)
    execute(database_url, "UPDATE inbox SET request = replace(request, '\"program\"', '\"newer\"')")
    async with run_on_channels(database_url, gate.build(), {NAME: channel}) as runtime:
        assert runtime.runner.control.recovery.without_channel == {"newer": 1}  # a newer version knows this kind of channel
    execute(database_url, "UPDATE inbox SET request = replace(request, '\"newer\"', '\"program\"')")
    gate.opened.set()
    async with run_on_channels(database_url, gate.build(), {NAME: channel}) as runtime:
        assert runtime.runner.control.recovery.without_channel == {}
        assert texts_of(await asking) == ["program: one"]
        await runtime.runner.mailboxes.wait_until_idle()
    assert gate.queries == ["one", "one"]


@asynccontextmanager
async def connect(port: int, address: str) -> AsyncIterator[Callable[..., Coroutine[Any, Any, Event]]]:
    """Connect as a sender, and yield a function that sends a line, if there is one, and returns the next event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{address}\n".encode())

    async def exchange(**request: str) -> Event:
        if request:
            writer.write(f"{json.dumps(request)}\n".encode())
        event: Event = json.loads(await reader.readline())
        return event

    try:
        yield exchange
    finally:
        writer.close()
        await writer.wait_closed()


async def test_another_transport_is_a_channel(database_url: str) -> None:
    gate, channel, request_id = Gate(), LineChannel(), str(uuid4())
    address = f"{PROGRAM_JID}/1"
    async with (
        run_on_channels(database_url, gate.build(), {LINE: channel}),
        connect(channel.port, address) as exchange,
        connect(channel.port, "stranger@elsewhere.example/1") as of_stranger,
    ):
        assert (await exchange(query="one", id=request_id))["content"] == "program: one"
        assert (await exchange())["type"] == "Completed"
        assert (await exchange(query="one", id=request_id))["type"] == "Repeated"
        assert [(await exchange())["type"] for _ in range(2)] == ["TextEmitted", "Completed"]
        assert (await exchange(id=request_id))["type"] == "Malformed"
        assert (await of_stranger(query="one", id=request_id))["type"] == "Refused"
    gate.entered.clear()
    gate.opened.clear()
    async with (
        run_on_channels(database_url, gate.build(), {LINE: channel}),
        connect(channel.port, address) as exchange,
    ):
        asking = asyncio.create_task(exchange(query="two", id=str(uuid4())))
        await gate.entered.wait()
        asking.cancel()
    gate.opened.set()
    channel = LineChannel()
    async with run_on_channels(database_url, gate.build(), {LINE: channel}) as runtime:
        await runtime.runner.mailboxes.wait_until_idle()
        async with connect(channel.port, address) as exchange:
            assert (await exchange())["content"] == "program: two"
            assert (await exchange())["type"] == "Completed"
    assert gate.queries == ["one", "two", "two"]


async def test_another_channel_gets_the_stored_reply_in_its_own_form_once_there_is_one(database_url: str) -> None:
    gate, line, fetched, request_id = Gate(), LineChannel(), FetchedChannel(), uuid4()
    gate.opened.clear()
    async with (
        run_on_channels(database_url, gate.build(), {LINE: line, NAME: fetched}),
        connect(line.port, f"{PROGRAM_JID}/1") as exchange,
    ):
        asking = asyncio.create_task(exchange(query="one", id=str(request_id)))
        await gate.entered.wait()
        for events in (fetched.ask(PROGRAM_JID, "one", request_id), fetched.fetch(PROGRAM_JID, request_id)):
            [refused] = await read_all(events)  # it does not wait for the turn, in a slot that the turn may need
            assert (refused["type"], refused["message"]) == ("Refused", NOT_READY)
        gate.opened.set()
        assert (await asking)["content"] == "program: one"
        assert (await exchange())["type"] == "Completed"
        fetched_events = await read_all(fetched.fetch(PROGRAM_JID, request_id))
        assert [event["type"] for event in fetched_events] == ["Repeated", "TextEmitted", "Completed"]
    assert gate.queries == ["one"]


async def test_a_reply_that_is_fetched_from_an_agent_that_stops_is_not_ready(sqlite_url: str) -> None:
    gate, request_id, channel = Gate(), uuid4(), FetchedChannel()
    gate.opened.clear()
    async with run_on_channels(sqlite_url, gate.build(), {NAME: channel}) as runtime:
        asking = asyncio.create_task(read_all(channel.ask(PROGRAM_JID, "one", request_id)))
        await gate.entered.wait()
        await runtime.runner.drain(0.0)  # the request runs again after the next start
        [refused] = await read_all(channel.fetch(PROGRAM_JID, request_id))
        assert (refused["type"], refused["message"]) == ("Refused", NOT_READY)
        asking.cancel()


async def test_a_channel_that_the_agent_does_not_have_passes_nothing_on(sqlite_url: str) -> None:
    channel = FetchedChannel()
    async with run_on_channels(sqlite_url, Gate().build(), {}) as runtime:
        await channel.open(runtime.gateway)
        with pytest.raises(KeyError, match=NAME):
            await read_all(channel.ask(PROGRAM_JID, "one", uuid4()))
    assert read_rows(sqlite_url, "inbox") == []


class DeafChannel(FetchedChannel):
    """A channel that pushes its messages and never learns that they have arrived."""

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        pass


async def test_a_stored_reply_whose_channel_is_missing_stays_until_it_is_there(database_url: str) -> None:
    gate, request_id, deaf = Gate(), uuid4(), DeafChannel()
    async with run_on_channels(database_url, gate.build(), {NAME: deaf}) as runtime:
        asking = asyncio.create_task(read_all(deaf.ask(PROGRAM_JID, "one", request_id)))
        await gate.entered.wait()
        await runtime.runner.mailboxes.wait_until_idle()
        asking.cancel()
    for channels, count, state in (({}, 1, ANSWERED), ({NAME: FetchedChannel()}, 0, CLOSED)):
        async with run_on_channels(database_url, gate.build(), channels) as runtime:
            assert runtime.runner.control.recovery.without_channel.total() == count
        assert [(row["state"], row["channel"]) for row in read_rows(database_url, "inbox")] == [(state, NAME)]
    assert gate.queries == ["one"]


if __name__ == "__main__":
    asyncio.run(ask_and_wait(*sys.argv[1:]))


class HangingChannel(FetchedChannel):
    """A channel whose end does not come."""

    async def close(self) -> None:
        await super().close()
        await asyncio.Event().wait()


async def test_a_channel_that_does_not_close_is_left(sqlite_url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("notes@localhost: the channel first does not close within 0.1 s, and is left")
    policy, second = Policy(timings=RunnerTimings(shutdown_s=0.1)), FetchedChannel()
    async with run_on_channels(sqlite_url, Gate().build(), {"first": HangingChannel(), "second": second}, policy):
        assert second.is_open
    assert not second.is_open
