"""One turn of a language model: ask, call what it wants called, ask again, until it has answered."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..contracts import AgentCapability, ResponseHandler
from ..exceptions import ModelError
from .budgets import Purse
from .client import Question
from .context import Context
from .decisions import Withheld
from .deltas import Reply
from .guard import Guard
from .model import Model
from .options import Limits
from .speaker import Speaker
from .structured import data_in
from .tally import Tally
from .toolbox import Toolbox

_CHARACTERS_A_TOKEN = 4


class LLMTurn:
    """`run` leads it; whatever it raises, `tally` has what was used until then."""

    def __init__(
        self,
        name: str,
        model: Model,
        context: Context,
        toolbox: Toolbox,
        response: ResponseHandler,
        speaker: Speaker,
        limits: Limits,
        tally: Tally,
        guard: Guard,
        purse: Purse,
        *,
        further: Mapping[str, Any],
        shows_tools: bool,
    ) -> None:
        self._name = name
        self._model = model
        self._context = context
        self._toolbox = toolbox
        self._response = response
        self._speaker = speaker
        self._limits = limits
        self._further = dict(further)
        self._shows_tools = shows_tools
        self._tally = tally
        self._guard = guard
        self._purse = purse

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
                if not self._speaker.said_something and not self._speaker.is_over:
                    problem = "used up all it may say before its answer" if reply.finish == "length" else "gave no answer"
                    raise ModelError(reply.model, problem, may_pass=True)
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
                {"role": "user", "content": f"That is not valid: {problem}. Answer again, with the corrected JSON alone."},
            ]

    async def _answer(self) -> Reply | None:
        """The reply that calls no tool, after those that do; None where one is kept back."""
        for left in range(self._limits.rounds, -1, -1):
            try:
                reply = await self._ask(may_call=left > 0)
            except Withheld as error:
                await self._speaker.withhold(error)
                return None
            if not reply.calls:
                return reply
            if left:
                await self._call(reply)
        raise ModelError(reply.model, f"came to no answer within {self._limits.rounds} rounds of tool calls")

    async def _ask(self, *, may_call: bool) -> Reply:
        further = dict(self._further)
        if schemas := self._toolbox.schemas:
            further["tools"] = schemas
            if not may_call:
                further["tool_choice"] = "none"
        await self._purse.check()
        question = Question(self._context.messages(json.dumps(further, ensure_ascii=False) if further else ""), further)
        self._tally.requests += 1
        try:
            reply = await self._model.reply(question, self._speaker)
        except ModelError as error:
            await self._speaker.abort(error.problem)
            raise
        except (Withheld, asyncio.CancelledError):  # it is not heard to its end, where its usage is said
            self._estimate(question)
            raise
        self._tally.model = reply.model
        if reply.usage:
            self._tally.add(reply.usage)
        else:
            self._estimate(question)
        reply.text = await self._speaker.end(is_cut=reply.finish == "length")
        return reply

    def _estimate(self, question: Question) -> None:
        self._tally.estimate(self._context.tokens(question.messages), self._speaker.heard // _CHARACTERS_A_TOKEN)

    async def _call(self, reply: Reply) -> None:
        del reply.calls[self._limits.calls + 1 :]  # the first that is too much is told so
        self._tally.tool_calls += len(reply.calls)
        if self._shows_tools:
            await self._show(Counter(call.name[:64] for call in reply.calls))
        said: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        said["tool_calls"] = [call.message for call in reply.calls]
        self._context.tail.append(said)
        for result in await self._toolbox.call_all(reply.calls, self._on_call):
            self._context.tail.append({**result, "content": await self._guard.given(result["content"])})

    async def _show(self, names: Mapping[str, int]) -> None:
        """A line for each tool; another platform's handler has no `step`."""
        lines = [f"Using {name}{f' ({times} times)' if times > 1 else ''}…" for name, times in names.items()]
        await getattr(self._response, "step", self._response.thought)("\n".join(lines))

    async def _on_call(self, tool: str, is_good: bool) -> None:
        await self._response.audit(self._name, "tool.call", tool[:64], is_good)
