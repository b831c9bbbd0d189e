"""How answers leave: those of the same moment in few writes, each once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.servers.clients import StockClient
from tests.servers.server import XmppServer
from tests.xmpp.hosting import By, hosted


@pytest.mark.parametrize("at_once", [1, 40])
async def test_answers_of_one_moment_leave_in_few_writes_and_each_once(
    real_server: XmppServer, tmp_path: Path, at_once: int
) -> None:
    gate = asyncio.Event()
    waiting = 0

    async def assist(request: Any, session: Any, response: Any) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == at_once:
            gate.set()
        await gate.wait()
        await response.markdown(request.payload["query"])

    async with (
        hosted(By(assist), real_server, tmp_path) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        connection = agent.host.connection
        writes: list[int] = []
        send_raw = connection.client.send_raw

        def watched(data: Any) -> None:
            if number := str(data).count("<body>"):
                writes.append(number)
            send_raw(data)

        connection.client.send_raw = watched
        for _ in range(3):
            gate.clear()
            waiting = 0
            for number in range(at_once):
                alice.send(f"{number}", agent.jid, thread=f"t{number}")
            answers = [str((await alice.answer())["body"]) for _ in range(at_once)]
            assert sorted(answers, key=int) == [f"{number}" for number in range(at_once)]
        assert sum(writes) == 3 * at_once
        assert len(writes) <= (3 if at_once == 1 else 3 * at_once / 4), writes
        assert max(writes) <= 32  # so that whoever reads them need not wait for the last
