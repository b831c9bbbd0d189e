"""The cards of agents: what each can do, and the pure decisions of finding and choosing agents by them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..contracts import AgentDefinition
from .callers import refuse_caller
from .jid import bare_jid, parse_jid
from .texts.text import extract_keywords, text_coverage

_WORD_BOUNDARY = re.compile(r"[_-]+|(?<=[a-z0-9])(?=[A-Z])")
# A card of another platform is dropped if it has more, or a text is cut.
_MAX_CAPABILITIES = 100
_MAX_CHARACTERS = 1000
_MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Capability:
    """One thing that an agent can do.

    On a card it has everything that the manifest of the agent publishes. `Capability("translate")` names one to ask for: see
    `Peers.ask`.
    """

    name: str
    """The name, by which agents are found and asked."""
    description: str = ""
    """A sentence about it."""
    type: str = "atomic"
    """`atomic`, or `streaming` for an answer in pieces."""
    inputs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The JSON Schema of the payload; empty for any payload."""
    outputs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The JSON Schema of the answer's data; empty for any answer."""


@dataclass(frozen=True, slots=True)
class AgentCard:
    """The public description of an agent, with its state at the time when it was asked for."""

    jid: str
    """The bare JID of the agent."""
    name: str
    """The name from its manifest."""
    description: str = ""
    """A sentence about the agent: that of its first capability which has one."""
    version: str = ""
    """The version of the agent (SemVer)."""
    capabilities: tuple[Capability, ...] = ()
    """The capabilities, in the order of its manifest."""
    is_online: bool = False
    """True if the agent is connected and takes requests. It is False while an operator has paused the agent."""
    turns_in_flight: int = 0
    """The number of its conversations with a running or waiting turn."""


def build_card(jid: str, manifest: AgentDefinition, *, is_online: bool = False, turns_in_flight: int = 0) -> AgentCard:
    """Build the card of an agent. It has nothing of the configuration, prompts, dependencies and policy of the manifest."""
    # The keys are listed one by one, so that keys added to the manifest later do not become public by accident.
    capabilities = tuple(Capability(c.name, c.description, c.type, c.inputs, c.outputs) for c in manifest.capabilities)
    description = next((capability.description for capability in capabilities if capability.description), "")
    metadata = manifest.metadata
    return AgentCard(jid, metadata.name, description, metadata.version, capabilities, is_online, turns_in_flight)


# Finding


def find_cards(
    cards: Iterable[AgentCard],
    *,
    capability: str | None = None,
    text: str | None = None,
    accepts: Mapping[str, Any] | None = None,
) -> list[AgentCard]:
    """Return the cards for which all given criteria hold; see `Peers.find`.

    With a `text`, the best match comes first. Otherwise the cards are in the order of their JIDs.
    """
    found = sorted((card for card in cards if _has_capability(card, capability, accepts)), key=lambda card: card.jid)
    if text is None:
        return found
    keywords = extract_keywords(text)
    scores = {card.jid: text_coverage(keywords, _text_of(card)) for card in found}
    return sorted((card for card in found if scores[card.jid] > 0), key=lambda card: -scores[card.jid])


def _has_capability(card: AgentCard, name: str | None, accepts: Mapping[str, Any] | None) -> bool:
    """Return True if one capability of the agent has the name and accepts the payload, as far as they are given."""
    if name is None and accepts is None:
        return True
    return any(
        name in (None, capability.name) and (accepts is None or accepts_payload(capability.inputs, accepts))
        for capability in card.capabilities
    )


def _text_of(card: AgentCard) -> str:
    capabilities = (f"{_split_name(c.name)}. {c.description}" for c in card.capabilities)
    return "\n".join([_split_name(card.name), card.description, *capabilities])


def _split_name(name: str) -> str:
    """Return a name with its words apart: `translate_text` and `TranslateText` as "translate text"."""
    return _WORD_BOUNDARY.sub(" ", name)


