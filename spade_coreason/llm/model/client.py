"""The client of a server with OpenAI's API: one request, and what goes wrong with it as a ModelError."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ...domain.text import printable
from ...exceptions import ConfigError, ModelError
from ..options import Endpoint
from ..prompts import merged
from .reply import Reply

_MOST_BYTES = 2**24

"""Of an event, and of what has none: a whole answer, an error; what comes then is not read."""

_A_LINE = 2**16

"""What a line of an event counts: the package goes over all of it again with each."""

_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, *, has_events: bool) -> None:
        self._stream = stream
        self._has_events = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, before = 0, b""
        async for piece in self._stream:
            if piece.endswith(b"\n\n") and self._has_events:  # most do
                read, before = 0, b""
            elif self._has_events:
                text = before + piece
                begin = max((text.rfind(end) + len(end) for end in _ENDS if end in text), default=0)
                read, piece_of_it = (0, text[begin:]) if begin else (read, piece)
                read += len(piece_of_it) + _A_LINE * max(piece_of_it.count(b"\n"), piece_of_it.count(b"\r"))
                before = text[-3:]
            else:
                read += len(piece)
            if read > _MOST_BYTES:
                return
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def bound(response: httpx2.Response, *, streams: bool) -> None:
    """Bounds what will be read: each event of an answer that `streams`, all of any other, in bytes.

    DecodingError for what comes compressed though it was to come plain: few bytes may be many.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it sends compressed what was to come plain")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    has_events = streams and response.is_success  # whatever its type says: servers err
    response.stream = _Bounded(response.stream, has_events=has_events)


log = logging.getLogger(__name__)

NO_COMPLETION = "answers with something that is no chat completion"

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

_LIST_S = 10.0

_OPENAI = ("api.openai.com", ".openai.azure.com")

_TRANSIENT = {408, 409, 425, 429}

_NEVER = {501, 505}

_MEANING = {
    400: "does not accept the request (400)",
    401: "refuses the key (401)",
    403: "refuses the key (403)",
    404: "is not there (404)",
    413: "was asked too much at once (413)",
    429: "is busy (429)",
}

