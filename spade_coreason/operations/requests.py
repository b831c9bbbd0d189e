"""List waiting and failed requests; retry or delete failed ones.

A request that was running when the platform crashed runs again at the next start. After two crashes it runs alone. If the
platform crashes once more, the request has failed: its sender gets an error, and the request is listed here for seven days. The
same happens to a request that five stops of the platform have cut off, at the next stop that cuts off no other one. A request
that blocked the platform for a minute until it was killed has failed at once. `retry` and `drop` write an entry to the audit
trail of the agent.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias

from .. import storage
from ..contracts.times import format_rfc3339
from .definition import About, Call, OfAgents, operation
from .lists import Page, find_row, load_newest, raise_missing
from .view import TableView, View, moment

RequestState: TypeAlias = Literal["failed", "waiting", "parked"]
"""The states of requests: "failed" have ended the platform; "waiting" are not answered yet, and their turns may run; "parked"
wait for the answer of a person.
"""


@dataclass(frozen=True, slots=True)
class ListedRequest:
    """A request without its text. Times are as in RFC 3339; a parked one was received when it was parked."""

    id: int
    agent_id: str
    sender: str
    crashes: int
    stops: int
    received_at: str
    failed_at: str | None
    state: RequestState


@dataclass(frozen=True, slots=True)
class FailedRequestContents:
    """A failed request with its payload."""

    request: ListedRequest
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RetriedRequest:
    """A request that runs again: now, or once its agent is online and not paused."""

    request: ListedRequest
    runs_now: bool


class ListRequests(Page):
    """The requests of agents in one state, those of a person (a bare JID) if they are given."""

    state: Annotated[
        RequestState, About("Only those in this state: waiting for their answers, or parked until a person answers.")
    ] = "failed"


@operation(
    "requests.list",
    view=View(
        examples=["requests list --agent notes", "requests list --state waiting"],
        table=TableView(
            "requests",
            cursor="id",
            columns=["id", ("agent", "agent_id"), "sender", "crashes", "stops", ("received", moment("received_at"))],
        ),
        links=["requests.show", "requests.retry", "requests.drop"],
    ),
)
async def list_requests(call: Call, arguments: ListRequests) -> list[ListedRequest]:
    """List the failed requests, or those that wait, the newest first, without their text."""
    rows = {"failed": storage.FailedRequestRows, "waiting": storage.WaitingRequestRows, "parked": storage.ParkedRequestRows}
    found = await load_newest(call.host, rows[arguments.state], "request", arguments)
    return [_summary(request, arguments.state) for request in found]


class OfRequest(OfAgents):
    """A failed request, by its number."""

    id: int


@operation(
    "requests.show",
    view=View(
        examples=["requests show 4711"],
        given=["id"],
        dump=lambda found: {**asdict(found.request), "payload": found.payload},
        role="content",
    ),
)
async def show_request(call: Call, arguments: OfRequest) -> FailedRequestContents:
    """Show a failed request with its text.

    ID is the number of a failed request, from `requests list`.
    """
    request = await _find(call, arguments)
    return FailedRequestContents(_summary(request), json.loads(request.request).get("payload", {}))


_NAMED = "the request {request.id} of {request.sender} to {request.agent_id}"


@operation(
    "requests.retry",
    is_change=True,
    view=View(
        examples=["requests retry 4711"],
        given=["id"],
        question=f"run again {_NAMED}",
        asks=show_request,
        done=lambda one: f"The request {one.request.id} runs again{' now' if one.runs_now else ' once its agent runs'}.",
    ),
)
async def retry_request(call: Call, arguments: OfRequest) -> RetriedRequest:
    """Run a failed request again: now if the platform runs, else at its next start.

    ID is the number of a failed request, from `requests list`.
    """
    request = await _find(call, arguments)
    await call.record(request.agent, "requests.retry", f"request {request.id}", person=request.sender)
    agent = await call.host.open_agent(request.agent, changes=True)
    stored = await storage.retry_failed_request(call.host.repository(request.agent).database, request)
    if stored is None:
        raise_missing(str(request.id), "failed request")
    return RetriedRequest(_summary(request), await agent.run_stored(stored))


@operation(
    "requests.drop",
    is_change=True,
    view=View(
        examples=["requests drop 4711"],
        given=["id"],
        question=f"delete {_NAMED}",
        asks=show_request,
        done="The request {id} is deleted.",
    ),
)
async def drop_request(call: Call, arguments: OfRequest) -> ListedRequest:
    """Delete a failed request.

    ID is the number of a failed request, from `requests list`.
    """
    request = await _find(call, arguments)
    await call.record(request.agent, "requests.drop", f"request {request.id}", person=request.sender)
    await storage.drop_failed_request(call.host.repository(request.agent).database, request)
    return _summary(request)


async def _find(call: Call, arguments: OfRequest) -> storage.CrashedRequest:
    return await find_row(call.host, storage.FailedRequestRows, arguments.agent, str(arguments.id), "failed request")


def _summary(request: storage.CrashedRequest, state: RequestState = "failed") -> ListedRequest:
    return ListedRequest(
        request.id,
        request.agent,
        request.sender,
        request.crashes,
        request.stops,
        format_rfc3339(storage.from_micros(request.received_at)),
        None if request.failed_at is None else format_rfc3339(storage.from_micros(request.failed_at)),
        state,
    )
