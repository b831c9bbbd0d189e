"""Which agents a worker takes and gives back: the decision of each worker, and that those of all workers come to an end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from spade_coreason.app.workers.shares import NOBODY, Change, choose_change, group_agents, is_away, must_look
from spade_coreason.storage import Reach

A, B, C, D = "a@x", "b@x", "c@x", "d@x"
ALONE = [(A,), (B,), (C,), (D,)]
PAIRS = [(A, B), (C, D)]


@pytest.mark.parametrize(
    ("case", "active", "owners", "groups", "away", "wanted"),
    [
        ("the only worker takes all", [1], {}, ALONE, [], ([A, B, C, D], [])),
        ("each of two takes half", [1, 2], {}, ALONE, [], ([A, C], [])),
        ("one that joins takes nothing from others", [2, 1], dict.fromkeys([A, B, C, D], 2), ALONE, [], ([], [])),
        ("one with too many gives half to one that joins", [1, 2], dict.fromkeys([A, B, C, D], 1), ALONE, [], ([], [A, B])),
        ("what is on its way is given once", [1, 2], {A: NOBODY, B: NOBODY, C: 1, D: 1}, ALONE, [], ([], [])),
        ("what is free is enough for one that joins", [1, 2], {A: 1, B: 1}, ALONE, [], ([], [])),
        ("agents of a dead worker wait until it is replaced", [1], {A: 1, B: 1, C: 9, D: 9}, ALONE, [], ([], [])),
        ("agents of a leaving worker are taken one by one", [1], {A: 1, B: 1, C: 9}, ALONE, [], ([D], [])),
        ("of three workers the first takes one more", [1, 2, 3], {}, ALONE, [], ([A, D], [])),
        ("a third worker gets one of four", [1, 2, 3], {A: 1, B: 1, C: 2, D: 2}, ALONE, [], ([], [A])),
        ("only one of two gives it", [1, 2, 3], {A: 0, B: 1, C: 2, D: 2}, ALONE, [], ([], [])),
        ("what a dead worker has is enough for one that joins", [1, 2, 3], {A: 1, B: 1, C: 2, D: 9}, ALONE, [], ([], [])),
        (
            "a group goes that makes the shares most even",
            [1, 2],
            dict.fromkeys([A, B, C, D], 1),
            [(A,), (B, C), (D,)],
            [],
            ([], [B, C]),
        ),
        ("with more workers than agents one has one", [1, 2, 3, 4, 5], {B: 2, C: 3, D: 4}, ALONE, [], ([A], [])),
        ("with more workers than agents others have none", [1, 2, 3, 4, 5], {A: 5, B: 2, C: 3, D: 4}, ALONE, [], ([], [])),
        ("a worker that is gone itself decides nothing", [2], dict.fromkeys([A, B, C, D], 1), ALONE, [], ([], [])),
        ("a group is taken as one", [1, 2], {}, PAIRS, [], ([A, B], [])),
        ("a group is given as one", [1, 2], dict.fromkeys([A, B, C, D], 1), PAIRS, [], ([], [A, B])),
        ("the rest of its own group is its own", [1, 2], {A: 1, C: 2, D: 2}, PAIRS, [], ([B], [])),
        ("the rest of another's group is not", [1, 2], {A: 2, C: 1, D: 1}, PAIRS, [], ([], [])),
        ("a group too large for a half stays", [1, 2], dict.fromkeys([A, B, C], 1), [(A, B, C)], [], ([], [])),
        ("one that does not reach the server gives all", [1, 2], {A: 1, B: 1, C: 2, D: 2}, ALONE, [1], ([], [A, B])),
        ("the other one takes all of it", [1, 2], {C: 1, D: 1}, ALONE, [2], ([A, B], [])),
        ("it takes nothing back meanwhile", [1, 2], {C: 2, D: 2}, ALONE, [1], ([], [])),
        ("if none reaches the server all stay", [1, 2], {A: 1, B: 1, C: 2, D: 2}, ALONE, [1, 2], ([], [])),
        ("one that is left alone takes all, server or not", [1], {A: 1, B: 1}, ALONE, [1], ([C, D], [])),
    ],
)
def test_a_worker_takes_and_gives_back(
    case: str,
    active: Sequence[int],
    owners: Mapping[str, int],
    groups: Sequence[tuple[str, ...]],
    away: Sequence[int],
    wanted: tuple[list[str], list[str]],
) -> None:
    claimed, released = choose_change(1, active, owners, groups, away)
    assert (list(claimed), list(released)) == wanted, case


def test_agents_are_grouped_as_configured() -> None:
    assert group_agents([A, B, C], [(C, A), ("unknown@x", B), ("gone@x",)]) == [(C, A), (B,)]


@pytest.mark.parametrize(
    ("case", "own", "other", "wanted"),
    [
        ("it has not looked yet", None, Reach(True, 0, 9), False),
        ("it reaches the server", Reach(True, 5, 9), Reach(True, 0, 9), False),
        ("another one reached it all the time", Reach(False, 5, 7), Reach(True, 0, 9), True),
        ("the server has died: the other one heard it before", Reach(False, 5, 7), Reach(True, 0, 6), False),
        ("the server is back: the other one heard it later", Reach(False, 5, 7), Reach(True, 6, 9), False),
        ("the other one does not reach it either", Reach(False, 5, 7), Reach(False, 4, 8), False),
        ("the other one has not looked yet", Reach(False, 5, 7), None, False),
    ],
)
def test_a_worker_is_away_if_only_others_reach_the_server(
    case: str, own: Reach | None, other: Reach | None, wanted: bool
) -> None:
    assert is_away(own, [None, other]) is wanted, case


@pytest.mark.parametrize(
    ("case", "own", "other", "wanted"),
    [
        ("another one has lost the server since", Reach(True, 0, 6), Reach(False, 5, 7), True),
        ("this one reached it later", Reach(True, 0, 8), Reach(False, 5, 7), False),
        ("it does not reach the server itself", Reach(False, 5, 6), Reach(False, 5, 7), False),
        ("the other one reaches it", Reach(True, 0, 6), Reach(True, 0, 7), False),
        ("it has not looked yet", None, Reach(False, 5, 7), False),
        ("the other one has not looked yet", Reach(True, 0, 6), None, False),
    ],
)
def test_a_worker_looks_for_another_one_that_has_lost_the_server(
    case: str, own: Reach | None, other: Reach | None, wanted: bool
) -> None:
    assert must_look(own, [None, own, other]) is wanted, case


@pytest.mark.parametrize(
    ("case", "active", "owners", "groups", "unable", "wanted"),
    [
        ("it takes none that another one can serve", [1, 2], {}, ALONE, {1: {A}}, ([B, C], [])),
        ("it takes what another one cannot serve", [1, 2], {}, ALONE, {2: {B}}, ([A, B], [])),
        ("it gives back what another one can serve", [1, 2], {A: 1, B: 1, C: 2, D: 2}, ALONE, {1: {A}}, ([], [A])),
        ("it keeps what nobody can serve", [1, 2], {A: 1, B: 1, C: 2, D: 2}, ALONE, {1: {A}, 2: {A}}, ([], [])),
        ("it takes what nobody can serve", [1], {}, ALONE, {1: {A}}, ([A, B, C, D], [])),
        ("it keeps what a worker that joins cannot serve", [1, 2], dict.fromkeys([A, B, C], 1), ALONE[:3], {2: {A}}, ([], [B])),
        ("it keeps all that nobody else can serve", [1, 2], dict.fromkeys([A, B], 1), ALONE[:2], {2: {A, B}}, ([], [])),
        ("a group goes as one", [1, 2], {A: 1, B: 1, C: 2, D: 2}, PAIRS, {1: {B}}, ([], [A, B])),
        ("a third worker gets what the least busy one cannot", [1, 2, 3], {A: 1, B: 1, C: 1}, ALONE, {2: {A, B, C}}, ([], [A])),
    ],
)
def test_a_worker_that_cannot_serve_an_agent_leaves_it_to_one_that_can(
    case: str,
    active: Sequence[int],
    owners: Mapping[str, int],
    groups: Sequence[tuple[str, ...]],
    unable: Mapping[int, set[str]],
    wanted: tuple[list[str], list[str]],
) -> None:
    claimed, released = choose_change(1, active, owners, groups, unable=unable)
    assert (list(claimed), list(released)) == wanted, case


class Service:
    """Workers that decide one after the other, in any order, on what is true at that moment."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._agents = [f"agent{number}@x" for number in range(rng.randrange(1, 40))]
        together, left = [], list(self._agents)
        for _ in range(rng.randrange(3)):
            count = rng.randrange(1, 5)
            together.append(left[:count])
            left = left[count:]
        self.groups = group_agents(self._agents, together)
        self.owners: dict[str, int] = {}
        self.workers = list(range(1, rng.randrange(2, 7)))
        self.away: set[int] = set()
        self.unable: dict[int, set[str]] = {}
        self._on_the_way: list[str] = []
        self.releases = Counter[str]()

    @property
    def taking(self) -> list[int]:
        """The workers that take agents."""
        return [worker for worker in self.workers if worker not in self.away] or self.workers

    def change(self) -> None:
        """Let a worker join, die, leave, or lose or find the server."""
        self.releases.clear()
        worker = self._rng.choice(self.workers)
        match self._rng.randrange(4):
            case 0:
                self.workers.append(max(self.workers) + 1)
            case 1 if len(self.workers) > 1:
                self.workers.remove(worker)
                self.away.discard(worker)
                self.owners = {agent: owner for agent, owner in self.owners.items() if owner != worker}
            case 2:
                self.away.add(worker)
            case _:
                self.away.discard(worker)

    def settle(self) -> None:
        """Let all workers decide until none of them changes anything. Their agents arrive after a while."""
        for _ in range(20 * len(self._agents) + 20):
            changes = [self._decide(worker) for worker in self._rng.sample(self.workers, len(self.workers))]
            if not any(map(any, changes)) and not self._on_the_way:
                return
            self._rng.shuffle(self._on_the_way)
            for _ in range(self._rng.randrange(len(self._on_the_way) + 1)):
                del self.owners[self._on_the_way.pop()]
        raise AssertionError("they do not come to an end")

    def _decide(self, worker: int) -> Change:
        change = choose_change(worker, self.workers, self.owners, self.groups, self.away, self.unable)
        assert not set(change.claimed) & set(self.owners), "an agent that another worker has"
        self.owners |= dict.fromkeys(change.claimed, worker)
        for agent in change.released:
            assert self.owners[agent] == worker
            self.owners[agent] = NOBODY
            self.releases[agent] += 1
            self._on_the_way.append(agent)
        return change

    def list_able(self, group: Sequence[str]) -> list[int]:
        """Return the workers that can serve a group; all if none can."""
        return [worker for worker in self.taking if self.unable.get(worker, set()).isdisjoint(group)] or self.taking

    def limit(self) -> None:
        """Let a worker notice that it cannot serve some agents."""
        agents = self._rng.sample(self._agents, self._rng.randrange(len(self._agents) + 1))
        self.unable.setdefault(self._rng.choice(self.workers), set()).update(agents)


