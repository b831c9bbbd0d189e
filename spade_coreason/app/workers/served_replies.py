"""The replies of an agent that this worker serves, as other workers ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from ...contracts import AgentRequest
from ...doors import TRACEPARENT, Caller, CallerRequests, DoorReply, LocalAgentBackend


class Reader(NamedTuple):
    """The place where a reply is read in another worker: the id of that worker, its mailbox, and a key."""

    worker: int
    mailbox: str
    key: str


class Accepted(NamedTuple):
    """A worker and its mailbox, from which the events of a reply come.

    `is_new` is False for a request that was stored before, and None for one that is refused.
    """

    worker: int
    mailbox: str
    is_new: bool | None


class ServedReplies:
    """The replies of an agent that runs here. `deliver` sends the events of one to a reader, and returns their origin."""

    def __init__(self, backend: LocalAgentBackend, deliver: Callable[[Reader, DoorReply, bool | None], Accepted]) -> None:
        self._backend = backend
        self._deliver = deliver

    async def ask(
        self,
        reader: Reader,
        caller: Caller,
        request: AgentRequest,
        thread: str | None,
        metadata: dict[str, Any],
        waits: bool,
        traceparent: str,
    ) -> Accepted:
        """Put a request in, and send its reply to a reader. It is stored then, unless it is refused.

        `traceparent` is the header of the HTTP request; "" without one.
        """
        TRACEPARENT.set(traceparent)  # of this task alone: each call has one
        reply = await self._backend.ask(caller, request, thread, metadata, waits=waits)
        try:
            is_new = None if reply.stored is None else await reply.stored
        except BaseException:
            reply.close()
            raise
        return self._deliver(reader, reply, is_new)

    async def fetch(self, reader: Reader, caller: Caller, request_id: UUID, waits: bool) -> Accepted | None:
        """Send the reply to an earlier request to a reader. Return None without such a request."""
        reply = await self._backend.fetch(caller, request_id, waits=waits)
        return None if reply is None else self._deliver(reader, reply, False)


class ServedAgentBackend(NamedTuple):
    """The backend of an agent that this worker serves, as other workers ask it."""

    requests: CallerRequests
    replies: ServedReplies
