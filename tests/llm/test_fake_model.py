"""FakeModel: the replies, errors and requests of a model that a test plays, under the real loop of an agent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ConfigError, Peers, Response, Session, agent
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm import LLMAgent
from spade_coreason.testing import FakeModel, ModelRequest, Reply, error, stream, tool_call
from tests.support.llm_agent import EndlessTool, stored_turns
from tests.support.wait import TIMEOUT_S, eventually

ROOT = Path(__file__).parents[2]
PRICES = {"rye": "3 €", "oat": "4 €"}


def price(item: str) -> str:
    """The price of a loaf of bread."""
    return PRICES[item]


class Shop(LLMAgent):
    """Sells bread. Its constructor passes nothing on."""

    default_prompt = "You sell bread."

    def __init__(self, manifest: AgentDefinition) -> None:
        super().__init__(manifest, tools=[price], show_tools=False)


class Desk(LLMAgent):
    """Has tools that learn who asks: a method, a function, and one whose parameter only has the name of one of these."""

    default_prompt = "You book rooms."

    async def book(self, room: str, session: Session, request: AgentRequest) -> str:
        """Book a room."""
        await session.store("room", room)
        return f"{room} for {session.identity.id} by {self.manifest.metadata.name}: {request.payload['query']}"

    default_tools = (book,)


def find_by(request: str) -> str:
    """Find something."""
    return f"found {request}"


def whose(session: Session) -> str:
    """Say who asks."""
    return session.identity.id


@pytest.fixture(autouse=True)
def no_model_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


# Replies


async def test_a_text_a_tool_call_and_what_the_model_was_asked() -> None:
    model = FakeModel(["Hello!", tool_call("price", item="rye"), "Rye is 3 €."])
    async with AgentTester(Shop, model=model) as t:
        assert await t.say("Hi") == ["Hello!"]
        assert await t.say("What is rye?") == ["Rye is 3 €."]
        assert model.replies_left == 0
    first, second, third = model.requests
    assert (first.agent, first.model, first.question) == ("agent@localhost", "fake-model", "Hi")
    assert first.prompt.startswith("You sell bread.")
    assert first.messages[-1] == {"role": "user", "content": "Hi"}
    assert first.tools["price"]["description"] == "The price of a loaf of bread."
    assert first.tools["price"]["parameters"]["required"] == ["item"]
    assert first.options["stream"] is True
    assert (second.question, second.tool_results) == ("What is rye?", [])
    assert [message["content"] for message in second.messages[-3:]] == ["Hi", "Hello!", "What is rye?"]
    assert (third.question, third.tool_results) == ("What is rye?", ["3 €"])


async def test_several_tools_are_called_at_once_also_after_a_text() -> None:
    both: list[Any] = ["Let me look.", tool_call("price", item="rye"), tool_call("price", item="oat")]
    model = FakeModel([both, stream("And ", calls=[tool_call("price", item="oat")]), "Done."])
    async with AgentTester(Shop, model=model) as t:
        assert (await t.ask("Rye or oat?")).text == "Let me look.\n\nAnd\n\nDone."
    assert [request.tool_results for request in model.requests] == [[], ["3 €", "4 €"], ["3 €", "4 €", "4 €"]]


async def test_the_pieces_of_a_stream_arrive_as_pieces_and_reasoning_as_thoughts() -> None:
    model = FakeModel([stream("Rye ", "is ", "3 €.", reasoning=["Rye? ", "Easy."]), "again"])
    async with AgentTester(Shop, model=model) as t:
        answer = await t.ask("What is rye?")
        assert answer.text == "Rye is 3 €."
        assert [event.type for event in answer.events].count("stream.chunk") == 3
        assert [event.data["content"] for event in answer.events if event.type == "block.thought"] == ["Rye? Easy."]
        assert await t.say("And?") == ["again"]


async def test_an_endpoint_without_streams_gets_whole_answers() -> None:
    model = FakeModel(
        [stream("a", "b", calls=[tool_call("price", item="rye")]), error("broken"), "3 €", *[error("broken")] * 2]
    )
    async with AgentTester(LLMAgent, model=model, options={"tools": [price], "endpoint": {"stream": False, "tries": 2}}) as t:
        assert (await t.ask("What is rye?")).text.endswith("3 €")
        with pytest.raises(PeerFailedError, match="cannot be reached"):
            await t.ask("Again?")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (tool_call("price", '{"item": '), "error: the arguments are no JSON object"),
        (tool_call("price", item=3), "error: item: must be a text; quote it"),
        (tool_call("price"), "error: item: is missing"),
        (tool_call("price", item="cake"), "error: KeyError: 'cake'"),
        (tool_call("weather", city="Rome"), "error: there is no tool 'weather'"),
    ],
    ids=str,
)
async def test_the_agent_tells_the_model_what_is_wrong_with_a_call(call: Any, told: str) -> None:
    model = FakeModel([call, "I do not know."])
    async with AgentTester(Shop, model=model) as t:
        assert await t.say("What is it?") == ["I do not know."]
    [result] = model.requests[1].tool_results
    assert result.startswith(told)


async def test_a_function_replies_to_one_request_or_to_each() -> None:
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return f"You said {request.question}"

    async with AgentTester(Shop, model=FakeModel([answer, "Bye"])) as t:
        assert await t.say("Hi") == ["You said Hi"]
        assert await t.say("Hi") == ["Bye"]
    async with AgentTester(Shop, model=FakeModel(answer)) as t:
        for text in ("a", "b", "c"):
            assert await t.say(text) == [f"You said {text}"]


# Errors


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (error(429, retry_after_s=90), "My language model is busy (429). Ask again in 90 s."),
        (error(401), "My language model refuses the key (401)."),
        (error(429, code="insufficient_quota"), "My language model has no credit left (429)."),
        (error(400, code="context_length_exceeded"), "is shown more than it takes"),
        (stream("Ry", finish_reason="content_filter"), "content filter"),
    ],
    ids=str,
)
async def test_what_is_not_tried_again_is_one_line_for_the_person(failure: Reply, said: str) -> None:
    model = FakeModel([failure])
    async with AgentTester(Shop, model=model) as t:
        assert said in (await t.say("Hi"))[-1]
    assert model.pauses == []


@pytest.mark.parametrize(
    "failure",
    [error(429, retry_after_s=3), error(503), error("timeout"), error("unreachable"), error("broken")],
    ids=str,
)
async def test_a_passing_failure_is_tried_again_without_waiting(failure: Reply) -> None:
    model = FakeModel([failure, "Hello!"])
    async with AgentTester(Shop, model=model) as t:
        assert await t.say("Hi") == ["Hello!"]
    assert [request.question for request in model.requests] == ["Hi", "Hi"]
    [pause_s] = model.pauses
    assert pause_s == 3 if failure == error(429, retry_after_s=3) else 0.4 <= pause_s <= 0.6


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("timeout", "My language model said nothing for 60 s."),
        ("broken", "My language model broke off in the middle of its answer."),
    ],
)
async def test_a_stream_that_fails_after_its_first_words_ends_the_answer(problem: Any, said: str) -> None:
    model = FakeModel([error(problem, after=["Rye ", "is "])])
    async with AgentTester(Shop, model=model) as t:
        first, *_, last = await t.say("What is rye?")
        assert first.startswith("Rye is")
        assert said in last
    assert len(model.requests) == 1


async def test_a_fallback_model_is_asked_when_all_attempts_failed() -> None:
    model = FakeModel([error("unreachable"), error("unreachable"), "Hello from the other."])
    options = {"model": "large", "fallback_model": "small", "endpoint": {"tries": 2}}
    async with AgentTester(LLMAgent, model=model, options=options) as t:
        assert await t.say("Hi") == ["Hello from the other."]
    assert [request.model for request in model.requests] == ["large", "large", "small"]


# The loop around it is real


async def test_guardrails_memory_and_the_count_of_tokens_work() -> None:
    remember = tool_call("remember_interaction_info", information="Likes rye")
    model = FakeModel([remember, "Noted, my secret.", stream("Yes.", tokens=(900, 100))])
    guardrails = [{"keywords": ["secret"], "action": "redact", "replacement": "friend"}]
    options = {
        "output_guardrails": guardrails,
        "budgets": {"conversation": 1000},
        "show_tools": False,
        "limits": {"passages": 0},
    }
    async with AgentTester(LLMAgent, model=model, options=options | {"budgets": {"turn": 900}}) as t:
        assert await t.say("I like rye") == ["Noted, my friend."]
        assert await t.say("Do I?") == ["Yes."]
        assert (await stored_turns(t))[-1]["meta"]["usage"]["total_tokens"] == 1000
    assert "Likes rye" in model.requests[2].prompt


async def test_tokens_use_up_a_budget() -> None:
    model = FakeModel([stream("", calls=[tool_call("price", item="rye")], tokens=(900, 100))])
    async with AgentTester(LLMAgent, model=model, options={"tools": [price], "budgets": {"turn": 1000}}) as t:
        assert "has used its budget of 1,000 tokens" in (await t.say("What is rye?"))[-1]


async def test_a_cancelled_question_ends_the_wait_for_a_slow_model() -> None:
    slow = EndlessTool()

    async def wait(request: ModelRequest) -> str:
        return await slow.never()

    async with AgentTester(Shop, model=FakeModel([wait])) as t:
        question = t.send("Hi")
        async with asyncio.timeout(TIMEOUT_S):
            await slow.started.wait()
            t.retract(question)
            await slow.stopped.wait()
            await t.settled()


# What does not fit


async def test_a_request_without_a_reply_is_an_error_that_names_it() -> None:
    expected = "FakeModel: no reply for request 2 of agent@localhost: user 'And oat?'; 1 reply was given"
    async with AgentTester(Shop, model=FakeModel(["Rye is 3 €."])) as t:
        await t.say("What is rye?")
        with pytest.raises(AssertionError, match=f"^{re.escape(expected)}$"):
            await t.say("And oat?")


@pytest.mark.parametrize("wait", [AgentTester.message, AgentTester.settled])
async def test_each_call_that_waits_raises_what_went_wrong(wait: Callable[[AgentTester], Awaitable[Any]]) -> None:
    async with AgentTester(Shop, model=FakeModel([])) as t:
        t.send("Hi")
        with pytest.raises(AssertionError, match="no reply for request 1 of agent@localhost: user 'Hi'; 0 replies were"):
            await wait(t)
        with pytest.raises(AssertionError, match="no reply for request 2"):
            await t.ask("Hi")


async def test_a_request_that_no_call_waited_for_is_an_error_at_the_end() -> None:
    model = FakeModel([])

    async def ask_and_leave() -> None:
        async with AgentTester(Shop, model=model) as t:
            t.send("Hi")
            await eventually(lambda: bool(model.requests))

    with pytest.raises(AssertionError, match="no reply for request 1"):
        await ask_and_leave()


async def test_a_reply_that_is_left_over_is_an_error_that_names_it() -> None:
    expected = (
        """FakeModel: 1 of 2 replies not used, first tool_call('price', '{"item": "oat"}'); """
        "the last was request 1 of agent@localhost: user 'Hi'"
    )
    with pytest.raises(AssertionError, match=f"^{re.escape(expected)}$"):
        async with AgentTester(Shop, model=FakeModel(["Hello!", tool_call("price", item="oat")])) as t:
            await t.say("Hi")
    with pytest.raises(AssertionError, match="1 of 1 replies not used, first 'Hello!'; the model received no request"):
        async with AgentTester(Shop, model=FakeModel(["Hello!"])):
            pass


async def test_the_error_of_the_test_itself_comes_first() -> None:
    with pytest.raises(ZeroDivisionError):
        async with AgentTester(Shop, model=FakeModel(["Hello!"])):
            raise ZeroDivisionError


async def test_what_a_function_raises_or_returns_wrongly_is_an_error_of_the_test() -> None:
    def check(request: ModelRequest) -> str:
        assert "weather" in request.tools, "it has no tool for the weather"
        return ""

    def forget(request: ModelRequest) -> Any:
        return None

    async with AgentTester(Shop, model=FakeModel([check, forget])) as t:
        with pytest.raises(AssertionError, match="it has no tool for the weather"):
            await t.say("Hi")
        with pytest.raises(TypeError, match="the reply to request 2 is None; a reply is a text"):
            await t.say("Hi")


def test_a_wrong_reply_is_refused_where_it_is_written() -> None:
    wrong: Any = ["Hello!", 3]
    with pytest.raises(TypeError, match="FakeModel: reply 2 is 3; a reply is a text, tool_call"):
        FakeModel(wrong)
    with pytest.raises(TypeError, match=r"takes a list of replies: FakeModel\(\['Hello!'\]\)"):
        FakeModel("Hello!")
    unknown: Any = "gone"
    makers: tuple[Callable[[], object], ...] = (
        lambda: error(200),
        lambda: error(unknown),
        lambda: error(429, after=["a"]),
        lambda: error("broken", retry_after_s=1),
        lambda: error("unreachable", after=["a"]),
    )
    for make in makers:
        with pytest.raises(ValueError, match=r"^error\("):
            make()
    with pytest.raises(TypeError, match="as one text or by name"):
        tool_call("price", "{}", item="rye")


# Several agents


class Mill(LLMAgent):
    """Knows the flour."""


class Host(LLMAgent):
    """Asks the mill, then answers."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        super().__init__(manifest, None, peers, agents=["mill@localhost"], show_tools=False)


