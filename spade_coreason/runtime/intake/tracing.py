"""Wrappers around the requests of an agent: spans from their arrival until their end, and their names for the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from ...domain.messages import InboundRequest, Refused
from ...domain.observability import spans
from ...domain.observability.tracing import AttributeValue, TraceSpan, Tracing
from ...domain.observability.turn_log import TURN_FIELDS
from ...storage import Commit, Rows
from ..mailboxes.mailbox import Mailbox, QueuedRequest
from .request_intake import RequestIntake

HandleRequest: TypeAlias = Callable[[Mailbox, QueuedRequest], Awaitable[None]]


def trace_turns(handle: HandleRequest, agent: str, tracing: Tracing) -> HandleRequest:
    """Return `handle` with a span around each request to an agent (a bare JID), below the one in which it was received."""

    async def handle_in_span(mailbox: Mailbox, queued: QueuedRequest) -> None:
        if not queued.may_start_early and await queued.stored.wait() and not await queued.stored:
            await handle(mailbox, queued)  # a repeated request has no turn
            return
        incoming = queued.incoming
        attributes = {
            **_describe(incoming, agent),
            spans.OPERATION: spans.INVOKE_AGENT,
            spans.REQUEST: str(incoming.request_id or queued.key),
        }
        if queued.is_redelivered:
            attributes[spans.REDELIVERED] = True
        if queued.command is not None:
            attributes[spans.COMMAND] = True
        with tracing.turn(f"{spans.INVOKE_AGENT} {agent}", attributes, incoming.context.traceparent) as span:
            span.set_text(spans.PAYLOAD, lambda: incoming.payload)
            await handle(mailbox, queued)
            if mailbox.active is not None:  # its id may have the address of a person, that of its session has none
                span.set({spans.CONVERSATION: str(mailbox.active.session_uuid)})

    return handle_in_span


def name_turns_in_log(handle: HandleRequest, agent: str) -> HandleRequest:
    """Return `handle` with `TURN_FIELDS` set for each request to an agent (a bare JID)."""

    async def handle_named(mailbox: Mailbox, queued: QueuedRequest) -> None:
        def find_fields() -> Mapping[str, str]:
            fields = {"agent": agent, "request": str(queued.incoming.request_id or queued.key)}
            return fields if mailbox.conversation_id is None else fields | {"conversation": mailbox.conversation_id}

        token = TURN_FIELDS.set(find_fields)
        try:
            await handle(mailbox, queued)
        finally:
            TURN_FIELDS.reset(token)

    return handle_named


class TracedIntake(RequestIntake):
    """An intake with a span for each request, from its arrival until it is durable. Its context is stored with the request."""

    def __init__(self, tracing: Tracing, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracing = tracing

    def receive(self, incoming: InboundRequest, *, is_archived: bool = False) -> Commit[bool] | None:
        span, incoming = self._begin(incoming)
        stored = super().receive(incoming, is_archived=is_archived)
        _end_when_stored(span, stored)
        return stored

    def receive_due(self, incoming: InboundRequest, rows: Rows, missed_at: datetime | None = None) -> Commit[bool] | Refused:
        span, incoming = self._begin(incoming)
        stored = super().receive_due(incoming, rows, missed_at)
        _end_when_stored(span, None if isinstance(stored, Refused) else stored)
        return stored

    def _begin(self, incoming: InboundRequest) -> tuple[TraceSpan, InboundRequest]:
        attributes = _describe(incoming, self.jid)
        if incoming.request_id is not None:
            attributes[spans.REQUEST] = str(incoming.request_id)
        context = incoming.context
        span = self._tracing.begin(f"{spans.RECEIVE} {self.jid}", "consumer", attributes, context.traceparent)
        return span, replace(incoming, context=context._replace(traceparent=span.traceparent))


def _describe(incoming: InboundRequest, agent: str) -> dict[str, AttributeValue]:
    return {spans.AGENT: agent, spans.CHANNEL: incoming.kind.word}


def _end_when_stored(span: TraceSpan, stored: Commit[bool] | None) -> None:
    def end(outcome: str) -> None:
        span.set({spans.OUTCOME: outcome})
        span.end()

    def fail(error: BaseException) -> None:
        span.fail(type(error).__name__)
        span.end()

    if stored is None:
        end("refused")
    else:
        stored.on_stored(lambda is_new: end("new" if is_new else "repeated"))
        stored.on_failed(fail)
