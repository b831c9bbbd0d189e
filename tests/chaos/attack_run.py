"""One attack on one agent of ten, and what it does to everybody else.

Five processes: the server, the platform (`spade-coreason up`), a bare slixmpp echo, the attacker and the people who ask.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from spade_coreason.domain.jid import bare_jid
from tests.chaos import askers, attacks, echo
from tests.support.errors import errors_in
from tests.support.hosting import PROJECT, write_settings
from tests.support.program import COMMAND, clean_environment, run_command
from tests.support.servers.ejabberd import ejabberd
from tests.support.servers.prosody import prosody
from tests.support.servers.raw_client import login_at
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S
from tests.support.warm import WarmProcess

AGENTS = 10
ASKERS = 5
_ATTACKED_INTERVAL_S = 0.5
_OTHER_INTERVAL_S = 2.0
_MAX_RATIO = 3
_MAX_GROWTH = 1.2
_LAST_ANSWERS_S = 60.0
_IDLE_CPU = 0.05
"""The share of a processor below which the platform counts as idle."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


_STANZA_BYTES = 4 * 2**20
_MAX_UNACKED = 1_000_000
"""ejabberd reads acknowledgements behind the stanzas that it has still to send. With its default, 5,000, it ends even the
stream of a client that only acknowledges."""


def attacked_prosody(directory: Path) -> XmppServer:
    """Prepare a Prosody for attacks: it accepts large stanzas."""
    return prosody(directory, stanza_bytes=_STANZA_BYTES)


def attacked_ejabberd(directory: Path) -> XmppServer:
    """Prepare an ejabberd for attacks: it accepts large stanzas, and many unacknowledged ones."""
    return ejabberd(directory, stanza_bytes=_STANZA_BYTES, max_unacked=_MAX_UNACKED)


@dataclass(frozen=True)
class AttackResult:
    """The measurements of one attack. Memory and the database in bytes."""

    server: str
    attack: str
    attacker: str
    """`admitted` or `stranger`."""
    rate: float
    """Stanzas a second that the server took from the attacker, half of them for the agent."""
    others: askers.Tally
    """The answers of the nine other agents."""
    attacked: askers.Tally
    """The answers of the attacked agent to other people."""
    echo: askers.Tally
    lost_streams: int
    is_echo_connected: bool
    memory_before: int
    memory_peak: int
    memory_after: int
    database_growth: int
    kept: int
    """The bytes of the requests, turns and variables that were added."""
    turns: int
    errors: tuple[str, ...]
    """The lines of the platform's log of level ERROR."""

    @property
    def is_everything_answered(self) -> bool:
        """True if all questions to agents have one answer, by the one who was asked."""
        return all(
            tally["asked"] == tally["answered"] and not tally["twice"] and not tally["crossed"]
            for tally in (self.others, self.attacked)
        )

    @property
    def problems(self) -> list[str]:
        """The limits that do not hold, in words."""
        found = {
            "a question has no answer, a second one or somebody else's": not self.is_everything_answered,
            f"{self.lost_streams} streams were lost": self.lost_streams > 0,
            f"the p99 is more than {_MAX_RATIO} times that of the echo": self.ratio > _MAX_RATIO,
            "the memory is not back to within 20 %": self.memory_after > _MAX_GROWTH * self.memory_before,
            "the log has errors": bool(self.errors),
        }
        return [problem for problem, is_found in found.items() if is_found]

    @property
    def ratio(self) -> float:
        """The p99 of the attacked agent, as a multiple of that of the echo."""
        return p99(self.attacked) / p99(self.echo)

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        cells = [self.server, self.attack, self.attacker, f"{self.rate:,.0f}"]
        cells += [f"{tally['answered']}/{tally['asked']}" for tally in (self.others, self.attacked, self.echo)]
        cells += [str(self.lost_streams)]
        cells += [format_s(p99(tally)) for tally in (self.others, self.attacked, self.echo)]
        cells += [f"{self.ratio:.2f}"]
        cells += ["/".join(f"{size / 2**20:.0f}" for size in (self.memory_before, self.memory_peak, self.memory_after))]
        cells += [f"{self.database_growth / 2**20:.1f}", f"{self.kept / 2**20:.1f}", str(self.turns)]
        return tuple(cells)


