"""Workers: one task for each mailbox runs its items one after the other; many mailboxes are worked on at once."""

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
    """The dispatcher of one agent: it starts and ends the workers of the mailboxes.

    `run_turn` answers a request of a mailbox. `may_start` tells if an item may begin now: during a pause not all may.
    """

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
        return sum(mailbox.worker is not None for mailbox in self._services.mailboxes)

    def start(self) -> None:
        """Begin to start workers. Call it in the event loop, before `dispatch`."""
        self._is_draining = self._services.is_cancelling_turns = False
        self._loop = asyncio.get_running_loop()

    def dispatch(self, queued: QueuedRequest, sender: str) -> None:
        """Put a request of a sender (a bare JID) into the mailbox of its thread, and start the worker."""
        mailbox = self._services.mailboxes.get_or_create(sender, queued.incoming.thread)
        mailbox.enqueue(queued)
        self.schedule(mailbox)

    def schedule(self, mailbox: Mailbox) -> None:
        """Start the worker of a mailbox, unless it runs."""
        if mailbox.worker is None:
            # With a name, because asyncio formats a default one for each task.
            mailbox.worker = self._loop.create_task(self._run_worker(mailbox), name=mailbox.sender)

    def resume(self) -> None:
        """Start the workers of all mailboxes with queued items, after a pause."""
        for mailbox in self._services.mailboxes:
            if mailbox.queue:
                self.schedule(mailbox)

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no worker runs: of any mailbox, or of that with `mailbox_key`, a sender (a bare JID) and a thread."""
        mailboxes = self._services.mailboxes
        while workers := [
            mailbox.worker for mailbox in mailboxes if mailbox.worker is not None and mailbox_key in ((), mailbox.key)
        ]:
            await asyncio.wait(workers)

    async def drain(self, grace_s: float) -> bool:
        """Empty all mailboxes and wait for the running turns. After `grace_s`, cancel those that still run and return False."""
        self._is_draining = True
        for timer in self._retry_timers:
            timer.cancel()
        for mailbox in self._services.mailboxes:
            mailbox.clear()
        workers = [mailbox.worker for mailbox in self._services.mailboxes if mailbox.worker is not None]
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
            while (item := mailbox.dequeue(self._may_start)) is not None:
                mailbox.is_cancelled = False
                if isinstance(item, MailboxTask):
                    await _run_task(item, slots)
                    continue
                mailbox.current = item
                try:
                    if item.may_start_early or await item.stored:
                        if not slots.acquire_nowait():
                            await slots.acquire()
                        try:
                            if not self._may_start(item):
                                mailbox.requeue(item)  # it was paused while this one waited for its slot
                                continue
                            await self._run_turn(mailbox, item)
                        finally:
                            slots.release()
                except StoreError as error:
                    log.error("%s: a request of %s is not stored: %s", self._services.jid, mailbox.sender, error)
                    self._services.metrics.record_failure(str(error))
                    await self._report_storage_failure(mailbox, item)
                except Exception:
                    # `Turn.run` catches what `assist` raises, so this is a fault of the platform. One request must not hold
                    # up the others of its conversation.
                    log.exception("%s: a request of %s failed", self._services.jid, mailbox.sender)
                    self._services.metrics.record_failure("a fault of the platform; the log has it")
                    await self._fail_request(mailbox, item)
        finally:
            mailbox.worker = mailbox.current = None
            self._services.mailboxes.evict_if_idle(mailbox)

    async def _report_storage_failure(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Tell the sender that nothing can be stored, and run the request again later if it is in the inbox.

        The request is not finished, so the sender must not believe that it is. A request that is not in the inbox was not
        acknowledged, so the server delivers it again.
        """
        mailbox.active = None
        text = (
            "I cannot store anything at the moment, so what you just said is not remembered yet."
            " I answer as soon as I can; if you hear nothing, please ask again."
        )
        try:
            is_stored = await queued.stored
        except StoreError:
            is_stored = False
        if is_stored and not self._is_draining:
            self._retry_timers = [timer for timer in self._retry_timers if timer.when() > asyncio.get_running_loop().time()]
            redelivery = replace(queued, is_redelivered=True)
            retry_s = self._services.policy.timings.retry_s
            self._retry_timers.append(asyncio.get_running_loop().call_later(retry_s, self.dispatch, redelivery, mailbox.sender))
        self._services.outbox.send_problem(queued.incoming, queued.key, Failed(text, ErrorCode.UNAVAILABLE, True))

    async def _fail_request(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Finish a request with an error reply. Unfinished, it would run and fail again after every start."""
        services, active = self._services, mailbox.active
        if active is None:
            await self._report_storage_failure(mailbox, queued)
            return
        mailbox.active = None
        problem = Failed("Something went wrong on my side. Please try again later.", ErrorCode.INTERNAL, False)
        stanzas = services.outbox.encode(queued.incoming, queued.key, problem)
        try:
            await services.repository.inbox.finish(queued.inbox_row, active.record, None, to_json(stanzas).decode())
        except StoreError as error:
            log.error("%s: %s", services.jid, error)
        else:
            services.outbox.send_final(queued.inbox_row, stanzas)


async def _run_task(task: MailboxTask, slots: Semaphore) -> None:
    if not slots.acquire_nowait():
        await slots.acquire()
    try:
        await task.run()
    finally:
        slots.release()
