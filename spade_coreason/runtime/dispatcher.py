"""Who does what waits: a worker for each conversation, one thing after the other, many conversations at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pydantic_core import to_json

from ..concurrency import Semaphore
from ..contracts import ErrorCode
from ..domain.messages import Failed
from ..domain.value import replace
from ..exceptions import StoreError
from .mailbox import Mailbox, MailboxTask, QueuedRequest
from .turn_services import TurnServices

log = logging.getLogger(__name__)


class Dispatcher:
    """For one agent. `run_turn` answers a request of a lane; `may_start` says of what waits whether it may begin now."""

    def __init__(
        self,
        services: TurnServices,
        run_turn: Callable[[Mailbox, QueuedRequest], Awaitable[None]],
        may_start: Callable[[QueuedRequest | MailboxTask], bool],
    ) -> None:
        self._services = services
        self._run_turn = run_turn
        self._may_start = may_start
        self._retry_timers: list[asyncio.TimerHandle] = []
        self._is_draining = False

    def __len__(self) -> int:
        return sum(lane.worker is not None for lane in self._services.mailboxes)

    def start(self) -> None:
        """Takes up work."""
        self._is_draining = self._services.is_cancelling_turns = False
        self._loop = asyncio.get_running_loop()

    def dispatch(self, queued: QueuedRequest, sender: str) -> None:
        """Takes a request of a sender, which has its place."""
        lane = self._services.mailboxes.get_or_create(sender, queued.incoming.thread)
        lane.enqueue(queued)
        self.schedule(lane)

    def schedule(self, mailbox: Mailbox) -> None:
        """Does what waits in a lane."""
        if mailbox.worker is None:
            # With a name, or asyncio writes one for each.
            mailbox.worker = self._loop.create_task(self._run_worker(mailbox), name=mailbox.sender)

    def resume(self) -> None:
        """Does what waits in all of them, after a pause."""
        for lane in self._services.mailboxes:
            if lane.queue:
                self.schedule(lane)

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Waits until no turn runs or waits: of anybody, or `mailbox_key` a sender (a bare JID) and a thread."""
        lanes = self._services.mailboxes
        while workers := [lane.worker for lane in lanes if lane.worker is not None and mailbox_key in ((), lane.key)]:
            await asyncio.wait(workers)

    async def drain(self, grace_s: float) -> bool:
        """Waits for the turns that run, and does nothing more. False if some took longer and were given up."""
        self._is_draining = True
        for timer in self._retry_timers:
            timer.cancel()
        for lane in self._services.mailboxes:
            lane.clear()
        workers = [lane.worker for lane in self._services.mailboxes if lane.worker is not None]
        if not workers:
            return True
        _, late = await asyncio.wait(workers, timeout=grace_s)
        self._services.is_cancelling_turns = True
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=2.0)
        return not late

    async def _run_worker(self, mailbox: Mailbox) -> None:
        slots = mailbox.quota.slots
        try:
            while (waiting := mailbox.dequeue(self._may_start)) is not None:
                mailbox.is_withdrawn = False
                if isinstance(waiting, MailboxTask):
                    await _run_task(waiting, slots)
                    continue
                mailbox.current = waiting
                try:
                    if waiting.may_start_early or await waiting.stored:
                        if not slots.acquire_nowait():
                            await slots.acquire()
                        try:
                            if not self._may_start(waiting):
                                mailbox.requeue(waiting)  # it was paused while this one waited for its slot
                                continue
                            await self._run_turn(mailbox, waiting)
                        finally:
                            slots.release()
                except StoreError as error:
                    log.error("%s: a request of %s is not stored: %s", self._services.jid, mailbox.sender, error)
                    self._services.metrics.record_failure(str(error))
                    await self._report_storage_failure(mailbox, waiting)
                except Exception:
                    # What `assist` raises is caught in `Turn.run`; this is a fault of ours, and one request must not hold
                    # up the others of its conversation.
                    log.exception("%s: a request of %s failed", self._services.jid, mailbox.sender)
                    self._services.metrics.record_failure("a fault of the platform; the log has it")
                    await self._fail_request(mailbox, waiting)
        finally:
            mailbox.worker = mailbox.current = None
            self._services.mailboxes.evict_if_idle(mailbox)

    async def _report_storage_failure(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """The request is not finished, so nobody may believe that it is. From the inbox it runs again after a while.

        One that is not even there was not acknowledged, and the server delivers it again.
        """
        mailbox.conversation = None
        text = (
            "I cannot store anything at the moment, so what you just said is not remembered yet."
            " I answer as soon as I can; if you hear nothing, please ask again."
        )
        try:
            is_kept = await queued.stored
        except StoreError:
            is_kept = False
        if is_kept and not self._is_draining:
            self._retry_timers = [timer for timer in self._retry_timers if timer.when() > asyncio.get_running_loop().time()]
            again = replace(queued, is_redelivered=True)
            retry_s = self._services.policy.timings.retry_s
            self._retry_timers.append(asyncio.get_running_loop().call_later(retry_s, self.dispatch, again, mailbox.sender))
        self._services.outbox.send_problem(queued.incoming, queued.key, Failed(text, ErrorCode.UNAVAILABLE, True))

    async def _fail_request(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Ends a request that cannot be finished, or it would run again, in vain, after every start."""
        engine, memory = self._services, mailbox.conversation
        if memory is None:
            await self._report_storage_failure(mailbox, queued)
            return
        mailbox.conversation = None
        problem = Failed("Something went wrong on my side. Please try again later.", ErrorCode.INTERNAL, False)
        stanzas = engine.outbox.encode(queued.incoming, queued.key, problem)
        try:
            await engine.store.inbox.finish(queued.inbox_row, memory.record, None, to_json(stanzas).decode())
        except StoreError as error:
            log.error("%s: %s", engine.jid, error)
        else:
            engine.outbox.send_final(queued.inbox_row, stanzas)


async def _run_task(task: MailboxTask, slots: Semaphore) -> None:
    if not slots.acquire_nowait():
        await slots.acquire()
    try:
        await task.run()
    finally:
        slots.release()
