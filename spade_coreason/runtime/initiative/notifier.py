"""The notifier of one agent: it sends notifications when they are due, and learns what becomes of them.

The row of a notification is its outbox: it is composed once, in the order of the conversation, and stored with its turn before
it is sent. `domain/initiative/notifications.py` has the decisions as tables.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from ...concurrency import RateLimiter
from ...contracts import AnyBlock, DataBlock, MarkdownBlock, NotificationState, UserErrorBlock
from ...domain.initiative.notifications import decide_bounce, describe_reason
from ...domain.jid import bare_jid
from ...domain.messages import ROOT_SENDER, Bounce, Completed
from ...exceptions import StoreError
from ...memory import HistoryWindows
from ...storage import NOTIFICATION, AgentRepository, Commit, Task, TurnRecord
from ..channels import OutboundMessage
from ..conversations.conversation_loader import ConversationLoader
from ..mailboxes.mailbox import Mailbox, MailboxTask
from ..mailboxes.mailboxes import Mailboxes
from ..replies.output import TurnOutput, TurnOutputs
from ..tasks import Next, RunningTask
from .notifications import AgentNotifications, decided, load_blocks

log = logging.getLogger(__name__)

_MAX_BOUNCES_PER_MINUTE = 60
"""The most bounces of one sender within a minute that are looked up."""


class Notifier:
    """Sends the notifications of one agent (`TaskHandler`)."""

    waits = True
    failed = NotificationState.FAILED.value, "it cannot be sent; see the log"
    most = 1000

    def __init__(
        self,
        repository: AgentRepository,
        notifications: AgentNotifications,
        mailboxes: Mailboxes,
        loader: ConversationLoader,
        history_windows: HistoryWindows,
        outputs: TurnOutputs,
        max_interactions: int,
    ) -> None:
        self._questions = repository.questions
        self._notifications = notifications
        self._tasks = notifications.tasks
        self._queue = notifications.queue
        self._channel = notifications.channel
        self._mailboxes = mailboxes
        self._loader = loader
        self._history_windows = history_windows
        self._outputs = outputs
        self._max_interactions = max_interactions
        self._bounce_limiter = RateLimiter(_MAX_BOUNCES_PER_MINUTE)
        notifications.tasks.add_handler(NOTIFICATION, self)

    # The clock

    def run(self, task: Task, now: datetime) -> Next:
        """Send a notification in the order of its conversation. What becomes of it ends the task."""
        running, mailboxes = self._tasks.in_flight[task.id], self._mailboxes
        delivered = asyncio.get_running_loop().create_future()
        delivered.add_done_callback(partial(self._on_delivered, running))
        mailbox = mailboxes.get_or_create(task.owner, task.thread)
        mailboxes.put_task(mailbox, MailboxTask(partial(self._deliver, mailbox, running, task), True, delivered))
        return ...

    def _on_delivered(self, running: RunningTask, delivered: asyncio.Future[bool]) -> None:
        error = None if delivered.cancelled() else delivered.exception()
        if error is not None:
            self._tasks.fail(running, error)
        elif delivered.cancelled() or not delivered.result():  # it was deleted, or its conversation was, or the agent stops
            self._tasks.hand_back(running)

    async def _deliver(self, mailbox: Mailbox, running: RunningTask, task: Task) -> bool:
        """Send a notification if it still may be sent. Return False if it was not, and has no other state."""
        now = self._tasks.now()
        if not self._is_current(running, task):
            return False
        preferences, values = await self._notifications.find_preferences(task.owner), task.values
        if "question" in values["content"]:
            preferences = replace(preferences, notifications=None)  # questions come also to those who want no notifications
        decision = self._notifications.decide(task.owner, preferences, now, None)
        if decision.state is not NotificationState.WAITING or decision.due_at > now:
            self._end(running, task, decided(task, decision, now))
            return True
        composed = task if "messages" in values else await self._compose(mailbox, running, task, values, now)
        if composed is None or not self._is_current(running, task):
            return running.commit is not None
        running.task = composed._replace(attempts=composed.attempts + 1)
        self._transmit(running, running.task, values)
        return True

    def _is_current(self, running: RunningTask, task: Task) -> bool:
        """Return False if a notification was deleted or came back."""
        return self._tasks.is_current(running) and running.task is task

    def _end(self, running: RunningTask, task: Task, ended: Task) -> None:
        """Store what becomes of a notification. What the server says late about an earlier state does not count."""
        if self._is_current(running, task):
            self._tasks.end(running, ended)

    async def _compose(
        self, mailbox: Mailbox, running: RunningTask, task: Task, values: dict[str, Any], now: datetime
    ) -> Task | None:
        """Make the messages of a notification, and store them with its turn. None if there are none, or it was deleted."""
        content = values["content"]
        active = mailbox.active or await self._loader.load(mailbox)
        output = self._outputs.open_held(self._channel, task.owner, task.thread, UUID(task.key))
        if "question" in content:
            output.emit_question(content["question"], tuple(map(tuple, content["choices"])))
        else:
            for block in load_blocks(content):
                await _emit(output, block)
        output.finish(Completed(active.record.conversation_id, "active"))
        if not output.sender.messages:
            failed = task.moved(now, NotificationState.FAILED.value, "nothing of it can be shown in a chat")
            self._end(running, task, failed)
            return None
        if mailbox.active is not active or not self._is_current(running, task):
            return None  # the conversation was reset or deleted meanwhile
        values["messages"] = [message.content for message in output.sender.messages]
        composed = task._replace(data=to_json(values).decode())
        record, windows = active.record, self._history_windows
        text = _encode_turn(composed, output, now)
        turn, turns, window_start = windows.append(active.turns, text, record.turns + 1, active.variables)
        window_start = max(window_start, record.window_start)
        record = record.with_turns(record.status, self._max_interactions, window_start, record.turns + 1)
        active.record = record
        try:
            await self._queue.store_turn(composed, record, TurnRecord(output.sender.encoder.key, now, turn.text, task.root))
        except StoreError:
            mailbox.active = None  # it has a turn that is not stored
            raise
        active.turns, active.last_reply = turns, "\n\n".join(output.texts).strip()
        if windows.compacts:
            windows.compact_later(active)
        return composed

    def _transmit(self, running: RunningTask, task: Task, values: dict[str, Any]) -> None:
        messages: list[OutboundMessage] = [self._channel.load_message(content) for content in values["messages"]]
        last = messages[-1]
        last.is_last = True
        last.on_acknowledged = lambda: self._end(running, task, task.moved(self._tasks.now(), NotificationState.SENT.value))
        last.on_refused = partial(self._on_refused, running, task)
        if "question" in values["content"]:
            request = values["content"].get("request")
            last.on_written = partial(self._questions.mark_shown, request, in_reply=False)
        self._channel.send(messages)

    def _on_refused(self, running: RunningTask, task: Task, reason: str) -> None:
        if (described := describe_reason(reason)) == reason:  # a state of the room, or a condition without a remedy
            described = f"the room does not take it; invite the agent again, or write to another room ({reason})"
        self._end(running, task, task.moved(self._tasks.now(), NotificationState.BOUNCED.value, described))

    # Bounces

    def receive_bounce(self, bounce: Bounce) -> Commit[bool] | None:
        """Receive a message that came back. If it may be one of a notification, return the commit of its state."""
        try:
            key = str(UUID(bounce.stanza_id[:36]))
        except ValueError:
            return None
        now = self._tasks.now()
        if (running := self._tasks.find(NOTIFICATION, key)) is not None:
            ended = _bounce(running.task, bounce, now)
            return None if ended is None else self._tasks.end(running, ended)
        if not self._bounce_limiter.allow(bare_jid(bounce.sender)):
            return None
        # One that waits was sent by an earlier run of the platform: it is sent again, and comes back again.
        commit = self._queue.change(lambda task: _bounce(task, bounce, now), key=key, state=NotificationState.SENT.value)
        commit.on_failed(partial(log.error, "%s: a notification came back, and that cannot be stored: %s", self._tasks.agent))
        return self._tasks.watch(commit)


def _bounce(task: Task, bounce: Bounce, now: datetime) -> Task | None:
    """Return a notification as it is when it came back. None if the bounce is not its own, or an earlier one counts."""
    if task.owner != bare_jid(bounce.sender).lower():
        return None
    if task.state not in (NotificationState.SENT, NotificationState.WAITING):
        return None
    # A server that is being restarted is reported as if there were none.
    is_temporary = bounce.is_temporary or bounce.condition == "remote-server-not-found"
    state, due_at = decide_bounce(task.attempts, is_temporary=is_temporary, now=now)
    return task.moved(now, state.value, describe_reason(bounce.condition, bounce.text), due_at)


async def _emit(output: TurnOutput, block: AnyBlock) -> None:
    if isinstance(block, MarkdownBlock):
        await output.emit_text(block.content)
    elif isinstance(block, DataBlock):
        await output.emit_data(block)
    elif isinstance(block, UserErrorBlock):
        output.emit_error(block)


def _encode_turn(task: Task, output: TurnOutput, now: datetime) -> str:
    """Encode a notification as the JSON text of an `Interaction` without an input."""
    said: dict[str, object] = {"text": "\n\n".join(output.texts)}
    if output.data_blocks:
        said["data"] = output.data_blocks
    if output.reported_error is not None:
        said["error"] = output.reported_error.dump()
    meta = {"channel": "notification", "notification": task.key} | ({ROOT_SENDER: task.root} if task.root else {})
    fields = {
        "interaction_id": task.key,
        "timestamp": now,
        "input": None,
        "output": said,
        "meta": meta,
        "lineage": {"root_request_id": task.key},
    }
    return to_json(fields).decode()
