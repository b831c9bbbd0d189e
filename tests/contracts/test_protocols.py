"""The Protocols are structural: what counts is that names, signatures and attributes agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from spade_coreason.contracts import (
    AgentDefinition,
    AgentInterface,
    AgentRequest,
    EventSink,
    Identity,
    Interaction,
    LifecycleInterface,
    ResponseHandler,
    SessionHandle,
    StreamHandle,
)
from tests.support.seed_echo import EchoAgent


class ForeignStream:
    """A stream whose author never imported anything of ours."""

    def __init__(self, heard: list[str]) -> None:
        self.stream_id = "6f2f1f9c-0b57-4c0e-9d6b-0d8c6d2e2f11"
        self.is_active = True
        self.heard = heard

    async def write(self, chunk):  # type: ignore[no-untyped-def]  # written as users do, without types
        self.heard.append(chunk)

    async def close(self):  # type: ignore[no-untyped-def]  # written as users do, without types
        self.is_active = False

    async def abort(self, reason):  # type: ignore[no-untyped-def]  # written as users do, without types
        self.is_active = False


class ForeignSink:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def emit(self, event): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def log(self, level, message, metadata=None): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def audit(self, actor, action, resource, success): ...  # type: ignore[no-untyped-def]  # written as users do, without types


class ForeignHandler(ForeignSink):
    async def thought(self, content, status="IN_PROGRESS"):  # type: ignore[no-untyped-def]  # written as users do, without types
        self.heard.append(f"({content})")

    async def markdown(self, content): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def data(self, data, title=None, view_hint="JSON"): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def error(self, message, details=None, recoverable=False): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def create_stream(self, title=None, metadata=None):  # type: ignore[no-untyped-def]  # written as users do, without types
        return ForeignStream(self.heard)


class ForeignSession:
    session_id = "s"
    identity = Identity.anonymous()

    async def history(self, limit=10, offset=0): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def recall(self, query, limit=5, threshold=0.7): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def store(self, key, value, *, scope=None): ...  # type: ignore[no-untyped-def]  # written as users do, without types

    async def get(self, key, default=None, *, scope=None): ...  # type: ignore[no-untyped-def]  # written as users do, without types


class ForeignAgent:
    manifest = "anything"

    async def assist(self, request, session, response): ...  # type: ignore[no-untyped-def]  # written as users do, without types


class SyncLifecycle:
    def startup(self) -> None: ...

    def shutdown(self) -> None: ...


class AsyncLifecycle:
    async def startup(self) -> None: ...

    async def shutdown(self) -> None: ...


FOREIGN_CLASSES: list[tuple[Any, Callable[[], object]]] = [
    (AgentInterface, ForeignAgent),
    (SessionHandle, ForeignSession),
    (EventSink, ForeignSink),
    (ResponseHandler, ForeignHandler),
    (StreamHandle, lambda: ForeignStream([])),
    (LifecycleInterface, SyncLifecycle),
    (LifecycleInterface, AsyncLifecycle),
]

MEMBERS = {
    AgentInterface: {"manifest", "assist"},
    SessionHandle: {"session_id", "identity", "history", "recall", "store", "get"},
    EventSink: {"emit", "log", "audit"},
    ResponseHandler: {"emit", "log", "audit", "thought", "markdown", "data", "error", "create_stream"},
    StreamHandle: {"stream_id", "is_active", "write", "close", "abort"},
    LifecycleInterface: {"startup", "shutdown"},
}


def test_the_echo_agent_of_the_seed_is_an_agent() -> None:
    agent = EchoAgent(manifest=AgentDefinition.simple("echo"))
    assert isinstance(agent, AgentInterface)
    assert not isinstance(agent, LifecycleInterface)


async def test_the_echo_agent_of_the_seed_streams_word_by_word_to_any_handler() -> None:
    agent = EchoAgent(manifest=AgentDefinition.simple("echo"))
    handler, session = ForeignHandler(), ForeignSession()
    request = AgentRequest(session_id="00000000-0000-0000-0000-000000000001", payload={"query": "one two"})
    await agent.assist(request, session, handler)
    assert handler.heard == ["(Processing request...)", "one ", "two "]


@pytest.mark.parametrize(("protocol", "make"), FOREIGN_CLASSES)
def test_a_class_is_recognised_by_its_members_without_importing_the_package(protocol: Any, make: Callable[[], object]) -> None:
    assert isinstance(make(), protocol)


@pytest.mark.parametrize(("protocol", "missing"), [(p, name) for p, names in MEMBERS.items() for name in sorted(names)])
def test_a_class_that_lacks_one_member_does_not_implement_the_protocol(protocol: Any, missing: str) -> None:
    almost = type("Almost", (), {name: lambda self: None for name in MEMBERS[protocol] if name != missing})
    assert not isinstance(almost(), protocol)


@pytest.mark.parametrize("protocol", MEMBERS)
def test_a_protocol_asks_for_nothing_more_than_the_contract_names(protocol: Any) -> None:
    exactly = type("Exactly", (), {name: lambda self: None for name in MEMBERS[protocol]})
    assert isinstance(exactly(), protocol)


def test_a_response_handler_is_an_event_sink() -> None:
    assert isinstance(ForeignHandler(), EventSink)
    assert not isinstance(ForeignSink(), ResponseHandler)


SIGNATURES: dict[Callable[..., Any], str] = {
    AgentInterface.assist: "request session response",
    SessionHandle.history: "limit=10 offset=0",
    SessionHandle.recall: "query limit=5 threshold=0.7",
    SessionHandle.store: "key value",
    SessionHandle.get: "key default=None",
    EventSink.emit: "event",
    EventSink.log: "level message metadata=None",
    EventSink.audit: "actor action resource success",
    ResponseHandler.thought: "content status='IN_PROGRESS'",
    ResponseHandler.markdown: "content",
    ResponseHandler.data: "data title=None view_hint='JSON'",
    ResponseHandler.error: "message details=None recoverable=False",
    ResponseHandler.create_stream: "title=None metadata=None",
    StreamHandle.write: "chunk",
    StreamHandle.close: "",
    StreamHandle.abort: "reason",
    LifecycleInterface.startup: "",
    LifecycleInterface.shutdown: "",
}


@pytest.mark.parametrize(("method", "expected"), SIGNATURES.items(), ids=lambda v: getattr(v, "__qualname__", ""))
def test_a_method_has_the_parameters_of_the_seed_and_their_defaults(method: Callable[..., Any], expected: str) -> None:
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(method).parameters.values()]
    assert " ".join(str(p) for p in parameters[1:]) == expected


def test_assist_and_the_memory_are_coroutines() -> None:
    for method in (AgentInterface.assist, SessionHandle.history, SessionHandle.get, StreamHandle.write):
        assert inspect.iscoroutinefunction(method)


def test_a_subclass_of_a_protocol_has_to_implement_every_member() -> None:
    class Half(AgentInterface):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None: ...

    with pytest.raises(TypeError, match="manifest"):
        Half()  # type: ignore[abstract]  # the point of the test


def test_the_types_of_the_protocols_are_there_at_run_time() -> None:
    assert inspect.get_annotations(SessionHandle.history, eval_str=True)["return"] == list[Interaction]
    assert inspect.get_annotations(AgentInterface.assist, eval_str=True)["session"] is SessionHandle
    assert "event" in inspect.get_annotations(EventSink.emit, eval_str=True)
