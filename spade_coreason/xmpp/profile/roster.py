"""Who sees an agent: subscriptions answered by its access policy, and a word of introduction for each new person."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp import Presence
from slixmpp.exceptions import XMPPError

from ...codec import MARKER, notice
from ...domain.access import Access
from ...domain.jid import bare
from ...exceptions import StoreError
from ...runtime import Admissions
from ...storage import AgentStore
from ..connection.connection import Connection

log = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine in a task that has an owner."""

INTRODUCED = "spade_coreason.introduced"
"""The variable of a person to whom the agent has introduced itself."""

_ROSTER_S = 5.0
_DISCO_S = 5.0
# So long may the presence of a new contact take; a person may have to be asked first, and should not wait.
_PRESENCE_S = 1.0


class Contacts:
    """Answers who wants to see the presence of an agent. `access` says who may; `introduction` is what the new ones hear."""

    def __init__(
        self,
        connection: Connection,
        access: Access,
        admissions: Admissions,
        store: AgentStore,
        introduction: str,
        spawn: Spawn,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._access = access
        self._admissions = admissions
        self._store = store
        self._introduction = introduction
        self._spawn = spawn
        self._new: dict[str, asyncio.Future[str]] = {}
        self._asking: set[str] = set()
        admissions.on_decided = self._decided
        self._client.add_event_handler("roster_update", self._roster)
        self._client.add_event_handler("presence_subscribe", self._subscribe)
        self._client.add_event_handler("presence_available", self._available)
        self._client.add_filter("out", _marked)

    async def sort_out(self) -> list[str]:
        """Ends the subscriptions of those who are not admitted any more; gives those who see the presence (bare JIDs)."""
        try:
            await self._client.get_roster(timeout=_ROSTER_S)
        except XMPPError as error:
            log.info("%s: has no roster (%s)", self._client.boundjid.bare, error.condition)
        roster = self._client.client_roster
        seeing = [jid for jid in list(roster.keys()) if roster[jid]["from"]]
        for jid in seeing:
            if not self._access.admits(jid):
                log.info("%s: %s does not see it any more (access.allow)", self._client.boundjid.bare, jid)
                self._client.send_presence(pto=jid, ptype="unsubscribed")
        return [jid for jid in seeing if self._access.admits(jid)]

    def _subscribe(self, presence: Any) -> None:
        person = presence["from"].bare
        if self._access.admits(person):
            is_person = bool(presence["from"].user) and presence.xml.find(MARKER) is None
            self._welcome(person, is_person)
        elif self._admissions.ask(person):
            self._asking.add(person)  # who is not answered yet sees nothing; at the next login the server asks again
        else:
            self._client.send_presence(pto=person, ptype="unsubscribed")

    def _welcome(self, person: str, is_person: bool) -> None:
        item = self._client.client_roster[person]
        is_new = not item["from"]
        self._client.send_presence(pto=person, ptype="subscribed")
        if not item["to"] and not item["pending_out"]:
            self._client.send_presence(pto=person, ptype="subscribe")
        # Of a bare domain it is a server; with the marker, another agent of ours.
        if is_new and is_person and person not in self._new:
            self._new[person] = asyncio.get_running_loop().create_future()
            self._spawn(self._introduce(person))

    def _decided(self, person: str, is_admitted: bool) -> None:
        """What an operator has said about somebody."""
        is_asking = person in self._asking
        self._asking.discard(person)
        if not is_admitted and not self._access.admits(person):
            self._client.send_presence(pto=person, ptype="unsubscribed")
        elif is_admitted and is_asking:
            self._welcome(person, is_person=True)

    def _roster(self, iq: Any) -> None:
        """Keeps who is in the roster. slixmpp's own has everybody in it who ever sent a presence."""
        # Anybody may send what looks like a push (RFC 6121, 2.1.6); the answer to our own question slixmpp has checked.
        if iq["type"] == "set" and iq["from"].bare not in ("", self._client.boundjid.bare):
            return
        for jid, item in iq["roster"]["items"].items():
            (self._access.contacts.discard if item["subscription"] == "remove" else self._access.contacts.add)(bare(str(jid)))

    def _available(self, presence: Any) -> None:
        seen = self._new.get(presence["from"].bare)
        if seen is not None and not seen.done():
            seen.set_result(presence["from"].full)

    # Introducing itself

    async def _introduce(self, person: str) -> None:
        try:
            if INTRODUCED in await self._store.variables("person", person) or await self._is_bot(person):
                return
            await self._store.save_variable("person", person, INTRODUCED, "true")
            self._connection.send([notice(person, self._introduction)])
        except StoreError as error:
            log.error("%s: does not introduce itself to %s: %s", self._client.boundjid.bare, person, error)
        finally:
            del self._new[person]

    async def _is_bot(self, person: str) -> bool:
        """Whether the client of `person`, as soon as it shows itself, says that nobody sits before it."""
        try:
            async with asyncio.timeout(_PRESENCE_S):
                client = await self._new[person]
            info = await self._client.plugin["xep_0030"].get_info(jid=client, timeout=_DISCO_S)
        except (TimeoutError, XMPPError):
            return False
        return any(kind == "bot" for _, kind, *_ in info["disco_info"]["identities"])


def _marked(stanza: Any) -> Any:
    """Other agents of ours are to know at once that no person asks, also when a SPADE behaviour subscribes."""
    if isinstance(stanza, Presence) and stanza["type"] == "subscribe" and stanza.xml.find(MARKER) is None:
        stanza.xml.append(Element(MARKER))
    return stanza
