"""The short form of the attacks: an admitted person and a stranger attack one agent of ten, and all others are answered.

`make chaos` runs all attacks, and longer; its table is docs/chaos.md.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.attack_run import AttackResult, run_attack
from tests.chaos.attacks import ATTACKS
from tests.support.servers.server import XmppServer

SECONDS = 2.0
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))

SHORT_ATTACKS = [attack.name for attack in ATTACKS.values() if attack.is_short]


def _attack(server: XmppServer, attack: str, tmp_path: Path, *, is_admitted: bool) -> AttackResult:
    print(f"CHAOS_SEED={SEED}")
    return run_attack(server, attack, tmp_path, is_admitted=is_admitted, seconds=SECONDS, seed=SEED)


@pytest.mark.parametrize("attack", SHORT_ATTACKS)
def test_under_an_attack_everybody_else_is_answered_and_no_stream_is_lost(
    real_server: XmppServer, attack: str, tmp_path: Path
) -> None:
    result = _attack(real_server, attack, tmp_path, is_admitted=True)
    assert result.is_everything_answered, result.row
    assert result.lost_streams == 0
    assert not result.errors


def test_an_attack_by_a_stranger_changes_nothing_for_others(real_server: XmppServer, tmp_path: Path) -> None:
    result = _attack(real_server, "messages in one thread", tmp_path, is_admitted=False)
    assert result.is_everything_answered, result.row
    assert result.lost_streams == 0
    assert not result.errors
