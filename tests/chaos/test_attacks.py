"""The short form of the attacks: an admitted person and a stranger attack one of three agents, and all others are answered.

`make chaos` runs all attacks, and longer; its table is docs/development/chaos.md.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.attack_run import AttackResult, attacked_ejabberd, attacked_prosody, run_attack
from tests.chaos.attacks import ATTACKS
from tests.support.servers.ejabberd import installed as ejabberd_installed
from tests.support.servers.prosody import installed as prosody_installed
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer

SECONDS = 1.0
AGENTS = 3
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))

SERVERS = {"prosody": attacked_prosody, "ejabberd": attacked_ejabberd}
INSTALLED = {"prosody": prosody_installed, "ejabberd": ejabberd_installed}
SHORT_ATTACKS = [attack.name for attack in ATTACKS.values() if attack.is_short]


@pytest.fixture(params=["prosody", pytest.param("ejabberd", marks=pytest.mark.release)], scope="module")
def attacked_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[XmppServer]:
    """A server that accepts large stanzas; the test runs on Prosody and on ejabberd."""
    require({"prosody": "Prosody", "ejabberd": "ejabberd"}[request.param], INSTALLED[request.param]())
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


def _attack(server: XmppServer, attack: str, tmp_path: Path, *, is_admitted: bool) -> AttackResult:
    print(f"CHAOS_SEED={SEED}")
    return run_attack(server, attack, tmp_path, is_admitted=is_admitted, seconds=SECONDS, seed=SEED, agent_count=AGENTS)


@pytest.mark.servers
@pytest.mark.parametrize(
    "attack", [SHORT_ATTACKS[0], *(pytest.param(name, marks=pytest.mark.release) for name in SHORT_ATTACKS[1:])]
)
def test_under_an_attack_everybody_else_is_answered_and_no_stream_is_lost(
    attacked_server: XmppServer, attack: str, tmp_path: Path
) -> None:
    result = _attack(attacked_server, attack, tmp_path, is_admitted=True)
    assert result.is_everything_answered, result.row
    assert result.lost_streams == 0
    assert not result.errors


@pytest.mark.servers
def test_an_attack_by_a_stranger_changes_nothing_for_others(attacked_server: XmppServer, tmp_path: Path) -> None:
    result = _attack(attacked_server, "messages in one thread", tmp_path, is_admitted=False)
    assert result.is_everything_answered, result.row
    assert result.lost_streams == 0
    assert not result.errors