COLUMNS = (
    "server",
    "attack",
    "by",
    "stanzas/s",
    "nine others",
    "attacked",
    "echo",
    "streams lost",
    "p99 others",
    "p99 attacked",
    "p99 echo",
    "ratio",
    "MiB before/peak/after",
    "database +MiB",
    "kept MiB",
    "turns",
)


def p99(tally: askers.Tally) -> float:
    """Return the time in seconds in which 99 % of the answers came; without answers it is infinite."""
    return percentile(tally, 0.99)


def percentile(tally: askers.Tally, share: float) -> float:
    """Return the time in seconds in which a share of the answers came; without answers it is infinite."""
    times = sorted(tally["times_s"])
    return times[min(len(times) - 1, int(len(times) * share))] if times else float("inf")


def run_attack(
    server: XmppServer,
    attack: str,
    directory: Path,
    *,
    is_admitted: bool,
    seconds: float,
    seed: int,
    agent_count: int = AGENTS,
) -> AttackResult:
    """Attack one of several agents on a server for some seconds. `directory` gets the data and the log."""
    accounts = [asyncio.run(server.account()) for _ in range(agent_count + ASKERS + 2)]
    agents, people, (echo_account, pacer) = accounts[:agent_count], accounts[agent_count:-2], accounts[-2:]
    attacker = asyncio.run(server.account(domain=None if is_admitted else OTHER_DOMAIN))
    jids = [bare_jid(jid) for jid, _ in agents]
    attacked, others, echo_jid = jids[0], jids[1:], echo_account[0]
    intervals_s = {attacked: _ATTACKED_INTERVAL_S, echo_jid: _ATTACKED_INTERVAL_S, **dict.fromkeys(others, _OTHER_INTERVAL_S)}
    logins = [login_at(server, account) for account in people]
    configuration = write_configuration(server, directory, agents)
    with ExitStack() as stack:
        platform = stack.enter_context(run_platform(configuration))
        link = stack.enter_context(_serve_endless_file())
        echo_task = echo.Task(login=login_at(server, echo_account), askers=[jid for jid, _ in (*people, pacer)])
        echo_process = stack.enter_context(run_child("tests.chaos.echo", echo_task))
        asker_task = askers.Task(logins=logins, intervals_s=intervals_s, wait_s=_LAST_ANSWERS_S)
        attack_task = attacks.Task(
            attack=attack,
            login=login_at(server, attacker),
            pacer=login_at(server, pacer),
            targets=[attacked, echo_jid],
            is_admitted=is_admitted,
            link=link,
            seconds=seconds,
            seed=seed,
            max_sent=None,
        )
        attacker_process = stack.enter_context(run_child("tests.chaos.attacks", attack_task))
        asker_process = stack.enter_context(run_child("tests.chaos.askers", asker_task))
        wait_until_idle(platform.pid, share=0.5)
        sessions_before = count_sessions(configuration)
        before, database_before = read_memory(platform.pid), _measure_database(directory)
        with _watch_memory(platform.pid) as peak:
            counts = end_child(attacker_process, timeout_s=seconds + 2 * TIMEOUT_S)
            tallies = end_child(asker_process, timeout_s=_LAST_ANSWERS_S + TIMEOUT_S)
            wait_until_idle(platform.pid)
        memory_after, database_after = wait_for_memory(platform.pid, before), _measure_database(directory)
        lost_streams = count_sessions(configuration) - sessions_before
        echo_state = end_child(echo_process, timeout_s=TIMEOUT_S)
    log = configuration.with_suffix(".log").read_text(errors="replace")
    return AttackResult(
        server=server.kind,
        attack=attack,
        attacker="admitted" if is_admitted else "stranger",
        rate=2 * counts["sent"] / counts["seconds"],
        others=add_tallies([tallies[jid] for jid in others]),
        attacked=tallies[attacked],
        echo=tallies[echo_jid],
        lost_streams=lost_streams,
        is_echo_connected=echo_state["is_connected"],
        memory_before=before,
        memory_peak=max(peak),
        memory_after=memory_after,
        database_growth=database_after.size - database_before.size,
        kept=database_after.kept - database_before.kept,
        turns=database_after.turns - database_before.turns,
        errors=tuple(errors_in(log)),
    )


