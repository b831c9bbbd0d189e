"""The entry of an agent: every stanza for it is received here, live or from the archive.

The way of a message, by module:

1. `gateway` decodes the stanza and checks the access of the sender.
2. `runner` (`Runner.receive`) asks `admission` for capacity and stores the request in the inbox.
3. `thread_resolver` finds the thread of a reply; `dispatcher` puts the request into its `mailbox` and starts a worker.
4. The worker calls `Runner._run_turn`: `loader` loads the conversation; a command goes to `commands.executor`.
5. `turn` runs the agent with a `response`; the blocks and streams of the reply leave as stanzas.
6. `turn` stores the turn with its reply. Then `outbox` sends the last stanzas, and closes the request when the server has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from uuid import uuid4
from xml.etree.ElementTree import Element

from ..codec import archive_id, decode, encode_malformed_reply, encode_receipt, encoder_for
from ..concurrency import RateLimiter
from ..contracts import ErrorCode
from ..domain.access import AccessPolicy
from ..domain.jid import bare_jid
from ..domain.messages import Bounce, InboundRequest, MalformedRequest, Reaction, Refused, ReplyEvent, Retraction
from ..domain.value import replace
from .access_requests import AccessRequests
from .outbound_stanza import SendStanzas
from .peers import OpenRequests
from .runner import Runner

log = logging.getLogger(__name__)

_MAX_REPLIES_PER_MINUTE = 30  # replies to one sender whose JSON is no event


class InboundGateway:
    """The gateway of one agent: it routes each stanza by its meaning.

    - Requests go to the runner.
    - Events and bounces go to the open request that they answer.
    - Strangers are refused once.
    - The rest is dropped, and counted in `dropped`.
    """

    def __init__(self, runner: Runner, requests: OpenRequests, access: AccessPolicy, send: SendStanzas) -> None:
        self._runner = runner
        self._open_requests = requests
        self.access = access
        self._send = send
        self.access_requests = AccessRequests(access, runner.repository, runner.agent.manifest.metadata.name, send)
        runner.access_requests = self.access_requests
        self._rate_limiter = RateLimiter(_MAX_REPLIES_PER_MINUTE)
        self.dropped: Counter[str] = Counter()

    def is_allowed(self, jid: str) -> bool:
        """Return True if the configuration or an operator allows `jid` to talk to the agent."""
        return self.access.is_allowed(jid)

    def receive_stanza(self, stanza: Element) -> asyncio.Future[bool] | None:
        """Receive a `<message/>`. The returned future, if any, is done when the message may be acknowledged (XEP-0198)."""
        message = decode(stanza)
        if isinstance(message, InboundRequest):
            return self.receive(self._with_archive_id(message, stanza))
        if isinstance(message, ReplyEvent):
            self._open_requests.receive(message)
        elif isinstance(message, Bounce):
            self._open_requests.receive_bounce(message)
        elif isinstance(message, MalformedRequest):
            self._reply_to_malformed(message)
        elif isinstance(message, Retraction | Reaction):
            if self.access.is_allowed(message.sender):
                self.receive_reference(bare_jid(message.sender), message)
        else:
            self.dropped["no request"] += 1
        return None

    def receive_reference(self, owner: str, reference: Retraction | Reaction) -> None:
        """Receive a retraction of a request, or a reaction to a reply, in a conversation of `owner`, who has access."""
        if isinstance(reference, Retraction):
            self._runner.cancel_request(owner, reference.stanza_id)
        else:
            self._runner.record_reaction(owner, reference.stanza_id, reference.emojis, reference.nickname)

    async def receive_archived(self, stanza: Element) -> asyncio.Future[bool] | None:
        """Receive a `<message/>` from the archive (XEP-0313), once the queues have room for it.

        Strangers and malformed messages get no reply: their senders no longer wait for one. A duplicate gets no second
        receipt.
        """
        message = decode(stanza)
        if isinstance(message, InboundRequest) and self.access.is_allowed(message.sender):
            await self._runner.wait_for_capacity(message)
            return self.receive(self._with_archive_id(message, stanza), is_archived=True)
        if isinstance(message, ReplyEvent | Retraction | Reaction):
            return self.receive_stanza(stanza)
        self.dropped["no request"] += 1
        return None

    def _with_archive_id(self, incoming: InboundRequest, stanza: Element) -> InboundRequest:
        """Add the id that the archive gave the message, if its stanza has no id of its own."""
        if incoming.stanza_id:
            return incoming
        return replace(incoming, archive_id=archive_id(stanza, self._runner.jid))

    def receive(self, incoming: InboundRequest, *, is_archived: bool = False) -> asyncio.Future[bool] | None:
        """Receive a request, and return what `receive_stanza` returns.

        `is_archived` is True for a request from the archive. For a request from a room (it has an `owner`), the room has
        checked the access.
        """
        if bare_jid(incoming.sender) == self._runner.jid:
            self.dropped["from itself"] += 1
            return None
        if not incoming.owner and not self.access.is_allowed(incoming.sender):
            self._refuse(incoming)
            return None
        if incoming.wants_receipt and incoming.stanza_id:
            return self._runner.receive(incoming, partial(self._send_receipt, incoming, is_archived=is_archived))
        return self._runner.receive(incoming)

    def _send_receipt(self, incoming: InboundRequest, is_new: bool, *, is_archived: bool) -> None:
        if is_new or not is_archived:
            self._send([encode_receipt(incoming)])

    def _refuse(self, incoming: InboundRequest) -> None:
        stranger = bare_jid(incoming.sender)
        self.dropped["not admitted"] += 1
        is_asked = self.access_requests.ask_operators(stranger)
        if self.access_requests.record_refusal(stranger):
            return
        log.info("%s: refuses %s (access.allow)", self._runner.jid, stranger)
        text = "I may not talk with you. Ask whoever runs me for access."
        if is_asked:
            text = "I may not talk with you yet. I have asked whoever runs me, and tell you when I may."
        refusal = Refused(text, ErrorCode.FORBIDDEN)
        encoder = encoder_for(incoming, uuid4(), self._runner.jid, self._runner.policy.stanza_bytes)
        self._send(encoder.encode(refusal))

    def _reply_to_malformed(self, message: MalformedRequest) -> None:
        self.dropped["malformed"] += 1
        if bare_jid(message.sender) == self._runner.jid or not self.access.is_allowed(message.sender):
            return
        if message.request_id is None and not self._rate_limiter.allow(bare_jid(message.sender)):
            # No request waits for this reply, and a program may answer each of ours with malformed JSON again, without end.
            return
        self._send(encode_malformed_reply(message, self._runner.jid, self._runner.policy.stanza_bytes))