def accepts_payload(inputs: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
    """Return True if a capability with the JSON Schema `inputs` accepts what the JSON Schema `payload` describes.

    Each property that `inputs` requires is one of `payload`, with a type that fits. Each property that `payload` requires is
    allowed by `inputs`. Only the names and types of properties are compared, not the schemas within them.
    """
    expected, sent = _properties_of(inputs), _properties_of(payload)
    if not all(name in sent and _fits(sent[name], expected.get(name, {})) for name in _required_by(inputs)):
        return False
    allows_others = inputs.get("additionalProperties", True) is not False or bool(inputs.get("patternProperties"))
    return all(
        _fits(sent.get(name, {}), expected[name]) if name in expected else allows_others for name in _required_by(payload)
    )


def _properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _required_by(schema: Mapping[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list | tuple) else []


def _fits(sent: Any, expected: Any) -> bool:
    """Return True if each type that is sent is one of the expected types. A schema without types has all of them."""
    if expected is False:
        return False
    sent_types, expected_types = _types_of(sent), _types_of(expected)
    if not sent_types or not expected_types:
        return True
    return all(kind in expected_types or (kind == "integer" and "number" in expected_types) for kind in sent_types)


def _types_of(schema: Any) -> frozenset[str]:
    types = schema.get("type", ()) if isinstance(schema, Mapping) else ()
    return frozenset([types] if isinstance(types, str) else (kind for kind in types if isinstance(kind, str)))


# Choosing


def order_by_load(
    cards: Iterable[AgentCard], own_requests: Mapping[str, int], last_asked: Mapping[str, int]
) -> list[AgentCard]:
    """Return the agents that are online, in the order in which to ask them: the least busy first.

    `own_requests` are the open requests of the agent that asks, by JID: they may be newer than the card. Of equally busy
    agents, the one that was asked longest ago comes first; `last_asked` numbers the requests.
    """
    online = (card for card in cards if card.is_online)
    return sorted(
        online,
        key=lambda card: (max(card.turns_in_flight, own_requests.get(card.jid, 0)), last_asked.get(card.jid, 0), card.jid),
    )


# Cards as JSON


def dump_card(card: AgentCard) -> dict[str, Any]:
    """Return a card as a JSON object."""
    capabilities = [
        {"name": c.name, "description": c.description, "type": c.type, "inputs": c.inputs, "outputs": c.outputs}
        for c in card.capabilities
    ]
    return {
        "jid": card.jid,
        "name": card.name,
        "description": card.description,
        "version": card.version,
        "capabilities": capabilities,
        **dump_state(card),
    }


def dump_state(card: AgentCard) -> dict[str, Any]:
    """Return the part of a card that changes often, as a JSON object."""
    return {"jid": card.jid, "is_online": card.is_online, "turns_in_flight": card.turns_in_flight}


def load_cards(dumped: object) -> list[AgentCard]:
    """Read a list of cards that another platform sent. Cards that are malformed are left out, and long texts are cut."""
    cards = (load_card(item) for item in dumped) if isinstance(dumped, list) else ()
    return [card for card in cards if card is not None]


def load_card(dumped: object) -> AgentCard | None:
    """Read a card. None if it is malformed."""
    if not isinstance(dumped, Mapping) or not isinstance(dumped.get("capabilities"), list):
        return None
    try:
        jid = bare_jid(parse_jid(refuse_caller(dumped["jid"])))
        capabilities = tuple(map(_load_capability, dumped["capabilities"][:_MAX_CAPABILITIES]))
        name = _read_text(dumped["name"], _MAX_NAME_CHARACTERS)
        card = AgentCard(jid, name, _read_text(dumped["description"]), _read_text(dumped["version"]), capabilities)
        return apply_state(card, dumped)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _load_capability(dumped: Mapping[str, Any]) -> Capability:
    inputs, outputs = dumped["inputs"], dumped["outputs"]
    if not isinstance(inputs, dict) or not isinstance(outputs, dict):
        raise TypeError("a JSON Schema is no object")
    name, description, kind = (_read_text(dumped[key]) for key in ("name", "description", "type"))
    return Capability(name, description, kind, inputs, outputs)


def _read_text(text: object, max_characters: int = _MAX_CHARACTERS) -> str:
    if not isinstance(text, str):
        raise TypeError("not a text")
    return text[:max_characters]


def apply_state(card: AgentCard, state: Mapping[str, Any]) -> AgentCard:
    """Return a card with the state that `dump_state` wrote. A value of another type counts as its default."""
    turns = state.get("turns_in_flight")
    count = max(0, turns) if isinstance(turns, int) else 0
    return replace(card, is_online=state.get("is_online") is True, turns_in_flight=count)


def compute_cards_version(cards: Sequence[AgentCard], *rules: object) -> str:
    """Return a hash over cards without their state, and over `rules`, which are JSON."""
    dumped = [
        {key: item for key, item in dump_card(card).items() if key not in ("is_online", "turns_in_flight")} for card in cards
    ]
    text = json.dumps([dumped, rules], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
