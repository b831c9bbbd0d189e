"""The shares of several workers: which agents one of them takes and gives back, as a pure decision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

NOBODY = 0
"""The owner of an agent that is on its way from one worker to another."""


class Change(NamedTuple):
    """The agents that a worker takes now, and those that it gives back."""

    claimed: Sequence[str] = ()
    released: Sequence[str] = ()


def group_agents(agents: Iterable[str], together: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the agents in groups: those of `together`, and each of the others alone. Unknown agents are left out."""
    known = dict.fromkeys(agents)
    groups = [tuple(agent for agent in group if agent in known) for group in together]
    grouped = {agent for group in groups for agent in group}
    return [*(group for group in groups if group), *((agent,) for agent in known if agent not in grouped)]


def choose_change(
    me: int, active: Sequence[int], owners: Mapping[str, int | None], groups: Sequence[tuple[str, ...]]
) -> Change:
    """Return what worker `me` takes or gives back.

    `active` are the workers that take agents, and `owners` is the worker of each agent that has one. A worker takes free groups
    until it has its share: the agents by the number of active workers, rounded up. It gives back what it has beyond that, if
    another worker has less than its share. A group stays together: if a worker has one agent of it, no other takes the rest.
    """
    if me not in active:
        return Change()
    share = math.ceil(sum(map(len, groups)) / len(active))
    held: dict[int, list[tuple[str, ...]]] = {worker: [] for worker in active}
    free, rest = [], []
    for group in groups:
        holders = {owner for agent in group if (owner := owners.get(agent)) is not None}
        if not holders:
            free.append(group)
        elif (holder := min(holders)) in held:
            held[holder].append(group)
            if holder == me:
                rest += [agent for agent in group if owners.get(agent) is None]
    counts = {worker: sum(map(len, own)) for worker, own in held.items()}
    claimed, count = rest, counts[me]
    for group in sorted(free, key=len, reverse=True):
        if count < share:
            claimed += group
            count += len(group)
    room = sum(max(0, share - other) for worker, other in counts.items() if worker != me) - sum(map(len, free))
    released: list[str] = []
    for group in sorted(held[me], key=len):
        if counts[me] - len(released) - len(group) < share or len(released) + len(group) > room:
            break
        released += group
    return Change(claimed, released)
