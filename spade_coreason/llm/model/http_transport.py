"""The transport of an HTTP client to a stand-in, in place of a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx2

from .stand_in import StandIn, StandInAnswer


class _AnswerStream(httpx2.AsyncByteStream):
    def __init__(self, answer: StandInAnswer, request: httpx2.Request) -> None:
        self._answer = answer
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._answer.parts:
                yield part
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error), request=self._request) from error
        except ConnectionError as error:
            raise httpx2.ReadError(str(error), request=self._request) from error

    async def aclose(self) -> None:
        await self._answer.parts.aclose()


class StandInTransport(httpx2.AsyncBaseTransport):
    """Pass the requests of a client to a stand-in."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request. It has JSON, except for the list of models, which no stand-in has."""
        if request.method == "GET":
            return httpx2.Response(404, request=request)
        body = json.loads(await request.aread())
        try:
            answer = await self._stand_in.answer(request.url.path, body)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(str(error), request=request) from error
        except ConnectionError as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        return httpx2.Response(answer.status, headers=answer.headers, stream=_AnswerStream(answer, request), request=request)
