"""The records of an agent as values: conversations, turns, variables, requests, documents, and reports of deletions.

Nothing here needs SQLAlchemy, so that clients do not load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from ..contracts import ConversationRecord, ConversationState
from ..domain.channel_kinds import DEFAULT_CHANNEL
from ..domain.conversation import ConversationStatus
from ..domain.value import value

AGENT_SCOPE = "agent"
"""The scope of values that belong to the agent itself."""
SHARED_SCOPE = "shared"
"""The scope of the variables that an agent stores for everybody."""
PLATFORM_SCOPE = "platform"
"""The scope of operators' decisions about the agent."""
PAUSED = "paused"
"""The variable of the platform that is true while the agent is paused."""
ACCESS_SCOPE = "access"
"""The scope of operators' decisions about people, and of the contacts that the agent has added itself."""
ADMITTED = "admitted"
"""The variable of a person that is true for an admission, and false for a rejection."""
REFUSED_SCOPE = "refused"
"""The scope of the marks of strangers who were told that they have no access."""
MESSAGE_COUNT_SCOPES = {kind: f"messages.{kind}" for kind in ("person", "room", "domain", "total")}
"""The scopes of the counts of messages, by what is counted."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    """Convert a time to the form of the tables."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds  # dividing timedeltas takes longer


def from_micros(micros: int) -> datetime:
    """Convert a time from the form of the tables."""
    return _EPOCH + timedelta(microseconds=micros)


def from_micros_or_none(micros: int | None) -> datetime | None:
    """Convert a time that a table may not have."""
    return None if micros is None else from_micros(micros)


@value
class StoredConversation:
    """A stored conversation with its session. Turns are numbered from 1; the window begins with turn `window_start`."""

    id: int
    conversation_id: str
    owner: str
    session_id: str
    status: ConversationStatus
    max_interactions: int
    window_start: int = 1
    turns: int = 0

    def with_status(self, status: ConversationStatus) -> StoredConversation:
        """Return a copy with another status."""
        return self.with_turns(status, self.max_interactions, self.window_start, self.turns)

    def with_turns(
        self, status: ConversationStatus, max_interactions: int, window_start: int, turns: int
    ) -> StoredConversation:
        """Return a copy after a turn. This takes half the time of `replace`."""
        return StoredConversation(
            self.id, self.conversation_id, self.owner, self.session_id, status, max_interactions, window_start, turns
        )

    @property
    def contract_record(self) -> ConversationRecord:
        """The conversation as the record of the seed (`ConversationRecord`)."""
        status = self.status
        return ConversationRecord(
            conversation_id=self.conversation_id,
            state=status.state,
            interaction_count=status.interaction_count,
            max_interactions=self.max_interactions,
            created_at=status.created_at,
            last_interaction=status.last_interaction,
        )


@value
class TurnRecord:
    """A finished turn to store. `body` is the interaction as JSON.

    `root` is the person behind it (a bare JID), `HIDDEN_PERSON` if not known; "" if that is the owner of the conversation.
    """

    interaction_id: str
    timestamp: datetime
    body: str
    root: str = ""


class Variable(NamedTuple):
    """A variable of a conversation or of a person.

    `holder` is the id of the conversation, or the bare JID of the person. `value` is JSON.
    """

    scope: str
    holder: str
    name: str
    value: str


class LoadedConversation(NamedTuple):
    """The stored data that a message needs.

    `conversations` holds those of the candidate ids that exist. The other fields belong to the sender's own conversation:
    `history` holds the turns of its window as JSON, oldest first; variables and preferences are JSON texts by name.
    """

    conversations: dict[str, StoredConversation]
    history: list[str]
    conversation_variables: dict[str, str]
    person_variables: dict[str, str]
    preferences: dict[str, str]


class StoredStep(NamedTuple):
    """A durable step of the turn of a request. `result` is JSON, and None while the step is only intended."""

    name: str
    number: int
    arguments_hash: str
    result: str | None


class InboxRecord(NamedTuple):
    """A received message. `state` is 0 (received), 1 (answered) or 2 (closed); a closed one has lost request and answer.

    `steps` are the durable steps of a turn that has not ended.
    """

    received_at: datetime
    state: int
    request: str | None
    reply: str | None
    steps: tuple[StoredStep, ...] = ()


class PendingRequest(NamedTuple):
    """A request that is not closed: received, or answered. `reply` is that of an answered one."""

    inbox_row: int
    key: bytes
    request: str | None
    reply: str | None
    digest: bytes
    """The hash of what a program's request asks; empty for other requests."""
    channel: str = DEFAULT_CHANNEL
    """The name of the channel by which the request came."""


