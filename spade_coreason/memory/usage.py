"""Token counts of an agent's language models: per turn, per conversation, and per person and agent in a day (UTC)."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ..contracts.times import utc_now
from ..storage import TOKENS_VARIABLE, Variable

if TYPE_CHECKING:
    from ..storage import AgentRepository

USAGE_EVENT = "ai.coreason.llm.usage"
"""The type of the event that reports the usage of a turn, such as {"total_tokens": 18}.

An agent sends it with `response.emit`. The platform stores it in the `meta` of the Interaction as "usage"."""

_MAX_CACHED_CONVERSATIONS = 4096
"""The most conversations whose tokens are cached. The tokens of others are read from the database."""


def sum_usage(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum the usage events of one turn.

    Integers of the same name are added; of any other value the last one counts. The result is empty without a usage event.
    """
    total: dict[str, Any] = {}
    for event in events:
        data = event.get("data")
        if event.get("type") != USAGE_EVENT or not isinstance(data, dict):
            continue
        for name, value in data.items():
            total[name] = total.get(name, 0) + value if _is_number(value) and _is_number(total.get(name, 0)) else value
    return total


def find_token_counts(used: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the numbers of tokens in a result of `sum_usage`; None without one. Other values are for the operator."""
    counts = {
        name: count for name, count in used.items() if name.endswith("_tokens") and isinstance(count, int) and _is_number(count)
    }
    return counts or None


class _Holder(NamedTuple):
    """The holder of a token count, as a scope of variables and a name in it."""

    scope: str
    name: str


class Usage:
    """The tokens that the turns of one agent used. An agent receives it by the constructor parameter `usage`.

    Counts include every finished turn of this process. After a restart they are those of the last turn that was stored.
    Deleting everything about a person resets their count at the next start or the next day (UTC), whichever comes first.

    The methods that read raise `StoreError` if the database cannot be read.
    """

    def __init__(self, repository: AgentRepository, clock: Callable[[], datetime] = utc_now) -> None:
        self._repository = repository
        self._clock = clock
        self._day = ""
        self._tokens_today: dict[_Holder, int] = {}
        self._tokens_by_conversation: OrderedDict[str, int] = OrderedDict()
        self.tokens_since_start = 0
        """The tokens of all turns of this process."""

    async def of_person(self, person: str) -> int:
        """Return the tokens of a person (a bare JID) today (UTC)."""
        return await self._load_today(_Holder("person", person))

    async def of_agent(self) -> int:
        """Return the tokens of the agent today (UTC), for all people together."""
        return await self._load_today(_Holder("agent", self._repository.agent))

    async def of_conversation(self, conversation_id: str) -> int:
        """Return the tokens of a conversation in its current episode. A new episode starts at 0."""
        if conversation_id not in self._tokens_by_conversation:
            stored = await self._load_stored(_Holder("conversation", conversation_id))
            if conversation_id not in self._tokens_by_conversation:
                self._cache_conversation(conversation_id, stored if isinstance(stored, int) else 0)
        return self._tokens_by_conversation[conversation_id]

    @property
    def until_next_day(self) -> timedelta:
        """The time until the next day begins (UTC)."""
        now = self._clock().astimezone(UTC)
        return datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1) - now

    # For the runner

    def reset_conversation(self, conversation_id: str) -> None:
        """Set the tokens of a conversation to 0, because a new episode of it starts."""
        self._cache_conversation(conversation_id, 0)

    async def add(self, used: dict[str, Any], person: str, conversation_id: str) -> list[Variable]:
        """Count the tokens of a turn, and return the variables to store with it.

        `used` is the result of `sum_usage`; only its "total_tokens" counts. Without a positive number nothing is counted.
        """
        tokens = used.get("total_tokens")
        if not isinstance(tokens, int) or tokens <= 0:
            return []
        self.tokens_since_start += tokens
        holders = [_Holder("person", person), _Holder("agent", self._repository.agent)]
        for holder in holders:
            await self._load_today(holder)
        total = await self.of_conversation(conversation_id) + tokens
        self._cache_conversation(conversation_id, total)
        variables = [Variable("conversation", conversation_id, TOKENS_VARIABLE, json.dumps(total))]
        for holder in holders:
            self._tokens_today[holder] = self._tokens_today.get(holder, 0) + tokens
            variables.append(
                Variable(*holder, TOKENS_VARIABLE, json.dumps({"day": self._day, "tokens": self._tokens_today[holder]}))
            )
        return variables

    def _cache_conversation(self, conversation_id: str, tokens: int) -> None:
        self._tokens_by_conversation[conversation_id] = tokens
        self._tokens_by_conversation.move_to_end(conversation_id)
        if len(self._tokens_by_conversation) > _MAX_CACHED_CONVERSATIONS:
            self._tokens_by_conversation.popitem(last=False)  # the database still has it

    async def _load_today(self, holder: _Holder) -> int:
        day = self._clock().astimezone(UTC).date().isoformat()
        if day != self._day:
            self._day = day
            self._tokens_today.clear()
        if holder not in self._tokens_today:
            stored = await self._load_stored(holder)
            is_of_today = isinstance(stored, dict) and stored.get("day") == self._day
            self._tokens_today.setdefault(holder, stored["tokens"] if is_of_today else 0)
        return self._tokens_today[holder]

    async def _load_stored(self, holder: _Holder) -> Any:
        value = (await self._repository.load_variables(*holder)).get(TOKENS_VARIABLE)
        return None if value is None else json.loads(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
