"""The shares of several workers: which agents one of them takes and gives back, as a pure decision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple

from ...storage import Reach

NOBODY = 0
"""The owner of an agent that is on its way from one worker to another."""
_NONE = frozenset[str]()
_NOBODY_IS_UNABLE: Mapping[int, AbstractSet[str]] = MappingProxyType({})


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


def must_look(own: Reach | None, reaches: Iterable[Reach | None]) -> bool:
    """Return True if another worker has lost the XMPP server, and waits for a later sign that this one reaches it."""
    if own is None or not own.is_reached:
        return False
    return any(not reach.is_reached and own.ended_at < reach.ended_at for reach in reaches if reach is not None)


def choose_change(
    me: int,
    active: Sequence[int],
    owners: Mapping[str, int | None],
    groups: Sequence[tuple[str, ...]],
    away: Collection[int] = (),
    unable: Mapping[int, AbstractSet[str]] = _NOBODY_IS_UNABLE,
) -> Change:
    """Return what worker `me` takes or gives back.

    `active` are the workers that take agents, and `owners` is the worker of each agent that has one. Agents without one go to
    the workers with the fewest agents, and those with the most give groups to those with the fewest, as long as that makes the
    shares more even. So shares of single agents differ by one at most. What another worker is about to free counts for the one
    that will take it. A group stays together: if a worker has one agent of it, no other takes the rest.

    Those of `away` do not reach the XMPP server. They give everything back, as long as there is another one. `unable` are the
    agents that a worker cannot serve. It gives their groups back and takes none of them, as long as another one can serve the
    whole group.
    """
    if me not in active:
        return Change()
    reaching = [worker for worker in active if worker not in away]
    if reaching and me in away:
        return Change((), [agent for group in groups for agent in group if owners.get(agent) == me])
    active = reaching or active
    held: dict[int, dict[int, list[tuple[str, ...]]]] = {worker: {} for worker in active}
    """The groups of each worker by their sizes."""
    counts = dict.fromkeys(active, 0)
    claimed: list[str] = []
    released: list[str] = []
    free, coming = [], []
    is_limited = any(unable.get(worker) for worker in active)

    def list_able(group: tuple[str, ...]) -> Sequence[int]:
        """Return the workers that can serve a group; all of them if none can."""
        if not is_limited:
            return active
        return [worker for worker in active if unable.get(worker, _NONE).isdisjoint(group)] or active

    for group in groups:
        holders = {owner for agent in group if (owner := owners.get(agent)) is not None}
        if not holders:
            free.append(group)
        elif (holder := min(holders)) in held and holder not in list_able(group):
            coming.append(group)
            if holder == me:
                released += [agent for agent in group if owners.get(agent) == me]
        elif holder in held:
            held[holder].setdefault(len(group), []).append(group)
            counts[holder] += len(group)
            if holder == me:
                claimed += [agent for agent in group if owners.get(agent) is None]
        else:
            coming.append(group)

    def rank(worker: int) -> tuple[int, int]:
        return counts[worker], worker

    unserved = [*((group, True) for group in free), *((group, False) for group in coming)]
    for group, is_free in sorted(unserved, key=lambda each: -len(each[0])):
        least = min(list_able(group), key=rank)
        counts[least] += len(group)
        if least == me and is_free:
            claimed += group
    while (move := _find_move(held, counts, sorted(active, key=rank), list_able)) is not None:
        giver, taker, group = move
        held[giver][len(group)].remove(group)
        counts[giver] -= len(group)
        counts[taker] += len(group)
        if giver == me:
            released += group
    return Change(claimed, released)


def _find_move(
    held: Mapping[int, Mapping[int, Sequence[tuple[str, ...]]]],
    counts: Mapping[int, int],
    takers: Sequence[int],
    list_able: Callable[[tuple[str, ...]], Collection[int]],
) -> tuple[int, int, tuple[str, ...]] | None:
    """Return the next group that moves, behind its worker and the one of `takers` that gets it. None if all is even enough."""
    for taker in takers:
        for giver in sorted(held, key=lambda worker: (-counts[worker], worker)):
            difference = counts[giver] - counts[taker]
            sizes = [size for size, own in held[giver].items() if own and size < difference]
            for size in sorted(sizes, key=lambda size: size * (difference - size), reverse=True):
                if (group := next((group for group in held[giver][size] if taker in list_able(group)), None)) is not None:
                    return giver, taker, group
    return None
