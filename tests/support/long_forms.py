"""How long a test of chance goes on: a short form by default, a long one in `make test-release`, any other in `make chaos`."""

from __future__ import annotations

import os
import random

import pytest


def short_and_long_in_release(variable: str, short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a short and a long count, as its parameter `count`; the long one in `make test-release` only.

    A count in this variable of the environment takes the place of both.
    """
    if variable in os.environ:
        count = int(os.environ[variable])
        return pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.timeout(300 + count))])
    return pytest.mark.parametrize("count", [short, pytest.param(long, marks=pytest.mark.release)])


def seeded_random() -> random.Random:
    """Return random numbers from the seed in the variable CHAOS_SEED, else from another one in each run, which is printed."""
    seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
    print(f"CHAOS_SEED={seed}")
    return random.Random(seed)
