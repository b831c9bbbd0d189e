"""Chat completions with OpenAI's own client, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import openai
import pytest

from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.initiative.questions import OwnAnswer, answer_question
from spade_coreason.testing import Policy
from tests.support.door_agents import Desk
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY
from tests.support.errors import ExpectedErrors
from tests.support.openai_door import MODEL, OpenAIDoor, serve_agent
from tests.support.records import AGENT, ALICE
from tests.support.wait import eventually


def said(*texts: str) -> Any:
    """Return messages: of the user, of the agent, and so on."""
    return [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)]


async def ask(door: OpenAIDoor, *texts: str, key: str = KEY, **options: Any) -> str:
    completion = await door.client(key).chat.completions.create(model=MODEL, messages=said(*texts), **options)
    return str(completion.choices[0].message.content)


async def stream_of(door: OpenAIDoor, text: str, **options: Any) -> Any:
    create: Any = door.client().chat.completions.create
    return await create(model=MODEL, messages=said(text), stream=True, **options)


async def test_the_models_are_the_agents_that_the_key_opens(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        models = [model async for model in door.client().models.list()]
        assert [model.id for model in models] == [MODEL]
        assert (await door.client().models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError) as refused:
            await door.client().models.retrieve("other")
        assert refused.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await door.client("sc_" + "x" * 43).models.retrieve(MODEL)


async def test_a_chat_is_answered(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        completion = await door.client().chat.completions.create(model=MODEL, messages=said("hello"))
    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("done: hello", "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (0, 0, 0)
    assert completion.id.startswith("chatcmpl-")
    assert desk.seen == [("website@callers.invalid", "hello")]


async def test_the_last_chunk_has_zeros_if_the_agent_reports_no_tokens(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        stream = await stream_of(door, "hello", stream_options={"include_usage": True})
        *_, last = [chunk async for chunk in stream]
    assert (last.choices, last.usage.prompt_tokens, last.usage.total_tokens) == ([], 0, 0)


async def test_the_client_without_await_works_too(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        create: Any = door.blocking_client().chat.completions.create
        completion = await asyncio.to_thread(lambda: create(model=MODEL, messages=said("hello")))
        assert completion.choices[0].message.content == "done: hello"


async def test_a_stream_has_the_pieces_thoughts_and_tokens(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        create: Any = door.client().chat.completions.create
        chunks = [chunk async for chunk in await create(model=MODEL, messages=said("stream"), stream=True)]
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert pieces == ["one ", "two ", "three"]
        assert chunks[-1].choices[0].finish_reason == "stop"

        stream = await create(model=MODEL, messages=said("think"), stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert [text for delta in deltas if (text := getattr(delta, "reasoning_content", None))] == ["let me see"]
        assert "".join(delta.content or "" for delta in deltas) == "done: think"

        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = [chunk async for chunk in await create(model=MODEL, messages=said("tokens"), **options)]
        assert (last.choices, last.usage.total_tokens) == ([], 25)


async def test_thoughts_data_and_tokens_are_in_a_whole_answer(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        create: Any = door.client().chat.completions.create
        thought = await create(model=MODEL, messages=said("think"))
        assert thought.choices[0].message.reasoning_content == "let me see"
        answer = await ask(door, "data")
        assert answer == '**Today**\n\n```json\n{\n  "celsius": 12\n}\n```\n\ndone: data'
        tokens = await create(model=MODEL, messages=said("tokens"))
        assert tokens.usage is not None
        assert (tokens.usage.prompt_tokens, tokens.usage.completion_tokens, tokens.usage.total_tokens) == (20, 5, 25)


async def test_failures_have_the_incident_and_not_the_reason(url: str, expected_errors: ExpectedErrors) -> None:
    expected_errors("a secret of the agent")
    async with serve_agent(url, Desk()) as door:
        with pytest.raises(openai.InternalServerError) as failed:
            await ask(door, "fail")
        body = failed.value.body
        assert isinstance(body, dict)
        assert body["incident"] in body["message"]
        assert "secret" not in str(body)
        assert failed.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.InternalServerError) as closed:
            await ask(door, "refuse")
        assert (closed.value.status_code, "The station is closed." in str(closed.value)) == (500, True)
        with pytest.raises(openai.APIError) as in_stream:
            async for _ in await stream_of(door, "fail"):
                pass
        assert isinstance(in_stream.value.body, dict)
        assert in_stream.value.body["incident"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b"[]", 400),
        (b'{"model": "agent"}', 400),
        (b'{"model": "agent", "messages": []}', 400),
        (b'{"model": "agent", "messages": [{"role": "assistant", "content": "hi"}]}', 400),
        (b'{"model": "agent", "messages": [{"role": "user", "content": ""}]}', 400),
        (b'{"model": "agent", "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}', 400),
        (b'{"model": "agent", "messages": ["hi"]}', 400),
        (b'{"model": "agent", "n": 2, "messages": [{"role": "user", "content": "hi"}]}', 400),
        (b'{"model": 7, "messages": [{"role": "user", "content": "hi"}]}', 404),
        (b"[" * 25_000, 400),
        (b"[" * 100_000, 413),
        (json.dumps({"model": "agent", "messages": [{"role": "user", "content": "x" * 262_145}]}).encode(), 413),
        (json.dumps({"model": "agent", "messages": [{"role": "user", "content": "x"}] * 2001}).encode(), 413),
    ],
)
async def test_a_body_that_is_wrong_is_refused(url: str, body: bytes, status: int) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door, door.http() as http:
        reply = await http.post("/v1/chat/completions", content=body.replace(b'"agent"', f'"{MODEL}"'.encode()))
        assert reply.status_code == status
        assert reply.json()["error"]["message"]
    assert desk.seen == []


async def test_a_system_prompt_is_ignored_or_refused(url: str) -> None:
    desk = Desk()
    messages = [{"role": "system", "content": "You are a pirate."}, *said("hello")]
    async with serve_agent(url, desk) as door:
        completion = await door.client().chat.completions.create(model=MODEL, messages=messages)
        assert completion.choices[0].message.content == "done: hello"
    async with serve_agent(url, desk, system_prompt="refuse") as door:
        with pytest.raises(openai.BadRequestError):
            await door.client().chat.completions.create(model=MODEL, messages=messages)
        assert await ask(door, "hello") == "done: hello"
    assert [query for _, query in desk.seen] == ["hello", "hello"]


async def test_a_stream_that_is_silent_has_comments_and_its_request_goes_on_without_its_client(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk, keep_alive_s=0.01) as door:
        async with door.http() as http:
            body = {"model": MODEL, "messages": said("wait"), "stream": True}
            async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith(":"):
                        break
        await eventually(lambda: door.running.doors.open_count == 0)
        desk.release.set()
        await eventually(lambda: desk.done == ["wait"])


async def test_a_client_that_is_gone_closes_the_reply_and_gets_the_answer_by_its_key(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        options: Any = {"extra_headers": {"Idempotency-Key": "k-1"}}
        with pytest.raises(openai.APITimeoutError):
            await door.client(timeout=0.5).chat.completions.create(model=MODEL, messages=said("wait"), **options)
        await eventually(lambda: door.running.doors.open_count == 0)
        desk.release.set()
        assert await ask(door, "wait", **options) == "done: wait"
    assert len(desk.seen) == 1


async def test_an_idempotency_key_is_one_request(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        options: Any = {"extra_headers": {"Idempotency-Key": "order 7"}}
        create: Any = door.client().chat.completions.create
        first = await create(model=MODEL, messages=said("hello"), **options)
        again = await create(model=MODEL, messages=said("hello"), **options)
        assert (again.id, again.choices[0].message.content) == (first.id, "done: hello")
        stream = await create(model=MODEL, messages=said("hello"), stream=True, **options)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "done: hello"
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await create(model=MODEL, messages=said("another"), **options)
        assert refused.value.code == "idempotency_key_reused"
        assert len(desk.seen) == 1
        assert await ask(door, "hello", key=OTHER_KEY, **options) == "done: hello"
        assert await ask(door, "hello") == "done: hello"
    assert [owner for owner, _ in desk.seen] == ["website@callers.invalid", "shop@callers.invalid", "website@callers.invalid"]


async def test_a_conversation_goes_on_by_the_messages_that_a_client_sends_again(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        assert await ask(door, "hi") == "done: hi"
        assert await ask(door, "hi", " done:  hi ", "more") == "done: more"
        assert await ask(door, "hi", "done: hi", "more", "done: more", "again") == "done: again"
        assert len(set(desk.sessions)) == 1
        await ask(door, "hi", "done: hi", "more", key=OTHER_KEY)
        await ask(door, "hi", "something else", "more")
        assert len(set(desk.sessions)) == 3


async def test_two_conversations_that_begin_alike_are_never_mixed(url: str) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        await ask(door, "hi")
        await ask(door, "hi")
        await ask(door, "hi", "done: hi", "mine")
        await ask(door, "hi", "done: hi", "yours")
        assert len(set(desk.sessions)) == 4
        await ask(door, "hi", "done: hi", "mine", "done: mine", "more")
        await ask(door, "hi", "done: hi", "yours", "done: yours", "more")
        assert desk.sessions[4:] == desk.sessions[2:4]


@pytest.mark.parametrize("header", ["X-Conversation-Id", "X-OpenWebUI-Chat-Id"])
async def test_a_header_names_the_conversation_of_its_caller_only(url: str, header: str) -> None:
    desk = Desk()
    named: Any = {"extra_headers": {header: "chat-1"}}
    async with serve_agent(url, desk) as door:
        await ask(door, "hi", **named)
        await ask(door, "more", **named)
        assert len(set(desk.sessions)) == 1
        await ask(door, "more", **named, key=OTHER_KEY)
        for user in ("ada", "ben", "ada"):
            headers = {header: "chat-1", "X-OpenWebUI-User-Id": user}
            await ask(door, "mine", key=FRONT_END_KEY, extra_headers=headers)
        assert len(set(desk.sessions)) == 4
        assert desk.sessions[-1] == desk.sessions[-3]
        for name in ("", "{{LIBRECHAT_BODY_CONVERSATIONID}}", "new"):
            await ask(door, "hi", extra_headers={header: name})
        assert len(set(desk.sessions)) == 7
        with pytest.raises(openai.BadRequestError):
            await ask(door, "hi", extra_headers={header: "a b"})


async def test_a_front_end_must_name_the_user(url: str) -> None:
    async with serve_agent(url, Desk()) as door:
        with pytest.raises(openai.BadRequestError):
            await ask(door, "hi", key=FRONT_END_KEY)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_question_to_the_caller_is_the_answer_and_the_next_message_answers_it(url: str, is_stream: bool) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        named: Any = {"extra_headers": {"X-Conversation-Id": "c"}}

        async def say(text: str, **options: Any) -> str:
            options = {**named, **options}
            if not is_stream:
                return await ask(door, text, **options)
            stream = await stream_of(door, text, **options)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await say("ask me") == "Which colour?\n\n- red\n- blue"
        assert "does not fit" in await say("green")
        key: Any = {"extra_headers": {"X-Conversation-Id": "c", "Idempotency-Key": "answer"}}
        assert await say("red", **key) == "painted red"
        assert await say("red", **key) == "painted red"
        assert await say("blue") == "done: blue"
        assert await say("ask again") == "Which colour?\n\n- red\n- blue"
        elsewhere: Any = {"extra_headers": {"X-Conversation-Id": "d"}}
        assert await say("red", **elsewhere) == "done: red"
        assert await ask(door, "red", key=OTHER_KEY, **named) == "done: red"
        assert await say("blue") == "painted blue"


async def test_a_request_that_runs_at_a_stop_names_itself_and_is_answered_later(url: str) -> None:
    desk = Desk()
    options: Any = {"extra_headers": {"Idempotency-Key": "k"}}
    async with serve_agent(url, desk) as door:
        plain = asyncio.create_task(ask(door, "wait", **options))
        create: Any = door.client().chat.completions.create
        stream = await create(model=MODEL, messages=said("wait"), stream=True, **options)
        await eventually(lambda: len(desk.seen) == 1 and door.running.doors.open_count == 2)
        await door.running.runtime.close_channels()
        with pytest.raises(openai.InternalServerError) as stopped:
            await plain
        with pytest.raises(openai.APIError) as in_stream:
            async for _ in stream:
                pass
    for error in (stopped.value, in_stream.value):
        assert isinstance(error.body, dict)
        assert error.code == "interrupted"
        response = f"resp_{UUID(error.body['request_id']).hex}"
        assert error.body["message"] == (
            "the platform stops, and goes on after its next start; "
            f"send it again with its Idempotency-Key, or GET /v1/responses/{response}"
        )
    desk.release.set()
    async with serve_agent(url, desk) as door:
        assert await ask(door, "wait", **options) == "done: wait"
        assert (await door.client().responses.retrieve(response)).output_text == "done: wait"


async def test_a_request_that_waits_for_somebody_else_says_so_and_is_answered_later(url: str) -> None:
    desk = Desk()
    options: Any = {"extra_headers": {"Idempotency-Key": "k", "X-Conversation-Id": "c"}}
    async with serve_agent(url, desk, policy=Policy(operators=frozenset({ALICE}))) as door:
        first = await ask(door, "delegate", **options)
        assert "waits for the answer of another person" in first
        assert await ask(door, "hello", extra_headers={"X-Conversation-Id": "c"}) == "done: hello"
        host = door.running.doors.host
        assert host is not None
        [question] = await host.repository(AGENT).questions.load_asked(ALICE)
        call = Call(host, Actor(CallerKind.PERSON, ALICE, AGENT))
        await answer_question(call, OwnAnswer(agent=AGENT, person=ALICE, code=question.code, text="yes"))
        assert (await ask(door, "delegate", **options)).endswith("allowed: yes")
