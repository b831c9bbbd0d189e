"""The short form of the attacks that need no flood. `make chaos` repeats them for longer, on both servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.single_texts import SINGLE_TEXTS, run_single_text
from tests.support.long_forms import short_and_long_in_release
from tests.support.servers.server import XmppServer

SECONDS = float(os.environ.get("SINGLE_TEXT_SECONDS", "0"))
SENT_BYTES = 300_000_000 if SECONDS else 100_000_000
SERVERS = ["prosody", "ejabberd"] if SECONDS else ["prosody"]
WORST = (
    "a pattern that backtracks",
    "a turn that ends the process",
    "a model that is busy until 9999",
    "bodies of many values",
)
"""What blocks an event loop, ends a process, overflows a time, and takes long to parse."""


@pytest.mark.timeout(300 + 4 * SECONDS)
@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(
    "name", [name if name in WORST else pytest.param(name, marks=pytest.mark.release) for name in SINGLE_TEXTS]
)
@short_and_long_in_release("OTHER_AGENTS", short=2, long=9)
def test_other_agents_and_people_do_not_notice(
    name: str, kind: str, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: XmppServer = request.getfixturevalue(kind)
    text = SINGLE_TEXTS[name]
    assert run_single_text(server, text, tmp_path, other_agents=count, seconds=SECONDS, sent_bytes=SENT_BYTES)
