"""The entry of an agent: every message for it is received here, live or from the archive.

The way of a message, by module (docs/explanation/architecture.md has it in full):

1. `gateway` routes the decoded message and checks the access of the sender.
2. `request_intake` asks `admission`, and stores the request in the inbox.
3. `mailboxes` finds the thread of a reply, puts the request into its mailbox, and starts a worker.
4. `request_handler` answers it: `conversation_loader` loads the conversation; a command goes to `commands.executor`.
5. `turn_execution` runs the agent with a `response`. `output` makes messages of what it says, in the form of its channel.
6. The turn is stored with its reply. Then `outbox` sends the last messages, and closes the request when they have arrived.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any
from uuid import UUID, uuid4

from ...concurrency import RateLimiter
from ...contracts import ErrorCode
from ...domain.access import NO_ACCESS
from ...domain.callers import refuse_caller
from ...domain.channel_kinds import DEFAULT_CHANNEL
from ...domain.jid import bare_jid, parse_jid
from ...domain.messages import (
    Bounce,
    EncryptedMessage,
    InboundMessage,
    InboundRequest,
    MalformedRequest,
    Reaction,
    Refused,
    ReplyBatch,
    ReplyEvent,
    RequestBatch,
    Retraction,
    bind,
)
from ...domain.texts.translation import N_, translate, use_language
from ...domain.topics import TOPIC_ITEM
from ...storage import Commit
from ..access.access_requests import AccessRequests
from ..access.known_people import KnownPeople
from ..channels import AgentNetwork, RequestState, encode_reply
from ..initiative.notifier import Notifier
from ..mailboxes.limits import MailboxCapacity
from ..peers.peers import Peers
from ..peers.topic_requests import ItemReader
from .received_reactions import ReceivedReactions
from .request_intake import RequestIntake

log = logging.getLogger(__name__)

_MAX_TOLD = 10_000
_MAX_REPLIES_PER_MINUTE = 30  # replies to one sender whose JSON is no event, or who has no access


ASKED_FOR_ACCESS = N_("You don't have access to me yet. I have asked my operator, and tell you when you may write to me.")


class InboundGateway:
    """The gateway of one agent: it routes each message by its meaning.

    - Requests go to the runner.
    - Events and bounces go to the open request that they answer.
    - Strangers are refused: people once, programs each time. With `access.strangers: silent` they are not told.
    - The rest is dropped, and counted in `dropped`.
    """

    def __init__(
        self,
        intake: RequestIntake,
        reactions: ReceivedReactions,
        peers: Peers,
        access_requests: AccessRequests,
        network: AgentNetwork,
        people: KnownPeople,
        capacity: MailboxCapacity,
        notifier: Notifier,
    ) -> None:
        self._intake = intake
        self._jid = intake.jid
        self._reactions = reactions
        self._items = ItemReader(peers.options.topic_broker)
        self._open_requests = peers.requests
        self.access = access_requests.access
        self.access_requests = access_requests
        self._channels, self._notices = network.channels, network.notices
        self._trusted_agents = peers.options.trusted_agents
        self._people = people
        self.capacity = capacity
        self._notifier = notifier
        self._rate_limiter = RateLimiter(_MAX_REPLIES_PER_MINUTE)
        self._told_of_encryption: OrderedDict[str, None] = OrderedDict()
        self.dropped: Counter[str] = Counter()

    def is_allowed(self, jid: str) -> bool:
        """Return True if the configuration or an operator allows `jid` to talk to the agent."""
        return self.access.is_allowed(jid)

    def receive(
        self, message: InboundMessage, *, is_archived: bool = False, channel: str = DEFAULT_CHANNEL
    ) -> Commit[bool] | None:
        """Receive a message, by the channel of a name.

        Once the returned commit, if any, is done, the message may be acknowledged to the network.
        `is_archived` is True if the network kept it while the agent was away, and newer ones may have come before it.
        Raise KeyError if the agent has no channel of that name.
        """
        if channel is not DEFAULT_CHANNEL:
            self._channels[channel]  # before a request is stored that nothing could answer
            message = bind(message, channel)
        if isinstance(message, InboundRequest):
            return self.receive_request(message, is_archived=is_archived)
        if isinstance(message, RequestBatch):
            return _join([self.receive(request, is_archived=is_archived, channel=channel) for request in message.requests])
        if isinstance(message, Bounce):
            stored = self._notifier.receive_bounce(message)
            if not self._open_requests.route(message):
                self.dropped["no request"] += 1
            return stored
        if self._open_requests.route(message):
            return None
        if isinstance(message, EncryptedMessage):
            self._reply_to_encrypted(message)
        elif isinstance(message, MalformedRequest):
            self._reply_to_malformed(message)
        elif isinstance(message, Retraction | Reaction):
            if self.access.is_allowed(owner := bare_jid(message.sender)):
                return self.receive_reference(owner, message)
        else:
            self.dropped["no request"] += 1
        return None

    def receive_reference(self, owner: str, reference: Retraction | Reaction) -> Commit[bool] | None:
        """Receive a retraction of a request, or a reaction to a reply, in a conversation of `owner`, who has access.

        Return what `receive` returns.
        """
        if isinstance(reference, Retraction):
            return self._intake.cancel_request(owner, reference.stanza_id, reference.author)
        if not self._reactions.receive_reaction(owner, reference.stanza_id, reference.emojis, reference.nickname):
            self.dropped["too many reactions"] += 1
        return None

    async def receive_archived(self, message: InboundMessage) -> Commit[bool] | None:
        """Receive a message from the archive of the network, once the queues have room for it.

        Strangers and malformed messages get no reply: their senders no longer wait for one. A duplicate gets no second
        receipt.
        """
        if isinstance(message, InboundRequest):
            message = self._items.read(message)
            if message.is_topic_item or self.access.is_allowed(message.owner):
                await self.capacity.wait(message)
                return self.receive_request(message, is_archived=True)
        if isinstance(message, RequestBatch):
            return _join([await self.receive_archived(request) for request in message.requests])
        if isinstance(message, ReplyEvent | ReplyBatch | Retraction | Reaction | EncryptedMessage):
            return self.receive(message)
        self.dropped["no request"] += 1
        return None

    def receive_request(self, incoming: InboundRequest, *, is_archived: bool = False) -> Commit[bool] | None:
        """Receive a request, and return what `receive` returns.

        For a request from a room (it has an address), the room has checked the access.
        """
        sender = bare_jid(incoming.sender)
        if sender == self._jid:
            self.dropped["from itself"] += 1
            return None
        if TOPIC_ITEM in incoming.metadata:
            incoming = self._items.read(incoming)
        # The configured broker is admitted with items of topics, and with nothing else.
        if not incoming.room.address and not self.access.is_allowed(sender) and not incoming.is_topic_item:
            self._refuse(incoming)
            return None
        self._people.record(sender, incoming.kind)
        context = incoming.context
        if context.hops or context.root_sender:
            is_trusted = sender in self._trusted_agents
            root_sender = _parse_person(context.root_sender) if is_trusted and context.root_sender else ""
            is_hidden = not is_trusted or (bool(context.root_sender) and not root_sender)
            known_context = context._replace(root_sender=root_sender, hides_person=is_hidden)
            if known_context != context:
                incoming = replace(incoming, context=known_context)
        flood_limit = self._intake.flood_limit
        if flood_limit.has_refusals and flood_limit.is_flood(incoming):
            self.dropped["too many refused"] += 1
            return None
        stored = self._intake.receive(incoming, is_archived=is_archived)
        if stored is not None and incoming.headers.wants_receipt and incoming.stanza_id:
            stored.on_stored(partial(self._send_receipt, incoming, is_archived=is_archived))
        return stored

    async def repeat_reply(self, incoming: InboundRequest, *, channel: str) -> bool:
        """Send the reply to an earlier request once more, by the channel of a name; see `RequestIntake.repeat_reply`.

        Return False too if the sender has no access.
        """
        bound = replace(incoming, channel_name=channel)
        return self.access.is_allowed(incoming.owner) and await self._intake.repeat_reply(bound)

    async def find_state(self, owner: str, request_id: UUID, *, channel: str) -> RequestState | None:
        """Return the state of a program's request of `owner` (a bare JID); see `RequestIntake.find_state`.

        None too if the owner has no access.
        """
        return await self._intake.find_state(owner, request_id, channel) if self.access.is_allowed(owner) else None

    def cancel_request(self, owner: str, request_id: UUID) -> Commit[Any] | None:
        """Cancel a program's request of `owner` (a bare JID); see `RequestIntake.cancel_request`.

        None too if the owner has no access.
        """
        return self._intake.cancel_request(owner, str(request_id)) if self.access.is_allowed(owner) else None

    def _send_receipt(self, incoming: InboundRequest, is_new: bool, *, is_archived: bool) -> None:
        if is_new or not is_archived:
            channel = self._channels[incoming.channel_name]
            if (receipt := channel.encode_receipt(incoming)) is not None:
                channel.send([receipt])

    def _refuse(self, incoming: InboundRequest) -> None:
        stranger = incoming.owner
        self.dropped["not admitted"] += 1
        is_asked = self.access_requests.ask_operators(stranger)
        if not self.access_requests.record_refusal(stranger):
            log.info("%s: refused %s (access.allow)", self._jid, stranger)
        elif not incoming.kind.is_program or not self._rate_limiter.allow(stranger):
            return  # people are told once; a program waits for a reply to each request
        if self.access.is_silent:
            return
        with use_language(self.access_requests.languages.of_request(incoming)):
            text = translate(ASKED_FOR_ACCESS if is_asked else NO_ACCESS)
        refusal = Refused(text, ErrorCode.FORBIDDEN)
        channel = self._channels[incoming.channel_name]
        channel.send(encode_reply(channel.make_encoder(incoming, uuid4()), refusal))

    def _reply_to_encrypted(self, message: EncryptedMessage) -> None:
        """Tell a person once, until the next start, that the agent cannot read what is encrypted."""
        person = bare_jid(message.sender)
        self.dropped["encrypted"] += 1
        if person == self._jid or person in self._told_of_encryption or not self.access.is_allowed(person):
            return
        self._told_of_encryption[person] = None
        if len(self._told_of_encryption) > _MAX_TOLD:
            self._told_of_encryption.popitem(last=False)
        with use_language(self.access_requests.languages.of_person(person, message.language)):
            problem = (
                translate("Your message is encrypted with {method}, and I cannot read it.", method=message.method)
                if message.method
                else translate("Your message is encrypted, and I cannot read it.")
            )
            remedy = translate(
                "Switch off the encryption of this chat, and send it again."
                " In most clients that is the lock beside the text field; in profanity it is /omemo end."
            )
        text = f"{problem} {remedy}"
        self._notices.send([self._notices.encode_notice(message.sender, text)])

    def _reply_to_malformed(self, message: MalformedRequest) -> None:
        person = bare_jid(message.sender)
        self.dropped["malformed"] += 1
        if person == self._jid or not self.access.is_allowed(person):
            return
        if message.request_id is None and not self._rate_limiter.allow(person):
            # No request waits for this reply, and a program may answer each of ours with malformed JSON again, without end.
            return
        if message.is_text:
            with use_language(self.access_requests.languages.of_person(person)):
                problem = N_("I cannot read your message: its id or thread is too long. Please send it with another client.")
                message = message._replace(problem=translate(problem))
        channel = self._channels[message.channel_name]
        channel.send(channel.encode_malformed_reply(message))


def _join(commits: Sequence[Commit[bool] | None]) -> Commit[bool] | None:
    """Return the commit of all requests of one message; None if none is stored."""
    stored = [commit for commit in commits if commit is not None]
    return Commit.join(stored) if stored else None


@lru_cache(maxsize=4096)
def _parse_person(jid: str) -> str:
    """Return the bare JID of a person whom another agent names; "" if it is none, which a database might not even store.

    A caller of a door is none: an agent could name any caller of another platform, or of this one.
    """
    try:
        return bare_jid(parse_jid(refuse_caller(jid)))
    except ValueError:
        return ""
