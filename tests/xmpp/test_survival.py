"""Nothing is lost and nothing runs twice: after SIGTERM, after `kill -9`, after a cut connection, resumed or not."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import StoreError
from spade_coreason.storage.schema import ANSWERED, RECEIVED
from spade_coreason.testing import RunnerTimings
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import (
    UNLIMITED,
    Echo,
    FunctionAgent,
    PlatformProcess,
    Tunnel,
    read_journal,
    run_agent,
    run_platform,
    texts,
)
from tests.support.servers.clients import StockClient
from tests.support.servers.ejabberd import ejabberd as ejabberd_server, installed as ejabberd_installed
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.prosody import installed as prosody_installed, prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

QUESTIONS = 100


class Receiver:
    """Everything that a client receives."""

    def __init__(self, client: StockClient) -> None:
        self.messages: list[Any] = []
        self._client = client

    async def receive_until(self, enough: Callable[[list[Any]], bool], timeout_s: float = TIMEOUT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not enough(self.messages):
                self.messages.append(await self._client.message(timeout_s))

    def ids(self) -> dict[str, set[str]]:
        """Return the ids of every text."""
        found: dict[str, set[str]] = defaultdict(set)
        for message in self.messages:
            found[str(message["body"])].add(str(message["id"]))
        return found


async def _receive_until_with_restart(
    receiver: Receiver, enough: Callable[[list[Any]], bool], child: PlatformProcess, server: XmppServer
) -> None:
    """ejabberd 23.01 can put mail of a dead session into its offline store just after the presence that would have fetched
    it; the next presence does. Nothing is lost.
    """
    try:
        await receiver.receive_until(enough, 5 if server.kind == "ejabberd" else TIMEOUT_S)
    except TimeoutError:
        if server.kind != "ejabberd":
            raise
        assert await child.signal(signal.SIGTERM) == 0
        await child.start()
        await receiver.receive_until(enough)


def _questions(threads: int) -> list[tuple[str, str]]:
    return [(f"t{number % threads}", f"question {number}") for number in range(QUESTIONS)]


async def _ask_what_it_knows(client: StockClient, jid: str, thread: str) -> dict[str, Any]:
    knowledge: dict[str, Any] = json.loads(await client.ask("what do you know?", jid, thread=thread))
    return knowledge


async def test_sigterm_finishes_turns_in_flight_and_the_rest_is_answered_after_the_start(
    local_server: XmppServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    asked = _questions(20)
    options = {"journal": str(journal), "delay_s": 0.3}
    async with (
        run_platform(local_server, tmp_path, options=options) as (child, jid),
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        receiver = Receiver(alice)
        for thread, question in asked:
            alice.send(question, jid, thread=thread)
        await receiver.receive_until(lambda messages: len(messages) >= 5)
        assert await child.signal(signal.SIGTERM) == 0
        written = read_journal(journal)
        started = {question for phase, question, _ in written if phase == "begins"}
        assert started == {question for phase, question, _ in written if phase == "ends"}  # nothing was broken off
        assert 20 <= len(started) < QUESTIONS
        [remembered] = [path for path in (tmp_path / "data" / "memory").iterdir() if path.suffix != ".lock"]
        interactions = json.loads(remembered.read_text())["interactions"]  # the file alone is complete
        assert started == {entry["content"] for entries in interactions.values() for entry in entries}
        await receiver.receive_until(lambda messages: len(messages) >= len(started))
        assert set(texts(receiver.messages)) == {f"noted: {question}" for question in started}

        await child.start()
        everything = {f"noted: {question}" for _, question in asked}
        await receiver.receive_until(lambda messages: set(texts(messages)) == everything)
        again = [
            (question, redelivered)
            for phase, question, redelivered in read_journal(journal)[len(written) :]
            if phase == "begins"
        ]
        assert Counter(question for question, _ in again) == Counter({question for _, question in asked} - started)
        assert any(redelivered for _, redelivered in again)
        assert all(len(ids) == 1 for ids in receiver.ids().values())
        for number in (0, 7):
            own_questions = [question for thread, question in asked if thread == f"t{number}"]
            knowledge = await _ask_what_it_knows(alice, jid, f"t{number}")
            assert knowledge == {"history": own_questions, "count": len(own_questions), "memory": own_questions}


def _count_inbox_rows(tmp_path: Path, state: int) -> int:
    with closing(sqlite3.connect(tmp_path / "data" / "platform.db")) as database:
        return int(database.execute("SELECT count(*) FROM inbox WHERE state = ?", (state,)).fetchone()[0])


def _stored_questions(tmp_path: Path, table: str, column: str, where: str, path: tuple[str, ...]) -> list[str]:
    with closing(sqlite3.connect(tmp_path / "data" / "platform.db")) as database:
        found = [json.loads(row[0]) for row in database.execute(f"SELECT {column} FROM {table} WHERE {where}")]
    for step in path:
        found = [value[step] for value in found]
    return [str(value) for value in found]


@on_both_servers
async def test_after_kill_9_every_question_is_answered_and_no_finished_turn_runs_twice(
    real_server: XmppServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    asked = _questions(10)
    options = {"journal": str(journal), "delay_s": 0.05}
    async with (
        run_platform(real_server, tmp_path, options=options) as (child, jid),
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        receiver = Receiver(alice)
        for thread, question in asked:
            alice.send(question, jid, thread=thread)
        await receiver.receive_until(lambda messages: len(messages) >= 30)
        assert await child.signal(signal.SIGKILL) == -signal.SIGKILL
        written = read_journal(journal)
        finished = _stored_questions(tmp_path, "interactions", "body", "1", ("input", "query"))
        waiting = _stored_questions(tmp_path, "inbox", "request", f"state = {RECEIVED}", ("payload", "query"))
        answered = _count_inbox_rows(tmp_path, ANSWERED)
        assert len(finished) >= 30
        assert waiting

        await child.start()
        everything = {f"noted: {question}" for _, question in asked}
        await receiver.receive_until(lambda messages: set(texts(messages)) == everything)
        again = {
            question: redelivered for phase, question, redelivered in read_journal(journal)[len(written) :] if phase == "begins"
        }
        assert not set(again) & set(finished)
        assert set(again) == {question for _, question in asked} - set(finished)
        assert {question for question, redelivered in again.items() if redelivered} == set(waiting)
        # What came twice came with the same id.
        assert all(len(ids) == 1 for ids in receiver.ids().values())
        assert len(receiver.messages) - QUESTIONS <= answered
        knowledge = await _ask_what_it_knows(alice, jid, "t3")
        own_questions = [question for thread, question in asked if thread == "t3"]
        assert sorted(knowledge["history"]) == sorted(own_questions)
        assert knowledge["count"] == len(own_questions)
        assert set(knowledge["memory"]) == set(own_questions)


@on_both_servers
async def test_a_message_is_not_acknowledged_before_it_is_durable(real_server: XmppServer, tmp_path: Path) -> None:
    """While the disk does not take it, the server keeps it and nothing is answered; `kill -9` loses nothing."""
    async with (
        run_platform(real_server, tmp_path, options={"journal": str(tmp_path / "journal")}) as (child, jid),
        StockClient(*await real_server.account(), real_server, plugins=["xep_0199"]) as alice,
    ):
        assert await alice.ask("before", jid) == "noted: before"
        with closing(sqlite3.connect(tmp_path / "data" / "platform.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("hold this", jid)
            # What came behind it was handled, so it has come in.
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=TIMEOUT_S)
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=TIMEOUT_S)
            assert await child.signal(signal.SIGKILL) == -signal.SIGKILL
        assert alice.messages.empty()
        await child.start()
        receiver = Receiver(alice)
        await _receive_until_with_restart(receiver, lambda messages: "noted: hold this" in texts(messages), child, real_server)
        assert texts(receiver.messages).count("noted: hold this") == 1


async def test_messages_during_a_full_disk_are_answered_when_there_is_room_again(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("database or disk is full", "cannot store received messages")
    policy, timings = replace(UNLIMITED, timings=RunnerTimings(retry_s=0.3)), ConnectionTimings(renewal_delay_s=0.3)

    async def set_max_pages(pages: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    await agent.database.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}"))
                    return
                except StoreError:  # it was in one transaction with what cannot be written
                    await asyncio.sleep(0.01)

    async with (
        run_agent(Echo(), real_server, tmp_path, policy=policy, timings=timings) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        await agent.settled()
        await set_max_pages(1)  # no smaller than it is
        asked = [f"{number} {'x' * 40_000}" for number in range(4)]
        for text in asked:
            alice.send(text, agent.jid)
        apology = (await alice.answer())["body"]
        assert apology.startswith("I cannot store anything at the moment, so your message is not stored yet.")
        await eventually(lambda: agent.host.connection.session_count >= 2)  # and what came in was not acknowledged
        assert "cannot store received messages" in caplog.text
        await set_max_pages(100_000)
        receiver = Receiver(alice)
        await receiver.receive_until(lambda messages: set(asked) <= set(texts(messages)), 30)
        # ejabberd does not keep the order of what it delivers again.
        assert sorted(text for text in texts(receiver.messages) if text != apology) == asked


@on_both_servers
async def test_unacknowledged_answers_are_sent_again_with_the_same_ids_and_not_run_again(
    real_server: XmppServer, tmp_path: Path
) -> None:
    runs: list[str] = []
    all_run = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        runs.append(request.payload["query"])
        if len(runs) == 3:
            tunnel.dropped_direction = "to the agent"  # no acknowledgement of an answer arrives
            all_run.set()
        await all_run.wait()
        await response.markdown(f"first part of {request.payload['query']}")
        await response.data({"a": 1}, view_hint="KEY_VALUE")

    async with (
        Tunnel(real_server) as tunnel,
        run_agent(lambda peers: FunctionAgent(assist), real_server, tmp_path, port=tunnel.port) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        for number in range(3):
            alice.send(f"q{number}", agent.jid, thread=f"t{number}")
        first = [await alice.answer() for _ in range(6)]
        await agent.crash()
        tunnel.dropped_direction = ""
        await agent.start()
        second = [await alice.answer() for _ in range(6)]

        def ids_and_bodies(messages: list[Any]) -> set[tuple[str, str]]:
            return {(str(message["id"]), str(message["body"])) for message in messages}

        assert ids_and_bodies(first) == ids_and_bodies(second)
        assert len(runs) == 3
        # Acknowledged, they are never sent again.
        await agent.settled()
        await agent.restart()
        assert await alice.ask("q3", agent.jid) == "first part of q3"
        assert (await alice.answer())["body"] == "a: 1"
        assert alice.messages.empty()


async def test_an_interrupted_turn_runs_again_marked_as_redelivered(real_server: XmppServer, tmp_path: Path) -> None:
    release = asyncio.Event()
    seen: list[bool] = []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        seen.append("redelivered" in request.metadata)
        await response.markdown("the beginning")
        await release.wait()
        await response.markdown("the end")

    async with (
        run_agent(lambda peers: FunctionAgent(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        alice.send("a story", agent.jid)
        begins = await alice.answer()
        await agent.crash()
        release.set()
        await agent.start()
        again, ends = await alice.answer(), await alice.answer()
        assert texts([begins, again, ends]) == ["the beginning", "the beginning", "the end"]
        assert begins["id"] == again["id"] != ends["id"]
        assert seen == [False, True]


async def test_three_cuts_under_1000_messages_lose_none(real_server: XmppServer, tmp_path: Path) -> None:
    """A stanza cut in two makes Prosody 0.12.3 end the resumed stream as not well-formed, now and then: then it is a new
    session, and what was not acknowledged comes again with the same id.
    """
    async with (
        run_agent(Echo(), real_server, tmp_path) as echo,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        slots = asyncio.Semaphore(64)
        answers: dict[str, str] = {}

        async def listen() -> None:
            while len(answers) < 1_000:
                message = await alice.answer()
                if str(message["id"]) in answers:
                    continue
                answers[str(message["id"])] = str(message["body"])
                slots.release()
                if len(answers) in (250, 500, 750):
                    echo.cut()

        listener = asyncio.create_task(listen())
        for number in range(1_000):
            await slots.acquire()
            alice.send(f"{number}.", echo.jid, thread=f"t{number % 10}")
        await asyncio.wait_for(listener, TIMEOUT_S)
        assert Counter(answers.values()) == Counter(f"{number}." for number in range(1_000))
        for thread in range(10):
            thread_answers = [answer for answer in answers.values() if int(answer[:-1]) % 10 == thread]
            assert thread_answers == sorted(thread_answers, key=lambda answer: int(answer[:-1]))
        connection = echo.host.connection
        assert connection.resumption_count >= 1
        assert connection.resumption_count + connection.session_count >= 4
        assert len(echo.agent.requests) == 1_000


async def _wait_until_hibernation_ends(client: StockClient, agent: str) -> None:
    """An IQ to a hibernating session waits there, and comes back as an error when the server gives the session up."""
    iq = client.xmpp.make_iq_get(queryxmlns="urn:test", ito=f"{agent}/agent")
    answered = asyncio.get_running_loop().create_future()
    sent = iq.send(callback=lambda answer: answered.set_result(answer["type"]), timeout=TIMEOUT_S)
    assert await asyncio.wait_for(answered, TIMEOUT_S) == "error"
    await asyncio.gather(sent, return_exceptions=True)


@pytest.mark.servers
async def test_after_a_failed_resumption_every_question_is_answered_and_none_runs_twice(
    start_server: Callable[[XmppServer], XmppServer], tmp_path: Path
) -> None:
    require("Prosody", prosody_installed())
    server = start_server(prosody_server(tmp_path / "server", hibernation_s=1))
    release = asyncio.Event()
    runs: Counter[str] = Counter()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        question = request.payload["query"]
        runs[question] += 1
        if "slow" in question:
            await release.wait()
        await response.markdown(f"answer to {question}")

    async with (
        Tunnel(server) as tunnel,
        run_agent(FunctionAgent(assist), server, tmp_path, port=tunnel.port) as agent,
        StockClient(*await server.account(), server) as alice,
    ):
        receiver = Receiver(alice)
        connection = agent.host.connection
        asked = [f"quick {number}" for number in range(20)]
        for question in asked:
            alice.send(question, agent.jid, thread=question)
        await receiver.receive_until(
            lambda messages: len(messages) == 20
        )  # answered, and the acknowledgements are still to come
        tunnel.dropped_direction = "to the server"
        lost = [f"lost {number}" for number in range(20)]
        slow = [f"slow {number}" for number in range(20)]
        for question in (*lost, *slow):
            alice.send(question, agent.jid, thread=question)
        await eventually(lambda: len(runs) == 60)
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not agent.host.is_alive())
        release.set()  # answered while nobody hears it
        await _wait_until_hibernation_ends(alice, agent.jid)
        tunnel.dropped_direction = ""
        tunnel.is_open = True
        everything = {f"answer to {question}" for question in (*asked, *lost, *slow)}

        def answers(messages: list[Any]) -> list[str]:
            return [str(message["body"]) for message in messages if message["type"] != "error"]

        await receiver.receive_until(lambda messages: set(answers(messages)) == everything)
        assert (connection.resumption_count, connection.session_count) == (0, 2)
        alice.send("quick now", agent.jid)
        await receiver.receive_until(lambda messages: "answer to quick now" in answers(messages))
        assert set(runs.values()) == {1}
        ids = [(str(message["id"]), str(message["body"])) for message in receiver.messages if message["type"] != "error"]
        assert len(set(ids)) == len(everything) + 1  # twice only with the same id
        await agent.settled()
        assert not [row for row in await agent.repository.inbox.load_pending() if row.reply is not None]


@pytest.mark.servers
async def test_while_the_server_is_away_answers_wait_and_nothing_is_lost(
    start_server: Callable[[XmppServer], XmppServer], tmp_path: Path
) -> None:
    require("Prosody", prosody_installed())
    server = start_server(prosody_server(tmp_path / "server"))
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "slow":
            await release.wait()
        await response.markdown(f"answer to {request.payload['query']}")

    account = await server.account()
    async with run_agent(FunctionAgent(assist), server, tmp_path) as agent:
        async with StockClient(*account, server) as alice:
            alice.send("slow", agent.jid)
            await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
            await asyncio.to_thread(server.kill)
        assert not agent.host.is_alive()
        release.set()
        await asyncio.to_thread(server.start)
        async with StockClient(*account, server) as alice:
            assert (await alice.answer())["body"] == "answer to slow"
            assert await alice.ask("quick", agent.jid) == "answer to quick"
        assert agent.host.is_alive()
        assert agent.host.connection.session_count == 2


@pytest.mark.parametrize(
    ("kind", "end"), [("prosody", "stop"), ("prosody", "kill"), pytest.param("ejabberd", "stop", marks=pytest.mark.release)]
)
async def test_questions_before_during_and_after_an_outage_of_the_server_are_answered_once(
    start_server: Callable[[XmppServer], XmppServer], tmp_path: Path, kind: str, end: str
) -> None:
    require(*{"prosody": ("Prosody", prosody_installed()), "ejabberd": ("ejabberd", ejabberd_installed())}[kind])
    make = {"prosody": prosody_server, "ejabberd": ejabberd_server}[kind]
    server = start_server(make(tmp_path / "server"))
    release = asyncio.Event()
    runs: Counter[str] = Counter()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        question = request.payload["query"]
        runs[question] += 1
        if "slow" in question:
            await release.wait()
        await response.markdown(question)

    account = await server.account()
    before = [f"quick {number}" for number in range(20)] + [f"slow {number}" for number in range(20)]
    async with run_agent(FunctionAgent(assist), server, tmp_path) as agent:
        answers: dict[str, str] = {}

        async def listen(client: StockClient, enough: int) -> None:
            while len(answers) < enough:
                message = await client.answer()
                assert answers.setdefault(str(message["id"]), str(message["body"])) == message["body"]

        async with StockClient(*account, server) as alice:
            for question in before:
                alice.send(question, agent.jid, thread=question)
            await listen(alice, 20)
            await eventually(lambda: len(runs) == 40)
            await asyncio.to_thread(getattr(server, end))
        await eventually(lambda: not agent.host.is_alive())
        release.set()
        await agent.runner.mailboxes.wait_until_idle()  # answered while nobody can hear it
        await asyncio.to_thread(server.start)
        async with StockClient(*account, server) as alice:
            # What people write meanwhile leaves their clients when the server is back; here it may be there before the agent.
            for question in ("asked while it was away", "and more"):
                alice.send(question, agent.jid)
            await listen(alice, 42)
            await eventually(agent.host.is_alive)
            alice.send("asked after it", agent.jid)
            await listen(alice, 43)
            await agent.settled()
            assert sorted(answers.values()) == sorted([*before, "asked while it was away", "and more", "asked after it"])
        assert set(runs.values()) == {1}
        assert len(runs) == 43


async def test_a_start_that_is_cancelled_sends_nothing_twice(ejabberd: XmppServer, tmp_path: Path) -> None:
    """ejabberd acknowledges nothing at the end of a stream that it was not asked for; Prosody does."""
    begun = asyncio.Event()

    async def assist(request: AgentRequest, session: Any, response: Any) -> None:
        if request.payload["query"] == "one" and not request.metadata.get("redelivered"):
            begun.set()
            await asyncio.Event().wait()
        await response.markdown(request.payload["query"])

    async def never() -> None:
        await asyncio.Event().wait()

    async with (
        StockClient(*await ejabberd.account(), ejabberd) as alice,
        run_agent(FunctionAgent(assist), ejabberd, tmp_path) as agent,
    ):
        alice.send("one", agent.jid)
        await begun.wait()
        await agent.stop(grace_s=0)
        agent.prepare = lambda host: setattr(host, "setup", never)
        starting = asyncio.create_task(agent.start())
        assert (await alice.answer())["body"] == "one"
        starting.cancel()
        await asyncio.wait([starting])
        agent.prepare = lambda host: None
        await agent.start()
        alice.send("two", agent.jid)
        assert (await alice.answer())["body"] == "two"
