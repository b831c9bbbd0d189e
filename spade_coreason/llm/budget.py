"""Token budgets: the usage of a turn, the limits, and the errors of a budget that is used up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import Field

from ..contracts import CloudEvent, ResponseHandler, SessionHandle
from ..domain.environment.loopback import is_loopback
from ..domain.texts.text import replace_lone_surrogates
from ..domain.texts.translation import translate
from ..exceptions import CoReasonError, ModelError
from ..memory import USAGE_EVENT, Usage
from .handlers import run_once
from .model.client import CompletionRequest
from .model.completion import Completion
from .model.fallback import CompletionListener, ModelWithFallback
from .options import StrictOptions

_CHARACTERS_PER_TOKEN = 4
DEFAULT_AGENT_DAY = 1_000_000
"""The tokens of an agent in a day, where nothing else is set: some hundred questions, for a few dollars at most."""

CountTokens: TypeAlias = Callable[[Sequence[Mapping[str, Any]]], int]
"""Count the tokens of messages."""


class TurnUsage:
    """The usage of one turn, counted while the turn runs. `report` records it with the Interaction."""

    def __init__(self, agent: str, model: str, session: SessionHandle) -> None:
        self.agent = agent
        """The name of the agent."""
        self.model = model
        """The model of the last completion."""
        self._session = session
        self.requests = 0
        self.tool_calls = 0
        self._token_counts: Counter[str] = Counter()
        self._is_estimated = False

    @property
    def tokens(self) -> int:
        """All tokens used so far."""
        return self._token_counts["total_tokens"]

    async def complete(
        self,
        step: str,
        model: ModelWithFallback,
        prepare: Callable[[], Awaitable[CompletionRequest]],
        listener: CompletionListener,
        count_tokens: CountTokens,
        shorten: Callable[[ModelError], bool] = lambda error: False,
    ) -> Completion:
        """Call `model.complete` with the request that `prepare` makes, as a durable step, and count its tokens.

        In a turn that runs again, a completion of the earlier run comes from the journal, and the model is not asked. Then
        `listener` receives its text at once, and its tokens count as those of this turn. The server's count is used if it
        sends one, else an estimate from the messages and the received text. After an error `shorten` may return True: then
        another request is prepared and sent.
        """
        cost: Counter[str] = Counter()
        completions: list[Completion] = []

        def add_cost(**counts: int) -> None:
            cost.update(counts)
            self._token_counts.update(counts)

        async def ask(idempotency_key: str) -> dict[str, Any]:
            request = await prepare()
            has_estimate = False

            def add_estimate() -> None:
                nonlocal has_estimate
                prompt, answer = count_tokens(request.messages), listener.received_characters // _CHARACTERS_PER_TOKEN
                add_cost(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)
                has_estimate = self._is_estimated = True

            def add_lost_attempt() -> None:
                if listener.received_characters:  # an attempt without any text costs nothing
                    add_estimate()

            self.requests += 1
            while True:
                try:
                    completion = await model.complete(request, listener, add_lost_attempt)
                    break
                except ModelError as error:
                    add_lost_attempt()
                    if not shorten(error):
                        raise
                except BaseException:  # the usage comes at the end, which was not reached
                    add_estimate()
                    raise
                request = await prepare()
            if completion.usage:
                add_cost(**completion.usage)
            else:
                add_estimate()
            completions.append(completion)
            stored = {"completion": completion.dump(), "tokens": dict(cost), "estimated": has_estimate}
            return cast(dict[str, Any], replace_lone_surrogates(stored))

        stored = await run_once(self._session, step, ask)
        if completions:
            return completions[0]
        self.requests += 1
        self._token_counts.update(stored["tokens"])
        self._is_estimated = self._is_estimated or stored["estimated"]
        completion = Completion.load(stored["completion"])
        listener.start()
        if completion.text:
            await listener.on_text(completion.text)
        return completion

    async def report(self, response: ResponseHandler) -> None:
        """Emit the usage, if a model was asked."""
        if not self.requests:
            return
        data = {"model": self.model, "requests": self.requests, "tool_calls": self.tool_calls, **self._token_counts}
        if self._is_estimated:
            data["estimated"] = True
        await response.emit(CloudEvent(type=USAGE_EVENT, source=f"urn:agent:{self.agent}", data=data))


class Budgets(StrictOptions):
    """Token limits: of one turn, of a conversation, and of one person and of all people in a day (UTC).

    A budget counts the tokens shown to a model and those of its completions. None and 0 mean no limit. Budgets are checked
    before a model is asked, so that the request that exceeds one is the last. Where `agent_day` is not given, it is
    `DEFAULT_AGENT_DAY` for a model that is not on this machine.
    """

    turn: int | None = Field(default=None, ge=0)
    conversation: int | None = Field(default=None, ge=0)
    person_day: int | None = Field(default=None, ge=0)
    agent_day: int | None = Field(default=None, ge=0)

    def for_server(self, url: str) -> Budgets:
        """Return the budgets with the default for the server of a model, which costs nothing on loopback."""
        if "agent_day" in self.model_fields_set or is_loopback(urlsplit(url).hostname or ""):
            return self
        # A copy does not count as given, so that its origin stays known.
        return Budgets.model_construct(self.model_fields_set, **dict(self) | {"agent_day": DEFAULT_AGENT_DAY})

    @property
    def has_lasting(self) -> bool:
        """True if a budget holds for more than a turn."""
        return any((self.conversation, self.person_day, self.agent_day))


class BudgetExceededError(CoReasonError):
    """A budget is used up. The text names the budget, and says when it starts again."""


class BudgetMeter:
    """The budgets in one turn, with the stored usage (`usage`) and the usage of the turn."""

    def __init__(self, budgets: Budgets, usage: Usage | None, turn_usage: TurnUsage, person: str, conversation_id: str) -> None:
        self._budgets = budgets
        self._usage = usage
        self.turn_usage = turn_usage
        """The usage of the turn."""
        self._person = person
        self._conversation_id = conversation_id

    async def check(self) -> None:
        """Raise BudgetExceededError if a budget is used up."""
        budgets, turn_tokens = self._budgets, self.turn_usage.tokens
        if budgets.turn and turn_tokens >= budgets.turn:
            raise BudgetExceededError(
                translate("This answer has used its budget of {number} tokens. Ask for less at once.", number=budgets.turn)
            )
        if (usage := self._usage) is None:
            return
        limit = budgets.conversation
        if limit and turn_tokens + await usage.of_conversation(self._conversation_id) >= limit:
            raise BudgetExceededError(
                translate("This conversation has used its budget of {number} tokens. Start a new one with /new.", number=limit)
            )
        limit = budgets.person_day
        if limit and turn_tokens + await usage.of_person(self._person) >= limit:
            raise BudgetExceededError(
                translate(
                    "You have used your budget of {number} tokens for today. It starts again at 00:00 UTC, in {time}.",
                    number=limit,
                    time=_format_remaining(usage.until_next_day),
                )
            )
        limit = budgets.agent_day
        if limit and turn_tokens + await usage.of_agent() >= limit:
            raise BudgetExceededError(
                translate(
                    "My budget of {number} tokens for today is used up. It starts again at 00:00 UTC, in {time}. My operator"
                    " can raise it (budgets.agent_day).",
                    number=limit,
                    time=_format_remaining(usage.until_next_day),
                )
            )


def _format_remaining(remaining: timedelta) -> str:
    minutes = max(1, round(remaining.total_seconds() / 60))
    return f"{minutes // 60} h {minutes % 60:02} min"
