"""Repeated requests of programs: they attach to the turn that runs, or get the answer that is stored.

The identity of a program's request is its agent, its bare sender and its `request_id`, with a hash of what it asks. Within
seven days the same request runs once, however often it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from pydantic_core import from_json

from ...contracts import DataBlock, ErrorCode, UserErrorBlock
from ...domain.identifiers import NO_DIGEST, derive_inbox_key, derive_request_key, digest_request
from ...domain.messages import (
    BlockEmitted,
    Completed,
    Failed,
    InboundRequest,
    Refused,
    Repeated,
    TextEmitted,
    TurnEvent,
)
from ...domain.texts.translation import translate
from ...storage import Commit, EarlierRequest
from ..channels import OutboundMessage, ReplyEncoder, encode_reply
from ..turns.output import TurnOutput

_MAX_LISTENERS = 16
"""Number of further addresses that get the reply to one request."""
_RETRY_AFTER_S = 5.0
"""The time after which to ask again for a reply that is not ready."""


def identify(agent: str, incoming: InboundRequest) -> tuple[UUID, bytes]:
    """Return the inbox key of a request to `agent` (a bare JID), and the hash of what it asks.

    The hash is empty for a request without an id of its own, which is known by its message and its content.
    """
    if incoming.kind.is_program and incoming.request_id is not None:
        digest = digest_request(incoming.payload, incoming.metadata.get("capability"))
        return derive_request_key(agent, incoming.owner, incoming.request_id), digest
    return identify_message(agent, incoming), NO_DIGEST


def identify_message(agent: str, incoming: InboundRequest) -> UUID:
    """Return the inbox key of a message, which is that of the first request of this message id and content."""
    return derive_inbox_key(agent, incoming.owner, incoming.stanza_id, incoming.content, incoming.evidence.server_id)


class InFlightRequest:
    """A program's request from its arrival to the end of its turn, with the addresses that wait for the reply."""

    __slots__ = ("_ended", "channel_name", "digest", "listeners", "output", "repeated_rows", "sender", "stored")

    def __init__(self, incoming: InboundRequest, digest: bytes, stored: Commit[bool]) -> None:
        self.sender = incoming.sender
        self.channel_name = incoming.channel_name
        self.digest = digest
        self.stored = stored
        self.listeners: list[str] = []
        """The full JIDs that sent the request too."""
        self.repeated_rows: list[int] = []
        """The inbox rows of the repeated requests from these addresses. They stay open until the turn is stored."""
        self.output: TurnOutput | None = None
        """The output of its turn, once that has begun."""
        self._ended: asyncio.Event | None = None

    def has_recipient(self, address: str) -> bool:
        """Return True if an address (a full JID) gets the reply already."""
        return address == self.sender or address in self.listeners

    def accepts_address(self, address: str) -> bool:
        """Return True if the reply may go to an address (a full JID) that does not get it already."""
        return not self.has_recipient(address) and len(self.listeners) < _MAX_LISTENERS

    def attach(self, address: str) -> bool:
        """Send the whole reply to an address (a full JID). Return False if the turn has sent its last message already."""
        if self.output is not None and self.output.is_closed:
            return False
        if not self.has_recipient(address):
            self.listeners.append(address)
        if self.output is not None:
            self.output.repeat_to(address)
        return True

    def open_output(self, output: TurnOutput) -> None:
        """Set the output of the turn, which begins."""
        self.output = output
        for address in self.listeners:
            output.repeat_to(address)

    async def wait_until_ended(self) -> None:
        """Wait until the turn is stored, or the request is dropped."""
        if self._ended is None:
            self._ended = asyncio.Event()
        await self._ended.wait()

    def end(self) -> None:
        """Wake the tasks in `wait_until_ended`."""
        if self._ended is not None:
            self._ended.set()


class InFlightRequests:
    """The requests of programs that are queued or run, by inbox key."""

    def __init__(self) -> None:
        self._open: dict[UUID, InFlightRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, key: UUID, incoming: InboundRequest, digest: bytes, stored: Commit[bool]) -> None:
        """Add a request that is queued. One with this key stays as it is."""
        if key not in self._open:
            self._open[key] = InFlightRequest(incoming, digest, stored)

    def get(self, key: UUID) -> InFlightRequest | None:
        """Return the request with a key, or None."""
        return self._open.get(key)

    def remove(self, key: UUID, stored: Commit[bool]) -> Sequence[int]:
        """Remove a request whose turn has ended, or that was dropped, and return the inbox rows of its repetitions.

        A request with this key but another commit than `stored` stays: the caller's is a repetition of it.
        """
        request = self._open.get(key)
        if request is None or request.stored is not stored:
            return ()
        del self._open[key]
        request.end()
        return request.repeated_rows


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
        return [*events, Completed(conversation_id, meta.get("state", "active"))]
    error = UserErrorBlock.model_validate({**output["error"], "technical_details": None})
    code = int(error.code or ErrorCode.INTERNAL)
    failure = Failed(error.user_message, code, error.recoverable, meta.get("incident"), is_reported=True)
    return [*events, BlockEmitted(error), failure]
