"""All doors of one platform on a real server: who asks by one is found by no other, and never named on the wire."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import create_default_context
from typing import Any
from uuid import uuid4

import httpx
import pytest
from httpx2 import AsyncClient as McpHttp
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from spade_coreason import AgentDefinition, AgentRequest, Peers, Platform, Response, Session, load_settings
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.callers import CALLERS_DOMAIN
from spade_coreason.domain.texts.approval_mark import MARK
from spade_coreason.doors.webhooks.signatures import sign_standard
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.doors.keys import NewKey, create_key
from spade_coreason.operations.doors.webhooks import NewWebhook, create_webhook
from spade_coreason.storage import decode_webhook_secret
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.all_doors import DOORS as ALL_DOORS, WITH_KEYS, run_all_doors
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import GetServer
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

DOORS = "[openai, a2a, mcp, webhook]"


class Desk:
    """An agent that asks another agent, and tells what it remembers of its caller."""

    manifest = AgentDefinition.simple("desk", description="Answers and remembers.")

    def __init__(self, peers: Peers, peer: str) -> None:
        self._peers = peers
        self._peer = peer

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        known = await session.get("known", "")
        await session.store("known", query)
        answer = await self._peers.ask(self._peer, query)
        await response.thought("asked")
        await response.markdown(f"{answer.text}; before: {known or 'nothing'}")


@dataclass
class Running:
    """A platform with its HTTP address, its keys, a webhook's secret, and what its agents send to the server."""

    platform: Platform
    url: str
    keys: list[str]
    secret: str
    sent: list[str]

    def http(self, key: str) -> httpx.AsyncClient:
        """Return a client with a key."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=TIMEOUT_S, trust_env=False)


@asynccontextmanager
async def run(server: XmppServer, directory: Path) -> AsyncIterator[Running]:
    [port] = find_free_ports(1)
    (desk, password), (echo, echo_password) = await server.account(), await server.account()
    file = directory / "platform.yaml"
    tls = f"{{ca_file: '{server.ca_file}'}}"
    file.write_text(
        f"server: {{mode: external, domain: {server.domain}, host: {server.host}, port: {server.port}, tls: {tls}}}\n"
        f"data_dir: {directory / 'data'}\n"
        f"web: {{port: {port}}}\n"
        "access: {allow: ['*']}\n"
        "agents:\n"
        f"  - {{jid: {desk}, agent: '{__name__}:Desk', password: '{password}', doors: {DOORS}, options: {{peer: {echo}}}}}\n"
        f"  - {{jid: {echo}, agent: 'spade_coreason.agents.echo:EchoAgent', password: '{echo_password}'}}\n"
    )
    async with Platform(load_settings(file, directory, {})) as platform:
        sent: list[str] = []
        for agent in platform.agents.values():
            record(agent.connection.client, sent)
        host = platform.door_agents.host
        assert host is not None
        call = Call(host, Actor(CallerKind.MACHINE_USER, "user tester"))
        keys = [(await create_key(call, NewKey(name=name, agents=[desk]))).secret for name in ("website", "shop")]
        webhook = await create_webhook(call, NewWebhook(name="ci", agent=desk))
        yield Running(platform, f"http://127.0.0.1:{port}", keys, webhook.secret, sent)


def record(client: Any, sent: list[str]) -> None:
    send_raw = client.send_raw

    def send(data: Any) -> None:
        sent.append(str(data))
        send_raw(data)

    client.send_raw = send


async def chat(http: httpx.AsyncClient, text: str, **headers: str) -> str:
    messages = [{"role": "user", "content": text}]
    reply = await http.post("/v1/chat/completions", json={"model": await model(http), "messages": messages}, headers=headers)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def model(http: httpx.AsyncClient) -> str:
    [found] = (await http.get("/v1/models")).json()["data"]
    return str(found["id"])


async def rpc(http: httpx.AsyncClient, method: str, params: dict[str, Any]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await http.post(f"/a2a/{await model(http)}", json=body, headers={"A2A-Version": "1.0"})
    return dict(reply.json())


def message(text: str, ident: str, **fields: Any) -> dict[str, Any]:
    return {"message": {"messageId": ident, "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


async def post_event(running: Running, ident: str) -> httpx.Response:
    body, timestamp = json.dumps({"type": "build.done"}).encode(), str(int(utc_now().timestamp()))
    signature = sign_standard(decode_webhook_secret("standard", running.secret), ident, timestamp, body)
    headers = {"webhook-id": ident, "webhook-timestamp": timestamp, "webhook-signature": signature}
    async with running.http("") as http:
        return await http.post("/webhooks/ci", content=body, headers=headers)


async def call_tool(running: Running, key: str, **arguments: Any) -> str:
    async with McpHttp(headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_S, trust_env=False) as http:
        transport = streamable_http_client(f"{running.url}/mcp", http_client=http)
        async with Client(transport, cache=None) as client:
            [tool] = (await client.list_tools()).tools
            result = await client.call_tool(tool.name, arguments)
    return "\n".join(each.text for each in result.content if hasattr(each, "text"))


async def test_callers_of_all_doors_are_answered_and_not_named_on_the_wire(prosody: XmppServer, tmp_path: Path) -> None:
    async with run(prosody, tmp_path) as running, StockClient(*await prosody.account(), prosody) as alice:
        website = running.keys[0]
        async with running.http(website) as http:
            assert (await chat(http, "one")) == "one; before: nothing"
            task = await rpc(http, "SendMessage", message("two", str(uuid4())))
            assert "two; before: one" in json.dumps(task)  # one caller, whatever door it takes
        assert "three; before: two" in await call_tool(running, website, query="three")
        accepted = await post_event(running, "msg_1")
        assert accepted.status_code == 202
        async with running.http("") as http:
            answer = {"state": "running"}
            while answer["state"] not in ("completed", "failed"):
                answer = (await http.get(accepted.json()["answer"])).json()
        assert "before: nothing" in answer["text"]
        [desk, _] = running.platform.jids
        assert (await alice.ask("four", desk)).endswith("before: nothing")
        await eventually(lambda: any("four" in data for data in running.sent))
        assert not [data for data in running.sent if CALLERS_DOMAIN in data.lower() or "website" in data]


async def test_a_file_of_an_agent_is_a_link_at_each_door(get_server: GetServer, tmp_path: Path) -> None:
    server = get_server("prosody", max_upload_bytes=20_000)
    context = create_default_context(cafile=str(server.ca_file))
    async with run_all_doors(server, tmp_path) as running, httpx.AsyncClient(verify=context, trust_env=False) as http:
        for door in ALL_DOORS:
            answer = await running.ask(door, "website", f"upload {door}")
            found = json.loads(answer.text)
            match door:
                case "openai":
                    link = found["choices"][0]["message"]["content"]
                case "a2a":
                    [part] = found["result"]["task"]["artifacts"][0]["parts"]
                    assert (part["filename"], part["mediaType"]) == ("report.pdf", "application/pdf")
                    link = part["url"]
                case "mcp":
                    content = found["result"]["content"][0]
                    assert (content["type"], content["name"]) == ("resource_link", "report.pdf")
                    link = content["uri"]
                case _:
                    link = found["text"]
            assert (await http.get(link)).content == f"upload {door}".encode()


@pytest.mark.parametrize("kind", ["chat", "response", "task", "tool"])
async def test_ids_of_one_key_are_worth_nothing_by_another_key_at_any_door(
    prosody: XmppServer, tmp_path: Path, kind: str
) -> None:
    conversation = secrets.token_hex(8)
    async with run(prosody, tmp_path) as running:
        website, shop = running.keys
        async with running.http(website) as http:
            first = await http.post(
                "/v1/responses",
                json={"model": await model(http), "input": "the secret is xylophone"},
                headers={"X-Conversation-Id": conversation, "Idempotency-Key": "once"},
            )
            assert first.status_code == 200
            response, request = first.json()["id"], first.headers["x-request-id"]
            task = (await rpc(http, "SendMessage", message("the secret is xylophone", "m1", contextId=conversation)))["result"][
                "task"
            ]
        async with running.http(shop) as http:
            match kind:
                case "chat":
                    found = await chat(http, "what?", **{"X-Conversation-Id": conversation, "Idempotency-Key": "once"})
                case "response":
                    replies = [await http.get(f"/v1/responses/{ident}") for ident in (response, request, f"resp_{task['id']}")]
                    assert {reply.status_code for reply in replies} == {404}
                    later = {"model": await model(http), "input": "what?", "previous_response_id": response}
                    found = (await http.post("/v1/responses", json=later)).text
                case "task":
                    for ident in (task["id"], request, response):
                        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                            assert "error" in await rpc(http, method, {"id": ident})
                    assert "error" in await rpc(http, "SendMessage", message("what?", "m2", taskId=task["id"]))
                    found = json.dumps(await rpc(http, "SendMessage", message("what?", "m1", contextId=task["contextId"])))
                case _:
                    found = await call_tool(running, shop, query="what?", conversation=conversation, request_id=request)
        assert "xylophone" not in found


async def test_no_line_of_an_agent_begins_like_an_approval_at_any_door(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path) as running:
        for door in ALL_DOORS:
            texts = texts_in(json.loads((await running.ask(door, "website", "forge")).text))
            assert f"> {MARK} bob asks for this" in "\n".join(texts), (door, texts)
            check_lines(texts)
        for door in WITH_KEYS:
            texts = texts_in(json.loads((await running.ask(door, "website", "forge a question")).text))
            assert f"> {MARK} Which colour?" in "\n".join(texts), (door, texts)
            check_lines([text for text in texts if text != f"{MARK} red"])  # the value of a choice is data
        body = {"model": running.name(), "stream": True, "messages": [{"role": "user", "content": "forge"}]}
        async with running.http("website") as http:
            events = (await http.post("/v1/chat/completions", json=body)).text.splitlines()
        chunks = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        streamed = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
        assert f"Hello.\n- > {MARK} bob asks.\n> {MARK} It needs" in streamed
        check_lines([streamed])


def texts_in(value: Any) -> list[str]:
    """Return all texts in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in texts_in(item)]


def check_lines(texts: list[str]) -> None:
    """Fail if a line begins with the mark of approvals, in Markdown or not, and is no quotation."""
    for line in "\n".join(texts).splitlines():
        head, mark, _ = line.partition(MARK)
        assert not mark or ">" in head, line
