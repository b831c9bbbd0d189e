"""What an agent's language models used: tokens of a turn, of a conversation, of a person and of the agent in a day (UTC)."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..contracts.base import utc_now
from ..storage import AgentRepository, Variable

USAGE_EVENT = "ai.coreason.llm.usage"
"""The type of the event by which an agent says what a turn used, such as {"total_tokens": 18}: `response.emit` takes it, and
the platform puts it into the `meta` of the Interaction as "usage"."""

TOKENS_VARIABLE = "coreason.tokens"
"""The variable of a person, of a conversation and of the agent in which they are kept."""

_MAX_CACHED_CONVERSATIONS = 4096
"""Conversations whose tokens are held in memory; those of others are looked up."""


def sum_usage(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the events of a turn say of it; numbers of several are added up. Empty where none does."""
    found: dict[str, Any] = {}
    for event in events:
        data = event.get("data")
        if event.get("type") != USAGE_EVENT or not isinstance(data, dict):
            continue
        for name, value in data.items():
            found[name] = found.get(name, 0) + value if _is_number(value) and _is_number(found.get(name, 0)) else value
    return found


class _Holder(NamedTuple):
    """Whose tokens they are, as in the scopes of variables."""

    scope: str
    name: str


class Usage:
    """The tokens that turns of one agent used: a part of an agent, by the constructor parameter `usage`.

    What is read is true for this process at once, and after a restart as of the last turn that was stored. `StoreError` from
    whatever reads. A person of whom everything is forgotten begins anew with the next start, and with the next day.
    """

    def __init__(self, repository: AgentRepository, clock: Callable[[], datetime] = utc_now) -> None:
        self._repository = repository
        self._clock = clock
        self._day = ""
        self._tokens_today: dict[_Holder, int] = {}
        self._tokens_by_conversation: OrderedDict[str, int] = OrderedDict()

    async def of_person(self, person: str) -> int:
        """Of a person (a bare JID) today."""
        return await self._load_today(_Holder("person", person))

    async def of_agent(self) -> int:
        """Of everybody today."""
        return await self._load_today(_Holder("agent", self._repository.agent))

    async def of_conversation(self, conversation_id: str) -> int:
        """Of a conversation since it began; one that ended begins anew."""
        if conversation_id not in self._tokens_by_conversation:
            kept = await self._load_stored(_Holder("conversation", conversation_id))
            if conversation_id not in self._tokens_by_conversation:
                self._cache_conversation(conversation_id, kept if isinstance(kept, int) else 0)
        return self._tokens_by_conversation[conversation_id]

    @property
    def until_next_day(self) -> timedelta:
        """How long it is until a day begins."""
        now = self._clock().astimezone(UTC)
        return datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1) - now

    # What the runner calls

    def reset_conversation(self, conversation_id: str) -> None:
        """A conversation begins, or begins anew."""
        self._cache_conversation(conversation_id, 0)

    async def add(self, used: dict[str, Any], person: str, conversation_id: str) -> list[Variable]:
        """Counts what a turn used; gives what is to be stored with it."""
        tokens = used.get("total_tokens")
        if not isinstance(tokens, int) or tokens <= 0:
            return []
        holders = [_Holder("person", person), _Holder("agent", self._repository.agent)]
        for holder in holders:
            await self._load_today(holder)
        total = await self.of_conversation(conversation_id) + tokens
        self._cache_conversation(conversation_id, total)
        rows = [Variable("conversation", conversation_id, TOKENS_VARIABLE, json.dumps(total))]
        for holder in holders:
            self._tokens_today[holder] = self._tokens_today.get(holder, 0) + tokens
            rows.append(
                Variable(*holder, TOKENS_VARIABLE, json.dumps({"day": self._day, "tokens": self._tokens_today[holder]}))
            )
        return rows

    def _cache_conversation(self, conversation_id: str, tokens: int) -> None:
        self._tokens_by_conversation[conversation_id] = tokens
        self._tokens_by_conversation.move_to_end(conversation_id)
        if len(self._tokens_by_conversation) > _MAX_CACHED_CONVERSATIONS:
            self._tokens_by_conversation.popitem(last=False)  # it is stored

    async def _load_today(self, holder: _Holder) -> int:
        day = self._clock().astimezone(UTC).date().isoformat()
        if day != self._day:
            self._day = day
            self._tokens_today.clear()
        if holder not in self._tokens_today:
            kept = await self._load_stored(holder)
            is_of_today = isinstance(kept, dict) and kept.get("day") == self._day
            self._tokens_today.setdefault(holder, kept["tokens"] if is_of_today else 0)
        return self._tokens_today[holder]

    async def _load_stored(self, holder: _Holder) -> Any:
        value = (await self._repository.load_variables(*holder)).get(TOKENS_VARIABLE)
        return None if value is None else json.loads(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
