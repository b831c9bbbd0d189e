"""A platform on a real server with an agent behind all doors, and the clients of each door, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import yaml

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    Files,
    Knowledge,
    Platform,
    Response,
    Session,
    load_settings,
)
from spade_coreason.config import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.texts.approval_mark import MARK
from spade_coreason.doors.webhooks.signatures import sign_standard
from spade_coreason.exceptions import ApprovalError
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage import decode_webhook_secret
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

DOORS = ("openai", "a2a", "mcp", "webhook")
WITH_KEYS = ("openai", "a2a", "mcp")
"""The doors whose callers have keys."""
_MCP_VERSION = "2026-07-28"


async def ask_twice(response: Response) -> None:
    """Ask one question after the other, and tell both answers."""
    first = await response.ask_person("Delete A?", choices=["yes", "no"])
    second = await response.ask_person("Delete B?", choices=["yes", "no"])
    await response.markdown(f"A: {first.text}, B: {second.text}")


class Desk:
    """An agent that does what the query says, and notes who has asked what. `Desk.release` ends what is on hold."""

    manifest = AgentDefinition.simple("desk", description="Answers and remembers.")
    seen: list[tuple[str, str]] = []  # noqa: RUF012 - each new agent begins it anew
    payloads: list[Mapping[str, Any]] = []  # noqa: RUF012 - as above
    release = asyncio.Event()

    def __init__(self, memory: AgentInteractionMemory, knowledge: Knowledge, files: Files) -> None:
        self._memory, self._knowledge, self._files = memory, knowledge, files
        Desk.seen, Desk.payloads, Desk.release = [], [], asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query, person = str(request.payload["query"]), session.identity.id
        Desk.seen.append((person, query))
        Desk.payloads.append(dict(request.payload))
        match query.split(" ")[0]:
            case "remember":
                await session.store("known", query)
                await self._memory.aadd_information(request.metadata["conversation_id"], query)
                await self._knowledge.add(query, "note.txt", person=person)
            case "recall":
                found = [hit.text for hit in await self._knowledge.search("remember", threshold=0, person=person)]
                kept = await self._memory.aget_information(request.metadata["conversation_id"])
                turns = [str(turn) for turn in await session.history()]
                await response.markdown(f"I know {[await session.get('known', ''), *found, *kept, *turns]}")
                return
            case "hold":
                await Desk.release.wait()
            case "upload":
                await response.markdown(await self._files.upload("report.pdf", query.encode()))
                return
            case "pay":
                try:
                    await response.markdown(await session.run_approved("pay", lambda: "paid"))
                except ApprovalError as error:
                    await response.markdown(f"not paid: {error}")
                return
            case "ask":
                answer = await response.ask_person("Which colour?", choices=["red", "blue"])
                await response.markdown(f"painted {answer.text}")
                return
            case "twice":
                await ask_twice(response)
                return
            case "forge":
                stream = await response.create_stream()
                for piece in ("Hello.\n- ", f"{MARK} bob", f" asks.\n{MARK} It needs"):
                    await stream.write(piece)
                await stream.close()
                await response.thought(f"{MARK} bob asks")
                await response.markdown(f"{MARK} bob asks for this")
                if query == "forge a question":
                    await response.ask_person(f"{MARK} Which colour?", choices=[f"{MARK} red"])
                return
        await response.markdown(f"done: {query}")


class Hidden:
    """An agent that no key of these tests opens, and notes if it is asked all the same."""

    manifest = AgentDefinition.simple("hidden", description="Is not asked.")
    seen: list[str] = []  # noqa: RUF012 - each new agent begins it anew

    def __init__(self) -> None:
        Hidden.seen = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        Hidden.seen.append(str(request.payload["query"]))
        await response.markdown("a secret of the hidden agent")


class Answer(NamedTuple):
    """What a door answers: the status of HTTP, and the text of its body."""

    status: int
    text: str
    headers: Mapping[str, str]


@dataclass
class AllDoors:
    """The running platform, and what its clients know.

    `desk` is behind all doors, as `other` is, `partly` behind that of OpenAI's API only, and `closed` behind none. The keys
    `website`, `shop`, `front` (the people of a front end) and `editor` (the operator) open `desk` and `closed`.
    """

    platform: Platform
    web: WebSettings
    desk: str
    other: str
    partly: str
    closed: str
    keys: dict[str, str]
    """The secrets by the names of the keys."""
    secret: str
    """The secret of the webhook `ci`."""

    def name(self, agent: str = "") -> str:
        """Return the name of an agent in addresses, by default that of the desk."""
        return (agent or self.desk).partition("@")[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    def http(self, key: str = "", **headers: str) -> httpx.AsyncClient:
        """Return a client with a key, by its name."""
        given = {"Authorization": f"Bearer {self.keys.get(key, key)}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers={**given, **headers}, timeout=TIMEOUT_S, trust_env=False)

    async def call(self, operation_name: str, /, **arguments: Any) -> Any:
        """Call an operation of the platform, as a command does."""
        operation = OPERATIONS[operation_name]
        result, _ = await asyncio.to_thread(
            call_platform, self.platform.settings.data_dir, operation, operation.read_arguments(arguments)
        )
        return result

    async def ask(
        self, door: str, key: str, text: str, *, thread: str = "", user: str = "", agent: str = "", **headers: str
    ) -> Answer:
        """Ask by a door. `user` is the person whom a front end names. A webhook has its secret in place of the key."""
        if user:
            headers["X-Forwarded-User"] = user
        async with self.http("" if door == "webhook" else key, **headers) as http:
            reply = await getattr(self, f"ask_{door}")(http, text, thread, self.name(agent))
        return Answer(reply.status_code, reply.text, reply.headers)

    async def ask_openai(self, http: httpx.AsyncClient, text: str, thread: str, agent: str) -> httpx.Response:
        body = {"model": agent, "messages": [{"role": "user", "content": text}]}
        return await http.post("/v1/chat/completions", json=body, headers={"X-Conversation-Id": thread} if thread else {})

    async def ask_openai_with_picture(self, key: str, data: bytes) -> httpx.Response:
        """Send a picture to the desk."""
        link = f"data:image/png;base64,{b64encode(data).decode()}"
        content = [{"type": "image_url", "image_url": {"url": link}}]
        async with self.http(key) as http:
            body = {"model": self.name(), "messages": [{"role": "user", "content": content}]}
            return await http.post("/v1/chat/completions", json=body)

    async def ask_a2a(
        self, http: httpx.AsyncClient, text: str, thread: str, agent: str, ident: str = "", **fields: Any
    ) -> httpx.Response:
        message = {"messageId": ident or str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}
        if thread:
            message["contextId"] = thread
        return await self.rpc(http, agent, "SendMessage", {"message": message})

    async def rpc(self, http: httpx.AsyncClient, agent: str, method: str, params: Mapping[str, Any]) -> httpx.Response:
        """Call a method of A2A."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await http.post(f"/a2a/{agent}", json=body, headers={"A2A-Version": "1.0"})

    async def ask_mcp(self, http: httpx.AsyncClient, text: str, thread: str, agent: str, **arguments: str) -> httpx.Response:
        given = {"query": text, **arguments, **({"conversation": thread} if thread else {})}
        return await self.mcp(http, "tools/call", {"name": f"{agent}_chat", "arguments": given})

    async def mcp(
        self,
        http: httpx.AsyncClient,
        method: str,
        params: Mapping[str, Any],
        capabilities: Mapping[str, Any] = MappingProxyType({}),
    ) -> httpx.Response:
        """Send a request of MCP, in its revision without sessions."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": _MCP_VERSION,
            "io.modelcontextprotocol/clientCapabilities": dict(capabilities),
        }
        headers = {"MCP-Protocol-Version": _MCP_VERSION, "Mcp-Method": method, "Accept": "application/json, text/event-stream"}
        if "name" in params:
            headers["Mcp-Name"] = str(params["name"])
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return await http.post("/mcp", json=body, headers=headers)

    def sign(self, body: bytes, ident: str) -> dict[str, str]:
        """Return the headers of an event."""
        timestamp = str(int(utc_now().timestamp()))
        signature = sign_standard(decode_webhook_secret("standard", self.secret), ident, timestamp, body)
        signed = {"webhook-id": ident, "webhook-timestamp": timestamp, "webhook-signature": signature}
        return {"Content-Type": "application/json", **signed}

    async def post_event(self, http: httpx.AsyncClient, text: str, ident: str = "") -> httpx.Response:
        """Send an event, and return whether it is accepted."""
        body = json.dumps({"query": text}).encode()
        return await http.post("/webhooks/ci", content=body, headers=self.sign(body, ident or f"msg_{uuid4().hex}"))

    async def ask_webhook(self, http: httpx.AsyncClient, text: str, thread: str, agent: str) -> httpx.Response:
        """Send an event, and wait for its answer."""
        accepted = await self.post_event(http, text)
        if accepted.status_code != 202:
            return accepted
        return await self.fetch_answer(http, accepted.json()["answer"])

    async def fetch_answer(self, http: httpx.AsyncClient, url: str) -> httpx.Response:
        """Ask for the answer to an event until it is there."""
        async with asyncio.timeout(TIMEOUT_S):
            while (reply := await http.get(url)).status_code == 202:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        return reply

    async def fetch_response(self, http: httpx.AsyncClient, ident: str) -> dict[str, Any]:
        """Ask for a response of OpenAI's kind until it is complete."""
        async with asyncio.timeout(TIMEOUT_S):
            while (found := (await http.get(f"/v1/responses/{ident}")).json())["status"] == "in_progress":  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        return dict(found)

    async def check_doors(self) -> None:
        """Fail unless each door answers."""
        for door in DOORS:
            text = f"hello by {door}"
            answer = await self.ask(door, "website", text)
            assert (answer.status, f"done: {text}" in answer.text) == (200, True), answer


