"""Asking a language model: a reply as it comes, with time limits, retries with back-off and a fallback model."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from ...exceptions import ModelError
from .client import NO_COMPLETION, Client, Question
from .reply import Reply

log = logging.getLogger(__name__)

_AFTER_THE_END_S = 2.0
"""What may come after the end of an answer: what it used, and the end of the stream."""


class Listener(Protocol):
    """Hears a reply while it comes."""

    @property
    def has_spoken(self) -> bool:
        """Whether something was said that cannot be taken back."""
        ...

    @property
    def heard(self) -> int:
        """Characters of the reply that comes now."""
        ...

    def begin(self) -> None:
        """A reply begins; of one before that broke off nothing was said."""
        ...

    async def text(self, piece: str) -> None: ...

    async def reasoning(self, piece: str) -> None: ...


class Model:
    """The models of one endpoint, at least one: the first is asked, the next where it fails.

    A reply is cut off after `most_characters`.
    """

    def __init__(self, client: Client, models: Sequence[str], most_characters: int) -> None:
        self._client = client
        self._most = most_characters
        self.models = tuple(models)

    async def reply(self, question: Question, listener: Listener, on_lost: Callable[[], None]) -> Reply:
        """The reply, which `listener` hears while it comes. Cancelled, the request is closed.

        `on_lost` is called when an attempt came to nothing and there is another, before the listener hears of that. ModelError
        when no model of the endpoint could be had; also when one fails in the middle of what was already heard.
        """
        problem: ModelError | None = None
        for name in question.models or self.models:
            if problem is not None:
                log.warning("%s; asking %s", problem, name)
                on_lost()
            try:
                return await self._persistently(name, question, listener, on_lost)
            except ModelError as error:
                if listener.has_spoken:
                    raise
                problem = error
        assert problem is not None
        raise problem

    async def _persistently(self, name: str, question: Question, listener: Listener, on_lost: Callable[[], None]) -> Reply:
        endpoint = self._client.endpoint
        pause_s, left = endpoint.first_pause_s, endpoint.tries
        while True:
            left -= 1
            try:
                return await self._once(name, question, listener)
            except ModelError as error:
                wait_s = pause_s * random.uniform(0.8, 1.2) if error.retry_after_s is None else error.retry_after_s
                if listener.has_spoken or not error.may_pass or not left or wait_s > endpoint.longest_pause_s:
                    raise
                log.info("%s; asking again in %.1f s", error, wait_s)
                on_lost()
                await asyncio.sleep(wait_s)
                pause_s *= 4

    async def _once(self, name: str, question: Question, listener: Listener) -> Reply:
        reply = Reply(name)
        listener.begin()
        async with aclosing(self._client.chunks(name, question, reply)) as pieces:
            try:
                async with asyncio.timeout(None) as rest:
                    async for text, reasoning in pieces:
                        over = reply.size - self._most
                        if reasoning:
                            await listener.reasoning(reasoning[: self._most])
                        if text:
                            await listener.text(text[: max(0, len(text) - over)] if over > 0 else text)
                        if over > 0:
                            reply.cut()
                            break
                        if reply.finish is not None and rest.when() is None:
                            rest.reschedule(asyncio.get_running_loop().time() + _AFTER_THE_END_S)
            except TimeoutError:
                if not rest.expired():
                    raise
        reply.end()
        if reply.finish is None:
            problem = "broke off in the middle of its answer" if reply.chunks else NO_COMPLETION
            raise ModelError(name, problem, may_pass=bool(reply.chunks))
        if reply.finish == "content_filter":
            raise ModelError(name, "was kept from answering by its provider's content filter")
        return reply
