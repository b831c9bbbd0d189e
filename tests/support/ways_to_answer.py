"""The ways by which programs answer a question of an agent by a door. Each request can be sent again as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from tests.support.all_doors import AllDoors

MCP_SESSIONS = "2025-06-18"
"""A revision of MCP with sessions."""


@dataclass(frozen=True)
class Shown:
    """What a client was shown, and what it needs for the answer."""

    text: str
    state: Mapping[str, Any] = field(default_factory=dict)


class Way(Protocol):
    """A way to ask an agent, and to answer its questions."""

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        """Ask, and return the question."""
        ...

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        """Answer what was shown. With the same arguments, it is the same request."""
        ...


class Chat:
    """Chat completions with all earlier messages."""

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._send(doors, http, [], query)

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        return await self._send(doors, http, shown.state["messages"], text)

    async def _send(self, doors: AllDoors, http: httpx.AsyncClient, earlier: list[Any], text: str) -> Shown:
        messages = [*earlier, {"role": "user", "content": text}]
        reply = await http.post("/v1/chat/completions", json={"model": doors.name(), "messages": messages})
        content = reply.json()["choices"][0]["message"]["content"]
        return Shown(content, {"messages": [*messages, {"role": "assistant", "content": content}]})


class NamedChat:
    """Chat completions with the name of the conversation and the last message alone; with `has_keys` each has a key."""

    def __init__(self, name: str, *, has_keys: bool = False) -> None:
        self._name = name
        self._has_keys = has_keys

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._send(doors, http, 0, query)

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        return await self._send(doors, http, shown.state["count"], text)

    async def _send(self, doors: AllDoors, http: httpx.AsyncClient, count: int, text: str) -> Shown:
        key = {"Idempotency-Key": f"{self._name} {count} {text}"} if self._has_keys else {}
        body = {"model": doors.name(), "messages": [{"role": "user", "content": text}]}
        reply = await http.post("/v1/chat/completions", json=body, headers={"X-Conversation-Id": self._name, **key})
        return Shown(reply.json()["choices"][0]["message"]["content"], {"count": count + 1})


class Responses:
    """Responses, each with the id of the one before."""

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._send(doors, http, {"input": query})

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        return await self._send(doors, http, {"input": text, "previous_response_id": shown.state["id"]})

    async def _send(self, doors: AllDoors, http: httpx.AsyncClient, body: Mapping[str, Any]) -> Shown:
        response = (await http.post("/v1/responses", json={"model": doors.name(), **body})).json()
        return Shown(response["output"][0]["content"][0]["text"], {"id": response["id"]})


class ToolArguments:
    """Calls of a tool with the answer in the arguments, in the revision without sessions or in one with them."""

    def __init__(self, *, has_sessions: bool = False) -> None:
        self._has_sessions = has_sessions

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._call(doors, http, {"query": query})

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        return await self._call(doors, http, {**shown.state, "answer": text})

    async def _call(self, doors: AllDoors, http: httpx.AsyncClient, arguments: Mapping[str, Any]) -> Shown:
        params = {"name": f"{doors.name()}_chat", "arguments": arguments}
        reply = await (call_in_session(http, params) if self._has_sessions else doors.mcp(http, "tools/call", params))
        result = read_result(reply)
        names = ("query", "request_id", "question")
        known = {name: result["_meta"].get(f"ai.coreason/{name}") or arguments.get(name) for name in names}
        return Shown("\n".join(part["text"] for part in result["content"]), {k: v for k, v in known.items() if v})


class ToolForms:
    """Calls of a tool whose result asks for a form, and which are made again with it."""

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._call(doors, http, query, {})

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        form = {"answer": {"action": "accept", "content": {"answer": text}}}
        given = {"inputResponses": form, "requestState": shown.state["state"]}
        return await self._call(doors, http, shown.state["query"], given)

    async def _call(self, doors: AllDoors, http: httpx.AsyncClient, query: str, given: Mapping[str, Any]) -> Shown:
        params = {"name": f"{doors.name()}_chat", "arguments": {"query": query}, **given}
        result = read_result(await doors.mcp(http, "tools/call", params, {"elicitation": {"form": {}}}))
        if "inputRequests" in result:
            message = result["inputRequests"]["answer"]["params"]["message"]
            return Shown(message, {"query": query, "state": result["requestState"]})
        return Shown("\n".join(part["text"] for part in result["content"]))


class Tasks:
    """Messages of A2A."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def ask(self, doors: AllDoors, http: httpx.AsyncClient, query: str) -> Shown:
        return await self._send(doors, http, query, f"ask {self._name}")

    async def answer(self, doors: AllDoors, http: httpx.AsyncClient, shown: Shown, text: str) -> Shown:
        return await self._send(doors, http, text, f"to {shown.text} {self._name}", taskId=shown.state["id"])

    async def _send(self, doors: AllDoors, http: httpx.AsyncClient, text: str, ident: str, **fields: str) -> Shown:
        task = (await doors.ask_a2a(http, text, "", doors.name(), ident, **fields)).json()["result"]["task"]
        asked = task["status"].get("message", {"parts": []})["parts"]
        parts = [*(part for each in task.get("artifacts", ()) for part in each["parts"]), *asked]
        return Shown(" ".join(part.get("text", "") for part in parts), {"id": task["id"]})


def make_ways(name: str) -> dict[str, Way]:
    """Return all ways. The conversations and ids that clients choose have the name in theirs."""
    return {
        "chat": Chat(),
        "chat by name": NamedChat(f"named-{name}"),
        "chat by key": NamedChat(f"keyed-{name}", has_keys=True),
        "responses": Responses(),
        "tool arguments": ToolArguments(),
        "tool arguments in a session": ToolArguments(has_sessions=True),
        "tool forms": ToolForms(),
        "tasks": Tasks(name),
    }


async def call_in_session(http: httpx.AsyncClient, params: Mapping[str, Any]) -> httpx.Response:
    """Call a tool of MCP in a new session."""
    accept = {"Accept": "application/json, text/event-stream"}
    client = {"protocolVersion": MCP_SESSIONS, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    opened = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}, headers=accept)
    session = {**accept, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
    await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    return await http.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}, headers=session)


def read_result(reply: httpx.Response) -> dict[str, Any]:
    """Return the result of a request of MCP."""
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    messages = [json.loads(line) for line in lines if line.strip()] or [reply.json()]
    message = next(each for each in messages if "result" in each or "error" in each)
    assert "result" in message, message
    result: dict[str, Any] = message["result"]
    return result
