"""Who sees an agent: subscriptions answered by its access policy, and a word of introduction for each new person."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp import Presence
from slixmpp.exceptions import XMPPError

from ...codec import ANSWER_MARKER, encode_notice
from ...domain.access import AccessPolicy
from ...domain.jid import bare_jid
from ...exceptions import StoreError
from ...runtime import AccessRequests
from ...storage import AgentRepository
from ..connection.connection import Connection

log = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine in a task that has an owner."""

INTRODUCED_VARIABLE = "spade_coreason.introduced"
"""The variable of a person to whom the agent has introduced itself."""

_ROSTER_TIMEOUT_S = 5.0
_DISCO_TIMEOUT_S = 5.0
# So long may the presence of a new contact take; a person may have to be asked first, and should not wait.
_PRESENCE_TIMEOUT_S = 1.0


class Roster:
    """Answers who wants to see the presence of an agent. `access` says who may; `introduction` is what the new ones hear."""

    def __init__(
        self,
        connection: Connection,
        access: AccessPolicy,
        access_requests: AccessRequests,
        repository: AgentRepository,
        introduction: str,
        spawn: Spawn,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._access = access
        self._access_requests = access_requests
        self._repository = repository
        self._introduction = introduction
        self._spawn = spawn
        self._pending_introductions: dict[str, asyncio.Future[str]] = {}
        self._undecided: set[str] = set()
        access_requests.on_decided = self._on_decided
        self._client.add_event_handler("roster_update", self._on_roster_update)
        self._client.add_event_handler("presence_subscribe", self._on_subscribe)
        self._client.add_event_handler("presence_available", self._on_available)
        self._client.add_filter("out", _add_marker)

    async def revoke_subscriptions(self) -> list[str]:
        """Ends the subscriptions of those who are not admitted any more; gives those who see the presence (bare JIDs)."""
        try:
            await self._client.get_roster(timeout=_ROSTER_TIMEOUT_S)
        except XMPPError as error:
            log.info("%s: has no roster (%s)", self._client.boundjid.bare, error.condition)
        roster = self._client.client_roster
        seeing = [jid for jid in list(roster.keys()) if roster[jid]["from"]]
        for jid in seeing:
            if not self._access.is_allowed(jid):
                log.info("%s: %s does not see it any more (access.allow)", self._client.boundjid.bare, jid)
                self._client.send_presence(pto=jid, ptype="unsubscribed")
        return [jid for jid in seeing if self._access.is_allowed(jid)]

    def _on_subscribe(self, presence: Any) -> None:
        person = presence["from"].bare
        if self._access.is_allowed(person):
            is_person = bool(presence["from"].user) and presence.xml.find(ANSWER_MARKER) is None
            self._accept_subscription(person, is_person)
        elif self._access_requests.ask_operators(person):
            self._undecided.add(person)  # who is not answered yet sees nothing; at the next login the server asks again
        else:
            self._client.send_presence(pto=person, ptype="unsubscribed")

    def _accept_subscription(self, person: str, is_person: bool) -> None:
        item = self._client.client_roster[person]
        is_new = not item["from"]
        self._client.send_presence(pto=person, ptype="subscribed")
        if not item["to"] and not item["pending_out"]:
            self._client.send_presence(pto=person, ptype="subscribe")
        # Of a bare domain it is a server; with the marker, another agent of ours.
        if is_new and is_person and person not in self._pending_introductions:
            self._pending_introductions[person] = asyncio.get_running_loop().create_future()
            self._spawn(self._introduce(person))

    def _on_decided(self, person: str, is_admitted: bool) -> None:
        """What an operator has said about somebody."""
        is_asking = person in self._undecided
        self._undecided.discard(person)
        if not is_admitted and not self._access.is_allowed(person):
            self._client.send_presence(pto=person, ptype="unsubscribed")
        elif is_admitted and is_asking:
            self._accept_subscription(person, is_person=True)

    def _on_roster_update(self, iq: Any) -> None:
        """Keeps who is in the roster. slixmpp's own has everybody in it who ever sent a presence."""
        # Anybody may send what looks like a push (RFC 6121, 2.1.6); the answer to our own question slixmpp has checked.
        if iq["type"] == "set" and iq["from"].bare not in ("", self._client.boundjid.bare):
            return
        for jid, item in iq["roster"]["items"].items():
            (self._access.contacts.discard if item["subscription"] == "remove" else self._access.contacts.add)(
                bare_jid(str(jid))
            )

    def _on_available(self, presence: Any) -> None:
        seen = self._pending_introductions.get(presence["from"].bare)
        if seen is not None and not seen.done():
            seen.set_result(presence["from"].full)

    # Introducing itself

    async def _introduce(self, person: str) -> None:
        try:
            if INTRODUCED_VARIABLE in await self._repository.load_variables("person", person) or await self._is_bot(person):
                return
            await self._repository.save_variable("person", person, INTRODUCED_VARIABLE, "true")
            self._connection.send([encode_notice(person, self._introduction)])
        except StoreError as error:
            log.error("%s: does not introduce itself to %s: %s", self._client.boundjid.bare, person, error)
        finally:
            del self._pending_introductions[person]

    async def _is_bot(self, person: str) -> bool:
        """Whether the client of `person`, as soon as it shows itself, says that nobody sits before it."""
        try:
            async with asyncio.timeout(_PRESENCE_TIMEOUT_S):
                client = await self._pending_introductions[person]
            info = await self._client.plugin["xep_0030"].get_info(jid=client, timeout=_DISCO_TIMEOUT_S)
        except (TimeoutError, XMPPError):
            return False
        return any(kind == "bot" for _, kind, *_ in info["disco_info"]["identities"])


def _add_marker(stanza: Any) -> Any:
    """Other agents of ours are to know at once that no person asks, also when a SPADE behaviour subscribes."""
    if isinstance(stanza, Presence) and stanza["type"] == "subscribe" and stanza.xml.find(ANSWER_MARKER) is None:
        stanza.xml.append(Element(ANSWER_MARKER))
    return stanza
