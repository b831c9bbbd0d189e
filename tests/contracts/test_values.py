"""The smaller values: how every model is written, identities, blocks, events, errors, records and audit entries."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import TypeAdapter, ValidationError

import spade_coreason.contracts as contracts
from spade_coreason.contracts import (
    GENESIS_HASH,
    AgentRuntimeConfig,
    AnyBlock,
    AuditEntry,
    Block,
    CloudEvent,
    ConversationRecord,
    ConversationState,
    CoReasonBaseModel,
    DataBlock,
    ErrorCode,
    ErrorDomain,
    GraphEventBase,
    Identity,
    MarkdownBlock,
    ModelConfig,
    NodeStream,
    StreamAbort,
    StreamChunkData,
    StreamEnd,
    StreamStart,
    ThinkingBlock,
    UserErrorBlock,
    read_graph_event,
)

MODELS = [found for name in contracts.__all__ if isinstance(found := getattr(contracts, name), type) and hasattr(found, "dump")]


# How every model is read and written


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_a_frozen_coreason_model_read_by_name(model: type[CoReasonBaseModel]) -> None:
    assert issubclass(model, CoReasonBaseModel)
    assert model.model_config["frozen"] is True
    assert model.model_config["populate_by_name"] is True


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_a_docstring(model: type[CoReasonBaseModel]) -> None:
    assert model.__doc__


def test_a_dump_is_json_by_alias_and_without_none() -> None:
    config = AgentRuntimeConfig(llm_config=ModelConfig(model="m", temperature=0.5))
    assert config.dump() == {"nodes": [], "edges": [], "model_config": {"model": "m", "temperature": 0.5}}
    assert json.loads(config.to_json()) == config.dump()


def test_each_default_of_a_dump_can_be_overridden() -> None:
    config = AgentRuntimeConfig(llm_config=ModelConfig(model="m"))
    by_name = config.dump(by_alias=False)
    assert "llm_config" in by_name
    assert "model_config" not in by_name
    assert config.dump(exclude_none=False)["entry_point"] is None
    assert json.loads(config.to_json(exclude_none=False, by_alias=False))["system_prompt"] is None
    entry = AuditEntry(actor="a", action="b", resource="c", outcome="d")
    assert isinstance(entry.dump()["timestamp"], str)
    assert isinstance(entry.dump(mode="python")["timestamp"], datetime)


def test_none_inside_of_free_data_is_kept() -> None:
    block = DataBlock(data={"price": None, "rows": [{"a": None}]})
    assert block.dump()["data"] == {"price": None, "rows": [{"a": None}]}
    assert json.loads(block.to_json())["data"] == {"price": None, "rows": [{"a": None}]}


# Identity


def test_an_identity_reads_as_name_and_id() -> None:
    assert str(Identity(id="ada@example.org", name="Ada")) == "Ada (ada@example.org)"


def test_an_identity_without_a_person_is_the_anonymous_user() -> None:
    anonymous = Identity.anonymous()
    assert (anonymous.id, anonymous.name, anonymous.role) == ("anonymous", "Anonymous User", "user")
    assert anonymous == Identity.anonymous()


def test_a_role_is_optional_and_an_id_is_not() -> None:
    assert Identity(id="a", name="b").role is None
    with pytest.raises(ValidationError):
        Identity.model_validate({"name": "b"})


# Blocks


def test_blocks_have_a_type_an_id_and_perhaps_a_title() -> None:
    blocks: list[Block] = [
        ThinkingBlock(content="hm"),
        DataBlock(data={}),
        MarkdownBlock(content="*"),
        UserErrorBlock(user_message="no"),
    ]
    assert [block.dump()["block_type"] for block in blocks] == ["THOUGHT", "DATA", "MARKDOWN", "ERROR"]
    assert all(isinstance(block.id, UUID) and block.title is None for block in blocks)
    assert len({block.id for block in blocks}) == 4


def test_the_defaults_of_blocks() -> None:
    assert ThinkingBlock(content="hm").status == "IN_PROGRESS"
    assert DataBlock(data={}).view_hint == "JSON"
    error = UserErrorBlock(user_message="no")
    assert (error.technical_details, error.recoverable, error.code) == (None, False, None)


@pytest.mark.parametrize("status", ["IN_PROGRESS", "COMPLETE"])
def test_a_thought_is_in_progress_or_complete(status: str) -> None:
    assert ThinkingBlock(content="hm", status=status).status == status


@pytest.mark.parametrize("hint", ["TABLE", "JSON", "LIST", "KEY_VALUE"])
def test_data_is_shown_in_four_ways(hint: str) -> None:
    assert DataBlock(data={}, view_hint=hint).view_hint == hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThinkingBlock(content="hm", status="DONE"),
        lambda: DataBlock(data={}, view_hint="PIE"),
        lambda: DataBlock(data=["no", "object"]),
        lambda: MarkdownBlock(content=None),
        lambda: UserErrorBlock.model_validate({"recoverable": True}),
    ],
)
def test_a_malformed_block_is_refused(make: Any) -> None:
    with pytest.raises(ValidationError):
        make()


@pytest.mark.parametrize(
    "block",
    [
        ThinkingBlock(content="hm", status="COMPLETE"),
        DataBlock(data={"columns": ["a"], "rows": [{"a": 1}]}, view_hint="TABLE", title="T"),
        MarkdownBlock(content="*x*"),
        UserErrorBlock(user_message="no", technical_details={"a": 1}, recoverable=True, code=503),
    ],
)
def test_a_block_is_recognised_by_its_type_when_it_is_read(block: Block) -> None:
    reader: TypeAdapter[Block] = TypeAdapter(AnyBlock)
    assert reader.validate_json(block.to_json()) == block


# Events


def test_a_cloud_event_is_one_of_version_1_0_in_json() -> None:
    event = CloudEvent[Any](type="ai.coreason.log", source="xmpp:a@x")
    assert (event.specversion, event.datacontenttype) == ("1.0", "application/json")
    assert UUID(event.id)
    assert event.time.tzinfo is UTC
    assert (event.data, event.traceparent, event.tracestate) == (None, None, None)
    assert set(event.dump()) == {"specversion", "type", "source", "id", "time", "datacontenttype"}


def test_a_cloud_event_keeps_extension_attributes() -> None:
    event = CloudEvent[Any].model_validate({"type": "t", "source": "s", "requestid": "r", "data": {"a": None}})
    again = CloudEvent[Any].model_validate_json(event.to_json())
    assert again == event
    assert again.dump()["requestid"] == "r"
    assert again.data == {"a": None}


@pytest.mark.parametrize("wrong", [{"specversion": "0.3"}, {"type": None}, {"source": None}, {"time": "noon"}])
def test_a_cloud_event_of_another_kind_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CloudEvent[Any].model_validate({"type": "t", "source": "s", **wrong})


def test_the_data_of_a_cloud_event_may_be_a_model() -> None:
    text = CloudEvent[StreamEnd](type="ai.coreason.stream.end", source="s", data=StreamEnd(stream_id="1")).to_json()
    assert CloudEvent[StreamEnd].model_validate_json(text).data == StreamEnd(stream_id="1")


def test_stream_events_carry_what_the_contract_names() -> None:
    assert StreamStart(stream_id="1", title="T").dump() == {"stream_id": "1", "title": "T"}
    assert StreamStart(stream_id="1").title is None
    assert StreamChunkData(stream_id="1", seq=0, chunk="a").dump() == {"stream_id": "1", "seq": 0, "chunk": "a"}
    assert StreamEnd(stream_id="1").dump() == {"stream_id": "1"}
    assert StreamAbort(stream_id="1", reason="r").dump() == {"stream_id": "1", "reason": "r"}
    with pytest.raises(ValidationError):
        StreamChunkData(stream_id="1", seq=-1, chunk="a")


GRAPH_EVENTS = [
    "NODE_INIT",
    "NODE_START",
    "NODE_STREAM",
    "NODE_DONE",
    "NODE_SKIPPED",
    "NODE_RESTORED",
    "EDGE_ACTIVE",
    "COUNCIL_VOTE",
    "ERROR",
    "ARTIFACT_GENERATED",
]


@pytest.mark.parametrize("kind", GRAPH_EVENTS)
def test_a_graph_event_is_read_by_its_type(kind: str) -> None:
    event = read_graph_event({"event_type": kind, "run_id": "r", "node_id": "n", "timestamp": 1.5, "payload": {"a": 1}})
    assert isinstance(event, GraphEventBase)
    assert event.dump()["event_type"] == kind
    assert (event.trace_id, event.sequence_id, event.visual_metadata) == ("unknown", None, {})
    assert (event.timestamp, event.payload) == (1.5, {"a": 1})
    assert read_graph_event(event.dump()) == event


def test_every_graph_event_is_a_class_of_its_own() -> None:
    events = [read_graph_event({"event_type": kind, "run_id": "r", "node_id": "n"}) for kind in GRAPH_EVENTS]
    assert len({type(event) for event in events}) == len(GRAPH_EVENTS)
    assert type(events[2]) is NodeStream


@pytest.mark.parametrize("wrong", [{"event_type": "NODE_LOST"}, {"event_type": None}, {"node_id": None}])
def test_a_malformed_graph_event_is_a_value_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        read_graph_event({"event_type": "NODE_INIT", "run_id": "r", "node_id": "n", **wrong})


# Errors


def test_error_codes_are_the_familiar_numbers_and_two_of_them_are_worth_another_try() -> None:
    assert [int(code) for code in ErrorCode] == [400, 401, 403, 404, 429, 500, 503, 504]
    assert [int(code) for code in ErrorCode if code.may_retry] == [429, 503]
    assert UserErrorBlock(user_message="busy", code=ErrorCode.UNAVAILABLE).dump()["code"] == 503


def test_errors_come_from_five_domains() -> None:
    assert [str(domain) for domain in ErrorDomain] == ["SYSTEM", "LLM", "TOOL", "LOGIC", "SECURITY"]


# Conversations


def test_the_states_of_a_conversation_are_those_of_the_seed() -> None:
    states = [str(state) for state in ConversationState]
    assert states == ["active", "completed", "error", "timeout", "max_interactions_reached"]


def test_the_record_of_a_conversation_has_exactly_the_seeds_keys_and_form() -> None:
    seed = {
        "conversation_id": "user1_session",
        "state": "active",
        "interaction_count": 5,
        "max_interactions": 10,
        "created_at": "2025-01-09T10:00:00Z",
        "last_interaction": "2025-01-09T10:30:00Z",
    }
    record = ConversationRecord.model_validate(seed)
    assert record.state is ConversationState.ACTIVE
    assert record.dump() == seed
    assert list(record.dump()) == list(seed)
    with pytest.raises(ValidationError):
        ConversationRecord.model_validate({**seed, "state": "asleep"})


# Audit


def entry(**fields: Any) -> AuditEntry:
    return AuditEntry(**{"actor": "echo@x", "action": "read", "resource": "file", "outcome": "success", **fields})


def test_an_audit_entry_begins_a_trail_unless_it_names_the_one_before() -> None:
    assert GENESIS_HASH == "0" * 64
    first = entry().sealed()
    assert first.previous_hash == GENESIS_HASH
    second = entry(previous_hash=first.integrity_hash).sealed()
    assert second.previous_hash == first.integrity_hash
    assert first.is_intact
    assert second.is_intact


def test_the_integrity_hash_is_sha_256_over_the_canonical_json_of_the_rest() -> None:
    sealed = entry(
        id="6f2f1f9c-0b57-4c0e-9d6b-0d8c6d2e2f11",
        timestamp="2026-01-09T10:00:00Z",
        safety_metadata={"b": "ñ", "a": 1},
    ).sealed()
    canonical = (
        '{"action":"read","actor":"echo@x","id":"6f2f1f9c-0b57-4c0e-9d6b-0d8c6d2e2f11","outcome":"success",'
        f'"previous_hash":"{GENESIS_HASH}","request_id":null,"resource":"file","root_request_id":null,'
        '"safety_metadata":{"a":1,"b":"ñ"},"timestamp":"2026-01-09T10:00:00Z"}'
    )
    assert sealed.integrity_hash == hashlib.sha256(canonical.encode()).hexdigest()


def test_an_entry_is_not_intact_before_it_is_sealed() -> None:
    assert not entry().is_intact


@pytest.mark.parametrize("name", sorted(AuditEntry.model_fields.keys() - {"integrity_hash"}))
def test_a_change_of_any_field_is_found(name: str) -> None:
    other: dict[str, Any] = {
        "id": uuid4(),
        "request_id": uuid4(),
        "root_request_id": uuid4(),
        "timestamp": datetime(2020, 1, 1, tzinfo=UTC),
        "safety_metadata": {"a": 1},
        "previous_hash": "1" * 64,
    }
    changed = entry().sealed().model_copy(update={name: other.get(name, "something else")})
    assert not changed.is_intact


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"request_id": uuid4(), "root_request_id": uuid4()},
        {"timestamp": "2026-01-09T10:00:00.123456+01:00"},
        {"safety_metadata": {"nan": float("nan"), "at": datetime(2026, 1, 1, tzinfo=UTC), "none": None, "f": 1e-7}},
    ],
)
def test_a_sealed_entry_is_intact_after_it_was_written_and_read(fields: dict[str, Any]) -> None:
    sealed = entry(**fields).sealed()
    assert AuditEntry.model_validate_json(sealed.to_json()).is_intact
    assert AuditEntry.model_validate_json(sealed.model_dump_json()).is_intact
