"""The A2A door: the official client, the states of tasks, and what one caller must not see of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.types import a2a_pb2
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.contracts import AgentCapability
from spade_coreason.domain.quotas import Quotas
from spade_coreason.testing import Policy
from tests.support.a2a_door import (
    BINDINGS,
    A2AServer,
    apply,
    message_of,
    send,
    serve_a2a,
    state_of,
    text_of,
)
from tests.support.door_agents import CALLERS, Desk, read_all
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY, web_settings
from tests.support.errors import ExpectedErrors
from tests.support.profiling import count_calls
from tests.support.wait import TIMEOUT_S, eventually

_SUM = AgentCapability(
    name="sum",
    description="Adds numbers.",
    inputs={
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
        "required": ["numbers"],
    },
)


class Interviewer:
    """An agent that asks its caller for two things, and then for a third."""

    manifest = AgentDefinition.simple("Interviewer")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask."""
        await response.ask_person("Which colour?", choices=["red", "blue"])
        await response.ask_person("How large?", schema={"type": "object", "properties": {"cm": {"type": "integer"}}})
        await response.ask_person("Sure?")
        await response.markdown("painted")


def history_of(task: a2a_pb2.Task) -> list[str]:
    """Return the history, each message as its role and the content of its first part."""
    contents = [(message.role, message.parts[0]) for message in task.history]
    return [
        f"{'user' if role == a2a_pb2.ROLE_USER else 'agent'}: {part.text or MessageToDict(part.data)}"
        for role, part in contents
    ]


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.manifest = Desk.manifest.model_copy(update={"capabilities": [*Desk.manifest.capabilities, _SUM]})
    return desk


@pytest.fixture
async def server(url: str, desk: Desk) -> AsyncIterator[A2AServer]:
    async with serve_a2a(url, desk) as server:
        yield server


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_official_client_gets_the_answer(server: A2AServer, binding: str, streaming: bool) -> None:
    async with server.client(binding, streaming=streaming) as client:
        task = await send(client, message_of("hello", "m1"))
        assert state_of(task) == "COMPLETED"
        assert text_of(task) == "done: hello"
        assert task.context_id
        stored = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        assert (stored.id, stored.context_id, state_of(stored), text_of(stored)) == (
            task.id,
            task.context_id,
            "COMPLETED",
            "done: hello",
        )
        [message] = stored.history
        assert (message.message_id, message.parts[0].text) == ("m1", "hello")


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_comes_piece_by_piece(server: A2AServer, desk: Desk, binding: str) -> None:
    async with server.client(binding) as client:
        events = client.send_message(message_of("report", "m1"))
        task, kinds = a2a_pb2.Task(), []
        async for event in events:
            kinds.append(event.WhichOneof("payload"))
            apply(task, event)
            if text_of(task) == "one ":
                desk.release.set()
        assert kinds == ["task", "status_update", *["artifact_update"] * 3, "status_update"]
        assert (state_of(task), text_of(task), task.artifacts[0].name) == ("COMPLETED", "one two", "Report")


async def test_a_thought_is_a_working_status(server: A2AServer) -> None:
    async with server.client() as client:
        updates = [event.status_update async for event in client.send_message(message_of("think", "m1"))]
    thoughts = [update.status.message.parts[0].text for update in updates if update.metadata.fields["thought"].bool_value]
    assert thoughts == ["let me see"]


async def test_data_are_asked_of_the_capability_that_they_fit(server: A2AServer, desk: Desk) -> None:
    async with server.client() as client:
        request = message_of("", "m1")
        del request.message.parts[:]
        request.message.parts.add().data.struct_value.update({"numbers": [1, 2.5]})
        task = await send(client, request)
        assert task.artifacts[0].parts[0].data.struct_value.fields["sum"].number_value == 3.5
        assert task.artifacts[0].name == "The sum"
        request.message.message_id = "m2"
        request.message.metadata.update({"skill": "sum"})
        request.message.parts[0].data.struct_value.update({"numbers": "many"})
        with pytest.raises(InvalidParamsError, match="numbers"):
            await send(client, request)
        request.message.parts[0].text = "one and two"
        with pytest.raises(InvalidParamsError, match="numbers"):
            await send(client, request)
    [seen] = desk.requests
    assert seen.payload == {"numbers": [1, 2.5]}
    assert seen.metadata["capability"] == "sum"


