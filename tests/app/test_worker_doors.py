"""Any worker answers for any agent: each door is asked at a worker that does not serve the agent."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx2 import AsyncClient as McpHttp
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.all_doors import DOORS, AllDoors
from tests.support.hosting import PlatformProcess
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, TIMEOUT_S, eventually
from tests.support.ways_to_answer import ToolArguments
from tests.support.worker_doors import LONG, FarDoors, read_events, run_command, run_far_doors


def chat(agent: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": agent, "messages": [{"role": "user", "content": text}], **fields}


async def test_each_door_answers_at_a_worker_that_does_not_serve_the_agent(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        far = running.far
        for door in DOORS:
            answer = await far.ask(door, "website", f"hello by {door}")
            assert (answer.status, f"done: hello by {door}" in answer.text) == (200, True), answer
        assert {turn.partition(" ")[0] for turn in running.turns} == {str(running.owner.pid)}
        async with far.http("website") as http:
            [model] = (await http.get("/v1/models")).json()["data"]
            assert (model["id"], model["name"]) == (far.name(), "desk")
            assert (await http.get(f"/a2a/{far.name()}/.well-known/agent-card.json")).json()["name"] == "desk"
            assert f"{far.name()}_chat" in (await far.mcp(http, "tools/list", {})).text
            # The answers of both are the same request, whoever is asked first.
            body, again = chat(far.name(), "once"), {"Idempotency-Key": "k1"}
            first = await http.post("/v1/chat/completions", json=body, headers=again)
            async with running.near.http("website") as near:
                second = await near.post("/v1/chat/completions", json=body, headers=again)
            assert first.json()["choices"] == second.json()["choices"]
            assert [turn for turn in running.turns if turn.endswith(" once")] == [f"{running.owner.pid} once"]
        # A key opens its agents only, and one caller finds nothing of another one.
        assert (await far.ask("openai", "closed", "hello")).status == 404
        assert (await far.ask("a2a", "closed", "hello")).status == 404
        async with far.http("shop") as http:
            assert (await http.get(f"/v1/responses/resp_{first.headers['x-request-id'].replace('-', '')}")).status_code == 404


async def test_a_pause_in_a_chat_is_true_at_the_status_the_directory_and_the_door_of_another_worker(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    jid, password = await prosody.account()
    access = {"allow": ["*"], "operators": [jid]}
    async with (
        run_far_doors(prosody, postgres, tmp_path, access=access) as running,
        StockClient(jid, password, prosody) as operator,
    ):
        desk, there = running.workers.agents
        for command, state, status in (("/pause", "offline", 503), ("/resume", "online", 200)):
            await operator.ask(command, desk, timeout_s=ANSWER_S)
            answer = await running.far.ask("openai", "website", "hello")
            assert (answer.status, '"code":"paused"' in answer.text) == (status, status == 503), answer
            agents = json.loads(await run_command(running.other_configuration, "status", "--json"))["agents"]
            assert {agent["jid"]: agent["is_paused"] for agent in agents} == {desk: status == 503, there: False}
            async with asyncio.timeout(TIMEOUT_S):
                while f"{desk} {state}" not in (await running.far.ask("openai", "closed", "find", agent=there)).text:
                    pass
        assert {turn for turn in running.turns if turn.endswith("hello")} == {f"{running.owner.pid} hello"}


async def test_a_stream_of_another_worker_comes_in_order_and_without_a_gap(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:
        body = chat(running.far.name(), "stream", stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            pieces = [event["choices"][0]["delta"].get("content", "") async for event in read_events(reply)]
        assert "".join(pieces) == "".join(f"{number} " for number in range(50))
        assert len(pieces) > 10
        answer = await http.post("/v1/chat/completions", json=chat(running.far.name(), "long"))
        assert answer.json()["choices"][0]["message"]["content"] == LONG


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_responses_are_found_followed_and_cancelled_at_another_worker(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:
        begun = await http.post("/v1/responses", json={"model": running.far.name(), "input": "hold", "background": True})
        ident = begun.json()["id"]
        await running.wait_for_turn("hold")
        async with running.near.http("website") as near, running.far.http("shop") as shop:
            assert (await near.get(f"/v1/responses/{ident}")).json()["status"] == "in_progress"
            assert (await shop.get(f"/v1/responses/{ident}")).status_code == 404
            assert (await shop.post(f"/v1/responses/{ident}/cancel")).status_code == 404
        assert (await http.get(f"/v1/responses/{ident}")).json()["status"] == "in_progress"
        async with http.stream("GET", f"/v1/responses/{ident}?stream=true") as reply:
            events = read_events(reply)
            while (await anext(events)).get("delta") != "one ":
                pass
            running.release()
            assert "two" in json.dumps([event async for event in events])
        found = await running.far.fetch_response(http, ident)
        assert found["output"][0]["content"][0]["text"] == "one two"
        (tmp_path / "release").unlink()
        other = (
            await http.post("/v1/responses", json={"model": running.far.name(), "input": "hold 2", "background": True})
        ).json()
        await running.wait_for_turn("hold 2")
        assert (await http.post(f"/v1/responses/{other['id']}/cancel")).json()["status"] == "cancelled"
        assert (await http.get(f"/v1/responses/{other['id']}")).json()["status"] == "cancelled"


async def begin_task(doors: AllDoors, http: httpx.AsyncClient, ident: str, text: str) -> str:
    """Send a message by A2A, and return the id of its task at once."""
    message = {"messageId": ident, "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, "configuration": {"returnImmediately": True}}
    begun = await doors.rpc(http, doors.name(), "SendMessage", params)
    return str(begun.json()["result"]["task"]["id"])


async def test_tasks_and_tools_of_another_worker_go_on_and_are_cancelled(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:
        far, name = running.far, running.far.name()
        task = await begin_task(far, http, "m1", "hold")
        await running.wait_for_turn("hold")
        async with running.near.http("website") as near, far.http("shop") as shop:
            # Sent again at the other worker, it is the same task.
            assert await begin_task(running.near, near, "m1", "hold") == task
            listed = await far.rpc(http, name, "ListTasks", {})
            assert [each["id"] for each in listed.json()["result"]["tasks"]] == [task]
            for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                assert "error" in (await far.rpc(shop, name, method, {"id": task})).json()
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
        async with http.stream("POST", f"/a2a/{name}", json=body, headers={"A2A-Version": "1.0"}) as reply:
            events = read_events(reply)
            assert (await anext(events))["result"]["task"]["id"] == task
            running.release()
            assert "TASK_STATE_COMPLETED" in json.dumps([event async for event in events])
        found = await far.rpc(http, name, "GetTask", {"id": task})
        assert found.json()["result"]["artifacts"][0]["parts"][0]["text"] == "one two"
        (tmp_path / "release").unlink()
        task = await begin_task(far, http, "m2", "hold 2")
        await running.wait_for_turn("hold 2")
        cancelled = await far.rpc(http, name, "CancelTask", {"id": task})
        assert cancelled.json()["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        # A tool reports its progress.
        (tmp_path / "release").unlink(missing_ok=True)
        heard: list[str] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(str(message))
            if "one" in str(message):
                running.release()

        headers = {"Authorization": f"Bearer {far.keys['website']}"}
        async with (
            McpHttp(headers=headers, timeout=TIMEOUT_S, trust_env=False) as mcp,
            Client(streamable_http_client(f"{far.url}/mcp", http_client=mcp), cache=None) as client,
        ):
            result = await client.call_tool(f"{name}_chat", {"query": "think"}, progress_callback=hear)
        assert ("two" in str(result.content), "one" in heard) == (True, True)
        # A question to the caller, asked and answered by a tool.
        way = ToolArguments()
        asked = await way.ask(far, http, "ask")
        assert "Which colour?" in asked.text
        assert "painted blue" in (await way.answer(far, http, asked, "blue")).text


async def test_a_message_that_comes_twice_at_once_begins_one_task_at_another_worker(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:

        async def send(text: str) -> dict[str, Any]:
            message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]}
            answer = await running.far.rpc(http, running.far.name(), "SendMessage", {"message": message})
            return dict(answer.json())

        answers = await asyncio.gather(send("hello"), send("hello"), send("another one"))
        refused = [answer["error"]["message"] for answer in answers if "error" in answer]
        tasks = [answer["result"]["task"] for answer in answers if "result" in answer]
        assert all("was used for another message" in text for text in refused), answers
        assert {task["status"]["state"] for task in tasks} == {"TASK_STATE_COMPLETED"}, answers
        assert (len({task["id"] for task in tasks}), len(refused)) in ((1, 1), (1, 2))
        assert len(running.turns) == 1


async def test_an_answer_outlives_the_worker_that_was_about_to_give_it(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:
        body = chat(running.far.name(), "hold", stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"}) as reply:
            ident = reply.headers["x-request-id"]
            events = read_events(reply)
            while (await anext(events))["choices"][0]["delta"].get("content") != "one ":
                pass
            asking = asyncio.create_task(running.far.ask("openai", "shop", "hello"))
            await running.owner.signal(signal.SIGKILL)
            last = [event async for event in events][-1]
        assert (last["error"]["code"], ident in json.dumps(last)) == ("interrupted", True), last
        assert (await http.get("/v1/models")).json()["data"] != []
        running.release()
        # The other worker takes over: it answers what the dead one has stored, and what was asked meanwhile.
        answer = await http.post(
            "/v1/chat/completions", json=chat(running.far.name(), "hold", stream=True), headers={"Idempotency-Key": "k1"}
        )
        assert "two" in answer.text
        await running.workers.wait_for(2)
        assert len([turn for turn in running.turns if turn.endswith(" hold")]) == 2
        assert (await asking).status in (200, 503)


async def test_a_request_outlives_the_worker_that_was_asked_by_http(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        again = {"Idempotency-Key": "k1"}
        async with running.far.http("website", **again) as far, running.near.http("website", **again) as near:
            body = chat(running.far.name(), "hold")
            lost = asyncio.create_task(far.post("/v1/chat/completions", json=body))
            await running.wait_for_turn("hold")
            await running.other.signal(signal.SIGKILL)
            await asyncio.gather(lost, return_exceptions=True)
            repeated = asyncio.create_task(near.post("/v1/chat/completions", json=body))
            running.release()
            assert text_of((await repeated).json()) == "one two"
        assert [turn for turn in running.turns if turn.endswith(" hold")] == [f"{running.owner.pid} hold"]
        await running.workers.wait_for(2)
        assert (await running.near.ask("openai", "closed", "hello", agent=running.workers.agents[1])).status == 200


@pytest.mark.parametrize("stopped", ["owner", "other"])
async def test_a_stream_goes_on_while_the_worker_of_either_side_is_stopped(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path, stopped: str
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running, running.far.http("website") as http:
        async with http.stream("POST", "/v1/chat/completions", json=chat(running.far.name(), "hold", stream=True)) as reply:
            events = read_events(reply)
            while (await anext(events))["choices"][0]["delta"].get("content") != "one ":
                pass
            worker: PlatformProcess = getattr(running, stopped)
            ended = asyncio.create_task(worker.signal(signal.SIGTERM))
            stays = running.far if stopped == "owner" else running.near
            asked = asyncio.create_task(stays.ask("openai", "closed", "hello", agent=running.workers.agents[1]))
            assert (await asked).status == 200
            running.release()
            rest = [event["choices"][0]["delta"].get("content") async for event in events]
        assert "two" in rest
        assert await ended == 0
        assert (await stays.ask("openai", "website", "again")).status == 200


class PatientClient:
    """A client that asks any worker, and asks again with the same key until it has the answer."""

    def __init__(self, running: FarDoors, name: str) -> None:
        self._doors = itertools.cycle([running.near, running.far])
        self._name = name
        self.answered = 0

    async def ask_until(self, stop: asyncio.Event) -> None:
        """Ask one question after another."""
        while not stop.is_set():
            text = f"{self._name} {self.answered}"
            while (answer := await self._try(next(self._doors), text)) is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.1)
            assert answer == f"done: {text}"
            self.answered += 1

    async def _try(self, doors: AllDoors, text: str) -> str | None:
        with suppress(httpx.HTTPError):
            async with doors.http("website", **{"Idempotency-Key": text.replace(" ", "-")}) as http:
                body = chat(doors.name(), text, stream=self.answered % 2 == 0)
                if not body["stream"]:
                    reply = await http.post("/v1/chat/completions", json=body)
                    return text_of(reply.json()) if reply.status_code == 200 else None
                async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                    events = [event async for event in read_events(reply)]
                if reply.status_code == 200 and events and "error" not in events[-1]:
                    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        return None


def has_answered(clients: Sequence[PatientClient], count: int) -> bool:
    return sum(client.answered for client in clients) >= count


async def test_each_request_is_answered_once_while_workers_are_killed_stopped_and_started_again(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        clients, stop = [PatientClient(running, f"client {number}") for number in range(8)], asyncio.Event()
        asking = asyncio.gather(*(client.ask_until(stop) for client in clients))
        for worker, number in (
            (running.owner, signal.SIGKILL),
            (running.other, signal.SIGKILL),
            (running.owner, signal.SIGTERM),
            (running.other, signal.SIGTERM),
        ):
            await worker.signal(number)
            target = sum(client.answered for client in clients) + len(clients)
            await eventually(partial(has_answered, clients, target))
            await worker.start()
        stop.set()
        await asyncio.wait_for(asking, TIMEOUT_S)
        answered = {f"client {number} {count}" for number, client in enumerate(clients) for count in range(client.answered)}
        ran = Counter(turn.partition(" ")[2] for turn in running.turns)
        assert set(ran) == answered
        assert max(ran.values()) <= 2  # one that was running when its worker was killed runs again