class EarlierRequest(NamedTuple):
    """A stored request of a program, and its turn as JSON. `sender` is "" if the sender's data were deleted.

    `reply` are the messages of a reply that is not acknowledged yet, as JSON; None if they have the form of another channel.
    """

    sender: str
    digest: bytes
    reply: str | None
    turn: str | None
    conversation_id: str | None
    is_parked: bool = False
    """True if it waits for a person's answer."""
    is_open: bool = False
    """True if it is not answered, or if its reply is not acknowledged."""
    is_unanswered: bool = False
    """True if it is queued or runs, or will at the next start."""


class KnownRequest(NamedTuple):
    """A request of a program that was received within seven days, as it is stored.

    `request` is its JSON text until it is answered, also while it waits for a person's answer. `turn` is the JSON text of the
    turn that answered it; `turn_row` is the row of that turn, and 0 if there was none.
    """

    received_at: datetime
    digest: bytes
    request: str | None
    turn: str | None
    turn_row: int
    conversation_id: str | None
    is_parked: bool
    is_open: bool


class OwnTurn(NamedTuple):
    """A turn in a conversation of its owner. Rows are numbered in the order in which turns ended. `body` is JSON."""

    row: int
    conversation_id: str
    body: str


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """Counts of the records that were deleted from the stores of one agent.

    `memories` counts conversations in its interaction memory. `documents` counts knowledge that belongs to the person or to
    one of the conversations, turns included. The hashes of `audit_entries` are not deleted. `items` that the person published
    to topics lose its name only, and `deleted_items` are deleted. `questions` are those of the person's requests, and those of
    others that the person was asked; `requests` has the requests that waited for their answers too.
    """

    conversation_ids: tuple[str, ...] = ()
    interactions: int = 0
    variables: int = 0
    requests: int = 0
    memories: int = 0
    preferences: int = 0
    documents: int = 0
    audit_entries: int = 0
    incidents: int = 0
    subscriptions: int = 0
    items: int = 0
    deleted_items: int = 0
    notifications: int = 0
    schedules: int = 0
    questions: int = 0

    @property
    def is_empty(self) -> bool:
        """True if there was nothing to delete."""
        return self == ErasureReport()

    def __add__(self, other: ErasureReport) -> ErasureReport:
        return ErasureReport(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


LAST_INTERACTION = 9
"""The place of the time of the last interaction in `conversation_columns`."""


def conversation_columns(agent: str, record: StoredConversation) -> tuple[Any, ...]:
    """Return the column values of a conversation in the order that `SAVE_CONVERSATION` takes."""
    status = record.status
    return (
        record.id,
        agent,
        record.conversation_id,
        record.owner,
        record.session_id,
        str(status.state),  # takes a third of the time of `.value`
        status.interaction_count,
        record.max_interactions,
        to_micros(status.created_at),
        to_micros(status.last_interaction),
        status.failures,
        0 if status.quiet_until is None else to_micros(status.quiet_until),  # an int is bound in a tenth of the time of None
        record.window_start,
        record.turns,
    )


def conversation_from_row(row: Any) -> StoredConversation:
    """Build a conversation from a row with the columns of the table."""
    status = ConversationStatus(
        ConversationState(row.state),
        row.interaction_count,
        from_micros(row.created_at),
        from_micros(row.last_interaction),
        row.failures,
        from_micros(row.quiet_until) if row.quiet_until else None,
    )
    return StoredConversation(
        row.id, row.conversation_id, row.owner, row.session_id, status, row.max_interactions, row.window_start, row.turns
    )


COUNT_NAME = "today"
"""The name of the variables that count the messages of a day."""


class MessageCount(NamedTuple):
    """The messages of one day (UTC): their number and their bytes. `kind` is person, room, domain or total."""

    kind: str
    holder: str
    day: date
    messages: int
    bytes: int

    def dump(self) -> str:
        """Return the JSON text that is stored."""
        return f'{{"day": "{self.day}", "messages": {self.messages}, "bytes": {self.bytes}}}'


COMPACTION_VARIABLE = "coreason.window"
"""The variable with what a memory strategy has taken out of the window, in the scope of the conversation."""
TOKENS_VARIABLE = "coreason.tokens"
"""The variable with the tokens of a conversation, or of a person on a day."""
INTRODUCED_VARIABLE = "spade_coreason.introduced"
"""The variable that marks a person to whom the agent has introduced itself."""
INTERNAL_VARIABLES = frozenset((COMPACTION_VARIABLE, TOKENS_VARIABLE, INTRODUCED_VARIABLE))
"""The variables of the platform. Agents cannot store them, and people are not shown them."""


class CompactionState(NamedTuple):
    """The result of compaction: turns up to number `through` are in `summary`, or in the knowledge of the conversation.

    `strategy` is the memory strategy that compacted them.
    """

    strategy: str = ""
    through: int = 0
    summary: str = ""

    @classmethod
    def from_json(cls, text: str) -> CompactionState:
        """Read the stored form."""
        fields = json.loads(text)
        return cls(fields["strategy"], fields["through"], fields.get("summary", ""))

    def to_json(self) -> str:
        """Return the form to store."""
        return json.dumps(self._asdict(), ensure_ascii=False)


NO_COMPACTION = CompactionState()

CollectionScope: TypeAlias = Literal["agent", "person", "conversation"]


class DocumentCollection(NamedTuple):
    """A set of documents that belongs to an agent, a person or a conversation.

    `holder` is "" for the agent itself, the bare JID of the person, or the id of the conversation.
    """

    scope: CollectionScope = "agent"
    holder: str = ""


class MissingVectors(NamedTuple):
    """A filter for passages without a vector.

    `collection` limits it to one. With `model_and_dimension`, passages with vectors of another model or length match too.
    """

    collection: DocumentCollection | None = None
    model_and_dimension: tuple[str, int] | None = None


class NewDocument(NamedTuple):
    """A document to store. Documents with the same `digest` have the same content."""

    name: str
    digest: bytes
    passages: Sequence[str]


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. `indexed` is the number of its passages that have a vector."""

    name: str
    passages: int
    characters: int
    added_at: datetime
    indexed: int = 0


class PassageRecord(NamedTuple):
    """A passage and the name of its document. `words` holds its words and their stems, separated by spaces."""

    id: int
    document: str
    number: int
    text: str
    words: str


class VectorRecord(NamedTuple):
    """The vector of a passage, as float32 values, and the model that computed it."""

    passage: int
    model: str
    dimension: int
    vector: bytes


def turn_document_name(number: int) -> str:
    """Return the name of the document that holds a turn in the knowledge of its conversation."""
    return f"turn {number}"


class StoredAgent(NamedTuple):
    """The stored data that an agent needs when it opens.

    `variables` holds texts by scope and name, then by holder, the latest last. `active` holds the time of the last interaction
    of each active conversation, the longest idle first. `next_due` is when the first notification, schedule or question is due.
    `has_own_schedules` is true if the agent has schedules of its own (`@every`), and `has_questions` if a question is open.
    `has_rights` is true if there are approvals, or people who are asked a question later.
    """

    agent: str
    variables: Mapping[tuple[str, str], Mapping[str, str]]
    active: Mapping[str, datetime]
    next_due: datetime | None = None
    has_own_schedules: bool = False
    has_questions: bool = False
    has_rights: bool = False

    def get_by_holder(self, scope: str, name: str) -> Mapping[str, str]:
        """Return the variable `name` of all holders as JSON texts, by holder."""
        return self.variables.get((scope, name), {})

    def get_value(self, name: str) -> Any:
        """Return a value (JSON) that the platform stores for the agent; None if there is none."""
        text = self.get_by_holder(AGENT_SCOPE, name).get(self.agent)
        return None if text is None else json.loads(text)

    @property
    def is_paused(self) -> bool:
        """True if an operator has paused the agent."""
        return self.get_by_holder(PLATFORM_SCOPE, PAUSED).get(self.agent) == "true"

    @property
    def admissions(self) -> dict[str, bool]:
        """The decisions of operators by person (a bare JID): True for an admission."""
        return {person: value == "true" for person, value in self.get_by_holder(ACCESS_SCOPE, ADMITTED).items()}

    @property
    def refused_people(self) -> list[str]:
        """The people (bare JIDs) whom the agent has told that they have no access, the latest last."""
        return list(self.get_by_holder(REFUSED_SCOPE, REFUSED_SCOPE))

    def find_message_counts(self) -> list[MessageCount]:
        """Return the counts of messages, of whatever day."""
        counts = []
        for kind, scope in MESSAGE_COUNT_SCOPES.items():
            for holder, text in self.get_by_holder(scope, COUNT_NAME).items():
                count = json.loads(text)
                counts.append(MessageCount(kind, holder, date.fromisoformat(count["day"]), count["messages"], count["bytes"]))
        return counts