async def test_while_data_are_checked_others_are_answered(url: str) -> None:
    """A pattern of the agent that backtracks takes two seconds, in which the event loop goes on."""

    desk = Desk()
    mail = AgentCapability(name="mail", inputs={"properties": {"mail": {"pattern": "^([a-z]+[._]?)+@[a-z]+$"}}})
    desk.manifest = desk.manifest.model_copy(update={"capabilities": [mail]})
    async with serve_a2a(url, desk) as server, server.http() as http:
        params = {"message": _json_message("x", "m1", parts=[{"data": {"mail": "a" * 40}}], metadata={"skill": "mail"})}
        slow = asyncio.create_task(http.post(server.url, json=_call("SendMessage", params)))
        for _ in range(5):
            assert (await http.get(f"http://127.0.0.1:{server.settings.port}/healthz")).status_code == 200
            assert not slow.done()
        assert "within 2 s" in (await slow).json()["error"]["message"]


async def test_a_link_is_a_file_both_ways(server: A2AServer, desk: Desk) -> None:
    async with server.client() as client:
        request = message_of("link", "m1")
        request.message.parts.add(url="https://example.org/in.png", filename="in.png", media_type="image/png")
        task = await send(client, request)
    [attachment] = desk.requests[0].payload["attachments"]
    assert (attachment["url"], attachment["name"], attachment["type"]) == ("https://example.org/in.png", "in.png", "image/png")
    part = task.artifacts[0].parts[0]
    assert (part.url, part.filename, part.media_type) == (
        "https://files.example.org/a/report%201.pdf",
        "report 1.pdf",
        "application/pdf",
    )


async def test_a_text_that_only_looks_like_a_link_is_a_text(server: A2AServer, desk: Desk) -> None:
    desk.greeting = "https://[half"
    async with server.client() as client:
        task = await send(client, message_of("greet", "m1"))
        assert (state_of(task), text_of(task)) == ("COMPLETED", desk.greeting)
        assert text_of(await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))) == desk.greeting
        listed = await client.list_tasks(a2a_pb2.ListTasksRequest())
        assert [one.id for one in listed.tasks] == [task.id]


async def test_a_link_or_a_number_that_is_none_is_refused_as_wrong(server: A2AServer, desk: Desk) -> None:
    async with server.client() as client, server.http() as http:
        request = message_of("look", "m1")
        request.message.parts.add(url="https://[half")
        with pytest.raises(InvalidParamsError, match="http"):
            await send(client, request)
        for field in ('"parts": [{"data": 1e999}]', '"parts": [{"text": "x"}], "metadata": {"n": 1e999}'):
            params = f'{{"message": {{"messageId": "m2", "role": "ROLE_USER", {field}}}}}'
            body = f'{{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {params}}}'
            reply = await http.post(server.url, content=body, headers={"Content-Type": "application/json"})
            assert reply.json()["error"]["code"] == -32602
    assert desk.seen == []


async def test_a_file_in_a_message_is_stored_for_the_agent(server: A2AServer, desk: Desk) -> None:
    async with server.client() as client:
        request = message_of("", "m1")
        del request.message.parts[:]
        request.message.parts.add(raw=b"<svg/>", filename="../a b.svg", media_type="image/svg+xml")
        first = await send(client, request)
        assert (await send(client, request)).id == first.id
        [attachment] = desk.requests[0].payload["attachments"]
        assert (attachment["name"], attachment["size"]) == ("a b.svg", 6)
        assert desk.requests[0].payload["query"] == attachment["url"]
        async with httpx.AsyncClient(trust_env=False) as http:
            file = await http.get(attachment["url"])
            assert (file.content, file.headers["content-type"].partition(";")[0]) == (b"<svg/>", "text/plain")
        request.message.parts[0].raw = b"another"
        with pytest.raises(InvalidParamsError, match="messageId"):
            await send(client, request)
        request.message.message_id, request.message.parts[0].raw = "m2", bytes(8 * 2**20 + 1)
        with pytest.raises(InvalidParamsError, match="8 MiB"):
            await send(client, request)
    assert len(desk.seen) == 1


