"""What one turn used: requests, tool calls and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..contracts import CloudEvent, ResponseHandler
from ..exceptions import ModelError
from ..usage import USAGE
from .client import Question
from .deltas import Reply
from .model import Listener, Model

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
