"""An agent on an XMPP server: a SPADE agent whose messages go through our gateway."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp import JID, Message, Presence
from spade.agent import Agent
from spade.behaviour import FSMBehaviour
from spade.container import Container
from spade.message import Message as SpadeMessage
from spade.presence import PresenceManager

from ..concurrency import RateLimiter, Tasks
from ..contracts import ConversationState, NotificationState
from ..domain.avatar import Avatar
from ..domain.cards import build_card
from ..domain.jid import bare_jid
from ..domain.messages import Reaction, Retraction
from ..domain.rooms import RoomConfig
from ..exceptions import ConnectError, CoReasonError, StoreError
from ..operations.status import AgentCondition, AgentStatus
from ..runtime import BuildRuntime, OutboundMessage
from ..storage import Commit, CountsByState, StoredAgent, to_micros
from .archive import Archive
from .codec import CONFERENCE, MUC_USER, SHOW, SHOWS, Receiver, assigned_id
from .connection.connection import Connection
from .connection.endpoint import ServerEndpoint
from .connection.login import Login
from .connection.session_handler import SessionHandler
from .local_exchange import LocalExchange
from .muc.messages import RoomMessages
from .muc.room import is_ephemeral_owner
from .muc.rooms import INVITED_ROOMS_KEY, Rooms
from .offline import OfflineMessages
from .peer_features import PeerFeatures
from .profile.presence import read_list_version
from .profile.profile import AgentProfile
from .timings import DEFAULT_TIMINGS, ConnectionTimings
from .transport import (
    XmppTransport,
    mark_as_replay,
    parse_stanza,
    read_local,
    receive_archived_stanza,
    receive_stanza,
)
from .uploads import Uploads

log = logging.getLogger(__name__)

DEFAULT_RESOURCE = "agent"
_ARCHIVE_FIRST_S = 10.0
"""The longest wait of people's messages in a new session, until older ones are read from the archive."""
_ACKNOWLEDGED_KEY = "acknowledged"
"""The key of the stored times of the last session before a clean stop: its beginning, and its last acknowledgement."""
_PRESENCE_TIMEOUT_S = 2.0
_MAX_OTHER_STANZAS_PER_MINUTE = 300  # presences and IQs of one sender
_MAX_CLAIMS = 1000  # messages that were offered to behaviours, claimed or not, and are not offered again from the archive


