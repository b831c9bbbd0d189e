"""How many tokens may be used, and what is said when they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from pydantic import Field

from ..contracts import CloudEvent, ResponseHandler
from ..exceptions import CoReasonError, ModelError
from ..memory import USAGE, Usage
from .model.client import Question
from .model.fallback import Listener, Model
from .model.reply import Reply
from .options import StrictOptions

_CHARACTERS_A_TOKEN = 4

Tokens: TypeAlias = Callable[[Sequence[Mapping[str, Any]]], int]

"""How many tokens messages have."""


class Tally:
    """Counts as the turn goes on. `report` records it with the Interaction."""

    def __init__(self, agent: str, model: str) -> None:
        self._agent = agent
        self.model = model
        """The model that answered last."""
        self.requests = 0
        self.tool_calls = 0
        self._tokens: Counter[str] = Counter()
        self._is_estimated = False

    @property
    def tokens(self) -> int:
        """All that were used so far."""
        return self._tokens["total_tokens"]

    async def reply(self, model: Model, question: Question, listener: Listener, tokens: Tokens) -> Reply:
        """`model.reply`, counted: as the server says, else by what was asked and heard."""

        def estimate() -> None:
            self._estimate(tokens(question.messages), listener.heard)

        def lost() -> None:
            if listener.heard:  # one that never began is not paid for
                estimate()

        self.requests += 1
        try:
            reply = await model.reply(question, listener, lost)
        except ModelError:
            lost()
            raise
        except BaseException:  # it is not heard to its end, where its usage is said
            estimate()
            raise
        if reply.usage:
            self._tokens.update(reply.usage)
        else:
            estimate()
        return reply

    def _estimate(self, prompt: int, heard: int) -> None:
        completion = heard // _CHARACTERS_A_TOKEN
        self._tokens.update(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        self._is_estimated = True

    async def report(self, response: ResponseHandler) -> None:
        """Emits the usage, where a model was asked."""
        if not self.requests:
            return
        used = {"model": self.model, "requests": self.requests, "tool_calls": self.tool_calls, **self._tokens}
        if self._is_estimated:
            used["estimated"] = True
        await response.emit(CloudEvent(type=USAGE, source=f"urn:agent:{self._agent}", data=used))


class Budgets(StrictOptions):
    """Tokens, those shown to a model and its own: of one turn, of a conversation, of one person and of all in a day (UTC).

    They are looked at before a model is asked, so that the request that exceeds one is the last.
    """

    turn: int | None = Field(default=None, ge=1)
    conversation: int | None = Field(default=None, ge=1)
    person_day: int | None = Field(default=None, ge=1)
    agent_day: int | None = Field(default=None, ge=1)

    @property
    def last(self) -> bool:
        """Whether any holds for more than a turn."""
        return any((self.conversation, self.person_day, self.agent_day))


class BudgetUsedUp(CoReasonError):
    """No more tokens may be used; the text says of what, and when it begins again."""


class Purse:
    """The budgets in one turn, with what was used before (`usage`) and in it."""

    def __init__(self, budgets: Budgets, usage: Usage | None, tally: Tally, person: str, conversation_id: str) -> None:
        self._budgets = budgets
        self._usage = usage
        self.tally = tally
        """What was used in the turn."""
        self._person = person
        self._conversation_id = conversation_id

    async def check(self) -> None:
        """BudgetUsedUp where one is."""
        budgets, now = self._budgets, self.tally.tokens
        if budgets.turn is not None and now >= budgets.turn:
            raise BudgetUsedUp(f"This answer has used its budget of {budgets.turn:,} tokens; ask for less at once.")
        if (usage := self._usage) is None:
            return
        most = budgets.conversation
        if most is not None and now + await usage.of_conversation(self._conversation_id) >= most:
            raise BudgetUsedUp(f"This conversation has used its budget of {most:,} tokens; begin a new one with /new.")
        most = budgets.person_day
        if most is not None and now + await usage.of_person(self._person) >= most:
            raise BudgetUsedUp(f"You have used your budget of {most:,} tokens for today; {_again(usage.until_next_day)}.")
        most = budgets.agent_day
        if most is not None and now + await usage.of_agent() >= most:
            raise BudgetUsedUp(f"My budget of {most:,} tokens for today is used up; {_again(usage.until_next_day)}.")


def _again(left: timedelta) -> str:
    minutes = max(1, round(left.total_seconds() / 60))
    return f"it begins again at 00:00 UTC, in {minutes // 60} h {minutes % 60:02} min"
