"""Run the attacks and write their table: `python -m tests.chaos [--seconds 60] [--seed N] [--server …] [--attack …]`."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.chaos.attack_run import COLUMNS, attacked_ejabberd, attacked_prosody, run_attack
from tests.chaos.attacks import ATTACKS
from tests.support.servers.server import XmppServer

SERVERS: dict[str, Callable[[Path], XmppServer]] = {"prosody": attacked_prosody, "ejabberd": attacked_ejabberd}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--server", action="append", choices=SERVERS)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--by", action="append", choices=("admitted", "stranger"))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds:g} s an attack", flush=True)
    print(" | ".join(COLUMNS), flush=True)
    for kind in arguments.server or SERVERS:
        for attack in arguments.attack or ATTACKS:
            for by in arguments.by or ("admitted", "stranger"):
                with tempfile.TemporaryDirectory(prefix="chaos-") as name:
                    directory = Path(name)
                    with SERVERS[kind](directory / "server") as server:
                        result = run_attack(
                            server,
                            attack,
                            directory,
                            is_admitted=by == "admitted",
                            seconds=arguments.seconds,
                            seed=arguments.seed,
                        )
                print(" | ".join(result.row), flush=True)
                for line in result.errors[:3]:
                    print("   ", line, flush=True)


if __name__ == "__main__":
    main()
