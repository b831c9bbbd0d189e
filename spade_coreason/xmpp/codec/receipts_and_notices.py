"""Notifications, the messages besides replies: delivery receipts, displayed markers and notices."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from ...domain.messages import InboundRequest
from .elements import ANSWER_MARKER_XML, response_elements, thread_element_of
from .namespaces import CHAT_MARKERS_NAMESPACE, CHAT_STATES_NAMESPACE, ORIGIN_ID_NAMESPACE, RECEIPTS_NAMESPACE
from .xml import escape, escape_attribute


def encode_displayed(incoming: InboundRequest) -> str:
    """Encode the chat marker (XEP-0333) that a request was read."""
    return (
        f"<message to='{escape_attribute(incoming.reply_address)}' type='{escape_attribute(incoming.headers.message_type)}'>"
        f"<displayed xmlns='{CHAT_MARKERS_NAMESPACE}' id='{escape_attribute(incoming.stanza_id)}'/>{ANSWER_MARKER_XML}"
        f"{thread_element_of(incoming)}</message>"
    )


def encode_receipt(incoming: InboundRequest) -> str:
    """Encode the delivery receipt (XEP-0184) for a request."""
    return (
        f"<message to='{escape_attribute(incoming.reply_address)}' id='{escape_attribute('receipt-' + incoming.stanza_id)}'>"
        f"<received xmlns='{RECEIPTS_NAMESPACE}' id='{escape_attribute(incoming.stanza_id)}'/></message>"
    )


def encode_notice(to: str, text: str, choices: Iterable[tuple[str, str]] = ()) -> str:
    """Encode a message that an agent sends to a person (a bare JID) without a request.

    It is marked as a reply, so that no agent replies to it. `choices` are the offered answers: pairs of value and label.
    """
    # If the first message has no chat state (XEP-0085), clients assume that the agent uses none, and send none.
    stanza_id = str(uuid4())
    return (
        f"<message to='{escape_attribute(to)}' type='chat' id='{stanza_id}'><body>{escape(text)}</body>"
        f"<active xmlns='{CHAT_STATES_NAMESPACE}'/>{response_elements(choices)}{ANSWER_MARKER_XML}"
        f"<origin-id xmlns='{ORIGIN_ID_NAMESPACE}' id='{stanza_id}'/></message>"
    )