@pytest.mark.parametrize("seed", range(300))
def test_workers_come_to_even_shares_and_move_no_agent_back_and_forth(seed: int) -> None:
    service = Service(random.Random(seed))
    service.settle()
    for _ in range(8):
        service.change()
        service.settle()
        assert set(service.owners) == {agent for group in service.groups for agent in group}, "an agent without a worker"
        assert set(service.owners.values()) <= set(service.taking)
        counts = Counter(service.owners.values())
        largest = max(map(len, service.groups))
        assert max(counts.values()) - min(counts[worker] for worker in service.taking) <= largest
        for group in service.groups:
            assert len({service.owners[agent] for agent in group}) == 1, "a group that is divided"
        # With groups of several, an agent may move on to a third worker, but never back.
        assert max(service.releases.values(), default=0) <= (1 if largest == 1 else 2)


@pytest.mark.parametrize("seed", range(300))
def test_each_agent_comes_to_a_worker_that_can_serve_it_and_stays_there(seed: int) -> None:
    service = Service(random.Random(seed))
    service.settle()
    for number in range(8):
        service.change() if number % 2 else service.limit()
        service.settle()
        assert set(service.owners) == {agent for group in service.groups for agent in group}, "an agent without a worker"
        for group in service.groups:
            [owner] = {service.owners[agent] for agent in group}
            assert owner in service.list_able(group)


@pytest.mark.parametrize("workers", range(1, 7))
@pytest.mark.parametrize("agents", range(1, 14))
def test_shares_of_single_agents_differ_by_one_at_most_and_then_nothing_moves(agents: int, workers: int) -> None:
    names = [f"agent{number}@x" for number in range(agents)]
    groups = group_agents(names, [])
    # They join one after the other; all at once; and others die.
    for history in (range(1, workers + 1), [1, workers], range(6, workers - 1, -1)):
        owners: dict[str, int] = {}
        for count in history:
            active = range(1, count + 1)
            owners = {agent: owner for agent, owner in owners.items() if owner in active}
            moved = Counter[str]()
            while any(map(any, changes := [choose_change(me, active, owners, groups) for me in active])):
                for me, change in zip(active, changes, strict=True):
                    moved.update(change.released)
                    assert not owners.keys() & set(change.claimed)
                    owners |= dict.fromkeys(change.claimed, me)
                for change in changes:
                    for agent in change.released:
                        del owners[agent]
            assert owners.keys() == set(names)
            shares = [list(owners.values()).count(worker) for worker in active]
            assert max(shares) - min(shares) <= 1, (history, count)
            assert set(moved.values()) <= {1}
