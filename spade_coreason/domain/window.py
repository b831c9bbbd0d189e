"""The memory strategies, decided: which turns of a session stay in its window (seed: Memory Governance). No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from ..contracts import MemoryConfig, MemoryStrategy

KEPT = 256
"""Turns of a window without bounds that are held in memory; the rest is read when it is asked for."""

_TOKEN_BUFFER = MemoryStrategy.TOKEN_BUFFER  # looked up once: a member of an Enum is slow to find in Python 3.11
_COUNTED = (MemoryStrategy.SLIDING_WINDOW, _TOKEN_BUFFER)  # as many turns as the limit says at most: no turn has no token


def extent(there: int, policy: MemoryConfig, turns: int, absorbed: int = 0, sizes: Iterable[int] = ()) -> tuple[int, int]:
    """How many of the newest turns that are `there` are held in memory, and the number of the first turn of the window.

    `turns` is the number of the newest turn, from 1. `absorbed` is the newest turn that a summary or the knowledge of the
    conversation has taken in: what is newer stays in the window of SUMMARY and VECTOR_STORE, so that nothing is lost before
    it is taken in. `sizes` are the tokens of the turns that are there, the newest first; read for TOKEN_BUFFER only.

    What leaves the window stays in storage.
    """
    strategy, limit = policy.strategy, policy.limit
    if strategy in _COUNTED:
        held = min(there, fitting(sizes, limit) if strategy is _TOKEN_BUFFER else limit)
        return held, turns - held + 1
    first = 1 if strategy is MemoryStrategy.ALL else absorbed + 1
    return min(turns - first + 1, most_held(policy)), first


def most_held(policy: MemoryConfig) -> int:
    """How many turns of a window are held in memory at most."""
    return policy.limit if policy.strategy in _COUNTED else max(policy.limit, KEPT)


def fitting(sizes: Iterable[int], limit: int) -> int:
    """How many turns fit `limit` tokens, the newest first; the newest is kept however large it is."""
    total = kept = 0
    for size in sizes:
        total += size
        if kept and total > limit:
            break
        kept += 1
    return kept


def to_absorb(policy: MemoryConfig, turns: int, absorbed: int) -> range:
    """The numbers of the turns that are older than the newest `limit` and are in no summary and no knowledge yet."""
    if policy.strategy not in (MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE):
        return range(0)
    return range(absorbed + 1, turns - policy.limit + 1)
