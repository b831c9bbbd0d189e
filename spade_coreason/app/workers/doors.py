"""Doors across workers: any worker answers for any agent.

A request goes to the worker of the agent as a call (calls.py), and the events of the reply come back by its mailbox. The answer
itself is stored: a fetch gets it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from secrets import token_hex
from sys import getsizeof
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json

from ...concurrency import cancel_tasks
from ...contracts import AgentDefinition, AgentRequest
from ...doors import (
    NOT_STORED,
    TRACEPARENT,
    Caller,
    DoorAgents,
    DoorEvent,
    DoorReply,
)
from ...exceptions import StoreError
from ...storage import MAX_MESSAGE_BYTES, AgentRepository, Commit, Database, Leases, LeaseState, WorkerMailbox
from .calls import WorkerCalls
from .served_replies import Accepted, Reader, ServedAgentBackend, ServedReplies

log = logging.getLogger(__name__)

_HEADER_BYTES = 200
_RETRY_S = 0.5
_LATE_S = 1.0
"""The time in which the last events of a worker may come after its agent has another one."""
_END_S = 1.0
"""The time in which the last events are sent when the worker stops."""
_MAX_EARLY = 1_000
"""The most messages that wait until it is known from which worker they have to come."""
_PART, _WHOLE, _CLOSED = "+", ".", "x"
"""The kinds of messages: a part of events, the last or only part, and that a reply is not read any more."""
_MOVED = "the agent goes on in another worker"
_LOST = "the connection with the worker of the agent was interrupted"


class IncomingReply:
    """A reply that comes from another worker, and its origin (`ReplySource`)."""

    def __init__(self, remote: RemoteDoorAgents, agent: str, caller: Caller, request_id: UUID, *, waits: bool) -> None:
        self._remote = remote
        self.agent = agent
        self.key = token_hex(16)
        self.reply = DoorReply(self, caller, request_id, waits=waits)
        self.origin: Accepted | None = None
        """The worker from which it comes, once that is known."""
        self.early: list[tuple[str, str, int, str]] = []
        """The messages that came before."""
        self.parts: list[str] = []
        self.next_number = 0
        self.is_ended = False
        """True if its worker sends no more."""

    def take(self, kind: str, sender: str, number: int, text: str) -> None:
        """Take a message, whose number is that of the one before and one."""
        if self.origin is None:
            self.early.append((kind, sender, number, text))
            if len(self.early) > _MAX_EARLY:
                self.reply.interrupt(_LOST)
            return
        if sender != self.origin.mailbox or number < self.next_number:
            return  # of an earlier worker, or sent twice
        if number > self.next_number:
            self.reply.interrupt(_LOST)
            return
        self.next_number += 1
        self.parts.append(text)
        if kind == _PART:
            return
        text, self.parts = "".join(self.parts), []
        try:
            events = [DoorEvent(str(kind), dict(data)) for kind, data in from_json(text)]
        except (ValueError, TypeError):
            self.reply.interrupt(_LOST)
            return
        for event in events:
            self.is_ended = event.is_final and not (event.type == "request.parked" and self.reply.waits)
            self.reply.put(event, getsizeof(text) // len(events))

    def accept(self, origin: Accepted) -> None:
        """Take the messages of a worker from now on, and those that it has sent already."""
        self.origin = origin
        early, self.early = self.early, []
        for message in early:
            self.take(*message)

    def forget(self, reply: DoorReply) -> None:
        """Deliver no more events to the reply."""
        self._remote.forget(self)


class RemoteDoorAgents:
    """The agents behind doors that other workers serve, and the replies of agents here that are read in other workers.

    `configured` are the agents (bare JIDs) with the doors that they list. Without any there is nothing to do, and no mailbox.
    """

    def __init__(
        self,
        database: Database,
        leases: Leases,
        calls: WorkerCalls,
        agents: DoorAgents,
        configured: Mapping[str, Collection[str]],
    ) -> None:
        self.worker = leases.worker
        self.calls = calls
        self.mailbox = WorkerMailbox(database.backend.connections, self._take, lambda: self.interrupt(_LOST))
        self.database = database
        self._leases = leases
        self._agents = agents
        self._configured = {agent: names for agent, names in configured.items() if names}
        self._incoming: dict[str, IncomingReply] = {}
        self._outgoing: dict[str, tuple[Reader, DoorReply, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        """Set when a reply has ended, or may wait for a person."""
        self._versions: dict[str, int] = {}
        """The versions of the manifests that are known."""
        self._manifests: dict[str, str] = {}
        """The manifests as they are stored, or about to be, as JSON."""
        self._unsaved: dict[str, str] = {}
        """The manifests of agents here that are not stored yet."""
        self._saving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to exchange replies with other workers."""
        if self._configured:
            self.mailbox.start()

    async def drain(self, timeout_s: float) -> None:
        """Wait until the replies of other workers are read, but for those that wait for a person. End the rest after a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(not incoming.reply.is_parked for incoming in self._incoming.values()):
                    self._changed.clear()
                    await self._changed.wait()
        self.interrupt("the platform stops, and goes on after its next start")

    async def close(self) -> None:
        """Send the last events, and end."""
        tasks = [task for _, _, task in self._outgoing.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        await cancel_tasks(self._saving, *tasks)
        await self.mailbox.close()

    # What is known of the agents of other workers

    def publish(self, agent: str, manifest: AgentDefinition) -> None:
        """Let the other workers know the manifest of an agent (a bare JID) that this one serves."""
        text = manifest.model_dump_json()
        if agent in self._configured and self._manifests.get(agent) != text:
            self._manifests[agent] = self._unsaved[agent] = text
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save_manifests())

    async def _save_manifests(self) -> None:
        while self._unsaved:
            unsaved, self._unsaved = self._unsaved, {}
            try:
                await self._leases.save_manifests(unsaved)
            except StoreError as error:
                log.debug("the manifests of agents cannot be stored yet: %s", error)
                self._unsaved = unsaved | self._unsaved
                await asyncio.sleep(_RETRY_S)

    async def note(self, state: LeaseState) -> None:
        """Take the leases as they are now: who serves what, and which manifests have changed."""
        for incoming in list(self._incoming.values()):
            lease, origin = state.leases.get(incoming.agent), incoming.origin
            if origin is not None and (lease is None or lease.worker != origin.worker):
                asyncio.get_running_loop().call_later(_LATE_S, incoming.reply.interrupt, _MOVED)
        alive = {worker.id for worker in state.workers}
        for reader, reply, _ in list(self._outgoing.values()):
            if reader.worker not in alive:
                reply.close()
        changed = [
            agent
            for agent, lease in state.leases.items()
            if agent in self._configured and lease.manifest_version != self._versions.get(agent, 0)
        ]
        if not changed:
            return
        for agent, (version, text) in (await self._leases.load_manifests(changed)).items():
            self._versions[agent] = version
            if self._agents.find_local(agent) is None:
                self._show(agent, text)

    def _show(self, agent: str, text: str) -> None:
        try:
            manifest = AgentDefinition.model_validate_json(text)
        except ValueError:
            log.warning("%s: its manifest was stored by another version; this worker shows an older one", agent)
            return
        self._manifests[agent] = text
        self._agents.add_backend(agent, RemoteAgentBackend(self, agent), manifest, self._configured[agent])

    # The side of the worker that reads

    async def expect(self, agent: str, caller: Caller, request_id: UUID, *, waits: bool) -> tuple[IncomingReply, Reader]:
        """Return a reply that is about to come, and where it is read. Raise ConnectionError if nothing can come."""
        await self.mailbox.wait_until_open()
        incoming = IncomingReply(self, agent, caller, request_id, waits=waits)
        self._incoming[incoming.key] = incoming
        return incoming, Reader(self.worker, self.mailbox.address, incoming.key)

    def forget(self, incoming: IncomingReply) -> None:
        """Read a reply no more, and tell the worker that sends it."""
        if self._incoming.pop(incoming.key, None) is None:
            return
        self._changed.set()
        if incoming.origin is not None and not incoming.is_ended:
            self._post(incoming.origin.mailbox, _CLOSED, incoming.key, 0, "")

    def interrupt(self, reason: str) -> None:
        """End all replies that come from other workers."""
        for incoming in list(self._incoming.values()):
            incoming.reply.interrupt(reason)

    def _take(self, message: str) -> None:
        try:
            self._read(message)
        except ValueError as error:
            log.debug("a message of another worker cannot be read: %s", error)

    def _read(self, message: str) -> None:
        kind, sender, key, number, text = message.split(" ", 4)
        if kind == _CLOSED:
            if (outgoing := self._outgoing.get(key)) is not None:
                outgoing[1].close()
        elif (incoming := self._incoming.get(key)) is not None:
            incoming.take(kind, sender, int(number), text)
            self._changed.set()
        else:
            self._post(sender, _CLOSED, key, 0, "")

    def _post(self, mailbox: str, kind: str, key: str, number: int, text: str) -> None:
        self.mailbox.post(mailbox, f"{kind} {self.mailbox.address} {key} {number} {text}")

    # The side of the worker that serves the agent

    def find_running(self, agent: str) -> ServedAgentBackend | None:
        """Return the backend of an agent that runs here, as other workers ask it."""
        backend = self._agents.find_local(agent)
        if backend is None or not backend.is_running:
            return None
        return ServedAgentBackend(backend, ServedReplies(backend, self.deliver))

    def deliver(self, reader: Reader, reply: DoorReply, is_new: bool | None) -> Accepted:
        """Send the events of a reply to its reader, until its end. `is_new` is that of `Accepted`."""
        task = asyncio.create_task(self._deliver(reader, reply))
        self._outgoing[reader.key] = reader, reply, task
        task.add_done_callback(lambda _: self._outgoing.pop(reader.key))
        return Accepted(self.worker, self.mailbox.address, is_new)

    async def _deliver(self, reader: Reader, reply: DoorReply) -> None:
        number = 0
        try:
            async for event in reply:
                events = [event, *reply.take_all()]
                parts = _split(to_json(events), MAX_MESSAGE_BYTES - _HEADER_BYTES)
                header = f"{self.mailbox.address} {reader.key}"
                messages = [f"{_PART} {header} {number + place} {part}" for place, part in enumerate(parts)]
                messages[-1] = _WHOLE + messages[-1].removeprefix(_PART)
                number += len(parts)
                await self.mailbox.send(reader.mailbox, messages)
        except Exception:
            log.exception("a reply cannot be sent to another worker")
        finally:
            reply.close()


class RemoteAgentBackend:
    """An agent (a bare JID) that another worker serves (`AgentBackend`). What asks it waits while no worker does."""

    is_open = True

    def __init__(self, remote: RemoteDoorAgents, agent: str) -> None:
        self._remote = remote
        self._agent = agent
        served = remote.calls.backend(agent)
        self.requests, self._replies = served.requests, served.replies

    async def is_paused(self) -> bool:
        return (await AgentRepository(self._remote.database, self._agent).load_agent()).is_paused

    async def ask(
        self, caller: Caller, request: AgentRequest, thread: str | None, metadata: Mapping[str, Any], *, waits: bool
    ) -> DoorReply:
        incoming, reader = await self._remote.expect(self._agent, caller, request.request_id, waits=waits)
        reply = incoming.reply
        try:
            accepted = await self._replies.ask(reader, caller, request, thread, dict(metadata), waits, TRACEPARENT.get())
        except StoreError as error:
            reply.stored = Commit.failed(error)
            reply.put(NOT_STORED)
        except BaseException:
            reply.close()
            raise
        else:
            reply.stored = None if accepted.is_new is None else Commit.completed(accepted.is_new)
            incoming.accept(accepted)
        return reply

    async def fetch(self, caller: Caller, request_id: UUID, *, waits: bool = False) -> DoorReply | None:
        incoming, reader = await self._remote.expect(self._agent, caller, request_id, waits=waits)
        accepted = None
        try:
            accepted = await self._replies.fetch(reader, caller, request_id, waits)
        finally:
            if accepted is None:
                incoming.reply.close()
        if accepted is None:
            return None
        incoming.accept(accepted)
        return incoming.reply


def _split(text: bytes, size: int) -> list[str]:
    """Split a text in UTF-8 into parts of at most so many bytes."""
    parts, begin = [], 0
    while begin < len(text):
        end = min(begin + size, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:  # in the middle of a character
            end -= 1
        parts.append(text[begin:end].decode())
        begin = end
    return parts
