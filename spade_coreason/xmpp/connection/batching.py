"""Messages to one recipient that leave in one write are sent as one: a server handles it in the time of a single message."""

from __future__ import annotations

from collections.abc import Sequence

from ...domain.jid import bare_jid
from ...runtime import OutboundMessage
from ..codec import BATCH_START, BatchPart, build_batch, read_batch_part

MAX_MESSAGES = 16
"""The most messages in one batch."""
_MAX_BYTES = 10_000
"""The smallest value of `limits.stanza_bytes`: a batch is never longer than a stanza may be."""
_MAX_MESSAGE_CHARACTERS = _MAX_BYTES // 2


class Batch(OutboundMessage):
    """Several messages as one. They are acknowledged together."""

    def __init__(self, messages: Sequence[OutboundMessage], parts: Sequence[BatchPart]) -> None:
        recipient = messages[0].recipient
        super().__init__(recipient, build_batch(recipient, parts), on_acknowledged=self._acknowledge_all)
        self._messages = messages

    def _acknowledge_all(self) -> None:
        for message in self._messages:
            message.acknowledge()


class _OpenBatch:
    """The messages of a batch that may get more. Alone, a message is sent as it is."""

    def __init__(self) -> None:
        self._messages: list[OutboundMessage] = []
        self._parts: list[BatchPart] = []
        self._bytes = 0

    def add(self, message: OutboundMessage, part: BatchPart) -> bool:
        """Add a message. Return False if there is no room for it, or if it is of the other kind or for another resource."""
        size = len(message.content.encode())
        if self._parts and (
            len(self._parts) == MAX_MESSAGES
            or self._bytes + size > _MAX_BYTES
            or self._parts[0].is_reply is not part.is_reply
            or self._messages[0].recipient != message.recipient
        ):
            return False
        self._messages.append(message)
        self._parts.append(part)
        self._bytes += size
        return True

    def close(self) -> OutboundMessage:
        """Return the message to send."""
        return self._messages[0] if len(self._messages) == 1 else Batch(self._messages, self._parts)


def build_batches(messages: Sequence[OutboundMessage]) -> list[OutboundMessage]:
    """Make batches of the messages that may be in one, and keep the others. Those to one bare JID keep their order."""
    if not any(BATCH_START in message.content for message in messages):
        return list(messages)  # nearly always
    sent: list[OutboundMessage | _OpenBatch] = []
    open_batches: dict[str, _OpenBatch] = {}
    for message in messages:
        part, recipient = _read_part(message), bare_jid(message.recipient)
        if part is None:
            open_batches.pop(recipient, None)  # what follows must stay behind it
            sent.append(message)
            continue
        batch = open_batches.get(recipient)
        if batch is None or not batch.add(message, part):
            batch = open_batches[recipient] = _OpenBatch()
            batch.add(message, part)
            sent.append(batch)
    return [entry.close() if isinstance(entry, _OpenBatch) else entry for entry in sent]


def _read_part(message: OutboundMessage) -> BatchPart | None:
    if len(message.content) > _MAX_MESSAGE_CHARACTERS or isinstance(message, Batch):
        return None
    return read_batch_part(message.content)