def write_configuration(server: XmppServer, directory: Path, agents: list[tuple[str, str]]) -> Path:
    settings = {
        "server": server.settings,
        "data_dir": str(directory / "data"),
        "conversation": {"max_interactions": 0},
        "agents": [{"jid": jid, "agent": "tests.chaos.agents:Echo", "password": password} for jid, password in agents],
    }
    return write_settings(directory / "platform.yaml", settings)


@contextmanager
def run_platform(configuration: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `spade-coreason up`; its log is a file beside the configuration."""
    with configuration.with_suffix(".log").open("wb") as log:
        process = WarmProcess[bytes](
            [*COMMAND, "up", "-c", str(configuration), "--project", str(PROJECT)],
            cwd=PROJECT,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        while b"Ready" not in (line := process.stdout.readline()):
            assert line, configuration.with_suffix(".log").read_text()
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def run_child(module: str, task: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run a process of the test with its task, and wait until it is ready."""
    process = WarmProcess[str](
        [sys.executable, "-m", module], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n", f"{module} has not started"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end_child(process: subprocess.Popen[str], timeout_s: float) -> Any:
    """Tell a child to go on, wait for its end, and return what it reports."""
    out, _ = process.communicate("go\n", timeout=timeout_s)
    return json.loads(out)


@contextmanager
def _serve_endless_file() -> Iterator[str]:
    """Serve a file that never ends, and yield its link."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            chunk = bytes(65_536)
            try:
                while True:
                    self.wfile.write(chunk)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as web:
        web.daemon_threads = True
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}/endless"
        web.shutdown()


# Measuring


def read_memory(pid: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def wait_for_memory(pid: int, before: int, timeout_s: float = 30.0) -> int:
    """Return the memory of an idle process, as soon as it is back to within 20 % of `before`, or else after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (after := read_memory(pid)) > _MAX_GROWTH * before and time.monotonic() < deadline:
        time.sleep(0.5)  # the interval of the measurement
    return after


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_HZ


@contextmanager
def _watch_memory(pid: int) -> Iterator[list[int]]:
    samples, stop = [read_memory(pid)], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            samples.append(read_memory(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def wait_until_idle(pid: int, share: float = _IDLE_CPU, timeout_s: float = 120.0) -> None:
    """Wait until a process uses less than this share of a processor during a second."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        used_s = cpu_s(pid)
        time.sleep(1.0)  # the interval of the measurement
        if cpu_s(pid) - used_s < share:
            return


@dataclass(frozen=True)
class _DatabaseSize:
    size: int
    kept: int
    turns: int


def _measure_database(directory: Path) -> _DatabaseSize:
    with closing(sqlite3.connect(f"file:{directory}/data/platform.db?mode=ro", uri=True)) as database:

        def number(query: str) -> int:
            return int(database.execute(query).fetchone()[0] or 0)

        size = (number("PRAGMA page_count") - number("PRAGMA freelist_count")) * number("PRAGMA page_size")
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        kept = 0
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            lengths = "+".join(f"coalesce(length({column}), 0)" for column in columns)
            kept += number(f"SELECT sum({lengths}) FROM {table}")
        return _DatabaseSize(size, kept, number("SELECT count(*) FROM interactions"))


def count_sessions(configuration: Path) -> int:
    """Return the number of sessions of all agents, new and resumed ones."""
    result = run_command("status", "--json", "-c", str(configuration), cwd=PROJECT)
    assert result.returncode == 0, result.stdout + result.stderr
    return sum(agent["sessions"] + agent["resumed"] for agent in json.loads(result.stdout)["agents"])


def add_tallies(tallies: list[askers.Tally]) -> askers.Tally:
    total = askers.Tally(asked=0, answered=0, errors=0, twice=0, crossed=0, times_s=[])
    for tally in tallies:
        total["asked"] += tally["asked"]
        total["answered"] += tally["answered"]
        total["errors"] += tally["errors"]
        total["twice"] += tally["twice"]
        total["crossed"] += tally["crossed"]
        total["times_s"] += tally["times_s"]
    return total


def format_s(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
