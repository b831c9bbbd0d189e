"""`agents` lists the agents of the running platform with their capabilities."""

from __future__ import annotations

import json

from tests.cli.conftest import Invoke


def test_agents_shows_state_capabilities_and_description(invoke_beside_platform: Invoke) -> None:
    shown = invoke_beside_platform("agents")
    assert (shown.exit_code, shown.stderr) == (0, "")
    header, *rows = shown.stdout.splitlines()
    assert header.split() == ["AGENT", "STATE", "CAPABILITIES", "DESCRIPTION"]
    assert sorted(row.split()[:3] for row in rows) == [
        [f"{name}@localhost", "online", "chat"] for name in ("echo", "moody", "notes")
    ]


def test_agents_prints_the_cards_as_json(invoke_beside_platform: Invoke) -> None:
    cards = {card["jid"]: card for card in json.loads(invoke_beside_platform("agents", "--json").stdout)}
    echo = cards["echo@localhost"]
    assert (echo["state"], echo["name"], echo["is_online"], echo["turns_in_flight"]) == ("online", "EchoAgent", True, 0)
    assert [capability["name"] for capability in echo["capabilities"]] == ["chat"]
    assert echo["capabilities"][0]["inputs"]["properties"] == {"query": {"type": "string"}}


def test_the_status_has_no_cards(invoke_beside_platform: Invoke) -> None:
    agents = json.loads(invoke_beside_platform("status", "--json").stdout)["agents"]
    assert all("card" not in agent for agent in agents)


def test_without_a_platform_agents_says_how_to_start_one(invoke: Invoke) -> None:
    failed = invoke("agents")
    assert failed.exit_code == 4
    assert "spade-coreason up" in failed.stderr
