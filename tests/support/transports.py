"""Transports of runners without a network: their stanzas go to a function, as texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spade_coreason.runtime import AgentNetwork
from spade_coreason.xmpp.codec import RequestMessage
from spade_coreason.xmpp.transport import XmppTransport

STANZA_BYTES = 65_536


def make_transport(jid: str, send: Callable[[list[str]], object], stanza_bytes: int = STANZA_BYTES) -> XmppTransport:
    """Make the transport of an agent (a bare JID) that passes the texts of its stanzas to `send`."""
    return XmppTransport(jid, lambda messages: send([message.content for message in messages]), stanza_bytes)


def make_network(jid: str, send: Callable[[list[str]], object] = lambda stanzas: None) -> AgentNetwork:
    """Make the network of an agent (a bare JID) that passes the texts of its stanzas to `send`, by default nowhere."""
    return make_transport(jid, send).network


def request_stanza(to: str, request_json: dict[str, Any], **parts: Any) -> str:
    """Return the stanza of a `RequestMessage`."""
    return RequestMessage(to, request_json, **parts).content
