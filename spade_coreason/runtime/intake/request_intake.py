"""The intake of requests: each new one goes to the inbox, which stores it, and to its mailbox. Others are refused here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from uuid import UUID, uuid4

from ...concurrency import RateLimiter
from ...domain.duplicates import NO_EVIDENCE
from ...domain.identifiers import NO_DIGEST, derive_inbox_key, derive_request_key
from ...domain.messages import InboundRequest, Refused, TextEmitted
from ...domain.texts.translation import LANGUAGE, N_, translate, use_language
from ...storage import AgentRepository, Commit, Rows
from ..access.admission import Admission, FloodLimit, Refusal
from ..channels import RequestState
from ..commands.registry import Commands
from ..languages import PersonLanguages
from ..mailboxes.mailbox import QueuedRequest
from ..mailboxes.withdrawal import Withdrawal, inherit
from ..questions.desk import QuestionDesk
from .repeated_requests import RepeatedRequests, identify

log = logging.getLogger(__name__)

PAUSED_NOTICE = N_("I am paused at the moment. Your message is stored, and I answer it later.")

_MAX_DUPLICATES_PER_MINUTE = 3000
"""Largest number of requests of one sender within a minute that are looked up because they may be duplicates."""


class RequestIntake:
    """The intake of one agent's requests, from the gateway to the mailboxes."""

    def __init__(
        self,
        repository: AgentRepository,
        withdrawal: Withdrawal,
        admission: Admission,
        commands: Commands,
        repeated: RepeatedRequests,
        desk: QuestionDesk,
        languages: PersonLanguages,
        clock: Callable[[], datetime],
    ) -> None:
        self.jid = repository.agent
        self._inbox = repository.inbox
        self._mailboxes = withdrawal.mailboxes
        self._gate = withdrawal.mailboxes.gate
        self._withdrawal = withdrawal
        self._admission = admission
        self._metrics = admission.metrics
        self._commands = commands
        self._desk = desk
        self._repeated = repeated
        self._outbox = repeated.outbox
        self.languages = languages
        """The languages that people have set."""
        self._clock = clock
        self.flood_limit = FloodLimit()
        """The senders whose further requests are to be dropped before they come here."""
        self._duplicate_limiter = RateLimiter(_MAX_DUPLICATES_PER_MINUTE)
        self._pause_limiter = RateLimiter()

    def receive(self, incoming: InboundRequest, *, is_archived: bool = False) -> Commit[bool] | None:
        """Receive a request, and return its commit: True if it is new, False for a duplicate, which is not run.

        `is_archived` is True for a request from the archive. Returns None if the request is refused and not stored
        (`admission`). The sender is told.
        """
        language = self.languages.of_request(incoming)
        token = None if language is LANGUAGE.get() else LANGUAGE.set(language)
        try:
            sender, inbox = incoming.owner, self._inbox
            if incoming.thread is None:
                incoming = self._mailboxes.resolve_thread(incoming, sender)
            digest = NO_DIGEST
            if incoming.request_id is None:
                key = derive_inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.evidence.server_id)
            else:
                key, digest = identify(self.jid, incoming)
            message_key = key.bytes
            is_known = inbox.may_have(message_key)
            # A message that says nothing about its origin is no copy: many clients number their messages from 1 at each start.
            may_be_duplicate = is_known and (bool(digest) or incoming.evidence is not NO_EVIDENCE)
            for_agent, command, is_for_agent = incoming, None, True
            text = str(incoming.payload.get("query", ""))
            if not incoming.kind.is_human or text.lstrip().startswith(self._commands.prefixes):  # few messages
                for_agent, command, is_for_agent = self._commands.parse_request(incoming)
            if may_be_duplicate and not self._duplicate_limiter.allow(sender):
                self._metrics.refusals["duplicates"] += 1
                self._tell_of_flood(incoming, self.flood_limit.begin(incoming))
                return None
            if may_be_duplicate and digest and (attached := self._repeated.attach_new(incoming, key, digest)) is not None:
                return attached
            refusal = self._admission.refuse(for_agent, is_for_agent=is_for_agent, may_be_duplicate=may_be_duplicate)
            if refusal is not None:
                self._tell_of_refusal(incoming, refusal)
                return None
            replaces = incoming.headers.replaces
            if replaces and not may_be_duplicate:
                withdrawn = self._withdrawal.withdraw(sender, replaces, incoming.room.author)
                if withdrawn is not None:
                    incoming, for_agent = inherit(incoming, withdrawn), inherit(for_agent, withdrawn)
            # An agent gets a copy of the payload of a person, and cannot change its only text.
            is_text_only = incoming.request_id is None and incoming.kind.is_human and len(incoming.payload) == 1
            request = incoming.to_json if is_text_only else incoming.to_json()
            if is_known and not digest:
                key = uuid4()  # an earlier message has the key of this id and content
            inbox_row, stored, may_start_early = inbox.receive(
                message_key,
                sender,
                request,
                self._clock(),
                digest=digest,
                evidence=incoming.evidence,
                channel=incoming.channel_name,
                may_be_duplicate=is_known,
                own_key=key.bytes if is_known else None,
            )
            received_at_s = time.monotonic()
            queued = QueuedRequest(
                for_agent,
                key,
                inbox_row,
                stored,
                received_at_s,
                may_start_early,
                False,
                command,
                may_be_duplicate,
                is_for_agent,
                digest,
                is_archived,
            )
            if command is not None:
                self._withdrawal.cancel_if_requested(queued, sender)
            if self._gate.is_paused:
                stored.on_stored(partial(self._notify_of_pause, queued))
            if replaces and may_be_duplicate:
                stored.on_stored(partial(self._withdrawal.withdraw_replaced, queued))
            self._mailboxes.put(queued, sender)
            return stored
        finally:
            if token is not None:
                LANGUAGE.reset(token)  # the caller may be the turn of another agent, which asks this one

    def receive_due(self, incoming: InboundRequest, rows: Rows, missed_at: datetime | None = None) -> Commit[bool] | Refused:
        """Receive the request of a due time, and store `rows` of its schedule in the same transaction.

        Return its commit, or the refusal if a limit refuses it. Then nothing is stored or sent. After `missed_at` its turn
        does not begin.
        """
        if incoming.request_id is None:
            raise ValueError("the request of a due time has an id")
        refusal = None if incoming.owner == self.jid else self._admission.refuse(incoming, is_for_agent=True)
        if refusal is not None:
            problem = refusal.problem
            return problem if isinstance(problem, Refused) else Refused(problem.message, problem.code)
        key = derive_request_key(self.jid, incoming.owner, incoming.request_id)
        inbox_row, stored, may_start_early = self._inbox.receive(
            key.bytes,
            incoming.owner,
            incoming.to_json(),
            self._clock(),
            channel=incoming.channel_name,
            may_be_duplicate=False,
            also=rows,
        )
        queued = QueuedRequest(incoming, key, inbox_row, stored, time.monotonic(), may_start_early, missed_at=missed_at)
        self._mailboxes.put(queued, incoming.owner)
        return stored

    def cancel_request(self, sender: str, message_id: str, author: str | None = "") -> Commit[bool] | None:
        """Cancel an unanswered request of `sender` (a bare JID), also one that waits for a person's answer.

        Return its commit, or None if there was no such request. `author` is that of a `Retraction`.
        """
        message_ids = (message_id,) if message_id else ()
        if self._withdrawal.withdraw(sender, message_ids, author) is None:
            return self._desk.end_of_messages(sender, message_ids, author)
        return self._inbox.flush()

    async def find_state(self, owner: str, request_id: UUID, channel: str) -> RequestState | None:
        """Return the state of a program's request of `owner` (a bare JID), by the channel of a name. None without one."""
        return await self._repeated.find_state(derive_request_key(self.jid, owner, request_id), channel)

    async def repeat_reply(self, incoming: InboundRequest) -> bool:
        """Send the reply to an earlier request once more, to the sender and by the channel of `incoming`, which has its id.

        Nothing is asked anew: the rest of `incoming` does not count. If the turn still runs, the reply follows as it comes.
        Return False if there was no such request of this sender within seven days.
        """
        if incoming.request_id is None:
            return False
        with use_language(self.languages.of_request(incoming)):
            if not self._duplicate_limiter.allow(incoming.owner):
                self._outbox.send_problem(incoming, FloodLimit.make_notice())
                return True
            return await self._repeated.repeat(incoming, derive_request_key(self.jid, incoming.owner, incoming.request_id))

    # Refusals and notices

    def refuse_late(self, queued: QueuedRequest) -> bool:
        """Ask the limits and the interceptors about a request that looked like a duplicate and is none. True if one refuses."""
        if queued.is_redelivered:
            return False
        if (refusal := self._admission.refuse_new(queued.incoming, is_for_agent=queued.is_for_agent)) is None:
            return False
        self._inbox.close(queued.inbox_row)
        self._tell_of_refusal(queued.incoming, refusal, queued.key)
        return True

    def _tell_of_refusal(self, incoming: InboundRequest, refusal: Refusal, key: UUID | None = None) -> None:
        refusal.when_recorded(partial(self._outbox.send_problem, incoming, refusal.problem, key))
        self._tell_of_flood(incoming, self.flood_limit.record_refusal(incoming))

    def _tell_of_flood(self, incoming: InboundRequest, has_begun: bool) -> None:
        if has_begun:
            log.warning("%s: ignores %s for a minute: it had to refuse too many of its requests", self.jid, incoming.owner)
            self._outbox.send(incoming, FloodLimit.make_notice())

    def _notify_of_pause(self, queued: QueuedRequest, is_new: bool) -> None:
        """Tell a person that their message is stored until the pause ends. Programs get no notice: they wait for a reply."""
        incoming = queued.incoming
        if not is_new or not self._gate.is_paused or not incoming.kind.is_human:
            return
        if queued.is_for_agent and self._pause_limiter.allow(incoming.owner):
            with use_language(self.languages.of_request(incoming)):
                notice = TextEmitted(translate(PAUSED_NOTICE), 1)
            self._outbox.send(incoming, notice)
