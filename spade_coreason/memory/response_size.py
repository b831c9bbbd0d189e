"""A limit to the size of what a model's server sends, and the end of its events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import openai

_BYTES_PER_LINE = 2**16
"""Bytes that each line of an event counts: the package goes over the whole event again for each line."""
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_LAST_EVENT = re.compile(rb"[\r\n]data: ?\[DONE\]")
_LAST_EVENT_BYTES = 32
_TRAILING_DATA_S = 2.0
"""Seconds for data after the last event."""


class _EventLimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, has_events: bool) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._has_events = has_events
        self.is_done = False
        """True if the last event, `[DONE]`, has come."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, previous, end = 0, b"", b"\n"
        pieces = aiter(self._stream)
        async for piece in pieces:
            if piece.endswith(b"\n\n") and self._has_events:  # most pieces are whole events
                read, previous = 0, b""
            elif self._has_events:
                text = previous + piece
                begin = max((text.rfind(end) + len(end) for end in _EVENT_ENDS if end in text), default=0)
                read, remainder = (0, text[begin:]) if begin else (read, piece)
                read += len(remainder) + _BYTES_PER_LINE * max(remainder.count(b"\n"), remainder.count(b"\r"))
                previous = text[-3:]
            else:
                read += len(piece)
            if read > self._max_bytes:
                if not self._has_events:
                    yield piece  # a response that is longer than the limit has been cut
                return
            end = (end + piece)[-_LAST_EVENT_BYTES:]
            self.is_done = b"DONE]" in end and self._has_events and _LAST_EVENT.search(end) is not None
            yield piece
            if self.is_done:
                # Reading the rest makes the connection free for the next request. A rest that does not end is not waited for.
                with suppress(TimeoutError, httpx2.TransportError):
                    async with asyncio.timeout(_TRAILING_DATA_S):
                        async for _ in pieces:
                            pass
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


async def limit_response_size(response: httpx2.Response, *, max_bytes: int, is_streaming: bool) -> None:
    """Limit the bytes that are read: per event if the response `is_streaming`, else in total. The rest is not read.

    APIResponseValidationError for a compressed response to a request for a plain one: few bytes may unpack to many. The package
    would repeat the request after an error of its transport, and the server may bill each.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise openai.APIResponseValidationError(response, None)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    has_events = is_streaming and response.is_success  # servers send wrong content types
    response.stream = _EventLimitedStream(response.stream, max_bytes, has_events=has_events)
