"""Finding agents: those of this platform, and those that the directory agents of other platforms list."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import NAMESPACE_URL, UUID, uuid5

from ...contracts import AgentDefinition
from ...domain.cards import AgentCard, apply_state, build_card, compute_cards_version, find_cards, load_cards
from ...domain.jid import bare_jid
from ...exceptions import PeerError, PeerFailedError, PeerRefusedError, PeerTimeoutError, PeerUnavailableError
from ..event_emitter import EventEmitter
from .peer_answers import PeerAnswer

if TYPE_CHECKING:
    from ...domain.access import AccessPolicy
    from ..access.access_requests import AccessRequests

log = logging.getLogger(__name__)

STATE_INTERVAL_S = 5.0
"""The shortest interval between two requests to the same directory."""
UNSEEN_LIST_AGE_S = 60.0
"""The age up to which a list is used if its directory does not answer and its presence was never seen."""
OFFLINE_S = 60.0
"""The time in which a directory is not asked after its presence has shown that it is offline."""

AskDirectory: TypeAlias = Callable[[str, Mapping[str, Any], float], Awaitable[PeerAnswer]]
"""A function that sends a payload to a directory (a bare JID), and returns the answer within a time in seconds."""


@dataclass(frozen=True, slots=True)
class _Member:
    """An agent of the platform."""

    card: AgentCard
    access_requests: AccessRequests
    is_online: Callable[[], bool]
    count_turns: Callable[[], int]

    def is_visible_to(self, jid: str) -> bool:
        return self.card.jid != bare_jid(jid) and self.access_requests.access.is_allowed(jid)

    @property
    def current_card(self) -> AgentCard:
        return replace(self.card, is_online=self.is_online(), turns_in_flight=self.count_turns())


class PlatformDirectory:
    """The agents of one platform, with their cards, their access rules and their state."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._elsewhere: Mapping[str, tuple[AgentCard, AccessPolicy]] = {}
        """The cards and rules of the agents that other workers serve."""
        self._salt = secrets.token_hex(16)
        self._version = ""
        self.changed: EventEmitter[[]] = EventEmitter()
        """Emitted when an agent is added, has another manifest, or other people may talk to it."""

    def add(
        self,
        jid: str,
        manifest: AgentDefinition,
        access_requests: AccessRequests,
        is_online: Callable[[], bool],
        count_turns: Callable[[], int],
    ) -> None:
        """Add the agent with this bare JID. `is_online` returns True while it takes requests."""
        self._members[jid] = _Member(build_card(jid, manifest), access_requests, is_online, count_turns)
        access_requests.decided.subscribe(lambda person, is_admitted: self._on_changed())
        access_requests.contacts_changed.subscribe(self._on_changed)
        self._on_changed()

    def remove(self, jid: str) -> None:
        """Remove an agent, if it is listed."""
        if self._members.pop(jid, None) is not None:
            self._on_changed()

    def update(self, jid: str, manifest: AgentDefinition) -> None:
        """Replace the card of an agent whose manifest has changed. Agents that are not listed are left out."""
        if (member := self._members.get(jid)) is not None:
            self._members[jid] = replace(member, card=build_card(jid, manifest))
            self._on_changed()

    def list_for(self, jid: str) -> list[AgentCard]:
        """Return the cards of the agents to which `jid` may talk, without its own."""
        own, sender = self._members, bare_jid(jid)
        others = [
            card
            for agent, (card, access) in self._elsewhere.items()
            if agent not in own and agent != sender and access.is_allowed(jid)
        ]
        return [*(member.current_card for member in own.values() if member.is_visible_to(jid)), *others]

    def list_own(self) -> dict[str, tuple[AgentCard, frozenset[str]]]:
        """Return the agents of this process by bare JID, with their cards and the JIDs and domains that may talk to them.

        A card tells whether its agent is online, and not how many turns it has.
        """
        return {
            jid: (
                member.card if not member.is_online() else replace(member.card, is_online=True),
                member.access_requests.access.admitted,
            )
            for jid, member in self._members.items()
        }

    def set_elsewhere(self, others: Mapping[str, tuple[AgentCard, AccessPolicy]]) -> None:
        """Take the cards and rules of the agents that other workers serve, by bare JID, in place of those of before.

        Those of agents here are ignored.
        """
        before, self._elsewhere = self._describe_elsewhere(), others
        if self._describe_elsewhere() != before:
            self._on_changed()

    def _describe_elsewhere(self) -> list[tuple[AgentCard, list[str]]]:
        """Return what the version depends on."""
        return [
            (replace(card, is_online=False), sorted(access.admitted))
            for jid, (card, access) in self._elsewhere.items()
            if jid not in self._members
        ]

    @property
    def version(self) -> str:
        """A hash that changes with the cards and the access rules. It differs in each process and gives nothing away."""
        if not self._version:
            rules = [sorted(member.access_requests.access.admitted) for member in self._members.values()]
            cards = [member.card for member in self._members.values()]
            others = self._describe_elsewhere()
            self._version = compute_cards_version(
                [*cards, *(card for card, _ in others)], [*rules, *(admitted for _, admitted in others)], self._salt
            )
        return self._version

    def _on_changed(self) -> None:
        self._version = ""
        self.changed.emit()


