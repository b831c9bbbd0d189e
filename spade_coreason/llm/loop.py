"""The agent loop: ask the model, run the tools that it calls, and ask again until it has answered."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from ..contracts import AgentCapability, ResponseHandler
from ..domain.texts.translation import N_, translate
from ..exceptions import ModelError
from .budget import BudgetMeter
from .context import Context
from .guardrails.decisions import NO_ANSWER, WithheldError
from .handlers import show_step
from .model.client import CompletionRequest, PicturesRefusedError
from .model.completion import Completion
from .model.fallback import ModelWithFallback
from .options import Limits
from .output import ReplyStreamer
from .prompts import render_problem
from .structured import parse_data
from .tools.execution import ToolRunner

log = logging.getLogger(__name__)

_MAX_SHORTENINGS = 3
"""Attempts with a shorter context, for one completion that the model refuses because its context is too long."""
_CONVERSATION_ENDED = N_("(Our conversation ends here.)")
"""The reply where the model wrote a termination marker alone."""
_PICTURES_REFUSED = N_("My language model does not see your pictures: its server refuses them.")


class ModelCaller:
    """Send the messages of `context` to `model`; `streamer` receives its completions.

    `extra_fields` are more fields of each request, such as its tools.
    """

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
        """Request one completion, with its text as the guardrails let it through.

        If the model refuses the context as too long, it is shortened, at most `_MAX_SHORTENINGS` times.

        The usage is counted even if an error is raised: BudgetExceededError, ContextTooLongError, ModelError, or WithheldError
        if a guardrail withholds the text.
        """
        extra_fields = dict(self._extra_fields)
        if not may_call_tools:
            extra_fields["tool_choice"] = "none"

        async def prepare() -> CompletionRequest:
            await self._meter.check()
            return CompletionRequest(self._context.messages(json.dumps(extra_fields, ensure_ascii=False)), extra_fields)

        refusals: list[ModelError] = []

        def shorten(error: ModelError) -> bool:
            if not error.is_too_long or self._streamer.has_emitted or len(refusals) == _MAX_SHORTENINGS:
                return False
            refusals.append(error)
            return self._context.shorten()

        turn_usage = self._meter.turn_usage
        try:
            completion = await turn_usage.complete(
                "llm: completion", self._model, prepare, self._streamer, self._context.count_message_tokens, shorten
            )
            if refusals:
                times = f"{len(refusals)} of {_MAX_SHORTENINGS} times"
                log.warning("%s: %s; its context was shortened, %s", turn_usage.agent, refusals[0], times)
            turn_usage.model = completion.model
            completion.text = await self._streamer.finish(is_truncated=completion.finish_reason == "length")
        except ModelError as error:
            await self._streamer.abort(error.problem)
            raise
        return completion


class AgentLoop:
    """Run one turn: ask the model, and add its completions and the results of tools to `context`."""

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
        """Reply to the request.

        A capability with an output schema replies with data, which are repaired at most `limits.repairs` times. If a guardrail
        withholds the answer, the guardrail's text is sent instead. ModelError if the model fails or does not come to an
        end, ContextTooLongError if its context is too long, BudgetExceededError if a budget is used up.
        """
        repairs = self._limits.repairs
        while True:
            completion = await self._complete_with_tools()
            if completion is None:
                return
            if capability is None:
                if self._streamer.has_replied:
                    return
                if not (self._streamer.has_termination_marker or self._streamer.is_emptied):
                    problem = (
                        N_("used all its tokens before its answer")
                        if completion.finish_reason == "length"
                        else N_("gave no answer")
                    )
                    raise ModelError(completion.model, problem, is_transient=True)
                await self._response.markdown(
                    translate(_CONVERSATION_ENDED if self._streamer.has_termination_marker else NO_ANSWER)
                )
                return
            data, problem = await parse_data(completion.text, capability.outputs)
            if data is not None:
                await self._response.data(data)
                return
            if not repairs:
                # The problem quotes the answer, which must not be logged.
                raise ModelError(completion.model, N_("gave no valid data"), is_transient=True)
            repairs -= 1
            self._context.tail += [
                {"role": "assistant", "content": completion.text[: self._limits.result_characters]},
                *render_problem(problem),
            ]

    async def _complete_with_tools(self) -> Completion | None:
        """Run rounds of tool calls until a completion calls none, and return that. None if a guardrail withholds it."""
        for rounds_left in range(self._limits.rounds, -1, -1):
            try:
                completion = await self._call_model(may_call_tools=rounds_left > 0)
            except WithheldError as error:
                await self._streamer.withhold(error)
                return None
            if not completion.tool_calls:
                return completion
            if rounds_left:
                self._context.tail += await self._tool_runner.run(completion)
        raise ModelError(
            completion.model, N_("found no answer within {rounds} rounds of tool calls", rounds=self._limits.rounds)
        )

    async def _call_model(self, *, may_call_tools: bool) -> Completion:
        """Request one completion, and a second time without pictures if the server refuses them."""
        try:
            return await self._model_caller.call(may_call_tools=may_call_tools)
        except PicturesRefusedError:
            self._context.drop_pictures()
            await show_step(self._response, translate(_PICTURES_REFUSED))
            return await self._model_caller.call(may_call_tools=may_call_tools)
