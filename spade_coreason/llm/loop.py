"""One turn of a language model: ask, call what it wants called, ask again, until it has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..contracts import AgentCapability, ResponseHandler
from ..exceptions import ModelError
from .budget import BudgetUsedUp, Purse
from .context import Context
from .guardrails.decisions import NO_ANSWER, Withheld
from .model.client import Question
from .model.fallback import Model
from .model.reply import Reply
from .options import Limits
from .output import Speaker
from .prompts import problem_shown
from .structured import data_in
from .tools.execution import ToolUse


class Asker:
    """Asks `model` what `context` holds; `speaker` hears its replies. `further` are more fields of each request, such as
    its tools."""

    def __init__(self, model: Model, context: Context, speaker: Speaker, purse: Purse, further: Mapping[str, Any]) -> None:
        self._model = model
        self._context = context
        self._speaker = speaker
        self._purse = purse
        self._further = further

    async def ask(self, *, may_call: bool) -> Reply:
        """One reply, with its text as it was let through. Whatever is raised, what was used is counted.

        BudgetUsedUp, ContextTooLong, ModelError, and Withheld where a guardrail keeps it back.
        """
        further = dict(self._further)
        if not may_call:
            further["tool_choice"] = "none"
        await self._purse.check()
        question = Question(self._context.messages(json.dumps(further, ensure_ascii=False)), further)
        tally = self._purse.tally
        try:
            reply = await tally.reply(self._model, question, self._speaker, self._context.tokens)
            tally.model = reply.model
            reply.text = await self._speaker.end(is_cut=reply.finish == "length")
        except ModelError as error:
            await self._speaker.abort(error.problem)
            raise
        except BudgetUsedUp:
            await self._speaker.abort("a budget is used up")
            raise
        return reply


_OVER = "(Our conversation ends here.)"

"""Where a termination marker is all that the model says."""


class LLMTurn:
    """`run` leads it: asks, and adds to `context` what was said and what tools gave."""

    def __init__(
        self,
        asker: Asker,
        tool_use: ToolUse,
        context: Context,
        speaker: Speaker,
        response: ResponseHandler,
        limits: Limits,
    ) -> None:
        self._asker = asker
        self._tool_use = tool_use
        self._context = context
        self._speaker = speaker
        self._response = response
        self._limits = limits

    async def run(self, capability: AgentCapability | None = None) -> None:
        """Answers; with a capability that has an output schema by data, repaired at most `limits.repairs` times.

        ModelError where the model fails or comes to no end, ContextTooLong where it is shown too much, BudgetUsedUp where no
        more may be used. An answer that a guardrail keeps back is answered with what that says.
        """
        repairs = self._limits.repairs
        while True:
            reply = await self._answer()
            if reply is None:
                return
            if capability is None:
                if self._speaker.said_something:
                    return
                if not (self._speaker.is_over or self._speaker.is_cleared):
                    problem = "used up all it may say before its answer" if reply.finish == "length" else "gave no answer"
                    raise ModelError(reply.model, problem, may_pass=True)
                await self._response.markdown(_OVER if self._speaker.is_over else NO_ANSWER)
                return
            data, problem = data_in(reply.text, capability.outputs)
            if data is not None:
                await self._response.data(data)
                return
            if not repairs:
                # What is wrong quotes it, and what it says is for no log.
                raise ModelError(reply.model, "gave no data that are valid", may_pass=True)
            repairs -= 1
            self._context.tail += [
                {"role": "assistant", "content": reply.text[: self._limits.result_characters]},
                *problem_shown(problem),
            ]

    async def _answer(self) -> Reply | None:
        """The reply that calls no tool, after those that do; None where one is kept back."""
        for left in range(self._limits.rounds, -1, -1):
            try:
                reply = await self._asker.ask(may_call=left > 0)
            except Withheld as error:
                await self._speaker.withhold(error)
                return None
            if not reply.calls:
                return reply
            if left:
                self._context.tail += await self._tool_use.run(reply)
        raise ModelError(reply.model, f"came to no answer within {self._limits.rounds} rounds of tool calls")