ASK_THE_MILL = tool_call("ask_agent", agent="mill@localhost", question="Which flour?")


async def test_several_agents_ask_one_model_in_the_order_of_their_requests() -> None:
    model = FakeModel([ASK_THE_MILL, "Rye flour", "It has rye flour."])
    async with AgentTester(Host, peers={"mill": Mill}, model=model) as t:
        assert await t.say("Which flour?") == ["It has rye flour."]
    assert [request.agent for request in model.requests] == ["agent@localhost", "mill@localhost", "agent@localhost"]


async def test_each_agent_may_have_a_model_of_its_own() -> None:
    host, mill = FakeModel([ASK_THE_MILL, "It has rye flour."]), FakeModel(["Rye flour"])
    async with AgentTester(Host, peers={"mill": Mill}, model={"agent": host, "mill@localhost": mill}) as t:
        assert await t.say("Which flour?") == ["It has rye flour."]
        await t.restart()
    assert host.requests[1].tool_results == ["Rye flour"]
    assert [request.question for request in mill.requests] == ["Which flour?"]


async def test_an_agent_that_is_left_out_may_not_ask() -> None:
    async with AgentTester(Host, peers={"mill": Mill}, model={"agent": FakeModel([ASK_THE_MILL, "?"])}) as t:
        with pytest.raises(AssertionError, match=r"no reply for request 1 of mill@localhost: user 'Which flour\?'"):
            await t.say("Which flour?")


