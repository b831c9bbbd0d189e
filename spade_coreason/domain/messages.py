"""What comes in, as values: a request, an answer to one of ours, a bounce, or what somebody says about a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pydantic_core import from_json, to_json

from ..contracts import ClientCapabilities, DataBlock, ThinkingBlock, UserErrorBlock
from .jid import bare_jid
from .value import value


@value
class TextEmitted:
    """A text of the answer, in Markdown: to a program a block with the id that `derive_part_id` gives to its number.

    `choices` are what may be said to it: a value and its label each.
    """

    content: str
    number: int
    short_text: str | None = None
    """What a person reads of it, where that is not all."""
    links: tuple[str, ...] = ()
    """To files in it, or to all of it: for a person each is a message of its own, which clients show as the file."""
    choices: tuple[tuple[str, str], ...] = ()


@value
class BlockEmitted:
    """One block of the answer that is more than a text."""

    block: ThinkingBlock | DataBlock | UserErrorBlock
    short_text: str | None = None
    links: tuple[str, ...] = ()
    """As of a text."""


@value
class StreamStarted:
    """A stream is open. Several of one turn may interleave."""

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
    """As of a text."""


@value
class StreamAborted:
    """The stream ends before its time. It concerns this stream only."""

    stream_id: str
    reason: str
    replacement: str | None = None
    """What stands in the place of all that it said."""


@value
class Completed:
    """The turn is over, and went well."""

    conversation_id: str
    state: str


@value
class Failed:
    """The turn is over, and did not go well. `code` is one of the contract's error codes."""

    message: str
    code: int
    recoverable: bool
    incident: str | None = None
    is_reported: bool = False
    """Whether an error block has said so already."""


@value
class Refused:
    """The request was not run. `retry_after_s` says when it is worth another try, None that it is not."""

    message: str
    code: int
    retry_after_s: float | None = None


TurnEvent: TypeAlias = (
    TextEmitted | BlockEmitted | StreamStarted | StreamChunk | StreamEnded | StreamAborted | Completed | Failed | Refused
)


def derive_part_id(key: UUID, number: int) -> UUID:
    """The id of a block or a stream of a turn, by the inbox key of the request and its number, from 1.

    A turn that runs again gives the same ids.
    """
    return UUID(int=key.int ^ number)


# Ids and threads are echoed, and a quote takes six times its room there. Longer ones are nobody's.
MAX_ID_CHARACTERS = 1024

PARENT_THREAD = "parent_thread"

# What the platform says about a request; nobody else may.
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
        "room",
        "nickname",
        "occupant",
        "preferred_language",
        "language_tag",
    }
)

# By this a program says, in the metadata of its request, that the query is a command as a person writes it.
COMMAND_METADATA = "command"

LINEAGE_FIELDS = ("request_id", "root_request_id", "parent_request_id")


@value
class InboundRequest:
    """A request and where it came from. `channel` is the kind of its sender."""

    channel: str
    sender: str
    stanza_id: str
    thread: str | None
    payload: dict[str, Any]
    content: str
    """What makes it another message than one with the same id."""
    message_type: str = "chat"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    wants_receipt: bool = False
    uses_chat_states: bool = False
    wants_displayed_marker: bool = False
    """Whether the sender wants to know when it is read (XEP-0333)."""
    replaces: str | None = None
    """The id of the sender's own message that this one corrects (XEP-0308)."""
    origin_id: str | None = None
    """The id by which others refer to it, where that is not the stanza's (XEP-0359): its sender's, or in a room the room's."""
    uses_replies: bool = False
    """Whether the sender's client knows replies (XEP-0461), for it is one."""
    request_id: UUID | None = None
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    capabilities: ClientCapabilities | None = None
    hops: int = 0
    """Through how many agents it came, as the last of them says."""
    archive_id: str = ""
    """What our own server calls it (XEP-0359), where it has no id."""
    owner: str = ""
    """Whose conversation it is, where that is not the bare JID of the sender: a room's, or one of its occupants'."""
    address: str = ""
    """Where a text answer goes, where that is not the bare JID of the sender."""
    nickname: str = ""
    """What the sender is called in a room."""

    @property
    def may_be_command(self) -> bool:
        """Whether its text may be a command. In a room anybody could stop what another has asked; a program says so."""
        return self.channel == "person" or (self.channel == "program" and self.metadata.get(COMMAND_METADATA) is True)

    @property
    def is_text_only(self) -> bool:
        """Whether it is a text alone, of which an agent gets a copy, and so can change nothing."""
        return len(self.payload) == 1 and self.channel in ("person", "room")

    def to_json(self) -> str:
        """For the inbox; `from_json` reads it again. Without `content`, which only the key needs."""
        row: dict[str, Any] = {
            "channel": self.channel,
            "sender": self.sender,
            "stanza_id": self.stanza_id,
            "payload": self.payload,
        }
        if self.thread is not None:
            row["thread"] = self.thread
        if self.message_type != "chat":
            row["message_type"] = self.message_type
        if self.metadata:
            row["metadata"] = dict(self.metadata)
        if self.channel == "program":
            row |= self._program_fields()
        if self.uses_chat_states:
            row["uses_chat_states"] = True
        if self.uses_replies:
            row["uses_replies"] = True
        if self.origin_id is not None:
            row["origin_id"] = self.origin_id
        if self.owner:
            row |= {"owner": self.owner, "address": self.address, "nickname": self.nickname}
        return to_json(row).decode()

    def _program_fields(self) -> dict[str, Any]:
        """What only programs say."""
        said = {name: ident for name in LINEAGE_FIELDS if (ident := getattr(self, name)) is not None}
        if self.capabilities is not None:
            said["capabilities"] = self.capabilities.dump()
        if self.hops:
            said["hops"] = self.hops
        return said

    @classmethod
    def from_json(cls, text: str | bytes) -> InboundRequest:
        """What `to_json` wrote."""
        row = from_json(text)
        if "language" in row:  # the name of the channel in rows written before 0.1.0
            row["channel"] = row.pop("language")
        for name in LINEAGE_FIELDS:
            if row.get(name) is not None:
                row[name] = UUID(row[name])
        if "capabilities" in row:
            row["capabilities"] = ClientCapabilities.model_validate(row["capabilities"])
        row.setdefault("thread", None)
        return cls(content="", **row)


class ReplyEvent(NamedTuple):
    """An event that answers a request of ours, from whoever sent it. `type` is without the prefix `ai.coreason.`."""

    sender: str
    request_id: str
    type: str
    event_id: str
    data: Mapping[str, Any]


class Bounce(NamedTuple):
    """The server, or the other side, sent a message of ours back."""

    sender: str
    stanza_id: str
    condition: str
    text: str


class MalformedRequest(NamedTuple):
    """Something that claims to be a request and cannot be read."""

    sender: str
    stanza_id: str
    thread: str | None
    problem: str
    request_id: str | None = None


class Retraction(NamedTuple):
    """The sender takes a message of theirs back (XEP-0424)."""

    sender: str
    stanza_id: str


class Reaction(NamedTuple):
    """What the sender feels about a message of ours (XEP-0444); nothing takes back what they felt before."""

    sender: str
    stanza_id: str
    emojis: tuple[str, ...]
    nickname: str = ""
    """What the sender is called in a room, where everybody may feel something about a message."""


InboundMessage: TypeAlias = InboundRequest | ReplyEvent | Bounce | MalformedRequest | Retraction | Reaction | None


def owner_of(inbound: InboundRequest) -> str:
    """Whose conversation it is: by default the bare JID of the sender (a full one changes with every reconnect)."""
    return inbound.owner or bare_jid(inbound.sender)