async def test_a_repeated_message_is_the_same_task(server: A2AServer, desk: Desk) -> None:
    async with server.client() as client:
        first = await send(client, message_of("hello", "m1", context_id="trip"))
        again = await send(client, message_of("hello", "m1", context_id="trip"))
        assert (first.id, text_of(first)) == (again.id, text_of(again))
        with pytest.raises(InvalidParamsError, match="messageId"):
            await send(client, message_of("something else", "m1"))
        other = await send(client, message_of("hello", "m2", context_id="trip"))
        assert other.id != first.id
        assert other.context_id == "trip"
    assert len(set(desk.sessions)) == 1
    assert len(desk.seen) == 2


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_client_that_goes_away_does_not_end_its_task(server: A2AServer, desk: Desk, binding: str) -> None:
    """As a2a-python 296."""
    async with server.client(binding) as client:
        events = client.send_message(message_of("report", "m1"))
        first = await anext(aiter(events))
    async with server.client(binding) as client:
        await eventually(lambda: len(desk.seen) == 1)
        running = await client.get_task(a2a_pb2.GetTaskRequest(id=first.task.id))
        assert state_of(running) in ("SUBMITTED", "WORKING")
        task = a2a_pb2.Task()
        async for event in client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id)):
            apply(task, event)
            desk.release.set()
        assert (state_of(task), text_of(task)) == ("COMPLETED", "one two")
        with pytest.raises(UnsupportedOperationError):
            _ = [event async for event in client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=first.task.id))]


async def test_a_task_is_current_however_often_it_is_asked_for(server: A2AServer, desk: Desk) -> None:
    """As a2a-python 1188. Forty times, since a running request answers to sixteen addresses only."""
    async with server.client(streaming=False) as client:
        request = message_of("report", "m1")
        request.configuration.return_immediately = True
        begun = await send(client, request)
        assert state_of(begun) in ("SUBMITTED", "WORKING")
        for _ in range(40):
            task = await client.get_task(a2a_pb2.GetTaskRequest(id=begun.id))
            assert state_of(task) in ("SUBMITTED", "WORKING")
        while text_of(task) != "one ":
            task = await client.get_task(a2a_pb2.GetTaskRequest(id=begun.id))
        desk.release.set()
        while state_of(task) != "COMPLETED":
            task = await client.get_task(a2a_pb2.GetTaskRequest(id=begun.id))
        assert text_of(task) == "one two"
        assert task.status.timestamp.ToMicroseconds() > begun.status.timestamp.ToMicroseconds()


