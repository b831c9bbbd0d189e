"""A limit to the size of what a model's server sends, and the end of its events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import openai

from ..domain.texts.answer_meter import AnswerMeter, AnswerTooLargeError

_LAST_EVENT = re.compile(rb"[\r\n]data: ?\[DONE\]")
_LAST_EVENT_BYTES = 32
_TRAILING_DATA_S = 2.0
"""Seconds for data after the last event."""


class _ModelAnswerStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, has_events: bool) -> None:
        self._stream = stream
        # The package takes up to five microseconds for a value of a completion. Vectors are plain numbers.
        max_values = 10_000 if has_events else max_bytes // 256
        self._meter = AnswerMeter(has_events, max_bytes, max_values, max_events=200_000, max_answer_bytes=2**28)
        self.is_done = False
        """True if the last event, `[DONE]`, has come."""
        self.is_too_large = False
        """True if not the whole answer was read."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        end = b"\n"
        pieces = aiter(self._stream)
        try:
            async for piece in pieces:
                end = (end + piece)[-_LAST_EVENT_BYTES:]
                self.is_done = b"DONE]" in end and self._meter.has_events and _LAST_EVENT.search(end) is not None
                for event in self._meter.divide(piece):
                    yield event
                    await asyncio.sleep(0)
                if self.is_done:
                    # Reading the rest makes the connection free for the next request. A rest that does not end is not awaited.
                    yield self._meter.end()
                    with suppress(TimeoutError, httpx2.TransportError):
                        async with asyncio.timeout(_TRAILING_DATA_S):
                            async for _ in pieces:
                                pass
                    return
            yield self._meter.end()
        except AnswerTooLargeError:
            self.is_too_large = True

    async def aclose(self) -> None:
        await self._stream.aclose()


async def limit_response_size(response: httpx2.Response, *, max_bytes: int, is_streaming: bool) -> None:
    """Limit the bytes and values that are read: per event if the response `is_streaming`, else in total. The rest is not read.

    APIResponseValidationError for a compressed response to a request for a plain one: few bytes may unpack to many. The package
    would repeat the request after an error of its transport, and the server may bill each.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise openai.APIResponseValidationError(response, None)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    has_events = is_streaming and response.is_success  # servers send wrong content types
    response.stream = _ModelAnswerStream(response.stream, max_bytes, has_events=has_events)