async def test_the_environment_is_never_asked(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    for name, value in {"OPENAI_API_KEY": "sk", "OPENAI_MODEL": "large", "HTTP_PROXY": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{unused_tcp_port}/v1")
    model = FakeModel(["Hello!", "Hello again!"])
    async with AgentTester(Shop, model=model) as t:
        assert await t.say("Hi") == ["Hello!"]
        await t.restart()
        assert await t.say("Hi") == ["Hello again!"]
    assert model.requests[0].model == "fake-model"


def test_agents_that_cannot_ask_it_are_refused() -> None:
    model = FakeModel([])
    with pytest.raises(ConfigError, match="model: there is no agent oven@localhost; the agents are agent@localhost"):
        AgentTester(Shop, model={"oven": model})
    built = LLMAgent(AgentDefinition.simple("shop"), model="m", endpoint={"url": "http://127.0.0.1:9/v1"})
    with pytest.raises(ConfigError, match="agent@localhost is already built with its own model; pass its class"):
        AgentTester(built, model=model)


async def test_an_agent_of_another_kind_takes_a_client() -> None:
    @agent(description="Rhymes")
    async def poet(request: AgentRequest, session: Session, response: Response, *, client: Any) -> None:
        messages = [{"role": "user", "content": request.payload["query"]}]
        completion = await client.chat.completions.create(model="m", messages=messages)
        await response.markdown(completion.choices[0].message.content)

    model = FakeModel([stream("Roses ", "are red.")])
    async with AgentTester(poet, options={"client": model.openai_client("poet")}, model=model) as t:
        assert await t.say("A rose") == ["Roses are red."]
    assert (model.requests[0].agent, model.requests[0].question) == ("poet", "A rose")
    model.requests.clear()
    with pytest.raises(Exception, match="404"):
        await model.openai_client("poet").embeddings.create(model="m", input="rose")
    with pytest.raises(AssertionError, match="poet asks for /v1/embeddings; it answers /chat/completions only"):
        model.check()


async def test_a_tool_gets_the_request_and_the_session_which_the_model_does_not_see() -> None:
    calls = [tool_call("book", room="Blue", session="bob"), tool_call("whose"), tool_call("find_by", request="a chair")]
    model = FakeModel([[tool_call("book", room="Blue"), *calls[1:]], "Done.", calls[0], "Done."])
    async with AgentTester(Desk, model=model, options={"tools": [whose, find_by]}) as t:
        await t.ask("Blue, please", thread="t")
        await t.ask("As Bob", thread="t")
    first, second, *_, last = model.requests
    seen = [list(first.tools[name]["parameters"]["properties"]) for name in ("book", "whose", "find_by")]
    assert seen == [["room"], [], ["request"]]
    asker = "tester@localhost"
    assert second.tool_results == [f"Blue for {asker} by Desk: Blue, please", asker, "found a chair"]
    assert last.tool_results == [f"Blue for {asker} by Desk: As Bob"]  # what the model says about the session does not count
