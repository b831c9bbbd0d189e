"""Cards: the agents that fit are found, the least busy one is chosen, and cards of other platforms are read with care."""

from __future__ import annotations

from typing import Any

import pytest

from spade_coreason import AgentCard, AgentDefinition, Capability
from spade_coreason.domain.cards import (
    accepts_payload,
    apply_state,
    build_card,
    compute_cards_version,
    dump_card,
    dump_state,
    find_cards,
    load_cards,
    order_by_load,
)

TEXT = {"type": "string"}


def card(name: str, *capabilities: Capability, online: bool = True, turns: int = 0, description: str = "") -> AgentCard:
    return AgentCard(f"{name}@localhost", name, description, "1.0.0", capabilities, online, turns)


def names(cards: list[AgentCard]) -> list[str]:
    return [found.name for found in cards]


def schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


TRANSLATOR = card(
    "polyglot",
    Capability("translate", "Translates texts into other languages", inputs=schema(["text", "to"], text=TEXT, to=TEXT)),
    Capability("detect", "Detects the language of a text"),
)
BAKER = card("baker", Capability("chat", "Sells bread and cakes"))
CARDS = [TRANSLATOR, BAKER]


def test_without_criteria_all_agents_are_found_in_the_order_of_their_jids() -> None:
    assert names(find_cards(CARDS)) == ["baker", "polyglot"]


def test_a_capability_is_found_by_its_whole_name() -> None:
    assert names(find_cards(CARDS, capability="translate")) == ["polyglot"]
    assert names(find_cards(CARDS, capability="trans")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Who can translate?", ["polyglot"]),
        ("I need a translation", ["polyglot"]),
        ("bread", ["baker"]),
        ("a cake", ["baker"]),
        ("the polyglot", ["polyglot"]),
        ("quantum mechanics", []),
        ("bread, cakes and languages", ["baker", "polyglot"]),
        ("cakes, texts and languages", ["polyglot", "baker"]),
    ],
)
def test_words_are_found_in_any_form_and_the_best_match_comes_first(text: str, found: list[str]) -> None:
    assert names(find_cards(CARDS, text=text)) == found


def test_all_criteria_have_to_hold_and_the_schema_is_that_of_the_named_capability() -> None:
    text_only = schema(["text"], text=TEXT)
    assert names(find_cards(CARDS, capability="translate", text="bread")) == []
    assert names(find_cards(CARDS, accepts=text_only)) == ["baker", "polyglot"]  # detect and chat take anything
    assert names(find_cards(CARDS, capability="translate", accepts=text_only)) == []
    assert names(find_cards(CARDS, capability="translate", accepts=schema(["text", "to"], text=TEXT, to=TEXT))) == ["polyglot"]


@pytest.mark.parametrize(
    ("inputs", "payload", "is_accepted"),
    [
        ({}, {}, True),
        ({}, schema(["a"], a=TEXT), True),
        (schema(["a"], a=TEXT), {}, False),
        (schema(["a"], a=TEXT), schema([], a=TEXT), True),
        (schema(["a"], a={"type": "number"}), schema(["a"], a={"type": "integer"}), True),
        (schema(["a"], a={"type": "integer"}), schema(["a"], a={"type": "number"}), False),
        (schema(["a"], a=TEXT), schema(["a"], a={"type": ["string", "null"]}), False),
        (schema(["a"], a={"type": ["string", "null"]}), schema(["a"], a=TEXT), True),
        (schema([], a=TEXT), schema(["a"], a={"type": "integer"}), False),
        (schema([], a=TEXT), schema([], a={"type": "integer"}), True),  # the caller may leave it out
        (schema(["a"], a=TEXT), schema(["a", "b"], a=TEXT, b=TEXT), True),
        (schema(["a"], a=TEXT) | {"additionalProperties": False}, schema(["a", "b"], a=TEXT, b=TEXT), False),
        (schema(["a"], a=True), schema(["a"], a=TEXT), True),
        (schema([], a=False), schema(["a"], a=TEXT), False),
        ({"required": ["a"]}, schema(["a"], a=TEXT), True),
        ({"required": "a", "properties": [1]}, schema(["a"], a=TEXT), True),
    ],
)
def test_a_payload_is_accepted_if_required_properties_are_known_on_both_sides(
    inputs: dict[str, Any], payload: dict[str, Any], is_accepted: bool
) -> None:
    assert accepts_payload(inputs, payload) is is_accepted


def test_the_least_busy_agent_is_asked_first_and_then_the_one_asked_longest_ago() -> None:
    cards = [card("a", turns=2), card("b"), card("c"), card("d", online=False), card("e", turns=1)]
    assert names(order_by_load(cards, {}, {})) == ["b", "c", "e", "a"]
    assert names(order_by_load(cards, {}, {"b@localhost": 7, "c@localhost": 3})) == ["c", "b", "e", "a"]
    assert names(order_by_load(cards, {"b@localhost": 3}, {})) == ["c", "e", "a", "b"]


def test_a_card_has_only_the_public_part_of_a_manifest() -> None:
    manifest = AgentDefinition.simple("notes", version="1.2.3", description="Takes notes", system_prompt="be secret")
    built = build_card("notes@localhost", manifest, is_online=True, turns_in_flight=2)
    assert (built.name, built.version, built.description) == ("notes", "1.2.3", "Takes notes")
    assert (built.is_online, built.turns_in_flight) == (True, 2)
    assert [each.name for each in built.capabilities] == ["chat"]
    assert "secret" not in str(dump_card(built))


def test_a_card_survives_its_way_to_another_platform() -> None:
    assert load_cards([dump_card(one) for one in CARDS]) == CARDS
    assert apply_state(TRANSLATOR, dump_state(card("x", online=False, turns=4))) == AgentCard(
        TRANSLATOR.jid, "polyglot", "", "1.0.0", TRANSLATOR.capabilities, False, 4
    )


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "a text",
        {},
        {"jid": "no address"},
        {"jid": 7},
        {"name": None},
        {"capabilities": [7]},
        {"capabilities": [{"name": "x"}]},
        {"capabilities": [{"name": "x", "description": "", "type": "atomic", "inputs": [], "outputs": {}}]},
    ],
)
def test_a_malformed_card_is_left_out_and_the_others_are_read(broken: Any) -> None:
    malformed = {**dump_card(BAKER), **broken} if isinstance(broken, dict) and broken else broken
    assert load_cards([malformed, dump_card(TRANSLATOR)]) == [TRANSLATOR]
    assert load_cards(broken) == []


def test_a_card_of_another_platform_is_cut_to_a_size_and_its_state_is_typed() -> None:
    huge = dump_card(BAKER) | {"description": "x" * 5000, "turns_in_flight": "many", "is_online": 1}
    [read] = load_cards([huge])
    assert (len(read.description), read.turns_in_flight, read.is_online) == (1000, 0, False)


def test_the_version_of_a_list_changes_with_cards_and_rules_and_not_with_the_load() -> None:
    version = compute_cards_version(CARDS, ["rules"])
    busy = [apply_state(one, {"is_online": False, "turns_in_flight": 9}) for one in CARDS]
    assert compute_cards_version(busy, ["rules"]) == version
    assert compute_cards_version(CARDS[:1], ["rules"]) != version
    assert compute_cards_version(CARDS, ["other rules"]) != version