class NoTraces:
    """An empty trace store. SPADE's own stores the last 1,000 complete messages of every agent."""

    def reset(self) -> None:
        """Do nothing: the store is always empty."""

    def append(self, event: Any, category: str | None = None) -> None:
        """Discard an event."""

    def len(self) -> int:
        """Return 0."""
        return 0

    def all(self, limit: int | None = None) -> list[Any]:
        """Return an empty list."""
        return []

    def received(self, limit: int | None = None) -> list[Any]:
        """Return an empty list."""
        return []

    def filter(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return an empty list."""
        return []


def _remove_upload_directory() -> None:
    """Remove the directory for uploads that pyjabber, which SPADE imports, creates at its import and does not delete."""
    if (uploads := sys.modules.get("pyjabber.plugins.xep_0363.upload_server")) is not None:
        with suppress(OSError):
            os.rmdir(uploads.TEMP_DIR)


def describe_start_error(error: BaseException) -> str:
    """Describe for the operator why an agent does not start."""
    return str(error) if isinstance(error, CoReasonError) else f"does not start: {type(error).__name__}: {error}"


def _prepare_container() -> None:
    """Reset SPADE's container for the running event loop, and restore the event loop policy.

    The container is a singleton that keeps its first event loop. It sets uvloop's policy for the whole process.
    """
    policy = asyncio.get_event_loop_policy()
    container = Container()
    if container.loop is not asyncio.get_running_loop():
        container.reset()
    # With uvloop's policy and a loop of another kind, Python 3.11 cannot start a child process.
    asyncio.set_event_loop_policy(policy)


class BehaviourOffers:
    """The messages that are offered to the SPADE behaviours of an agent."""

    def __init__(self, agent: HostedAgent, dropped: Counter[str]) -> None:
        self._agent = agent
        self._dropped = dropped
        self.claims: dict[str, bool] = {}
        """The ids of the last messages that came, each with True if a behaviour has claimed it."""

    def offer(self, stanza: Element) -> bool:
        """Offer a message. Return True if a behaviour claims it by its template."""
        agent = self._agent
        if not agent.behaviours or stanza.get("type") in ("error", "headline", "groupchat"):
            return False
        is_claimed = False
        try:
            node = Message(agent.connection.client, xml=stanza, recv=True)
            message = SpadeMessage.from_node(node)
            if message.thread is None and node["thread"]:
                message.thread = node["thread"]
            for behaviour in list(agent.behaviours):
                if behaviour.is_killed() or not behaviour.match(message):
                    continue
                is_claimed = is_claimed or behaviour.template is not None
                agent.submit(behaviour.enqueue(message))
        except Exception:  # SPADE's reader fails at a form field without a name; a template may fail at anything
            log.warning(
                "%s: cannot pass a message from %s to the SPADE behaviours", agent.jid, stanza.get("from"), exc_info=True
            )
        if is_claimed:
            self._dropped["claimed by a behaviour"] += 1
        return is_claimed

    def record(self, message_id: str, is_claimed: bool) -> None:
        """Remember whether a message was claimed."""
        self.claims[message_id] = is_claimed
        if len(self.claims) > _MAX_CLAIMS:
            del self.claims[next(iter(self.claims))]


class HostedAgent(Agent, SessionHandler):  # type: ignore[misc]  # SPADE comes without types
    """A `spade.agent.Agent` on an XMPP server. SPADE behaviours and templates can be added to it in the usual way.

    A message that matches the template of a behaviour goes to that behaviour, and not to `assist`. A behaviour without a
    template receives every message in addition to the agent. All other messages go through the gateway to `assist`.

    Create it inside the running event loop, then call `start`.

    Parameters:
        login: the agent's account. Without a resource the agent binds `agent`.
        endpoint: the server. Share one object between all agents.
        build: builds the runner and the gateway, given the network of this agent and its function that uploads files.
        stanza_bytes: the largest stanza of a reply or request, in bytes.
        avatar: the agent's picture. By default one is drawn from its name.
        rooms: the chat rooms to join.
        local_exchange: the agents of this process, with which it exchanges messages directly. By default there are none.
        timings: timeouts and intervals of the connection.
    """

    def __init__(
        self,
        login: Login,
        endpoint: ServerEndpoint,
        build: BuildRuntime,
        *,
        stanza_bytes: int,
        avatar: Avatar | None = None,
        rooms: Iterable[RoomConfig] = (),
        local_exchange: LocalExchange | None = None,
        timings: ConnectionTimings = DEFAULT_TIMINGS,
    ) -> None:
        _remove_upload_directory()
        _prepare_container()
        if not JID(login.jid).resource:
            # Always the same resource: after a kill -9 the server delivers unacknowledged messages to this resource only.
            login = replace(login, jid=f"{login.jid}/{DEFAULT_RESOURCE}")
        jid = login.jid
        super().__init__(jid, login.password, endpoint.port or 5222, endpoint.verify)
        # Otherwise SPADE agents of this process would deliver their messages directly, past the gateway.
        self.container.unregister(jid)
        self.traces = NoTraces()
        self._endpoint = endpoint
        self._own_jid = bare_jid(jid)
        self._stanza_limiter = RateLimiter(_MAX_OTHER_STANZAS_PER_MINUTE)
        self.connection = Connection(login, endpoint, self, timings=timings)
        self.connection.client.register_plugin("xep_0363")  # uploads of SPADE behaviours use it
        self.archive = Archive(self.connection, self._receive_archived, lambda: self._runner.release(), timings)
        self.offline_messages = OfflineMessages(self.connection)
        self._receiver = Receiver(self._own_jid)
        self.uploads = Uploads(self.connection.client, endpoint.https_trust)
        self._deletions = Tasks()
        self._is_stopping = False
        self._local_exchange = local_exchange
        self._is_announced = False
        """True once the agent has announced itself in the current session."""
        self._start_error: BaseException | None = None
        """The failure of the last attempt to start; None without one, and when the agent has started."""
        self.peer_features = PeerFeatures(self.connection.client, lambda jid: self._gateway.is_allowed(jid))
        transport = XmppTransport(
            jid, self.send, stanza_bytes, self.peer_features, lambda address: address in self.rooms.by_jid
        )
        self.runtime = build(transport.network, self.uploads.upload)
        self._runner, self._gateway = self.runtime.runner, self.runtime.gateway

        def on_left(owner: str) -> None:
            self._deletions.start(self.runtime.ephemeral_owners.erase(owner))

        self.rooms = Rooms(self.connection, rooms, self._gateway.access, on_left, self._runner.metrics)
        self.room_messages = RoomMessages(self.connection, self.rooms, self._gateway.access)
        self._offers = BehaviourOffers(self, self._gateway.dropped)
        self._profile = AgentProfile(self.connection, self.runtime, avatar, self._may_run_commands, timings)

    def send(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Send stanzas in order. They wait while the connection is lost, or while the agent is not in the room.

        Return what `SendQueue.send` returns.
        """
        if self._local_exchange is not None:
            return self._local_exchange.send(self, stanzas)
        return self.send_by_server(stanzas)

    def send_by_server(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Send stanzas as `send` does, all of them over the server."""
        return self.connection.send(self.rooms.route(stanzas) if self.rooms.by_jid else stanzas)

    @property
    def full_jid(self) -> str:
        """The JID with the resource that it has bound."""
        return str(self.connection.client.boundjid.full)

    @property
    def is_reachable(self) -> bool:
        """True if the agent is online and has received all that came while it was away."""
        return (
            self._is_announced
            and self.connection.state == "online"
            and not (self._is_stopping or self.archive.is_reading or self.offline_messages.is_fetching)
        )

    def receive_local(self, message: OutboundMessage, sender: str) -> Commit[bool] | None:
        """Receive a message of an agent of this process, whose full JID is `sender`, as one that comes over the server.

        SPADE's behaviours are offered its stanza.
        """
        if self._profile.presence.update_timer is None:
            self._profile.presence.on_activity()
        if self.behaviours and self._offers.offer(parse_stanza(message, sender)):
            return None
        return self._gateway.receive(read_local(message, self._receiver, sender))

    async def _async_start(self, auto_register: bool = True) -> None:
        """Connect, open the runner, and only then announce the agent. Raise ConnectError or LoginError if that fails.

        A failure closes everything. The agent can be started again then.
        """
        await self._hook_plugin_before_connection()
        if self.client is None:
            self.client: Any = self.connection.client
            self.presence = PresenceManager(agent=self, approve_all=False)
        try:
            await self._runner.repository.inbox.open()  # messages may come in before the runner is open
            stored = await self._runner.repository.load_agent()
            self._load(stored)
            await self.connection.open()
            await self._profile.prepare_session()
            await self._hook_plugin_after_connection()
            if self.rooms.may_join_any:
                await self.runtime.ephemeral_owners.erase_where(is_ephemeral_owner)
            save = partial(self._runner.repository.save_agent_value, INVITED_ROOMS_KEY)
            self.rooms.restore_invited(stored.get_value(INVITED_ROOMS_KEY) or [], save)
            await self._runner.open(stored)
            self._runner.send_unsent()  # before the turns that begin now send anything
            await self.runtime.open_channels()
            await self.setup()
            await self.offline_messages.begin()
        except BaseException as error:
            await self._profile.close()
            await self._runner.drain(0)
            await self.runtime.close_channels()
            await self._runner.close()
            if self.connection.state == "online":  # the next start would send again what is not acknowledged
                with suppress(StoreError):
                    await self._runner.repository.inbox.flush()  # replies leave when they are stored
                await self.connection.wait_until_acknowledged(2.0)
            await self.connection.close()
            self._start_error = error
            raise
        self._start_error = None
        if self._local_exchange is not None:
            self._local_exchange.add(self, self._own_jid)
        self._alive.set()
        for behaviour in self.behaviours:
            if not behaviour.is_running:
                behaviour.set_agent(self)
                if isinstance(behaviour, FSMBehaviour):
                    for state in behaviour.get_states().values():
                        state.set_agent(self)
                behaviour.start()
        if self.connection.state == "online":  # else `on_session` does it
            self._profile.announce()
            self.rooms.join_all()
            # Contacts may write as soon as they see the agent online. ejabberd would store such a message until the next login.
            await self.connection.wait_until_acknowledged(_PRESENCE_TIMEOUT_S)
            self._catch_up()
        self.runtime.announcement.start(stored)

    async def _async_stop(self, grace_s: float = 10.0) -> None:
        """Announce the stop, let running turns finish within `grace_s` seconds, and disconnect."""
        if self.client is None or self._start_error is not None:
            return  # a start that failed has closed everything
        self._is_stopping = True
        if self._local_exchange is not None:
            self._local_exchange.remove(self._own_jid)
        if not self._runner.mailboxes.busy_count:
            await self.rooms.close()
        self._profile.announce_stopping()
        for behaviour in self.behaviours:
            behaviour.kill()
        await self.runtime.announcement.close()
        await self._runner.drain(grace_s)
        await self.runtime.close_channels()
        if self.rooms.is_in_any:
            # Messages to rooms must leave before the agent is unavailable: then it is no longer in any room.
            await self.connection.wait_until_acknowledged(2.0)
            await self.rooms.wait_until_reflected(2.0)
        await self.rooms.close()
        await self._deletions.wait()
        acknowledged = self.connection.acknowledge_received()
        self._profile.announce_stopped()
        await self._profile.close()
        is_confirmed = await self.connection.wait_until_acknowledged(2.0) and self.connection.state == "online"
        if is_confirmed and acknowledged is not None:
            self._runner.repository.save_agent_value(_ACKNOWLEDGED_KEY, [to_micros(time) for time in acknowledged])
        await self.archive.close()
        await self.offline_messages.close()
        await self._runner.close()
        await self.peer_features.close()
        await self.connection.close()
        self._alive.clear()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Announce the stop, let running turns finish within `grace_s` seconds, and disconnect."""
        await self._async_stop(grace_s)

    async def abandon(self) -> None:
        """Cut the connection and cancel the turns, if `stop` has failed. Return when nothing of the agent runs any more."""
        self.connection.drop()
        await self._runner.abandon()

    def is_alive(self) -> bool:
        """Return True if the agent is started and its connection is online."""
        return bool(self._alive.is_set() and self.connection.state == "online")

    def takes_requests(self) -> bool:
        """Return True if the agent is online, and neither paused nor stopping."""
        return self.is_alive() and not self._is_stopping and not self._runner.control.is_paused

    def _load(self, stored: StoredAgent) -> None:
        """Take what the agent has to know before it is connected.

        The server delivers nothing again that came in the last session before a clean stop.
        """
        self._gateway.access_requests.load(stored)
        self.archive.restore(stored)
        if (times := stored.get_value(_ACKNOWLEDGED_KEY)) is not None:
            began_at, acknowledged_at = times
            self._receiver = self._receiver._replace(acknowledged=(began_at, acknowledged_at))

    def status(self, counts: Mapping[str, CountsByState] | StoreError) -> AgentStatus:
        """Return the agent's current status, with the counts of `count_stored`, or the reason why there are none."""
        connection, runner = self.connection, self._runner
        state: AgentCondition = connection.state
        connection_problem, start_problem = connection.last_problem or None, None
        if self._is_stopping:
            state = "stopping"
        elif isinstance(self._start_error, ConnectError):
            state, connection_problem = "connecting", str(self._start_error)
        elif self._start_error is not None:
            state, start_problem = "starting", f"{bare_jid(connection.jid)}: {describe_start_error(self._start_error)}"
        elif connection.last_problem:
            state = "reconnecting"
        elif state == "online" and not self._alive.is_set():
            state = "starting"
        failure = counts if isinstance(counts, StoreError) else runner.repository.database.writes.failure

        def count(name: str, states: type[StrEnum]) -> dict[str, int] | None:
            if isinstance(counts, StoreError):
                return None
            found = {state.value: counts[name].get((runner.jid, state.value), 0) for state in states}
            return {state: number for state, number in found.items() if number}

        stored = count("conversations", ConversationState)
        dropped = self._gateway.dropped + self.room_messages.dropped + Counter(budget=runner.metrics.refusals["budget"])
        return AgentStatus(
            jid=bare_jid(connection.jid),
            state=state,
            since=connection.online_at if connection.state == "online" else None,
            security=str(connection.security) if connection.state == "online" else None,
            security_problem=connection.security.problem if connection.security and connection.state == "online" else None,
            connection_problem=connection_problem,
            start_problem=start_problem,
            storage_problem=str(failure) if failure is not None else None,
            resumed=connection.resumption_count,
            sessions=connection.session_count,
            conversations=None if stored is None else stored.get("active", 0),
            conversations_stored=None if stored is None else sum(stored.values()),
            in_flight=runner.mailboxes.busy_count,
            waiting=runner.mailboxes.waiting_count,
            notifications=count("notifications", NotificationState) or {},
            is_paused=runner.control.is_paused,
            rooms={jid: str(room) for jid, room in self.rooms.states.items()},
            refused_by_rooms=dict(self.rooms.refused),
            dropped=dict(dropped),
            rejected=dict(connection.rejected),
            without_channel=dict(runner.control.recovery.without_channel),
            quotas=tuple(runner.control.quota_limit.usage()),
            recent=runner.metrics.snapshot(),
            card=build_card(
                bare_jid(connection.jid),
                self.runtime.agent.manifest,
                is_online=self.takes_requests(),
                turns_in_flight=runner.mailboxes.busy_count,
            ),
        )

    def is_visible_to(self, requester: str) -> bool:
        """Return True if the sender of an IQ may know that the agent is online.

        Servers, the agent's own account, its rooms and admitted senders may know it.
        """
        person = bare_jid(requester)
        is_known = "@" not in person or person == self.connection.client.boundjid.bare or person in self.rooms.states
        return is_known or self._gateway.access.is_allowed(person)

    def has_share(self, sender: str) -> bool:
        """Return True if a presence or an IQ is within the share of its sender. A room sends one for each occupant."""
        person = bare_jid(sender)
        is_own = "@" not in person or person == self.connection.client.boundjid.bare
        return is_own or person in self.rooms.states or self._stanza_limiter.allow(person)

    def _may_run_commands(self, jid: str) -> bool:
        """Return True if a sender may run ad-hoc commands.

        Occupants of a room may not: a command would act on the data of the room itself.
        """
        person = bare_jid(jid)
        is_eligible = person not in self.rooms.states and person != self.connection.client.boundjid.bare
        return is_eligible and self._gateway.access.is_allowed(person)

    def on_presence(self, presence: Presence) -> bool:
        for show in presence.xml.findall(SHOW):
            if show.text not in SHOWS:
                presence.xml.remove(show)  # SPADE's reader fails at it
        if self.rooms.handle_presence(presence.xml):
            return True  # otherwise slixmpp would store a roster for each room
        self.peer_features.handle_presence(presence)
        # Prosody acknowledges a request for a subscription with "unavailable", before the other side has approved it.
        jid, roster = presence["from"].bare, self.client.client_roster
        if (version := read_list_version(presence.xml)) or (version is not None and roster.has_jid(jid) and roster[jid]["to"]):
            self.runtime.parts.peers.finder.receive_presence(jid, version)
        return False

    def on_session(self, is_new: bool) -> None:
        if is_new:
            self._is_announced = False
            self.peer_features.clear()
            self.runtime.parts.peers.finder.forget_presences()
            self.archive.pause()
            self.offline_messages.stop()
            if self.connection.client.is_full_server:
                self._runner.hold(_ARCHIVE_FIRST_S)
        else:
            self.rooms.ping.check()
        # One that was cut before it was announced goes on without a presence: the server would store all messages for later.
        if self._alive.is_set() and not self._is_announced:
            self._profile.announce_new_session(self._prepare_session, self._catch_up)
            self.rooms.join_all()
            self.runtime.announcement.repeat()

    def on_message(self, stanza: Any) -> Commit[bool] | None:
        if self._profile.presence.update_timer is None:
            self._profile.presence.on_activity()
        may_concern_room = self.rooms.by_jid or stanza.find(MUC_USER) is not None or stanza.find(CONFERENCE) is not None
        is_replay = self.connection.client.stream_management.is_repeating
        if may_concern_room and self.room_messages.is_from_room(stanza):
            message = self.room_messages.read(stanza)
            if isinstance(message, Retraction | Reaction):
                return self._gateway.receive_reference(message.sender, message)
            if message is not None:
                return self._gateway.receive_request(mark_as_replay(message) if is_replay else message)
            return None
        node = self.offline_messages.read_node(stanza) if self.offline_messages.arriving is not None else ""
        stored = receive_stanza(self._gateway, self._receiver, stanza, is_replay=is_replay, is_archived=bool(node))
        if node:
            self.offline_messages.record_received(node, stored)
        self.archive.record_received(stanza, stored)
        return stored

    async def _prepare_session(self) -> None:
        await self._profile.prepare_session()
        await self.offline_messages.begin()

    def _catch_up(self) -> None:
        self._is_announced = True
        if self.client.is_full_server:
            self.offline_messages.start(lambda: self.archive.start(self._runner.repository))

    async def _receive_archived(self, stanza: Element) -> Commit[bool] | None:
        """Receive a message from the archive.

        Messages of a room are ignored: public ones are not in this archive, and the senders of private ones may have left.
        """
        if self.room_messages.is_from_room(stanza):
            return None
        is_claimed = self._offers.claims.get(assigned_id(stanza, self._own_jid))
        if is_claimed is None:
            is_claimed = self._offers.offer(stanza)
        return None if is_claimed else await receive_archived_stanza(self._gateway, self._receiver, stanza)

    def intercept(self, stanza: Element) -> bool:
        if self.archive.query_id and self.archive.collect(stanza):
            return True
        if not self.behaviours:
            return False
        is_claimed = self._offers.offer(stanza)
        if is_claimed:
            self.archive.record_received(stanza, None)
            if node := self.offline_messages.read_node(stanza):
                self.offline_messages.record_received(node, None)
        if message_id := assigned_id(stanza, self._own_jid):
            self._offers.record(message_id, is_claimed)
        return is_claimed
