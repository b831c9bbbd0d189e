"""The notifier of one agent: it sends notifications when they are due, and learns what becomes of them.

The row of a notification is its outbox: it is composed once, in the order of the conversation, and stored with its turn before
it is sent. `domain/initiative/notifications.py` has the decisions as tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from pydantic_core import from_json, to_json

from ...concurrency import RateLimiter
from ...contracts import AnyBlock, DataBlock, MarkdownBlock, Notification, NotificationState, UserErrorBlock
from ...domain.access import AccessPolicy
from ...domain.callers import is_caller
from ...domain.channel_kinds import DEFAULT_CHANNEL, PERSON, ROOM
from ...domain.initiative.notifications import (
    NotificationDecision,
    decide_bounce,
    decide_notification,
    describe_reason,
)
from ...domain.jid import bare_jid
from ...domain.messages import ROOT_SENDER, Bounce, Completed, InboundRequest
from ...domain.preferences import DEFAULT_PREFERENCES, Preferences
from ...exceptions import StoreError
from ...storage import Commit, StoredNotification, TurnRecord, from_micros
from ..channels import OutboundMessage
from ..intake.conversation_loader import ConversationLoader
from ..intake.mailbox import Mailbox, MailboxTask
from ..turns.output import TurnOutput, dump_reply
from ..turns.turn_services import TurnServices
from .due_times import DueTimes
from .people import is_question, load_blocks

log = logging.getLogger(__name__)

_BATCH = 100
"""The most notifications that are loaded at once."""
_MAX_IN_FLIGHT = 1000
"""The most notifications that are on their way. One that waits for its conversation, or for the server, holds up no other."""
_MAX_OF_PERSON = 20
"""The most of them to one person or room: those to a room without voice, or to a long turn, must not hold up all others."""
_LATER = timedelta(minutes=5)
_MANY_WAIT = "many others to this address are still on their way; it is tried again in 5 minutes"
_MAX_BOUNCES_PER_MINUTE = 60
"""The most bounces of one sender within a minute that are looked up."""


class Notifier:
    """The notifications of one agent, from the moment in which they are stored (`NotificationSink`)."""

    def __init__(self, services: TurnServices, loader: ConversationLoader, access: AccessPolicy) -> None:
        self._services = services
        self._loader = loader
        self._access = access
        self._repository = services.repository.notifications
        self._policy = services.policy.notifications
        self._channel = services.outbox.channels[DEFAULT_CHANNEL]
        self._in_flight: dict[int, StoredNotification] = {}
        """The notifications that were handed over, by row, until the server has them.

        An acknowledgement counts only while this holds the same object: the notification may have come back since.
        """
        self._erasures = 0
        self._bounce_limiter = RateLimiter(_MAX_BOUNCES_PER_MINUTE)
        self._commits: set[Commit[bool]] = set()
        """The writes of states that are not done."""
        self.due_times: DueTimes | None = None
        """The clock of the agent, once it is there."""

    def reset(self) -> None:
        """Forget what was on its way in an earlier run: the clock hands it over again."""
        self._in_flight.clear()

    # Taking

    async def notify(self, notification_id: str, person: str, thread: str | None, content: str, root: str) -> Notification:
        """Store a notification, unless there is one with its id, and return it. StoreError if it cannot be stored."""
        now, preferences = self._services.clock(), await self._find_preferences(person)
        new = self._repository.make(notification_id, person, thread, "" if root == person else root, content, now)
        is_own, is_room = not new.root, self._channel.is_room(person)

        def decide(own: int, of_others: int) -> NotificationDecision:
            count = self._policy.count_today(own, of_others, is_own=is_own, is_room=is_room)
            return self._decide(person, preferences, now, count)

        stored = await self._repository.create(new, decide, now)
        self.wake_at(from_micros(stored.due_at))
        return stored.to_public()

    async def find(self, notification_id: str) -> Notification | None:
        """Return a notification, or None. StoreError if it cannot be read."""
        found = await self._repository.find(notification_id)
        return None if found is None else found.to_public()

    def wake_at(self, due_at: datetime) -> None:
        """See to it that a notification is handed over at a time."""
        if self.due_times is not None:
            self.due_times.wake_at(due_at)

    async def retry(self, notification_id: str) -> bool:
        """Send a notification again. Return False if there is none, or if it is waiting. StoreError."""
        found = await self._repository.find(notification_id)
        found = None if found is None else self._in_flight.get(found.id, found)  # its newest state may not be stored yet
        if found is None or found.state == NotificationState.WAITING:
            return False
        now = self._services.clock()
        await self._store(found.moved(NotificationState.WAITING, now, due_at=now)._replace(attempts=0))
        return True

    async def drop(self, notification_id: str) -> bool:
        """Delete a notification, also one that waits. Return False if there is none. StoreError."""
        self._drop_in_flight(notification_id)
        is_deleted = await self._repository.delete(notification_id)
        self._drop_in_flight(notification_id)  # the clock may have read it before it was deleted
        return is_deleted

    def _drop_in_flight(self, notification_id: str) -> None:
        self._erasures += 1
        for row in [row for row, stored in self._in_flight.items() if stored.notification_id == notification_id]:
            del self._in_flight[row]

    def forget(self, person: str, threads: Sequence[str | None] | None = None) -> None:
        """Send nothing more that is about a person (a bare JID), whose data are being deleted; see `Initiative.forget`."""
        self._erasures += 1
        for row, stored in list(self._in_flight.items()):
            is_theirs = person in (stored.person, stored.root)
            if is_theirs if threads is None else stored.person == person and stored.thread in threads:
                del self._in_flight[row]

    # The clock

    async def run_due(self, now: datetime) -> None:
        """Hand over what is due."""
        free = min(_BATCH, _MAX_IN_FLIGHT - len(self._in_flight))
        if free <= 0:
            return
        erasures, before = self._erasures, set(self._in_flight)
        due = await self._repository.load_due(now, free, without=before)
        if erasures == self._erasures:  # else the clock loads it again
            # One that was on its way before may have ended meanwhile: what was read of it is older than its end.
            on_their_way = Counter(stored.person for stored in self._in_flight.values())
            for stored in due:
                on_their_way[stored.person] += 1
                if on_their_way[stored.person] <= _MAX_OF_PERSON:
                    self._begin(stored)
                else:
                    self._store(stored.moved(NotificationState.WAITING, now, _MANY_WAIT, now + _LATER))

    async def find_next_due(self) -> datetime | None:
        """Return when the next one is due that is not on its way; None while no more may be."""
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            return None
        return await self._repository.find_next_due(without=set(self._in_flight))

    @property
    def is_storing(self) -> bool:
        """True while the state of a notification is stored."""
        return bool(self._commits)

    async def wait_until_stored(self) -> None:
        """Wait until the states of notifications are stored, those of bounces too."""
        while self._commits:
            await next(iter(self._commits)).wait()

    def _begin(self, stored: StoredNotification) -> None:
        self._in_flight[stored.id] = stored
        mailboxes, future = self._services.mailboxes, asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._on_task_done, stored))
        mailbox = mailboxes.get_or_create(stored.person, stored.thread)
        mailboxes.put_task(mailbox, MailboxTask(partial(self._deliver, mailbox, stored), True, future))

    def _on_task_done(self, stored: StoredNotification, task: asyncio.Future[None]) -> None:
        if task.cancelled():
            self._hand_over_again(stored)  # the agent stops, or the conversation was deleted
        elif isinstance(error := task.exception(), StoreError):
            self._release_later(stored, error)
        elif error is not None:
            log.error("%s: a notification cannot be sent", self._services.jid, exc_info=error)
            self._end(self._in_flight.get(stored.id, stored), NotificationState.FAILED, "it cannot be sent; see the log")

    def _is_current(self, stored: StoredNotification) -> bool:
        return self._in_flight.get(stored.id) is stored

    def _end(
        self, stored: StoredNotification, state: NotificationState, reason: str = "", due_at: datetime | None = None
    ) -> None:
        """Store the state of a notification that was on its way."""
        if self._is_current(stored) and stored.state == NotificationState.WAITING:
            self._store(stored.moved(state, self._services.clock(), reason, due_at))

    def _store(self, ended: StoredNotification) -> Commit[bool]:
        """Store a new state. Until then the notification counts as on its way, so that the clock does not hand it over."""
        self._in_flight[ended.id] = ended
        commit = self._track(self._repository.save(ended))
        commit.on_stored(lambda _: self._release(ended))
        commit.on_failed(partial(self._store_later, ended))
        return commit

    def _store_later(self, ended: StoredNotification, error: BaseException) -> None:
        """Store a new state again: what the server has must not be sent once more."""
        asyncio.get_running_loop().call_later(self._log_retry(error), self._store_again, ended)

    def _store_again(self, ended: StoredNotification) -> None:
        if self._is_current(ended) and self.due_times is not None and self.due_times.is_open:
            self._store(ended)

    def _track(self, commit: Commit[bool]) -> Commit[bool]:
        self._commits.add(commit)
        commit.on_stored(lambda _: self._commits.discard(commit))
        commit.on_failed(lambda _: self._commits.discard(commit))
        return commit

    def _release(self, ended: StoredNotification) -> None:
        if not self._is_current(ended):
            return  # a later state is being stored
        is_full = len(self._in_flight) >= _MAX_IN_FLIGHT
        del self._in_flight[ended.id]
        if ended.state == NotificationState.WAITING:
            self.wake_at(from_micros(ended.due_at))
        if is_full:
            self.wake_at(self._services.clock())

    def _release_later(self, stored: StoredNotification, error: BaseException) -> None:
        """Hand a notification over again that could not be stored."""
        asyncio.get_running_loop().call_later(self._log_retry(error), self._hand_over_again, stored)

    def _log_retry(self, error: BaseException) -> float:
        retry_s = self._services.policy.timings.retry_s
        log.error("%s: cannot store a notification; the next attempt is in %g s: %s", self._services.jid, retry_s, error)
        return retry_s

    def _hand_over_again(self, stored: StoredNotification) -> None:
        if self._is_current(stored):
            del self._in_flight[stored.id]
            self.wake_at(self._services.clock())

    # Sending

    async def _deliver(self, mailbox: Mailbox, stored: StoredNotification) -> None:
        """Send a notification, in the order of its conversation, if it still may be sent."""
        if not self._is_current(stored):
            return
        now = self._services.clock()
        preferences = await self._find_preferences(stored.person)
        if is_question(stored.content):
            preferences = replace(preferences, notifications=None)  # questions come also to those who want no notifications
        decision = self._decide(stored.person, preferences, now, None)
        if decision.state is not NotificationState.WAITING or decision.due_at > now:
            self._end(stored, decision.state, decision.reason, decision.due_at)
            return
        composed = stored if stored.messages is not None else await self._compose(mailbox, stored, now)
        if composed is None or not self._is_current(stored):
            return
        sent = self._in_flight[stored.id] = composed._replace(attempts=composed.attempts + 1)
        self._transmit(sent)

    async def _compose(self, mailbox: Mailbox, stored: StoredNotification, now: datetime) -> StoredNotification | None:
        """Make the messages of a notification, and store them with its turn. None if there are none, or it was deleted."""
        services = self._services
        active = mailbox.active or await self._loader.load(mailbox)
        output = self._open_output(stored)
        if is_question(stored.content):
            question = from_json(stored.content)
            output.emit_question(question["question"], tuple(map(tuple, question["choices"])))
        else:
            for block in load_blocks(stored.content):
                await _emit(output, block)
        output.finish(Completed(active.record.conversation_id, "active"))
        if not output.messages:
            self._end(stored, NotificationState.FAILED, "nothing of it can be shown in a chat")
            return None
        if mailbox.active is not active or not self._is_current(stored):
            self._hand_over_again(stored)  # the conversation was reset or deleted meanwhile
            return None
        composed = stored._replace(messages=dump_reply(output.messages))
        record, windows = active.record, services.history_windows
        text = _encode_turn(composed, output, now)
        turn, turns, window_start = windows.append(active.turns, text, record.turns + 1, active.variables)
        window_start = max(window_start, record.window_start)
        record = record.with_turns(record.status, services.policy.rules.max_interactions, window_start, record.turns + 1)
        active.record = record
        try:
            await self._repository.store_turn(composed, record, TurnRecord(output.encoder.key, now, turn.text))
        except StoreError:
            mailbox.active = None  # it has a turn that is not stored
            raise
        active.turns, active.last_reply = turns, "\n\n".join(output.texts).strip()
        if windows.compacts:
            windows.compact_later(active)
        return composed

    def _open_output(self, stored: StoredNotification) -> TurnOutput:
        """Open an output that sends nothing yet."""
        services = self._services
        is_room = self._channel.is_room(stored.person)
        incoming = InboundRequest(
            ROOM if is_room else PERSON,
            stored.person,
            "",
            stored.thread,
            {},
            "",
            "groupchat" if is_room else "chat",
            owner=stored.person,
            address=stored.person if is_room else "",
        )
        key = UUID(stored.notification_id)
        encoder = self._channel.make_encoder(incoming, key)
        output = TurnOutput(encoder, lambda messages: None, key, services.reply_timers, services.long_answers)
        output.is_held = True
        return output

    def _transmit(self, stored: StoredNotification) -> None:
        messages: list[OutboundMessage] = [
            self._channel.load_message(content) for content in from_json(stored.messages or "[]")
        ]
        last = messages[-1]
        last.is_last = True
        last.on_acknowledged = partial(self._on_sent, stored)
        last.on_refused = partial(self._on_refused, stored)
        if is_question(stored.content):
            request = from_json(stored.content).get("request")
            last.on_written = partial(self._services.repository.questions.mark_shown, request, in_reply=False)
        self._channel.send(messages)

    def _on_sent(self, stored: StoredNotification) -> None:
        self._end(stored, NotificationState.SENT)

    def _on_refused(self, stored: StoredNotification, reason: str) -> None:
        if (described := describe_reason(reason)) == reason:  # a state of the room, or a condition without a remedy
            described = f"the room does not take it; invite the agent again, or write to another room ({reason})"
        self._end(stored, NotificationState.BOUNCED, described)

    # Bounces

    def receive_bounce(self, bounce: Bounce) -> Commit[bool] | None:
        """Receive a message that came back. If it may be one of a notification, return the commit of its state."""
        try:
            notification_id = str(UUID(bounce.stanza_id[:36]))
        except ValueError:
            return None
        now = self._services.clock()
        found = (stored for stored in self._in_flight.values() if stored.notification_id == notification_id)
        if (in_flight := next(found, None)) is not None:
            ended = _bounce(in_flight, bounce, now)
            return None if ended is None else self._store(ended)
        if not self._bounce_limiter.allow(bare_jid(bounce.sender)):
            return None
        # One that waits was sent by an earlier run of the platform: it is sent again, and comes back again.
        commit = self._track(
            self._repository.store_bounce(
                notification_id, lambda stored: _bounce(stored, bounce, now) if stored.state == NotificationState.SENT else None
            )
        )
        commit.on_stored(lambda is_changed: self.wake_at(now) if is_changed else None)
        commit.on_failed(partial(log.error, "%s: a notification came back, and that cannot be stored: %s", self._services.jid))
        return commit

    # Decisions

    async def _find_preferences(self, person: str) -> Preferences:
        if self._channel.is_room(person):
            return DEFAULT_PREFERENCES
        return await self._loader.get_preferences(person)

    def _decide(self, person: str, preferences: Preferences, now: datetime, count_today: int | None) -> NotificationDecision:
        decision = decide_notification(
            is_allowed=self._channel.is_room(person) or (self._access.is_allowed(person) and not is_caller(person)),
            is_on=preferences.notifications is not False,
            count_today=count_today,
            policy=self._policy,
            zone=preferences.zone or self._policy.zone,
            now=now,
        )
        return decision._replace(reason=describe_reason(decision.reason)) if decision.reason else decision


def _bounce(stored: StoredNotification, bounce: Bounce, now: datetime) -> StoredNotification | None:
    """Return a notification as it is when it came back. None if the bounce is not its own, or an earlier one counts."""
    if stored.person != bare_jid(bounce.sender).lower():
        return None
    if stored.state not in (NotificationState.SENT, NotificationState.WAITING):
        return None
    # A server that is being restarted is reported as if there were none.
    is_temporary = bounce.is_temporary or bounce.condition == "remote-server-not-found"
    state, due_at = decide_bounce(stored.attempts, is_temporary=is_temporary, now=now)
    return stored.moved(state, now, describe_reason(bounce.condition, bounce.text), due_at)


async def _emit(output: TurnOutput, block: AnyBlock) -> None:
    if isinstance(block, MarkdownBlock):
        await output.emit_text(block.content)
    elif isinstance(block, DataBlock):
        await output.emit_data(block)
    elif isinstance(block, UserErrorBlock):
        output.emit_error(block)


def _encode_turn(stored: StoredNotification, output: TurnOutput, now: datetime) -> str:
    """Encode a notification as the JSON text of an `Interaction` without an input."""
    said: dict[str, object] = {"text": "\n\n".join(output.texts)}
    if output.data_blocks:
        said["data"] = output.data_blocks
    if output.reported_error is not None:
        said["error"] = output.reported_error.dump()
    meta = {"channel": "notification", "notification": stored.notification_id}
    if stored.root:
        meta[ROOT_SENDER] = stored.root
    fields = {
        "interaction_id": stored.notification_id,
        "timestamp": now,
        "input": None,
        "output": said,
        "meta": meta,
        "lineage": {"root_request_id": stored.notification_id},
    }
    return to_json(fields).decode()
