"""Messages as values: the events of a turn, which are sent, and the inbound messages that a stanza may hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pydantic_core import from_json, to_json

from ..contracts import ClientCapabilities, DataBlock, ThinkingBlock, UserErrorBlock
from .callers import HIDDEN_PERSON, is_caller
from .channel_kinds import CHANNEL_KINDS, DEFAULT_CHANNEL, ChannelKind
from .duplicates import NO_EVIDENCE, Evidence
from .jid import bare_jid
from .topics import DEAD_LETTER_METADATA, ITEM_METADATA, PUBLISHER, ROOT_SENDER as ROOT_SENDER
from .value import value


@value
class TextEmitted:
    """A text of the reply, in Markdown. A program receives it as a block with the id that `derive_part_id` gives its number.

    `choices` are possible replies to it, each a value and its label.
    """

    content: str
    number: int
    short_text: str | None = None
    """The text that a person reads instead of a longer `content`."""
    links: tuple[str, ...] = ()
    """Links to files in the text, or to the whole text. Each is sent to a person as a message that clients show as the file."""
    choices: tuple[tuple[str, str], ...] = ()


@value
class BlockEmitted:
    """One block of the reply that is not a plain text."""

    block: ThinkingBlock | DataBlock | UserErrorBlock
    short_text: str | None = None
    links: tuple[str, ...] = ()
    """Links to files, as in `TextEmitted`."""


@value
class StreamStarted:
    """A stream is open. Several streams of one turn may interleave."""

    stream_id: str
    title: str | None = None


@value
class StreamChunk:
    """The next piece of a stream; `seq` counts from 0."""

    stream_id: str
    seq: int
    chunk: str


@value
class StreamEnded:
    """The stream is complete."""

    stream_id: str
    short_text: str | None = None
    links: tuple[str, ...] = ()
    """Links to files, as in `TextEmitted`."""


@value
class StreamAborted:
    """A stream ends early. Other streams of the turn continue."""

    stream_id: str
    reason: str
    replacement: str | None = None
    """The text that replaces all text of the stream."""


@value
class Completed:
    """The turn has ended successfully."""

    conversation_id: str
    state: str
    usage: Mapping[str, int] | None = None
    """The tokens of language models, such as `{"total_tokens": 18}`; None if the agent reported none."""


@value
class Failed:
    """The turn has failed. `code` is one of the contract's error codes (`ErrorCode`)."""

    message: str
    code: int
    recoverable: bool
    incident: str | None = None
    is_reported: bool = False
    """True if an error block has reported the failure already."""
    has_asked: bool = False
    """True if the turn has waited for a person's answer: under another id it would ask again."""


@value
class Refused:
    """The request was refused without a turn. `retry_after_s` is the time to wait before a retry; None: a retry is useless."""

    message: str
    code: int
    retry_after_s: float | None = None
    tells_people: bool = True
    """False if only a program is told."""


@value
class Parked:
    """The request waits for a person's answer. This run of its turn has ended; the rest of the reply follows then."""


@value
class Repeated:
    """The events that follow are the whole reply, of a stored turn or of one that runs again. Earlier events do not count."""


TurnEvent: TypeAlias = (
    TextEmitted
    | BlockEmitted
    | StreamStarted
    | StreamChunk
    | StreamEnded
    | StreamAborted
    | Completed
    | Failed
    | Refused
    | Parked
    | Repeated
)


def derive_part_id(key: UUID, number: int) -> UUID:
    """Derive the id of a block or stream of a turn from the inbox key of the request and its number, counted from 1.

    A turn that runs again derives the same ids.
    """
    return UUID(int=key.int ^ number)


# Ids and threads are echoed, and an escaped quote takes six times its size there. Real ones are never longer.
MAX_ID_CHARACTERS = 1024

MAX_BATCH_REQUESTS = 64
"""The most requests in one message of a program."""

PARENT_THREAD = "parent_thread"
HIDES_PERSON = "hides_person"
"""The metadata of a request that an agent passed on, True if the person behind it is not known."""
ROOT_METADATA = frozenset({"nickname", "occupant", PUBLISHER, ROOT_SENDER})
"""The metadata of requests behind which there is another person than their owner."""
CHAIN = "chain"
DEADLINE = "deadline"

