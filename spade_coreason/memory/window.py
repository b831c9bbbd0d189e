"""The memory policy at work: the windows of conversations, and what becomes of turns that leave them (seed: Memory Governance).

What a turn waits for is arithmetic. A summary, or taking turns into the knowledge of their conversation, goes on behind it;
until that is done the turns stay in the window.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from ..contracts import MemoryConfig, MemoryStrategy
from ..domain.history import HeldTurn, HeldTurns, interactions, turn_text
from ..domain.window import extent, to_absorb
from ..exceptions import CoReasonError, unquoted
from ..storage import NOTHING, WINDOW, AgentStore, ConversationRow, Window
from .active import Memory, Variables
from .knowledge.knowledge import Knowledge
from .summaries import ExtractiveSummariser, Summariser
from .tokens import TokenCounter, estimate

log = logging.getLogger(__name__)

_AT_ONCE = 4
_TURNS_AT_ONCE = 50


class _Job(NamedTuple):
    """Turns of one conversation on their way into a summary or the knowledge."""

    owner: str
    task: asyncio.Task[None]


class Governance:
    """Applies the policy of one agent to all its conversations."""

    def __init__(
        self,
        store: AgentStore,
        policy: MemoryConfig,
        *,
        count: TokenCounter | None = None,
        summariser: Summariser | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        self.policy = policy
        # Asked once here, and not at every turn.
        self._takes_in = policy.strategy in (MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE)
        self._counts = policy.strategy is MemoryStrategy.TOKEN_BUFFER
        self._store = store
        self._count = count or estimate
        self._summariser = summariser or ExtractiveSummariser()
        self._knowledge = knowledge
        self._jobs: dict[str, _Job] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._is_failing = False
        self._has_warned = False

    # The window

    def prune(self, there: HeldTurns, turns: int, variables: Variables) -> int:
        """Drops those that are held in memory no longer; gives the number of the first of the window. See `pruning.extent`."""
        held = len(there)
        if self._counts:
            most, first = extent(held, self.policy, turns, sizes=(self._size(turn) for turn in reversed(there)))
        else:
            absorbed = self.taken_in(variables).through if self._takes_in else 0
            most, first = extent(held, self.policy, turns, absorbed)
        if most < held:
            there.keep(most)
        return first

    def pruned(self, row: ConversationRow, memory: Memory | None) -> ConversationRow:
        """A conversation that ends, with the window of today's policy.

        Of one that is not in memory only what is arithmetic: where turns have to be read, its next turn does it.
        """
        if memory is not None:
            first = self.prune(memory.turns, row.turns, memory.variables)
        elif self.policy.strategy is MemoryStrategy.SLIDING_WINDOW:
            _, first = extent(row.turns, self.policy, row.turns)
        else:
            return row
        return row.with_turns(row.life, row.max_interactions, max(first, row.window_start), row.turns)

    def taken_in(self, variables: Variables) -> Window:
        """What this strategy did with the turns that left the window; another's work before is none of its own."""
        if not self._takes_in:
            return NOTHING
        kept = variables.window
        return kept if kept.strategy == self.policy.strategy else NOTHING

    def mark(self, turn: HeldTurn) -> HeldTurn:
        """Says in a new turn's `meta` that it alone is larger than the window: `over_limit`, its tokens."""
        if self._counts and (size := self._size(turn)) > self.policy.limit:
            return turn.marked("over_limit", size)
        return turn

    def warn_of_everything(self) -> None:
        """Says once that a window without bounds is handed over."""
        if self.policy.strategy is not MemoryStrategy.ALL or self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "%s: the memory strategy is ALL: a model is handed every turn of a conversation, until they are more than it takes;"
            " choose sliding_window, token_buffer, summary or vector_store",
            self._store.agent,
        )

    def _size(self, turn: HeldTurn) -> int:
        if not turn.tokens:
            interaction = turn.interaction
            turn.tokens = 1 if interaction is None else max(1, self._count(turn_text(interaction)))
        return turn.tokens

    # What leaves it

    def absorb(self, memory: Memory) -> None:
        """Begins to take in what is older than the window, where the strategy says so and it is not at it already."""
        if not self._takes_in:
            return
        name = memory.row.conversation_id
        if name not in self._jobs and self._waiting(memory):
            task = asyncio.create_task(self._absorb(memory))
            self._jobs[name] = _Job(memory.row.owner, task)
            task.add_done_callback(lambda _: self._jobs.pop(name, None))

    async def let_go(self, owner: str) -> None:
        """Ends the work on the conversations of somebody, before something of theirs is forgotten."""
        await self._end([job.task for job in self._jobs.values() if job.owner == owner])

    async def let_go_of(self, conversation_id: str) -> None:
        """Ends the work on a conversation, before something of it is deleted."""
        await self._end([job.task for name, job in self._jobs.items() if name == conversation_id])

    async def settled(self) -> None:
        """Waits until nothing is taken in any more."""
        while self._jobs:
            await asyncio.wait([job.task for job in self._jobs.values()])

    async def close(self) -> None:
        """Ends all work. What was not taken in is so after the next turn of its conversation."""
        await self._end([job.task for job in self._jobs.values()])
        await self._summariser.close()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _waiting(self, memory: Memory) -> range:
        return to_absorb(self.policy, memory.row.turns, self.taken_in(memory.variables).through)

    async def _absorb(self, memory: Memory) -> None:
        try:
            async with self._slots:
                while numbers := self._waiting(memory):
                    await self._take_in(memory, numbers[:_TURNS_AT_ONCE])
        except Exception as error:  # the turns stay where they are, whatever it was
            if not self._is_failing:
                what = "%s: turns stay in their windows until they can be taken in: %s"
                unforeseen = None if isinstance(error, CoReasonError) else error
                log.error(what, self._store.agent, unquoted(error), exc_info=unforeseen)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info("%s: turns are taken in again", self._store.agent)
            self._is_failing = False

    async def _take_in(self, memory: Memory, numbers: range) -> None:
        variables, name = memory.variables, memory.row.conversation_id
        rows = await self._store.turns(memory.row.id, numbers[0], numbers[-1])
        kept = Window(self.policy.strategy.value, numbers[-1])
        if self.policy.strategy is MemoryStrategy.SUMMARY:
            turns = interactions(body for _, body in rows)
            summary = self.taken_in(variables).summary
            if turns:
                summary = await self._summariser.summarise(self.policy.summary_prompt or "", summary, turns)
            kept = kept._replace(summary=summary)
        elif self._knowledge is not None:
            numbered = [(number, turn) for number, body in rows for turn in interactions([body])]
            await self._knowledge.take_turns(name, numbered)
        text = kept.to_json()
        await self._store.save_variable("conversation", name, WINDOW, text)
        variables.values[WINDOW] = text