class RemoteDirectory:
    """The directory of another platform, with the list that it sent last.

    The presence of a directory has the version of its list. While it shows the version of the list here, the cards are not
    sent again. The state of the agents is asked for again after `STATE_INTERVAL_S`.
    """

    def __init__(self, jid: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.jid = jid
        self._clock = clock
        self._lock = asyncio.Lock()
        self._cards: list[AgentCard] = []
        self._version = ""
        self._asked_at = 0.0
        self._received_at = 0.0
        self._shown_version = ""
        """The version in its presence; "" while it is offline or was not seen."""
        self._offline_until = 0.0
        self._must_ask = True
        """True until the directory has answered, and again when its presence has shown something else."""
        self._is_failing = False

    def receive_presence(self, version: str) -> None:
        """Receive the version in a presence of the directory; "" if it is offline."""
        self._shown_version = version
        self._offline_until = 0.0 if version else self._clock() + OFFLINE_S
        self._must_ask = version != self._version

    def forget_presence(self) -> None:
        """Forget the presence at the start of a session: the server sends that of a directory that is online again."""
        self._shown_version = ""
        self._offline_until = 0.0

    async def list_agents(self, ask: AskDirectory, timeout_s: float) -> list[AgentCard]:
        """Return the agents that the directory lists, from its last answer if that is still valid. Raise PeerError."""
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._lock.acquire()  # several turns at once ask only once
        except TimeoutError:
            raise PeerTimeoutError(self.jid, timeout_s) from None
        try:
            if not self._is_current():
                await self._refresh(ask, max(0.0, deadline - time.monotonic()))
            return self._cards
        finally:
            self._lock.release()

    def _is_current(self) -> bool:
        return not self._must_ask and self._clock() - self._asked_at < STATE_INTERVAL_S

    def _may_use_old_list(self) -> bool:
        """Return True if the cards are still valid although the directory does not answer."""
        if not self._version or self._must_ask:
            return False
        return self._shown_version == self._version or self._clock() - self._received_at < UNSEEN_LIST_AGE_S

    async def _refresh(self, ask: AskDirectory, timeout_s: float) -> None:
        try:
            if self._clock() < self._offline_until:
                # Servers store a message to an account that is offline, so that the request would wait for its time-out.
                raise PeerUnavailableError(self.jid, "is offline")
            answer = await ask(self.jid, {"known": self._version} if self._version else {}, timeout_s)
            self._read(answer)
        except PeerError as error:
            has_no_access = isinstance(error, PeerRefusedError) and error.retry_after_s is None
            if has_no_access or isinstance(error, PeerUnavailableError) or not self._may_use_old_list():
                self._cards, self._version, self._must_ask = [], "", True
                self._report(error, "its agents are not found")
                raise
            self._report(error, "its last list is used")
        else:
            self._received_at, self._must_ask, self._is_failing = self._clock(), False, False
        self._asked_at = self._clock()

    def _read(self, answer: PeerAnswer) -> None:
        data = answer.data[-1].get("data") if answer.data else None
        version = data.get("version") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(version, str) or not version:
            raise PeerFailedError(self.jid, "an answer that is not a list of agents; is it a directory?")
        if "agents" in data:
            self._cards, self._version = load_cards(data["agents"]), version
        elif version == self._version and isinstance(states := data.get("states"), list):
            by_jid = {state.get("jid"): state for state in states if isinstance(state, Mapping)}
            self._cards = [apply_state(card, by_jid.get(card.jid, {})) for card in self._cards]
        else:
            raise PeerFailedError(self.jid, "a list without agents")

    def _report(self, error: PeerError, consequence: str) -> None:
        """Log a failure of the directory, once until it answers again."""
        level = logging.DEBUG if self._is_failing else logging.WARNING
        self._is_failing = True
        log.log(level, "the directory %s; %s until it answers", error, consequence)


class AgentFinder:
    """The agents that one agent, `jid`, may ask: those of its platform, and those in the directories of others.

    Emits `watched` with the JID of a directory before it is first asked, so that its presence is subscribed to.
    """

    def __init__(
        self,
        jid: str,
        platform: PlatformDirectory,
        directories: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.platform = platform
        self.session_id: UUID = uuid5(NAMESPACE_URL, f"urn:spade-coreason:directory:{jid}")
        """The session of all requests to directories, so that each directory has one conversation with the agent."""
        self.watched: EventEmitter[[str]] = EventEmitter()
        self._jid = jid
        self._directories = {directory: RemoteDirectory(directory, clock) for directory in directories}
        self._watched: set[str] = set()

    def is_directory(self, jid: str) -> bool:
        """Return True if `jid` (a bare JID) is one of the directories of other platforms."""
        return jid in self._directories

    def receive_presence(self, jid: str, version: str) -> None:
        """Receive the version in a presence of a directory; "" if it is offline. Other senders are ignored."""
        if (directory := self._directories.get(jid)) is not None:
            directory.receive_presence(version)

    def forget_presences(self) -> None:
        """Forget the presences of the directories at the start of a session."""
        for directory in self._directories.values():
            directory.forget_presence()

    async def find(
        self,
        ask: AskDirectory,
        capability: str | None,
        text: str | None,
        accepts: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> list[AgentCard]:
        """Return the agents for which all criteria hold. If there is none and a directory failed, raise its PeerError."""
        for jid in self._directories:
            if jid not in self._watched:
                self._watched.add(jid)
                self.watched.emit(jid)
        lists, errors = await self._ask_all(ask, timeout_s)
        cards: dict[str, AgentCard] = {}
        for card in (card for listed in [self.platform.list_for(self._jid), *lists] for card in listed):
            if card.jid != self._jid:
                cards.setdefault(card.jid, card)  # no directory can take the place of an agent of this platform
        found = find_cards(cards.values(), capability=capability, text=text, accepts=accepts)
        if not found and errors:
            raise errors[0]
        return found

    async def _ask_all(self, ask: AskDirectory, timeout_s: float) -> tuple[Sequence[list[AgentCard]], Sequence[PeerError]]:
        """Ask the directories of other platforms at once. Return their lists, and the errors of the others."""
        directories = self._directories.values()
        results = await asyncio.gather(*(one.list_agents(ask, timeout_s) for one in directories), return_exceptions=True)
        lists, errors = [], []
        for result in results:
            if isinstance(result, PeerError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                lists.append(result)
        return lists, errors
