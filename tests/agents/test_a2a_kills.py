"""An A2A agent as a peer under `kill -9`: a task that is known is never begun twice, and each request is answered."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.a2a_server import run_a2a_server
from tests.support.hosting import run_platform
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

AGENT = "spade_coreason.agents.a2a:RemoteA2AAgent"
_KILLS_PER_REQUEST = 2  # a request that ran at three crashes alone would fail (docs/explanation/delivery-guarantees.md)


def has_steps(tmp_path: Path) -> bool:
    with closing(sqlite3.connect(f"file:{tmp_path}/data/platform.db?mode=ro", uri=True)) as database:
        return bool(database.execute("SELECT count(*) FROM steps WHERE result IS NOT NULL").fetchone()[0])


@pytest.mark.timeout(1200)
@short_and_long_in_release("A2A_KILLS", 2, 10)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_is_not_begun_twice_after_kill_9(prosody: XmppServer, tmp_path: Path, streaming: bool, count: int) -> None:
    rng = random.Random(count)
    async with run_a2a_server(streaming=streaming) as server:
        options = {"url": server.url, "allow_private": ["127.0.0.0/8"], "poll_s": 0.05}
        async with (
            StockClient(*await prosody.account(), prosody) as client,
            run_platform(prosody, tmp_path, agent=AGENT, options=options) as (platform, jid),
        ):
            kills = request_count = 0
            while kills < count:
                request_count += 1
                server.executor.released.clear()
                client.send("slow", jid)
                await eventually(lambda: len(server.executor.messages) >= request_count and has_steps(tmp_path))  # noqa: B023
                for _ in range(rng.randrange(1, _KILLS_PER_REQUEST + 1)):
                    await platform.signal(signal.SIGKILL)
                    kills += 1
                    await platform.start()
                server.executor.released.set()
                while "Done." not in (text := str((await client.answer())["body"])):
                    pass  # the text that was written before the kill
                assert text == "Begun. Done."
                await eventually(lambda: not has_steps(tmp_path))
            assert await platform.signal(signal.SIGTERM) == 0
        assert [text for _, text, _ in server.executor.messages] == ["slow"] * request_count
        assert len({context for _, _, context in server.executor.messages}) == 1
        assert server.executor.cancelled == []


@pytest.mark.timeout(1200)
@short_and_long_in_release("A2A_KILLS", 2, 10)
async def test_each_request_is_answered_whenever_the_process_dies(prosody: XmppServer, tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
    async with run_a2a_server(streaming=False) as server:
        options = {"url": server.url, "allow_private": ["127.0.0.0/8"], "poll_s": 0.01}
        async with (
            StockClient(*await prosody.account(), prosody) as client,
            run_platform(prosody, tmp_path, agent=AGENT, options=options) as (platform, jid),
        ):
            for number in range(count):
                requests = len(server.requests) + rng.randrange(2)
                client.send(f"stream answer {number}", jid)
                await eventually(lambda: len(server.requests) >= requests)  # noqa: B023
                await platform.signal(signal.SIGKILL)
                await platform.start()
                while str((await client.answer())["body"]) != f"answer {number}":
                    pass  # an answer that the server had not acknowledged comes twice
            assert await platform.signal(signal.SIGTERM) == 0
        sent = {(message_id, text) for message_id, text, _ in server.executor.messages}
        assert len(sent) == count
