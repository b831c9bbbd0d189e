"""The client of a server with OpenAI's HTTP API (OpenAI, Ollama, vLLM, LM Studio), by the package openai."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..domain.environment.installation import install_hint
from ..domain.environment.proxies import build_transport, find_proxy
from ..domain.policy import MODEL_TIMEOUT_S
from ..exceptions import ConfigError, ModelError

if TYPE_CHECKING:
    import httpx2
    import openai

_MAX_RETRIES = 2
_URL_HINT = "is its url the base of an OpenAI-compatible API?"
_MAX_EVENT_BYTES = 2**24
_MAX_RESPONSE_BYTES = 2**28
_TRANSIENT_STATUSES = {408, 409, 425, 429}
_REMEDIES = {
    401: "; check api_key",
    403: "; check api_key",
    404: "; check url and model",
}


def check_key(key: str, place: str) -> None:
    """Raise ConfigError at `place` for a key that no header can have: an error of the package would show it."""
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(place, "is not a valid key: it is empty or contains spaces or line breaks")


def build_client(
    url: str,
    key: str,
    transport: httpx2.AsyncBaseTransport,
    timeout: float | openai.Timeout,
    *,
    max_retries: int = 0,
    max_bytes: int = _MAX_EVENT_BYTES,
    is_streaming: bool = False,
    has_environment_headers: bool = False,
) -> openai.AsyncOpenAI:
    """Build a client of the package. Importing the package takes half a second.

    `max_bytes` limits an event, or a whole response that has no events. Headers that the package takes from the environment are
    sent with `has_environment_headers` only.
    """
    import openai

    from .response_size import limit_response_size

    headers: dict[str, Any] = {}
    if not has_environment_headers:
        lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
        names = [line.partition(":")[0].strip() for line in lines if ":" in line]
        headers = dict.fromkeys(["OpenAI-Organization", "OpenAI-Project", *names], openai.Omit())
        headers["Authorization"] = f"Bearer {key}"
    # A redirect would send the words of a person to another server.
    http = openai.DefaultAsyncHttpx2Client(
        follow_redirects=False,
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [partial(limit_response_size, max_bytes=max_bytes, is_streaming=is_streaming)]},
        transport=transport,
    )
    return openai.AsyncOpenAI(
        base_url=url,
        api_key=key,
        timeout=timeout,
        max_retries=max_retries,
        http_client=http,
        default_headers=headers,
    )


@dataclass(slots=True, eq=False)
class OpenAIApi:
    """The client of one server.

    `url` is the base URL from the server's documentation, with the version: http://127.0.0.1:11434/v1. The first request
    opens a connection pool, and `close` closes it. The client belongs to one event loop. ConfigError if the package openai is
    missing, which `extra` brings, or the environment names a proxy that cannot be used.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = MODEL_TIMEOUT_S
    extra: str = "llm"
    _client: openai.AsyncOpenAI | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if find_spec("openai") is None:
            raise ConfigError(self.url, f"is asked with the package openai: {install_hint(self.extra)}")
        if self.api_key is not None:
            check_key(self.api_key, f"the api_key of {self.url}")
        find_proxy(self.url)

    async def post(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the JSON object of the response.

        The package tries three times if the server is busy or cannot be reached, and twice if it is silent for `timeout_s`; all
        in twice `timeout_s`. Raises ModelError, which names the address. It is transient if a later request may succeed.
        """
        if self._client is None:
            client = await asyncio.to_thread(self._open)
            self._client = self._client or client
        import httpx2
        import openai

        address = f"{self.url.rstrip('/')}/{path}"
        limit_s = 2 * self.timeout_s
        headers = {"Authorization": openai.Omit()} if self.api_key is None else {}
        try:
            # The package waits anew for each piece of a response, and up to two minutes if a server asks for a pause.
            async with asyncio.timeout(limit_s):
                response = await self._client.post(path, cast_to=httpx2.Response, body=payload, options={"headers": headers})
        except TimeoutError as error:
            raise ModelError(address, f"did not answer within {limit_s:g} s", is_transient=True) from error
        except openai.APIConnectionError as error:
            problem = f"cannot be reached: {' '.join(str(error.__cause__).split())}"
            raise ModelError(address, problem, is_transient=True) from error
        except openai.APIResponseValidationError as error:
            raise ModelError(address, "sends its answer compressed, which it was not asked for") from error
        except openai.APIStatusError as error:
            status = error.status_code
            problem = f"answered HTTP {status}{_REMEDIES.get(status, '')}"
            said = error.body.get("message", error.body) if isinstance(error.body, dict) else error.body
            is_transient = status in _TRANSIENT_STATUSES or status >= 500
            message = " ".join(str(said).split())[:200]
            raise ModelError(address, problem, server_message=message, is_transient=is_transient) from error
        if getattr(response.stream, "is_too_large", False):
            problem = f"returned more than {_MAX_RESPONSE_BYTES:,} bytes, or too many values; lower knowledge.batch"
            raise ModelError(address, problem)
        try:
            parsed = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise ModelError(address, f"returned no JSON; {_URL_HINT}") from error
        if not isinstance(parsed, dict):
            raise ModelError(address, f"returned JSON that is not an object; {_URL_HINT}")
        return parsed

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self) -> openai.AsyncOpenAI:
        return build_client(
            self.url,
            self.api_key or "none",  # the package needs a key even where the server does not
            build_transport(self.url),
            self.timeout_s,
            max_retries=_MAX_RETRIES,
            max_bytes=_MAX_RESPONSE_BYTES,
        )