SCHEDULE = "schedule"
"""The metadata of a due time: the id of its schedule."""
DUE_AT = "due_at"
"""The metadata of a due time: the time, as text (ISO 8601)."""
EVERY = "every"
"""The metadata of a due time of `@every`: the name of the method."""

REPLY_THREAD = "reply_thread"
"""The metadata of a job: the thread of the conversation that gets its reply."""

# Metadata of a request that only the platform may set.
RESERVED_METADATA = frozenset(
    {
        "conversation_id",
        "redelivered",
        "sender",
        "attachments",
        "reply_to",
        "thread",
        PARENT_THREAD,
        "channel",
        "spade",
        "delayed_since",
        "hops",
        ROOT_SENDER,
        HIDES_PERSON,
        CHAIN,
        DEADLINE,
        "room",
        "nickname",
        "occupant",
        "operator",
        "preferred_language",
        "zone",
        "language_tag",
        *ITEM_METADATA,
        DEAD_LETTER_METADATA,
        SCHEDULE,
        DUE_AT,
        EVERY,
        REPLY_THREAD,
    }
)

COMMAND_METADATA = "command"
"""The metadata by which a program marks the query of its request as a command, written as a person writes it."""

LINEAGE_FIELDS = ("request_id", "root_request_id", "parent_request_id")


class RequestContext(NamedTuple):
    """The part of a program's request that is beside its content: the way that it came, its time, and the form of its reply."""

    hops: int = 0
    """The number of agents that passed the request on, as the last of them reports it."""
    root_sender: str = ""
    """The bare JID of the person it goes back to, as the agent that passed it on reports it; "" if no agent did.

    `HIDDEN_PERSON` if the agent does not name them. The gateway makes `hides_person` of it, and of all that is no JID.
    """
    chain: tuple[str, ...] = ()
    """The agents that the request has passed through (bare JIDs), the first one first, as the last of them reports it."""
    deadline: float = 0.0
    """The time (in seconds since 1970) at which the sender stops waiting for the reply; 0 without a limit."""
    accepts_batches: bool = False
    """True if the sender reads messages with several events."""
    wants_thoughts: bool = False
    """True if the sender wants the thoughts of the agent among the events."""
    hides_person: bool = False
    """True if the person behind it is not known: an agent that is not trusted passed the request on, or one that hides them."""
    traceparent: str = ""
    """The span that the request belongs to (W3C Trace Context), as its sender gives it; then that of its receipt here."""


NO_CONTEXT = RequestContext()


def find_root(metadata: Mapping[str, Any]) -> str:
    """Return the person behind a request by its metadata, as other agents learn it (a bare JID): `HIDDEN_PERSON` if not known.

    An occupant of a room is hidden too: the other agent would use their variables, and the room would read them.
    """
    sender = bare_jid(metadata.get("sender", ""))
    root = str(metadata.get(ROOT_SENDER, metadata.get(PUBLISHER, sender)))
    return HIDDEN_PERSON if not root or HIDES_PERSON in metadata or "room" in metadata or is_caller(sender) else root


MAY_CHANGE = frozenset({"redelivered", "preferred_language", "zone"})
"""The metadata of a request that may be something else when it runs again."""


class EarlierRuns(NamedTuple):
    """The deeds of the earlier runs of a request, each of which ended with a question to a person.

    A later run begins anew, and does the same until the last question is answered.
    """

    runs: int
    """The number of these runs."""
    started_at: str
    """The start of the first one, as text (ISO 8601)."""
    turns: int
    """The number of turns that its conversation had then."""
    parts: int
    """The number of blocks of the reply that they have sent."""
    steps: Mapping[str, int]
    """The number of uses of each durable step."""
    questions: tuple[tuple[str, int], ...]
    """The steps (name and number) that the last run was parked at."""
    values: tuple[tuple[str, str, str | None], ...]
    """The variables that they have looked at: scope, name, and the value as JSON text, None without one."""
    metadata: Mapping[str, Any]
    """The metadata of the request that may be something else now (`MAY_CHANGE`)."""
    tokens: int
    """The tokens of language models that they have used, and which are counted."""


