"""Windows of conversations under the memory policy, and the compaction of turns that leave them (seed: Memory Governance).

A turn waits for arithmetic only. Compaction (a summary, or storing turns in the knowledge of their conversation) runs in the
background. Until it is done, the turns stay in the window.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from ..concurrency import cancel_tasks
from ..contracts import MemoryConfig, MemoryStrategy
from ..domain.history import RecentTurns, StoredTurn, parse_interactions, turn_text
from ..domain.memory_strategies import turns_to_compact, window_bounds
from ..exceptions import CoReasonError, describe_for_log
from ..storage import COMPACTION_VARIABLE, NO_COMPACTION, AgentRepository, CompactionState, StoredConversation
from .conversation import ActiveConversation, Variables
from .knowledge.knowledge import Knowledge
from .summaries import Summariser
from .tokens import TokenCounter

log = logging.getLogger(__name__)

_MAX_JOBS = 4
_TURN_BATCH = 50


class _CompactionJob(NamedTuple):
    """The running compaction of one conversation."""

    owner: str
    task: asyncio.Task[None]


class HistoryWindows:
    """The windows of all conversations of one agent, as its memory policy sets them."""

    def __init__(
        self,
        repository: AgentRepository,
        policy: MemoryConfig,
        count_tokens: TokenCounter,
        summariser: Summariser,
        knowledge: Knowledge | None = None,
    ) -> None:
        self.policy = policy
        # Looked up once, and not at every turn.
        self.compacts = policy.strategy in (MemoryStrategy.SUMMARY, MemoryStrategy.VECTOR_STORE)
        self._limits_tokens = policy.strategy is MemoryStrategy.TOKEN_BUFFER
        self._repository = repository
        self._count_tokens = count_tokens
        self._summariser = summariser
        self.knowledge = knowledge
        """The documents and facts of the agent, which sessions search; None without any."""
        self._jobs: dict[str, _CompactionJob] = {}
        self._held: list[str] = []
        self._job_slots = asyncio.Semaphore(_MAX_JOBS)
        self._is_failing = False
        self._has_warned = False

    # Window

    def append(
        self, recent_turns: RecentTurns, text: str, number: int, variables: Variables
    ) -> tuple[StoredTurn, RecentTurns, int]:
        """Return a new turn, all turns with it, and the number of the first turn of the window.

        `text` is the turn as JSON, and `number` its number, from 1.
        A turn that is larger than the whole window is marked: `meta["over_limit"]` is its number of tokens.
        """
        turn = StoredTurn(text)
        if self._limits_tokens and (size := self._turn_tokens(turn)) > self.policy.limit:
            turn = turn.with_meta("over_limit", size)
        turns = recent_turns.with_appended(turn)
        return turn, turns, self._prune(turns, len(turns), number, variables)

    def prune(self, recent_turns: RecentTurns, newest_number: int, variables: Variables) -> int:
        """Drop the turns that need not stay in memory, and return the number of the first turn of the window.

        `newest_number` is the number of the newest turn, from 1. See `domain.memory_strategies.window_bounds`.
        """
        return self._prune(recent_turns, len(recent_turns), newest_number, variables)

    def _prune(self, recent_turns: RecentTurns, available: int, newest_number: int, variables: Variables) -> int:
        if self._limits_tokens:
            max_turns, first = window_bounds(
                available, self.policy, newest_number, sizes=(self._turn_tokens(turn) for turn in reversed(recent_turns))
            )
        else:
            compacted_through = self.compaction_state(variables).through if self.compacts else 0
            max_turns, first = window_bounds(available, self.policy, newest_number, compacted_through)
        if max_turns < available:
            recent_turns.truncate(max_turns)
        return first

    def with_current_window(self, record: StoredConversation, active: ActiveConversation | None) -> StoredConversation:
        """Return the record of a conversation that ends, with the window of the current policy.

        Without `active` (the conversation is not in memory) only arithmetic is done. If the policy needs the turns
        themselves, the next turn of the conversation applies it.
        """
        if active is not None:
            first = self.prune(active.turns, record.turns, active.variables)
        elif self.policy.strategy is MemoryStrategy.SLIDING_WINDOW:
            _, first = window_bounds(record.turns, self.policy, record.turns)
        else:
            return record
        return record.with_turns(record.status, record.max_interactions, max(first, record.window_start), record.turns)

    def compaction_state(self, variables: Variables) -> CompactionState:
        """Return how far the current strategy has compacted. The work of an earlier strategy does not count."""
        if not self.compacts:
            return NO_COMPACTION
        state = variables.compaction
        return state if state.strategy == self.policy.strategy else NO_COMPACTION

    def warn_unbounded(self) -> None:
        """Log once that the window has no limit."""
        if self.policy.strategy is not MemoryStrategy.ALL or self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "%s: the memory strategy is ALL, so a model gets every turn of a conversation until its limit is exceeded;"
            " choose sliding_window, token_buffer, summary or vector_store",
            self._repository.agent,
        )

    def _turn_tokens(self, turn: StoredTurn) -> int:
        if not turn.tokens:
            interaction = turn.interaction
            turn.tokens = 1 if interaction is None else max(1, self._count_tokens(turn_text(interaction)))
        return turn.tokens

    # Compaction

    def compact_later(self, active: ActiveConversation) -> None:
        """Start the compaction of turns that are older than the window.

        Nothing happens if the strategy has no compaction, or if it already runs for this conversation or is held.
        """
        if not self.compacts:
            return
        conversation_id = active.record.conversation_id
        if conversation_id not in self._jobs and conversation_id not in self._held and self._turns_to_compact(active):
            task = asyncio.create_task(self._compact(active))
            self._jobs[conversation_id] = _CompactionJob(active.record.owner, task)
            task.add_done_callback(lambda _: self._jobs.pop(conversation_id, None))

    async def cancel_for_owner(self, owner: str) -> None:
        """Cancel the compaction of all conversations of an owner, before data of theirs is deleted."""
        await cancel_tasks(*(job.task for job in self._jobs.values() if job.owner == owner))

    async def cancel_for_conversation(self, conversation_id: str) -> None:
        """Cancel the compaction of a conversation, before data of it is deleted."""
        await cancel_tasks(*(job.task for name, job in self._jobs.items() if name == conversation_id))

    @asynccontextmanager
    async def hold(self, conversation_id: str) -> AsyncIterator[None]:
        """Cancel the compaction of a conversation and begin none, while turns that it may have read are deleted."""
        self._held.append(conversation_id)
        try:
            await self.cancel_for_conversation(conversation_id)
            yield
        finally:
            self._held.remove(conversation_id)

    async def wait_until_idle(self) -> None:
        """Wait until no compaction runs."""
        while self._jobs:
            await asyncio.wait([job.task for job in self._jobs.values()])

    async def close(self) -> None:
        """Cancel all compactions and close the summariser. The next turn of a conversation starts its compaction again."""
        await cancel_tasks(*(job.task for job in self._jobs.values()))
        await self._summariser.close()

    def _turns_to_compact(self, active: ActiveConversation) -> range:
        return turns_to_compact(self.policy, active.record.turns, self.compaction_state(active.variables).through)

    async def _compact(self, active: ActiveConversation) -> None:
        try:
            async with self._job_slots:
                while numbers := self._turns_to_compact(active):
                    await self._compact_batch(active, numbers[:_TURN_BATCH])
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # whatever failed, the turns stay in the window
            if not self._is_failing:
                message = "%s: compaction fails, so turns stay in their windows; it is retried with later turns: %s"
                unexpected = None if isinstance(error, CoReasonError) else error
                log.error(message, self._repository.agent, describe_for_log(error), exc_info=unexpected)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info("%s: compaction works again", self._repository.agent)
            self._is_failing = False

    async def _compact_batch(self, active: ActiveConversation, numbers: range) -> None:
        variables, conversation_id = active.variables, active.record.conversation_id
        stored_turns = await self._repository.turns.load(active.record.id, numbers[0], numbers[-1])
        state = CompactionState(self.policy.strategy.value, numbers[-1])
        if self.policy.strategy is MemoryStrategy.SUMMARY:
            turns = parse_interactions(body for _, body in stored_turns)
            summary = self.compaction_state(variables).summary
            if turns:
                summary = await self._summariser.summarise(self.policy.summary_prompt or "", summary, turns)
            state = state._replace(summary=summary)
        elif self.knowledge is not None:
            numbered = [(number, turn) for number, body in stored_turns for turn in parse_interactions([body])]
            await self.knowledge.add_turns(conversation_id, numbered)
        text = state.to_json()
        await self._repository.save_variable("conversation", conversation_id, COMPACTION_VARIABLE, text)
        variables.values[COMPACTION_VARIABLE] = text
