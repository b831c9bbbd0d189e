"""The mailboxes of one agent: order, capacity, pause and withdrawal, with a handler that a test releases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest

from spade_coreason.contracts import Accept, Refuse
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.quotas import Quotas
from spade_coreason.exceptions import StoreError
from spade_coreason.runtime.crash_guard import CrashGuard
from spade_coreason.runtime.mailboxes.gate import TurnGate
from spade_coreason.runtime.mailboxes.limits import MailboxCapacity, QuotaLimit
from spade_coreason.runtime.mailboxes.mailbox import Mailbox, QueuedRequest
from spade_coreason.runtime.mailboxes.mailboxes import Mailboxes, MailboxWorkers
from spade_coreason.runtime.mailboxes.withdrawal import Withdrawal
from spade_coreason.runtime.replies.program_requests import InFlightRequests
from spade_coreason.storage import Commit, RunningRequests
from spade_coreason.storage.repository import AgentRepository
from tests.support.records import ALICE, BOB, NOW
from tests.support.requests import build_incoming
from tests.support.wait import eventually

MAX_QUEUED = 3


class GatedHandler:
    """A handler that records the requests it is given, and finishes each when the test releases it."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.gate = asyncio.Semaphore(0)

    async def handle(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        text = str(queued.incoming.payload["query"])
        self.started.append(text)
        await self.gate.acquire()
        self.finished.append(text)


class MailboxHarness:
    """Mailboxes on a database of their own, and requests that are put into them."""

    def __init__(self, repository: AgentRepository, max_turns: int = 8) -> None:
        self.repository = repository
        self.handler = GatedHandler()
        quotas = QuotaLimit(repository, Quotas(), max_turns, utc_now)
        requests, self.gate = InFlightRequests(), TurnGate()
        self.mailboxes = Mailboxes(
            repository, quotas, self.gate, requests, asyncio.Event(), max_queued=MAX_QUEUED, remembered_turns=10
        )
        self.capacity = MailboxCapacity(self.mailboxes.senders, self.mailboxes.archive_hold, MAX_QUEUED)
        self.withdrawal = Withdrawal(self.mailboxes, repository.inbox)
        crash_guard = CrashGuard(RunningRequests())
        MailboxWorkers(self.mailboxes, quotas, crash_guard, self.handler.handle).start()

    async def put(self, text: str, sender: str = ALICE, thread: str | None = "t", *, is_for_agent: bool = True) -> None:
        """Store a request whose id is its text, and put it into its mailbox."""
        self.mailboxes.put(await self.receive(text, sender, thread, is_for_agent=is_for_agent), sender)

    async def receive(
        self, text: str, sender: str = ALICE, thread: str | None = "t", *, is_for_agent: bool = True
    ) -> QueuedRequest:
        """Store a request whose id is its text."""
        incoming = build_incoming(text, sender, stanza_id=text, thread=thread)
        key = uuid4()
        row, stored, may_start_early = self.repository.inbox.receive(key.bytes, sender, incoming.to_json(), NOW)
        await stored
        return QueuedRequest(incoming, key, row, stored, 0.0, may_start_early, is_for_agent=is_for_agent)

    async def started(self, *texts: str) -> None:
        """Wait until exactly these requests have been given to the handler."""
        await eventually(lambda: self.handler.started == list(texts))

    def release(self, count: int) -> None:
        """Let the handler finish so many requests."""
        for _ in range(count):
            self.handler.gate.release()


@pytest.fixture
async def harness(repository: AgentRepository) -> AsyncIterator[MailboxHarness]:
    harness = MailboxHarness(repository)
    yield harness
    await harness.mailboxes.drain(0)


async def test_one_conversation_is_handled_in_order_and_others_beside_it(harness: MailboxHarness) -> None:
    for text in ("one", "two", "three"):
        await harness.put(text)
    await harness.put("other", BOB)
    await harness.started("one", "other")
    assert (harness.mailboxes.busy_count, harness.mailboxes.count_queued(ALICE)) == (2, 2)
    harness.release(4)
    await harness.mailboxes.wait_until_idle()
    assert [text for text in harness.handler.finished if text != "other"] == ["one", "two", "three"]
    assert harness.mailboxes.busy_count == 0


async def test_a_sender_has_a_quarter_of_the_turns(repository: AgentRepository) -> None:
    harness = MailboxHarness(repository, max_turns=8)
    for number in range(4):
        await harness.put(f"{number}", ALICE, thread=f"t{number}")
    await harness.put("bob", BOB)
    await harness.started("0", "1", "bob")
    harness.release(5)
    await harness.mailboxes.wait_until_idle()
    assert len(harness.handler.finished) == 5


async def test_a_full_conversation_refuses_and_has_room_again_after_a_turn(harness: MailboxHarness) -> None:
    for number in range(1 + MAX_QUEUED):
        await harness.put(f"{number}")
    await harness.started("0")
    incoming = build_incoming("next", ALICE, stanza_id="next")
    limit = harness.capacity
    refusal = limit.receive(incoming)
    assert isinstance(refusal, Refuse)
    assert refusal.text.startswith("This conversation already has 3 messages waiting")
    assert limit.receive(replace(incoming, owner=BOB)) == Accept()
    waiting = asyncio.create_task(harness.capacity.wait(incoming))
    harness.release(1 + MAX_QUEUED)
    await waiting
    await harness.mailboxes.wait_until_idle()
    assert limit.receive(incoming) == Accept()


async def test_a_pause_holds_requests_of_the_agent_and_not_commands_of_the_platform(harness: MailboxHarness) -> None:
    harness.gate.pause()
    await harness.put("request")
    await harness.put("command", is_for_agent=False)
    await harness.started("command")
    harness.release(2)
    await harness.mailboxes.wait_until_idle()
    assert harness.handler.finished == ["command"]
    harness.gate.resume()
    await harness.mailboxes.wait_until_idle()
    assert harness.handler.finished == ["command", "request"]


async def test_a_queued_request_is_withdrawn_by_its_id_and_closed(harness: MailboxHarness) -> None:
    for text in ("one", "two", "three"):
        await harness.put(text)
    await harness.started("one")
    assert harness.withdrawal.withdraw(BOB, ["two"]) is None
    assert harness.withdrawal.withdraw(ALICE, ["two"]) is not None
    assert harness.withdrawal.withdraw(ALICE, ["two"]) is None
    harness.release(2)
    await harness.mailboxes.wait_until_idle()
    assert harness.handler.finished == ["one", "three"]
    assert len(await harness.repository.inbox.load_pending()) == 2  # the handler of this test closes none


async def test_a_request_that_waits_for_another_attempt_is_withdrawn(harness: MailboxHarness) -> None:
    mailbox, queued = harness.mailboxes.get_or_create(ALICE, "t"), await harness.receive("one")
    harness.mailboxes.put_back(mailbox, queued, 0.0)
    assert harness.withdrawal.withdraw(BOB, ["one"]) is None
    assert harness.withdrawal.withdraw(ALICE, ["one"]) is not None
    assert harness.withdrawal.withdraw(ALICE, ["one"]) is None
    await harness.put("two")
    await harness.started("two")
    harness.release(1)
    await harness.mailboxes.wait_until_idle()
    await harness.repository.inbox.flush()
    assert [pending.inbox_row for pending in await harness.repository.inbox.load_pending()] == [queued.inbox_row + 1]


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
async def test_of_a_mailbox_that_waits_only_a_request_that_was_not_stored_is_handled(
    repository: AgentRepository, is_paused: bool
) -> None:
    harness = MailboxHarness(repository)
    stored, failing = await harness.receive("behind"), await harness.receive("not stored")
    failing = replace(failing, stored=Commit())
    mailbox = harness.mailboxes.get_or_create(ALICE, "t")
    harness.mailboxes.put_back(mailbox, await harness.receive("one"), 3600)
    if is_paused:
        harness.gate.pause()
    for queued in (stored, failing):
        harness.mailboxes.put(queued, ALICE)
    await harness.mailboxes.wait_until_idle()
    failing.stored.resolve(StoreError("full"))
    if is_paused:
        await harness.mailboxes.wait_until_idle()
        assert harness.handler.started == []
        harness.gate.resume()
    await harness.started("not stored")
    harness.release(1)
    await harness.mailboxes.wait_until_idle()
    assert harness.mailboxes.waiting_count == 2
    assert harness.withdrawal.cancel(mailbox)  # then the next one is the first, and waits for the same attempt
    assert [item for item in mailbox.queue if isinstance(item, QueuedRequest)] == [stored]


@pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
async def test_a_request_withdrawn_while_it_waits_for_a_turn_never_starts(repository: AgentRepository, is_paused: bool) -> None:
    harness = MailboxHarness(repository, max_turns=1)
    await harness.put("bob", BOB)
    await harness.started("bob")
    await harness.put("alice", ALICE)
    mailbox = harness.mailboxes.get_or_create(ALICE, "t")
    await eventually(lambda: mailbox.current is not None)
    if is_paused:
        harness.gate.pause()
    assert harness.withdrawal.withdraw(ALICE, ["alice"]) is not None
    harness.release(2)
    await harness.mailboxes.wait_until_idle()
    harness.gate.resume()
    await harness.mailboxes.wait_until_idle()
    assert harness.handler.finished == ["bob"]
    assert harness.mailboxes.count_queued(ALICE) == 0


async def test_a_request_that_is_put_back_is_dropped_by_a_drain(harness: MailboxHarness) -> None:
    mailbox, queued = harness.mailboxes.get_or_create(ALICE, "t"), await harness.receive("one")
    harness.mailboxes.put_back(mailbox, queued, 0.0)
    await harness.put("two")
    await harness.started("one")
    harness.release(2)
    await harness.mailboxes.wait_until_idle()
    mailbox = harness.mailboxes.get_or_create(ALICE, "t")
    harness.mailboxes.put_back(mailbox, queued, 0.0)
    assert await harness.mailboxes.drain(5)
    harness.mailboxes.put_back(mailbox, queued, 0.0)
    assert list(mailbox.queue) == [queued]
    assert harness.mailboxes.take_waiting() == [queued]
    await eventually(lambda: mailbox.retry is None)
    await harness.mailboxes.wait_until_idle()
    assert harness.handler.finished == ["one", "two"]


async def test_a_drain_starts_no_request_that_waits_for_a_slot(repository: AgentRepository) -> None:
    harness = MailboxHarness(repository, max_turns=1)
    await harness.put("one", ALICE)
    await harness.started("one")
    await harness.put("two", BOB)
    await eventually(lambda: (mailbox := harness.mailboxes.get(BOB, "t")) is not None and not mailbox.queue)
    drain = asyncio.create_task(harness.mailboxes.drain(5))
    await asyncio.sleep(0)
    harness.release(2)
    assert await drain
    assert harness.handler.started == ["one"]
    assert len(await harness.repository.inbox.load_pending()) == 2  # the handler of this test closes none