@value
class InboundRequest:
    """A request and its origin, as `ReceivedRequest`."""

    kind: ChannelKind
    sender: str
    stanza_id: str
    thread: str | None
    payload: dict[str, Any]
    content: str
    """The content that tells the request from another one with the same id."""
    message_type: str = "chat"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    wants_receipt: bool = False
    uses_chat_states: bool = False
    wants_displayed_marker: bool = False
    """True if the sender asks to be told when the request is read (XEP-0333)."""
    replaces: tuple[str, ...] = ()
    """The ids of the sender's own message that this one corrects (XEP-0308), and of the first version of that message."""
    origin_id: str | None = None
    """The id by which others refer to the request, if it is not the stanza's (XEP-0359): that of the sender or the room."""
    uses_replies: bool = False
    """True if the sender's client supports replies (XEP-0461), because the request is one."""
    request_id: UUID | None = None
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    capabilities: ClientCapabilities | None = None
    is_text_only: bool = False
    """True if the payload is only a text. An agent gets a copy of it and so cannot change it."""
    context: RequestContext = NO_CONTEXT
    """The part that only a program sends."""
    evidence: Evidence = NO_EVIDENCE
    """The evidence that tells a message from another one with the same id and content."""
    owner: str = field(kw_only=True)
    """The owner of the conversation: the bare JID of the sender, or a room, or the occupant of a room who writes privately."""
    address: str = ""
    """The address for a reply in text, if it is not the bare JID of the sender."""
    nickname: str = ""
    """The nickname of the sender in a room."""
    author: str = ""
    """The address of the occupant who asked the whole room. Only this occupant corrects or retracts the request."""
    account: str = ""
    """The bare JID for whom the key stands by which a door was asked. Quotas and the audit trail are theirs; the conversation,
    its variables and its memory are the key's (`owner`).
    """
    channel_name: str = DEFAULT_CHANNEL
    """The name of the channel by which the request came and its reply goes. The gateway sets it."""
    earlier_runs: EarlierRuns | None = None
    """The deeds of its earlier runs, if it has waited for a person's answer. The platform sets them."""

    @property
    def channel(self) -> str:
        """The name of the kind of its channel, as agents and interceptors read it."""
        return self.kind.word

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The ids that name the message in corrections and retractions: its own ids, and those of earlier versions."""
        return tuple(filter(None, (self.stanza_id, self.origin_id, *self.replaces)))

    @property
    def person(self) -> str:
        """The bare JID whose variables the request may use: the person it goes back to, else the owner; "" if not known."""
        return "" if self.context.hides_person else self.context.root_sender or self.owner

    @property
    def stored_root(self) -> str | None:
        """The bare JID of the person behind the request, as its turn stores it: "" if not known, None if it is the owner.

        - A request that an agent has passed on: the person it goes back to.
        - A request in a room: the occupant.
        - An item of a topic: the person for whom it was published, else its publisher.
        - A due time: the person behind the request that asked for it.
        """
        if self.is_from_room or self.kind.is_room:
            occupant = self.metadata.get("occupant")
            return bare_jid(occupant) if isinstance(occupant, str) else ""
        if self.account:
            return self.account
        if isinstance(root := self.metadata.get(ROOT_SENDER, self.metadata.get(PUBLISHER)), str):
            return root
        return self.person if self.context.hops or self.context.root_sender else None

    def is_of(self, person: str) -> bool:
        """Return True if a person (a bare JID) is its owner, or the person behind it."""
        return person in (self.owner, self.stored_root)

    @property
    def reply_address(self) -> str:
        """The address for a reply in text. The bare JID of a person reaches them also on another device."""
        return self.address or self.owner

    @property
    def hops(self) -> int:
        """The number of agents that passed the request on, as the last of them reports it."""
        return self.context.hops

    @property
    def chain(self) -> tuple[str, ...]:
        """The agents that the request has passed through (bare JIDs), the first one first."""
        return self.context.chain

    @property
    def root_sender(self) -> str:
        """The bare JID of the person it goes back to; "" if no agent passed it on."""
        return self.context.root_sender

    @property
    def root_owner(self) -> str:
        """The bare JID for whose quota the request counts."""
        return self.account or self.context.root_sender or self.owner

    @property
    def is_topic_item(self) -> bool:
        """True for an item that the configured topic broker delivers: no other request keeps its metadata."""
        return "topic" in self.metadata

    @property
    def is_from_room(self) -> bool:
        """True if a room passed the request on: as its own message, or as a private one of an occupant."""
        return bool(self.address)

    @property
    def is_said_directly(self) -> bool:
        """True if a person writes from their own account, also by a program such as the chat of the command line."""
        if self.kind.is_room or self.is_from_room:
            return False
        return self.kind.is_human or (self.kind.is_program and not (self.hops or self.chain))

    @property
    def may_be_command(self) -> bool:
        """True if the text may be any command. A program has to mark it as one, and by a door comes none.

        In a room it never is: any occupant could stop another's request. The agent's own commands work there.
        """
        is_marked = self.kind.is_program and not self.kind.is_door and self.metadata.get(COMMAND_METADATA) is True
        return self.kind.has_commands or is_marked

    def to_json(self) -> str:
        """Return the JSON text for the inbox; `from_json` reads it. It omits `content`, which only the inbox key needs."""
        fields: dict[str, Any] = {
            "channel": self.kind.name,
            "sender": self.sender,
            "stanza_id": self.stanza_id,
            "payload": self.payload,
        }
        if self.thread is not None:
            fields["thread"] = self.thread
        if self.message_type != "chat":
            fields["message_type"] = self.message_type
        if self.metadata:
            fields["metadata"] = dict(self.metadata)
        if self.kind.is_program or self.kind.is_due:
            fields |= self._program_fields()
        elif self.context is not NO_CONTEXT and self.context.traceparent:
            fields["traceparent"] = self.context.traceparent
        if self.uses_chat_states:
            fields["uses_chat_states"] = True
        if self.uses_replies:
            fields["uses_replies"] = True
        if self.origin_id is not None:
            fields["origin_id"] = self.origin_id
        if self.replaces:
            fields["replaces"] = self.replaces
        if self.author:
            fields["author"] = self.author
        if self.is_from_room or self.kind.is_due:
            fields |= {"owner": self.owner, "address": self.address, "nickname": self.nickname}
        if self.earlier_runs is not None:
            fields["earlier_runs"] = self.earlier_runs
        return to_json(fields).decode()

    def _program_fields(self) -> dict[str, Any]:
        """Return the fields that only requests of programs and due times have."""
        fields: dict[str, Any] = {name: ident for name in LINEAGE_FIELDS if (ident := getattr(self, name)) is not None}
        if self.account:
            fields["account"] = self.account
        if self.capabilities is not None:
            fields["capabilities"] = self.capabilities.dump()
        given = zip(RequestContext._fields, self.context, NO_CONTEXT, strict=True)
        fields |= {name: context for name, context, default in given if context != default}
        return fields

    @classmethod
    def from_json(cls, text: str | bytes, channel_name: str = DEFAULT_CHANNEL) -> InboundRequest:
        """Read a request from the JSON text that `to_json` wrote. The inbox stores the name of its channel beside it.

        What only a newer version knows is ignored. Raise KeyError for a kind of channel that only a newer version has.
        """
        return cls.from_fields(from_json(text), channel_name)

    @classmethod
    def from_fields(cls, fields: dict[str, Any], channel_name: str) -> InboundRequest:
        """Read a request as `from_json` does, from a dict that it may change."""
        # Before schema 0014 it had another name. What waits since then is answered all the same.
        kind = CHANNEL_KINDS[fields.pop("language" if "language" in fields else "channel")]
        for name in LINEAGE_FIELDS:
            if fields.get(name) is not None:
                fields[name] = UUID(fields[name])
        if "capabilities" in fields:
            fields["capabilities"] = ClientCapabilities.model_validate(fields["capabilities"])
        context = {name: fields[name] for name in RequestContext._fields if name in fields}
        fields = {name: fields[name] for name in _STORED_FIELDS if name in fields}
        if context:
            context["chain"] = tuple(context.get("chain", ()))
            fields["context"] = RequestContext(**context)
        if "replaces" in fields:
            fields["replaces"] = tuple(fields["replaces"])
        if "earlier_runs" in fields:
            runs = EarlierRuns(*fields["earlier_runs"][: len(EarlierRuns._fields)])
            fields["earlier_runs"] = runs._replace(
                questions=tuple((name, number) for name, number, *_ in runs.questions),
                values=tuple((scope, key, text) for scope, key, text, *_ in runs.values),
            )
        fields.setdefault("thread", None)
        fields.setdefault("owner", bare_jid(fields["sender"]))
        fields["is_text_only"] = len(fields["payload"]) == 1 and kind.is_human
        return cls(kind, content="", channel_name=channel_name, **fields)


_STORED_FIELDS = frozenset(InboundRequest.__annotations__) - {
    "kind",
    "content",
    "wants_receipt",
    "wants_displayed_marker",
    "is_text_only",
    "context",
    "evidence",
    "channel_name",
}
"""The fields that `to_json` writes under their names."""


def reply_id_prefix(key: str, request: InboundRequest) -> str:
    """Return what the ids of the messages of a reply begin with: the key of its request, and the number of a later run.

    Another run could send the same text with the same number, which clients would take for the message that they have.
    """
    return key if request.earlier_runs is None else f"{key}-r{request.earlier_runs.runs}"


class ReplyEvent(NamedTuple):
    """An event of a reply to a request of ours; its sender is not verified. `type` omits the prefix `ai.coreason.`."""

    sender: str
    request_id: str
    type: str
    event_id: str
    data: Mapping[str, Any]
    characters: int = 0
    """The length of the event as JSON; in a batch, of an average one."""


class ReplyBatch(NamedTuple):
    """Several events of replies in one message, in their order."""

    events: tuple[ReplyEvent, ...]


class RequestBatch(NamedTuple):
    """Several requests of a program in one message, in their order."""

    requests: tuple[InboundRequest | MalformedRequest, ...]


class Bounce(NamedTuple):
    """A message of ours that the server or its addressee sent back."""

    sender: str
    stanza_id: str
    """The id of the message. That of a batch of requests is all their ids, with spaces between them."""
    condition: str
    text: str
    is_temporary: bool = False
    """True if the error asks to try again later."""


class MalformedRequest(NamedTuple):
    """A message that claims to be a request and cannot be read."""

    sender: str
    stanza_id: str
    thread: str | None
    problem: str
    request_id: str | None = None
    is_text: bool = False
    """True if the sender reads a text, and no JSON."""
    channel_name: str = DEFAULT_CHANNEL
    """The name of its channel, as `InboundRequest` has it."""


class Retraction(NamedTuple):
    """The sender retracts a message of their own (XEP-0424), or corrects it to nothing."""

    sender: str
    stanza_id: str
    author: str | None = ""
    """The occupant of a room who retracts it (`InboundRequest.author`); None for a moderator, who may retract all."""


class Reaction(NamedTuple):
    """The sender's reactions to a message of ours (XEP-0444). An empty tuple takes back earlier reactions."""

    sender: str
    stanza_id: str
    emojis: tuple[str, ...]
    nickname: str = ""
    """The nickname of the sender in a room, where all occupants may react to a message."""