_MEANING_OF_CODE = {
    "context_length_exceeded": "is shown more than it takes; the limit context_tokens is too high for it",
    "insufficient_quota": "has no credit left",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked. `further` are more fields of the request."""

    messages: Sequence[Mapping[str, Any]]
    further: Mapping[str, Any]
    models: Sequence[str] = ()
    """Those that are asked; by default all of the endpoint."""


class Client:
    """`open` before, `close` after. It belongs to one event loop.

    ConfigError where the package openai is missing or no endpoint is named.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        if find_spec("openai") is None:
            raise ConfigError("", 'a language model needs the package openai: pip install "spade-coreason[llm]"')
        self.endpoint = endpoint
        self.url, self._key = endpoint.resolved()
        self._client: Any = None

    @property
    def limit_field(self) -> str:
        """What limits an answer in a request: OpenAI's models refuse the older name, others may not know the newer."""
        host = urlsplit(self.url).hostname or ""
        return "max_completion_tokens" if host.endswith(_OPENAI) else "max_tokens"

    def open(self) -> None:
        """Makes the client; importing its package takes half a second."""
        import openai

        pass  # MOVED

        if self._client is None:
            timeout = openai.Timeout(self.endpoint.timeout_s, connect=self.endpoint.connect_timeout_s)
            # A redirect would take what is asked, which is somebody's words, to another server.
            http = openai.DefaultAsyncHttpx2Client(
                follow_redirects=False,
                timeout=timeout,
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [partial(bound, streams=self.endpoint.stream)]},
            )
            self._client = openai.AsyncOpenAI(
                base_url=self.url,
                api_key=self._key,
                timeout=timeout,
                max_retries=0,
                http_client=http,
                default_headers=self._headers(openai.Omit()),
            )

    def _headers(self, left_out: Any) -> dict[str, Any]:
        """Takes out what the package would add from the environment, where the server is not the environment's."""
        if self.endpoint.url is None:
            return {}
        lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
        names = [line.partition(":")[0].strip() for line in lines if ":" in line]
        others = dict.fromkeys(["OpenAI-Organization", "OpenAI-Project", *names], left_out)
        return {**others, "Authorization": f"Bearer {self._key}"}

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def chunks(self, name: str, question: Question, reply: Reply) -> AsyncGenerator[tuple[str, str], None]:
        """Text and reasoning, piece by piece; whatever goes wrong is a ModelError without a word of what was said."""
        if self._client is None:
            self.open()
        further = dict(question.further)
        if self.endpoint.stream and self.endpoint.usage:
            further["stream_options"] = {"include_usage": True}
        messages = merged(question.messages) if self.endpoint.merge_messages else question.messages
        with self._in_words(name, reply, self.endpoint.timeout_s):
            # What is in `messages` the package goes through key by key, which takes it longer than all the rest of a request.
            answer = await self._client.chat.completions.create(
                model=name, messages=[], stream=self.endpoint.stream, extra_body={**further, "messages": printable(messages)}
            )
            if not self.endpoint.stream:
                yield reply.take(_as_chunk(answer))
                return
            async with answer:
                async for chunk in answer:
                    yield reply.take(chunk)

    async def listed(self) -> set[str] | None:
        """The models that the server says it has (`GET /models`); None where it says nothing of it. Errors as of `chunks`."""
        if self._client is None:
            self.open()
        try:
            with self._in_words(f"the language model at {self.url}", Reply(""), _LIST_S):
                page = await self._client.models.list(timeout=_LIST_S)
                return {str(model.id) for model in page.data}
        except ModelError as error:
            if error.problem in (NO_COMPLETION, _MEANING[404], _failing(405), _failing(501)):
                return None
            raise

    @contextmanager
    def _in_words(self, name: str, reply: Reply, timeout_s: float) -> Iterator[None]:
        """What the package raises as a ModelError, unless all was said."""
        import openai
        from httpx2 import DecodingError

        try:
            yield
        except openai.APIConnectionError as error:
            if reply.finish is not None:
                return
            problem = "broke off in the middle of its answer" if reply.chunks else "cannot be reached"
            if isinstance(error, openai.APITimeoutError):
                problem = f"said nothing for {timeout_s:g} s"
            elif isinstance(error.__cause__, DecodingError):
                raise ModelError(name, "sends its answer compressed, which it was not asked for") from error
            raise ModelError(name, problem, may_pass=True) from error
        except openai.APIStatusError as error:
            log.debug("%s says %d: %s", name, error.status_code, error.message)
            problem = _MEANING.get(error.status_code, _failing(error.status_code))
            if isinstance(error.code, str) and error.code in _MEANING_OF_CODE:
                raise ModelError(name, f"{_MEANING_OF_CODE[error.code]} ({error.status_code})") from error
            after_s = retry_after_s(error.response.headers.get("retry-after", ""), datetime.now(UTC))
            raise ModelError(name, problem, may_pass=_may_pass(error.status_code), retry_after_s=after_s) from error
        except openai.OpenAIError as error:  # an error that the server sends as a part of the stream
            raise ModelError(name, "reports an error in the middle of its answer", may_pass=True) from error
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ModelError(name, NO_COMPLETION) from error


def _failing(status: int) -> str:
    return f"fails ({status})"


def _as_chunk(completion: Any) -> SimpleNamespace:
    """A whole answer as the only piece of a stream."""
    choices = [SimpleNamespace(delta=one.message, finish_reason=one.finish_reason) for one in completion.choices]
    return SimpleNamespace(choices=choices, usage=completion.usage)


def _may_pass(status: int) -> bool:
    return status in _TRANSIENT or (status >= 500 and status not in _NEVER)


def retry_after_s(header: str, now: datetime) -> float | None:
    """The seconds of a Retry-After header (RFC 9110, 10.2.3), which has a number or a date."""
    if _SECONDS.fullmatch(header.strip()):
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # a year or a zone of twenty digits
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())
