"""Run the chaos of attacks, of floods, of kills or of workers, and write its table into docs/development/chaos.md.

`python -m tests.chaos attacks`, `floods`, `kills` and `workers`; `--help` lists the options. The exit code is 1 if something
is not as it has to be; each such row has a line below it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.chaos import attack_run, flood_run, kill_run, worker_run
from tests.chaos.attack_run import attacked_ejabberd, attacked_prosody, run_attack
from tests.chaos.attacks import ATTACKS
from tests.chaos.flood_run import run_flood, take_median
from tests.chaos.kill_run import choose_faults, run_kills
from tests.chaos.worker_run import list_faults, run_worker_chaos
from tests.support.hosting import PROJECT
from tests.support.servers.ejabberd import ejabberd
from tests.support.servers.postgres import postgres
from tests.support.servers.prosody import prosody
from tests.support.servers.server import XmppServer

PAGE = PROJECT / "docs" / "development" / "chaos.md"
_ATTACKED: dict[str, Callable[[Path], XmppServer]] = {"prosody": attacked_prosody, "ejabberd": attacked_ejabberd}
_KILLED: dict[str, Callable[[Path], XmppServer]] = {"prosody": prosody, "ejabberd": ejabberd}
_FLOODED: dict[str, tuple[str, Callable[[Path], XmppServer]]] = {
    "prosody": ("prosody", prosody),
    "ejabberd": ("ejabberd", ejabberd),
    "ejabberd, `max_ack_queue: 1000000`": ("ejabberd", attacked_ejabberd),
}
Row = Sequence[str]


def _run_attacks(arguments: argparse.Namespace) -> Iterator[tuple[Row, Sequence[str]]]:
    for kind in arguments.server or _ATTACKED:
        for attack in arguments.attack or ATTACKS:
            for by in arguments.by or ("admitted", "stranger"):
                with tempfile.TemporaryDirectory(prefix="chaos-") as name:
                    directory = Path(name)
                    with _ATTACKED[kind](directory / "server") as server:
                        result = run_attack(
                            server,
                            attack,
                            directory,
                            is_admitted=by == "admitted",
                            seconds=arguments.seconds,
                            seed=arguments.seed,
                        )
                yield result.row, (*result.problems, *result.errors[:3])


def _run_floods(arguments: argparse.Namespace) -> Iterator[tuple[Row, Sequence[str]]]:
    for name, (kind, build) in _FLOODED.items():
        if arguments.server and kind not in arguments.server:
            continue
        for by in arguments.by or ("admitted", "stranger"):
            results = []
            for _ in range(arguments.repeat):
                with tempfile.TemporaryDirectory(prefix="chaos-") as path, build(Path(path, "server")) as server:
                    results.append(
                        run_flood(
                            server,
                            name,
                            Path(path),
                            is_admitted=by == "admitted",
                            messages=arguments.messages,
                            seconds=min(arguments.seconds, 15.0),
                            seed=arguments.seed,
                        )
                    )
                print(_line(results[-1].row), file=sys.stderr, flush=True)
            yield (
                take_median(results).row,
                [problem for result in results for problem in (*result.problems, *result.errors[:3])],
            )


def _run_kills(arguments: argparse.Namespace) -> Iterator[tuple[Row, Sequence[str]]]:
    for kind in arguments.server or _KILLED:
        faults = choose_faults(arguments.faults, random.Random(arguments.seed))
        with tempfile.TemporaryDirectory(prefix="chaos-") as name, _KILLED[kind](Path(name, "server")) as server:
            tally = asyncio.run(run_kills(server, Path(name), faults, arguments.seed))
        yield tally.row, tally.problems


def _run_workers(arguments: argparse.Namespace) -> Iterator[tuple[Row, Sequence[str]]]:
    counts = {name: int(count) for name, _, count in (fault.rpartition("=") for fault in arguments.fault)}
    for kind in arguments.server or _KILLED:
        for workers in arguments.workers or (2, 3):
            for agents in arguments.agents or (20, 100):
                faults = list_faults(counts or dict.fromkeys(worker_run.FAULTS, 1), random.Random(arguments.seed))
                with (
                    tempfile.TemporaryDirectory(prefix="chaos-") as name,
                    _KILLED[kind](Path(name, "server")) as server,
                    postgres(durable=True) as database,
                ):
                    chaos = run_worker_chaos(
                        server,
                        database,
                        Path(name),
                        faults,
                        arguments.seed,
                        workers=workers,
                        agents=agents,
                        lease_s=arguments.lease,
                        limit_s=arguments.limit,
                    )
                    tally = asyncio.run(chaos)
                yield tally.row, tally.problems


def write_table(page: Path, section: str, introduction: str, columns: Row, rows: Sequence[Row]) -> None:
    """Replace the table of a section, which lies between two comments."""
    lines = [introduction, "", _line(columns), _line(["---"] * len(columns)), *map(_line, rows)]
    begin, end = f"<!-- {section} -->\n", f"\n<!-- end of {section} -->"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(head + begin + "\n".join(lines) + end + tail)


def _line(cells: Row) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what the command line names, and print each row as soon as it is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=("attacks", "floods", "kills", "workers"))
    parser.add_argument("--seconds", type=float, default=60.0, help="the duration of an attack")
    parser.add_argument("--messages", type=int, default=20_000, help="the messages of a flood, to each of the two")
    parser.add_argument("--repeat", type=int, default=3, help="the runs of each flood, of which the median is shown")
    parser.add_argument("--faults", type=int, default=40, help="the number of faults on each server")
    parser.add_argument("--fault", action="append", default=[], help="of workers: NAME=COUNT; each kind once by default")
    parser.add_argument("--workers", action="append", type=int, help="the number of workers; 2 and 3 by default")
    parser.add_argument("--agents", action="append", type=int, help="the number of agents; 20 and 100 by default")
    parser.add_argument("--limit", type=float, default=float("inf"), help="of workers: begin no fault after these seconds")
    parser.add_argument("--lease", type=float, default=2.0, help="workers.lease_s")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--server", action="append", choices=_KILLED)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--by", action="append", choices=("admitted", "stranger"))
    parser.add_argument("--write", action="store_true", help="replace the table in docs/development/chaos.md")
    arguments = parser.parse_args()
    amount = {
        "attacks": f"{arguments.seconds:g} s an attack",
        "floods": f"{arguments.messages:,} messages to each, the median of {arguments.repeat} runs",
        "kills": f"{arguments.faults} faults a server",
        "workers": f"a lease of {arguments.lease:g} s",
    }[arguments.section]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    command = "make chaos"
    if arguments.section in ("floods", "workers"):
        command = " ".join(["python -m tests.chaos", *(word for word in sys.argv[1:] if word != "--write")])
    introduction = f"`{command}`, {amount}, seed {arguments.seed}; {machine}."
    columns, run = {
        "attacks": (attack_run.COLUMNS, _run_attacks),
        "floods": (flood_run.COLUMNS, _run_floods),
        "kills": (kill_run.COLUMNS, _run_kills),
        "workers": (worker_run.COLUMNS, _run_workers),
    }[arguments.section]
    print(introduction, _line(columns), sep="\n", flush=True)
    rows, has_problems = [], False
    for row, problems in run(arguments):
        print(_line(row), *(f"  {problem}" for problem in problems), sep="\n", flush=True)
        has_problems = has_problems or bool(problems)
        rows.append(row)
        if arguments.write:
            write_table(PAGE, arguments.section, introduction, columns, rows)
    sys.exit(has_problems)


if __name__ == "__main__":
    main()
