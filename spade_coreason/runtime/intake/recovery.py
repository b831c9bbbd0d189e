"""The recovery of what the last run left in the inbox: unsent replies, and requests without a reply."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from ...contracts import ErrorCode
from ...domain.messages import Failed, InboundRequest
from ...domain.policy import RestartMode
from ...domain.texts.translation import translate, use_language
from ...storage import AgentRepository, Commit, PendingRequest
from ..access.admission import Admission
from ..commands.registry import Commands
from ..crash_guard import CrashGuard
from ..languages import PersonLanguages
from ..mailboxes.mailbox import QueuedRequest
from ..mailboxes.withdrawal import Withdrawal, find_replaced
from ..replies.outbox import Outbox
from ..replies.output import dump_reply
from .repeated_requests import identify

log = logging.getLogger(__name__)


class InboxRecovery:
    """The recovery of one agent's inbox at the start. `on_restart`: see `Policy`."""

    def __init__(
        self,
        repository: AgentRepository,
        withdrawal: Withdrawal,
        admission: Admission,
        outbox: Outbox,
        commands: Commands,
        languages: PersonLanguages,
        crash_guard: CrashGuard,
        on_restart: RestartMode,
    ) -> None:
        self._jid = repository.agent
        self._inbox = repository.inbox
        self._mailboxes = withdrawal.mailboxes
        self._withdrawal = withdrawal
        self._erased_people = admission.erased_people
        self._outbox = outbox
        self._commands = commands
        self._languages = languages
        self._crash_guard = crash_guard
        self._metrics = admission.metrics
        self._on_restart = on_restart
        self.without_channel: Counter[str] = Counter()
        """The number of stored requests and replies that wait for a channel which this agent does not have, by its name."""

    def recover(self, pending: Sequence[PendingRequest]) -> None:
        """Queue the pending requests, and those that arrived before the start behind them. Their replies wait in the outbox."""
        # Requests that arrived while the pending ones were loaded may be among them.
        early = self._mailboxes.take_waiting()
        early_rows = {queued.inbox_row for queued in early}
        self.without_channel.clear()
        requests: dict[int, InboundRequest] = {}
        for pending_request in pending:
            if pending_request.channel not in self._outbox.channels:
                self.without_channel[pending_request.channel] += 1
            elif pending_request.reply is not None:
                self._metrics.redeliveries["resent"] += 1
                self._outbox.add_unsent(pending_request.channel, pending_request.inbox_row, pending_request.reply)
            elif (incoming := self._read(pending_request)) is not None:
                requests[pending_request.inbox_row] = incoming
        for name, count in self.without_channel.items():
            log.warning(
                "%s: requests or replies that wait for the channel %s, which is not installed: %d; install it and start again",
                self._jid,
                name,
                count,
            )
        replaced_rows = find_replaced(requests)
        for pending_request in pending:
            inbox_row = pending_request.inbox_row
            if inbox_row in replaced_rows:
                self._inbox.close(inbox_row)
            elif inbox_row in requests and inbox_row not in early_rows:
                self._metrics.redeliveries["recovered"] += 1
                self._recover_request(requests[inbox_row], pending_request)
        for queued in early:
            if queued.inbox_row not in replaced_rows:
                if queued.incoming.headers.replaces:
                    self._withdrawal.withdraw_replaced(queued, True)
                self._mailboxes.put(queued, queued.incoming.owner)

    def queue(self, pending: PendingRequest) -> bool:
        """Queue a stored request that has its answer, or that an operator wants to run again. False if its channel is missing.

        One of a person who is refused is left to their deletion. If that is stopped before it comes to it, the request runs at
        the next start.
        """
        if pending.channel not in self._outbox.channels:
            self.without_channel[pending.channel] += 1
        elif (incoming := self._read(pending)) is not None:
            if not any(map(incoming.is_of, self._erased_people)):
                self._recover_request(incoming, pending, is_rerun=True)
            return True
        return False

    def _read(self, pending: PendingRequest) -> InboundRequest | None:
        """Read a stored request. One of a kind of channel that only a newer version has waits for that version: None."""
        try:
            return None if pending.request is None else InboundRequest.from_json(pending.request, pending.channel)
        except KeyError as error:
            self.without_channel[str(error.args[0])] += 1
            return None

    def _recover_request(self, incoming: InboundRequest, pending: PendingRequest, *, is_rerun: bool = False) -> None:
        """Queue or refuse a request that was received and not finished before the restart.

        A repeated request has a key that is not that of its content. It gets the answer to the request that it repeats.
        """
        key = UUID(bytes=pending.key)
        if (failed := self._crash_guard.find_failed(pending.inbox_row)) is not None:
            with use_language(self._languages.of_request(incoming)):
                text = (
                    translate("This request has crashed me, so I do not retry it. Please ask in another way.")
                    if failed.has_crashed
                    else translate(
                        "I was stopped again and again before I could answer this, so I do not retry it. Please ask again."
                    )
                )
            self._fail(incoming, pending, Failed(text, ErrorCode.INTERNAL, False))
            return
        own_key, digest = identify(self._jid, incoming)
        is_repeated = bool(pending.digest) and key != own_key
        may_have_begun = self._crash_guard.may_have_begun(self._jid, pending.inbox_row) and not self._mailboxes.gate.is_paused
        if may_have_begun and not (is_rerun or is_repeated or self._on_restart == "rerun"):
            with use_language(self._languages.of_request(incoming)):
                text = translate("I was interrupted before I could answer this. Please ask again.")
            self._fail(incoming, pending, Failed(text, ErrorCode.UNAVAILABLE, True))
            return
        for_agent, command, is_for_agent = self._commands.parse_request(incoming)
        queued = QueuedRequest(
            for_agent,
            own_key if is_repeated else key,
            pending.inbox_row,
            Commit.completed(not is_repeated),
            time.monotonic(),
            is_redelivered=True,
            command=command,
            is_for_agent=is_for_agent,
            digest=digest,
        )
        self._mailboxes.put(queued, incoming.owner)

    def _fail(self, incoming: InboundRequest, pending: PendingRequest, failure: Failed) -> None:
        messages = self._outbox.encode(incoming, UUID(bytes=pending.key), failure)
        self._outbox.add_unsent(pending.channel, pending.inbox_row, dump_reply(messages))
