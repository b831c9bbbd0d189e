"""The domain of callers of doors is refused wherever a JID or a domain is configured, in any spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from spade_coreason.exceptions import ConfigError
from tests.support.configurations import load_config

ACCOUNT = {"jid": "echo@example.org", "agent": "agents.echo:EchoAgent", "password": "x"}
REMEDY = "callers of doors get access by a key: spade-coreason keys create"


def with_agent(**keys: Any) -> dict[str, Any]:
    return {"server": {"mode": "external"}, "agents": [ACCOUNT | keys]}


def place_configurations(address: str) -> dict[str, dict[str, Any]]:
    """Return a configuration for each place where an address can be written, by that place."""
    jid = f"website@{address}"
    access = {
        "access.allow[0]": {"allow": [jid]},
        "access.operators[0]": {"operators": [jid]},
        "access.groups.staff[0]": {"groups": {"staff": [jid]}},
        "access.rooms[0]": {"rooms": [jid]},
    }
    domains = {
        "access.allow[0]": {"allow": [address]},
        "access.groups.staff[0]": {"groups": {"staff": [address]}},
        "access.rooms[0]": {"rooms": [address]},
        "access.trusted_domains[0]": {"trusted_domains": [address]},
    }
    places: dict[str, dict[str, Any]] = {}
    for key, value in access.items():
        places[key], places[f"agents[0].{key}"] = {"access": value}, with_agent(access=value)
    for key, value in domains.items():
        places[f"{key} "], places[f"agents[0].{key} "] = {"access": value}, with_agent(access=value)
    return places | {
        "agents[0].jid": with_agent(jid=jid),
        "agents[0].jid ": with_agent(jid=f"{jid}/desk"),
        "agents[0].rooms[0].jid": with_agent(rooms=[{"jid": jid}]),
        "peers.topics": {"peers": {"topics": jid}},
        "peers.directories[0]": {"peers": {"directories": [jid]}},
        "server.domain": {"server": {"mode": "external", "domain": address}},
        "server.people[0]": {"server": {"people": [jid]}},
    }


@pytest.mark.parametrize(
    "address", ["callers.invalid", "shop.CALLERS.invalid.", "xn--callers-.invalid", "call\xaders。invalid"]
)
@pytest.mark.parametrize("place", place_configurations(""))
def test_the_domain_of_callers_is_refused_with_the_remedy(project: Path, place: str, address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(project, yaml.safe_dump(place_configurations(address)[place], allow_unicode=True))
    assert str(caught.value).startswith(f"config/platform.yaml: {place.strip()}: ")
    assert str(caught.value).endswith(REMEDY)
    assert "\n" not in str(caught.value)
