"""Answers of the same moment leave in few writes, each once."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually


def record_writes(agent: OnlineAgent) -> list[str]:
    """Record the data that the agent's connection writes from now on."""
    client, written = agent.host.connection.client, list[str]()
    send_raw = client.send_raw

    def write(data: Any) -> None:
        written.append(str(data))
        send_raw(data)

    client.send_raw = write
    return written


@pytest.mark.parametrize("concurrent", [1, 40])
async def test_answers_of_one_moment_leave_in_few_writes_and_each_once(
    real_server: XmppServer, tmp_path: Path, concurrent: int
) -> None:
    release = asyncio.Event()
    turn_count = 0

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        nonlocal turn_count
        turn_count += 1
        if turn_count == concurrent:
            release.set()
        await release.wait()
        await response.markdown(request.payload["query"])

    async with (
        run_agent(FunctionAgent(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        written = record_writes(agent)
        for _ in range(3):
            release.clear()
            turn_count = 0
            for number in range(concurrent):
                alice.send(f"{number}", agent.jid, thread=f"t{number}")
            answers = [str((await alice.answer())["body"]) for _ in range(concurrent)]
            assert sorted(answers, key=int) == [f"{number}" for number in range(concurrent)]
        writes = [number for text in written if (number := text.count("<body>"))]
        assert sum(writes) == 3 * concurrent
        assert len(writes) <= (3 if concurrent == 1 else 3 * concurrent / 4), writes
        assert max(writes) <= 32  # so that whoever reads them need not wait for the last


async def test_a_requested_acknowledgement_leaves_in_the_write_of_the_answer(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        assert await alice.ask("hello", agent.jid) == "hello"
        written = record_writes(agent)
        with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing is durable before the server has asked
            alice.send("hi", agent.jid)
            await eventually(lambda: agent.host.connection.client.stream_management._is_ack_requested)
        assert (await alice.answer())["body"] == "hi"
        [answer] = [text for text in written if "<body>" in text]
        assert answer.startswith("<a xmlns='urn:xmpp:sm:3'"), written
        acknowledgement = answer[: answer.index("/>")]  # the server may still have asked for one of before
        assert [text for text in written if text.startswith(acknowledgement)] == [answer]
