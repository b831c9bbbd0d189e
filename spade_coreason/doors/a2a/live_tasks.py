"""Tasks in progress: one reader for the reply of each, however many follow it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

from a2a.types import a2a_pb2

from ...concurrency import Tasks
from ...domain.texts.error_chain import describe_error_chain
from ..agents import DoorAgent
from ..caller import Caller
from ..channel import DoorEvent, DoorReply
from ..unread import UnreadBytes
from .progress import ASKED_ANOTHER, INTERRUPTED, PAUSED, TaskProgress, Update, question_parts

log = logging.getLogger(__name__)

_CHECK_S = 1.0
_RETRY_S = 1.0


class Follower:
    """One who follows a task: `async for update in follower`. It ends if too much waits, and the client may subscribe again."""

    def __init__(self, key: str, on_close: Callable[[Follower], None]) -> None:
        self._on_close = on_close
        self._updates: deque[Update] = deque()
        self._unread = UnreadBytes(key)
        self._arrival = asyncio.Event()
        self._is_over = False

    def put(self, update: Update) -> None:
        """Add an update."""
        if not self._unread.add(update.ByteSize()):
            self._updates.clear()
            self._unread.size = 0
            self.end()
        if not self._is_over:
            self._updates.append(update)
            self._arrival.set()

    def end(self) -> None:
        """Add no more."""
        self._is_over = True
        self._arrival.set()

    def close(self) -> None:
        """Follow no longer."""
        self._on_close(self)

    async def __aiter__(self) -> AsyncIterator[Update]:
        while True:
            while self._updates:
                update = self._updates.popleft()
                self._unread.size -= update.ByteSize()  # what is written of it is counted
                yield update
            if self._is_over:
                return
            self._arrival.clear()
            await self._arrival.wait()


class LiveTask:
    """A task whose reply is read here, until it is over or the platform stops.

    `digest` is the hash of what it asks. `is_adopted` tells that an earlier run of the platform began it.
    """

    def __init__(self, agent: DoorAgent, caller: Caller, progress: TaskProgress, digest: bytes, *, is_adopted: bool) -> None:
        self.caller = caller
        self.progress = progress
        self.digest = digest
        self.is_over = False
        """True if no event follows."""
        self.request_id = UUID(progress.task_id)
        self._agent = agent
        self._is_adopted = is_adopted
        self._followers: list[Follower] = []
        self._changed = asyncio.Event()

    def follow(self) -> Follower:
        """Return the updates from now on; close it."""
        follower = Follower(self.caller.name, self._followers.remove)
        self._followers.append(follower)
        if self.is_over:
            follower.end()
        return follower

    async def wait_until_settled(self) -> None:
        """Wait until the task is over, or waits for an answer, or the platform stops."""
        while not (self.is_over or self.progress.is_settled or self.progress.waits_for_others):
            self._changed.clear()
            if not self._is_adopted:
                await self._changed.wait()
                continue
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                await self.check()

    async def check(self) -> None:
        """Look if an adopted task waits for an answer again: only the first reader of a reply is told."""
        is_running = not (self.is_over or self.progress.is_settled or self.progress.waits_for_others)
        if self._is_adopted and is_running and await self._agent.requests.find_state(self.caller, self.request_id) == "waiting":
            await self._park()

    def go_on(self, message: a2a_pb2.Message) -> None:
        """Note that a message has answered the question, and that the task goes on."""
        self.progress.add_message(message)
        self._publish([self.progress.set_status(a2a_pb2.TASK_STATE_WORKING)])

    def pause(self) -> None:
        """Note that it begins when a pause of the agent ends."""
        self._publish([self.progress.set_status(a2a_pb2.TASK_STATE_WORKING, [a2a_pb2.Part(text=PAUSED)])])

    def cancel(self) -> None:
        """Note that it was cancelled."""
        self._publish(self.progress.apply(DoorEvent("request.cancelled", {})))

    async def read(self, reply: DoorReply) -> bool:
        """Read a reply to its end. Return False if it does not come yet, which only an adopted task is told."""
        try:
            if reply.stored is not None:
                # The turn may run earlier. The sender waits for the commit too and wakes first, so it misses nothing.
                await reply.stored.wait()
            async for event in reply:
                if event.type == "request.refused" and self._is_adopted:
                    return False
                await self._take(event)
        finally:
            reply.close()
        return True

    async def _take(self, event: DoorEvent) -> None:
        if event.type == "request.parked":
            await self._park()
        elif event.type != "request.interrupted":
            self._publish(self.progress.apply(event))
        elif not self.progress.is_settled:
            self._publish([self.progress.set_status(a2a_pb2.TASK_STATE_WORKING, [a2a_pb2.Part(text=INTERRUPTED)])])

    async def adopt(self) -> None:
        """Read the reply of a request that an earlier run of the platform has accepted."""
        while (reply := await self._agent.backend.fetch(self.caller, self.request_id, waits=True)) is not None:
            if await self.read(reply):
                return
            await asyncio.sleep(_RETRY_S)  # the agent is about to start, or many ask at once

    async def _park(self) -> None:
        questions = await self._agent.find_questions(self.caller, self.request_id)
        if questions:
            self._publish([self.progress.set_status(a2a_pb2.TASK_STATE_INPUT_REQUIRED, question_parts(questions[0]))])
        elif await self._agent.waits_for_others(self.caller, self.request_id):
            self._publish([self.progress.set_status(a2a_pb2.TASK_STATE_WORKING, [a2a_pb2.Part(text=ASKED_ANOTHER)])])

    def _publish(self, updates: list[Update]) -> None:
        for update in updates:
            for follower in self._followers:
                follower.put(update)
        self._changed.set()

    def end(self) -> None:
        """End it for all who follow it."""
        self.is_over = True
        for follower in self._followers:
            follower.end()
        self._changed.set()


class LiveTasks:
    """The tasks of one agent whose replies are read."""

    def __init__(self, agent: DoorAgent) -> None:
        self._agent = agent
        self._tasks: dict[tuple[str, UUID], LiveTask] = {}
        self._readers = Tasks()

    def find(self, caller: Caller, request_id: UUID) -> LiveTask | None:
        """Return a task of a caller, or None."""
        return self._tasks.get((caller.address, request_id))

    def begin(self, caller: Caller, progress: TaskProgress, digest: bytes, reply: DoorReply) -> LiveTask:
        """Read the reply to a new request."""
        live = LiveTask(self._agent, caller, progress, digest, is_adopted=False)
        self._start(live, live.read(reply))
        return live

    def adopt(self, caller: Caller, progress: TaskProgress, digest: bytes) -> LiveTask:
        """Read the reply to a request that an earlier run of the platform has accepted."""
        live = LiveTask(self._agent, caller, progress, digest, is_adopted=True)
        self._start(live, live.adopt())
        return live

    def _start(self, live: LiveTask, reading: Awaitable[object]) -> None:
        key = live.caller.address, live.request_id
        self._tasks[key] = live

        async def run() -> None:
            try:
                await reading
            except ConnectionError:
                pass  # the agent stops
            except Exception as error:  # noqa: BLE001 - those who follow it get the stored task when they ask again
                log.error("%s: a task cannot be followed: %s", self._agent.jid, describe_error_chain(error)[-1].type)
            finally:
                if self._tasks.get(key) is live:
                    del self._tasks[key]
                live.end()

        self._readers.start(run())
