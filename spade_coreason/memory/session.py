"""The session of one turn: history, window, search and variables for an agent (seed: Active Memory Interface)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ..contracts import Identity, Interaction, MemoryStrategy, Missed, Schedule
from ..contracts.authoring import OnUncertain, Payload, VariableScope
from ..domain.history import StoredTurn, parse_interactions, parse_turns, turn_text
from ..domain.texts.json_text import dump_json
from ..domain.texts.text import extract_keywords, text_coverage
from ..exceptions import VariableChangedError
from ..storage import INTERNAL_VARIABLES, NO_COMPACTION, StoredConversation, Variable
from .conversation import Variables

if TYPE_CHECKING:
    from ..storage import AgentRepository
    from .history_windows import HistoryWindows

# The number of newest turns that `recall` searches.
_MAX_RECALL_TURNS = 1000

_RECALL_PAGE = 25


class SessionChanges:
    """The changes of one turn to its session: variables to store, and the end of the episode.

    They become durable together with the turn, in one transaction. `person_variables` is None in a room, and
    `shared_variables` are those of the agent for all.
    """

    __slots__ = ("_by_scope", "_earlier", "_fail", "_is_closed", "_pending", "_seen", "conversation_variables", "is_ended")
    _fail: Callable[[VariableChangedError], NoReturn]

    def __init__(
        self, conversation_variables: Variables, person_variables: Variables | None, shared_variables: Variables
    ) -> None:
        self._seen: dict[tuple[str, str], str | None] | None = None
        """The variables that the turn has looked at, with their values then; made by the first look."""
        self._earlier: Mapping[tuple[str, str], str | None] | None = None
        """The variables as earlier runs of the turn have seen them."""
        self._by_scope = {"conversation": conversation_variables, "person": person_variables, "agent": shared_variables}
        self.conversation_variables = conversation_variables
        self._pending: dict[tuple[str, str], str] = {}
        self._is_closed = False
        self.is_ended = False
        """True if the episode ends with the turn."""

    def require_open(self) -> None:
        """Raise RuntimeError if the turn has ended."""
        if self._is_closed:
            raise RuntimeError("nothing may be stored after assist has returned")

    def repeat(self, seen: Iterable[tuple[str, str, str | None]], fail: Callable[[VariableChangedError], NoReturn]) -> None:
        """Show the variables as earlier runs of the turn have seen them: scope, name, and JSON text or None.

        `fail` makes the turn fail with an error, and raises it.
        """
        self._fail = fail
        self._earlier = {(scope, key): text for scope, key, text in seen}
        self._seen = dict(self._earlier)

    @property
    def seen(self) -> tuple[tuple[str, str, str | None], ...]:
        """The variables that the turn has looked at, and earlier runs of it: scope, name, and JSON text or None."""
        return tuple((scope, key, text) for (scope, key), text in (self._seen or {}).items())

    def set(self, scope: str, key: str, text: str) -> None:
        """Set a variable to a JSON text, if the scope has variables.

        VariableChangedError if another turn has set it since an earlier run of this one saw it.
        """
        variables = self._by_scope[scope]
        if variables is None:
            return
        if self._see(variables, scope, key) != variables.values.get(key):
            self._fail(VariableChangedError(key))
        self._pending[scope, key] = text

    def store(self, key: str, value: Any, scope: VariableScope | None) -> None:
        """Set a variable to a JSON value, in the scope or in all. Errors as `Session.store`."""
        self.require_open()
        if not isinstance(key, str) or not key:
            raise ValueError(f"the key of a variable must be a text, not {key!r}")
        if "\0" in key:
            raise ValueError(f"the key of a variable must not contain a NUL character: {key!r}")
        if key in INTERNAL_VARIABLES:
            raise ValueError(f'variable "{key}" is reserved for the platform; choose another name')
        try:
            key.encode()  # a lone surrogate cannot be stored
            text = dump_json(value)
        except ValueError as error:
            raise ValueError(f'variable "{key}": {error}; only JSON values can be stored') from error
        for name in _resolve_scopes(scope):
            self.set(name, key, text)

    def find(self, key: str) -> str | None:
        """Return the JSON text of a variable: of the conversation, else of the person, else of the agent; None without one."""
        for name, variables in self._by_scope.items():
            if variables is not None:
                text = self._pending.get((name, key)) or self._see(variables, name, key)
                if text is not None:
                    return text
        return None

    def _see(self, variables: Variables, scope: str, key: str) -> str | None:
        """Return a variable as the turn sees it: as its earlier runs did, if they have looked at it."""
        current = variables.values.get(key)
        if self._seen is None:
            self._seen = {}
        self._seen.setdefault((scope, key), current)
        return current if self._earlier is None else self._earlier.get((scope, key), current)

    def pending_variables(self) -> list[Variable]:
        """Return the variables that the turn has stored so far."""
        return [
            Variable(variables.scope, variables.holder, key, text)
            for (name, key), text in self._pending.items()
            if (variables := self._by_scope[name]) is not None
        ]

    def close(self) -> list[Variable]:
        """Reject further changes, and return the variables to store."""
        self._is_closed = True
        return self.pending_variables() if self._pending else []

    def discard(self) -> None:
        """Forget the variables that the turn has stored so far."""
        self._pending.clear()

    def publish(self) -> None:
        """Make the stored variables visible to other sessions. Call it after the transaction."""
        for (name, key), text in self._pending.items():
            if (variables := self._by_scope[name]) is not None:
                variables.values[key] = text


class StepRunner(Protocol):
    """The runner of the durable steps of one turn."""

    async def run_once(self, name: str, function: Callable[..., Any], args: Sequence[Any], on_uncertain: OnUncertain) -> Any:
        """Run a durable step, as `Session.run_once`."""
        ...


class SessionSchedules(Protocol):
    """The schedules of one turn, as `Session` has them."""

    async def remind(self, when: datetime | timedelta | str, payload: Payload, missed: Missed) -> str: ...

    async def later(self, payload: Payload) -> str: ...

    async def cancel(self, schedule_id: str) -> bool: ...

    async def find_all(self) -> list[Schedule]: ...


class SessionApprovals(Protocol):
    """The approvals of one turn, as `Session` has them."""

    async def run_approved(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], approvers: str | None
    ) -> Any: ...


class SessionTools(Protocol):
    """The parts of its turn that a session uses: its steps, and its schedules and questions, which few turns open."""

    @property
    def steps(self) -> StepRunner: ...
    def open_schedules(self) -> SessionSchedules: ...
    def open_questions(self) -> SessionApprovals: ...


class TurnSession:
    """The `Session` of one turn. `contracts.authoring` documents the methods for agents.

    `person` is the bare JID of the person whose knowledge it searches; "" if it is not known.
    """

    __slots__ = (
        "_changes",
        "_compaction",
        "_identity",
        "_person",
        "_recent_turns",
        "_record",
        "_repository",
        "_tools",
        "_windows",
        "later_turns",
    )

    def __init__(
        self,
        record: StoredConversation,
        recent_turns: Sequence[StoredTurn],
        identity: Identity,
        repository: AgentRepository,
        changes: SessionChanges,
        windows: HistoryWindows,
        tools: SessionTools,
        person: str = "",
    ) -> None:
        self._record = record
        self._recent_turns = recent_turns
        self._identity = identity
        self._repository = repository
        self._windows = windows
        self._compaction = windows.compaction_state(changes.conversation_variables) if windows.compacts else NO_COMPACTION
        self._person = person
        self._changes = changes
        self._tools = tools
        self.later_turns = 0
        """The number of turns since the first run of this one, which has waited for an answer. `history` leaves them out."""

    @property
    def session_id(self) -> str:
        """The id of the session (UUID version 5 of agent, owner and conversation), the same after a restart."""
        return self._record.session_id

    @property
    def identity(self) -> Identity:
        """The sender of the request: `id` is a bare JID, `name` a nickname or local part, `role` "user" or "agent"."""
        return self._identity

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """Return `limit` turns, oldest first. The last of them is `offset` turns before the newest."""
        if limit <= 0 or offset < 0:
            return []
        offset += self.later_turns
        recent = self._recent_turns
        if offset + limit <= len(recent) or len(recent) == self._record.turns:
            end = len(recent) - offset
            return parse_turns(recent[max(0, end - limit) : end]) if end > 0 else []
        return parse_interactions(await self._repository.turns.load_history(self._record.id, limit, offset))

    @property
    def summary(self) -> str:
        """The summary of the turns before the window. It is "" unless the memory policy is SUMMARY."""
        return self._compaction.summary

    async def window(self) -> list[Interaction]:
        """Return the summary, as a turn, and the turns that the memory policy selects for a language model, oldest first."""
        self._windows.warn_unbounded()
        count = self._record.turns - max(self._record.window_start - 1, self._compaction.through)
        window = self._recent_turns[-count:] if count > 0 else ()
        if len(window) < count and len(self._recent_turns) < self._record.turns:
            window = [StoredTurn(text) for text in await self._repository.turns.load_history(self._record.id, count)]
        turns = parse_turns(window)
        if not self.summary:
            return turns
        timestamp = turns[0].timestamp if turns else self._record.status.last_interaction
        summary_turn = Interaction(timestamp=timestamp, input=None, output={"text": self.summary}, meta={"summary": True})
        return [summary_turn, *turns]

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """Search for texts about `query`: passages of documents and turns of this conversation, best first."""
        if limit <= 0 or not query.strip():
            return []
        scored: list[tuple[float, str]] = []
        if (knowledge := self._windows.knowledge) is not None:
            owner = {"person": self._person, "conversation": self._record.conversation_id}
            scored = [(hit.score, hit.text) for hit in await knowledge.search(query, limit, threshold, **owner)]
        scored += await self._search_turns(extract_keywords(query), threshold)
        scored.sort(key=lambda pair: -pair[0])  # stable: knowledge comes before turns, newer turns before older
        return list(dict.fromkeys(text for _, text in scored))[:limit]

    async def _search_turns(self, keywords: Sequence[str], threshold: float) -> list[tuple[float, str]]:
        """Return the turns with these words, newest first, each with its score."""
        compacted_through = self._compaction.through if self._compaction.strategy == MemoryStrategy.VECTOR_STORE else 0
        max_turns = min(_MAX_RECALL_TURNS, self._record.turns - compacted_through)
        scored: list[tuple[float, str]] = []
        for offset in range(0, max_turns, _RECALL_PAGE):
            for turn in reversed(await self.history(min(_RECALL_PAGE, max_turns - offset), offset)):
                text = turn_text(turn)
                score = text_coverage(keywords, text)
                if score >= threshold and score > 0:
                    scored.append((score, text))
            await asyncio.sleep(0)  # lets other tasks run, since turns may be long
        return scored

    async def store(self, key: str, value: Any, *, scope: VariableScope | None = None) -> None:
        """Store a JSON value under a key, for the conversation and the person, or for the one that `scope` names."""
        self._changes.store(key, value, scope)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the variable of this conversation, else that of this person, else that of the agent, else `default`."""
        text = self._changes.find(key)
        return default if text is None else json.loads(text)

    async def run_once(self, name: str, function: Callable[..., Any], *args: Any, on_uncertain: OnUncertain = "retry") -> Any:
        """Run a durable step: call `function(*args)`, and store its result before this returns it."""
        return await self._tools.steps.run_once(name, function, args, on_uncertain)

    async def run_approved(self, name: str, function: Callable[..., Any], *args: Any, approvers: str | None = None) -> Any:
        """Run a durable step once a person has approved it."""
        return await self.open_approvals().run_approved(name, function, args, approvers)

    def open_approvals(self) -> SessionApprovals:
        """Return the approvals of the turn, for those who ask for several at once."""
        return self._tools.open_questions()

    async def remind(self, when: datetime | timedelta | str, payload: Payload, *, missed: Missed = "once") -> str:
        """Let a request come in this conversation at a time, and return the id of the schedule."""
        return await self._tools.open_schedules().remind(when, payload, missed)

    async def later(self, payload: Payload) -> str:
        """Let work that takes long run beside this conversation, and return the id of the schedule."""
        return await self._tools.open_schedules().later(payload)

    async def cancel_schedule(self, schedule_id: str) -> bool:
        """Cancel a schedule of the owner of this conversation. Return False if there is none."""
        return await self._tools.open_schedules().cancel(schedule_id)

    async def schedules(self) -> list[Schedule]:
        """Return the schedules of the owner of this conversation, the next due ones first."""
        return await self._tools.open_schedules().find_all()

    def end(self) -> None:
        """End the episode of the conversation after this turn. The next message opens a new one with the same memory."""
        self._changes.is_ended = True


def _resolve_scopes(scope: VariableScope | None) -> tuple[VariableScope, ...]:
    if scope is None:
        return ("conversation", "person")
    if scope not in ("conversation", "person", "agent"):
        raise ValueError(f'scope must be "conversation", "person" or "agent", not {scope!r}')
    return (scope,)
