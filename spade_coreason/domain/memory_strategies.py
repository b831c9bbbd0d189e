"""The memory strategies as decisions: the turns that stay in a window (seed: Memory Governance). No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable

from ..contracts import MemoryConfig, MemoryStrategy

MAX_UNBOUNDED_TURNS = 256
"""The number of turns of an unbounded window that are cached in memory; older ones are read on demand."""

_TOKEN_BUFFER = MemoryStrategy.TOKEN_BUFFER  # looked up once: a member of an Enum is slow to find in Python 3.11
# Their windows never hold more turns than `limit`: every turn has at least one token.
_LIMITED_STRATEGIES = (MemoryStrategy.SLIDING_WINDOW, _TOKEN_BUFFER)


def window_bounds(
    available: int, policy: MemoryConfig, newest_number: int, compacted_through: int = 0, sizes: Iterable[int] = ()
) -> tuple[int, int]:
    """Return the number of turns to cache in memory, and the number of the first turn in the window.

    `available` is the number of turns at hand, and `newest_number` the number of the newest turn, counted from 1.
    `compacted_through` is the newest turn that is part of a summary or of the conversation's knowledge. Newer turns stay in
    the window of SUMMARY and VECTOR_STORE, so that no turn is lost before its compaction. `sizes` are the tokens of the
    available turns, newest first; they are read for TOKEN_BUFFER only.

    Turns that leave the window stay in storage.
    """
    strategy, limit = policy.strategy, policy.limit
    if strategy in _LIMITED_STRATEGIES:
        cached = min(available, count_fitting_turns(sizes, limit) if strategy is _TOKEN_BUFFER else limit)
        return cached, newest_number - cached + 1
    first = 1 if strategy is MemoryStrategy.ALL else compacted_through + 1
    return min(newest_number - first + 1, max_cached_turns(policy)), first


def max_cached_turns(policy: MemoryConfig) -> int:
    """Return the largest number of turns of a window that are cached in memory."""
    return policy.limit if policy.strategy in _LIMITED_STRATEGIES else max(policy.limit, MAX_UNBOUNDED_TURNS)


def count_fitting_turns(sizes: Iterable[int], limit: int) -> int:
    """Count the turns that fit into `limit` tokens, newest first. The newest turn always fits, whatever its size."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > limit:
            break
        count += 1
    return count


def turns_to_compact(policy: MemoryConfig, newest_number: int, compacted_through: int) -> range:
    """Return the numbers of the turns that are older than the newest `limit` and await their compaction."""
    if policy.strategy not in (MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE):
        return range(0)
    return range(compacted_through + 1, newest_number - policy.limit + 1)
