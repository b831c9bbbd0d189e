"""What known providers send and refuse: reasoning that goes back, thoughts in the text, reasons of a refusal, odd ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import pytest

from spade_coreason import PeerAnswer
from spade_coreason.exceptions import PeerFailedError
from tests.llm.test_agent import run_helper_agent
from tests.support.chat_completions import (
    Answer,
    CompletionStream,
    RequestBody,
    message_contents,
    text_answer,
    tool_call_answer,
)
from tests.support.llm_agent import definition_with_output, stored_turns
from tests.support.providers import (
    assistant_messages,
    call,
    chunks,
    context_check,
    deepseek_check,
    gemini_check,
    groq_check,
    refusal,
    strict,
    whole,
)
from tests.support.wait import TIMEOUT_S, eventually

NO_FURTHER_TRY = {"tries": 1}


def look() -> str:
    """Look."""
    return "a cat"


def thoughts_of(answer: PeerAnswer) -> list[str]:
    """Return the thoughts of an answer without the lines about tools."""
    blocks = [event.data for event in answer.events if event.type == "block.thought"]
    return [block["content"] for block in blocks if block.get("title") != "step"]


def split(text: str, size: int) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


# Fields that go back


DEEPSEEK_DELTAS = (
    {"role": "assistant", "content": None, "reasoning_content": ""},
    {"content": None, "reasoning_content": "First I "},
    {"content": None, "reasoning_content": "look."},
    {"content": "Let me see.", "reasoning_content": None},
    {"tool_calls": [call()]},
)


async def test_the_reasoning_goes_back_within_the_tool_loop_and_in_no_later_turn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    empty = ({"role": "assistant", "content": None, "reasoning_content": ""}, {"tool_calls": [call(call_id="call-2")]})
    final = chunks({"reasoning_content": "A cat, so"}, {"content": "A cat."})
    answers = [
        strict(deepseek_check(), chunks(*DEEPSEEK_DELTAS, finish="tool_calls")),
        strict(deepseek_check("First I look."), chunks(*empty, finish="tool_calls")),
        strict(deepseek_check("First I look.", ""), final),
        strict(deepseek_check(), chunks({"content": "You are welcome."})),
    ]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        first, second = await t.ask("What is there?"), await t.ask("Thanks")
        turns = await stored_turns(t)
    assert first.text == "Let me see.\n\nA cat."
    assert thoughts_of(first) == ["First I look.", "A cat, so"]
    assert second.text == "You are welcome."
    assert len(server.requests) == 4
    assert "look." not in json.dumps(turns) + caplog.text
    assert "reasoning_content" not in json.dumps([turns, server.requests[3]])
    assert "carried" not in json.dumps([turns, server.requests])


async def test_the_reasoning_of_an_answer_that_comes_whole_goes_back_too() -> None:
    asked = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answers = [
        whole("tool_calls", tool_calls=[asked], reasoning_content="I look."),
        strict(deepseek_check("I look."), whole(content="A cat.")),
    ]
    async with run_helper_agent(*answers, tools=[look], endpoint={"stream": False, "tries": 1}) as (_, t):
        assert (await t.ask("What is there?")).text == "A cat."


async def test_a_turn_that_runs_again_still_has_the_reasoning_of_its_first_run() -> None:
    hangs = asyncio.Event()

    async def wait() -> str:
        """Wait without end, the first time."""
        if not hangs.is_set():
            hangs.set()
            await asyncio.Event().wait()
        return "done"

    deltas = (
        {"reasoning_content": "I wait."},
        {"tool_calls": [call("wait", extra_content={"google": {"thought_signature": "s"}})]},
    )
    answers = [chunks(*deltas, finish="tool_calls"), strict(deepseek_check("I wait."), text_answer("Done."))]
    async with run_helper_agent(*answers, tools=[wait], endpoint=NO_FURTHER_TRY) as (server, t):
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await hangs.wait()
        await t.restart(grace_s=0)
        assert (await asking).text == "Done."
        [(_, message)] = assistant_messages(server.requests[-1])
    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}


async def test_a_thought_signature_goes_back_with_its_call() -> None:
    def signed(call_id: str) -> dict[str, Any]:
        return call(call_id=call_id, extra_content={"google": {"thought_signature": f"sig {call_id}"}})

    parallel = [signed("a"), {**call(call_id="b"), "index": 1}]
    answers = [
        strict(gemini_check, chunks({"role": "assistant", "tool_calls": parallel}, finish="tool_calls")),
        strict(gemini_check, chunks({"role": "assistant", "tool_calls": [signed("c")]}, finish="stop")),
        strict(gemini_check, text_answer("Two cats.")),
        strict(gemini_check, text_answer("Yes.")),
    ]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        assert (await t.ask("What is there?")).text == "Two cats."
        assert (await t.ask("Sure?")).text == "Yes."
    calls = [one for _, message in assistant_messages(server.requests[2]) for one in message["tool_calls"]]
    assert [one.get("extra_content", {}).get("google", {}).get("thought_signature") for one in calls] == [
        "sig a",
        None,
        "sig c",
    ]


OPENROUTER_DELTAS = (
    {"role": "assistant", "content": "", "reasoning": "I ", "reasoning_details": [
        {"type": "reasoning.text", "text": "I ", "format": "anthropic-claude-v1", "index": 0}]},
    {"content": "", "reasoning": "ha", "reasoning_details": [
        {"type": "reasoning.text", "text": "ha", "format": "anthropic-claude-v1", "index": 0}]},
    {"content": "", "reasoning": "ha", "reasoning_details": [
        {"type": "reasoning.text", "text": "ha", "format": "anthropic-claude-v1", "index": 0}]},
    {"content": "", "reasoning": None, "reasoning_details": [
        {"type": "reasoning.text", "signature": "sig", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "xyz", "id": "call-1", "format": "anthropic-claude-v1", "index": 0}]},
    {"content": None, "tool_calls": [call()]},
)  # fmt: skip


async def test_details_of_reasoning_that_come_in_pieces_go_back_in_one() -> None:
    answers = [chunks(*OPENROUTER_DELTAS, finish="tool_calls"), text_answer("A cat.")]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        answer = await t.ask("What is there?")
    assert thoughts_of(answer) == ["I haha"]
    [[_, message]] = assistant_messages(server.requests[1])
    assert message["reasoning"] == "I haha"
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I haha", "format": "anthropic-claude-v1", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "id": "call-1", "format": "anthropic-claude-v1", "index": 0},
    ]


async def test_blocks_of_thoughts_without_a_number_are_joined_up_to_their_signature() -> None:
    blocks = [("Hm", None), (", well", None), ("", "s1"), ("And", None), ("", "s2")]
    deltas = [{"thinking_blocks": [{"type": "thinking", "thinking": text, "signature": sig}]} for text, sig in blocks]
    answers = [chunks(*deltas, {"tool_calls": [call()]}, finish="tool_calls"), text_answer("A cat.")]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        assert (await t.ask("What is there?")).text == "A cat."
    [[_, message]] = assistant_messages(server.requests[1])
    assert message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "Hm, well", "signature": "s1"},
        {"type": "thinking", "thinking": "And", "signature": "s2"},
    ]


async def test_a_server_that_refuses_its_own_fields_does_not_get_them_again() -> None:
    thinks = chunks({"reasoning": "I look.", "channel": "analysis"}, {"tool_calls": [call()]}, finish="tool_calls")
    answers = [strict(groq_check, answer) for answer in (thinks, thinks, thinks, thinks, text_answer("A cat."))]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        assert (await t.ask("What is there?")).text == "A cat."
    refused = [body for body in server.requests if groq_check(body) is not None]
    assert len(refused) == 1
    assert len(server.requests) == 5


async def test_a_fallback_does_not_get_the_fields_of_another_model() -> None:
    answers = [
        chunks({"reasoning_content": "I look."}, {"tool_calls": [call()]}, finish="tool_calls"),
        refusal(500, {}),
        text_answer("A cat."),
    ]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY, fallback_model="spare") as (server, t):
        assert (await t.ask("What is there?")).text == "A cat."
    assert [(body["model"], "reasoning_content" in json.dumps(body)) for body in server.requests[1:]] == [
        ("small", True),
        ("spare", False),
    ]


async def test_fields_that_a_server_adds_replace_nothing() -> None:
    asked = call(arguments="{}")
    asked["function"]["strict"] = True
    odd: dict[str, Any] = {"role": "system", "tool_call_id": None, "metadata": {}, "index": 0, "tool_calls": [asked]}
    answers = [chunks(odd, finish="tool_calls"), text_answer("A cat.")]
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY) as (server, t):
        assert (await t.ask("What is there?")).text == "A cat."
    [[_, message]] = assistant_messages(server.requests[1])
    repeated = {key: value for key, value in asked.items() if key != "index"}
    assert message == {"role": "assistant", "content": None, "index": 0, "tool_calls": [repeated]}


@pytest.mark.parametrize("value", ["[" * 40 + "1" + "]" * 40, "NaN", "-Infinity"], ids=["deep", "no number", "infinite"])
async def test_a_field_that_no_request_can_repeat_is_no_completion(value: str) -> None:
    async def odd(wire: CompletionStream) -> None:
        await wire.raw(f'data: {{"choices": [{{"index": 0, "delta": {{"odd": {value}}}, "finish_reason": null}}]}}\n\n')
        await wire.done()

    async with run_helper_agent(odd, endpoint=NO_FURTHER_TRY) as (server, t):
        with pytest.raises(PeerFailedError, match="answers with something that is no chat completion"):
            await t.ask("hi")
        server.answers[:] = [text_answer("yes")]
        assert (await t.ask("hi")).text == "yes"


async def test_endless_fields_are_cut_off_like_an_endless_text() -> None:
    async def endless(wire: CompletionStream) -> None:
        while True:
            await wire.delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "x" * 100}])

    async with run_helper_agent(endless, endpoint=NO_FURTHER_TRY, limits={"reply_characters": 2000}) as (server, t):
        with pytest.raises(PeerFailedError, match="used all its tokens before its answer"):
            await t.ask("hi")
        await eventually(lambda: server.open_count == 0)


async def test_old_reasoning_gives_way_to_the_token_limit_and_its_field_stays() -> None:
    reasoning = "thinking about it " * 400

    def thinks(number: int) -> Answer:
        deltas = ({"reasoning_content": f"{number} {reasoning}"}, {"tool_calls": [call(call_id=f"call-{number}")]})
        return chunks(*deltas, finish="tool_calls")

    answers = [*map(thinks, range(4)), text_answer("A cat.")]
    limits = {"context_tokens": 3000}
    async with run_helper_agent(*answers, tools=[look], endpoint=NO_FURTHER_TRY, limits=limits) as (server, t):
        assert (await t.ask("What is there?")).text == "A cat."
    returned = [message["reasoning_content"] for _, message in assistant_messages(server.requests[-1])]
    assert returned[0] == ""
    assert returned[-1].startswith("3 thinking")
    assert message_contents(server.requests[-1], "tool") == ["a cat"] * 4


# Thoughts in the text


THOUGHT_TEXTS = [
    ("<think>\nHm. </think>\n\nHello.", "Hm.", "Hello."),
    (" \n\n<think>Hm.</think>Hello.", "Hm.", "Hello."),
    ("<think>\n\n</think>\n\nHello.", "", "Hello."),
    ("<think></think>Hello.", "", "Hello."),
    ("Hello. <think>Hm.</think>", "", "Hello. <think>Hm.</think>"),
    ("<think>a < b </thin> c</think>Write <think>.", "a < b </thin> c", "Write <think>."),
    ("<thinking>Hm.", "", "<thinking>Hm."),
    ("<thin", "", "<thin"),
    ("a </think> b", "", "a </think> b"),
]


@pytest.mark.parametrize(("text", "thought", "shown"), THOUGHT_TEXTS)
async def test_a_leading_block_is_a_thought_wherever_the_text_is_split(text: str, thought: str, shown: str) -> None:
    async with run_helper_agent() as (server, t):
        for size in (1, 2, 3, 5, 100):
            server.answers[:] = [text_answer(*split(text, size)), text_answer("Yes.")]
            user = f"person{size}@localhost"
            answer = await t.ask("hi", user=user)
            await t.ask("again", user=user)
            assert answer.text == shown, size
            assert " ".join(thoughts_of(answer)) == thought, size
            assert message_contents(server.requests[-1], "assistant") == [shown], size
            if thought:
                assert thought not in json.dumps([await stored_turns(t, user), server.requests]), size


async def test_a_block_that_is_not_closed_is_a_thought_and_no_answer() -> None:
    async with run_helper_agent(text_answer("<think>Hm, ", "so <b", finish="length")) as (_, t):
        with pytest.raises(PeerFailedError, match="used all its tokens before its answer"):
            await t.ask("hi")
    async with run_helper_agent(text_answer("<think>Hm"), text_answer("Yes.")) as (server, t):
        with pytest.raises(PeerFailedError, match="gave no answer"):
            await t.ask("hi")
        assert (await t.ask("again")).text == "Yes."
    assert "Hm" not in json.dumps(server.requests)


async def test_a_thought_in_the_text_is_in_no_request_of_the_tool_loop() -> None:
    answers = [tool_call_answer(("look", {}), text="<think>I look.</think>\n\n"), text_answer("<think>So.</think>A cat.")]
    async with run_helper_agent(*answers, tools=[look]) as (server, t):
        answer = await t.ask("What is there?")
    assert answer.text == "A cat."
    assert thoughts_of(answer) == ["I look.", "So."]
    assert "think>" not in json.dumps(server.requests)


UNOPENED_TEXTS = [
    ("Hm, well.\n</think>\n\nHello.", "Hm, well.", "Hello."),
    ("<think>Hm.</think>Hello </think>.", "Hm.", "Hello </think>."),
    ("</think>Hello.", "", "Hello."),
    ("Hello.", "", "Hello."),
    ("a </thin", "", "a </thin"),
]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(("text", "thought", "shown"), UNOPENED_TEXTS)
async def test_a_block_without_its_beginning_is_a_thought_if_the_endpoint_says_so(
    text: str, thought: str, shown: str, size: int
) -> None:
    async with run_helper_agent(text_answer(*split(text, size)), endpoint={"unopened_thinking": True}) as (_, t):
        answer = await t.ask("hi")
    assert (answer.text, " ".join(thoughts_of(answer))) == (shown, thought)


async def test_a_text_that_may_be_a_thought_is_not_shown_if_it_is_cut_off() -> None:
    endpoint = {"unopened_thinking": True}
    async with run_helper_agent(text_answer("Hm, well", finish="length"), endpoint=endpoint) as (_, t):
        with pytest.raises(PeerFailedError, match="used all its tokens before its answer"):
            await t.ask("hi")


@pytest.mark.parametrize("stream", [True, False])
async def test_data_and_judges_are_read_without_thoughts(stream: bool) -> None:
    def says(text: str) -> Answer:
        return text_answer(*split(text, 4)) if stream else whole(content=text)

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = [says('<think>{"n": 1}?</think>{"n": 2}'), says('<think>Fine.</think>{"allowed": true}')]
    async with run_helper_agent(
        *answers,
        definition=definition_with_output(schema),
        endpoint={"stream": stream, "tries": 1},
        output_guardrails=[{"name": "polite", "judge": "It is polite."}],
    ) as (server, t):
        answer = await t.ask("n?")
    assert [event.data["data"] for event in answer.events if event.type == "block.data"] == [{"n": 2}]
    assert len(server.requests) == 2


async def test_parts_of_a_text_are_read_and_thinking_parts_are_thoughts() -> None:
    parts: list[dict[str, Any]] = [
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, "}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "well."}], "closed": True}]},
        {"content": [{"type": "text", "text": "Hel"}, {"type": "reference", "reference_ids": [1]}]},
        {"content": "lo."},
    ]
    async with run_helper_agent(chunks(*parts)) as (_, t):
        answer = await t.ask("hi")
    assert (answer.text, thoughts_of(answer)) == ("Hello.", ["Hm, well."])
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello."}]
    async with run_helper_agent(whole(content=content), endpoint={"stream": False}) as (_, t):
        answer = await t.ask("hi")
    assert (answer.text, thoughts_of(answer)) == ("Hello.", ["Hm."])


# Refusals


def openai_error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}}


REFUSALS = [
    # Ollama, OpenRouter, vLLM, llama.cpp, Groq, and OpenAI
    (400, openai_error("registry.ollama.ai/library/gemma3:4b does not support tools", type="api_error"), "cannot call tools"),
    (404, {"error": {"message": "No endpoints found that support tool use.", "code": 404}}, "cannot call tools"),
    (
        400,
        {
            "object": "error",
            "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        },
        "cannot call tools",
    ),
    (
        500,
        {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}},
        "cannot call tools",
    ),
    (400, openai_error("`tool calling` is not supported with this model"), "cannot call tools"),
    (400, openai_error("Unsupported parameter: 'tools' is not supported with this model.", param="tools"), "cannot call tools"),
    (400, {"error": "gemma3:4b does not support tools"}, "cannot call tools"),
    (402, openai_error("Insufficient Balance"), "has no credit left"),
    (
        400,
        openai_error("Unsupported value: 'temperature' does not support 0.2", param="temperature"),
        "remove it from the manifest",
    ),
    (400, openai_error("Conversation roles must alternate user/assistant/user/…"), "set endpoint.merge_messages to true"),
    (400, openai_error("Unrecognized request argument: stream_options"), "set endpoint.usage to false"),
    (422, {"detail": [{"loc": ["body"], "msg": "stream_options: extra fields not permitted"}]}, "set endpoint.usage to false"),
    (400, openai_error("Invalid schema for function 'x': …", param="tools[0].function.parameters"), "the schema of a tool"),
    (404, openai_error("The model `small` does not exist", code="model_not_found"), "correct the name of the model"),
    (400, openai_error("Something about Ada", code="odd_thing"), r"it names odd_thing, invalid_request_error; .* \(-vv\)"),
    (400, openai_error("Something about Ada", code="Ada is ill"), r"it names invalid_request_error; .* \(-vv\)"),
    (400, {}, r"the log has its words at the level debug \(-vv\)"),
    (400, [], r"the log has its words at the level debug \(-vv\)"),
]


@pytest.mark.parametrize(("status", "body", "line"), REFUSALS)
async def test_a_refusal_is_one_line_of_the_log_with_its_cause_and_no_word_of_the_conversation(
    status: int, body: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with run_helper_agent(refusal(status, body), endpoint=NO_FURTHER_TRY) as (server, t):
        with pytest.raises(PeerFailedError):
            await t.ask("Is Ada ill?")
    [record] = [one for one in caplog.records if one.name.startswith("spade_coreason.llm")]
    assert record.levelno == logging.WARNING
    assert "Ada" not in record.getMessage()
    assert len(server.requests) == 1
    assert re.search(line, record.getMessage())


TOO_LONG = {
    "OpenAI": (400, openai_error("This model's maximum context length is 8192 tokens.", code="context_length_exceeded")),
    "vLLM": (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 10000 tokens. However, you requested 10515 tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 14429,
                "n_ctx": 8192,
            }
        },
    ),
    "Ollama": (400, openai_error("prompt too long; exceeded max context length by 20 tokens", type="api_error")),
    "OpenRouter": (
        400,
        {"error": {"message": "This endpoint's maximum context length is 131072 tokens. You requested 150000", "code": 400}},
    ),
    "OpenRouter, the provider's": (
        400,
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "prompt is too long: 9 tokens > 8"}}},
    ),
    "Mistral": (
        400,
        {"object": "error", "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"},
    ),
    "Gemini": (
        400,
        [{"error": {"code": 400, "message": "The input token count (12) exceeds the maximum number of tokens allowed (9)."}}],
    ),
    "LM Studio": (400, {"error": "The number of tokens to keep from the initial prompt is greater than the context length."}),
    "a proxy": (413, {}),
}  # fmt: skip


@pytest.mark.parametrize("provider", TOO_LONG)
async def test_a_context_that_is_too_long_is_shortened_and_asked_with_again(
    provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, error = TOO_LONG[provider]
    async with run_helper_agent(text_answer("Noted."), endpoint=NO_FURTHER_TRY) as (server, t):
        for number in range(6):
            await t.ask(f"{number} {'word ' * 200}")
        server.requests.clear()
        server.answers[:] = [strict(context_check(4000, status, error), text_answer("Yes."))]
        caplog.clear()
        assert (await t.ask("Is it so?")).text == "Yes."
    lengths = [len(message_contents(body, "user")) for body in server.requests]
    assert lengths == sorted(set(lengths), reverse=True)
    assert 2 <= len(lengths) <= 4
    for body in server.requests:
        assert message_contents(body, "user")[-1] == "Is it so?"
        assert message_contents(body, "system") == message_contents(server.requests[0], "system")
    assert message_contents(server.requests[-1], "user")[-2].startswith("5 word")  # the newest turns stay
    [record] = [one for one in caplog.records if one.name.startswith("spade_coreason.llm")]
    assert record.getMessage().startswith("helper: small: ")
    assert "lower limits.context_tokens; its context was shortened" in record.getMessage()


async def test_a_context_is_shortened_a_few_times_at_most(caplog: pytest.LogCaptureFixture) -> None:
    status, error = TOO_LONG["OpenAI"]
    async with run_helper_agent(text_answer("Noted."), endpoint=NO_FURTHER_TRY) as (server, t):
        for number in range(20):
            await t.ask(f"{number} {'word ' * 100}")
        server.requests.clear()
        server.answers[:] = [refusal(status, error)]
        caplog.clear()
        with pytest.raises(PeerFailedError, match="is shown more than it takes"):
            await t.ask("Is it so?")
    assert len(server.requests) == 4
    assert all(message_contents(body, "user")[-1] == "Is it so?" for body in server.requests)
    [record] = [one for one in caplog.records if one.name.startswith("spade_coreason.llm")]
    assert "is shown more than it takes" in record.getMessage()
    assert "lower limits.context_tokens" in record.getMessage()


async def test_nothing_is_asked_again_if_only_the_question_is_left() -> None:
    status, error = TOO_LONG["OpenAI"]
    async with run_helper_agent(refusal(status, error), endpoint=NO_FURTHER_TRY) as (server, t):
        with pytest.raises(PeerFailedError, match="is shown more than it takes"):
            await t.ask("word " * 500)
    assert len(server.requests) == 1


async def test_in_a_tool_loop_results_are_shortened_and_each_call_keeps_its_own() -> None:
    def read() -> str:
        """Read."""
        return "result " * 1000

    status, error = TOO_LONG["vLLM"]
    thinks = chunks(
        {"reasoning_content": "I read."},
        {"tool_calls": [call("read"), {**call("read", call_id="b"), "index": 1}]},
        finish="tool_calls",
    )
    answers = [thinks, strict(context_check(8000, status, error), text_answer("Read."))]
    async with run_helper_agent(*answers, tools=[read], endpoint=NO_FURTHER_TRY) as (server, t):
        assert (await t.ask("Read both")).text == "Read."
    last = server.requests[-1]["messages"]
    assert [message["role"] for message in last][-4:] == ["user", "assistant", "tool", "tool"]
    assert [message["tool_call_id"] for message in last[-2:]] == [one["id"] for one in last[-3]["tool_calls"]]
    assert last[-4]["content"] == "Read both"
    assert last[-3]["reasoning_content"] == "I read."


async def test_the_context_is_shortened_if_no_fallback_takes_it_either() -> None:
    status, error = TOO_LONG["OpenAI"]

    def by_model(body: RequestBody) -> tuple[int, Any] | None:
        return (503, {}) if body["model"] == "spare" else context_check(1000, status, error)(body)

    answer = strict(by_model, text_answer("Yes."))
    async with run_helper_agent(text_answer("Noted."), endpoint=NO_FURTHER_TRY, fallback_model="spare") as (server, t):
        await t.ask("word " * 200)
        server.answers[:] = [answer]
        assert (await t.ask("Is it so?")).text == "Yes."
    assert [body["model"] for body in server.requests] == ["small", "small", "spare", "small"]


async def test_a_length_that_a_stream_reports_shortens_the_context_too() -> None:
    _, error = TOO_LONG["llama.cpp"]

    async def streams(wire: CompletionStream) -> None:
        await (wire.event(error) if len(message_contents(wire.body, "user")) > 1 else text_answer("Yes.")(wire))

    async with run_helper_agent(text_answer("Noted."), endpoint=NO_FURTHER_TRY) as (server, t):
        await t.ask("word " * 200)
        server.answers[:] = [streams]
        assert (await t.ask("Is it so?")).text == "Yes."
    assert len(server.requests) == 3


# Ends


async def test_a_text_that_ends_with_done_alone_is_an_answer() -> None:
    async def never_closes(wire: CompletionStream) -> None:
        await wire.delta(content="Hel")
        await wire.delta(content="lo.")
        await wire.raw("data: [DO")
        await wire.raw("NE]\n\n")
        await asyncio.Event().wait()

    for answer in (chunks({"content": "Hel"}, {"content": "lo."}, finish=None), never_closes):
        async with run_helper_agent(answer, endpoint=NO_FURTHER_TRY) as (server, t):
            assert (await t.ask("hi")).text == "Hello."
            await eventually(lambda: server.open_count == 0)
    async with run_helper_agent(whole(None, content="Hello."), endpoint={"stream": False, "tries": 1}) as (_, t):
        assert (await t.ask("hi")).text == "Hello."
    calls = chunks({"tool_calls": [call()]}, finish=None)
    async with run_helper_agent(calls, text_answer("A cat."), tools=[look], endpoint=NO_FURTHER_TRY) as (_, t):
        assert (await t.ask("What is there?")).text == "A cat."


async def test_a_text_that_speaks_of_done_does_not_end_there() -> None:
    async def speaks(wire: CompletionStream) -> None:
        for piece in ("It ends with\ndata: [DONE]", "\n\ndata: [DONE]\n\n", "data: [DONE]"):
            await wire.raw(
                f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': piece}}]}, separators=(',', ':'))}\n\n"
            )

    async with run_helper_agent(speaks, endpoint=NO_FURTHER_TRY) as (_, t):
        with pytest.raises(PeerFailedError, match="broke off in the middle of its answer"):
            await t.ask("How does a stream end?")


OPENROUTER_ERROR = {"code": 502, "message": "Provider disconnected unexpectedly: Ada"}


@pytest.mark.parametrize(
    ("answer", "endpoint", "problem"),
    [
        (chunks({"content": ""}, finish="error", error=OPENROUTER_ERROR), {}, r"fails \(502\)"),
        (chunks({"content": ""}, finish="error"), {}, "reports an error in the middle of its answer"),
        (chunks({"content": ""}, finish="insufficient_system_resource"), {}, "reports an error in the middle of its answer"),
        (whole("error", content="", error=OPENROUTER_ERROR), {"stream": False}, "reports an error in the middle of its answer"),
        (refusal(200, {"error": OPENROUTER_ERROR}), {"stream": False}, r"fails \(502\)"),
    ],
    ids=["with its reason", "without", "DeepSeek", "whole", "status 200"],
)
async def test_an_answer_that_ends_with_an_error_is_asked_for_again_or_is_that_error(
    answer: Answer, endpoint: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = text_answer("Yes.") if endpoint.get("stream", True) else whole(content="Yes.")
    async with run_helper_agent(answer, good, endpoint=endpoint) as (server, t):
        assert (await t.ask("hi")).text == "Yes."
        server.answers[:] = [answer]
        with pytest.raises(PeerFailedError, match=problem):
            await t.ask("hi")
    assert len(server.requests) == 5
    assert "Ada" not in caplog.text


async def test_an_error_after_a_text_ends_the_stream_with_its_reason() -> None:
    async def fails(wire: CompletionStream) -> None:
        await wire.delta(content="Once upon")
        choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
        await wire.event({"id": "c1", "error": {"code": 429, "message": "Rate limited"}, "choices": [choice]})

    async with run_helper_agent(fails) as (server, t):
        with pytest.raises(PeerFailedError, match=r"is busy \(429\)"):
            await t.ask("hi")
    assert len(server.requests) == 1


@pytest.mark.parametrize("finish", ["content_filter", "content_filter: RECITATION", "SAFETY", "sensitive"])
async def test_a_content_filter_is_known_by_its_names(finish: str) -> None:
    async with run_helper_agent(chunks({"content": "x"}, finish=finish)) as (_, t):
        with pytest.raises(PeerFailedError, match="was kept from answering by its provider's content filter"):
            await t.ask("hi")


@pytest.mark.parametrize("finish", ["length", "model_length", "MAX_TOKENS"])
async def test_an_answer_that_is_cut_off_says_so_whatever_the_server_calls_it(finish: str) -> None:
    async with run_helper_agent(chunks({"content": "Once"}, finish=finish)) as (_, t):
        assert (await t.ask("hi")).text.startswith("Once\n\n(My answer is cut off")


@pytest.mark.parametrize("finish", ["stop", "eos", "end_turn", "COMPLETE"])
async def test_any_other_finish_reason_ends_an_answer(finish: str) -> None:
    async with run_helper_agent(chunks({"content": "Hello."}, finish=finish)) as (_, t):
        assert (await t.ask("hi")).text == "Hello."
