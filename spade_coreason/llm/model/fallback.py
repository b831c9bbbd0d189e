"""Completions with time limits, retries with back-off and a fallback model."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol
from urllib.parse import urlsplit

from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE, AttributeValue
from ...domain.texts.model_text import ThoughtSplitter
from ...domain.texts.translation import N_
from ...exceptions import ModelError
from .causes import ErrorObject
from .client import NO_COMPLETION, CompletionRequest, ModelClient, PicturesRefusedError, describe_error
from .completion import Completion

log = logging.getLogger(__name__)

_TRAILING_DATA_S = 2.0
"""Seconds for data after the end of a completion: its usage, and the end of the stream."""


class CompletionListener(Protocol):
    """A receiver of a completion while it is streamed."""

    @property
    def has_emitted(self) -> bool:
        """True if text was sent that cannot be taken back."""
        ...

    @property
    def received_characters(self) -> int:
        """Characters of the current completion."""
        ...

    def start(self) -> None:
        """Start a completion. An earlier one that broke off sent nothing."""
        ...

    async def on_text(self, piece: str) -> None: ...

    async def on_reasoning(self, piece: str) -> None: ...


class ModelWithFallback:
    """The models of one endpoint, at least one. The first is asked, and the next if it fails.

    A completion is cut off after `max_characters`.
    """

    def __init__(self, client: ModelClient, models: Sequence[str], max_characters: int) -> None:
        self._client = client
        self._max_characters = max_characters
        self.models = tuple(models)

    async def complete(
        self, request: CompletionRequest, listener: CompletionListener, on_attempt_failed: Callable[[], None]
    ) -> Completion:
        """Return the completion, and pass it to `listener` while it is streamed. When cancelled, close the request.

        `on_attempt_failed` is called after a failed attempt if another follows, and before the listener hears of that one.
        ModelError if all models fail, or if one fails after the listener has sent text. If one was shown too much, it is that
        one's. PicturesRefusedError from any of them: the caller asks again without pictures.
        """
        problem: ModelError | None = None
        for name in request.models or self.models:
            if problem is not None:
                log.warning("%s; asking %s", problem, name)
                on_attempt_failed()
            try:
                return await self._complete_with_retries(name, request, listener, on_attempt_failed)
            except PicturesRefusedError:
                raise
            except ModelError as error:
                if listener.has_emitted:
                    raise
                problem = problem if problem is not None and problem.is_too_long else error
        assert problem is not None
        raise problem

    async def _complete_with_retries(
        self, name: str, request: CompletionRequest, listener: CompletionListener, on_attempt_failed: Callable[[], None]
    ) -> Completion:
        endpoint = self._client.endpoint
        pause_s, tries_left = endpoint.first_pause_s, endpoint.tries
        while True:
            tries_left -= 1
            try:
                return await self._complete_once(name, request, listener)
            except ModelError as error:
                wait_s = pause_s * random.uniform(0.8, 1.2) if error.retry_after_s is None else error.retry_after_s
                if listener.has_emitted or not error.is_transient or not tries_left or wait_s > endpoint.longest_pause_s:
                    raise
                log.info("%s; retrying in %.1f s", error, wait_s)
                on_attempt_failed()
                await self._client.pause(wait_s)
                pause_s *= 4

    async def _complete_once(self, name: str, request: CompletionRequest, listener: CompletionListener) -> Completion:
        if (trace := TURN_TRACE.get()) is None:
            return await self._receive(name, request, listener)
        with trace.run(f"{spans.CHAT} {name}", "client", _describe_call(name, self._client.url)) as span:
            span.set_text(spans.INPUT_MESSAGES, lambda: request.messages)
            completion = await self._receive(name, request, listener)
            span.set(_describe_completion(completion))
            span.set_text(spans.OUTPUT_MESSAGES, completion.dump)
            return completion

    async def _receive(self, name: str, request: CompletionRequest, listener: CompletionListener) -> Completion:
        thoughts = ThoughtSplitter(is_unopened=self._client.endpoint.unopened_thinking)
        completion = Completion(name, thoughts=thoughts)
        listener.start()
        async with aclosing(self._client.stream_deltas(name, request, completion)) as pieces:
            try:
                async with asyncio.timeout(None) as trailing_timeout:
                    async for text, reasoning in pieces:
                        excess = completion.character_count - self._max_characters
                        if reasoning:
                            await listener.on_reasoning(reasoning[: self._max_characters])
                        if text:
                            await listener.on_text(text[: max(0, len(text) - excess)] if excess > 0 else text)
                        if excess > 0:
                            completion.truncate()
                            break
                        if completion.finish_reason is not None and trailing_timeout.when() is None:
                            trailing_timeout.reschedule(asyncio.get_running_loop().time() + _TRAILING_DATA_S)
            except TimeoutError:
                if not trailing_timeout.expired():
                    raise
        text, reasoning = completion.close()
        if completion.finish_reason is None:
            problem = N_("broke off in the middle of its answer") if completion.chunk_count else NO_COMPLETION
            raise ModelError(name, problem, is_transient=bool(completion.chunk_count))
        if completion.finish_reason == "content_filter":
            raise ModelError(name, N_("was kept from answering by its provider's content filter"))
        if completion.finish_reason == "error":
            raise describe_error(name, ErrorObject.read(completion.error))
        if reasoning:
            await listener.on_reasoning(reasoning[: self._max_characters])
        if text:
            await listener.on_text(text[: self._max_characters])
        return completion


def _describe_call(model: str, url: str) -> dict[str, AttributeValue]:
    """Return the attributes of the span of a call, which are known before it."""
    server = urlsplit(url)
    attributes: dict[str, AttributeValue] = {spans.OPERATION: spans.CHAT, spans.PROVIDER: spans.OPENAI, spans.MODEL: model}
    if server.hostname:
        attributes[spans.SERVER] = server.hostname
        attributes[spans.PORT] = server.port or (443 if server.scheme == "https" else 80)
    return attributes


def _describe_completion(completion: Completion) -> dict[str, AttributeValue]:
    """Return the attributes of the span of a call, which are known after it."""
    attributes: dict[str, AttributeValue] = {}
    if completion.finish_reason is not None:
        attributes[spans.FINISH_REASONS] = [completion.finish_reason]
    for name, field in ((spans.INPUT_TOKENS, "prompt_tokens"), (spans.OUTPUT_TOKENS, "completion_tokens")):
        if field in completion.usage:
            attributes[name] = completion.usage[field]
    return attributes
