"""What a restart makes of requests whose turns ran, and of those that only waited."""

from __future__ import annotations

import asyncio
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

from spade_coreason.operations.definition import NoArguments
from spade_coreason.operations.platform import drain_platform
from spade_coreason.operations.rpc.client import call_platform
from tests.support.databases import CLOSED, RECEIVED, SQLITE, read_rows
from tests.support.hosting import PlatformProcess, run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually

INTERRUPTED = "I was interrupted before I could answer this. Please ask again."


def count_open_requests(data_dir: Path) -> int:
    """Return the number of requests that are stored without a reply."""
    return len(open_requests(data_dir))


def open_requests(data_dir: Path) -> list[str]:
    """Return the stored requests without a reply."""
    return [str(row["request"]) for row in read_inbox(data_dir) if row["state"] == RECEIVED]


def read_inbox(data_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of the inbox."""
    return read_rows(f"{SQLITE}{data_dir / 'platform.db'}", "inbox")


async def read_answers(alice: StockClient, count: int) -> list[str]:
    return sorted([str((await alice.answer())["body"]) for _ in range(count)])


async def test_a_restart_reports_only_the_requests_that_it_has_interrupted(prosody: XmppServer, tmp_path: Path) -> None:
    data, agent, options = tmp_path / "data", "tests.app.test_crashes:FragileAgent", {"directory": str(tmp_path)}
    begun, conversation = threading.Event(), {"on_restart": "report"}
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        run_platform(prosody, tmp_path, agent=agent, options=options, conversation=conversation, grace_s=0) as (platform, jid),
    ):
        alice.send("long", jid, thread="long")
        await eventually((tmp_path / "long").exists)
        drain = partial(call_platform, data, drain_platform, NoArguments(), on_progress=lambda done, total: begun.set())
        draining = asyncio.create_task(asyncio.to_thread(drain))
        await eventually(begun.is_set)
        alice.send("held", jid, thread="held")
        await eventually(lambda: count_open_requests(data) == 2)
        (tmp_path / "release").touch()
        await draining
        assert await platform.wait() == 0
        await platform.start()
        assert await read_answers(alice, 2) == ["done: held", "done: long"]

        await stop_during_a_turn(platform, alice, jid, tmp_path, signal.SIGTERM)
        assert await read_answers(alice, 2) == [INTERRUPTED, "done: behind SIGTERM"]
        # After a crash it is not known what had begun.
        await stop_during_a_turn(platform, alice, jid, tmp_path, signal.SIGKILL)
        assert await read_answers(alice, 2) == [INTERRUPTED, INTERRUPTED]


async def stop_during_a_turn(
    platform: PlatformProcess, alice: StockClient, jid: str, directory: Path, number: signal.Signals
) -> None:
    """End the platform during a turn, behind which another request waits, and start it again."""
    # Otherwise answers that the server has not acknowledged are sent again after the restart.
    await eventually(lambda: all(row["state"] == CLOSED for row in read_inbox(directory / "data")))
    (directory / "release").unlink()
    (directory / "long").unlink()
    alice.send("long", jid, thread="long")
    await eventually((directory / "long").exists)
    alice.send(f"behind {number.name}", jid, thread="long")
    await eventually(lambda: any(f"behind {number.name}" in request for request in open_requests(directory / "data")))
    await platform.signal(number)
    (directory / "release").touch()
    await platform.start()
