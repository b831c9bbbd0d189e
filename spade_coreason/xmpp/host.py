"""An agent on an XMPP server: a SPADE agent whose messages go through our door."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp import JID, Message, Presence
from spade.agent import Agent
from spade.behaviour import FSMBehaviour
from spade.container import Container
from spade.message import Message as SpadeMessage
from spade.presence import PresenceManager

from ..codec import SHOW, SHOWS, archive_id
from ..domain.avatar import Avatar
from ..domain.jid import bare
from ..domain.messages import Incoming
from ..exceptions import StoreError
from ..runtime import AgentCondition, AgentStatus, Door, Recent, Runner
from ..storage import AgentStore
from .archive import Archive
from .connection.connection import Connection
from .connection.endpoint import Endpoint
from .muc.room import RoomPlan, is_visit
from .muc.rooms import REMEMBERED, Rooms
from .offline import OfflineMail
from .profile.peer_features import Abilities
from .profile.profile import Citizen
from .timings import USUAL, ConnectionTimings
from .uploads import Uploads

log = logging.getLogger(__name__)

DEFAULT_RESOURCE = "agent"
_PRESENCE_WITHIN_S = 2.0
_HEARD = 1000  # messages that behaviours had, claimed or not, and do not get again from the archive


class NoTraces:
    """SPADE keeps the last 1,000 whole messages of every agent; we keep none."""

    def reset(self) -> None:
        """Nothing to reset."""

    def append(self, event: Any, category: str | None = None) -> None:
        """Keeps nothing."""

    def len(self) -> int:
        """Always 0."""
        return 0

    def all(self, limit: int | None = None) -> list[Any]:
        """Nothing."""
        return []

    def received(self, limit: int | None = None) -> list[Any]:
        """Nothing."""
        return []

    def filter(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Nothing."""
        return []


def _remove_upload_directory() -> None:
    """Remove the directory for uploads that pyjabber, which SPADE imports, makes at its import and leaves behind."""
    if (uploads := sys.modules.get("pyjabber.plugins.xep_0363.upload_server")) is not None:
        with suppress(OSError):
            os.rmdir(uploads.TEMP_DIR)


def _prepare_container() -> None:
    """SPADE's container is a singleton that keeps its first event loop, and sets uvloop's policy for the whole process."""
    policy = asyncio.get_event_loop_policy()
    container = Container()
    if container.loop is not asyncio.get_running_loop():
        container.reset()
    # With uvloop's policy and a loop of another kind, Python 3.11 can start no child process.
    asyncio.set_event_loop_policy(policy)


