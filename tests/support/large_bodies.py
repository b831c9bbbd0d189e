"""JSON of many values, and all doors on one server to which it is sent."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from spade_coreason.config.settings import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.callers import caller_address
from spade_coreason.domain.jid import local_part
from spade_coreason.doors import WebhookRing, make_file_routes, make_webhook_routes
from spade_coreason.doors.a2a.routes import make_a2a_routes
from spade_coreason.doors.mcp.routes import make_mcp_routes
from spade_coreason.doors.openai.routes import make_openai_routes
from spade_coreason.storage import StoredWebhook, make_webhook_secret
from tests.support.door_agents import CALLERS, RunningDoors, run_behind_doors
from tests.support.doors import KEY, Reply, ask, run_server, web_settings
from tests.support.records import AGENT
from tests.support.webhooks import sign

NAME = local_part(AGENT)
DOORS = ("openai", "a2a", "mcp", "webhook")
VERSION = "2026-07-28"
SHAPES: Mapping[str, Callable[[int], bytes]] = {
    "numbers": lambda count: b"[%s]" % b",".join([b"1"] * count),
    "texts": lambda count: b"[%s]" % b",".join([b'""'] * count),
    "objects": lambda count: b"[%s]" % b",".join([b'{"a":1}'] * (count // 3)),
    "empty objects": lambda count: b"[%s]" % b",".join([b"{}"] * (count // 2)),
    "lists": lambda count: b"[%s]" % b",".join([b"[" * 20 + b"]" * 20] * (count // 41)),
    "deep": lambda count: b"[" * (count // 2) + b"]" * (count // 2),
}
"""JSON of about so many values."""


def make_body(door: str, data: bytes = b"", text: str = "hi", name: str = NAME) -> tuple[str, list[str], bytes]:
    """Return the path, the headers and the body of a request to an agent: a text, and beside it data, which are JSON."""
    query = json.dumps(text).encode()
    with_data = b'"query":%s' % query + (b',"data":%s' % data if data else b"")
    headers = ["Content-Type: application/json"]
    match door:
        case "openai":
            body = b'{"model":"%s","messages":[{"role":"user","content":%s}]' % (name.encode(), query)
            return "/v1/chat/completions", headers, body + (b',"metadata":%s' % data if data else b"") + b"}"
        case "a2a":
            parts = b'{"text":%s}' % query + (b',{"data":%s}' % data if data else b"")
            message = b'"message":{"messageId":"%s","role":"ROLE_USER","parts":[%s]}' % (new_id().encode(), parts)
            return f"/a2a/{name}", [*headers, "A2A-Version: 1.0"], make_rpc("SendMessage", message)
        case "mcp":
            tool = f"{name}_chat"
            headers += [f"MCP-Protocol-Version: {VERSION}", "Mcp-Method: tools/call", f"Mcp-Name: {tool}"]
            headers.append("Accept: application/json, text/event-stream")
            meta = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
            params = b'"name":"%s","arguments":{%s},"_meta":%s' % (tool.encode(), with_data, json.dumps(meta).encode())
            return "/mcp", headers, make_rpc("tools/call", params)
    return "/webhooks/ci", headers, b"{%s}" % with_data


def make_rpc(method: str, params: bytes) -> bytes:
    """Return a request of JSON-RPC."""
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s}}' % (method.encode(), params)


def new_id() -> str:
    """Return an id that was not used before."""
    return uuid4().hex


@dataclass
class BodyDoors:
    """A server with all doors of one agent."""

    settings: WebSettings
    running: RunningDoors
    webhook: StoredWebhook

    async def post(self, door: str, data: bytes = b"", text: str = "hi") -> Reply:
        """Send a text by a door, and beside it data, which are JSON."""
        path, headers, body = make_body(door, data, text)
        if door == "webhook":
            return await self.post_event(body)
        return await ask(self.settings, path, *headers, method="POST", body=body)

    async def post_event(self, body: bytes, content_type: str = "application/json") -> Reply:
        """Send a signed event to the webhook."""
        signed = sign(self.webhook, body, new_id(), utc_now())
        headers = [f"{name}: {value}" for name, value in signed.items()]
        path = f"/webhooks/{self.webhook.name}"
        return await ask(self.settings, path, *headers, f"Content-Type: {content_type}", method="POST", key=None, body=body)


@asynccontextmanager
async def serve_bodies(url: str, agent: Any, **web: Any) -> AsyncIterator[BodyDoors]:
    """Run an agent on the database at a URL behind all doors, for `KEY` and a webhook. `web` are keys of the settings."""
    settings = web_settings(**web)
    async with run_behind_doors(url, agent) as running:
        ring = WebhookRing(running.runtime.parts.repository.database)
        access = running.runtime.gateway.access_requests.access
        access.callers = ChainMap({caller_address(CALLERS[KEY].name): ""}, ring.callers_of(AGENT))  # type: ignore[arg-type]  # none is changed
        webhook = ring.repository.make(
            "ci", AGENT, "standard", None, make_webhook_secret("standard"), created_by="user x", now=utc_now()
        )
        assert await ring.repository.add(webhook)
        ring.take(webhook)
        address = settings.public_url
        routes = [
            make_openai_routes(running.doors, address),
            make_a2a_routes(running.doors, address),
            make_mcp_routes(running.doors),
            make_webhook_routes(running.doors, ring, address),
            make_file_routes(running.doors),
        ]
        async with run_server(settings, CALLERS.get, *routes):
            yield BodyDoors(settings, running, webhook)
