"""How soon typing, first words and corrections are seen on a real server, while much else goes on."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.promptness import Waits, first_words_waits, typing_waits
from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.timings import Timings
from tests.servers.clients import StockClient
from tests.servers.server import XmppServer
from tests.xmpp.hosting import UNLIMITED, By, hosted
from tests.xmpp.test_behaviours_failing import asking
from tests.xmpp.test_growing import CORRECTS, Pen, met, replaces

SLOW_S = 0.5
"""What a busy server may take on top; the figures of a quiet machine are `make bench`'s."""


def late(waits: Waits) -> float:
    """What the loop took on top: it carries a stanza four times, out and in at either end, and may be late each time."""
    return 4 * waits.loop_late_s


async def test_typing_is_shown_200_to_300_ms_after_a_message_with_100_busy_conversations(
    real_server: XmppServer, tmp_path: Path
) -> None:
    typing = await typing_waits(real_server, tmp_path)
    assert typing.waits_s[0] >= 0.2
    assert typing.median_s <= 0.3 + late(typing)
    assert typing.waits_s[-1] <= 0.3 + late(typing) + SLOW_S


async def test_first_words_are_seen_within_50_ms_with_100_busy_conversations(real_server: XmppServer, tmp_path: Path) -> None:
    words = await first_words_waits(real_server, tmp_path)
    assert words.median_s <= 0.05 + late(words)
    assert words.waits_s[-1] <= 0.05 + late(words) + SLOW_S


async def test_a_second_stream_does_not_wait_for_the_first_and_nothing_overtakes_what_was_said_before(
    real_server: XmppServer, tmp_path: Path
) -> None:
    said: dict[str, float] = {}
    done = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("Two things:")
        for word in ("one", "two"):
            stream = await response.create_stream()
            said[word] = time.monotonic()
            await stream.write(word)
            await asyncio.sleep(0.2)
        await done.wait()

    async with (
        hosted(By(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        alice.send("go", agent.jid)
        assert (await alice.answer())["body"] == "Two things:"  # what was said before is seen before
        for word in ("one", "two"):
            message = await alice.answer()
            assert (message["body"], replaces(message)) == (word, None)
            assert time.monotonic() - said[word] <= 0.05 + SLOW_S
        done.set()


async def test_a_message_is_corrected_once_a_second_at_most(prosody: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        hosted(pen.agent, prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody, plugins=CORRECTS) as alice,
    ):
        await met(alice, agent)
        alice.send("go", agent.jid)
        seen: list[tuple[float, str]] = []

        async def read() -> None:
            while True:
                message = await alice.answer()
                seen.append((time.monotonic(), message["body"]))
                if message.xml.find("{urn:xmpp:hints}store") is not None:
                    return

        reading = asyncio.create_task(read())
        began = time.monotonic()
        words = 0
        while time.monotonic() - began < 2.5:
            pen.write(f"{words} ")
            words += 1
            await asyncio.sleep(0.03)
        pen.write(None)
        await reading
        assert seen[-1][1].split() == [str(number) for number in range(words)]
        assert len(seen) >= 3
        # However long they were on their way, none is here before it may be sent: the first at once, then one a second.
        assert all(at - began > 0.99 * number for number, (at, _) in enumerate(seen[:-1])), seen


async def test_the_end_of_an_answer_does_not_wait_for_the_time_of_its_next_correction(
    prosody: XmppServer, tmp_path: Path
) -> None:
    pen, policy = Pen(), replace(UNLIMITED, timings=Timings(growth_s=60))
    async with (
        hosted(pen.agent, prosody, tmp_path, policy=policy) as agent,
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

    async with hosted(By(assist), real_server, tmp_path) as agent, await asking(real_server) as program:
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
