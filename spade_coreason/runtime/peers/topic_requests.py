"""The requests to a topic broker and their answers, and the items that it delivers, on the side of other agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from ...contracts import AgentRequest
from ...domain.messages import InboundRequest
from ...domain.topics import PUBLISH, SUBSCRIBE, TOPIC_ITEM, check_topic, derive_topic_session, read_item_metadata
from ...exceptions import PeerError, PeerRefusedError


def make_publish_request(
    topic: str, payload: Mapping[str, Any], request_id: UUID | None, current: AgentRequest | None
) -> AgentRequest:
    """Make the request that publishes a payload. It continues the lineage of `current`, the request of this turn, if any.

    ValueError or TypeError for a wrong topic or payload. All requests about one topic are one conversation, so that they keep
    their order.
    """
    if not isinstance(payload, Mapping):
        raise TypeError(f"the payload of an item is a JSON object, not {type(payload).__name__}")
    return AgentRequest(
        request_id=request_id or uuid4(),
        session_id=derive_topic_session(check_topic(topic)),
        root_request_id=None if current is None else current.root_request_id,
        parent_request_id=None if current is None else current.request_id,
        payload={"topic": topic, "payload": dict(payload)},
        metadata={"capability": PUBLISH},
    )


def read_item_id(broker: str, data: Sequence[Mapping[str, Any]]) -> str:
    """Return the item id from the data blocks of an answer. PeerRefusedError if the broker refuses the topic."""
    values = data[0].get("data") if data else None
    if isinstance(values, Mapping):
        if isinstance(refused := values.get("refused"), str):
            raise PeerRefusedError(broker, f"refuses: {refused}")
        if isinstance(item_id := values.get("item_id"), str):
            return item_id
    raise PeerError(broker, "did not answer with the id of an item; is it a topic broker?")


def make_subscribe_request(patterns: Sequence[str]) -> AgentRequest:
    """Make the request that names all patterns of a subscriber. The broker removes others."""
    session_id = derive_topic_session("")
    return AgentRequest(session_id=session_id, payload={"patterns": list(patterns)}, metadata={"capability": SUBSCRIBE})


def read_refused_patterns(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the patterns that the broker refuses, from the data blocks of its answer."""
    values = data[0].get("data") if data else None
    refused = values.get("refused") if isinstance(values, Mapping) else None
    return [str(pattern) for pattern in refused] if isinstance(refused, list) else []


class ItemReader:
    """The reader of the items that `broker` (a bare JID, or None) delivers to the agent."""

    def __init__(self, broker: str | None) -> None:
        self._broker = broker

    def read(self, incoming: InboundRequest) -> InboundRequest:
        """Return a request with the metadata of its item, if it comes from the broker; what others say of one is removed."""
        if TOPIC_ITEM not in incoming.metadata:
            return incoming
        metadata = dict(incoming.metadata)
        description = metadata.pop(TOPIC_ITEM)
        if not incoming.is_from_room and incoming.owner == self._broker:
            metadata |= read_item_metadata(description) or {}
        return replace(incoming, metadata=metadata)
