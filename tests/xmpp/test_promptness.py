"""When typing, first words and corrections are sent on a real server, by a clock that stands still between.

How soon people see them on a quiet machine is measured by `make bench`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.promptness import ACTIVE, COMPOSING, THREADS, busy
from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.runtime.policy import RunnerTimings
from tests.support.clock import LoopClock
from tests.support.hosting import UNLIMITED, FunctionAgent, count_bodies, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.xmpp.test_failing_agents import asking
from tests.xmpp.test_live_messages import CORRECTS, Pen, met, replaces


async def test_typing_is_shown_200_to_300_ms_after_a_message_with_100_busy_conversations(
    real_server: XmppServer, tmp_path: Path
) -> None:
    begun: list[str] = []
    done = asyncio.Event()

    async def assist(request: Any, session: Any, response: Any) -> None:
        begun.append(request.metadata["conversation_id"])
        await done.wait()

    async with busy(assist, real_server, tmp_path) as (agent, people):
        sent = record_sent(agent)
        with LoopClock() as clock:
            threads = [(person, f"{person.jid}-{number}") for number in range(THREADS) for person in people]
            for person, thread in threads:
                person.send("think", agent.jid, thread=thread, extra_xml=ACTIVE)
            await clock.until(lambda: len(begun) == len(threads))
            assert agent.runner.turns_in_flight == len(threads)
            await clock.move(0.19)
            assert not [stanza for stanza in sent if "composing" in stanza]
            await clock.move(0.11)
            for person in people:
                seen = [await typing(person) for _ in range(THREADS)]
                assert sorted(seen) == sorted(thread for whose, thread in threads if whose is person)
        done.set()


async def typing(person: StockClient) -> str:
    """The thread of the next conversation where typing is shown."""
    while (message := await person.message()).xml.find(COMPOSING) is None:
        pass
    return str(message["thread"])


async def test_first_words_are_seen_within_50_ms_with_100_busy_conversations(real_server: XmppServer, tmp_path: Path) -> None:
    said: list[str] = []
    done = asyncio.Event()

    async def assist(request: Any, session: Any, response: Any) -> None:
        stream = await response.create_stream()
        await stream.write("first")
        said.append(request.metadata["conversation_id"])
        await done.wait()

    async with busy(assist, real_server, tmp_path, *CORRECTS) as (agent, people):
        for person in people:
            await met(person, agent)
        with LoopClock() as clock:
            threads = [(person, f"{person.jid}-{number}") for number in range(THREADS) for person in people]
            for person, thread in threads:
                person.send("speak", agent.jid, thread=thread)
            await clock.until(lambda: len(said) == len(threads))
            await clock.move(0.05)
            for person in people:
                words = [await person.answer() for _ in range(THREADS)]
                assert {message["body"] for message in words} == {"first"}
                seen = sorted(message["thread"] for message in words)
                assert seen == sorted(thread for whose, thread in threads if whose is person)
        done.set()


async def test_a_second_stream_does_not_wait_for_the_first_and_nothing_overtakes_what_was_said_before(
    real_server: XmppServer, tmp_path: Path
) -> None:
    said: list[str] = []
    may_go_on = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("Two things:")
        for word in ("one", "two"):
            stream = await response.create_stream()
            await stream.write(word)
            said.append(word)
            await may_go_on.wait()
            may_go_on.clear()

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid)
            for word in ("one", "two"):
                await clock.until(lambda word=word: word in said)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
                await clock.move(0.05)
                if word == "one":
                    assert (await alice.answer())["body"] == "Two things:"  # what was said before is seen before
                message = await alice.answer()
                assert (message["body"], replaces(message)) == (word, None)
                may_go_on.set()


async def test_a_message_is_corrected_once_a_second_at_most(prosody: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        run_agent(pen.agent, prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        sent = record_sent(agent)
        with LoopClock() as clock:
            alice.send("go", agent.jid)
            words: list[str] = []
            for second in range(3):
                for _ in range(10):  # the first at once, then one a second, with all that was written meanwhile
                    pen.write(f"{len(words)} ")
                    words.append(str(len(words)))
                    await clock.until(lambda: len(pen.written) == len(words))
                    if second:
                        await clock.move(0.09)
                        assert count_bodies(sent) == second
                await clock.move(0.15)
                assert (await alice.answer())["body"].split() == words
                assert count_bodies(sent) == second + 1
            pen.write(f"{len(words)} ", None)
            last = await alice.answer()
            assert last["body"].split() == [*words, str(len(words))]
            assert last.xml.find("{urn:xmpp:hints}store") is not None


async def test_the_end_of_an_answer_does_not_wait_for_the_time_of_its_next_correction(
    prosody: XmppServer, tmp_path: Path
) -> None:
    pen, policy = Pen(), replace(UNLIMITED, timings=RunnerTimings(update_interval_s=60))
    async with (
        run_agent(pen.agent, prosody, tmp_path, policy=policy) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        alice.send("go", agent.jid)
        pen.write("It ")
        first = await alice.answer()
        pen.write("is ", "sunny", None)
        last = await alice.answer()
        assert (first["body"], last["body"], replaces(last)) == ("It", "It is sunny", first["id"])


async def test_a_program_gets_every_chunk_at_once_and_many_of_them_share_a_write(
    real_server: XmppServer, tmp_path: Path
) -> None:
    seen, writes = asyncio.Event(), []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("first")
        await seen.wait()  # it is not kept back until there is more
        for number in range(640):
            await stream.write(f"{number} ")

    async with run_agent(FunctionAgent(assist), real_server, tmp_path) as agent, await asking(real_server) as program:
        client = agent.host.connection.client
        send_raw = client.send_raw

        def watched(data: Any) -> None:
            if number := str(data).count("ai.coreason.stream.chunk"):
                writes.append(number)
            send_raw(data)

        client.send_raw = watched
        chunks: list[str] = []
        async for event in program.stream(agent.jid, "go"):
            if event.type == "stream.chunk":
                chunks.append(event.data["chunk"])
                seen.set()
        assert chunks == ["first", *(f"{number} " for number in range(640))]
        assert sum(writes) == 641
        assert len(writes) < 641 / 10, writes
