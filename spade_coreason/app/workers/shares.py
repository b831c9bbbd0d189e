"""The shares of several workers: which agents one of them takes and gives back, as a pure decision."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...storage import Reach

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


def is_away(reach: Reach | None, others: Iterable[Reach | None]) -> bool:
    """Return True if a worker does not reach the XMPP server, although the server was there for another one all the time.

    So a server that is down for all, or comes back, makes no worker give back agents.
    """
    if reach is None or reach.is_reached:
        return False
    reaching = (other for other in others if other is not None and other.is_reached)
    return any(other.began_at <= reach.began_at and reach.ended_at <= other.ended_at for other in reaching)


def choose_change(
    me: int,
    active: Sequence[int],
    owners: Mapping[str, int | None],
    groups: Sequence[tuple[str, ...]],
    away: Collection[int] = (),
) -> Change:
    """Return what worker `me` takes or gives back.

    `active` are the workers that take agents, and `owners` is the worker of each agent that has one. A worker takes free groups
    until it has its share: the agents by the number of active workers, rounded up. It gives back what it has beyond that, if
    another worker has less than its share. A group stays together: if a worker has one agent of it, no other takes the rest.

    Those of `away` do not reach the XMPP server. They give everything back, as long as there is another one.
    """
    if me not in active:
        return Change()
    reaching = [worker for worker in active if worker not in away]
    if reaching and me in away:
        return Change((), [agent for group in groups for agent in group if owners.get(agent) == me])
    active = reaching or active
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
