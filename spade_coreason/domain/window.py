"""The memory strategies, decided: which turns of a session stay in its window (seed: Memory Governance). No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from ..contracts import MemoryConfig, MemoryStrategy

MAX_UNBOUNDED_TURNS = 256
"""Turns of a window without bounds that are held in memory; the rest is read when it is asked for."""

_TOKEN_BUFFER = MemoryStrategy.TOKEN_BUFFER  # looked up once: a member of an Enum is slow to find in Python 3.11
_LIMITED_STRATEGIES = (
    MemoryStrategy.SLIDING_WINDOW,
    _TOKEN_BUFFER,
)  # as many turns as the limit says at most: no turn has no token


def window_bounds(
    available: int, policy: MemoryConfig, newest_number: int, compacted_through: int = 0, sizes: Iterable[int] = ()
) -> tuple[int, int]:
    """How many of the newest turns that are `available` are held in memory, and the number of the first turn of the window.

    `newest_number` is the number of the newest turn, from 1. `compacted_through` is the newest turn that a summary or the knowledge of the
    conversation has taken in: what is newer stays in the window of SUMMARY and VECTOR_STORE, so that nothing is lost before
    it is taken in. `sizes` are the tokens of the turns that are there, the newest first; read for TOKEN_BUFFER only.

    What leaves the window stays in storage.
    """
    strategy, limit = policy.strategy, policy.limit
    if strategy in _LIMITED_STRATEGIES:
        held = min(available, count_fitting_turns(sizes, limit) if strategy is _TOKEN_BUFFER else limit)
        return held, newest_number - held + 1
    first = 1 if strategy is MemoryStrategy.ALL else compacted_through + 1
    return min(newest_number - first + 1, max_cached_turns(policy)), first


def max_cached_turns(policy: MemoryConfig) -> int:
    """How many turns of a window are held in memory at most."""
    return policy.limit if policy.strategy in _LIMITED_STRATEGIES else max(policy.limit, MAX_UNBOUNDED_TURNS)


def count_fitting_turns(sizes: Iterable[int], limit: int) -> int:
    """How many turns fit `limit` tokens, the newest first; the newest is kept however large it is."""
    total = kept = 0
    for size in sizes:
        total += size
        if kept and total > limit:
            break
        kept += 1
    return kept


def turns_to_compact(policy: MemoryConfig, newest_number: int, compacted_through: int) -> range:
    """The numbers of the turns that are older than the newest `limit` and are in no summary and no knowledge yet."""
    if policy.strategy not in (MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE):
        return range(0)
    return range(compacted_through + 1, newest_number - policy.limit + 1)
