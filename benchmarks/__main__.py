"""`python -m benchmarks`: what is hosted here beside others, in one run, as ratios.

A hosted echo agent stands beside a bare slixmpp echo and a SPADE behaviour, and the interaction memory beside spade_llm's. An
agent with a language model stands beside a bare stream of the package `openai`, and two agents that ask beside others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.servers import ejabberd, postgres, prosody
from tests.support.servers.server import XmppServer

from .doors import DoorLoad, lines as door_lines, measure as measure_doors, targets as door_targets
from .exchange.measurement import (
    CONVERSATIONS,
    KINDS,
    find_kinds,
    lines as exchange_lines,
    measure_medians,
    side_by_side as exchange_side_by_side,
    targets as exchange_targets,
)
from .footprint import FootprintLoad, measure_footprint
from .llm_overhead import lines as overhead_lines, measure as measure_overhead, targets as overhead_targets
from .memory import MemoryLoad, measure
from .promptness import first_words_waits, typing_waits
from .recall import recall
from .report import (
    Target,
    footprint_lines,
    footprint_targets,
    machine,
    made,
    memory_lines,
    memory_targets,
    promptness_lines,
    promptness_targets,
    recall_lines,
    recall_targets,
    server_version,
    speed_table,
    speed_targets,
)
from .sessions import SessionLoad, lines as session_lines, measure as measure_sessions, targets as session_targets
from .speed import IN_FLIGHT, THREADS, Load, medians, side_by_side
from .web_footprint import lines as web_lines, measure as measure_web, targets as web_targets
from .workers import WorkersLoad, lines as worker_lines, measure as measure_workers, targets as worker_targets

FULL = (Load(rounds=48, messages=1000, pings=50), FootprintLoad(100, settle_s=60.0, idle_s=60.0))
FULL_RECALL, QUICK_RECALL = (10_000, 300), (500, 20)
QUICK = (Load(rounds=2, messages=200, pings=20), FootprintLoad(5, settle_s=0.0, idle_s=0.5))

SERVERS: dict[str, tuple[Callable[[], bool], Callable[..., XmppServer]]] = {
    "prosody": (prosody.installed, partial(prosody.prosody, tuned=True)),  # as that of `up`
    "ejabberd": (ejabberd.installed, ejabberd.ejabberd),
}
FOOTPRINT = "further"
PROMPTNESS = "promptness"
MEMORY = "memory"
FULL_MEMORY = MemoryLoad((100, 10_000, 100_000), rounds=5, additions=100, has_peer=True)
QUICK_MEMORY = MemoryLoad((100, 1_000), rounds=1, additions=10, has_peer=False)
SESSIONS = "sessions"
FULL_SESSIONS = SessionLoad((100, 1_000_000), rounds=3, times=200, turns=8000)
QUICK_SESSIONS = SessionLoad((100, 2_000), rounds=1, times=5, turns=400)
RECALL = "recall"
LLM_OVERHEAD = "thinking"
DOORS = "doors"
FULL_DOORS, QUICK_DOORS = DoorLoad(60, 50), DoorLoad(2, 20)
EXCHANGE = "exchange"
FULL_EXCHANGE = Load(rounds=12, messages=1024, pings=30)
QUICK_EXCHANGE = Load(rounds=1, messages=128, pings=10)
WEB = "web"
FULL_STREAMS, QUICK_STREAMS = 1000, 100
WORKERS = "workers"
FULL_WORKERS = WorkersLoad(rounds=20, messages=2000, batches=200, rows=1_000_000)
QUICK_WORKERS = WorkersLoad(rounds=1, messages=200, batches=20, rows=5_000)
PARTS = (*SERVERS, EXCHANGE, FOOTPRINT, PROMPTNESS, MEMORY, SESSIONS, RECALL, LLM_OVERHEAD, WEB, DOORS, WORKERS)
WITHOUT_SERVER = {MEMORY, SESSIONS, RECALL, LLM_OVERHEAD, WEB, DOORS}
FULL_LLM_OVERHEAD, QUICK_LLM_OVERHEAD = (10_000, 30), (50, 2)


@contextmanager
def run_server(name: str) -> Iterator[XmppServer]:
    """Start a server with its archive off."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as directory,
        SERVERS[name][1](Path(directory), archive=False) as server,
    ):
        yield server