async def test_a_task_goes_on_after_a_restart(url: str, desk: Desk) -> None:
    """As a2a-python 832."""
    async with serve_a2a(url, desk) as server, server.client() as client:
        task = a2a_pb2.Task()
        events = client.send_message(message_of("wait a bit", "m1", context_id="trip"))
        apply(task, await anext(aiter(events)))
        await eventually(lambda: len(desk.seen) == 1)
        answered = await send(client, message_of("hello", "m0"))
    async with serve_a2a(url, desk) as server, server.client() as client:
        assert text_of(await client.get_task(a2a_pb2.GetTaskRequest(id=answered.id))) == "done: hello"
        found = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        assert (state_of(found), found.context_id, found.history[0].message_id) == ("WORKING", "trip", "m1")
        async for event in client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=task.id)):
            apply(task, event)
            desk.release.set()
        assert (state_of(task), text_of(task)) == ("COMPLETED", "done: wait a bit")
        again = await send(client, message_of("wait a bit", "m1", context_id="trip"))
        assert text_of(again) == "done: wait a bit"
    assert len(desk.seen) == 3


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_that_asked_has_its_whole_history(url: str, binding: str) -> None:
    async with serve_a2a(url, Interviewer()) as server, server.client(binding, streaming=False) as client:
        task = await send(client, message_of("paint", "m1"))
        other = await send(client, message_of("paint it too", "m0"))
        await send(client, message_of("red", "m2", task_id=task.id))
        asking = await send(client, message_of('{"cm": 5}', "m3", task_id=task.id))
        assert (state_of(asking), asking.status.message.parts[0].text) == ("INPUT_REQUIRED", "Sure?")
        asked = ["user: paint", "agent: Which colour?", "user: red", "agent: How large?"]
        assert history_of(asking) == [*asked, 'user: {"cm": 5}']
    async with serve_a2a(url, Interviewer()) as server, server.client(binding, streaming=False) as client:
        expected = [*asked, "user: {'cm': 5.0}"]
        found = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        assert (state_of(found), history_of(found)) == ("INPUT_REQUIRED", expected)
        done = await send(client, message_of("yes", "m4", task_id=task.id))
        expected += ["agent: Sure?", "user: yes"]
        assert (state_of(done), history_of(done)) == ("COMPLETED", expected)
        await eventually(lambda: server.running.doors.open_count == 0)
        assert history_of(await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))) == expected
        short = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id, history_length=2))
        assert history_of(short) == expected[-2:]
        listed = {each.id: history_of(each) for each in (await client.list_tasks(a2a_pb2.ListTasksRequest())).tasks}
        assert listed == {task.id: expected, other.id: ["user: paint it too"]}
        assert len({message.message_id for message in done.history}) == 7


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_question_to_the_caller_is_answered_by_the_next_message(url: str, binding: str) -> None:
    desk = Desk()
    async with serve_a2a(url, desk) as server, server.client(binding) as client:
        task = await send(client, message_of("ask me", "m1"))
        assert state_of(task) == "INPUT_REQUIRED"
        question, form = task.status.message.parts
        assert question.text == "Which colour?"
        assert list(form.data.struct_value.fields["choices"].list_value) == ["red", "blue"]
        with pytest.raises(InvalidParamsError, match="fit"):
            await send(client, message_of("green", "m2", task_id=task.id))
        with pytest.raises(InvalidParamsError, match="contextId"):
            await send(client, message_of("blue", "m2", task_id=task.id, context_id="another"))
        async with server.client(binding, OTHER_KEY) as shop:
            with pytest.raises(TaskNotFoundError):
                await send(shop, message_of("red", "m2", task_id=task.id))
        done = await send(client, message_of("blue", "m3", task_id=task.id))
        assert (done.id, state_of(done)) == (task.id, "COMPLETED")
        assert text_of(done).endswith("painted blue")
        again = await send(client, message_of("blue", "m3", task_id=task.id))
        assert (again.id, state_of(again)) == (task.id, "COMPLETED")
        with pytest.raises(InvalidParamsError, match="another message"):
            await send(client, message_of("red", "m3", task_id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await send(client, message_of("red", "m4", task_id=task.id))


async def test_a_question_is_answered_after_a_restart(url: str) -> None:
    async with serve_a2a(url, Desk()) as server, server.client() as client:
        task = await send(client, message_of("ask me", "m1"))
    async with serve_a2a(url, Desk()) as server, server.client() as client:
        found = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        assert (state_of(found), found.status.message.parts[0].text) == ("INPUT_REQUIRED", "Which colour?")
        done = await send(client, message_of("blue", "m2", task_id=task.id))
        assert state_of(done) == "COMPLETED"
        assert text_of(done).endswith("painted blue")


async def test_who_waits_for_somebody_else_can_answer_nothing(server: A2AServer) -> None:
    async with server.client(streaming=False) as client:
        task = await send(client, message_of("delegate", "m1"))
        assert (state_of(task), task.status.message.parts[0].text) == (
            "WORKING",
            "The agent has asked another person, and waits for the answer.",
        )
        for text in ("yes", "/approve", "approved"):
            with pytest.raises(UnsupportedOperationError):
                await send(client, message_of(text, f"m-{text}", task_id=task.id))
        assert state_of(await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))) == "WORKING"
        listed = await client.list_tasks(a2a_pb2.ListTasksRequest(status=a2a_pb2.TASK_STATE_WORKING))
        assert [each.id for each in listed.tasks] == [task.id]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_is_cancelled(server: A2AServer, desk: Desk, binding: str) -> None:
    async with server.client(binding) as client:
        events = aiter(client.send_message(message_of("wait", "m1")))
        task = (await anext(events)).task
        await eventually(lambda: len(desk.seen) == 1)
        cancelled = await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))
        assert state_of(cancelled) == "CANCELED"
        async for event in events:
            apply(task, event)
        assert state_of(task) == "CANCELED"
        await server.running.runtime.runner.mailboxes.wait_until_idle()
        assert state_of(await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))) == "CANCELED"
        assert state_of(await send(client, message_of("wait", "m1"))) == "CANCELED"
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))
    assert len(desk.seen) == 1


async def test_a_question_is_cancelled(server: A2AServer) -> None:
    async with server.client() as client:
        task = await send(client, message_of("ask", "m1"))
        assert state_of(await client.cancel_task(a2a_pb2.CancelTaskRequest(id=task.id))) == "CANCELED"
        with pytest.raises(UnsupportedOperationError):
            await send(client, message_of("red", "m2", task_id=task.id))


