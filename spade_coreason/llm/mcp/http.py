"""An MCP server at an address: streamable HTTP, with a limit to what is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import streamable_http_client

from .options import ServerOptions
from .stdio import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_READ_TIMEOUT_S = 300.0
"""A stream of events without any is opened again."""


class _SizeLimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"a message of more than {MAX_MESSAGE_BYTES:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _limit_response_size(response: httpx2.Response) -> None:
    """The SDK reads an answer in JSON whole; of a stream of events it limits each."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it sends compressed what was to come plain")  # few bytes may be unpacked to many
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _SizeLimitedStream(response.stream)


@asynccontextmanager
async def open_http(options: ServerOptions, on_output: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
    """A connection to a server; nothing is sent before the first request. Redirects to other servers are not followed.

    `on_output` hears of answers with an HTTP status that is an error.
    """

    async def tell(response: httpx2.Response) -> None:
        if response.is_error:
            on_output(f"HTTP {response.status_code} {response.reason_phrase}".strip())

    assert options.url is not None
    headers = {"Accept-Encoding": "identity"} | {name: value.get_secret_value() for name, value in options.headers.items()}
    timeout = httpx2.Timeout(options.timeout_s, read=_READ_TIMEOUT_S)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [_limit_response_size, tell]}) as client,
        streamable_http_client(options.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams
