"""An LLMAgent whose handlers have the methods of the seed only: those of another platform, or of a test."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from spade_coreason import AgentDefinition, AgentRequest, Identity, Interaction
from spade_coreason.contracts import ResponseHandler, SessionHandle
from spade_coreason.llm.agent import LLMAgent
from spade_coreason.llm.handlers import run_once
from tests.support.chat_completions import ChatCompletionsServer, text_answer, tool_call_answer


class SeedSession:
    """A session of one turn."""

    session_id = str(uuid4())
    identity = Identity(id="alice@localhost", name="alice", role="user")

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        return [Interaction(input={"query": "My cat is Tom."}, output={"text": "I see."})]

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        return []

    async def store(self, key: str, value: Any) -> None: ...

    async def get(self, key: str, default: Any = None) -> Any:
        return default


class SeedHandler:
    """A response, and its only stream, that record what is sent."""

    stream_id = str(uuid4())
    is_active = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        self.sent.append(("thought", content))

    async def markdown(self, content: str) -> None:
        self.sent.append(("markdown", content))

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None: ...

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        self.sent.append(("error", message))

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> SeedHandler:
        return self

    async def write(self, chunk: str) -> None:
        self.sent.append(("write", chunk))

    async def close(self) -> None:
        self.sent.append(("close", ""))

    async def abort(self, reason: str) -> None:
        self.sent.append(("abort", reason))

    async def emit(self, event: object) -> None: ...

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None: ...

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None: ...


def weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


async def answer(handler: ResponseHandler, session: SessionHandle, server: ChatCompletionsServer, **options: Any) -> None:
    definition = AgentDefinition.simple("helper", system_prompt="You help.")
    agent = LLMAgent(definition, model="small", endpoint={"url": server.url}, **options)
    await agent.startup()
    try:
        await agent.assist(AgentRequest(session_id=uuid4(), payload={"query": "Rome?"}), session, handler)
    finally:
        await agent.shutdown()


async def test_a_session_without_a_window_shows_its_history_and_a_step_is_a_thought() -> None:
    handler = SeedHandler()
    async with ChatCompletionsServer(tool_call_answer(("weather", {"city": "Rome"})), text_answer("Sunny.<END>")) as server:
        await answer(handler, SeedSession(), server, tools=[weather], termination_markers=["<END>"])
        assert [message["content"] for message in server.requests[0]["messages"]][-3:] == ["My cat is Tom.", "I see.", "Rome?"]
    assert handler.sent == [("thought", "Using weather…"), ("write", "Sunny."), ("close", "")]


async def test_a_stream_that_cannot_be_replaced_is_aborted_before_the_message_of_the_guardrail() -> None:
    handler = SeedHandler()
    rule = {"keywords": ["swordfish"], "message": "I keep that to myself."}
    async with ChatCompletionsServer(text_answer("The word of today is ", "swordfish.")) as server:
        await answer(handler, SeedSession(), server, output_guardrails=[rule])
    *shown, aborted, message = handler.sent
    assert {kind for kind, _ in shown} == {"write"}
    assert (aborted[0], message) == ("abort", ("markdown", "I keep that to myself."))


class DurableSession(SeedSession):
    """A session with the durable steps of the platform, and nothing else that it adds, as a wrapper of an older version."""

    def __init__(self) -> None:
        self.steps: dict[str, Any] = {}

    async def run_once(self, name: str, function: Any, *args: Any, on_uncertain: str = "retry") -> Any:
        if name not in self.steps:
            self.steps[name] = await function(*args, idempotency_key="key")
        return self.steps[name]


async def test_a_wrapper_that_lacks_methods_of_later_versions_keeps_its_durable_steps() -> None:
    session, calls = DurableSession(), []

    async def pay(key: str) -> str:
        calls.append(key)
        return "paid"

    assert [await run_once(session, "pay", pay) for _ in range(2)] == ["paid", "paid"]
    assert calls == ["key"]
