"""Webhooks under `kill -9`: an accepted event is answered once, and its answer is found. One that was not is sent again."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from spade_coreason.config.settings import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage import StoredWebhook, WebhookKind
from tests.support.doors import ask, web_settings
from tests.support.errors import check_errors, errors_in
from tests.support.hosting import PlatformProcess
from tests.support.long_forms import short_and_long_in_release
from tests.support.wait import ANSWER_S
from tests.support.webhooks import sign

EVENTS_PER_KILL = 6


def configure(directory: Path, settings: WebSettings) -> Path:
    agent = {
        "jid": "diary@localhost",
        "agent": "tests.support.hosting:JournalAgent",
        "options": {"journal": str(directory / "journal")},
        "doors": ["webhook"],
    }
    values = {
        "server": {"mode": "embedded"},
        "data_dir": str(directory / "data"),
        "conversation": {"max_interactions": 0},
        "web": {"port": settings.port},
        "agents": [agent],
    }
    file = directory / "platform.yaml"
    file.write_text(json.dumps(values))
    return file


def create(data_dir: Path, kind: WebhookKind) -> StoredWebhook:
    """Create a webhook, and return what its sender knows of it."""
    operation = OPERATIONS["webhooks.create"]
    arguments = {"name": "ci", "agent": "diary", "kind": kind}
    issued, _ = call_platform(data_dir, operation, operation.read_arguments(arguments))
    return StoredWebhook(0, "ci", "", kind, None, issued.secret, 1, None, None, b"", 0, "", 0, None)


class Sender:
    """A sender of events, which remembers the address of each answer that it was told."""

    def __init__(self, settings: WebSettings, webhook: StoredWebhook) -> None:
        self._settings, self._webhook = settings, webhook
        self.addresses: dict[str, str] = {}

    async def send(self, query: str) -> None:
        """Send an event; forget about it if the server is gone."""
        body = json.dumps({"query": query}).encode()
        signed = sign(self._webhook, body, query.replace(" ", "-"), utc_now())
        headers = [f"{name}: {value}" for name, value in {**signed, "Content-Type": "application/json"}.items()]
        try:
            reply = await ask(self._settings, "/webhooks/ci", *headers, method="POST", key=None, body=body)
        except (OSError, asyncio.IncompleteReadError):
            return
        if reply.status == 202:
            address = self.addresses.setdefault(query, reply.headers["location"])
            assert address == reply.headers["location"]
        else:
            assert reply.status == 503  # the agent does not run yet

    async def send_until_accepted(self, query: str) -> None:
        """Send an event until it is accepted, as a sender of webhooks does."""
        async with asyncio.timeout(ANSWER_S):
            while query not in self.addresses:
                await self.send(query)

    async def answer(self, query: str) -> Mapping[str, Any]:
        """Return the answer to an event that was accepted."""
        path = urlsplit(self.addresses[query]).path
        async with asyncio.timeout(ANSWER_S):
            while (reply := await ask(self._settings, path, key=None)).status != 200:
                assert reply.status in (202, 503), reply
                await asyncio.sleep(0.02)
        found: dict[str, Any] = json.loads(reply.body)
        return found


@pytest.mark.embedded
@pytest.mark.timeout(3600)
@short_and_long_in_release("WEBHOOK_KILLS", 2, 10)
@pytest.mark.parametrize("kind", ["standard", "github"])
async def test_an_accepted_event_is_answered_once_whenever_the_process_dies(
    tmp_path: Path, kind: WebhookKind, count: int
) -> None:
    rng, settings = random.Random(count), web_settings()
    process = PlatformProcess(configure(tmp_path, settings))
    await process.start()
    sender = Sender(settings, await asyncio.to_thread(create, tmp_path / "data", kind))
    sent: list[str] = []
    try:
        for number in range(count):
            queries = [f"event {number} {part}" for part in range(EVENTS_PER_KILL)]
            tasks = [asyncio.create_task(sender.send(query)) for query in queries]
            for _ in range(rng.randrange(60)):
                await asyncio.sleep(0.001)  # the instant of the kill is left to chance
            await process.signal(signal.SIGKILL)
            await asyncio.gather(*tasks)
            accepted = set(sender.addresses)
            await process.start()
            for query in queries:
                if query not in accepted:
                    await sender.send_until_accepted(query)
                elif rng.randrange(2):
                    await sender.send(query)
            sent += queries
            for query in queries:
                answer = await sender.answer(query)
                assert (answer["state"], answer["text"]) == ("completed", f"noted: {query}")
        await sender.send_until_accepted("what do you know?")
        known = json.loads((await sender.answer("what do you know?"))["text"])
        assert sorted(known["history"]) == sorted(sent)
        assert known["count"] == len(sent)
        assert await process.signal(signal.SIGTERM) == 0
    finally:
        if process.process is not None:
            await process.signal(signal.SIGKILL)
    check_errors(errors_in(process.error_log.read_text()), ())
