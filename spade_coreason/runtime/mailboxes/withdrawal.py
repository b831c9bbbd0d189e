"""Requests that are taken back: by a correction (XEP-0308), a retraction, `/cancel`, a deletion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ...domain.forms.command_parser import ParsedCommand
from ...domain.messages import SCHEDULE, InboundRequest
from ...storage import Inbox
from .mailbox import Mailbox, MailboxTask, QueuedRequest
from .mailboxes import Mailboxes


class Withdrawal:
    """Takes requests of one agent out of their mailboxes for good, and closes them in the inbox."""

    def __init__(self, mailboxes: Mailboxes, inbox: Inbox) -> None:
        self.mailboxes = mailboxes
        self._inbox = inbox

    def withdraw(
        self,
        sender: str,
        message_ids: Iterable[str],
        author: str | None = "",
        *,
        before_row: float = math.inf,
        is_late: bool = False,
    ) -> InboundRequest | None:
        """Withdraw the latest unanswered version of a message: remove it from its queue, or stop its turn, and close it.

        The message is one of a sender (a bare JID) and an author (`RoomOrigin.author`; None for any), with one of these
        ids. `before_row` limits it to requests with a lower row in the inbox, and `is_late` to messages that bear
        such an id themselves and were sent while the agent was away. Return the request, or None if there is none.
        """
        ids = set(message_ids)
        versions = [
            (mailbox, queued)
            for mailbox, queued in self._unanswered(sender)
            if not ids.isdisjoint(queued.incoming.message_ids)
            and (author is None or author == queued.incoming.room.author)
            and queued.inbox_row < before_row
            and (not is_late or _is_late(queued.incoming, ids))
        ]
        if not versions:
            return None
        _, latest = max(versions, key=lambda version: (not version[1].may_be_duplicate, version[1].inbox_row))
        for mailbox, queued in versions:
            if queued.key != latest.key:  # neither itself nor a repetition
                continue
            if mailbox.current is queued:
                mailbox.cancel_current()
                self._inbox.close(queued.inbox_row)  # now: a stop may come before the turn has ended
            else:
                self.drop(mailbox, queued)
        return latest.incoming

    def withdraw_replaced(self, correction: QueuedRequest, is_new: bool) -> None:
        """Withdraw the version that a stored correction replaces.

        A correction that is not new may have come live, before the archive delivered the message that it corrects.
        """
        incoming = correction.incoming
        self.withdraw(
            incoming.owner,
            incoming.headers.replaces,
            incoming.room.author,
            before_row=correction.inbox_row,
            is_late=not is_new,
        )

    def has_due(self, sender: str, schedule: str) -> bool:
        """Return True if a request of a schedule of a sender (a bare JID) waits for its turn."""
        return any(
            queued.incoming.metadata.get(SCHEDULE) == schedule and queued.stored.error is None and queued is not mailbox.current
            for mailbox, queued in self._unanswered(sender)
        )

    def _unanswered(self, sender: str) -> Iterator[tuple[Mailbox, QueuedRequest]]:
        """Iterate over the requests of a sender (a bare JID) that wait or run and are not cancelled, with their mailboxes."""
        for mailbox in self.mailboxes.of_sender(sender):
            if mailbox.current is not None and not mailbox.is_cancelled:
                yield mailbox, mailbox.current
            for item in mailbox.queue:
                if isinstance(item, QueuedRequest):
                    yield mailbox, item

    def drop_matching(self, is_dropped: Callable[[InboundRequest], bool]) -> list[QueuedRequest]:
        """Remove the requests that wait and that a function chooses. Return them."""
        dropped = []
        for mailbox in self.mailboxes:
            for item in list(mailbox.queue):
                if isinstance(item, QueuedRequest) and is_dropped(item.incoming):
                    self.drop(mailbox, item)
                    dropped.append(item)
        return dropped

    def drop(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        """Remove an item from the queue of a mailbox: close the request, or cancel the future of the task."""
        mailbox.remove(item)
        if isinstance(item, MailboxTask):
            item.future.cancel()
        else:
            self.mailboxes.close_request(item)

    def drop_all(self, mailbox: Mailbox) -> None:
        """Remove all items from the queue of a mailbox."""
        for item in list(mailbox.queue):
            self.drop(mailbox, item)

    def cancel(self, mailbox: Mailbox) -> bool:
        """Stop the current turn of a mailbox, or drop the request whose turn is held back. False if there is none."""
        if mailbox.cancel_current():
            return True
        if (held := self.mailboxes.archive_hold.find(mailbox)) is not None:
            self.drop(mailbox, held)
        return held is not None

    def cancel_turns(self, sender: str) -> int:
        """Cancel the running turns of a sender (a bare JID) in all conversations. Return their number."""
        answering = [
            mailbox
            for mailbox in self.mailboxes.of_sender(sender)
            if mailbox.current is not None and mailbox.current.is_for_agent
        ]
        return sum(mailbox.cancel_current() for mailbox in answering)

    def cancel_if_requested(self, queued: QueuedRequest, sender: str) -> None:
        """Stop the running turn of a conversation if a request there is `/cancel`. The reply to it waits for its turn.

        A `/cancel` that is delivered again does not stop the turn that runs by then. `sender` is a bare JID.
        """
        if not isinstance(queued.command, ParsedCommand) or queued.command.command.name != "cancel":
            return
        mailbox = self.mailboxes.get(sender, queued.incoming.thread)
        if mailbox is None:
            return
        # A callback would stop this request itself, which runs by then.
        if mailbox.worker is None and self.mailboxes.archive_hold.find(mailbox) is None:
            mailbox.has_cancelled_turn = False
        elif queued.may_start_early:
            self._cancel_if_new(mailbox, True)
        else:
            queued.stored.on_stored(partial(self._cancel_if_new, mailbox))

    def _cancel_if_new(self, mailbox: Mailbox, is_new: bool) -> None:
        if is_new:
            mailbox.has_cancelled_turn = self.cancel(mailbox)


def inherit(correction: InboundRequest, earlier: InboundRequest) -> InboundRequest:
    """Return a correction with what it has from the version that it replaces: the first ids, and the thread if it has none.

    Clients name the first version in every correction, as XEP-0308 demands, or the version before. So a correction is known
    by the ids of both.
    """
    first_ids = (earlier.headers.replaces or earlier.message_ids)[-2:]
    ids = tuple(dict.fromkeys((*correction.headers.replaces, *first_ids)))
    headers = correction.headers._replace(replaces=ids)
    return replace(correction, headers=headers, thread=correction.thread or earlier.thread)


def find_replaced(requests: Mapping[int, InboundRequest]) -> set[int]:
    """Return the rows of the requests that a later one replaces. `requests` are those of one agent by row, oldest first."""
    latest: dict[tuple[str, str, str], int] = {}
    replaced = set()
    for row, request in requests.items():
        for message_id in request.headers.replaces:
            earlier = latest.get((request.owner, request.room.author, message_id))
            if earlier is not None:
                replaced.add(earlier)
        for message_id in request.message_ids:
            latest[request.owner, request.room.author, message_id] = row
    return replaced


def _is_late(incoming: InboundRequest, ids: set[str]) -> bool:
    return "delayed_since" in incoming.metadata and not ids.isdisjoint((incoming.stanza_id, incoming.headers.origin_id))
