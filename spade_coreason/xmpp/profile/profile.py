"""An agent as its contacts see it: identity, presence and roster, across all sessions of its connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...concurrency import Tasks, Timer
from ...domain.avatar import Avatar
from ...domain.texts.translation import translate
from ...runtime import AgentRuntime
from ..connection.connection import Connection
from ..timings import ConnectionTimings
from .adhoc import AdHocCommands
from .card import ProfileCard
from .disco import Discovery
from .presence import PresencePublisher
from .publish import publish
from .roster import Roster

log = logging.getLogger(__name__)

# An agent that is ready sooner does not send the presence "starting".
_STARTING_AFTER_S = 1.0


class AgentProfile:
    """The presence, the vCard and the replies to subscriptions of one agent, updated when `HostedAgent` changes its state.

    Nothing of this goes to the embedded server: almost any of these stanzas would end the session there.
    """

    def __init__(
        self,
        connection: Connection,
        runtime: AgentRuntime,
        avatar: Avatar | None,
        may_run_commands: Callable[[str], bool],
        timings: ConnectionTimings,
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._runner = runner = runtime.runner
        self._finder = runtime.parts.peers.finder
        access_requests = runtime.gateway.access_requests
        self._avatar = avatar
        self._agent_card = ProfileCard.from_manifest(runner.agent.manifest, avatar)
        # An error, for example at a picture, must not stop the agent.
        self._tasks = Tasks(f"{self._client.boundjid.bare}: cannot publish its profile")
        self._starting = Timer()
        self._is_published = False
        self._is_stopping = False
        access = access_requests.access
        self._adhoc = AdHocCommands(connection, runner, may_run_commands, is_silent=access.is_silent)
        discovery = self._discovery = Discovery(self._client, self._agent_card, access.is_allowed, self._adhoc)
        concurrency = runner.policy.limits.concurrency
        options = runtime.parts.peer_options
        directory = options.platform if options.is_directory else None
        self.presence = PresencePublisher(
            self._client,
            discovery.build_caps,
            lambda: runner.mailboxes.busy_count,
            concurrency,
            lambda: runner.control.is_paused,
            lambda: runner.repository.database.writes.is_failing,
            get_list_version=None if directory is None else lambda: directory.version,
            interval_s=timings.presence_interval_s,
        )
        runner.control.pause_changed.subscribe(self.presence.update_now)
        if directory is not None:
            directory.changed.subscribe(self.presence.on_activity)
        self._finder.watched.subscribe(self._watch)
        runtime.parts.manifest_changed.subscribe(self._on_manifest_changed)
        self._roster: Roster | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._access_requests = access_requests

    def _introduction(self) -> str:
        text = self._agent_card.introduction
        if not self._runner.policy.rules.commands:
            return text
        commands = translate("/help lists the commands.")
        hint = translate("If your client shows its own help instead, write a space before the slash.")
        return f"{text}\n{commands} {hint}"

    async def prepare_session(self) -> None:
        """Prepare a session that is connected and not ready yet: load the roster, and announce the start if it takes long."""
        if not self._client.is_full_server:
            return
        if self._roster is None:
            self._roster = Roster(
                self._connection,
                self._access_requests,
                self._runner.repository,
                self._introduction,
                self._tasks.start,
                self._finder.is_directory,
            )
        contacts = await self._roster.revoke_subscriptions()
        self._starting.start(_STARTING_AFTER_S, self.presence.send_starting, contacts)

    def announce(self) -> None:
        """Send the presence and publish the profile when the agent is ready."""
        self._starting.cancel()
        if not self._client.is_full_server:
            self._client.send_presence()
            self._client.get_roster()
            return
        self.presence.announce()
        if not self._is_published:
            self._tasks.start(self._publish())

    def announce_new_session(self, prepare: Callable[[], Awaitable[None]], on_announced: Callable[[], None]) -> None:
        """Prepare a new session, about which the server knows nothing, and announce the agent. Then call `on_announced`.

        An earlier call that is not at its end is given up. If the connection is lost before its end, nothing is announced.
        """
        if self._announcing is not None:
            self._announcing.cancel()
        self._announcing = self._tasks.start(self._announce_new_session(prepare, on_announced))

    def _on_manifest_changed(self) -> None:
        """Show the new manifest of the agent: in its profile, if that is published, and in its presence."""
        self._agent_card = self._discovery.agent_card = ProfileCard.from_manifest(self._runner.agent.manifest, self._avatar)
        if self._is_published:
            self.presence.update_now()
            self._tasks.start(self._publish())

    def _watch(self, directory: str) -> None:
        """Subscribe to the presence of a directory, which shows changes of its list."""
        if self._roster is not None:
            self._roster.watch(directory)

    def announce_stopping(self) -> None:
        """Announce that the agent accepts no new requests. `announce_stopped` follows after its running turns."""
        if self._connection.state != "online":
            self.presence.stop()
        elif self._client.is_full_server and self._runner.mailboxes.busy_count:
            self.presence.send_stopping()
            self._is_stopping = True
        else:
            self.presence.send_unavailable()

    def announce_stopped(self) -> None:
        """Announce that the agent is offline, if `announce_stopping` has not done so."""
        if self._is_stopping and self._connection.state == "online":
            self.presence.send_unavailable()
        self._is_stopping = False

    async def close(self) -> None:
        """Cancel the timers and tasks of the profile."""
        self._starting.cancel()
        self.presence.stop()
        await self._adhoc.close()
        await self._tasks.cancel()

    async def _announce_new_session(self, prepare: Callable[[], Awaitable[None]], on_announced: Callable[[], None]) -> None:
        try:
            await prepare()
            if self._connection.state == "online":
                self.announce()
                on_announced()
        except Exception:
            log.exception(
                "%s: cannot prepare its new session: until the next one its contacts may see it as offline,"
                " and the messages that it missed are not read; restart the platform",
                self._client.boundjid.bare,
            )

    async def _publish(self) -> None:
        has_vcard = await publish(self._client, self._agent_card, self._runner.policy.limits.stanza_bytes)
        self._is_published = True
        if has_vcard:
            self.presence.photo_hash = self._agent_card.avatar.hash
            if self._connection.state == "online":
                self.presence.update_now()
