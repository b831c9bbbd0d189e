"""Decisions in the page under `kill -9`: an approved call is executed once, and a decision that is sent again counts once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.hosting import PROJECT, write_settings
from tests.support.killed_process import BEGIN, PROGRAM
from tests.support.line_log import read_lines
from tests.support.long_forms import seeded_random, short_and_long_in_release
from tests.support.page import ADA, CAROL, Visitor, decide, log_in
from tests.support.program import COMMAND, RunningCommand, run_in_background
from tests.support.wait import eventually

AGENT = "paying@localhost"
ANSWERED = "You have answered this already."
_MAX_CALLS = 30_000
"""The most function calls after a decision until a platform is killed: by then the call is executed, and answered."""


@dataclass(frozen=True)
class KilledPlatform:
    """A platform in this directory, on the embedded server, whose agent pays what Carol approves."""

    directory: Path
    port: int

    @property
    def closed(self) -> Path:
        """The file that keeps the agent from going on."""
        return self.directory / "closed"

    @property
    def paid(self) -> list[str]:
        """The payments of the agent, in their order."""
        return [query for [query] in read_lines(self.directory / "log")]

    @contextmanager
    def run(self, kill_at: int = 0) -> Iterator[RunningCommand]:
        """Run it, and kill it at the end. After the signal BEGIN it kills itself after so many function calls."""
        program = [*PROGRAM, str(kill_at)] if kill_at else COMMAND
        arguments = ("up", "-c", str(self.directory / "platform.yaml"))
        with run_in_background(*arguments, cwd=PROJECT, until="^Ready", program=program) as platform:
            yield platform

    async def log_in(self, person: str) -> Visitor:
        """Let a person use a link. The session goes on after a kill."""
        operation = OPERATIONS["logins.create"]
        arguments = operation.read_arguments({"person": person})
        found = await asyncio.to_thread(call_platform, self.directory / "data", operation, arguments)
        url, _, link = str(found[0]).partition("/login#")
        return await log_in(url, link)


@pytest.fixture
def killed(tmp_path: Path) -> KilledPlatform:
    """A platform that is to be killed."""
    killed = KilledPlatform(tmp_path, find_free_ports(1)[0])
    (tmp_path / "log").touch()
    options = {"log": str(tmp_path / "log"), "closed": str(killed.closed)}
    settings = {
        "server": {"mode": "embedded"},
        "data_dir": str(tmp_path / "data"),
        "access": {"allow": ["*"], "groups": {"approvers": [CAROL]}},
        "web": {"port": killed.port},
        "agents": [{"jid": AGENT, "agent": "tests.support.paying_agent:PayingAgent", "options": options}],
    }
    write_settings(tmp_path / "platform.yaml", settings)
    return killed


async def ask(ada: Visitor, carol: Visitor, query: str) -> str:
    """Ask for a payment, in a conversation of its own. Return the code that Carol sees."""
    assert (await ada.ask(query, AGENT, thread=query)).status_code == 200
    async with carol.feed() as feed:
        while f'"{query}"' not in (question := await feed.find_question(AGENT))["call"]:
            pass
    return str(question["code"])


async def read_answer(ada: Visitor, query: str) -> str:
    """Wait for the answer of a conversation."""
    [turn] = await ada.turns(1, AGENT, query)
    return str(turn["parts"][-1]["blocks"][-1][2][0])


async def test_a_call_that_was_approved_before_a_kill_is_executed_once_after_it(killed: KilledPlatform) -> None:
    with killed.run() as platform:
        ada, carol = await killed.log_in(ADA), await killed.log_in(CAROL)
        code = await ask(ada, carol, "rent")
        killed.closed.touch()
        assert await decide(carol, code, agent=AGENT) == (200, "")
        platform.process.send_signal(signal.SIGKILL)
        assert platform.process.wait() == -signal.SIGKILL
    assert killed.paid == []
    with killed.run():
        for decision in ("approve", "deny", "approve"):
            assert await decide(carol, code, decision, agent=AGENT) == (200, ANSWERED)
        assert killed.paid == []
        killed.closed.unlink()
        assert await read_answer(ada, "rent") == "paid rent"
        assert await decide(carol, code, agent=AGENT) == (200, ANSWERED)
    with killed.run():
        assert await decide(carol, code, agent=AGENT) == (200, ANSWERED)
        assert await read_answer(ada, "rent") == "paid rent"
    assert killed.paid == ["rent"]


@pytest.mark.timeout(3000)
@short_and_long_in_release("PAGE_KILLS", 4, 40)
async def test_a_decision_that_the_platform_is_killed_in_counts_once_when_it_is_sent_again(
    killed: KilledPlatform, count: int
) -> None:
    """The instant is any one from the first call of the decision until after the answer, an early one in half of the rounds."""
    rng, visitors, acknowledged, uncertain = seeded_random(), list[Visitor](), 0, 0
    queries = [f"rent {number}" for number in range(count)]
    for number, query in enumerate(queries):
        kill_at = rng.randint(1, _MAX_CALLS if number % 2 else _MAX_CALLS // 10)
        was_acknowledged = False
        with killed.run(kill_at) as platform:
            visitors = visitors or [await killed.log_in(person) for person in (ADA, CAROL)]
            ada, carol = visitors
            code = await ask(ada, carol, query)
            platform.process.send_signal(BEGIN)
            try:
                assert await decide(carol, code, agent=AGENT) == (200, "")
                was_acknowledged = True
                await eventually(lambda query=query: query in killed.paid or platform.process.poll() is not None)  # type: ignore[misc]  # as in test_question_kills
            except httpx.TransportError:
                assert platform.process.wait() == -signal.SIGKILL
        with killed.run():
            _, repeated = await decide(carol, code, agent=AGENT)
            assert repeated == ANSWERED or not (was_acknowledged or repeated)
            assert await decide(carol, code, agent=AGENT) == (200, ANSWERED)
            assert await decide(carol, code, "deny", agent=AGENT) == (200, ANSWERED)
            answer = await read_answer(ada, query)
        assert answer in (f"paid {query}", f"uncertain {query}")
        assert killed.paid.count(query) in ((1,) if answer.startswith("paid") else (0, 1))
        acknowledged += was_acknowledged
        uncertain += answer.startswith("uncertain")
    assert set(killed.paid) <= set(queries)
    print(f"{count} kills: {acknowledged} after the acknowledgement, {uncertain} in the middle of the call")
