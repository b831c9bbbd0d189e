"""The connection to a remote agent: its card, the client of the SDK, and its errors in one line each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
from a2a.client import A2AClientError, A2AClientTimeoutError, Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2AError, TaskNotFoundError, UnsupportedOperationError, VersionNotSupportedError
from google.protobuf.json_format import ParseError

from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.domain.texts.durations import MAX_RETRY_AFTER_S, format_duration
from spade_coreason.domain.texts.translation import translate
from spade_coreason.exceptions import ConfigError, FetchError
from spade_coreason.runtime.url_policy import UrlPolicy, resolve_host

from .errors import RemoteAgentError, TaskLostError, UnusableAnswerError
from .options import TRIES, RemoteOptions, origin_of
from .reading import clean_line
from .transport import PolicyTransport

log = logging.getLogger(__name__)

T = TypeVar("T")

_BINDINGS = ("JSONRPC", "HTTP+JSON")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0
"""A longer pause is not waited for: the request fails, and its text names the time."""
_UNREADABLE = (ParseError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""What the SDK raises for answers that are not those of an A2A agent."""
_ERRORS = (
    A2AError,
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    FetchError,
    ConfigError,
    RemoteAgentError,
    UnusableAnswerError,
    *_UNREADABLE,
)
_UNAVAILABLE_STATUSES = (408, 429, 500, 502, 503, 504)
_NOT_SENT_STATUSES = (429, 503)


