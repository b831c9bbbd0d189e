"""The memory strategies: which turns of a session stay in its window (seed: Memory Governance)."""

from __future__ import annotations

from .contracts import MemoryConfig, MemoryStrategy, SessionState


def window(state: SessionState, policy: MemoryConfig, turns: int) -> tuple[SessionState, int]:
    """The pruned state, and the number of the first turn in its window; `turns` is the number of the newest, from 1.

    What leaves the window stays in storage. The strategies that need an engine keep the newest `limit` turns.
    """
    if policy.strategy is MemoryStrategy.ALL:
        return state, 1
    pruned = state.prune(MemoryStrategy.SLIDING_WINDOW, policy.limit)
    return pruned, turns - len(pruned.history) + 1