async def test_a_failure_has_its_incident_and_no_details(server: A2AServer, expected_errors: ExpectedErrors) -> None:
    expected_errors("RuntimeError: a secret of the agent")
    async with server.client() as client:
        task = await send(client, message_of("fail", "m1"))
        stored = await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))
    for each in (task, stored):
        assert state_of(each) == "FAILED"
        assert "secret" not in str(each)
        assert each.status.message.parts[0].text
    assert stored.metadata.fields["incident"].string_value in task.status.message.parts[0].text


async def test_a_refused_request_is_rejected_with_the_time_to_wait(url: str) -> None:
    policy = Policy(quotas=Quotas(user=replace(Quotas().user, messages_per_minute=1)))
    async with serve_a2a(url, Desk(), policy) as server, server.client() as client:
        await send(client, message_of("hello", "m1"))
        task = await send(client, message_of("hello", "m2"))
        assert state_of(task) == "REJECTED"
        assert task.metadata.fields["retry_after_s"].number_value > 0
        with pytest.raises(TaskNotFoundError):
            await client.get_task(a2a_pb2.GetTaskRequest(id=task.id))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stop_ends_streams_and_the_task_is_working(url: str, desk: Desk, binding: str) -> None:
    async with serve_a2a(url, desk) as server, server.client(binding) as client:
        task = a2a_pb2.Task()
        events = aiter(client.send_message(message_of("wait", "m1")))
        apply(task, await anext(events))
        await eventually(lambda: len(desk.seen) == 1)
        await server.running.runtime.close_channels()
        async for event in events:
            apply(task, event)
        assert state_of(task) == "WORKING"
        assert "subscribe" in task.status.message.parts[0].text
        async with server.http() as http:
            reply = await http.post(server.url, json=_call("GetTask", {"id": task.id}))
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        desk.release.set()


@pytest.mark.parametrize("binding", BINDINGS)
async def test_tasks_are_listed_in_pages(server: A2AServer, desk: Desk, binding: str) -> None:
    async with server.client(binding) as client, server.client(binding, OTHER_KEY) as shop:
        done = [(await send(client, message_of(f"hello {n}", f"m{n}", context_id=f"c{n % 2}"))).id for n in range(7)]
        request = message_of("wait", "w1", context_id="c0")
        events = aiter(client.send_message(request))
        done.append((await anext(events)).task.id)
        token, pages = "", []
        while True:
            page = await client.list_tasks(a2a_pb2.ListTasksRequest(page_size=3, page_token=token))
            assert page.total_size == 8
            pages.append([task.id for task in page.tasks])
            if not (token := page.next_page_token):
                break
        assert pages == [done[:4:-1], done[4:1:-1], done[1::-1]]
        in_context = await client.list_tasks(
            a2a_pb2.ListTasksRequest(context_id="c1", include_artifacts=True, history_length=0)
        )
        assert [task.id for task in in_context.tasks] == [done[5], done[3], done[1]]
        assert text_of(in_context.tasks[0]) == "done: hello 5"
        assert not in_context.tasks[0].history
        completed = await client.list_tasks(a2a_pb2.ListTasksRequest(status=a2a_pb2.TASK_STATE_COMPLETED))
        assert completed.total_size == 7
        late = a2a_pb2.ListTasksRequest(status_timestamp_after=page.tasks[-1].status.timestamp)
        assert (await client.list_tasks(late)).total_size == 8
        assert (await shop.list_tasks(a2a_pb2.ListTasksRequest(context_id="c1"))).total_size == 0
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(a2a_pb2.ListTasksRequest(page_token="another"))
        desk.release.set()


