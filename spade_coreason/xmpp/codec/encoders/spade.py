"""Replies to plain SPADE agents: text with SPADE's metadata form."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from ....contracts import UserErrorBlock
from ....domain.messages import BlockEmitted, Failed, InboundRequest, Refused, TurnEvent
from ....runtime import PersonMessage
from ..elements import ANSWER_MARKER_XML, MAX_CHARACTER_BYTES, MIN_TEXT_BYTES, thread_element
from ..namespaces import FORM_NAMESPACE, ORIGIN_ID_NAMESPACE, SPADE_FORM, SPADE_THREAD
from ..xml import escape, escape_attribute, wire_size
from .chat import ChatEncoder


class SpadeEncoder(ChatEncoder):
    """Encoder for SPADE agents: text with SPADE's metadata form.

    The form has the fields that the sender's templates match: performative, in-reply-to and thread.
    """

    shows_files = False
    _PERFORMATIVES: ClassVar[dict[type, str]] = {Failed: "failure", Refused: "refuse"}

    def __init__(self, incoming: InboundRequest, key: UUID, stanza_bytes: int) -> None:
        super().__init__(incoming, key, stanza_bytes)
        self._fields: dict[str, str] = dict(incoming.metadata.get("spade", {}))
        fields_bytes = sum(MAX_CHARACTER_BYTES * len(name) + wire_size(value) + 80 for name, value in self._fields.items())
        if fields_bytes > stanza_bytes // 4:
            self._fields, fields_bytes = {}, 0
        in_reply_to = self._fields.get("reply-with", incoming.stanza_id)
        # The thread is an element and a field, and the address is the full JID.
        echoed = MAX_CHARACTER_BYTES * (len(in_reply_to) + len(incoming.thread or "") + len(incoming.sender))
        self._text_bytes = max(self._text_bytes - fields_bytes - echoed, MIN_TEXT_BYTES)
        self._performative = "inform"
        self.recipient = incoming.sender

    def encode(self, event: TurnEvent) -> list[str]:
        is_error = isinstance(event, BlockEmitted) and isinstance(event.block, UserErrorBlock)
        self._performative = "failure" if is_error else self._PERFORMATIVES.get(type(event), "inform")
        return super().encode(event)

    def write(self, message: PersonMessage) -> str:
        incoming, stanza_id, text = self._incoming, message.id, escape(message.text)
        fields = {**self._fields, "performative": self._performative}
        fields.pop("in-reply-to", None)  # it names the message that the request itself answered
        reply_with = fields.pop("reply-with", incoming.stanza_id)
        if reply_with:
            fields["in-reply-to"] = reply_with
        if incoming.thread:
            fields[SPADE_THREAD] = incoming.thread
        form = "".join(
            f"<field var='{escape_attribute(name)}' type='text-single'><value>{escape(value)}</value></field>"
            for name, value in fields.items()
        )
        return (
            f"<message to='{escape_attribute(incoming.sender)}' type='chat' id='{stanza_id}'><body>{text}</body>"
            f"{thread_element(incoming.thread)}<x xmlns='{FORM_NAMESPACE}' type='form'><title>{SPADE_FORM}</title>{form}</x>"
            f"{ANSWER_MARKER_XML}<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
        )