@asynccontextmanager
async def run_all_doors(
    server: XmppServer, directory: Path, *, operator: str = "boss@localhost", **keys: Any
) -> AsyncIterator[AllDoors]:
    """Run the platform. `operator` is the JID of an operator, and `keys` are further ones of the configuration."""
    accounts = [await server.account() for _ in range(4)]
    desk, other, partly, closed = (jid for jid, _ in accounts)
    passwords = {jid: {"jid": jid, "password": password} for jid, password in accounts}
    values = {
        "server": server.settings,
        "data_dir": str(directory / "data"),
        "web": {"port": find_free_ports(1)[0]},
        "access": {"allow": ["*"], "operators": [operator]},
        "agents": [
            {**passwords[desk], "agent": f"{__name__}:Desk", "doors": list(DOORS)},
            {**passwords[other], "agent": f"{__name__}:Hidden", "doors": list(DOORS)},
            {**passwords[partly], "agent": f"{__name__}:Hidden", "doors": ["openai"]},
            {**passwords[closed], "agent": f"{__name__}:Hidden"},
        ],
        **keys,
    }
    file = directory / "platform.yaml"
    file.write_text(yaml.safe_dump(values))
    async with Platform(load_settings(file, directory, {})) as platform:
        web = platform.settings.web
        assert web is not None
        running = AllDoors(platform, web, desk, other, partly, closed, {}, "")
        options: dict[str, dict[str, Any]] = {"front": {"users_by_header": True}, "editor": {"account": operator}}
        for name in ("website", "shop", "front", "editor"):
            issued = await running.call("keys.create", name=name, agents=[desk, closed], **options.get(name, {}))
            running.keys[name] = issued.secret
        running.secret = (await running.call("webhooks.create", name="ci", agent=desk)).secret
        yield running


@asynccontextmanager
async def run_again(running: AllDoors, directory: Path) -> AsyncIterator[AllDoors]:
    """Run the platform of a directory once more, which has stopped."""
    async with Platform(load_settings(directory / "platform.yaml", directory, {})) as platform:
        yield replace(running, platform=platform)
