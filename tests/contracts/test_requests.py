"""The envelope of a request: its lineage, its defaults, its children."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from spade_coreason.contracts import AgentRequest, ClientCapabilities
from spade_coreason.runtime.turns.turn import construct_valid


def test_a_request_needs_only_its_session_and_its_payload() -> None:
    before = datetime.now(UTC)
    request = AgentRequest(session_id=uuid4(), payload={"query": "hi"})

    assert isinstance(request.request_id, UUID)
    assert before <= request.created_at <= datetime.now(UTC)
    assert request.created_at.tzinfo is UTC
    assert request.metadata == {}
    assert request.capabilities is None
    assert request.parent_request_id is None


def test_every_request_has_an_id_of_its_own() -> None:
    session = uuid4()
    assert len({AgentRequest(session_id=session, payload={}).request_id for _ in range(100)}) == 100


def test_the_time_of_a_request_is_also_its_timestamp() -> None:
    request = AgentRequest(session_id=uuid4(), payload={})
    assert request.timestamp == request.created_at


def test_a_request_without_a_root_is_its_own_root() -> None:
    request = AgentRequest(session_id=uuid4(), payload={})
    assert request.root_request_id == request.request_id


def test_a_root_that_is_given_stays() -> None:
    root, parent = uuid4(), uuid4()
    request = AgentRequest(session_id=uuid4(), payload={}, root_request_id=root, parent_request_id=parent)
    assert (request.root_request_id, request.parent_request_id) == (root, parent)


def test_a_parent_without_a_root_is_a_broken_trace() -> None:
    with pytest.raises(ValueError, match=r"Broken Trace.*Root ID missing while Parent ID is present"):
        AgentRequest(session_id=uuid4(), payload={}, parent_request_id=uuid4())


def test_a_broken_trace_is_found_in_json_too() -> None:
    text = f'{{"session_id": "{uuid4()}", "payload": {{}}, "parent_request_id": "{uuid4()}"}}'
    with pytest.raises(ValueError, match="Broken Trace"):
        AgentRequest.model_validate_json(text)


@pytest.mark.parametrize("missing", ["session_id", "payload"])
def test_session_and_payload_are_mandatory(missing: str) -> None:
    given = {"session_id": uuid4(), "payload": {}}
    del given[missing]
    with pytest.raises(ValidationError, match=missing):
        AgentRequest.model_validate(given)


@pytest.mark.parametrize("payload", ["text", ["a list"], None, 3])
def test_a_payload_is_an_object(payload: object) -> None:
    with pytest.raises(ValidationError, match="payload"):
        AgentRequest(session_id=uuid4(), payload=payload)


def test_ids_may_be_texts() -> None:
    session = uuid4()
    assert AgentRequest(session_id=str(session), payload={}).session_id == session


def test_a_request_cannot_be_changed() -> None:
    request = AgentRequest(session_id=uuid4(), payload={})
    for name in AgentRequest.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(request, name, None)


def test_a_later_change_of_the_given_dict_does_not_reach_the_request() -> None:
    payload = {"query": "hi"}
    request = AgentRequest(session_id=uuid4(), payload=payload)
    payload["query"] = "something else"
    assert request.payload == {"query": "hi"}


def test_unknown_fields_of_a_request_are_ignored() -> None:
    request = AgentRequest.model_validate({"session_id": uuid4(), "payload": {}, "from_the_future": 1})
    assert not hasattr(request, "from_the_future")


def test_a_request_survives_json() -> None:
    request = AgentRequest(
        session_id=uuid4(),
        payload={"query": "¿qué?", "nothing": None},
        capabilities=ClientCapabilities(supported_events=["MARKDOWN"]),
        metadata={"locale": "es", "none": None},
    )
    assert AgentRequest.model_validate_json(request.to_json()) == request
    assert AgentRequest.model_validate(request.dump()) == request


def test_times_of_other_zones_become_utc_and_times_without_a_zone_are_utc() -> None:
    noon = datetime(2026, 1, 9, 12, tzinfo=UTC)
    in_madrid = noon.astimezone(timezone(timedelta(hours=1)))
    for given in (in_madrid, noon.replace(tzinfo=None), "2026-01-09T13:00:00+01:00", "2026-01-09T12:00:00Z"):
        request = AgentRequest(session_id=uuid4(), payload={}, created_at=given)
        assert request.created_at == noon
        assert request.created_at.utcoffset() == timedelta(0)


def test_a_time_that_utc_cannot_hold_is_an_error_of_the_request() -> None:
    with pytest.raises(ValidationError, match="outside the years"):
        AgentRequest(session_id=uuid4(), payload={}, created_at="0001-01-01T00:00:00+14:00")


def test_a_child_keeps_session_and_root_and_names_its_parent() -> None:
    grandmother = AgentRequest(session_id=uuid4(), payload={"query": "all"}, metadata={"secret": 1})
    mother = grandmother.create_child({"query": "part"})
    child = mother.create_child({"query": "detail"}, metadata={"depth": 2})

    assert mother.parent_request_id == grandmother.request_id
    assert child.parent_request_id == mother.request_id
    assert child.root_request_id == mother.root_request_id == grandmother.request_id
    assert child.session_id == grandmother.session_id
    assert len({grandmother.request_id, mother.request_id, child.request_id}) == 3
    assert child.payload == {"query": "detail"}
    assert child.metadata == {"depth": 2}
    assert mother.metadata == {}


@pytest.mark.parametrize("name", ["session_id", "root_request_id", "parent_request_id"])
def test_a_child_cannot_be_given_another_lineage(name: str) -> None:
    request = AgentRequest(session_id=uuid4(), payload={})
    with pytest.raises(TypeError, match=f"takes its {name} from its parent"):
        request.create_child({}, **{name: uuid4()})


def test_a_child_is_of_its_parents_class() -> None:
    class TracedRequest(AgentRequest):
        tag: str = "traced"

    assert isinstance(TracedRequest(session_id=uuid4(), payload={}).create_child({}), TracedRequest)


def test_a_client_can_show_markdown_unless_it_says_otherwise() -> None:
    capabilities = ClientCapabilities()
    assert capabilities.supported_events == []
    assert capabilities.prefers_markdown is True
    assert capabilities.image_resolution is None


def test_capabilities_that_are_unknown_here_are_ignored() -> None:
    capabilities = ClientCapabilities.model_validate({"prefers_markdown": False, "holograms": True})
    assert capabilities.dump() == {"supported_events": [], "prefers_markdown": False}


def test_a_request_of_valid_fields_is_as_one_that_was_validated() -> None:
    fields = {
        "request_id": uuid4(),
        "session_id": uuid4(),
        "root_request_id": uuid4(),
        "parent_request_id": None,
        "created_at": datetime.now(UTC),
        "payload": {"query": "hi"},
        "capabilities": None,
        "metadata": {"a": 1},
    }
    validated, constructed = AgentRequest.model_validate(fields), construct_valid(AgentRequest, dict(fields))
    assert constructed == validated
    assert (repr(constructed), constructed.to_json()) == (repr(validated), validated.to_json())
    assert constructed.model_fields_set == validated.model_fields_set
    assert constructed.model_copy(update={"payload": {}}).payload == {}
    assert pickle.loads(pickle.dumps(constructed)) == copy.deepcopy(constructed) == validated
    with pytest.raises(ValidationError, match="frozen"):
        constructed.payload = {}  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError):
        constructed.nothing  # type: ignore[attr-defined]  # noqa: B018 - that it raises is the point
