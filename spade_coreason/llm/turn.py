"""One turn of a language model: ask, call what it wants called, ask again, until it has answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..contracts import AgentCapability, CloudEvent, ResponseHandler
from ..exceptions import ModelError
from .context import Context
from .deltas import Reply
from .model import Model, Question
from .options import Limits
from .speaker import Speaker
from .structured import data_in
from .toolbox import Toolbox

USAGE = "ai.coreason.llm.usage"
"""The event with the tokens of a turn. It is recorded with the Interaction, as everything is that `response.emit` takes."""


class LLMTurn:
    """`run` leads it; whatever it raises, `report` records what was used until then."""

    def __init__(
        self,
        name: str,
        model: Model,
        context: Context,
        toolbox: Toolbox,
        response: ResponseHandler,
        speaker: Speaker,
        limits: Limits,
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
        self._tokens: Counter[str] = Counter()
        self._asked = 0
        self._calls = 0
        self._answered_by = model.models[0]

    async def run(self, capability: AgentCapability | None = None) -> None:
        """Answers; with a capability that has an output schema by data, repaired at most `limits.repairs` times.

        ModelError where the model fails or comes to no end, ContextTooLong where it is shown too much.
        """
        repairs = self._limits.repairs
        while True:
            reply = await self._answer()
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

    async def report(self) -> None:
        """Records the usage."""
        if self._asked:
            used = {"model": self._answered_by, "requests": self._asked, "tool_calls": self._calls, **self._tokens}
            await self._response.emit(CloudEvent(type=USAGE, source=f"urn:agent:{self._name}", data=used))

    async def _answer(self) -> Reply:
        """The reply that calls no tool, after those that do."""
        for left in range(self._limits.rounds, -1, -1):
            reply = await self._ask(may_call=left > 0)
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
        self._asked += 1
        question = Question(self._context.messages(json.dumps(further, ensure_ascii=False) if further else ""), further)
        try:
            reply = await self._model.reply(question, self._speaker)
        except ModelError as error:
            await self._speaker.abort(error.problem)
            raise
        self._answered_by = reply.model
        self._tokens.update(reply.usage)
        await self._speaker.end(is_cut=reply.finish == "length")
        return reply

    async def _call(self, reply: Reply) -> None:
        del reply.calls[self._limits.calls + 1 :]  # the first that is too much is told so
        self._calls += len(reply.calls)
        if self._shows_tools:
            await self._response.thought(f"Using {', '.join(dict.fromkeys(call.name[:64] for call in reply.calls))}…")
        said: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        said["tool_calls"] = [call.message for call in reply.calls]
        self._context.tail.append(said)
        self._context.tail += await self._toolbox.call_all(reply.calls, self._on_call)

    async def _on_call(self, tool: str, is_good: bool, milliseconds: float) -> None:
        await self._response.audit(self._name, "tool.call", tool[:64], is_good)
