"""A client of OpenAI's HTTP API (OpenAI, Ollama, vLLM, LM Studio): JSON requests and responses, with retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..domain.environment.proxies import SOCKS_OF_AIOHTTP, EnvironmentProxy, find_proxy
from ..domain.policy import MODEL_TIMEOUT_S
from ..exceptions import ModelError

if TYPE_CHECKING:
    import aiohttp

_MAX_ATTEMPTS = 3
_FIRST_BACK_OFF_S = 0.5
_MAX_BACK_OFF_S = 10.0
_TRANSIENT_STATUSES = {408, 409, 425, 429, 500, 502, 503, 504}
_URL_HINT = "is its url the base of an OpenAI-compatible API?"
_MAX_RESPONSE_BYTES = 256 * 1024 * 1024


@dataclass(slots=True, eq=False)
class OpenAIApi:
    """The client of one server.

    `url` is the base URL from the server's documentation, with the version: http://127.0.0.1:11434/v1. The first request
    opens a connection pool, and `close` closes it. The client belongs to one event loop. ConfigError if the environment names a
    proxy that cannot be used.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = MODEL_TIMEOUT_S
    first_back_off_s: float = _FIRST_BACK_OFF_S
    _session: aiohttp.ClientSession | None = field(default=None, init=False, repr=False)
    _proxy: EnvironmentProxy | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._proxy = find_proxy(self.url, SOCKS_OF_AIOHTTP)

    async def post(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the JSON object of the response.

        Transient errors (server busy, no connection) are tried three times in all. Raises ModelError, which names the address.
        """
        back_off_s = self.first_back_off_s
        for retries_left in range(_MAX_ATTEMPTS - 1, -1, -1):
            try:
                return await self._post(path, payload)
            except ModelError as error:
                if not retries_left or not error.is_transient:
                    raise
                wait_s = back_off_s if error.retry_after_s is None else error.retry_after_s
                await asyncio.sleep(min(wait_s, _MAX_BACK_OFF_S))
                back_off_s *= 4
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _post(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        import aiohttp  # the import takes a tenth of a second, and most processes never need it

        address = f"{self.url.rstrip('/')}/{path}"
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if self._session is None:
            self._session = self._open_session()
        proxy_url = self._proxy.url if self._proxy is not None and not self._proxy.is_socks else None
        try:
            async with self._session.post(
                address, json=payload, headers=headers, allow_redirects=False, proxy=proxy_url
            ) as response:
                body = await _read_body(response)
                status, retry_after_header = response.status, response.headers.get("Retry-After", "")
        except TimeoutError as error:
            raise ModelError(address, f"did not answer within {self.timeout_s:g} s", is_transient=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ModelError(address, f"cannot be reached: {' '.join(str(error).split())}", is_transient=True) from error
        if status != 200:
            problem = f"answered HTTP {status}{_REMEDIES.get(status, '')}"
            retry_after_s = float(retry_after_header) if retry_after_header.isdecimal() else None
            raise ModelError(
                address,
                problem,
                server_message=_extract_error_message(body),
                is_transient=status in _TRANSIENT_STATUSES,
                retry_after_s=retry_after_s,
            )
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ModelError(address, f"returned no JSON; {_URL_HINT}") from error
        if not isinstance(parsed, dict):
            raise ModelError(address, f"returned JSON that is not an object; {_URL_HINT}")
        return parsed

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        connector = None
        if self._proxy is not None and self._proxy.is_socks:
            from aiohttp_socks import ProxyConnector

            connector = ProxyConnector.from_url(self._proxy.url.replace("socks5h", "socks5", 1), rdns=True)
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=self.timeout_s))


_REMEDIES = {
    401: "; check api_key",
    403: "; check api_key",
    404: "; check url and model",
}


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            raise ModelError(str(response.url), f"returned more than {_MAX_RESPONSE_BYTES:,} bytes; lower knowledge.batch")
    return bytes(body)


def _extract_error_message(body: bytes) -> str:
    """Return the message of an error response, in one line."""
    text = body[:2000].decode("utf-8", "replace")
    try:
        problem = json.loads(body)
        error = problem.get("error", problem.get("message", problem.get("detail", text)))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        pass
    return " ".join(text.split())[:200] or "nothing more"
