"""Messages as values: the events of a turn, which are sent, and the inbound messages that a stanza may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    capabilities: ClientCapabilities | None = None
    account: str = ""
    """The bare JID for whom the key stands by which a door was asked. Quotas and the audit trail are theirs; the conversation,
    its variables and its memory are the key's (`owner`).
    """


NO_CONTEXT = RequestContext()


class MessageHeaders(NamedTuple):
    """The part of a message that is beside its text: its type, what it refers to, and what the sender's client supports."""

    message_type: str = "chat"
    replaces: tuple[str, ...] = ()
    """The ids of the sender's own message that this one corrects (XEP-0308), and of the first version of that message."""
    origin_id: str | None = None
    """The id by which others refer to the request, if it is not the stanza's (XEP-0359): that of the sender or the room."""
    uses_chat_states: bool = False
    uses_replies: bool = False
    """True if the sender's client supports replies (XEP-0461), because the request is one."""
    wants_receipt: bool = False
    wants_displayed_marker: bool = False
    """True if the sender asks to be told when the request is read (XEP-0333)."""


NO_HEADERS = MessageHeaders()
PROGRAM_HEADERS = MessageHeaders("normal")
ROOM_HEADERS = MessageHeaders("groupchat")


class RoomOrigin(NamedTuple):
    """The room that passed a request on, and the occupant who wrote it."""

    address: str = ""
    """The address for a reply in text: the room, or the occupant who wrote privately; "" for a request from no room."""
    nickname: str = ""
    """The nickname of the sender."""
    author: str = ""
    """The address of the occupant who asked the whole room. Only this occupant corrects or retracts the request."""


NO_ROOM = RoomOrigin()


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
    metadata: Mapping[str, Any] = field(default_factory=dict)
    headers: MessageHeaders = NO_HEADERS
    evidence: Evidence = NO_EVIDENCE
    """The evidence that tells a message from another one with the same id and content."""
    request_id: UUID | None = None
    context: RequestContext = NO_CONTEXT
    """The part that only a program sends."""
    room: RoomOrigin = NO_ROOM
    """The room from which it came."""
    owner: str = field(kw_only=True)
    """The owner of the conversation: the bare JID of the sender, or a room, or the occupant of a room who writes privately."""
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
        return tuple(filter(None, (self.stanza_id, self.headers.origin_id, *self.headers.replaces)))

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
        if self.context.account:
            return self.context.account
        if isinstance(root := self.metadata.get(ROOT_SENDER, self.metadata.get(PUBLISHER)), str):
            return root
        return self.person if self.context.hops or self.context.root_sender else None

    def is_of(self, person: str) -> bool:
        """Return True if a person (a bare JID) is its owner, or the person behind it."""
        return person in (self.owner, self.stored_root)

    @property
    def reply_address(self) -> str:
        """The address for a reply in text. The bare JID of a person reaches them also on another device."""
        return self.room.address or self.owner

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
        return self.context.account or self.context.root_sender or self.owner

    @property
    def is_topic_item(self) -> bool:
        """True for an item that the configured topic broker delivers: no other request keeps its metadata."""
        return "topic" in self.metadata

    @property
    def is_from_room(self) -> bool:
        """True if a room passed the request on: as its own message, or as a private one of an occupant."""
        return bool(self.room.address)

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
        if self.metadata:
            fields["metadata"] = dict(self.metadata)
        if self.request_id is not None:
            fields["request_id"] = self.request_id
        if self.is_from_room or self.kind.is_due:
            fields |= {"owner": self.owner, "address": "", "nickname": ""}
        for part, (unset, names) in _STORED_PARTS.items():
            if (given := getattr(self, part)) is not unset:
                fields |= {name: text for name in names if (text := getattr(given, name)) != getattr(unset, name)}
        if self.earlier_runs is not None:
            fields["earlier_runs"] = self.earlier_runs
        return to_json(fields, exclude_none=True).decode()  # that is of the capabilities; a dict keeps its own

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
        fields = {"thread": None, "owner": bare_jid(fields["sender"])} | fields
        for name, read in _READERS.items():
            if fields.get(name) is not None:
                fields[name] = read(fields[name])
        given = _choose(fields, _STORED_FIELDS)
        for part, (unset, names) in _STORED_PARTS.items():
            given[part] = unset._replace(**_choose(fields, names))
        return cls(kind, content="", channel_name=channel_name, **given)


def _choose(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _read_runs(values: Sequence[Any]) -> EarlierRuns:
    runs = EarlierRuns(*values[: len(EarlierRuns._fields)])
    return runs._replace(
        questions=tuple((name, number) for name, number, *_ in runs.questions),
        values=tuple((scope, key, text) for scope, key, text, *_ in runs.values),
    )


_STORED_FIELDS = ("sender", "stanza_id", "thread", "payload", "metadata", "request_id", "owner", "earlier_runs")
"""The fields of a request that are stored under their names."""
_STORED_PARTS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "headers": (NO_HEADERS, ("message_type", "replaces", "origin_id", "uses_chat_states", "uses_replies")),
    "context": (NO_CONTEXT, RequestContext._fields),
    "room": (NO_ROOM, RoomOrigin._fields),
}
"""The parts of a request: their defaults, and the fields of each that are stored under their names unless they are defaults."""
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(LINEAGE_FIELDS, UUID),
    "capabilities": ClientCapabilities.model_validate,
    "chain": tuple,
    "replaces": tuple,
    "earlier_runs": _read_runs,
}
"""The functions that read what JSON has in another form."""


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
    """The occupant of a room who retracts it (`RoomOrigin.author`); None for a moderator, who may retract all."""


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
    """Return a message with the name of the channel by which it came, if it is a request, and no batch of them."""
    if isinstance(message, MalformedRequest):
        return message._replace(channel_name=channel)
    return replace(message, channel_name=channel) if isinstance(message, InboundRequest) else message