class EncryptedMessage(NamedTuple):
    """A message whose content only another device can read. `method` is the name of the encryption, for example OMEMO."""

    sender: str
    method: str
    language: str | None = None
    """The language tag of the message (`xml:lang`)."""


InboundMessage: TypeAlias = (
    InboundRequest
    | RequestBatch
    | ReplyEvent
    | ReplyBatch
    | Bounce
    | MalformedRequest
    | Retraction
    | Reaction
    | EncryptedMessage
    | None
)


def map_requests(message: InboundMessage, change: Callable[[InboundRequest], InboundRequest]) -> InboundMessage:
    """Return a message with each request in it changed."""
    if isinstance(message, RequestBatch):
        return RequestBatch(tuple(change(r) if isinstance(r, InboundRequest) else r for r in message.requests))
    return change(message) if isinstance(message, InboundRequest) else message


def bind(message: InboundMessage, channel: str) -> InboundMessage:
    """Return a message whose requests have the name of the channel by which they came."""
    if isinstance(message, RequestBatch):
        return RequestBatch(tuple(_bind_request(request, channel) for request in message.requests))
    return _bind_request(message, channel) if isinstance(message, InboundRequest | MalformedRequest) else message


def _bind_request(request: InboundRequest | MalformedRequest, channel: str) -> InboundRequest | MalformedRequest:
    if isinstance(request, MalformedRequest):
        return request._replace(channel_name=channel)
    return replace(request, channel_name=channel)
