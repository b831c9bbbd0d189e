"""Every message is answered exactly once, in order within its thread, however many there are and whatever their ids."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.hosting import Echo, run_agent, texts
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

IN_FLIGHT = 64
THREADS = 50


async def _ask_all(client: StockClient, to: str, bodies: list[tuple[str, str]], in_flight: int) -> list[tuple[str, str]]:
    """Send all (thread, body), `in_flight` of them at once; return the answers in the order in which they came."""
    slots = asyncio.Semaphore(in_flight)
    answers: list[tuple[str, str]] = []

    async def listen() -> None:
        while len(answers) < len(bodies):
            message = await client.answer()
            answers.append((str(message["thread"]), str(message["body"])))
            slots.release()

    listener = asyncio.create_task(listen())
    for number, (thread, body) in enumerate(bodies):
        await slots.acquire()
        client.send(body, to, thread=thread, id=f"m{number}")
    await asyncio.wait_for(listener, TIMEOUT_S)
    return answers


async def _assert_no_more_answers(client: StockClient, to: str) -> None:
    """Check that there was no answer too many: a new question is the next that is answered."""
    assert await client.ask("the last", to, thread="last") == "the last"
    assert client.messages.empty()


@short_and_long_in_release("ORDERED_MESSAGES", 600, 3000)
async def test_many_messages_of_one_client_are_each_answered_once_and_in_order(
    real_server: XmppServer, tmp_path: Path, count: int
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        messages = [(f"t{number % THREADS}", f"{number}.") for number in range(count)]
        answers = await _ask_all(alice, echo.jid, messages, IN_FLIGHT)
        assert Counter(answers) == Counter(messages)
        by_thread: dict[str, list[str]] = defaultdict(list)
        for thread, body in answers:
            by_thread[thread].append(body)
        assert all(bodies == sorted(bodies, key=lambda body: int(body[:-1])) for bodies in by_thread.values())
        await _assert_no_more_answers(alice, echo.jid)
        assert len(echo.agent.requests) == count + 1


@asynccontextmanager
async def _clients(server: XmppServer, count: int) -> AsyncIterator[list[StockClient]]:
    logging_in = asyncio.Semaphore(10)  # each login has its time; all at once, a busy machine would not keep it

    clients: list[StockClient] = []

    async def log_in() -> None:
        async with logging_in:
            client = StockClient(*await server.account(), server)
            await client.connect()
            clients.append(client)

    try:
        await asyncio.gather(*(log_in() for _ in range(count)))
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


@short_and_long_in_release("ORDERED_MESSAGES", 600, 3000)
async def test_many_messages_of_50_clients_are_each_answered_once_and_to_their_sender(
    real_server: XmppServer, tmp_path: Path, count: int
) -> None:
    async with run_agent(Echo(), real_server, tmp_path) as echo, _clients(real_server, 50) as clients:
        messages = [[("", f"{client}: {number}.") for number in range(count // 50)] for client in range(50)]
        # Without threads, and with the same ids in every client.
        answers = await asyncio.gather(
            *(_ask_all(client, echo.jid, bodies, 8) for client, bodies in zip(clients, messages, strict=True))
        )
        assert list(answers) == messages
        for client in clients:
            await _assert_no_more_answers(client, echo.jid)
        assert len(echo.agent.requests) == count + 50  # the last of each asks whether there is more


async def test_repeated_ids_with_other_content_are_all_answered(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), local_server, tmp_path) as echo,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        for number in range(20):
            alice.send(f"number {number}.", echo.jid, id="1")
        alice.send("number 0.", echo.jid, id="1", thread="another thread is other content")
        answers = [await alice.answer() for _ in range(21)]
        assert Counter(texts(answers)) == Counter([*(f"number {number}." for number in range(20)), "number 0."])


async def test_the_same_message_twice_is_answered_once_also_after_a_restart(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Echo(), prosody, tmp_path) as echo,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        unique = "<origin-id xmlns='urn:xmpp:sid:0' id='7bd6c0cd-0b8b-4b39-bc0a'/>"
        alice.send("once", echo.jid, id="same", extra_xml=unique)
        alice.send("once", echo.jid, id="same", extra_xml=unique)
        assert (await alice.answer())["body"] == "once"
        await _assert_no_more_answers(alice, echo.jid)
        await echo.restart()
        alice.send("once", echo.jid, id="same", extra_xml=unique)
        alice.send("new", echo.jid, id="new")
        assert (await alice.answer())["body"] == "new"
        assert alice.messages.empty()


async def test_the_same_message_without_an_id_is_no_duplicate(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), prosody, tmp_path) as echo, StockClient(*await prosody.account(), prosody) as alice:
        alice.send("again", echo.jid, id="")
        alice.send("again", echo.jid, id="")
        assert texts([await alice.answer(), await alice.answer()]) == ["again", "again"]
