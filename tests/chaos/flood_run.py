"""A flood that waits for nobody: one sender's messages to an agent and to a bare slixmpp echo, while other people ask both.

Server, platform, echo, attacker and people are a process each. The attacker alternates between the two, and sends as fast as
the server reads. So both have the same load at the same time, and what the server cannot deliver in time it can deliver to
neither.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from spade_coreason.domain.jid import bare_jid
from tests.chaos import askers, attacks, echo
from tests.chaos.attack_run import (
    count_sessions,
    cpu_s,
    end_child,
    format_s,
    percentile,
    run_child,
    run_platform,
    wait_until_idle,
    write_configuration,
)
from tests.support.errors import errors_in
from tests.support.servers.raw_client import login_at
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S

ASKERS = 5
_INTERVAL_S = 1 / 3
_LAST_ANSWERS_S = 60.0
_MAX_FLOOD_S = 60.0


@dataclass(frozen=True)
class Share:
    """What one of the two targets did: the answers to other people, its processor time, and the sessions that it lost."""

    tally: askers.Tally
    cpu_s: float
    lost_streams: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        tally = self.tally
        times = [format_s(percentile(tally, share)) for share in (0.5, 0.99)]
        counts = f"{tally['answered']}/{tally['asked']}", str(tally["errors"])
        return *counts, *times, f"{self.cpu_s:.1f} s", str(self.lost_streams)

    @property
    def answered_share(self) -> float:
        """The share of the questions that were answered."""
        return self.tally["answered"] / self.tally["asked"]


@dataclass(frozen=True)
class FloodResult:
    """The measurements of one flood."""

    server: str
    attacker: str
    """`admitted` or `stranger`."""
    sent: int
    """The number of messages to each target."""
    sending_s: float
    """The time in seconds until the server had read all messages."""
    server_cpu_s: float
    agent: Share
    echo: Share
    errors: tuple[str, ...]
    """The lines of the platform's log of level ERROR."""

    @property
    def problems(self) -> list[str]:
        """The limits that do not hold, in words. The server may return questions; the agent may lose none."""
        tally = self.agent.tally
        found = {
            "a question has no answer and did not come back": tally["answered"] + tally["errors"] < tally["asked"],
            "a question has a second answer, or somebody else's": bool(tally["twice"] or tally["crossed"]),
            "the log has errors": bool(self.errors),
        }
        return [problem for problem, is_found in found.items() if is_found]

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        cells = self.server, self.attacker, f"{self.sent:,}", f"{self.sending_s:.1f} s", f"{self.server_cpu_s:.1f} s"
        return *cells, *self.agent.cells, *self.echo.cells


def take_median(results: list[FloodResult]) -> FloodResult:
    """Return the run whose agent answered the median share of the questions: the lower one of two."""
    return sorted(results, key=lambda result: result.agent.answered_share)[(len(results) - 1) // 2]


COLUMNS = (
    "server",
    "by",
    "messages to each",
    "read in",
    "server CPU",
    *(
        f"{target} {column}"
        for target in ("agent", "echo")
        for column in ("answered", "returned", "p50", "p99", "CPU", "streams lost")
    ),
)


def run_flood(
    server: XmppServer, name: str, directory: Path, *, is_admitted: bool, messages: int, seconds: float, seed: int
) -> FloodResult:
    """Flood an agent and an echo with messages each, while people ask both. `directory` gets the data and the log.

    The people ask for some seconds, and until the server has read the flood. `name` is the server's in the table.
    """
    agent, echo_account, pacer, *people = [asyncio.run(server.account()) for _ in range(3 + ASKERS)]
    attacker = asyncio.run(server.account(domain=None if is_admitted else OTHER_DOMAIN))
    agent_jid, echo_jid = bare_jid(agent[0]), bare_jid(echo_account[0])
    configuration = write_configuration(server, directory, [agent])
    echo_task = echo.Task(login=login_at(server, echo_account), askers=[jid for jid, _ in (*people, pacer)])
    asker_task = askers.Task(
        logins=[login_at(server, person) for person in people],
        intervals_s={agent_jid: _INTERVAL_S, echo_jid: _INTERVAL_S},
        wait_s=_LAST_ANSWERS_S,
    )
    attack_task = attacks.Task(
        attack="messages in one thread",
        login=login_at(server, attacker),
        pacer=login_at(server, pacer),
        targets=[agent_jid, echo_jid],
        is_admitted=is_admitted,
        link="",
        seconds=_MAX_FLOOD_S,
        seed=seed,
        max_sent=messages,
    )
    with ExitStack() as stack:
        platform = stack.enter_context(run_platform(configuration))
        echo_process = stack.enter_context(run_child("tests.chaos.echo", echo_task))
        attacker_process = stack.enter_context(run_child("tests.chaos.attacks", attack_task))
        asker_process = stack.enter_context(run_child("tests.chaos.askers", asker_task))
        wait_until_idle(platform.pid, share=0.5)
        pids = platform.pid, echo_process.pid, server.pid
        sessions_before, before = count_sessions(configuration), [cpu_s(pid) for pid in pids]
        end_at = time.monotonic() + seconds
        counts = end_child(attacker_process, timeout_s=_MAX_FLOOD_S + 2 * TIMEOUT_S)
        time.sleep(max(0.0, end_at - time.monotonic()))  # the people go on to ask
        tallies = end_child(asker_process, timeout_s=_LAST_ANSWERS_S + TIMEOUT_S)
        used_s = [cpu_s(pid) - cpu_before for pid, cpu_before in zip(pids, before, strict=True)]
        lost_streams = count_sessions(configuration) - sessions_before
        echo_state = end_child(echo_process, timeout_s=TIMEOUT_S)
    errors = errors_in(configuration.with_suffix(".log").read_text(errors="replace"))
    return FloodResult(
        server=name,
        attacker="admitted" if is_admitted else "stranger",
        sent=counts["sent"],
        sending_s=counts["seconds"],
        server_cpu_s=used_s[2],
        agent=Share(tallies[agent_jid], used_s[0], lost_streams),
        echo=Share(tallies[echo_jid], used_s[1], echo_state["sessions"] - 1 + (not echo_state["is_connected"])),
        errors=tuple(errors),
    )
