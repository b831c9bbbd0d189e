"""Replies to programs: every event of a turn as a CloudEvent, several of them in one stanza.

An encoder is the `ReplyEncoder` of one turn. It is pure: it takes events and returns stanzas as strings, in order. Their ids
derive from the inbox key of the request, so that a reply sent twice is recognised. Each id is also the origin-id (XEP-0359).
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic_core import to_jsonable_python

from ....contracts import ErrorCode
from ....domain.event_data import event_data
from ....domain.messages import Failed, InboundRequest, MalformedRequest, TurnEvent, reply_id_prefix
from ....runtime import ReplyEncoder
from ..cloud_events import EventStanzaWriter, EventWriter


class CloudEventEncoder(ReplyEncoder):
    """Encoder for programs: CloudEvents in JSON containers (XEP-0335), at full speed, to the full JID that asked.

    `make_writer` gives them another form.
    """

    shows_typing = False
    has_live_messages = False
    follows_streams = True
    shows_files = False
    batches = True

    def __init__(
        self,
        incoming: InboundRequest,
        key: UUID,
        agent: str,
        stanza_bytes: int,
        make_writer: Callable[..., EventWriter] = EventStanzaWriter,
    ) -> None:
        self.key: str = to_jsonable_python(key)  # `str` takes three times as long
        self.recipient = incoming.sender
        self._uuid = key
        self._writer = make_writer(
            to=incoming.sender,
            source=f"xmpp:{agent}",
            thread=incoming.thread,
            id_prefix=reply_id_prefix(self.key, incoming),
            request_id=str(incoming.request_id or key),
            stanza_bytes=stanza_bytes,
            accepts_batches=incoming.context.accepts_batches,
        )
        self.shows_thoughts = self.shows_steps = incoming.context.wants_thoughts

    def encode(self, event: TurnEvent) -> list[str]:
        return self._writer.add(*event_data(event, self._uuid))

    def flush(self) -> list[str]:
        return self._writer.flush()

    def readdress(self, content: str, recipient: str) -> str:
        return self._writer.readdress(content, recipient)


def encode_malformed_reply(
    malformed: MalformedRequest, agent: str, stanza_bytes: int, make_writer: Callable[..., EventWriter] = EventStanzaWriter
) -> list[str]:
    """Encode one event that tells the sender why their request cannot be read."""
    key = uuid5(NAMESPACE_URL, malformed.stanza_id)  # the sender's id may contain any character
    writer = make_writer(
        to=malformed.sender,
        source=f"xmpp:{agent}",
        thread=malformed.thread,
        id_prefix=f"malformed-{key}",
        request_id=malformed.request_id or malformed.stanza_id,
        stanza_bytes=stanza_bytes,
    )
    writer.add(*event_data(Failed(f"not a request: {malformed.problem}", ErrorCode.BAD_REQUEST, False), key))
    return writer.flush()
