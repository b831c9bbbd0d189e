"""The client of a server with OpenAI's API: one request, and its errors as ModelErrors."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from ...domain.environment.installation import install_hint
from ...domain.environment.proxies import build_transport, find_proxy
from ...domain.texts.durations import read_retry_after_s
from ...domain.texts.text import replace_lone_surrogates
from ...domain.texts.translation import N_
from ...exceptions import ConfigError, ModelError
from ...memory import build_client
from ..options import Endpoint
from ..prompts import content_pictures, merge_messages
from .causes import TOO_LARGE, ErrorObject, describe_unknown, find_cause
from .completion import Completion, carried_names, restore_carried_fields
from .stand_in import StandIn

log = logging.getLogger(__name__)

NO_COMPLETION = N_("answers with something that is no chat completion")

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LIST_TIMEOUT_S = 10.0
_OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com")
_PICTURE_REFUSALS = {400, 415, 422}
_EXPLAINED_REFUSALS = {404, 500, 501}
_ABOUT_PICTURES = re.compile(r"\bimages?\b|image_url|\bvision\b|multi-?modal|mmproj", re.IGNORECASE)
_TRANSIENT = {408, 409, 425, 429}
_PERMANENT = {501, 505}
_PROBLEM_BY_STATUS = {
    400: N_("does not accept the request (400)"),
    401: N_("refuses the key (401)"),
    403: N_("refuses the key (403)"),
    404: N_("was not found (404)"),
    429: N_("is busy (429)"),
}
_ERROR_IN_ANSWER = N_("reports an error in the middle of its answer")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request to a model. `extra_fields` are more fields of the request."""

    messages: Sequence[Mapping[str, Any]]
    extra_fields: Mapping[str, Any]
    models: Sequence[str] = ()
    """The models to ask; by default those of the endpoint."""


class PicturesRefusedError(ModelError):
    """A server refused a request with pictures, maybe because of them."""


