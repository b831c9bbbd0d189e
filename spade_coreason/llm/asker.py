"""Asking a model within a turn: with the messages there is room for, within the budgets, and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..exceptions import ModelError
from .budgets import BudgetUsedUp, Purse
from .client import Question
from .context import Context
from .deltas import Reply
from .model import Model
from .speaker import Speaker


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
