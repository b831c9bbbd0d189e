"""An agent behind the door of webhooks, with a real HTTP server in front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import urlsplit

from spade_coreason.config.settings import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.doors import WebhookRing, make_webhook_routes
from spade_coreason.doors.webhooks.signatures import sign_github, sign_standard
from spade_coreason.storage import StoredWebhook, WebhookKind, decode_webhook_secret, make_webhook_secret
from spade_coreason.testing import Policy
from tests.support.door_agents import RunningDoors, run_behind_doors
from tests.support.doors import Reply, ask, run_server, web_settings
from tests.support.records import AGENT
from tests.support.wait import TIMEOUT_S


@dataclass
class WebhookServer:
    """A running server, and what tests send to it."""

    settings: WebSettings
    ring: WebhookRing
    running: RunningDoors
    offset: timedelta = timedelta()
    """How far the clock of the server is ahead."""

    def now(self) -> datetime:
        """Return the time of the server."""
        return utc_now() + self.offset

    async def create(
        self, name: str = "ci", kind: WebhookKind = "standard", thread: str | None = None, secret: str = ""
    ) -> StoredWebhook:
        """Create a webhook."""
        made = secret or make_webhook_secret(kind)
        new = self.ring.repository.make(name, AGENT, kind, thread, made, created_by="user tester", now=self.now())
        assert await self.ring.repository.add(new)
        self.ring.take(new)
        return new

    async def rotate(self, name: str, keep: timedelta, kind: WebhookKind = "standard") -> StoredWebhook:
        """Give a webhook a new secret."""
        rotated = await self.ring.repository.rotate(name, make_webhook_secret(kind), keep=keep, now=self.now())
        assert rotated is not None
        self.ring.take(rotated)
        return rotated

    async def revoke(self, name: str) -> None:
        """Revoke a webhook."""
        revoked = await self.ring.repository.revoke(name, self.now())
        assert revoked is not None
        self.ring.take(revoked)

    async def post(self, name: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a POST."""
        lines = [f"{key}: {value}" for key, value in headers.items()]
        return await ask(self.settings, f"/webhooks/{name}", *lines, method="POST", key=None, body=body)

    async def send(
        self,
        webhook: StoredWebhook,
        body: bytes | dict[str, Any],
        message_id: str = "msg_1",
        *,
        at: datetime | None = None,
        **headers: str,
    ) -> Reply:
        """Send an event with the signature of a webhook."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        signed = sign(webhook, data, message_id, at or self.now())
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.post(webhook.name, {"Content-Type": "application/json", **signed, **given}, data)

    async def get(self, url: str) -> Reply:
        """Fetch what is at a URL of the server."""
        return await ask(self.settings, urlsplit(url).path, key=None)

    async def wait_for(self, url: str) -> Reply:
        """Fetch what is at a URL of the server, once nothing there runs any more."""
        async with asyncio.timeout(TIMEOUT_S):
            while (reply := await self.get(url)).status == 202:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        return reply

    async def answer(self, url: str) -> dict[str, Any]:
        """Wait for an answer, and return it."""
        reply = await self.wait_for(url)
        assert reply.status == 200, reply
        return cast(dict[str, Any], json.loads(reply.body))


def sign(webhook: StoredWebhook, body: bytes, message_id: str, at: datetime) -> dict[str, str]:
    """Return the headers of a signed event."""
    if webhook.kind == "github":
        return {
            "X-Hub-Signature-256": sign_github(decode_webhook_secret("github", webhook.secret), body),
            "X-GitHub-Event": "push",
        }
    timestamp = str(int(at.timestamp()))
    signature = sign_standard(decode_webhook_secret("standard", webhook.secret), message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}


@asynccontextmanager
async def serve_webhooks(
    url: str, agent: Any, policy: Policy | None = None, *, max_bodies: int | None = None, **options: Any
) -> AsyncIterator[WebhookServer]:
    """Run an agent on the database at a URL, behind a real server with the door of webhooks.

    `options` are of `run_behind_doors`.
    """
    settings = web_settings()
    async with run_behind_doors(url, agent, {}, policy, **options) as running:
        database = running.runtime.parts.repository.database
        ring = WebhookRing(database, lambda: utc_now() + served.offset, max_bodies)
        served = WebhookServer(settings, ring, running)
        await ring.load()
        access_requests = running.runtime.gateway.access_requests
        access_requests.access.callers = ring.callers_of(AGENT)
        ring.on_lost[AGENT] = access_requests.access_lost.emit
        routes = make_webhook_routes(running.doors, ring, settings.public_url)
        async with run_server(settings, lambda secret: None, routes):
            yield served
