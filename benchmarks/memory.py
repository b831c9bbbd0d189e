"""The speed of the interaction memory at different sizes, beside spade_llm's, and the cost of opening it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from spade_coreason.memory.interaction.format import file_name, format_timestamp, spade_llm_file_name
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from spade_coreason.memory.interaction.turn_sync import CURRENT_DEFERRED_SYNCS, DeferredSyncs

BUILD = Path(__file__).parents[1] / "build"
AGENT = "benchmark@example.org"
ENTRIES_EACH = 100
"""Entries of a conversation."""
AT_ONCE = 64
A_TURN = 10
PEER = "spade_llm==0.3.0"
PEER_ENTRIES = 10_000

Way = Literal[
    "full",
    "full, 64 at once",
    "full, in a turn",
    "full, in a turn, awaited",
    "full, 10 a turn and a sync",
    "full, 1 a turn and a sync",
    "normal",
]
"""The ways to add. `in a turn` is the time that `assist` waits, `and a sync` the whole time, by addition.

`awaited` uses the async twin of `add_information`.
"""
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class MemoryLoad:
    """The sizes that are compared, the rounds, and the additions at each size in a round."""

    sizes: tuple[int, ...]
    rounds: int
    additions: int
    has_peer: bool


@dataclass(frozen=True)
class MemoryMeasured:
    """Medians of all rounds.

    - `add_us`: an addition, by way and size.
    - `sync_us`: a line appended to a file and synced, and nothing else.
    - `peer_us`: an addition of spade_llm at 10,000 entries. It never syncs.
    - `open_s`: seconds to open the largest size in a new process.
    - `peak`: the most memory that opening it takes, as a multiple of the file.
    - `file_mib`: the size of that file.
    """

    add_us: Mapping[str, Mapping[int, float]]
    sync_us: float
    peer_us: float | None
    open_s: float
    peak: float
    file_mib: float


def measure(load: MemoryLoad) -> MemoryMeasured:
    """Add at every size in every way, in each round, so that noise of the machine affects all alike."""
    durations: dict[Way, dict[int, list[float]]] = {way: {size: [] for size in load.sizes} for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=_build_directory()) as name:
        largest = Path(name) / str(load.sizes[-1])
        for size in load.sizes:
            write(Path(name) / str(size), size)
        openings = [_measure_opening(largest) for _ in range(load.rounds)]
        # SPADE needs greenlet but does not require it.
        peer = create_environment(PEER, "greenlet") if load.has_peer else None
        syncs: list[float] = []
        by_peer: list[float] = []
        for _ in range(load.rounds):
            syncs.extend(_measure_syncs(Path(name) / "bare", load.additions))
            for size in load.sizes:
                for way in WAYS:
                    durations[way][size].extend(_measure_additions(way, Path(name) / str(size), load.additions))
            if peer is not None:
                by_peer.extend(_measure_peer(peer, Path(name) / str(PEER_ENTRIES)))
        file_mib = (largest / file_name(AGENT)).stat().st_size / 2**20
    return MemoryMeasured(
        {
            way: {size: statistics.median(values) * 1e6 for size, values in by_size.items()}
            for way, by_size in durations.items()
        },
        statistics.median(syncs) * 1e6,
        statistics.median(by_peer) * 1e6 if by_peer else None,
        statistics.median(seconds for seconds, _ in openings),
        max(peak for _, peak in openings),
        file_mib,
    )


def _build_directory() -> str:
    """Return a directory on the disk; /tmp may be in memory."""
    BUILD.mkdir(exist_ok=True)
    return str(BUILD)


def texts() -> Iterator[str]:
    """Yield information as people write it, some 50 characters each."""
    number = 0
    while True:
        yield f"User prefers JSON responses over XML, note {number}"
        number += 1


def write(directory: Path, size: int) -> None:
    """Write a memory file with so many entries."""
    directory.mkdir()
    start, contents = datetime(2025, 1, 9, tzinfo=UTC), texts()
    entries = [{"content": next(contents), "timestamp": format_timestamp(start + timedelta(seconds=n))} for n in range(size)]
    interactions = {
        f"person{number}@example.org_{AGENT}": entries[number : number + ENTRIES_EACH]
        for number in range(0, size, ENTRIES_EACH)
    }
    document = {"agent_id": AGENT, "interactions": interactions}
    (directory / file_name(AGENT)).write_text(json.dumps(document, indent=4) + "\n")


def _measure_additions(way: Way, directory: Path, additions: int) -> list[float]:
    """Measure the seconds of each addition. The additions are removed again, so that the size stays."""
    memory = AgentInteractionMemory(AGENT, directory, durability="normal" if way == "normal" else "full")
    conversations, contents = memory.get_all_conversations(), texts()
    durations = []
    if way == "full, 64 at once":
        durations = asyncio.run(_measure_concurrent_additions(memory, conversations, additions))
    elif "turn" in way:
        durations = asyncio.run(_measure_additions_in_turns(way, memory, conversations, additions))
    else:
        for number in range(additions):
            started = time.perf_counter()
            memory.add_information(conversations[number % len(conversations)], next(contents))
            durations.append(time.perf_counter() - started)
    memory.journal_path.unlink()
    return durations


def _measure_syncs(path: Path, times: int) -> list[float]:
    """Measure the seconds of each bare append that the disk confirms."""
    durations = []
    with open(path, "ab", buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(b"x" * 150 + b"\n")
            os.fdatasync(file.fileno())
            durations.append(time.perf_counter() - started)
    return durations


async def _measure_concurrent_additions(
    memory: AgentInteractionMemory, conversations: list[str], additions: int
) -> list[float]:
    durations, contents = [], texts()
    for number in range(max(1, additions // 8)):
        started = time.perf_counter()
        await asyncio.gather(
            *(
                memory.aadd_information(conversations[(number + other) % len(conversations)], next(contents))
                for other in range(AT_ONCE)
            )
        )
        durations.append((time.perf_counter() - started) / AT_ONCE)
    return durations


async def _measure_additions_in_turns(
    way: Way, memory: AgentInteractionMemory, conversations: list[str], additions: int
) -> list[float]:
    """Add as a turn does (`Turn.run`)."""
    batch = 1 if way == "full, 1 a turn and a sync" else A_TURN
    durations, turns, contents = [], [], texts()
    for number in range(0, additions, batch):
        turn_started = time.perf_counter()
        syncs = DeferredSyncs()
        CURRENT_DEFERRED_SYNCS.set(syncs)
        for name in (conversations[(number + other) % len(conversations)] for other in range(batch)):
            started = time.perf_counter()
            if way == "full, in a turn, awaited":
                await memory.aadd_information(name, next(contents))
            else:
                memory.add_information(name, next(contents))
            durations.append(time.perf_counter() - started)
        syncs.is_closed = True
        await syncs.run()
        turns.append((time.perf_counter() - turn_started) / batch)
    return turns if way.endswith("and a sync") else durations


def _measure_opening(directory: Path) -> tuple[float, float]:
    """Open a memory in a new process: the seconds, and the peak of its memory as a multiple of the file."""
    command = [sys.executable, "-m", "benchmarks.memory_process", AGENT, str(directory)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    cost = json.loads(process.stdout)
    return cost["seconds"], cost["peak_bytes"] / (directory / file_name(AGENT)).stat().st_size


def _measure_peer(python: Path, directory: Path) -> list[float]:
    """Measure the seconds of each addition of spade_llm to the memory of the directory."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as name:
        # spade_llm starts with our file, and reports if it cannot read it.
        shutil.copy(directory / file_name(AGENT), Path(name) / file_name(AGENT))
        ours = AgentInteractionMemory(AGENT, name)
        ours.add_information("last", next(texts()))
        ours.close()
        theirs = Path(name) / "peer"
        theirs.mkdir()
        shutil.copy(ours.path, theirs / str(spade_llm_file_name(AGENT)))
        script = Path(__file__).with_name("peer_memory.py")
        command = [str(python), str(script), AGENT, str(theirs), str(PEER_ENTRIES + 1)]
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seconds: list[float] = json.loads(process.stdout)
    return seconds


def create_environment(*requirements: str) -> Path | None:
    """Return the Python of an environment with these packages, or None if they cannot be installed.

    It is created once, in `build/`.
    """
    directory = BUILD / requirements[0].replace("==", "-")
    python, ready = directory / "bin" / "python", directory / "ready"
    if not ready.exists():
        print(f"  installing {requirements[0]} in {directory} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if process.returncode:
            print(f"  {requirements[0]} is not compared: {process.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        ready.touch()
    return python