async def test_a_list_makes_only_what_it_shows_and_a_page_of_large_tasks_is_short(server: A2AServer, desk: Desk) -> None:
    """A message has 3,000 values. A page ends with the bytes of its tasks, and a list without history makes no values."""
    async with server.client(streaming=False) as client:
        numbers = a2a_pb2.Part(data=ParseDict([1] * 3000, Value()))
        sent = []
        for number in range(9):
            request = message_of("wait" if number > 5 else "hello", f"m{number}")
            request.message.parts.append(numbers)
            request.configuration.return_immediately = True
            sent.append((await send(client, request)).id)
            if number < 6:
                await eventually(lambda: len(desk.done) == number + 1)  # noqa: B023 - awaited at once
        desk.seen.clear()
        listing: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"historyLength": 0}}
        headers = {"Authorization": f"Bearer {KEY}", "A2A-Version": "1.0"}
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
            with count_calls() as calls:
                reply = await http.post(server.url, json=listing)
            assert [calls["_ConvertValueMessage"], calls["_ValueMessageToJsonObject"]] == [0, 0]
            assert len(reply.json()["result"]["tasks"]) == 9
            with count_calls() as calls:
                await http.post(server.url, json=listing | {"params": {"pageSize": 1}})
            # The one that is shown, and the first that is answered, which comes after it.
            assert calls["_ConvertValueMessage"] <= 2 * 3001
        token, pages = "", []
        while True:
            page = await client.list_tasks(a2a_pb2.ListTasksRequest(page_token=token))
            pages.append([task.id for task in page.tasks])
            assert all(len(task.history[0].parts[1].data.list_value.values) == 3000 for task in page.tasks)
            if not (token := page.next_page_token):
                break
        assert sorted(ident for page in pages for ident in page) == sorted(sent)
        assert [len(page) for page in pages] == [4, 4, 1]
        desk.release.set()


async def test_nothing_crosses_between_callers_and_doors(server: A2AServer, desk: Desk) -> None:
    """Fifty tries with ids that others have, or that are guessed."""
    async with server.client() as client:
        task = await send(client, message_of("hello", "m1", context_id="trip"))
        question = await send(client, message_of("ask", "m2", context_id="trip"))
        events = aiter(client.send_message(message_of("wait", "m3", context_id="trip")))
        waiting = (await anext(events)).task
        other_door = uuid4()
        await read_all(await server.running.agent.ask(CALLERS[KEY], {"query": "x"}, request_id=other_door, thread="t"))
        with pytest.raises(TaskNotFoundError):
            await client.get_task(a2a_pb2.GetTaskRequest(id=str(other_door)))
        assert (await client.list_tasks(a2a_pb2.ListTasksRequest(context_id="t"))).total_size == 0
        users = [{"X-Forwarded-User": "ada"}, {"X-Forwarded-User": "website"}]
        others: list[tuple[str, dict[str, str]]] = [(OTHER_KEY, {}), *((FRONT_END_KEY, user) for user in users)]
        ids = [task.id, question.id, waiting.id, str(other_door), str(uuid4()), "../tasks", task.id.upper(), f" {task.id}"]
        tries = 0
        for key, headers in others:
            async with server.http(key, headers) as http:
                for ident in ids:
                    for method, params in (
                        ("GetTask", {"id": ident}),
                        ("CancelTask", {"id": ident}),
                        ("SubscribeToTask", {"id": ident}),
                        ("SendMessage", {"message": _json_message("red", f"x{tries}", taskId=ident)}),
                    ):
                        reply = await http.post(server.url, json=_call(method, params))
                        assert reply.json()["error"]["code"] == -32001, (method, ident)
                        tries += 1
                listed = (await http.post(server.url, json=_call("ListTasks", {"contextId": "trip"}))).json()["result"]
                assert listed["tasks"] == []
                same = _call("SendMessage", {"message": _json_message("hello", "m1", contextId="trip")})
                answer = (await http.post(server.url, json=same)).json()["result"]["task"]
                assert answer["id"] != task.id
        assert tries >= 50
        sessions = {session for (_, query), session in zip(desk.seen, desk.sessions, strict=True) if query == "hello"}
        assert len(sessions) == 4
        desk.release.set()


async def test_a_key_is_needed_also_for_the_card(server: A2AServer) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for path in ("", "/", "/.well-known/agent-card.json", "/tasks", "/message:send"):
            assert (await http.get(server.url + path)).status_code == 401
            assert (await http.post(server.url + path, json={})).status_code == 401
    async with server.http() as http:
        reply = await http.get(f"{server.url}/.well-known/agent-card.json", follow_redirects=False)
        assert reply.status_code == 200
        assert reply.headers["etag"]
        assert (await http.get(server.url.replace("/a2a/", "/a2a/no-"))).status_code == 404
        assert (await http.get(f"{server.url}/a-tenant/tasks")).status_code == 404
        card = await A2ACardResolver(http, server.url).get_agent_card()
    assert (card.name, card.description, card.version) == ("Desk", "Does what you say.", "0.1.0")
    assert [skill.id for skill in card.skills] == ["chat", "sum"]
    assert card.capabilities.streaming
    assert not card.capabilities.push_notifications
    assert {each.url for each in card.supported_interfaces} == {server.url}
    assert card.security_schemes["key"].http_auth_security_scheme.scheme == "Bearer"


