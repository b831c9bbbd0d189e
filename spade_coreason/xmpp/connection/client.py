"""slixmpp's client as we need it: our TLS and stream management, and no word before we are ready.

SPADE is not needed for it, and takes longer to import than all the rest of a program that asks one question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp import JID, ClientXMPP
from slixmpp.exceptions import IqError, IqTimeout

from ..timings import ConnectionTimings
from .endpoint import ServerEndpoint
from .stream_management import DurableStreamManagement
from .stream_parser import StreamReader


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Unknown stanza interface")


_REGISTRATION_TIMEOUT_S = 10.0
_NOT_WELL_FORMED = (  # RFC 6120, 4.9.3.13
    "<stream:error><not-well-formed xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error></stream:stream>"
)


class XMPPClient(ClientXMPP):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's client, with our TLS and stream management, and presence only when we are ready."""

    def __init__(self, jid: str, password: str, endpoint: ServerEndpoint, register: bool, timings: ConnectionTimings) -> None:
        # slixmpp compares every stanza, acknowledgements too, with the queries that are open, and warns that they have no
        # sender: by the root logger, which takes the same filter once only.
        logging.getLogger().addFilter(_is_worth_logging)
        super().__init__(JID(jid), password)
        self.registration_problem = "the server takes no registrations" if register else ""
        """Why there is no account although one was to be registered, as far as is known."""
        self.last_received_at = 0.0
        """When the server sent something last, by the clock of the event loop."""
        self.raw_handlers: dict[str, Callable[[Element], None]] = {}
        """Who gets the elements with a tag as they came in, instead of slixmpp's own handlers."""
        self.ssl_context = endpoint.context
        self.enable_direct_tls = False  # else the first attempt is one that a STARTTLS port cannot answer
        self.register_plugin("xep_0199")  # answers pings; its own remedy for a lost connection would connect beside ours
        if register:
            self.register_plugin("xep_0077")
            self.add_event_handler("register", self.register)
        self.register_plugin("xep_0198", {"timings": timings})
        self.stream_management: DurableStreamManagement = self.plugin["xep_0198"]
        """Stream management (XEP-0198)."""
        self.roster.auto_authorize = None  # else everybody may subscribe
        self.roster.auto_subscribe = False

    async def register(self, form: Any) -> None:
        """Makes the account (XEP-0077, 3.1), where the server offers it; whatever comes of it, the login is tried."""
        self.registration_problem = ""
        request = self.Iq()
        request["type"] = "set"
        request["register"]["username"] = self.boundjid.user
        request["register"]["password"] = self.password
        try:
            await request.send(timeout=_REGISTRATION_TIMEOUT_S)
        except IqTimeout:
            self.registration_problem = "the server did not answer its registration"
        except IqError as error:
            if error.condition != "conflict":  # then it is there already
                self.registration_problem = f"the server refuses to register it ({error.text or error.condition})"

    def init_parser(self) -> None:
        """A new stream begins."""
        self.parser = StreamReader()

    def data_received(self, data: bytes) -> None:
        """Takes what came in, stanza by stanza; the stream may end with it."""
        self.last_received_at = self.loop.time()
        reader = self.parser  # a stanza may begin a new stream, with another one
        if reader is None:
            return
        is_new = reader.header is None
        stanzas = reader.read(data)
        if is_new and reader.header is not None:
            self.start_stream_handler(reader.header)
        # What slixmpp builds of an element, to compare it with its handlers, costs more than everything that is read of it.
        slixmpps: Callable[[Element], None] = self._spawn_event
        for stanza in stanzas:
            self.raw_handlers.get(stanza.tag, slixmpps)(stanza)
        if reader.end_reason:
            if not reader.is_xml and self.transport is not None:
                self.send_raw(_NOT_WELL_FORMED)
            self.disconnect_reason = reader.end_reason
            self.abort()

    @property
    def is_full_server(self) -> bool:
        """Whether the server is one that people use: pyjabber ends a session at next to anything."""
        # Of pyjabber's stream features none is beyond the login; every other has one of these.
        return bool(self.features & {"rosterver", "stream_management", "preapproval"})
