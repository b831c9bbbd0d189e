"""The roster of an agent: its access policy decides on subscriptions, and it introduces itself to each new person."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp import Presence
from slixmpp.exceptions import XMPPError

from ...domain.callers import is_caller
from ...domain.jid import bare_jid
from ...domain.texts.translation import use_language
from ...exceptions import StoreError
from ...runtime import AccessRequests, OutboundMessage
from ...storage import INTRODUCED_VARIABLE, AgentRepository
from ..codec import REPLY_MARKER, encode_notice, read_language
from ..connection.connection import Connection

log = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""A function that runs a coroutine in a task that has an owner."""

_ROSTER_TIMEOUT_S = 5.0
_DISCO_TIMEOUT_S = 5.0
# The wait for the presence of a new contact. It is short: the person's client may ask first, and the introduction should
# not be late.
_PRESENCE_TIMEOUT_S = 1.0


class Roster:
    """The replies to subscription requests. `access` decides who may see the presence.

    New people get what `introduction` returns, in their language. Directories, for which `is_directory` returns True, are not:
    they need not see the presence of an agent that sees theirs.
    """

    def __init__(
        self,
        connection: Connection,
        access_requests: AccessRequests,
        repository: AgentRepository,
        introduction: Callable[[], str],
        spawn: Spawn,
        is_directory: Callable[[str], bool] = lambda jid: False,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._access = access_requests.access
        self._access_requests = access_requests
        self._repository = repository
        self._introduction = introduction
        self._spawn = spawn
        self._is_directory = is_directory
        self._pending_introductions: dict[str, asyncio.Future[str]] = {}
        self._undecided: dict[str, str | None] = {}
        access_requests.decided.subscribe(self._on_decided)
        self._client.add_event_handler("roster_update", self._on_roster_update)
        self._client.add_event_handler("presence_subscribe", self._on_subscribe)
        self._client.add_event_handler("presence_available", self._on_available)
        self._client.add_filter("out", _add_marker)

    def watch(self, jid: str) -> None:
        """Subscribe to the presence of another agent (a bare JID), unless the agent sees it already."""
        item = self._client.client_roster[jid]
        if not item["to"] and not item["pending_out"]:
            self._access_requests.note_own_contact(jid)
            self._client.send_presence(pto=jid, ptype="subscribe")

    async def revoke_subscriptions(self) -> list[str]:
        """End the subscriptions of contacts who are no longer admitted. Return the bare JIDs that still see the presence."""
        try:
            await self._client.get_roster(timeout=_ROSTER_TIMEOUT_S)
        except XMPPError as error:
            log.info("%s: the server sent no roster (%s)", self._client.boundjid.bare, error.condition)
        roster = self._client.client_roster
        subscribers = [jid for jid in list(roster.keys()) if roster[jid]["from"]]
        for jid in subscribers:
            if not self._access.is_allowed(jid):
                log.info(
                    "%s: removed the subscription of %s, whom access.allow no longer admits", self._client.boundjid.bare, jid
                )
                self._client.send_presence(pto=jid, ptype="unsubscribed")
        return [jid for jid in subscribers if self._access.is_allowed(jid)]

    def _on_subscribe(self, presence: Any) -> None:
        person = presence["from"].bare
        if self._access.is_allowed(person):
            is_person = bool(presence["from"].user) and presence.xml.find(REPLY_MARKER) is None
            self._accept_subscription(person, is_person, read_language(presence.xml))
        elif not self._is_directory(person) and self._access_requests.ask_operators(person):
            # No presence until then; at the next login the server sends the request again.
            self._undecided[person] = read_language(presence.xml)
        elif not self._access.is_silent:
            self._client.send_presence(pto=person, ptype="unsubscribed")

    def _accept_subscription(self, person: str, is_person: bool, language: str | None) -> None:
        item = self._client.client_roster[person]
        is_new = not item["from"]
        self._access_requests.note_own_contact(person)
        self._client.send_presence(pto=person, ptype="subscribed")
        if not item["to"] and not item["pending_out"]:
            self._client.send_presence(pto=person, ptype="subscribe")
        # A bare domain is a server, and a request with the marker comes from another agent of ours.
        if is_new and is_person and person not in self._pending_introductions:
            self._pending_introductions[person] = asyncio.get_running_loop().create_future()
            self._spawn(self._introduce(person, language))

    def _on_decided(self, person: str, is_admitted: bool) -> None:
        """Answer a subscription request after an operator's decision."""
        has_requested = person in self._undecided
        language = self._undecided.pop(person, None)
        if not is_admitted and not self._access.is_allowed(person):
            if self._access.is_silent and not self._client.client_roster[person]["from"]:
                return  # they never saw the presence
            self._client.send_presence(pto=person, ptype="unsubscribed")
        elif is_admitted and has_requested:
            self._accept_subscription(person, is_person=True, language=language)

    def _on_roster_update(self, iq: Any) -> None:
        """Store the contacts of the roster. slixmpp's own roster contains everyone who ever sent a presence."""
        # Anyone can send a forged roster push (RFC 6121, 2.1.6). slixmpp has checked the reply to our own request.
        if iq["type"] == "set" and iq["from"].bare not in ("", self._client.boundjid.bare):
            return
        roster = iq["roster"]
        kinds = {bare_jid(str(jid)): item["subscription"] for jid, item in roster["items"].items() if not is_caller(str(jid))}
        # An empty reply without a version says that the roster is as before (XEP-0237); slixmpp has added the element.
        is_unchanged = not kinds and roster["ver"] is None and "rosterver" in self._client.features
        removed = {jid for jid, kind in kinds.items() if kind == "remove"}
        is_whole_roster = iq["type"] == "result" and not is_unchanged
        self._access_requests.set_contacts(kinds.keys() - removed, removed, is_whole_roster=is_whole_roster)

    def _on_available(self, presence: Any) -> None:
        client = self._pending_introductions.get(presence["from"].bare)
        if client is not None and not client.done():
            client.set_result(presence["from"].full)

    # Introductions

    async def _introduce(self, person: str, language: str | None) -> None:
        try:
            if INTRODUCED_VARIABLE in await self._repository.load_variables("person", person) or await self._is_bot(person):
                return
            await self._repository.save_variable("person", person, INTRODUCED_VARIABLE, "true")
            with use_language(self._access_requests.languages.of_person(person, language)):
                introduction = self._introduction()
            self._connection.send([OutboundMessage(person, encode_notice(person, introduction))])
        except StoreError as error:
            log.error("%s: cannot introduce itself to %s: %s", self._client.boundjid.bare, person, error)
        finally:
            del self._pending_introductions[person]

    async def _is_bot(self, person: str) -> bool:
        """Return True if the client of `person` announces that it is a bot, once its presence has come."""
        try:
            async with asyncio.timeout(_PRESENCE_TIMEOUT_S):
                client = await self._pending_introductions[person]
            info = await self._client.plugin["xep_0030"].get_info(jid=client, timeout=_DISCO_TIMEOUT_S)
        except (TimeoutError, XMPPError):
            return False
        return any(kind == "bot" for _, kind, *_ in info["disco_info"]["identities"])


def _add_marker(stanza: Any) -> Any:
    """Mark a subscription request, so that other agents of ours know that no person sent it.

    Requests of SPADE behaviours are marked too.
    """
    if isinstance(stanza, Presence) and stanza["type"] == "subscribe" and stanza.xml.find(REPLY_MARKER) is None:
        stanza.xml.append(Element(REPLY_MARKER))
    return stanza