def speed(name: str, load: Load) -> tuple[dict[str, Any], list[Target]]:
    """Measure the echo agents on one server, print the results, and return figures and targets."""
    with run_server(name) as server:
        server_name = asyncio.run(server_version(server))
        print(f"{server_name}, archive off", flush=True)
        rounds = asyncio.run(side_by_side(server, load))
    measured = medians(rounds)
    targets = speed_targets(measured)
    print("\n".join([*speed_table(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {
        "version": server_name,
        "measured": {kind: asdict(figures) for kind, figures in measured.items()},
        "rounds": {kind: [asdict(round_) for round_ in kind_rounds] for kind, kind_rounds in rounds.items()},
        "targets": [_target(target) for target in targets],
    }, targets


def exchange(name: str, load: Load, kinds: Sequence[str]) -> tuple[dict[str, Any], list[Target]]:
    """Measure the exchanges between two agents on one server, and report like `speed`."""
    with run_server(name) as server:
        server_name = asyncio.run(server_version(server))
        print(f"asks from one agent to another, over {server_name}, archive off", flush=True)
        rounds = asyncio.run(exchange_side_by_side(server, load, kinds))
    measured, targets = measure_medians(rounds), exchange_targets(name, rounds)
    print("\n".join([*exchange_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {
        "version": server_name,
        "measured": {kind: asdict(figures) for kind, figures in measured.items()},
        "rounds": {kind: [asdict(round_) for round_ in kind_rounds] for kind, kind_rounds in rounds.items()},
        "targets": [_target(target) for target in targets],
    }, targets


def footprint(name: str, load: FootprintLoad) -> tuple[dict[str, Any], list[Target]]:
    """Measure what further agents in one process cost, and report like `speed`."""
    with run_server(name) as server:
        print(f"hosted agents in one process, from {load.agents} to {3 * load.agents}, on {name}", flush=True)
        measured = asyncio.run(measure_footprint(server, load))
    targets = footprint_targets(measured)
    print("\n".join([*footprint_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {"server": name, **asdict(measured), "targets": [_target(target) for target in targets]}, targets


def promptness(name: str) -> tuple[dict[str, Any], list[Target]]:
    """Measure the waiting time of people, with a hundred busy conversations, and report like `speed`."""
    with run_server(name) as server, tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        print(f"what people see with 100 busy conversations, on {name}", flush=True)
        typing = asyncio.run(typing_waits(server, Path(directory)))
        words = asyncio.run(first_words_waits(server, Path(directory)))
    targets = promptness_targets(typing, words)
    print("\n".join([*promptness_lines(typing, words), *map(str, targets)]), end="\n\n", flush=True)
    figures = {"typing": asdict(typing), "first_words": asdict(words)}
    return {**figures, "targets": [_target(target) for target in targets]}, targets


def memory(load: MemoryLoad) -> tuple[dict[str, Any], list[Target]]:
    """Measure the interaction memory, and report like `speed`. No server is needed."""
    print(
        "interaction memory; full: synced before it returns, or a turn is answered; normal: survives the end of the process",
        flush=True,
    )
    measured = measure(load)
    targets = memory_targets(measured)
    print("\n".join([*memory_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def sessions(load: SessionLoad) -> tuple[dict[str, Any], list[Target]]:
    """Measure stored sessions, and report like `speed`. No server is needed."""
    print("sessions on SQLite, durability full", flush=True)
    measured = measure_sessions(load)
    targets = session_targets(measured)
    print("\n".join([*session_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def measure_recall(documents: int, rounds: int) -> tuple[dict[str, Any], list[Target]]:
    """Measure `session.recall` in this process, and report like `speed`."""
    print(f"session.recall over {documents:,} documents of 80 words, vectors of 384 values, without the call of the model")
    measured = asyncio.run(recall(documents, rounds))
    targets = recall_targets(measured)
    print("\n".join([*recall_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def llm_overhead(turns: int, rounds: int) -> tuple[dict[str, Any], list[Target]]:
    """Measure an agent with a language model, and report like `speed`. No XMPP server is needed."""
    print("LLMAgent beside a bare stream of openai, the same requests at the same local server", flush=True)
    measured = asyncio.run(measure_overhead(turns, rounds))
    targets = overhead_targets(measured)
    print("\n".join([*overhead_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def web_footprint(streams: int) -> tuple[dict[str, Any], list[Target]]:
    """Measure the memory of the HTTP server, and report like `speed`. No XMPP server is needed."""
    print("the HTTP server of the doors, in a process that has loaded a platform", flush=True)
    measured = asyncio.run(measure_web(streams))
    targets = web_targets(measured)
    print("\n".join([*web_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def doors(load: DoorLoad) -> tuple[dict[str, Any], list[Target]]:
    """Measure an answer by A2A, and report like `speed`. No XMPP server is needed."""
    print(f"{load.messages} messages by A2A, one after the other, in each of {load.rounds} rounds", flush=True)
    measured = asyncio.run(measure_doors(load))
    targets = door_targets(measured)
    print("\n".join([*door_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {**asdict(measured), "targets": [_target(target) for target in targets]}, targets


def workers(name: str, load: WorkersLoad) -> tuple[dict[str, Any], list[Target]]:
    """Measure several workers on PostgreSQL and a server, and report like `speed`."""
    with run_server(name) as server, postgres.postgres(durable=True) as database:
        print(f"several workers on PostgreSQL and {name}: {load.rounds} rounds of {load.messages} messages", flush=True)
        measured = asyncio.run(measure_workers(server, database, load))
    targets = worker_targets(measured)
    print("\n".join([*worker_lines(measured), *map(str, targets)]), end="\n\n", flush=True)
    return {"server": name, **asdict(measured), "targets": [_target(target) for target in targets]}, targets


def _target(target: Target) -> dict[str, Any]:
    return {**asdict(target), "is_reached": target.is_reached}


def main() -> int:
    """Measure and print. The exit code only tells if a server to measure on is installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs; its figures mean little")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"these parts only, of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--server", nargs="+", choices=SERVERS, default=SERVERS, metavar="NAME", help="on these servers only, if installed"
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        choices=KINDS,
        default=KINDS,
        metavar="PAIR",
        help=f"exchange: these pairs only, of {', '.join(KINDS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round as JSON too")
    arguments = parser.parse_args()
    load, footprint_load = QUICK if arguments.quick else FULL

    available = [name for name in arguments.server if SERVERS[name][0]()]
    parts = set(arguments.only)
    if parts - WITHOUT_SERVER:
        for name in arguments.server:
            if name not in available:
                print(f"{name} is not installed; `make servers` enables this measurement", file=sys.stderr)
        if not available or not parts - WITHOUT_SERVER - (SERVERS.keys() - set(available)):
            return 1
    host = machine()
    print(", ".join(f"{name} {value}" for name, value in host.items()))
    figures: dict[str, Any] = {"made": made(), "machine": host, "load": asdict(load), "speed": {}, PROMPTNESS: {}}
    targets: list[Target] = []
    if parts & SERVERS.keys():
        print(
            f"{load.rounds} rounds, in each every agent in turn: {load.messages} messages, {IN_FLIGHT} in flight over {THREADS}"
            f" threads, then {load.pings} one by one.\nMedians of the rounds; ratios to slixmpp in the same round\n"
        )
    for name in available:
        if name in parts:
            figures["speed"][name], part_targets = speed(name, load)
            targets += part_targets
    if EXCHANGE in parts:
        exchange_load = QUICK_EXCHANGE if arguments.quick else FULL_EXCHANGE
        kinds, missing = find_kinds(arguments.pairs)
        print(*missing, sep="\n", end="\n" if missing else "", file=sys.stderr)
        print(
            f"{exchange_load.rounds} rounds, in each every pair in turn: {exchange_load.messages} asks, {CONVERSATIONS} in"
            f" flight in as many conversations, then {exchange_load.pings} one by one.\n"
        )
        figures[EXCHANGE] = {"load": asdict(exchange_load)}
        for name in available:
            figures[EXCHANGE][name], part_targets = exchange(name, exchange_load, kinds)
            targets += part_targets
    if FOOTPRINT in parts:
        figures[FOOTPRINT], part_targets = footprint(available[0], footprint_load)
        targets += part_targets
    if PROMPTNESS in parts:
        for name in available:
            figures[PROMPTNESS][name], part_targets = promptness(name)
            targets += part_targets
    if MEMORY in parts:
        figures[MEMORY], part_targets = memory(QUICK_MEMORY if arguments.quick else FULL_MEMORY)
        targets += part_targets
    if SESSIONS in parts:
        figures[SESSIONS], part_targets = sessions(QUICK_SESSIONS if arguments.quick else FULL_SESSIONS)
        targets += part_targets
    if RECALL in parts:
        figures[RECALL], part_targets = measure_recall(*(QUICK_RECALL if arguments.quick else FULL_RECALL))
        targets += part_targets
    if LLM_OVERHEAD in parts:
        figures[LLM_OVERHEAD], part_targets = llm_overhead(*(QUICK_LLM_OVERHEAD if arguments.quick else FULL_LLM_OVERHEAD))
        targets += part_targets
    if WEB in parts:
        figures[WEB], part_targets = web_footprint(QUICK_STREAMS if arguments.quick else FULL_STREAMS)
        targets += part_targets
    if DOORS in parts:
        figures[DOORS], part_targets = doors(QUICK_DOORS if arguments.quick else FULL_DOORS)
        targets += part_targets
    if WORKERS in parts:
        if postgres.installed():
            figures[WORKERS], part_targets = workers(available[0], QUICK_WORKERS if arguments.quick else FULL_WORKERS)
            targets += part_targets
        else:
            print("PostgreSQL is not installed; `make servers` enables this measurement", file=sys.stderr)
    print(f"{sum(target.is_reached for target in targets)} of {len(targets)} targets are reached")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
