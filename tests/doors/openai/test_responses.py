"""Responses with OpenAI's own client, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import openai
import pytest

from spade_coreason.contracts import Accept, ErrorCode, Interceptor, ReceivedRequest, Refuse
from spade_coreason.testing import PlatformLimits, Policy
from tests.support.door_agents import Desk
from tests.support.doors import KEY, OTHER_KEY
from tests.support.errors import ExpectedErrors
from tests.support.openai_door import MODEL, OpenAIDoor, serve_agent
from tests.support.wait import eventually


async def respond(door: OpenAIDoor, text: Any, key: str = KEY, **options: Any) -> Any:
    return await door.client(key).responses.create(model=MODEL, input=text, **options)


async def test_a_response_goes_on_from_the_one_before(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        first = await respond(door, "hello")
        assert (first.output_text, first.status) == ("done: hello", "completed")
        assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (0, 0, 0)
        second = await respond(door, [{"role": "user", "content": "more"}], previous_response_id=first.id)
        assert (second.output_text, second.previous_response_id) == ("done: more", first.id)
        await respond(door, "third", previous_response_id=second.id)
        assert len(set(desk.sessions)) == 1
        await respond(door, "a new one")
        await respond(door, "in c", conversation="c")
        await respond(door, "in c", conversation={"id": "c"})
        await respond(door, "in c", extra_headers={"X-Conversation-Id": "c"})
        assert len(set(desk.sessions)) == 3
        for wrong in ("resp_" + uuid4().hex, "nonsense"):
            with pytest.raises(openai.BadRequestError) as refused:
                await respond(door, "more", previous_response_id=wrong)
            assert refused.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError):
            await respond(door, "more", previous_response_id=first.id, conversation="c")


async def test_a_response_is_fetched_by_its_caller_only_also_after_a_restart(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        made = await respond(door, "hello")
        assert (await door.client().responses.retrieve(made.id)).output_text == "done: hello"
    async with serve_agent(url, Desk()) as door:
        fetched = await door.client().responses.retrieve(made.id)
        assert (fetched.id, fetched.output_text, fetched.status) == (made.id, "done: hello", "completed")
        stream: Any = await door.client().responses.retrieve(made.id, stream=True)
        assert "".join([event.delta async for event in stream if event.type == "response.output_text.delta"]) == "done: hello"
        for key, response in ((OTHER_KEY, made.id), (KEY, f"resp_{uuid4().hex}"), (KEY, "x")):
            responses = door.client(key).responses
            for method in (responses.retrieve, responses.delete, responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await method(response)
            with pytest.raises(openai.BadRequestError):
                await respond(door, "more", key=key, previous_response_id=response)


async def test_a_stream_has_the_events_of_openai(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        events = [event async for event in await respond(door, "think", stream=True)]
    kinds = [event.type for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert (final.output_text, final.status) == ("done: think", "completed")
    assert final.output[0].summary[0].text == "let me see"
    assert final.id == events[0].response.id


async def test_the_stream_helper_of_the_client_reads_it(url: str) -> None:
    async with serve_agent(url, Desk()) as door, door.client().responses.stream(model=MODEL, input="stream") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (deltas, final.output_text) == (["one ", "two ", "three"], "one two three")


async def test_tokens_are_in_a_response(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        usage = (await respond(door, "tokens")).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 5, 25)


async def test_a_failed_response_stays_failed(url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("a secret of the agent")
    options: Any = {"extra_headers": {"Idempotency-Key": "k"}}
    async with serve_agent(url, Desk()) as door:
        with pytest.raises(openai.InternalServerError):
            await respond(door, "fail", **options)
        *_, last = [event async for event in await respond(door, "fail", stream=True, **options)]
        assert last.type == "response.failed"
        fetched = await door.client().responses.retrieve(last.response.id)
        assert fetched.status == "failed"
        assert fetched.error is not None
        assert "secret" not in str(fetched)


async def test_what_a_failed_response_has_is_incomplete(url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("a secret of the agent")
    async with serve_agent(url, Desk()) as door:
        events = [event async for event in await respond(door, "data think fail", stream=True)]
        done = [event.item.status for event in events if event.type == "response.output_item.done"]
        assert done == ["completed", "incomplete"]
        assert [item.status for item in events[-1].response.output] == done
        fetched = await door.client().responses.retrieve(events[-1].response.id)
        output: list[Any] = list(fetched.output)
        assert [item.status for item in output] == ["incomplete"]  # it has no thoughts


async def test_a_response_that_a_stop_interrupts_is_incomplete_and_says_how_it_is_fetched(url: str) -> None:
    desk, events = Desk(), list[Any]()
    async with serve_agent(url, desk) as door:

        async def read() -> None:
            async for event in await respond(door, "report", stream=True):
                events.append(event)
                if event.type == "response.output_text.delta":
                    await door.running.runtime.close_channels()

        with pytest.raises(openai.APIError) as interrupted:
            await read()
    [item] = [event.item for event in events if event.type == "response.output_item.done"]
    assert (item.status, item.content[0].text) == ("incomplete", "one ")
    response = events[0].response.id
    assert isinstance(interrupted.value.body, dict)
    assert interrupted.value.body["message"].endswith(f"or GET /v1/responses/{response}")
    desk.release.set()
    async with serve_agent(url, desk) as door:
        again: Any = await door.client().responses.retrieve(response, stream=True)
        fetched = [event async for event in again][-1].response
    assert (fetched.status, fetched.output[0].status, fetched.output_text) == ("completed", "completed", "one two")


async def test_a_response_in_the_background_is_asked_for_until_it_is_there(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        made = await respond(door, "wait", background=True)
        assert made.status == "in_progress"
        await eventually(lambda: len(desk.seen) == 1)
        assert (await door.client().responses.retrieve(made.id)).status == "in_progress"
        stream: Any = await door.client().responses.retrieve(made.id, stream=True)
        desk.release.set()
        *_, last = [event async for event in stream]
        assert (last.type, last.response.output_text) == ("response.completed", "done: wait")
        assert (await door.client().responses.retrieve(made.id)).output_text == "done: wait"


async def test_a_response_is_cancelled_or_deleted(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        responses = door.client().responses
        waiting = asyncio.create_task(respond(door, "wait", extra_headers={"Idempotency-Key": "k"}))
        made = await respond(door, "wait too", background=True)
        await eventually(lambda: len(desk.seen) == 2)
        assert (await responses.cancel(made.id)).status == "cancelled"
        assert (await responses.retrieve(made.id)).status == "cancelled"
        await responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(made.id)
        desk.release.set()
        done = await waiting
        with pytest.raises(openai.BadRequestError):
            await responses.cancel(done.id)


async def test_a_question_to_the_caller_is_answered_in_the_next_response(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        asked = await respond(door, "ask me")
        assert asked.output_text == "Which colour?\n\n- red\n- blue"
        assert (await door.client().responses.retrieve(asked.id)).output_text == asked.output_text
        answered = await respond(door, "blue", previous_response_id=asked.id)
        assert answered.output_text == "painted blue"
        assert answered.id != asked.id
        for response in (asked, answered):
            assert (await door.client().responses.retrieve(response.id)).output_text.endswith("painted blue")
        assert (await respond(door, "more", previous_response_id=answered.id)).output_text == "done: more"


async def test_a_repeated_request_that_is_refused_is_not_forgotten(url: str) -> None:
    desk = Desk()
    named: Any = {"X-Conversation-Id": "c"}
    picture: Any = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}, picture]}]
    repeated: Any = {"extra_headers": {**named, "Idempotency-Key": "k"}}
    async with serve_agent(url, desk, policy=Policy(limits=PlatformLimits(queue=1))) as door, door.http(None) as http:
        made = await respond(door, asked, **repeated)
        await respond(door, "wait", background=True, extra_headers=named)
        await eventually(lambda: len(desk.seen) == 2)
        await respond(door, "wait", background=True, extra_headers=named)  # in the queue, which is full now
        with pytest.raises(openai.RateLimitError):
            await respond(door, asked, **repeated)
        assert (await door.client().responses.retrieve(made.id)).output_text == "done: hello"
        [attachment] = desk.requests[0].payload["attachments"]
        assert (await http.get(attachment["url"])).status_code == 200
        desk.release.set()


async def test_a_refusal_of_an_interceptor_is_told_as_it_is(url: str) -> None:
    class NoQuestions(Interceptor):
        def receive(self, request: ReceivedRequest) -> Accept | Refuse:
            return Refuse(ErrorCode.BAD_REQUEST, "Ask something else.")

    async with serve_agent(url, Desk(), interceptors=[NoQuestions()]) as door:
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(door, "hello")
        assert "Ask something else." in refused.value.message


async def test_a_response_that_cannot_be_read_at_a_stop_is_not_shown_as_failed(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        made = await respond(door, "hello")
        await door.running.runtime.runner.drain(0)
        with pytest.raises(openai.InternalServerError) as refused:
            await door.client().responses.retrieve(made.id)
        assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "5")
        stream: Any = await door.client().responses.retrieve(made.id, stream=True)
        with pytest.raises(openai.APIError) as interrupted:
            [event async for event in stream]
        assert interrupted.value.code == "interrupted"