class Connection:
    """A connection to the agent that `card` describes. All its errors are RemoteAgentErrors that name `name`."""

    def __init__(self, client: Client, card: AgentCard, name: str) -> None:
        self._client = client
        self.card = card
        self.name = name

    @classmethod
    async def open(cls, http: httpx.AsyncClient, options: RemoteOptions, name: str, tries: int) -> Connection:
        """Fetch the card of an agent, and choose the interface to use. RemoteAgentError names `name`."""
        card = await _call(name, lambda: _fetch_card(http, options), tries=tries)
        # Only one interface is left in the card, so that the SDK does not choose another.
        interface_card = _select_interface(card, options, name)
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=list(_BINDINGS))
        client = await _call(name, lambda: _make_client(config, interface_card))
        return cls(client, card, name)

    @property
    def is_streaming(self) -> bool:
        """True if the agent streams its answers."""
        return bool(self.card.capabilities.streaming)

    async def send(self, message: Message) -> tuple[StreamResponse, AsyncGenerator[StreamResponse]]:
        """Send a message. Return the first event of the answer, and those after it. An agent that does not stream has none.

        The message is sent again only if it certainly did not arrive.
        """
        request = SendMessageRequest(message=message)
        request.configuration.return_immediately = not self.is_streaming
        return await _call(self.name, lambda: self._begin(self._client.send_message(request)), is_repeatable=False)

    async def subscribe(self, task_id: str) -> tuple[StreamResponse, AsyncGenerator[StreamResponse]] | None:
        """Follow a task. Return the first event and those after it; None if the task cannot be followed (any more)."""
        request = SubscribeToTaskRequest(id=task_id)
        try:
            return await _call(self.name, lambda: self._begin(self._client.subscribe(request)))
        except RemoteAgentError as error:
            if isinstance(error.__cause__, UnsupportedOperationError):
                return None
            raise

    async def get_task(self, task_id: str) -> Task:
        """Fetch a task. TaskLostError if the agent does not know it."""
        return await _call(self.name, lambda: self._client.get_task(GetTaskRequest(id=task_id)))

    async def cancel_task(self, task_id: str) -> None:
        """Cancel a task."""
        await _call(self.name, lambda: self._client.cancel_task(CancelTaskRequest(id=task_id)))

    async def _begin(self, events: AsyncGenerator[StreamResponse]) -> tuple[StreamResponse, AsyncGenerator[StreamResponse]]:
        described = self._describe_errors(events)
        try:
            return await anext(described), described
        except StopAsyncIteration:
            raise A2AClientError("no event") from None

    async def _describe_errors(self, events: AsyncGenerator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
        async with aclosing(events):
            while True:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
                except _ERRORS as error:
                    raise describe_error(self.name, error) from error
                yield event


def make_http_client(options: RemoteOptions, trust: HttpsTrust) -> httpx.AsyncClient:
    """Make the HTTP client for the connections to an agent."""
    return httpx.AsyncClient(
        transport=PolicyTransport(options, _make_policy(options), trust),
        timeout=options.timeout_s,
        headers={"Accept-Encoding": "identity", "User-Agent": "spade-coreason"},
        trust_env=False,
    )


def _make_policy(options: RemoteOptions) -> UrlPolicy:
    return UrlPolicy(options.allow_private, resolve_host)


async def _fetch_card(http: httpx.AsyncClient, options: RemoteOptions) -> AgentCard:
    try:
        async with asyncio.timeout(options.timeout_s):  # httpx limits the time of each piece only
            response = await http.get(options.card_url)
    except TimeoutError as error:
        raise httpx.ReadTimeout("the card is not complete") from error
    response.raise_for_status()
    return parse_agent_card(response.json())


async def _make_client(config: ClientConfig, card: AgentCard) -> Client:
    return ClientFactory(config).create(card)


def _select_interface(card: AgentCard, options: RemoteOptions, name: str) -> AgentCard:
    """Return the card with the one interface to use: the first that we speak, before others one that gets our headers.

    RemoteAgentError if there is none.
    """
    spoken = [
        one
        for one in card.supported_interfaces
        if one.protocol_binding in _BINDINGS and one.protocol_version.partition(".")[0] == "1"
    ]
    if not spoken:
        offered = ", ".join(f"{one.protocol_binding} {one.protocol_version}" for one in card.supported_interfaces[:10])
        problem = "it does not offer A2A 1.0 by JSON-RPC or HTTP+JSON, but {offered}"
        raise _make_error(name, translate(problem, offered=clean_line(offered) or translate("nothing")))
    policy, problems = _make_policy(options), []
    for one in sorted(spoken, key=lambda one: _origin_or_none(one.url) != options.origin) if options.headers else spoken:
        try:
            policy.check(one.url)
        except FetchError as error:
            problems.append(error)
            continue
        chosen = AgentCard()
        chosen.CopyFrom(card)
        del chosen.supported_interfaces[:]
        chosen.supported_interfaces.append(one)
        return chosen
    raise describe_error(name, problems[0]) from problems[0]


def _origin_or_none(url: str) -> tuple[str, str, int | None] | None:
    try:
        return origin_of(url)
    except ValueError:
        return None


async def _call(name: str, work: Callable[[], Awaitable[T]], *, is_repeatable: bool = True, tries: int = TRIES) -> T:
    """Await `work()` and return its result. Call it again after an error that may pass, or if `is_repeatable` is false only
    after one with which nothing was sent. RemoteAgentError names the agent.
    """
    for number in range(tries):
        try:
            return await work()
        except _ERRORS as error:
            problem = describe_error(name, error)
            cause = error.__cause__ if problem is error else error
            pause_s = problem.retry_after_s if problem.retry_after_s is not None else _FIRST_PAUSE_S * 4**number
            may_repeat = problem.is_transient and (is_repeatable or problem.was_not_sent)
            if not may_repeat or number == tries - 1 or pause_s > _LONGEST_PAUSE_S:
                raise problem from cause
            log.debug("%s; tried again in %g s", problem, pause_s)
            await asyncio.sleep(pause_s)
    raise AssertionError("unreachable")


def describe_error(name: str, error: Exception) -> RemoteAgentError:
    """Return one of `_ERRORS` as one line that names the agent."""
    cause = error.__cause__
    http_error = error if isinstance(error, httpx.HTTPError) else cause if isinstance(cause, httpx.HTTPError) else None
    if isinstance(error, RemoteAgentError):
        return error
    if isinstance(error, UnusableAnswerError):
        return _make_error(name, str(error))
    if isinstance(error, FetchError):
        return _make_error(name, translate("its address is not allowed: {problem}", problem=error.problem), remedy=error.remedy)
    if isinstance(error, ConfigError):
        return _make_error(name, translate("the proxy of the platform cannot be used"), remedy=str(error))
    if isinstance(error, TaskNotFoundError):
        return TaskLostError(_name_problem(name, translate("it does not know the task any more")))
    if isinstance(error, VersionNotSupportedError):
        return _make_error(name, translate("it does not speak A2A 1.0"))
    if isinstance(http_error, httpx.HTTPStatusError) and _is_unexplained(error):
        return _describe_status(name, http_error.response)
    if isinstance(error, A2AClientTimeoutError) or isinstance(http_error, httpx.TimeoutException):
        was_not_sent = isinstance(http_error or cause, httpx.ConnectTimeout)
        return _make_error(name, translate("it does not answer in time"), is_transient=True, was_not_sent=was_not_sent)
    if http_error is not None and _is_unexplained(error):
        was_not_sent = isinstance(http_error, httpx.ConnectError)
        if was_not_sent and "CERTIFICATE_VERIFY_FAILED" in str(http_error):
            remedy = "for an authority of your own, set server.tls.ca_file to its certificate"
            return _make_error(name, translate("its certificate is not trusted"), remedy=remedy)
        problem = translate("it cannot be reached") if was_not_sent else translate("the connection fails")
        remedy = "check the address options.url, and whether the remote agent runs" if was_not_sent else ""
        return _make_error(name, problem, is_transient=True, was_not_sent=was_not_sent, remedy=remedy)
    if isinstance(error, A2AError) and not isinstance(error, A2AClientError):
        return _make_error(name, translate("it refuses this: {message}", message=clean_line(error.message)))
    return _make_error(name, translate("its answer is not A2A 1.0"))


def _is_unexplained(error: Exception) -> bool:
    """Return True if an error says nothing but that HTTP failed: an A2A agent gives an error of its protocol with it."""
    return not isinstance(error, A2AError) or isinstance(error, A2AClientError) or type(error).__name__ == "MethodNotFoundError"


def _describe_status(name: str, response: httpx.Response) -> RemoteAgentError:
    status = response.status_code
    if response.is_redirect:
        problem = translate("it redirects (HTTP {status}), which is not followed", status=status)
        return _make_error(name, problem, remedy="set options.url to the address to which it redirects")
    if status in (401, 403):
        problem = translate("it refuses access (HTTP {status})", status=status)
        return _make_error(name, problem, remedy="set options.headers, such as Authorization")
    if status not in _UNAVAILABLE_STATUSES:
        remedy = "check options.url: it is the address above /.well-known/agent-card.json, or that of the card"
        return _make_error(name, translate("its server answers HTTP {status}", status=status), remedy=remedy)
    retry_after_s = _read_retry_after(response)
    was_not_sent = status in _NOT_SENT_STATUSES
    problem = translate("it is not available now (HTTP {status})", status=status)
    if retry_after_s is not None and retry_after_s > 0:
        problem = translate(
            "it is not available now (HTTP {status}); try again in {time}", status=status, time=format_duration(retry_after_s)
        )
    return _make_error(name, problem, is_transient=True, was_not_sent=was_not_sent, retry_after_s=retry_after_s)


def _read_retry_after(response: httpx.Response) -> float | None:
    """Return the seconds in Retry-After, at most a day. A date is not read."""
    text = response.headers.get("retry-after", "").strip()
    return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _name_problem(name: str, problem: str) -> str:
    return translate("The remote agent {agent} cannot answer: {problem}.", agent=name, problem=problem)


def _make_error(name: str, problem: str, **fields: Any) -> RemoteAgentError:
    return RemoteAgentError(_name_problem(name, problem), **fields)
