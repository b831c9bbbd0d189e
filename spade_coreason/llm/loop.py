"""One turn of a language model: ask, call what it wants called, ask again, until it has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..contracts import AgentCapability, ResponseHandler
from ..exceptions import ModelError
from .budget import BudgetExceededError, BudgetMeter
from .context import Context
from .guardrails.decisions import NO_ANSWER, WithheldError
from .model.client import CompletionRequest
from .model.completion import Completion
from .model.fallback import ModelWithFallback
from .options import Limits
from .output import ReplyStreamer
from .prompts import render_problem
from .structured import parse_data
from .tools.execution import ToolRunner


class ModelCaller:
    """Asks `model` what `context` holds; `streamer` hears its replies. `extra_fields` are more fields of each request, such as
    its tools."""

    def __init__(
        self,
        model: ModelWithFallback,
        context: Context,
        streamer: ReplyStreamer,
        meter: BudgetMeter,
        extra_fields: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._context = context
        self._streamer = streamer
        self._meter = meter
        self._extra_fields = extra_fields

    async def call(self, *, may_call_tools: bool) -> Completion:
        """One reply, with its text as it was let through. Whatever is raised, what was used is counted.

        BudgetUsedUp, ContextTooLong, ModelError, and Withheld where a guardrail keeps it back.
        """
        extra_fields = dict(self._extra_fields)
        if not may_call_tools:
            extra_fields["tool_choice"] = "none"
        await self._meter.check()
        question = CompletionRequest(self._context.messages(json.dumps(extra_fields, ensure_ascii=False)), extra_fields)
        tally = self._meter.turn_usage
        try:
            reply = await tally.complete(self._model, question, self._streamer, self._context.count_message_tokens)
            tally.model = reply.model
            reply.text = await self._streamer.finish(is_truncated=reply.finish_reason == "length")
        except ModelError as error:
            await self._streamer.abort(error.problem)
            raise
        except BudgetExceededError:
            await self._streamer.abort("a budget is used up")
            raise
        return reply


_CONVERSATION_ENDED = "(Our conversation ends here.)"

"""Where a termination marker is all that the model says."""


class AgentLoop:
    """`run` leads it: asks, and adds to `context` what was said and what tools gave."""

    def __init__(
        self,
        model_caller: ModelCaller,
        tool_runner: ToolRunner,
        context: Context,
        streamer: ReplyStreamer,
        response: ResponseHandler,
        limits: Limits,
    ) -> None:
        self._model_caller = model_caller
        self._tool_runner = tool_runner
        self._context = context
        self._streamer = streamer
        self._response = response
        self._limits = limits

    async def run(self, capability: AgentCapability | None = None) -> None:
        """Answers; with a capability that has an output schema by data, repaired at most `limits.repairs` times.

        ModelError where the model fails or comes to no end, ContextTooLong where it is shown too much, BudgetUsedUp where no
        more may be used. An answer that a guardrail keeps back is answered with what that says.
        """
        repairs = self._limits.repairs
        while True:
            reply = await self._complete_with_tools()
            if reply is None:
                return
            if capability is None:
                if self._streamer.has_replied:
                    return
                if not (self._streamer.has_termination_marker or self._streamer.is_emptied):
                    problem = (
                        "used up all it may say before its answer" if reply.finish_reason == "length" else "gave no answer"
                    )
                    raise ModelError(reply.model, problem, is_transient=True)
                await self._response.markdown(_CONVERSATION_ENDED if self._streamer.has_termination_marker else NO_ANSWER)
                return
            data, problem = parse_data(reply.text, capability.outputs)
            if data is not None:
                await self._response.data(data)
                return
            if not repairs:
                # What is wrong quotes it, and what it says is for no log.
                raise ModelError(reply.model, "gave no data that are valid", is_transient=True)
            repairs -= 1
            self._context.tail += [
                {"role": "assistant", "content": reply.text[: self._limits.result_characters]},
                *render_problem(problem),
            ]

    async def _complete_with_tools(self) -> Completion | None:
        """The reply that calls no tool, after those that do; None where one is kept back."""
        for left in range(self._limits.rounds, -1, -1):
            try:
                reply = await self._model_caller.call(may_call_tools=left > 0)
            except WithheldError as error:
                await self._streamer.withhold(error)
                return None
            if not reply.tool_calls:
                return reply
            if left:
                self._context.tail += await self._tool_runner.run(reply)
        raise ModelError(reply.model, f"came to no answer within {self._limits.rounds} rounds of tool calls")
