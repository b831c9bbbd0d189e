"""Who does what waits: a worker for each conversation, one thing after the other, many conversations at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pydantic_core import to_json

from ..concurrency import Slots
from ..contracts import ErrorCode
from ..domain.messages import Failed
from ..domain.value import replace
from ..exceptions import StoreError
from .context import Engine
from .mailbox import Errand, Lane, Waiting

log = logging.getLogger(__name__)


class Workers:
    """For one agent. `turn` answers a request of a lane; `may_begin` says of what waits whether it may begin now."""

    def __init__(
        self,
        engine: Engine,
        turn: Callable[[Lane, Waiting], Awaitable[None]],
        may_begin: Callable[[Waiting | Errand], bool],
    ) -> None:
        self._engine = engine
        self._turn = turn
        self._may_begin = may_begin
        self._retries: list[asyncio.TimerHandle] = []
        self._is_draining = False

    def __len__(self) -> int:
        return sum(lane.worker is not None for lane in self._engine.lanes)

    def open(self) -> None:
        """Takes up work."""
        self._is_draining = self._engine.is_giving_up = False
        self._loop = asyncio.get_running_loop()

    def put(self, waiting: Waiting, sender: str) -> None:
        """Takes a request of a sender, which has its place."""
        lane = self._engine.lanes.take(sender, waiting.incoming.thread)
        lane.put(waiting)
        self.set_to_work(lane)

    def set_to_work(self, lane: Lane) -> None:
        """Does what waits in a lane."""
        if lane.worker is None:
            # With a name, or asyncio writes one for each.
            lane.worker = self._loop.create_task(self._work(lane), name=lane.sender)

    def resume(self) -> None:
        """Does what waits in all of them, after a pause."""
        for lane in self._engine.lanes:
            if lane.queue:
                self.set_to_work(lane)

    async def settled(self, *of: str | None) -> None:
        """Waits until no turn runs or waits: of anybody, or `of` a sender (a bare JID) and a thread."""
        lanes = self._engine.lanes
        while workers := [lane.worker for lane in lanes if lane.worker is not None and of in ((), lane.key)]:
            await asyncio.wait(workers)

    async def drain(self, grace_s: float) -> bool:
        """Waits for the turns that run, and does nothing more. False if some took longer and were given up."""
        self._is_draining = True
        for timer in self._retries:
            timer.cancel()
        for lane in self._engine.lanes:
            lane.clear()
        workers = [lane.worker for lane in self._engine.lanes if lane.worker is not None]
        if not workers:
            return True
        _, late = await asyncio.wait(workers, timeout=grace_s)
        self._engine.is_giving_up = True
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=2.0)
        return not late

    async def _work(self, lane: Lane) -> None:
        slots = lane.share.slots
        try:
            while (waiting := lane.take(self._may_begin)) is not None:
                lane.is_withdrawn = False
                if isinstance(waiting, Errand):
                    await _run(waiting, slots)
                    continue
                lane.current = waiting
                try:
                    if waiting.is_surely_new or await waiting.is_new:
                        if not slots.take():
                            await slots.wait()
                        try:
                            if not self._may_begin(waiting):
                                lane.put_back(waiting)  # it was paused while this one waited for its slot
                                continue
                            await self._turn(lane, waiting)
                        finally:
                            slots.give()
                except StoreError as error:
                    log.error("%s: a request of %s is not stored: %s", self._engine.jid, lane.sender, error)
                    self._engine.activity.failed(str(error))
                    await self._apologise(lane, waiting)
                except Exception:
                    # What `assist` raises is caught in `Turn.run`; this is a fault of ours, and one request must not hold
                    # up the others of its conversation.
                    log.exception("%s: a request of %s failed", self._engine.jid, lane.sender)
                    self._engine.activity.failed("a fault of the platform; the log has it")
                    await self._give_up(lane, waiting)
        finally:
            lane.worker = lane.current = None
            self._engine.lanes.let_go(lane)

    async def _apologise(self, lane: Lane, waiting: Waiting) -> None:
        """The request is not finished, so nobody may believe that it is. From the inbox it runs again after a while.

        One that is not even there was not acknowledged, and the server delivers it again.
        """
        lane.memory = None
        text = (
            "I cannot store anything at the moment, so what you just said is not remembered yet."
            " I answer as soon as I can; if you hear nothing, please ask again."
        )
        try:
            is_kept = await waiting.is_new
        except StoreError:
            is_kept = False
        if is_kept and not self._is_draining:
            self._retries = [timer for timer in self._retries if timer.when() > asyncio.get_running_loop().time()]
            again = replace(waiting, redelivered=True)
            retry_s = self._engine.policy.timings.retry_s
            self._retries.append(asyncio.get_running_loop().call_later(retry_s, self.put, again, lane.sender))
        self._engine.outbox.tell(waiting.incoming, waiting.key, Failed(text, ErrorCode.UNAVAILABLE, True))

    async def _give_up(self, lane: Lane, waiting: Waiting) -> None:
        """Ends a request that cannot be finished, or it would run again, in vain, after every start."""
        engine, memory = self._engine, lane.memory
        if memory is None:
            await self._apologise(lane, waiting)
            return
        lane.memory = None
        problem = Failed("Something went wrong on my side. Please try again later.", ErrorCode.INTERNAL, False)
        stanzas = engine.outbox.words(waiting.incoming, waiting.key, problem)
        try:
            await engine.store.inbox.finish(waiting.row, memory.row, None, to_json(stanzas).decode())
        except StoreError as error:
            log.error("%s: %s", engine.jid, error)
        else:
            engine.outbox.send_final(waiting.row, stanzas)


async def _run(errand: Errand, slots: Slots) -> None:
    if not slots.take():
        await slots.wait()
    try:
        await errand.run()
    finally:
        slots.give()