async def test_who_has_no_access_any_more_reads_nothing(server: A2AServer) -> None:
    async with server.client() as client, server.http() as http:
        task = await send(client, message_of("hello", "m1"))
        access = server.running.runtime.gateway.access
        access.callers = {address: account for address, account in access.callers.items() if address != CALLERS[KEY].address}
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert (await http.post(server.url, json=_call(method, {"id": task.id}))).status_code == 403
        assert (await http.post(server.url, json=_call("ListTasks", {}))).status_code == 403


async def test_a_wrong_request_is_refused_without_a_turn(server: A2AServer, desk: Desk) -> None:
    wrong: list[dict[str, Any]] = [
        {"message": _json_message("x", "i" * 300)},
        {"message": _json_message("x", "m1", contextId="c" * 300)},
        {"message": _json_message("x", "m1", parts=[{"url": "file:///etc/passwd"}])},
        {"message": _json_message("x", "m1", parts=[{}])},
        {"message": _json_message("x", "m1", parts=[])},
        {"message": _json_message("x", "m1", metadata={"skill": "none"})},
        {"message": _json_message("x", "m1", parts=[{"url": "https://example.org/a"}] * 21)},
        {"message": _json_message("x", "m1"), "configuration": {"historyLength": -1}},
        {"message": _json_message("x", "m1"), "configuration": {"taskPushNotificationConfig": {"url": "http://localhost"}}},
        {},
    ]
    async with server.http() as http:
        for params in wrong:
            reply = (await http.post(server.url, json=_call("SendMessage", params))).json()
            assert reply["error"]["code"] in (-32602, -32003), params
    assert desk.seen == []


async def test_a_request_without_a_version_is_told_which_header_to_send(url: str) -> None:
    async with serve_a2a(url, Desk()) as server, server.http(headers={"A2A-Version": ""}) as http:
        params = {"message": _json_message("hello", "m1")}
        reply = (await http.post(server.url, json=_call("SendMessage", params))).json()
        by_rpc = reply["error"]
        assert (by_rpc["code"], reply["id"]) == (-32009, 1)
        by_rest = await http.post(f"{server.url}/message:send", json=params)
        assert by_rest.status_code == 400
        for error in (by_rpc, by_rest.json()["error"]):
            assert "send the header A2A-Version: 1.0" in error["message"]
        assert (await http.get(f"{server.url}/.well-known/agent-card.json")).status_code == 200


async def test_an_error_of_json_rpc_has_the_id_that_is_known(server: A2AServer) -> None:
    bodies: list[tuple[str, object]] = [
        ('{"jsonrpc": "2.0", "id": "a", "method": "GetTask"}', "a"),
        ('{"jsonrpc": "2.0", "id": true, "method": "GetTask"}', None),
        ('{"jsonrpc": "2.0", "id": 5', None),
        ('[{"jsonrpc": "2.0", "id": 5, "method": "GetTask"}]', None),
    ]
    for headers in ({"A2A-Version": ""}, {"Content-Type": "text/plain"}, {"A2A-Version": "9"}):
        async with server.http(headers=headers) as http:
            for body, known in bodies:
                reply = (await http.post(server.url, content=body)).json()
                assert (set(reply), reply["id"]) == ({"jsonrpc", "id", "error"}, known)


def _json_message(text: str, ident: str, **fields: Any) -> dict[str, Any]:
    return {"messageId": ident, "role": "ROLE_USER", "parts": [{"text": text}], **fields}


def _call(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def test_a_client_that_is_gone_holds_no_place_among_the_requests_of_its_key(url: str) -> None:
    desk = Desk()
    async with serve_a2a(url, desk, settings=web_settings(limits={"requests_per_key": 1})) as server, server.http() as http:
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "wait"}]}
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{server.url}/message:send", json={"message": message}, timeout=0.5)
        async with asyncio.timeout(TIMEOUT_S):
            while (listed := await http.get(f"{server.url}/tasks")).status_code == 429:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
        [task] = listed.json()["tasks"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        desk.release.set()
        await eventually(lambda: desk.done == ["wait"])