class ModelClient:
    """The client of one endpoint, for one event loop. Call `open` first and `close` last.

    A `stand_in` answers in place of the endpoint's server; it needs no key. ConfigError if the package openai is missing, no
    endpoint is named, or the environment names a proxy that cannot be used.
    """

    def __init__(self, endpoint: Endpoint, stand_in: StandIn | None = None) -> None:
        if find_spec("openai") is None:
            raise ConfigError("", f"a language model needs the package openai: {install_hint('llm')}")
        self.endpoint = endpoint
        self.stand_in = stand_in
        self.url, self._key = endpoint.resolve() if stand_in is None else (endpoint.url or stand_in.url, "none")
        proxy = find_proxy(self.url) if stand_in is None else None
        self.route = f"{self.url}, through the proxy of {proxy.variable}" if proxy is not None else self.url
        """The URL for the operator, with the variable that names a proxy."""
        self._has_refused_pictures = False
        self._client: Any = None
        self._bare_models: set[str] = set()
        """Models that refuse to get back the fields that they have added to a message."""

    @property
    def max_tokens_field(self) -> str:
        """The field that limits a completion. OpenAI's models refuse the older name; others may not know the newer one."""
        host = urlsplit(self.url).hostname or ""
        return "max_completion_tokens" if host.endswith(_OPENAI_HOSTS) else "max_tokens"

    def open(self) -> Any:
        """Create the client of the package, and return it. Importing the package takes half a second."""
        import openai

        from .http_transport import StandInTransport

        if self._client is None:
            timeout = openai.Timeout(self.endpoint.timeout_s, connect=self.endpoint.connect_timeout_s)
            transport = (
                build_transport(self.url, limits=openai.DEFAULT_CONNECTION_LIMITS)
                if self.stand_in is None
                else StandInTransport(self.stand_in)
            )
            self._client = build_client(
                self.url,
                self._key,
                transport,
                timeout,
                is_streaming=self.endpoint.stream,
                has_environment_headers=self.endpoint.url is None,
            )
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def pause(self, seconds: float) -> None:
        """Wait before a further attempt."""
        await (asyncio.sleep(seconds) if self.stand_in is None else self.stand_in.pause(seconds))

    async def stream_deltas(
        self, name: str, request: CompletionRequest, completion: Completion
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yield text and reasoning, piece by piece. Each failure is a ModelError without a word of the conversation.

        PicturesRefusedError if the server may refuse the pictures of the request.
        """
        if self._client is None:
            self.open()
        extra_fields = dict(request.extra_fields)
        if self.endpoint.stream and self.endpoint.usage:
            extra_fields["stream_options"] = {"include_usage": True}
        messages = merge_messages(request.messages) if self.endpoint.merge_messages else request.messages
        has_pictures = any(content_pictures(message.get("content")) for message in messages)
        with self._translate_errors(name, completion, self.endpoint.timeout_s, has_pictures=has_pictures):
            answer = await self._create(name, messages, extra_fields)
            if not self.endpoint.stream:
                completion.is_done = True
                yield completion.add_chunk(_as_chunk(answer))
                return
            async with answer:
                async for chunk in answer:
                    yield completion.add_chunk(chunk)
                completion.is_done = answer.response.stream.is_done

    async def _create(self, name: str, messages: Sequence[Mapping[str, Any]], extra_fields: Mapping[str, Any]) -> Any:
        """Send a request. If it is refused because of a field that the model itself has added, send it once more without.

        DeepSeek and Gemini refuse a request that lacks such fields. Groq and Cerebras refuse one that has them.
        """
        import openai

        try:
            return await self._create_once(name, messages, extra_fields)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            names = carried_names(messages, name)
            if not any(re.search(rf"\b{re.escape(field)}\b", error.message) for field in names):
                raise
            self._bare_models ^= {name}
            try:
                return await self._create_once(name, messages, extra_fields)
            except BaseException:
                self._bare_models ^= {name}
                raise

    async def _create_once(self, name: str, messages: Sequence[Mapping[str, Any]], extra_fields: Mapping[str, Any]) -> Any:
        messages = restore_carried_fields(messages, name, is_bare=name in self._bare_models)
        # The package walks through its argument `messages` key by key, which takes longer than the rest of a request.
        return await self._client.chat.completions.create(
            model=name,
            messages=[],
            stream=self.endpoint.stream,
            extra_body={**extra_fields, "messages": replace_lone_surrogates(messages)},
        )

    async def list_models(self) -> set[str] | None:
        """List the models of the server (`GET /models`). None if the server has no such list.

        Errors as for `stream_deltas`.
        """
        if self._client is None:
            self.open()
        try:
            with self._translate_errors(f"the language model at {self.route}", Completion(""), _LIST_TIMEOUT_S):
                page = await self._client.models.list(timeout=_LIST_TIMEOUT_S)
                return {str(model.id) for model in page.data}
        except ModelError as error:
            if error.problem in (NO_COMPLETION, _PROBLEM_BY_STATUS[404], _failure_text(405), _failure_text(501)):
                return None
            raise

    @contextmanager
    def _translate_errors(
        self, name: str, completion: Completion, timeout_s: float, *, has_pictures: bool = False
    ) -> Iterator[None]:
        """Translate errors of the package into ModelErrors. After the end of a completion a lost connection is no error."""
        import openai

        try:
            yield
        except openai.APIConnectionError as error:
            if completion.finish_reason is not None:
                return
            problem = N_("broke off in the middle of its answer") if completion.chunk_count else N_("cannot be reached")
            if isinstance(error, openai.APITimeoutError):
                problem = N_("said nothing for {seconds} s", seconds=f"{timeout_s:g}")
            raise ModelError(name, problem, is_transient=True) from error
        except openai.APIResponseValidationError as error:
            raise ModelError(name, N_("sends its answer compressed, which it was not asked for")) from error
        except openai.APIStatusError as error:
            log.debug("%s answered %d: %.2000s", name, error.status_code, error.message)
            refusal = ErrorObject.read(error.body, error.status_code)
            if has_pictures and _may_refuse_pictures(refusal, error.message):
                raise self._refused_pictures_error(name, error.status_code) from error
            after_s = parse_retry_after_s(error.response.headers.get("retry-after", ""), datetime.now(UTC))
            raise describe_error(name, refusal, after_s) from error
        except openai.APIError as error:  # an error within the stream
            log.debug("%s sent an error: %.2000s", name, error.message)
            raise describe_error(name, ErrorObject.read(error.body)) from error
        except openai.OpenAIError as error:
            raise ModelError(name, _ERROR_IN_ANSWER, is_transient=True) from error
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ModelError(name, NO_COMPLETION) from error

    def _refused_pictures_error(self, name: str, status: int) -> PicturesRefusedError:
        if not self._has_refused_pictures:
            self._has_refused_pictures = True
            remedy = "if it takes no images, set options.pictures to false"
            log.warning("%s refuses a request with pictures (%d), and is asked again without them; %s", name, status, remedy)
        return PicturesRefusedError(name, _PROBLEM_BY_STATUS.get(status, _failure_text(status)))


def _may_refuse_pictures(refusal: ErrorObject, message: str) -> bool:
    """Return True if a server may have refused a request because of its pictures.

    Most answer 400 or 422. llama.cpp answers 500 and OpenRouter 404, and say why. Pictures are the largest part of a request.
    """
    says_so = refusal.status in _EXPLAINED_REFUSALS and _ABOUT_PICTURES.search(message) is not None
    may_refuse = (says_so or refusal.status in _PICTURE_REFUSALS) and find_cause(refusal) is None
    return may_refuse or refusal.status == TOO_LARGE


def describe_error(name: str, error: ErrorObject, retry_after_s: float | None = None) -> ModelError:
    """Describe an error of a server by its cause, else by its status. An error within an answer may have no status."""
    cause = find_cause(error)
    if error.status is None:
        problem, is_transient = _ERROR_IN_ANSWER, True
    else:
        problem = _PROBLEM_BY_STATUS.get(error.status, _failure_text(error.status))
        is_transient = _is_transient(error.status)
    if cause is None:
        remedy = describe_unknown(error) if error.status in (None, 400, 422) else ""
        return ModelError(name, problem, remedy=remedy, is_transient=is_transient, retry_after_s=retry_after_s)
    if cause.problem:
        problem = cause.problem if error.status is None else f"{cause.problem} ({error.status})"
    return ModelError(name, problem, remedy=cause.remedy, is_too_long=cause.is_too_long)


def _failure_text(status: int) -> str:
    return N_("fails ({status})", status=str(status))


def _as_chunk(completion: Any) -> SimpleNamespace:
    """Convert a whole answer into the only chunk of a stream."""
    if (error := getattr(completion, "error", None)) and not completion.choices:  # OpenRouter, with the status 200
        return SimpleNamespace(choices=(), usage=None, error=error)
    choices = [
        SimpleNamespace(delta=choice.message, finish_reason=choice.finish_reason, error=getattr(choice, "error", None))
        for choice in completion.choices
    ]
    return SimpleNamespace(choices=choices, usage=completion.usage)


def _is_transient(status: int) -> bool:
    return status in _TRANSIENT or (status >= 500 and status not in _PERMANENT)


def parse_retry_after_s(header: str, now: datetime) -> float | None:
    """Parse the seconds of a Retry-After header (RFC 9110, 10.2.3), which has a number or a date; at most a day."""
    if _SECONDS.fullmatch(header.strip()):
        return read_retry_after_s(float(header))
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # a year or a zone of twenty digits
        return None
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return read_retry_after_s(max(0.0, (date - now).total_seconds()))
