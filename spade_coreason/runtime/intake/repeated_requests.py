"""Repeated requests of programs: they attach to the turn that runs, or get the answer that is stored.

The identity of a program's request is its agent, its bare sender and its `request_id`, with a hash of what it asks. Within
seven days the same request runs once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from pydantic_core import from_json

from ...contracts import DataBlock, ErrorCode, UserErrorBlock
from ...domain.identifiers import NO_DIGEST, derive_inbox_key, derive_request_key, digest_request
from ...domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Parked,
    Refused,
    Repeated,
    TextEmitted,
    TurnEvent,
)
from ...domain.texts.translation import translate
from ...memory import find_token_counts
from ...storage import AgentRepository, Commit, EarlierRequest
from ..channels import OutboundMessage, ReplyEncoder, RequestState, encode_reply
from ..mailboxes.mailbox import QueuedRequest
from ..mailboxes.mailboxes import Mailboxes
from ..observability.metrics import Metrics
from ..replies.outbox import Outbox
from ..replies.program_requests import InFlightRequest, InFlightRequests

_RETRY_AFTER_S = 5.0
"""The time after which to ask again for a reply that is not ready."""


def identify(agent: str, incoming: InboundRequest) -> tuple[UUID, bytes]:
    """Return the inbox key of a request to `agent` (a bare JID), and the hash of what it asks.

    The hash is empty for a request without an id of its own, which is known by its message and its content.
    """
    if incoming.kind.is_program and incoming.request_id is not None:
        digest = digest_request(incoming.payload, incoming.metadata.get("capability"))
        return derive_request_key(agent, incoming.owner, incoming.request_id), digest
    key = derive_inbox_key(agent, incoming.owner, incoming.stanza_id, incoming.content, incoming.evidence.server_id)
    return key, NO_DIGEST


class RepeatedRequests:
    """Answers the repeated requests to one agent: with the reply of the turn that runs, or with the one that is stored."""

    def __init__(
        self,
        repository: AgentRepository,
        mailboxes: Mailboxes,
        program_requests: InFlightRequests,
        outbox: Outbox,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._inbox = repository.inbox
        self._mailboxes = mailboxes
        self._program_requests = program_requests
        self.outbox = outbox
        self._metrics = metrics
        self._clock = clock

    def attach_new(self, incoming: InboundRequest, key: UUID, digest: bytes) -> Commit[bool] | None:
        """Attach a request that has just come to the one that it repeats, if that is queued or runs.

        Return its commit, or None if there is none. A request from another address is stored: if the turn begins anew after
        a crash, this address gets the answer too.
        """
        if (earlier := self._program_requests.get(key)) is None:
            return None
        is_other_address = earlier.digest == digest and earlier.accepts_address(incoming.sender)
        if not self._attach(earlier, incoming, digest):
            return None
        self._metrics.redeliveries["duplicate"] += 1
        if not is_other_address:
            return earlier.stored
        inbox_row, stored, _ = self._inbox.receive(
            key.bytes,
            incoming.owner,
            incoming.to_json(),
            self._clock(),
            digest=digest,
            may_be_duplicate=True,
            channel=incoming.channel_name,
        )
        earlier.repeated_rows.append(inbox_row)
        return stored

    async def answer(self, queued: QueuedRequest) -> None:
        """Answer a request that was received before: with the reply of the turn that runs, or with the one that is stored."""
        incoming, program_requests = queued.incoming, self._program_requests
        while (earlier := program_requests.get(queued.key)) is not None and earlier.stored is not queued.stored:
            if self._attach(earlier, incoming, queued.digest):
                earlier.repeated_rows.append(queued.inbox_row)
                return
            await earlier.wait_until_ended()
        stored = await self._load(queued.key, incoming.channel_name)
        if stored is not None and stored.is_unanswered:
            # Its question was answered meanwhile. To wait here for its turn could take the turn slot that it needs.
            stored = stored._replace(is_parked=True)
        channel = self.outbox.channel_of(incoming)
        make_encoder = channel.make_encoder
        for address in earlier.listeners if earlier is not None else ():
            channel.send(repeat_reply(stored, queued.digest, make_encoder(replace(incoming, sender=address), queued.key)))
        messages = repeat_reply(stored, queued.digest, make_encoder(incoming, queued.key))
        self.outbox.send_final(incoming.channel_name, queued.inbox_row, messages)

    async def repeat(self, incoming: InboundRequest, key: UUID) -> bool:
        """Send the reply to the request with a key once more, to the sender and by the channel of `incoming`.

        Return False if there is none.
        """
        if not self._mailboxes.is_accepting:  # the request may wait for the start, or run again after the next one
            self.outbox.send_problem(incoming, refuse_unanswered())
            return True
        while True:
            while (running := self._program_requests.get(key)) is not None:
                if self._attach(running, incoming, running.digest):
                    return True
                await running.wait_until_ended()
            if not self._inbox.may_have(key.bytes):
                return False
            stored = await self._load(key, incoming.channel_name)
            if stored is None:
                return False
            if not stored.is_unanswered:
                break
            if self._program_requests.get(key) is None:
                self.outbox.send_problem(incoming, refuse_unanswered())
                return True
        channel = self.outbox.channel_of(incoming)
        channel.send(repeat_reply(stored, stored.digest, channel.make_encoder(incoming, key)))
        return True

    async def find_state(self, key: UUID, channel: str) -> RequestState | None:
        """Return the state of the request with a key, which came by the channel of a name. None if there is none."""
        if self._program_requests.get(key) is not None:
            return "running"
        if not self._inbox.may_have(key.bytes):
            return None
        stored = await self._inbox.load_earlier(key.bytes, channel)
        if stored is None or not stored.sender:
            return None
        if stored.is_parked:
            return "waiting"
        if stored.turn is not None or stored.reply is not None:
            return "answered"
        return "running" if stored.is_open else "closed"

    async def _load(self, key: UUID, channel: str) -> EarlierRequest | None:
        """Load a stored request, once more if its turn may have ended while it was read."""
        stored = await self._inbox.load_earlier(key.bytes, channel)
        if stored is not None and stored.is_unanswered and self._program_requests.get(key) is None:
            stored = await self._inbox.load_earlier(key.bytes, channel)
        return stored

    def _attach(self, earlier: InFlightRequest, incoming: InboundRequest, digest: bytes) -> bool:
        """Attach a repeated request to the one that is queued or runs. Return False if it has to wait for the stored reply.

        The sender is told if the id was used for another request, or if too many addresses wait for the answer. It is also
        told if the answer goes to another channel. That gets the stored reply, in its own form, when it asks again. To wait
        here could take the turn slot that the first request needs.
        """
        if earlier.digest != digest:
            self.outbox.send_problem(incoming, refuse_other_content())
            return True
        if earlier.channel_name != incoming.channel_name:
            self.outbox.send_problem(incoming, refuse_unanswered())
            return True
        if not earlier.has_recipient(incoming.sender) and not earlier.accepts_address(incoming.sender):
            self.outbox.send_problem(incoming, refuse_further_address())
            return True
        return earlier.attach(incoming.sender)


def refuse_other_content() -> Refused:
    """Return the refusal of a request whose id was used for something else."""
    text = translate("This request id was used for another request before. Send this one with a new id.")
    return Refused(text, ErrorCode.BAD_REQUEST)


def refuse_further_address() -> Refused:
    """Return the refusal of a repeated request from one address too many."""
    text = translate("Too many addresses wait for the answer to this request. Send it again when it is answered.")
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS)


def refuse_unanswered() -> Refused:
    """Return the refusal to repeat a reply that does not exist yet, or that goes to another channel."""
    text = translate("The answer to this request is not ready yet. Ask for it again in a while.")
    return Refused(text, ErrorCode.UNAVAILABLE, _RETRY_AFTER_S)


def repeat_reply(earlier: EarlierRequest | None, digest: bytes, encoder: ReplyEncoder) -> list[OutboundMessage]:
    """Return the messages of the reply to a repeated request, from its stored turn.

    The sender is told if the id was used for another request, or if the turn was deleted.
    """
    if earlier is not None and earlier.digest != digest:
        return encode_reply(encoder, refuse_other_content())
    if earlier is not None and earlier.is_parked:
        return encode_reply(encoder, Parked())
    if earlier is not None and earlier.sender and earlier.turn is not None:
        return encode_reply(encoder, *_rebuild_events(earlier.turn, earlier.conversation_id or ""))
    if earlier is not None and earlier.reply is not None:  # of a command, which has no turn
        recipient = encoder.recipient
        return [OutboundMessage(recipient, encoder.readdress(content, recipient)) for content in from_json(earlier.reply)]
    text = translate("The answer to this request is not stored any more. Ask again with a new request id.")
    return encode_reply(encoder, Failed(text, ErrorCode.NOT_FOUND, False))


def _rebuild_events(body: str, conversation_id: str) -> list[TurnEvent]:
    """Build the events of a reply from its stored turn (JSON): its text comes first, then its data."""
    turn = from_json(body)
    output, meta = turn["output"], turn.get("meta", {})
    events: list[TurnEvent] = [Repeated()]
    if output.get("text"):
        events.append(TextEmitted(output["text"], 1))
    events += [BlockEmitted(DataBlock.model_validate(data)) for data in output.get("data", ())]
    if "error" not in output:
        return [*events, Completed(conversation_id, meta.get("state", "active"), find_token_counts(meta.get("usage", {})))]
    error = UserErrorBlock.model_validate({**output["error"], "technical_details": None})
    code = int(error.code or ErrorCode.INTERNAL)
    failure = Failed(
        error.user_message, code, error.recoverable, meta.get("incident"), is_reported=True, has_asked="has_asked" in meta
    )
    return [*events, BlockEmitted(error), failure]
