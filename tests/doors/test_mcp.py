"""The MCP door, with the official client over real HTTP: both revisions of the protocol, with sessions and without."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp_types import ElicitResult

from spade_coreason.doors.mcp.calls import ToolCallLimits
from spade_coreason.testing import Policy
from tests.support.databases import execute
from tests.support.door_agents import Desk, make_caller
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY
from tests.support.errors import ExpectedErrors
from tests.support.mcp_door import McpDoor, connect, serve_agent, texts_of
from tests.support.processes import schema_programs
from tests.support.records import AGENT, ALICE
from tests.support.wait import eventually

FAST = ToolCallLimits(progress_s=0.05, person_s=0.5, silent_person_s=0.3)
TOOL = "notes_chat"
MODERN = "2026-07-28"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LISTING = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}


def call_of(query: str, ident: int | str) -> dict[str, Any]:
    """Return a call of the tool as JSON."""
    return {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": {"name": TOOL, "arguments": {"query": query}}}


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def call(client: Client, query: str, **arguments: Any) -> Any:
    return await client.call_tool(TOOL, {"query": query, **arguments})


async def test_an_agent_is_a_tool(url: str, mode: str) -> None:
    async with serve_agent(url, Desk()) as door, connect(door, mode=mode) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.title, tool.description) == (TOOL, "Desk", "Does what you say.")
        assert set(tool.input_schema["properties"]) == {"query", "conversation", "request_id", "answer", "question"}
        assert tool.input_schema["required"] == ["query"]
        result = await call(client, "hello")
        assert texts_of(result) == ["done: hello"]
        assert not result.is_error
        refused = await client.call_tool(TOOL, {"text": "hello"})
        assert refused.is_error
        assert "query" in texts_of(refused)[0]


async def test_the_parts_of_an_answer_become_content(url: str, mode: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("a secret of the agent")
    async with serve_agent(url, Desk()) as door, connect(door, mode=mode) as client:
        assert texts_of(await call(client, "stream")) == ["one two three"]
        result = await call(client, "data")
        assert result.structured_content == {"celsius": 12}
        assert texts_of(result) == ["Today", '{"celsius": 12}', "done: data"]
        [link, _] = (await call(client, "link")).content
        assert (link.type, link.name) == ("resource_link", "report 1.pdf")
        failed = await call(client, "fail")
        assert failed.is_error
        assert "incident" in texts_of(failed)[0]
        assert "secret" not in str(failed)


async def test_a_conversation_goes_on_by_its_name(url: str, mode: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, connect(door, mode=mode) as client:
        first = await call(client, "hello")
        conversation = first.meta["ai.coreason/conversation"]
        assert f'conversation="{conversation}"' in first.content[-1].text
        await call(client, "again", conversation=conversation)
        await call(client, "new")
        async with connect(door, OTHER_KEY, mode=mode) as other:
            await call(other, "mine", conversation=conversation)
    assert desk.sessions[0] == desk.sessions[1]
    assert len(set(desk.sessions)) == 3


async def test_a_request_with_an_id_runs_once(url: str, mode: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, connect(door, mode=mode) as client:
        first = await call(client, "hello", request_id="7")
        for again in (await call(client, "hello", request_id="7"), await client.call_tool(TOOL, {"request_id": "7"})):
            assert (again.content, again.meta) == (first.content, first.meta)
        assert len(desk.seen) == 1
        other = await call(client, "something else", request_id="7")
        assert other.is_error
        assert other.meta["ai.coreason/code"] == 400
        assert len(desk.seen) == 1
    async with serve_agent(url, desk) as door, connect(door, OTHER_KEY, mode=mode) as client:
        unknown = await client.call_tool(TOOL, {"request_id": "7"})
        assert unknown.is_error
        assert "hello" not in str(unknown)


async def test_thoughts_and_the_time_are_progress(url: str, mode: str) -> None:
    desk, steps = Desk(), list[tuple[float, str | None]]()
    expected = {"let me see", "The agent is at work."}

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, message))
        if len(steps) >= 4 and expected <= {each for _, each in steps}:
            desk.release.set()

    async with serve_agent(url, desk, limits=FAST) as door, connect(door, mode=mode) as client:
        result = await client.call_tool(TOOL, {"query": "think wait"}, progress_callback=on_progress)
    assert texts_of(result) == ["done: think wait"]
    assert sorted(step for step, _ in steps) == list(range(1, len(steps) + 1))


def test_progress_comes_at_least_every_ten_seconds() -> None:
    """Clients cancel a call that is silent for a minute. Above, the same timer runs with another interval."""
    assert ToolCallLimits().progress_s <= 10


async def test_a_cancelled_call_cancels_the_request(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, connect(door, mode="legacy") as client:
        task = asyncio.create_task(call(client, "wait"))
        await eventually(lambda: len(desk.seen) == 1)
        task.cancel()
        await eventually(lambda: desk.cancelled == 1)
        await eventually(lambda: door.running.doors.open_count == 0)


async def test_the_request_of_a_lost_client_goes_on(url: str, mode: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        task = asyncio.create_task(ask_and_vanish(door, mode))
        await eventually(lambda: len(desk.seen) == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: door.running.doors.open_count == 0)
        desk.release.set()
        async with connect(door, mode=mode) as client:
            assert texts_of(await call(client, "wait", request_id="7")) == ["done: wait"]
    assert (desk.cancelled, len(desk.seen)) == (0, 1)


async def ask_and_vanish(door: McpDoor, mode: str) -> None:
    """Ask by a request whose connection is closed when the task is cancelled: no notification says so."""
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    params: dict[str, Any] = {"name": TOOL, "arguments": {"query": "wait", "request_id": "7"}}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        if mode == "legacy":
            opened = await http.post(door.url, json=INITIALIZE)
            http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
            await http.post(door.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        else:
            meta = {"protocolVersion": MODERN, "clientCapabilities": {}}
            params["_meta"] = {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}
            http.headers.update({"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": TOOL})
        await http.post(door.url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})


async def test_the_user_of_a_client_is_asked_by_a_form(url: str, mode: str) -> None:
    messages: list[Any] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        messages.append(params)
        return ElicitResult(action="accept", content={"answer": "blue"})

    async with serve_agent(url, Desk()) as door, connect(door, mode=mode, elicitation_callback=elicit) as client:
        result = await call(client, "ask")
    assert texts_of(result)[-1].endswith("painted blue")
    [form] = messages
    assert "Which colour?" in form.message
    assert form.requested_schema["properties"]["answer"]["enum"] == ["red", "blue"]


async def test_a_user_who_declines_a_form_gets_the_question(url: str, mode: str) -> None:
    async def decline(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with serve_agent(url, Desk()) as door, connect(door, mode=mode, elicitation_callback=decline) as client:
        result = await call(client, "ask")
    assert "waits for your answer" in result.content[-1].text


async def test_a_question_is_the_result_for_a_client_without_forms(url: str, mode: str) -> None:
    async with serve_agent(url, Desk()) as door, connect(door, mode=mode) as client:
        question = await call(client, "ask")
        assert not question.is_error
        assert "Which colour?" in question.content[0].text
        named = {name: question.meta[f"ai.coreason/{name}"] for name in ("request_id", "question")}
        assert all(f'{name}="{value}"' in question.content[-1].text for name, value in named.items())
        async with connect(door, OTHER_KEY, mode=mode) as other:
            stolen = await other.call_tool(TOOL, {**named, "answer": "red"})
            assert stolen.is_error
        wrong = await call(client, "ask", **named, answer="green")
        assert wrong.is_error
        assert "red / blue" in wrong.content[-1].text
        for incomplete in (["request_id"], ["question"], []):
            unnamed = await call(client, "ask", **{name: named[name] for name in incomplete}, answer="blue")
            assert "an answer needs request_id and question" in unnamed.content[-1].text
        result = await call(client, "ask", **named, answer="blue")
        assert texts_of(result)[-1].endswith("painted blue")


async def test_a_call_that_waits_for_somebody_else_says_how_to_ask_again(url: str, mode: str) -> None:
    policy = Policy(operators=frozenset({ALICE}))
    async with serve_agent(url, Desk(), policy, FAST) as door, connect(door, mode=mode) as client:
        result = await call(client, "delegate")
        request_id = result.meta["ai.coreason/request_id"]
        assert result.content[-1].text.startswith("The agent waits for a person's answer.")
        assert f'request_id="{request_id}"' in result.content[-1].text
        # What the caller sends is no answer of the person who is asked.
        host = door.running.doors.host
        assert host is not None
        [asked] = await host.repository(AGENT).questions.load_asked(ALICE)
        given = await call(client, "delegate", request_id=request_id, answer="yes", question=asked.question_id)
        assert given.is_error
        again = await call(client, "delegate", request_id=request_id)
        assert again.content[-1].text.startswith("The agent waits for a person's answer.")


async def test_an_unknown_tool_and_wrong_arguments_are_refused(url: str, mode: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, connect(door, mode=mode) as client:
        with pytest.raises(MCPError, match="no such tool"):
            await client.call_tool("other_chat", {"query": "hello"})
        for arguments in ({}, {"query": 5}, {"query": "x", "request_id": 5}, {"query": "x", "conversation": "a" * 200}):
            assert (await client.call_tool(TOOL, arguments)).is_error
    assert desk.seen == []


async def test_an_error_has_the_id_of_its_request(url: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    async with serve_agent(url, Desk()) as door, httpx2.AsyncClient(trust_env=False, headers=headers) as http:
        listing: dict[str, Any] = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
        cases = [
            ({}, listing, 400, 3),
            ({"Mcp-Session-Id": "none"}, listing | {"id": "a"}, 404, "a"),
            ({"Accept": "text/html"}, listing, 406, 3),
            ({}, listing | {"params": 5}, 400, 3),
            ({}, {"jsonrpc": "2.0", "id": 3}, 400, None),
        ]
        for added, body, status, known in cases:
            reply = await http.post(door.url, json=body, headers=added)
            assert (reply.status_code, reply.json()["id"]) == (status, known)
            assert "error" in reply.json()


async def test_a_session_is_of_the_key_that_opened_it(url: str) -> None:
    async with serve_agent(url, Desk()) as door, httpx2.AsyncClient(trust_env=False) as http:
        accept = {"Accept": "application/json, text/event-stream"}
        opened = await http.post(door.url, json=INITIALIZE, headers={"Authorization": f"Bearer {KEY}", **accept})
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], **accept}
        listing = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
        statuses = [
            (await http.post(door.url, json=listing, headers={"Authorization": f"Bearer {key}", **session})).status_code
            for key in (KEY, OTHER_KEY)
        ]
        assert statuses == [200, 404]
        assert (await http.delete(door.url, headers={"Authorization": f"Bearer {OTHER_KEY}", **session})).status_code == 404
        assert (await http.post(door.url, json=listing, headers=session)).status_code == 401
        assert (await http.get(door.url, headers={"Authorization": f"Bearer {KEY}", **session})).status_code == 405


async def test_a_session_is_of_the_user_for_whom_a_front_end_opened_it(url: str) -> None:
    headers = {"Authorization": f"Bearer {FRONT_END_KEY}", "Accept": "application/json, text/event-stream"}
    async with serve_agent(url, Desk()) as door, httpx2.AsyncClient(trust_env=False, headers=headers) as http:
        opened = await http.post(door.url, json=INITIALIZE, headers={"X-Forwarded-User": "ada"})
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        listing = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
        statuses = [
            (await http.post(door.url, json=listing, headers={"X-Forwarded-User": user, **session})).status_code
            for user in ("ada", "ben")
        ]
    assert statuses == [200, 404]


async def test_one_user_of_a_front_end_does_not_take_the_sessions_of_others(url: str) -> None:
    headers = {"Authorization": f"Bearer {FRONT_END_KEY}", "Accept": "application/json, text/event-stream"}
    async with serve_agent(url, Desk()) as door, httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:

        async def open_session(user: str) -> httpx2.Response:
            return await http.post(door.url, json=INITIALIZE, headers={"X-Forwarded-User": user})

        assert [(await open_session("eve")).status_code for _ in range(12)] == [200] * 10 + [503] * 2
        assert (await open_session("ada")).status_code == 200


async def test_the_users_of_a_front_end_who_asked_least_recently_lose_their_sessions_first(url: str) -> None:
    desk, callers = Desk(), {KEY: make_caller("website", names_users=True)}
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    async with (
        serve_agent(url, desk, callers=callers) as door,
        httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http,
    ):

        async def open_session(user: str) -> dict[str, str]:
            opened = await http.post(door.url, json=INITIALIZE, headers={"X-Forwarded-User": user})
            return {"X-Forwarded-User": user, "Mcp-Session-Id": opened.headers["mcp-session-id"]}

        busy, first = [await open_session(user) for user in ("busy", "first")]
        waiting = asyncio.create_task(http.post(door.url, json=call_of("wait", 1), headers=busy))
        await eventually(lambda: len(desk.seen) == 1)
        last = [await open_session(f"user{number}") for number in range(105)][-1]
        statuses = [(await http.post(door.url, json=LISTING, headers=user)).status_code for user in (last, first)]
        assert statuses == [200, 404]
        desk.release.set()
        assert "done: wait" in (await waiting).text


@pytest.mark.parametrize("ids", [[7, 7, 7, 7, 7], [7, "7"]])
async def test_a_second_request_under_an_id_in_progress_is_an_error_at_once(url: str, ids: list[int | str]) -> None:
    """The first one is answered, and the others do not wait for it."""
    desk = Desk()
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    async with serve_agent(url, desk) as door, httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:
        opened = await http.post(door.url, json=INITIALIZE)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        first = asyncio.create_task(http.post(door.url, json=call_of("wait", ids[0]), headers=session))
        await eventually(lambda: len(desk.seen) == 1)
        others = [await http.post(door.url, json=call_of("hello", ident), headers=session) for ident in ids[1:]]
        assert {reply.status_code for reply in others} == {400}
        assert "give each request an id of its own" in others[0].text
        assert not first.done()
        # Another id, and the id in another session, are answered meanwhile.
        assert "done: hello" in (await http.post(door.url, json=call_of("hello", 8), headers=session)).text
        elsewhere = {"Mcp-Session-Id": (await http.post(door.url, json=INITIALIZE)).headers["mcp-session-id"]}
        assert "done: hello" in (await http.post(door.url, json=call_of("hello", 7), headers=elsewhere)).text
        desk.release.set()
        assert "done: wait" in (await first).text
        assert "done: again" in (await http.post(door.url, json=call_of("again", 7), headers=session)).text
    assert [query for _, query in desk.seen] == ["wait", "hello", "hello", "again"]


async def test_a_burst_of_calls_is_checked_by_one_program(url: str, mode: str) -> None:
    before = set(schema_programs())
    async with serve_agent(url, Desk()) as door, connect(door, mode=mode) as client:
        results = await asyncio.gather(*(call(client, f"hello {number}") for number in range(20)))
        assert sorted(texts_of(result)[0] for result in results) == sorted(f"done: hello {number}" for number in range(20))
    assert len(set(schema_programs()) - before) <= 1


async def test_a_body_is_limited_by_the_settings_of_the_server(url: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
    async with (
        serve_agent(url, Desk(), web={"limits": {"body_bytes": 6_000_000}}) as door,
        httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http,
    ):
        sizes = {5_000_000: 400, 7_000_000: 413}  # the smaller one is read, and has no session
        for size, status in sizes.items():
            assert (await http.post(door.url, json={**INITIALIZE, "method": "x" * size})).status_code == status


async def test_an_agent_that_stops_tells_how_to_fetch_the_answer(url: str, mode: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, connect(door, mode=mode) as client:
        task = asyncio.create_task(call(client, "wait", request_id="7"))
        await eventually(lambda: len(desk.seen) == 1)
        await door.running.runtime.close_channels()
        result = await task
        assert result.is_error
        assert 'request_id="7"' in result.content[-1].text
        stopped = await call(client, "hello")
        assert "does not run at the moment" in stopped.content[-1].text
        desk.release.set()


async def test_a_call_is_told_that_the_database_fails(url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("no such table: interactions")
    async with serve_agent(url, Desk()) as door, connect(door) as client:
        await call(client, "hello", request_id="r")
        execute(url, "ALTER TABLE interactions RENAME TO elsewhere")
        result = await client.call_tool(TOOL, {"request_id": "r"})
        assert (result.is_error, (result.meta or {})["ai.coreason/code"]) == (True, 503)
        assert "cannot read or store" in texts_of(result)[0]
        execute(url, "ALTER TABLE elsewhere RENAME TO interactions")
        assert texts_of(await client.call_tool(TOOL, {"request_id": "r"})) == ["done: hello"]
