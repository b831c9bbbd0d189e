"""The HTTP connections to a remote agent: allowed addresses only, and answers of a limited size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx

from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.domain.environment.proxies import find_proxy
from spade_coreason.domain.observability.tracing import TURN_TRACE
from spade_coreason.domain.texts.answer_meter import AnswerMeter, AnswerTooLargeError
from spade_coreason.domain.texts.translation import translate
from spade_coreason.exceptions import FetchError
from spade_coreason.runtime.url_policy import UrlPolicy, parse_literal

from .errors import UnusableAnswerError
from .options import RemoteOptions, origin_of

MAX_MESSAGE_BYTES = 2**22
"""The longest answer, or event of a stream, that is read."""


class PolicyTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]  # httpx is not checked
    """Connect to addresses that `policy` allows, with the headers of `options` if the origin is that of its URL.

    The connection goes to an address that was checked. Each request has a connection of its own, since one that is open for
    another host would not be checked again. A proxy of the environment resolves names itself, so that through a proxy only the
    host of `options.url` is asked.
    """

    def __init__(self, options: RemoteOptions, policy: UrlPolicy, trust: HttpsTrust) -> None:
        self._options = options
        self._policy = policy
        self._headers = {name: value.get_secret_value() for name, value in options.headers.items()}
        self._trust = trust
        self._direct = self._make_transport(None)
        self._proxied: httpx.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. FetchError if its address is not allowed; UnusableAnswerError for an answer that is not read."""
        url = str(request.url)
        checked = self._policy.check(url)
        host = checked.raw_host or ""
        if (host, checked.port) != (origin_of(url)[1:]) or host != request.url.raw_host.decode():
            raise FetchError(url, "its host can be read in two ways")
        if origin_of(url) == self._options.origin:
            request.headers.update(self._headers)
            if (trace := TURN_TRACE.get()) is not None and (traceparent := trace.turn_span.traceparent):
                request.headers["traceparent"] = traceparent
        if (proxy := find_proxy(url)) is not None:
            if host != self._options.origin[1]:
                raise FetchError(url, f"through a proxy only {self._options.origin[1]} is asked")
            if parse_literal(host) is not None:
                await self._policy.resolve_addresses(checked)
            self._proxied = self._proxied or self._make_transport(proxy.url)
            response = await self._proxied.handle_async_request(request)
        else:
            response = await self._connect(request, host, await self._policy.resolve_addresses(checked))
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise UnusableAnswerError(translate("it compresses its answer, although it was asked not to"))
        has_events = "text/event-stream" in response.headers.get("content-type", "")  # as the SDK decides it
        response.encoding = "utf-8"  # by another one, the SDK would read other events than these
        response.stream = _LimitedStream(response.stream, has_events=has_events)
        return response

    def _make_transport(self, proxy: str | None) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncHTTPTransport(verify=self._trust.context(), limits=limits, trust_env=False, proxy=proxy)

    async def _connect(self, request: httpx.Request, host: str, addresses: list[str]) -> httpx.Response:
        """Send a request to the first of some checked addresses that can be reached. TLS verifies the name of the host."""
        for number, address in enumerate(addresses, 1):
            pinned = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._direct.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if number == len(addresses):
                    raise
        raise FetchError(str(request.url), f"there is no host {host}")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._direct.aclose()
        if self._proxied is not None:
            await self._proxied.aclose()


class _LimitedStream(httpx.AsyncByteStream):  # type: ignore[misc]  # httpx is not checked
    """The body of an answer, or a stream of events, of which each has a limited size."""

    def __init__(self, stream: httpx.AsyncByteStream, *, has_events: bool) -> None:
        self._stream = stream
        self._has_events = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        meter = AnswerMeter(self._has_events, MAX_MESSAGE_BYTES, 10_000)  # the SDK takes some microseconds for a value
        try:
            async for piece in self._stream:
                for event in meter.divide(piece):
                    yield event
                    await asyncio.sleep(0)  # others go on between events that come at once
            yield meter.end()
        except AnswerTooLargeError as error:
            raise UnusableAnswerError(translate(error.problem, limit=error.limit)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()
