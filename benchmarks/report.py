"""The figures as lines for people: tables, targets, and the machine."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

from .footprint import Footprint
from .memory import MemoryMeasured
from .promptness import Waits
from .recall import Recall
from .speed import Measured

DISTRIBUTIONS = ("spade", "slixmpp-multiplatform", "pydantic", "SQLAlchemy")


@dataclass(frozen=True)
class Target:
    """A figure and its target."""

    name: str
    value: float
    bound: Literal["at least", "at most"]
    target: float
    unit: str = ""

    @property
    def is_reached(self) -> bool:
        """True if the figure reaches its target."""
        return self.value >= self.target if self.bound == "at least" else self.value <= self.target

    def __str__(self) -> str:
        mark = "✓" if self.is_reached else "✗"
        return (
            f"  {mark} {self.name}: {_figure(self.value)}{self.unit} (target: {self.bound} {_figure(self.target)}{self.unit})"
        )


def speed_targets(measured: Mapping[str, Measured]) -> list[Target]:
    """Build the targets of the hosted agent with full durability, against slixmpp in the same run."""
    ours = measured["hosted"]
    return [
        Target("answers/s against slixmpp", ours.answers_ratio, "at least", 0.8),
        Target("agent CPU an answer against slixmpp", ours.cpu_ratio, "at most", 1.5),
        Target("p50 at one in flight against slixmpp", ours.p50_ratio, "at most", 2.0),
    ]


def footprint_targets(footprint: Footprint) -> list[Target]:
    """Build the targets for one more agent, and for all while they are idle: 0.1 % of a core are 60 ms in a minute."""
    return [
        Target("CPU of a start", footprint.start_ms, "at most", 45, " ms"),
        Target("memory of a further agent", footprint.online_kib, "at most", 300, " KiB"),
        Target("idle CPU of all of them", footprint.idle_percent, "at most", 0.1, " % of a core"),
    ]


def promptness_targets(typing: Waits, words: Waits) -> list[Target]:
    """Build the targets with a hundred busy conversations: typing between 200 and 300 ms, first words within 50 ms."""
    return [
        Target("typing, the soonest", typing.waits_s[0] * 1e3, "at least", 200, " ms"),
        Target("typing, the latest", typing.waits_s[-1] * 1e3, "at most", 300, " ms"),
        Target("first words, the median", words.median_s * 1e3, "at most", 50, " ms"),
        Target("first words, the latest", words.waits_s[-1] * 1e3, "at most", 50, " ms"),
    ]


def memory_targets(measured: MemoryMeasured) -> list[Target]:
    """Build the targets of the interaction memory.

    An addition costs the same at each size, and far less than spade_llm's, which rewrites the file without syncing it. For
    single additions the disk decides: a sync is most of an addition that survives a power cut.
    """
    targets = []
    for way, by_size in measured.add_us.items():
        smallest, largest = min(by_size), max(by_size)
        name = f"add ({way}) at {largest:,} entries against {smallest:,}"
        targets.append(Target(name, by_size[largest] / by_size[smallest], "at most", 1.3))
    if measured.peer_us is not None:
        for way, by_size in measured.add_us.items():
            name = f"add ({way}) at {max(by_size):,} entries, times faster than spade_llm's at 10,000"
            targets.append(Target(name, measured.peer_us / by_size[max(by_size)], "at least", 500))
    targets.append(Target("opening the largest", measured.open_s, "at most", 0.5, " s"))
    targets.append(Target("memory that opening it takes, at its peak, against the file", measured.peak, "at most", 2.0))
    return targets


def memory_lines(measured: MemoryMeasured) -> list[str]:
    """Build a line for each way to add, with a column for each size."""
    [sizes] = {tuple(by_size) for by_size in measured.add_us.values()}
    lines = [f"  {'µs an addition, at entries':27}" + "".join(f"{size:>10,}" for size in sizes)]
    lines += [f"  {way:27}" + "".join(f"{us:10.1f}" for us in by_size.values()) for way, by_size in measured.add_us.items()]
    lines.append(f"  {'a bare line, synced':27}{measured.sync_us:10.1f}")
    if measured.peer_us is not None:
        lines.append(f"  {'spade_llm, never synced':27}{measured.peer_us:20.0f}")
    return lines


def recall_targets(recall: Recall) -> list[Target]:
    """Build the target for the time that a turn waits for a recall."""
    return [Target(f"recall over {recall.documents:,} documents", recall.by_meaning_ms, "at most", 10, " ms")]


def recall_lines(recall: Recall) -> list[str]:
    """Build the lines of the times of a recall."""
    return [
        f"  by meaning {recall.by_meaning_ms:.2f} ms (p99 {recall.by_meaning_p99_ms:.1f}), by words {recall.by_words_ms:.2f};"
        f" the first after a start {recall.first_ms:.0f} ms"
    ]


def speed_table(measured: Mapping[str, Measured]) -> list[str]:
    """Build a line for each echo agent, with ratios to slixmpp."""
    lines = [
        f"  {'':27}{'64 in flight':>41}{'one in flight':>28}",
        f"  {'echo agent':27}{'answers/s':>10}{'ratio':>7}{'agent CPU/answer':>17}{'ratio':>7}{'p50':>9}{'ratio':>7}{'p99':>9}",
    ]
    lines += [
        f"  {kind:27}"
        f"{m.answers_per_s:10.0f}{m.answers_ratio:7.2f}"
        f"{m.cpu_us:14.0f} µs{m.cpu_ratio:7.2f}"
        f"{m.p50_ms:6.2f} ms{m.p50_ratio:7.2f}{m.p99_ms:6.2f} ms"
        for kind, m in measured.items()
    ]
    return lines


def footprint_lines(footprint: Footprint) -> list[str]:
    """Build the lines of the cost of further agents."""
    return [
        f"  {footprint.start_ms:.1f} ms of CPU for each start, with login and first profile",
        f"  {footprint.online_kib:.0f} KiB for each that is online, {footprint.answered_kib:.0f} KiB when it has answered once",
        f"  {footprint.idle_percent:.3f} % of a core for all of them together while idle",
        f"  the server: {footprint.server_start_ms:.1f} ms of CPU and {footprint.server_online_kib:.0f} KiB for each of them",
    ]


def promptness_lines(typing: Waits, words: Waits) -> list[str]:
    """Build the lines of the times that people waited."""
    named = (("typing after a message", typing), ("first words after the agent said them", words))
    return [
        f"  {name}: {waits.waits_s[0] * 1e3:.0f} to {waits.waits_s[-1] * 1e3:.0f} ms, median {waits.median_s * 1e3:.0f} ms"
        f" (the event loop of all was {waits.loop_late_s * 1e3:.0f} ms late at most)"
        for name, waits in named
    ]


async def server_version(server: XmppServer) -> str:
    """Ask the server for its version (XEP-0092); Debian's command `prosody` would start another server."""
    login = await server.account()
    async with StockClient(*login, server, plugins=["xep_0092"]) as client:
        answer = await client.xmpp.plugin["xep_0092"].get_version(server.domain, timeout=5)
    software = answer["software_version"]
    return f"{software['name']} {software['version']}"


def made() -> dict[str, str]:
    """Tell when this run is, and of which commit: with + behind it if files of the checkout were changed since."""
    git = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*")
    described = subprocess.run(git, capture_output=True, text=True, check=False, timeout=60) if shutil.which("git") else None
    commit = described.stdout.strip() if described else ""
    return {"date": date.today().isoformat(), "commit": commit or "unknown"}


def machine() -> dict[str, str | int | float]:
    """Describe the machine. `fsync_ms` is the time of the disk to store a page, the price of `synchronous=FULL`."""
    information = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in information if line.startswith("model name"))
    return {
        "cpu": next(models, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "fsync_ms": round(_fsync_s() * 1e3, 3),
        "python": platform.python_version(),
        **{name: version(name) for name in DISTRIBUTIONS},
    }


def _fsync_s() -> float:
    durations = []
    with tempfile.TemporaryFile(prefix="benchmark-", buffering=0) as file:
        for _ in range(50):
            file.write(bytes(4096))
            begin = time.perf_counter()
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
