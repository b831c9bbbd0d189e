"""The Protocols for authors: the seed's methods with those of this platform, which the objects of a turn have."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from spade_coreason.contracts import (
    Agent,
    AgentInterface,
    Response,
    ResponseHandler,
    Session,
    SessionHandle,
    Stream,
    StreamHandle,
)
from spade_coreason.memory.session import TurnSession
from spade_coreason.runtime.replies.output import TurnStream
from spade_coreason.runtime.turns.response import TurnResponse
from tests.contracts.test_protocols import ForeignHandler, ForeignSession, ForeignStream

ADDED: dict[Any, tuple[Any, set[str]]] = {
    Session: (
        SessionHandle,
        {"window", "summary", "run_once", "run_approved", "remind", "later", "cancel_schedule", "schedules", "end"},
    ),
    Response: (ResponseHandler, {"step", "ask", "ask_person"}),
    Stream: (StreamHandle, {"replace"}),
}
CLASSES: list[tuple[Any, Any]] = [(Session, TurnSession), (Response, TurnResponse), (Stream, TurnStream)]


def public_members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_type_checkers_accept_the_objects_of_a_turn_and_agents_of_the_seed() -> None:
    def accept_session(session: TurnSession) -> Session:
        return session

    def accept_response(response: TurnResponse) -> Response:
        return response

    def accept_stream(stream: TurnStream) -> Stream:
        return stream

    def accept_agent(agent: AgentInterface) -> Agent:
        return agent

    assert all((accept_session, accept_response, accept_stream, accept_agent))


@pytest.mark.parametrize("protocol", ADDED)
def test_a_protocol_for_authors_adds_to_that_of_the_seed(protocol: Any) -> None:
    seed, added = ADDED[protocol]
    assert seed in protocol.__mro__
    assert public_members(protocol) - public_members(seed) == added


@pytest.mark.parametrize(("protocol", "cls"), CLASSES)
def test_the_object_of_a_turn_has_the_parameters_of_its_protocol(protocol: type, cls: type) -> None:
    for name in public_members(protocol):
        declared, implemented = inspect.getattr_static(protocol, name), inspect.getattr_static(cls, name)
        assert isinstance(declared, property) is isinstance(implemented, property), name
        if not isinstance(declared, property):
            parameters = [
                [
                    parameter.replace(annotation=inspect.Parameter.empty)
                    for parameter in inspect.signature(method).parameters.values()
                ]
                for method in (declared, implemented)
            ]
            assert parameters[0] == parameters[1], name


@pytest.mark.parametrize("protocol", ADDED)
def test_every_member_that_authors_use_is_documented(protocol: type) -> None:
    assert all(inspect.getdoc(getattr(protocol, name)) for name in public_members(protocol))


@pytest.mark.parametrize(
    ("protocol", "handler"), [(Session, ForeignSession()), (Response, ForeignHandler()), (Stream, ForeignStream([]))]
)
def test_a_handler_of_the_seed_lacks_what_is_added(protocol: Any, handler: object) -> None:
    assert not isinstance(handler, protocol)