class HostedAgent(Agent):  # type: ignore[misc]  # SPADE comes without types
    """A `spade.agent.Agent`: SPADE behaviours and templates can be added as to any other.

    A message that matches the template of a behaviour goes to that behaviour; a behaviour without a template hears every
    message beside the agent; everything else goes through the door to `assist`.
    """

    def __init__(
        self,
        jid: str,
        password: str,
        endpoint: Endpoint,
        *,
        register: bool = False,
        avatar: Avatar | None = None,
        rooms: Iterable[RoomPlan] = (),
        timings: ConnectionTimings = USUAL,
    ) -> None:
        _remove_upload_directory()
        _prepare_container()
        if not JID(jid).resource:
            # Always the same one: after a kill -9 the server has unacknowledged mail for this resource only.
            jid = f"{jid}/{DEFAULT_RESOURCE}"
        super().__init__(jid, password, endpoint.port or 5222, endpoint.verify)
        # SPADE agents of this process would hand us their messages past the door.
        self.container.unregister(jid)
        self.traces = NoTraces()
        self._endpoint = endpoint
        self._register = register
        self._avatar = avatar
        self._timings = timings
        self._citizen: Citizen | None = None
        self._door: Door | None = None
        self._runner: Runner | None = None
        self.connection = Connection(
            jid,
            password,
            endpoint,
            register=register,
            on_message=self._on_message,
            on_session=self._on_session,
            on_presence=self._on_presence,
            takes=self._take_elsewhere,
            is_there_for=self._is_there_for,
            timings=timings,
        )
        self.connection.client.register_plugin("xep_0363")  # what SPADE's behaviours upload goes through it
        self.archive = Archive(self.connection, self._recover, timings)
        self.offline_mail = OfflineMail(self.connection)
        self.uploads = Uploads(self.connection.client, endpoint.context)
        self.rooms = Rooms(self.connection, rooms, self._occupant_has_left)
        self._drops: set[asyncio.Task[None]] = set()
        self._heard: dict[str, bool] = {}
        self._is_stopping = False
        self.abilities = Abilities(self.connection.client, lambda jid: self._door is not None and self._door.admits(jid))

    def send(self, stanzas: list[str]) -> None:
        """Sends stanzas; while the connection is cut, or the agent not in the room, they wait."""
        self.connection.send(self.rooms.address(stanzas))

    def serve(self, runner: Runner, door: Door) -> None:
        """Says who answers; before `start`."""
        self._runner, self._door = runner, door
        self._citizen = Citizen(
            self.connection, runner, door.access, door.admissions, self._avatar, self._may_command, self._timings
        )
        self.rooms.access = door.access

    async def _async_start(self, auto_register: bool = True) -> None:
        """Connects, opens the runner, and only then announces the agent. ConnectError or LoginError if it cannot."""
        if self._runner is None or self._citizen is None or self._door is None:
            raise RuntimeError("serve(runner, door) comes before start()")
        await self._hook_plugin_before_connection()
        self.client = self.connection.client
        self.presence = PresenceManager(agent=self, approve_all=False)
        try:
            await self._door.admissions.load()
            await self.connection.open()
            await self._citizen.arrive()
            await self._hook_plugin_after_connection()
            if self.rooms.may_be:
                await self._runner.departures.forget_where(is_visit)
            await self._remember_rooms(self._runner.store)
            await self._runner.open(self.send, self.abilities)
            await self.setup()
        except BaseException:
            await self._citizen.close()
            await self._runner.drain(0)
            await self._runner.close()
            await self.connection.close()
            raise
        self._alive.set()
        for behaviour in self.behaviours:
            if not behaviour.is_running:
                behaviour.set_agent(self)
                if isinstance(behaviour, FSMBehaviour):
                    for state in behaviour.get_states().values():
                        state.set_agent(self)
                behaviour.start()
        self._runner.send_unsent()
        self._citizen.announce()
        self.rooms.enter()
        # Who hears that the agent is online may write to it at once; ejabberd would keep that for its next login.
        await self.connection.settle(_PRESENCE_WITHIN_S)
        self._catch_up()

    async def _async_stop(self, grace_s: float = 10.0) -> None:
        """Says goodbye, lets running turns finish within `grace_s`, and disconnects."""
        if self._runner is None or self._citizen is None or self.client is None:
            return
        self._is_stopping = True
        if not self._runner.turns_in_flight:
            await self.rooms.close()
        self._citizen.leave()
        for behaviour in self.behaviours:
            behaviour.kill()
        await self._runner.drain(grace_s)
        if self.rooms.is_in_any:
            await self.connection.settle(2.0)  # what was said there goes first: who is unavailable is in no room any more
        await self.rooms.close()
        await asyncio.gather(*self._drops, return_exceptions=True)
        self._citizen.gone()
        await self._citizen.close()
        await self.connection.settle(2.0)
        await self.archive.close()
        await self.offline_mail.close()
        await self._runner.close()
        await self.abilities.close()
        await self.connection.close()
        self._alive.clear()

    async def stop(self, grace_s: float = 10.0) -> None:
        """As `_async_stop`."""
        await self._async_stop(grace_s)

    def is_alive(self) -> bool:
        """Whether the agent is started and its connection stands."""
        return bool(self._alive.is_set() and self.connection.state == "online")

    async def _remember_rooms(self, store: AgentStore) -> None:
        def kept(done: asyncio.Future[bool]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                log.warning("%s: the rooms it was invited to are not stored: %s", self.jid, error)

        self.rooms.remember(
            await store.own(REMEMBERED) or [], lambda rooms: store.keep(REMEMBERED, rooms).add_done_callback(kept)
        )

    async def status(self) -> AgentStatus:
        """How the agent is at this moment."""
        connection, runner = self.connection, self._runner
        state: AgentCondition = connection.state
        if self._is_stopping:
            state = "stopping"
        elif connection.trouble:
            state = "reconnecting"
        elif state == "online" and not self._alive.is_set():
            state = "starting"
        active: int | None = 0
        kept: int | None = 0
        failure = None
        if runner is not None:
            failure = runner.store.failure
            try:
                active, kept = await runner.store.count_conversations()
            except StoreError as error:
                active, kept, failure = None, None, error
        return AgentStatus(
            jid=bare(connection.jid),
            state=state,
            since=connection.online_at if connection.state == "online" else None,
            why=connection.trouble or None,
            cannot_store=str(failure) if failure is not None else None,
            resumed=connection.resumptions,
            sessions=connection.sessions,
            conversations=active,
            conversations_kept=kept,
            in_flight=runner.turns_in_flight if runner is not None else 0,
            is_paused=runner is not None and runner.is_paused,
            rooms={jid: str(room) for jid, room in self.rooms.states.items()},
            recent=runner.activity.recent() if runner is not None else Recent(),
        )

    def _is_there_for(self, asker: str) -> bool:
        """Whether whoever asks (by IQ) may know that the agent is online: servers, its own account, its rooms, the admitted."""
        own = self.connection.client.boundjid.bare
        is_known = "@" not in bare(asker) or bare(asker) == own or bare(asker) in self.rooms.states
        return is_known or (self._door is not None and self._door.admits(asker))

    def _may_command(self, jid: str) -> bool:
        """Whether whoever is `jid` may run ad-hoc commands. No occupant of a room may: the room's own data would be theirs."""
        is_other = bare(jid) not in self.rooms.states and bare(jid) != self.connection.client.boundjid.bare
        return is_other and self._door is not None and self._door.admits(jid)

    def _on_presence(self, presence: Presence) -> bool:
        for show in presence.xml.findall(SHOW):
            if show.text not in SHOWS:
                presence.xml.remove(show)  # SPADE's reader fails at it
        if self.rooms.see(presence.xml):
            return True  # slixmpp would keep a roster of each room
        self.abilities.see(presence)
        return False

    def _occupant_has_left(self, owner: str) -> None:
        if self._runner is None:
            return
        task = asyncio.create_task(self._runner.departures.forget(owner))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    def _on_session(self, is_new: bool) -> None:
        if not is_new:
            self.rooms.watch.check()
            return
        self.abilities.forget()
        if self._alive.is_set() and self._citizen is not None:
            self._citizen.announce_again(self._catch_up)
            self.rooms.enter()

    def _on_message(self, stanza: Any) -> asyncio.Future[bool] | None:
        if self._door is None or self._citizen is None:
            return None
        self._citizen.noticed()
        if self.rooms.concerns(stanza):
            said = self.rooms.read(stanza)
            if isinstance(said, Incoming):
                return self._door.take(said)
            if said is not None:
                self._door.refer(said.sender, said)
            return None
        durable = self._door.deliver(stanza)
        self.archive.note(stanza, durable)
        self.offline_mail.note(durable)
        return durable

    def _catch_up(self) -> None:
        if self._runner is not None and self.client.is_full_server:
            self.archive.begin(self._runner.store)
            self.offline_mail.begin()

    async def _recover(self, stanza: Element) -> asyncio.Future[bool] | None:
        """Takes a message of the archive in. What is said in rooms is not there, and whoever is gone from one waits no more."""
        if self._door is None or self.rooms.concerns(stanza):
            return None
        is_claimed = self._heard.get(archive_id(stanza, bare(self.connection.jid)))
        if is_claimed is None:
            is_claimed = self._behaviours_take(stanza)
        return None if is_claimed else await self._door.recover(stanza)

    def _take_elsewhere(self, stanza: Element) -> bool:
        if self.archive.collects(stanza):
            return True
        if not self.behaviours:
            return False
        is_claimed = self._behaviours_take(stanza)
        if is_claimed:
            self.archive.note(stanza, None)
        if ident := archive_id(stanza, bare(self.connection.jid)):
            self._heard[ident] = is_claimed
            if len(self._heard) > _HEARD:
                del self._heard[next(iter(self._heard))]
        return is_claimed

    def _behaviours_take(self, stanza: Element) -> bool:
        """Gives a message to SPADE's behaviours; True where one claims it by its template."""
        if not self.behaviours or stanza.get("type") in ("error", "headline", "groupchat"):
            return False
        is_claimed = False
        try:
            node = Message(self.connection.client, xml=stanza, recv=True)
            message = SpadeMessage.from_node(node)
            if message.thread is None and node["thread"]:
                message.thread = node["thread"]
            for behaviour in list(self.behaviours):
                if behaviour.is_killed() or not behaviour.match(message):
                    continue
                is_claimed = is_claimed or behaviour.template is not None
                self.submit(behaviour.enqueue(message))
        except Exception:  # SPADE's reader fails at a form field without a name; a template may fail at anything
            log.warning("%s: the behaviours cannot read a message from %s", self.jid, stanza.get("from"), exc_info=True)
        if is_claimed and self._door is not None:
            self._door.dropped["claimed by a behaviour"] += 1
        return is_claimed
