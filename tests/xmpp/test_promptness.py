"""The times at which typing, first words and corrections are sent on a real server, by a clock that the test moves.

How soon people see them on a quiet machine is measured by `make bench`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.promptness import ACTIVE, COMPOSING, THREADS, busy
from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.testing import RunnerTimings
from tests.support.clock import LoopClock
from tests.support.hosting import UNLIMITED, FunctionAgent, count_bodies, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.xmpp.test_failing_agents import new_program_client
from tests.xmpp.test_live_messages import CORRECTION_PLUGINS, StreamController, corrected_id, wait_until_known


async def test_typing_is_shown_200_to_300_ms_after_a_message_with_100_busy_conversations(
    real_server: XmppServer, tmp_path: Path
) -> None:
    started: list[str] = []
    done = asyncio.Event()

    async def assist(request: Any, session: Any, response: Any) -> None:
        started.append(request.metadata["conversation_id"])
        await done.wait()

    async with busy(assist, real_server, tmp_path) as (agent, people):
        sent = record_sent(agent)
        with LoopClock() as clock:
            threads = [(person, f"{person.jid}-{number}") for number in range(THREADS) for person in people]
            for person, thread in threads:
                person.send("think", agent.jid, thread=thread, extra_xml=ACTIVE)
            await clock.wait_for(lambda: len(started) == len(threads))
            assert agent.runner.mailboxes.busy_count == len(threads)
            await clock.advance(0.19)
            assert not [stanza for stanza in sent if "composing" in stanza]
            await clock.advance(0.11)
            for person in people:
                seen = [await next_typing_thread(person) for _ in range(THREADS)]
                assert sorted(seen) == sorted(thread for owner, thread in threads if owner is person)
        done.set()


async def next_typing_thread(person: StockClient) -> str:
    """Return the thread of the next conversation in which typing is shown."""
    while (message := await person.message()).xml.find(COMPOSING) is None:
        pass
    return str(message["thread"])


async def test_first_words_are_seen_within_50_ms_with_100_busy_conversations(real_server: XmppServer, tmp_path: Path) -> None:
    written: list[str] = []
    done = asyncio.Event()

    async def assist(request: Any, session: Any, response: Any) -> None:
        stream = await response.create_stream()
        await stream.write("first")
        written.append(request.metadata["conversation_id"])
        await done.wait()

    async with busy(assist, real_server, tmp_path, *CORRECTION_PLUGINS) as (agent, people):
        for person in people:
            await wait_until_known(person, agent)
        with LoopClock() as clock:
            threads = [(person, f"{person.jid}-{number}") for number in range(THREADS) for person in people]
            for person, thread in threads:
                person.send("speak", agent.jid, thread=thread)
            await clock.wait_for(lambda: len(written) == len(threads))
            await clock.advance(0.05)
            for person in people:
                words = [await person.answer() for _ in range(THREADS)]
                assert {message["body"] for message in words} == {"first"}
                seen = sorted(message["thread"] for message in words)
                assert seen == sorted(thread for owner, thread in threads if owner is person)
        done.set()


async def test_a_second_stream_does_not_wait_for_the_first_and_nothing_overtakes_what_was_said_before(
    real_server: XmppServer, tmp_path: Path
) -> None:
    written: list[str] = []
    release = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("Two things:")
        for word in ("one", "two"):
            stream = await response.create_stream()
            await stream.write(word)
            written.append(word)
            await release.wait()
            release.clear()

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid)
            for word in ("one", "two"):
                await clock.wait_for(lambda word=word: word in written)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
                await clock.advance(0.05)
                if word == "one":
                    assert (await alice.answer())["body"] == "Two things:"  # what was said before is seen before
                message = await alice.answer()
                assert (message["body"], corrected_id(message)) == (word, None)
                release.set()


async def test_a_message_is_corrected_once_a_second_at_most(prosody: XmppServer, tmp_path: Path) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, agent)
        sent = record_sent(agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid)
            words: list[str] = []
            for second in range(3):
                for _ in range(10):  # the first at once, then one a second, with all that was written meanwhile
                    controller.write(f"{len(words)} ")
                    words.append(str(len(words)))
                    await clock.wait_for(lambda: len(controller.written) == len(words))
                    if second:
                        await clock.advance(0.09)
                        assert count_bodies(sent) == second
                await clock.advance(0.15)
                assert (await alice.answer())["body"].split() == words
                assert count_bodies(sent) == second + 1
            controller.write(f"{len(words)} ", None)
            last = await alice.answer()
            assert last["body"].split() == [*words, str(len(words))]
            assert last.xml.find("{urn:xmpp:hints}store") is not None


async def test_the_end_of_an_answer_does_not_wait_for_the_time_of_its_next_correction(
    prosody: XmppServer, tmp_path: Path
) -> None:
    controller, policy = StreamController(), replace(UNLIMITED, timings=RunnerTimings(update_interval_s=60))
    async with (
        run_agent(controller.agent, prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTION_PLUGINS) as alice,
    ):
        await wait_until_known(alice, agent)
        alice.send("go", agent.jid)
        controller.write("It ")
        first = await alice.answer()
        controller.write("is ", "sunny", None)
        last = await alice.answer()
        assert (first["body"], last["body"], corrected_id(last)) == ("It", "It is sunny", first["id"])


async def test_a_program_gets_every_chunk_at_once_and_many_of_them_share_a_write(
    real_server: XmppServer, tmp_path: Path
) -> None:
    first_chunk_received, writes = asyncio.Event(), []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("first")
        await first_chunk_received.wait()  # it is not kept back until there is more
        for number in range(640):
            await stream.write(f"{number} ")

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        await new_program_client(real_server) as program,
    ):
        client = agent.host.connection.client
        send_raw = client.send_raw

        def count_chunks(data: Any) -> None:
            if number := str(data).count("ai.coreason.stream.chunk"):
                writes.append(number)
            send_raw(data)

        client.send_raw = count_chunks
        chunks: list[str] = []
        async for event in program.stream(agent.jid, "go"):
            if event.type == "stream.chunk":
                chunks.append(event.data["chunk"])
                first_chunk_received.set()
        assert chunks == ["first", *(f"{number} " for number in range(640))]
        assert sum(writes) == 641
        assert len(writes) < 641 / 10, writes
