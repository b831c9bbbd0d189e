"""The active memory of one conversation, as an agent sees it during a turn (seed: Active Memory Interface)."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from .contracts import Identity, Interaction, SessionState
from .stores import AgentStore, Variable

log = logging.getLogger(__name__)

Scope: TypeAlias = Literal["conversation", "person"]

# How many of the newest turns `recall` looks at.
_RECALL_TURNS = 1000
_RECALL_AT_ONCE = 25


class Variables:
    """The variables of one holder, as JSON texts. One object a holder in a process, so that nobody reads an old value."""

    def __init__(self, scope: Scope, holder: str, values: dict[str, str]) -> None:
        self.scope = scope
        self.holder = holder
        self.values = values


class Session:
    """The SessionHandle of one turn. What is stored becomes durable with the turn, in one transaction."""

    def __init__(
        self,
        state: SessionState,
        identity: Identity,
        store: AgentStore,
        conversation_row: int,
        turns: int,
        conversation: Variables,
        person: Variables | None,
    ) -> None:
        self._state = state
        self._identity = identity
        self._store = store
        self._conversation_row = conversation_row
        self._turns = turns
        self._scopes = {"conversation": conversation, "person": person}
        self._written: dict[tuple[str, str], str] = {}
        self._is_over = False
        self.is_ended = False

    @property
    def session_id(self) -> str:
        """The id of the session (UUID version 5 of agent, owner and conversation), the same after a restart."""
        return self._state.id

    @property
    def identity(self) -> Identity:
        """Who asks: bare JID, nickname or local part, "user" or "agent"."""
        return self._identity

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """The most recent `limit` turns in chronological order, `offset` turns back from the newest.

        Pages through everything that is stored, beyond the window of the memory policy too.
        """
        if limit <= 0 or offset < 0:
            return []
        window = self._state.history
        if offset + limit <= len(window) or len(window) == self._turns:
            end = len(window) - offset
            return window[max(0, end - limit) : end] if end > 0 else []
        rows = await self._store.history(self._conversation_row, limit, offset)
        return interactions(rows)

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """The turns of this conversation that speak of `query`, best first.

        The score of a turn is the share (0 to 1) of the query's words that stand in it; at least `threshold` counts. The
        newest 1,000 turns are looked at.
        """
        words = set(_words(query))
        if not words or limit <= 0:
            return []
        found: list[tuple[float, int, str]] = []
        for offset in range(0, _RECALL_TURNS, _RECALL_AT_ONCE):
            turns = await self.history(_RECALL_AT_ONCE, offset)
            for number, turn in enumerate(turns):
                text = turn_text(turn)
                score = len(words.intersection(_words(text))) / len(words)
                if score >= threshold and score > 0:
                    found.append((score, number - offset, text))
            if len(turns) < _RECALL_AT_ONCE:
                break
            await asyncio.sleep(0)  # long turns hold up nobody else
        found.sort(reverse=True)
        return [text for _, _, text in found[:limit]]

    async def store(self, key: str, value: Any, *, scope: Scope | None = None) -> None:
        """Keeps a variable: for this conversation and for this person with the agent, or for the `scope` named.

        `ValueError` names the key of a value that is no JSON; then nothing is changed. `RuntimeError` after the turn.
        """
        if self._is_over:
            raise RuntimeError("nothing may be stored after assist has returned")
        if not isinstance(key, str) or not key:
            raise ValueError(f"the key of a variable is a text, not {key!r}")
        if "\0" in key:
            raise ValueError(f"the key of a variable has no NUL character, as {key!r} does")
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            (key + text).encode()  # a lone surrogate could not be stored
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f'variable "{key}": {error}; only JSON values can be kept') from error
        for name in _scopes(scope):
            if self._scopes[name] is not None:
                self._written[name, key] = text

    async def get(self, key: str, default: Any = None) -> Any:
        """A variable of this conversation, else of this person with the agent, else `default`."""
        for name, variables in self._scopes.items():
            if variables is None:
                continue
            text = self._written.get((name, key))
            if text is None:
                text = variables.values.get(key)
            if text is not None:
                return json.loads(text)
        return default

    def end(self) -> None:
        """Ends the conversation after this turn; the next message opens a new episode with the same memory."""
        self.is_ended = True

    def close(self) -> list[Variable]:
        """Ends the storing, and gives what this turn stored."""
        self._is_over = True
        return self.written()

    def written(self) -> list[Variable]:
        """What this turn stored so far."""
        rows = []
        for (name, key), text in self._written.items():
            variables = self._scopes[name]
            if variables is not None:
                rows.append(Variable(name, variables.holder, key, text))
        return rows

    def settle(self) -> None:
        """Makes what was stored visible to others; after the transaction."""
        for (name, key), text in self._written.items():
            variables = self._scopes[name]
            if variables is not None:
                variables.values[key] = text


def interactions(rows: Sequence[str]) -> list[Interaction]:
    """Stored turns. One that cannot be read is missing, and the log says so: the others are still there."""
    found = []
    for row in rows:
        try:
            found.append(Interaction.model_validate_json(row))
        except ValueError as error:  # what was written goes deeper, or has longer numbers, than can be read
            log.error("a stored turn cannot be read (%d characters): %s", len(row), str(error).partition("\n")[0])
    return found


def _scopes(scope: Scope | None) -> tuple[Scope, ...]:
    if scope is None:
        return ("conversation", "person")
    if scope not in ("conversation", "person"):
        raise ValueError(f'scope is "conversation" or "person", not {scope!r}')
    return (scope,)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def turn_text(turn: Interaction) -> str:
    """A turn as text: what was asked, and what was answered."""
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    answered = turn.output.get("text", "")
    return f"{asked if isinstance(asked, str) else json.dumps(turn.dump()['input'], ensure_ascii=False)}\n{answered}".strip()
