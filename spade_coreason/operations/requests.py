"""The operations on failed requests: those that ended the platform, and are not run again by themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..contracts.base import format_rfc3339
from ..exceptions import ConfigError
from ..storage import CrashedRequest, drop_failed_request, load_failed_requests, retry_failed_request
from .definition import Arguments, Call, operation
from .host import OperationHost, select_agents
from .memory import OfAgents


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A failed request without its text. Times are as in RFC 3339."""

    id: int
    agent_id: str
    sender: str
    crashes: int
    stops: int
    received_at: str
    failed_at: str | None


@dataclass(frozen=True, slots=True)
class FailedRequestContents:
    """A failed request with its payload."""

    request: FailedRequest
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RetriedRequest:
    """A request that runs again: now, or once its agent is online and not paused."""

    request: FailedRequest
    runs_now: bool


@operation("requests.list")
async def list_requests(call: Call, arguments: OfAgents) -> list[FailedRequest]:
    """List the failed requests, the oldest first, without their text."""
    return [_summary(request) for request in await _load(call.host, arguments.agent)]


class OfRequest(Arguments):
    """A failed request, by its number."""

    id: int
    agent: str | None = None


@operation("requests.show")
async def show_request(call: Call, arguments: OfRequest) -> FailedRequestContents:
    """Show a failed request with its text."""
    request = await _find(call.host, arguments)
    return FailedRequestContents(_summary(request), json.loads(request.request).get("payload", {}))


@operation("requests.retry", is_change=True)
async def retry_request(call: Call, arguments: OfRequest) -> RetriedRequest:
    """Run a failed request again."""
    request = await _find(call.host, arguments)
    await call.record(request.agent, "requests.retry", f"request {request.id}", person=request.sender)
    running = await call.host.running_agent(request.agent, changes=True)
    stored = await retry_failed_request(call.host.repository(request.agent).database, request)
    if stored is None:
        raise _missing(request.id)
    return RetriedRequest(_summary(request), running is not None and await running.run_stored(stored))


@operation("requests.drop", is_change=True)
async def drop_request(call: Call, arguments: OfRequest) -> FailedRequest:
    """Delete a failed request."""
    request = await _find(call.host, arguments)
    await call.record(request.agent, "requests.drop", f"request {request.id}", person=request.sender)
    await drop_failed_request(call.host.repository(request.agent).database, request)
    return _summary(request)


async def _load(host: OperationHost, agent: str | None) -> list[CrashedRequest]:
    agents = await select_agents(host, agent)
    return [] if host.database is None else await load_failed_requests(host.database, agents)


async def _find(host: OperationHost, arguments: OfRequest) -> CrashedRequest:
    for request in await _load(host, arguments.agent):
        if request.id == arguments.id:
            return request
    raise _missing(arguments.id)


def _missing(number: int) -> ConfigError:
    return ConfigError("id", f"there is no failed request {number}; `requests list` shows them all")


def _summary(request: CrashedRequest) -> FailedRequest:
    return FailedRequest(
        request.id,
        request.agent,
        request.sender,
        request.crashes,
        request.stops,
        format_rfc3339(request.received_at),
        None if request.failed_at is None else format_rfc3339(request.failed_at),
    )
