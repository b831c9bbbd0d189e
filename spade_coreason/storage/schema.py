"""The tables of the database, each made of the named tuple of its rows. Times are integers: microseconds since 1970 in UTC.

JSON is text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from pydantic_core import from_json
from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
    false,
    text,
)
from sqlalchemy.schema import SchemaItem

from ..contracts import QuestionState
from ..domain.preferences import PREFERENCES_SCOPE
from ..domain.texts.error_chain import ErrorChain, load_error_chain
from .records import MESSAGE_COUNT_SCOPES, REFUSED_SCOPE, from_micros, to_micros

REVISION = "0031"
"""The newest migration. `metadata` describes the tables after it."""
OLDEST_REVISIONS = {"sqlite": "0031", "postgresql": "0031"}
"""The oldest revision whose program may run on this schema, by the kind of the database. A migration that only adds things
leaves it as it is. A program of a revision between the two uses the tables and columns that it knows.
"""

DUPLICATE_DAYS = 7
"""The days for which a message is recognised if it comes again."""
FILE_DAYS = 7
"""The days for which a file of a caller is kept."""

metadata = MetaData()

Small: TypeAlias = Annotated[int, "32 bits on PostgreSQL"]
"""A small number. Others have 64 bits there, as microseconds need."""
Time: TypeAlias = Annotated[int, "microseconds"]
Json: TypeAlias = Annotated[str, "JSON"]
# SQLite has one kind of integer, and the type of a row id must be INTEGER.
_BIG = BigInteger().with_variant(Integer, "sqlite")
_TYPES: dict[Any, Any] = {
    int: _BIG,
    Time: _BIG,
    Small: Integer,
    str: Text,
    Json: Text,
    bytes: LargeBinary,
    bool: Boolean,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The meaning of the rows of a table, or of some of them, to people, to conversations and to time (see kept.py).

    Several columns are one text, with spaces between their names.
    """

    name: str = ""
    """The name of these rows for people and metrics; "" for that of the table."""
    people: str = ""
    """The columns with bare JIDs: a row is about each of these people."""
    listed: str | None = None
    """The columns by which an agent knows a person; None for those of `people`."""
    only: tuple[str, str] | None = None
    """A column and its values, with spaces between them: only the rows with one of these. None for all rows.

    "" stands for the values that no other meaning of the table has.
    """
    conversation: str = ""
    """The column with the id of a conversation, with which a row is deleted."""
    place: str = ""
    """The columns with the owner and the thread of the conversation in which something is due."""
    erasure: Literal["deletes", "blanks", "is special", "keeps"] = "deletes"
    """The effect of the erasure of a person. It is special if a function of erasure.py has it."""
    blank: Mapping[str, Any] | None = None
    """The values by which a row loses its person, and stays."""
    count: str = ""
    """The field of an `ErasureReport` that counts what is erased; "" for none."""
    days: tuple[str, int] | None = None
    """A column with a time, and the days after it until a row is deleted."""
    waiting: str = ""
    """The state of rows that wait, and are not deleted then."""
    state: str = ""
    """The column by which rows are counted for metrics."""
    shown: str = ""
    """The columns that an export of a person shows: `name`, or `name=column`, or `name=column.field` of its JSON."""
    is_backed_up: bool = True


_PART = Kept()
"""The meaning of rows that name no person, or that go with a row of another table."""
_PLATFORM = Kept(is_backed_up=False)
"""The meaning of rows of the platform that runs."""
_ALL_KEPT: list[tuple[Table, Kept]] = []


def _table(
    name: str,
    row: type[Any],
    kept: Kept | tuple[Kept, ...],
    *rules: SchemaItem,
    key: Collection[str] = ("id",),
    parents: Mapping[str, Table] = {},
    defaults: Mapping[str, Any] = {},
) -> Table:
    """Make the table of a named tuple, and say what its rows are to people. A field `… | None` may be null.

    `key` names the primary key. A row is deleted with its parent: that to whose id one of its columns refers.
    """
    columns: list[SchemaItem] = []
    for field, hint in get_type_hints(row, include_extras=True).items():
        kinds = [hint] if get_origin(hint) in (None, Annotated, Literal) else get_args(hint)
        kind = str if get_origin(kinds[0]) is Literal else kinds[0]
        parent = [ForeignKey(parents[field].c.id, ondelete="CASCADE")] if field in parents else []
        options: Any = {"primary_key": True, "autoincrement": False} if field in key else {"nullable": type(None) in kinds}
        columns.append(Column(field, _TYPES[kind], *parent, server_default=defaults.get(field), info={"kind": kind}, **options))
    table = Table(name, metadata, *columns, *rules)
    _ALL_KEPT.extend((table, one) for one in (kept if isinstance(kept, tuple) else (kept,)))
    return table


def _index_while(condition: str, name: str, *columns: str) -> Index:
    """Make an index of the rows that meet a condition."""
    is_met = text(condition)
    return Index(name, *columns, sqlite_where=is_met, postgresql_where=is_met)


class ConversationRow(NamedTuple):
    """A conversation and its session, which are created, changed and deleted together.

    No index contains a column that every turn changes: it would cost another page of writing per turn, for queries that are
    rare. `quiet_until` 0 means none.
    """

    id: int
    agent: str
    conversation_id: str
    owner: str
    session_id: str
    state: str
    interaction_count: Small
    max_interactions: Small
    created_at: Time
    last_interaction: Time
    failures: Small
    quiet_until: int | None
    window_start: int
    turns: int


conversations = _table(
    "conversations",
    ConversationRow,
    Kept(people="owner", erasure="is special", state="state"),
    UniqueConstraint("agent", "conversation_id"),
    Index("conversations_by_owner", "agent", "owner"),
)


class InteractionRow(NamedTuple):
    """A finished turn. `body` is the interaction as JSON.

    `root` is the person behind it (a bare JID), if that is another one than the owner of the conversation, else "". It is
    `HIDDEN_PERSON` if it is not known, and `ERASED_ROOT` once the turn was erased.
    """

    id: int
    conversation: int
    number: int
    interaction_id: str
    timestamp: Time
    body: Json
    root: str


interactions = _table(
    "interactions",
    InteractionRow,
    _PART,
    Index("interactions_by_number", "conversation", "number"),
    _index_while("root != ''", "interactions_by_root", "root"),
    parents={"conversation": conversations},
    defaults={"root": ""},
)

ERASED_TURN, ERASED_ROOT = "", "erased"
"""The body and the root of a turn that was erased from a conversation of others. The row stays: numbers have no gaps."""


class VariableRow(NamedTuple):
    """A variable.

    `holder` depends on the scope. It is the id of the conversation for "conversation", and the bare JID of the owner for
    "person". For "agent" (the position in the archive, the rooms that have invited the agent) and "shared" (its values for
    everybody), it is the bare JID of the agent.
    """

    agent: str
    scope: str
    holder: str
    name: str
    value: Json
    updated_at: Time


variables = _table(
    "variables",
    VariableRow,
    (
        Kept(people="holder", only=("scope", "person"), count="variables"),
        Kept(people="holder", only=("scope", PREFERENCES_SCOPE), count="preferences"),
        Kept(people="holder", only=("scope", f"{REFUSED_SCOPE} {MESSAGE_COUNT_SCOPES['person']}")),
        Kept(people="holder", listed="", only=("scope", MESSAGE_COUNT_SCOPES["room"])),
        Kept(only=("scope", "conversation"), conversation="holder", count="variables"),
    ),
    key=("agent", "scope", "holder", "name"),
)

RECEIVED, ANSWERED, CLOSED = range(3)
"""The states of a request in the inbox."""
NO_TURN, COMMAND, PARKED = 0, -1, -2
"""In place of the turn that answered a request: there was none, it was a command, or it waits for a person (`questions`)."""


class InboxRow(NamedTuple):
    """A received request.

    A closed row stays for seven days, so that duplicates are recognised. The keys are random and have no index: each would cost
    a page of writing, half of all writes of a turn (see dedup.py). Open rows have no index either: the one process that writes
    knows them (`InboxIndex.open_rows`). Both are loaded when an agent opens, on PostgreSQL by an index of the agents.
    SQLite writes whole pages, so such an index would cost 7 to 80 per cent more there; one process reads all rows once instead.

    `digest` is a hash of what a program's request asks, empty for other requests. `interaction` is the stored turn (its row
    id), `NO_TURN` or `COMMAND`: the answer to a repeated request is made from it. `evidence` tells a message from others with
    the same id and content. `message_key` is the key of these, if an earlier request has taken it; then `key` is another one.
    `channel` is the name of the channel by which the request came, and by which its reply goes; NULL means XMPP.
    """

    id: int
    agent: str
    key: bytes
    sender: str
    received_at: Time
    state: Small
    request: str | None
    answer: str | None
    digest: bytes | None
    interaction: int | None
    evidence: str | None
    message_key: bytes | None
    channel: str | None


inbox = _table(
    "inbox",
    InboxRow,
    Kept(people="sender", erasure="is special"),
    # An index of the hash writes 2 to 4 per cent more at a turn; one of the name and the id would write 4 to 6.
    Index("inbox_by_agent", text("hashtext(agent)")).ddl_if(dialect="postgresql"),
)
# A row is updated twice. With free space in its page, an update writes no index.
_leave_space = DDL("ALTER TABLE inbox SET (fillfactor = 50)")  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
event.listen(inbox, "after_create", _leave_space.execute_if(dialect="postgresql"))


class StepRow(NamedTuple):
    """A durable step of a request.

    `number` counts the uses of a name within the turn, from 1. `result` is JSON, and NULL while a step is only intended. The
    rows of a request are deleted when it is answered or closed.
    """

    request: int
    name: str
    number: Small
    arguments_hash: str
    result: str | None


steps = _table("steps", StepRow, _PART, key=("request", "name", "number"), parents={"request": inbox})


CRASHES_UNTIL_SUSPECT = 2
"""A request that ran at so many crashes is a suspect: it runs alone."""
STOPS_UNTIL_SUSPECT = 5
"""A request that was cut off by so many stops is a suspect too. It may have asked for them, by a signal to its own process."""


class CrashedRequest(NamedTuple):
    """A request whose turn ran when the process died. Its id is that of the row in the inbox, which loses its text.

    `crashes` counts how often the process died, and `stops` how often a stop cut the turn off. `failed_at` is the time since
    which it is not run again: it was the only one that ran, or it blocked the event loop. `request` is JSON, as in the inbox.
    """

    id: int
    agent: str
    sender: str
    received_at: Time
    request: str
    crashes: Small
    failed_at: Time | None
    stops: Small = 0
    channel: str | None = None
    runs_alone: bool = False

    @property
    def is_suspect(self) -> bool:
        """True if it runs again, but alone."""
        return self.failed_at is None and self.ends_as_suspect >= 0

    @property
    def ends_as_suspect(self) -> int:
        """The number of ends of the process since the request became a suspect; negative if it is none."""
        return max(self.crashes - CRASHES_UNTIL_SUSPECT, self.stops - STOPS_UNTIL_SUSPECT)

    @property
    def has_crashed(self) -> bool:
        """True if it failed because of crashes, False if it did because of stops."""
        return self.crashes > CRASHES_UNTIL_SUSPECT or self.stops <= STOPS_UNTIL_SUSPECT


crashed_requests = _table(
    "crashed_requests",
    CrashedRequest,
    Kept(people="sender", listed="", days=("failed_at", DUPLICATE_DAYS)),
    defaults={"stops": "0", "runs_alone": false()},
)


class Incident(NamedTuple):
    """A failure that a person was told of by a number.

    `person` is the person behind the request if known, else the owner of the conversation (a bare JID). Without
    `conversation_id` the request failed before its conversation was known. `errors` is the chain of exceptions as JSON, and
    `texts` are their texts, which may quote a person: they are read only for a command that says so in the audit trail, and
    are "" for others.
    """

    id: int
    agent: str
    incident: str
    person: str
    conversation_id: str | None
    occurred_at: Time
    errors: str
    texts: str

    @property
    def chain(self) -> ErrorChain:
        """The chain of exceptions."""
        errors = json.loads(self.errors)
        texts = json.loads(self.texts) if self.texts else [""] * len(errors)
        return load_error_chain([{**fields, "text": text} for fields, text in zip(errors, texts, strict=True)])


incidents = _table(
    "incidents",
    Incident,
    Kept(people="person", conversation="conversation_id", count="incidents", shown="incident occurred_at conversation_id"),
    Index("incidents_by_agent", "agent", "id"),
    Index("incidents_by_person", "agent", "person", "id"),
)


class CollectionRow(NamedTuple):
    """A document collection. The table and the columns keep its old name, shelf.

    It belongs to an agent itself (scope "agent", holder ""), to a person or to a conversation. A search never reads those of
    other people or conversations.
    """

    id: int
    agent: str
    scope: str
    holder: str


shelves = _table(
    "shelves",
    CollectionRow,
    Kept(people="holder", only=("scope", "person"), erasure="is special"),
    UniqueConstraint("agent", "scope", "holder"),
)


class DocumentRow(NamedTuple):
    """A document."""

    id: int
    shelf: int
    name: str
    digest: bytes
    passages: Small
    characters: Small
    added_at: Time


documents = _table(
    "documents",
    DocumentRow,
    _PART,
    UniqueConstraint("shelf", "name"),
    Index("documents_by_digest", "shelf", "digest"),
    parents={"shelf": shelves},
)


class PassageRow(NamedTuple):
    """A passage of a document.

    `words` holds the words of the text and their stems, separated by spaces, as `spade_coreason.domain.texts.text` finds them.
    Full text searches it. `word_rules` names the rules that made them. Passages of other rules are indexed anew in the
    background.
    """

    id: int
    shelf: int
    document: int
    number: Small
    text: str
    words: str
    word_rules: str


passages = _table(
    "passages",
    PassageRow,
    _PART,
    Index("passages_by_word_rules", "word_rules"),
    Index("passages_by_document", "document", "number"),
    Index("passages_by_shelf", "shelf"),
    parents={"shelf": shelves, "document": documents},
    defaults={"word_rules": ""},
)


class VectorRow(NamedTuple):
    """The vector of a passage: float32 in little-endian order, of length 1. Those of two models cannot be compared."""

    passage: int
    model: str
    dimension: Small
    vector: bytes


vectors = _table("vectors", VectorRow, _PART, key=("passage",), parents={"passage": passages})


class AuditRow(NamedTuple):
    """An entry of an audit trail. They are numbered from 1 in the trail of each agent. `entry` is NULL if it was erased."""

    agent: str
    number: int
    person: str
    integrity_hash: str
    entry: Json | None


audit = _table(
    "audit",
    AuditRow,
    Kept(people="person", erasure="blanks", blank={"person": "", "entry": None}, count="audit_entries", shown="entry"),
    Index("audit_by_person", "agent", "person"),
    key=("agent", "number"),
)


class AuditHead(NamedTuple):
    """The last entry of a trail."""

    agent: str
    number: int
    integrity_hash: str


audit_heads = _table("audit_heads", AuditHead, _PART, key=("agent",))


class SubscriptionRow(NamedTuple):
    """A pattern of a subscriber at a topic broker, the agent."""

    agent: str
    subscriber: str
    pattern: str


topic_subscriptions = _table(
    "topic_subscriptions",
    SubscriptionRow,
    Kept(people="subscriber", count="subscriptions"),
    key=("agent", "subscriber", "pattern"),
)


class ItemRow(NamedTuple):
    """An item of a topic. It and its deliveries are written in one transaction.

    `dead_letter` is JSON: which delivery failed, and why.
    """

    id: int
    agent: str
    item_id: str
    topic: str
    publisher: str
    published_at: Time
    hops: Small
    payload: Json
    dead_letter: Json | None
    root: str | None


topic_items = _table(
    "topic_items",
    ItemRow,
    Kept(people="publisher root", listed="publisher", erasure="blanks", blank={"publisher": "", "root": ""}, count="items"),
    UniqueConstraint("agent", "item_id"),
    Index("topic_items_by_topic", "agent", "topic", "id"),
)


class DeliveryRow(NamedTuple):
    """A delivery. It is deleted when its subscriber has accepted the item."""

    item: int
    subscriber: str
    agent: str
    topic: str
    failures: Small
    error: str
    parked: Small | None


topic_deliveries = _table(
    "topic_deliveries",
    DeliveryRow,
    Kept(people="subscriber", listed=""),
    Index("topic_deliveries_by_topic", "agent", "subscriber", "topic", "item"),
    key=("item", "subscriber"),
    parents={"item": topic_items},
)


NOTIFICATION, SCHEDULE, DELIVERY, QUESTION = "notification", "schedule", "delivery", "question"
"""The kinds of tasks."""
WAITING, SUSPENDED = "waiting", "suspended"
"""The states of tasks that the clock looks at, and of those that wait for an operator. Notifications have others."""
Lane: TypeAlias = tuple[str, str]
"""The kind and the owner of tasks. Few of a lane are under way at once, so that they hold up no others."""


class Task(NamedTuple):
    """A notification, a schedule, the items of a topic for a subscriber, or the due times of a question.

    The clock of an agent hands it to the handler of its kind. `key` is the id by which others know it. `owner` is the bare JID
    of the person, room or agent for whom it is, and `thread` is that of the conversation that it goes with. `root` is the
    person behind the request that made it, "" if that is the owner or there is none. `data` is that of its kind. `due_at` is
    when it is due. `wake_at` is when the clock looks at it, which is later if a quota is used up or the owner does not answer.
    The row of a notification is its outbox.
    """

    id: int
    agent: str
    kind: str
    key: str
    owner: str
    root: str
    thread: str | None
    state: str
    reason: str
    attempts: Small
    data: Json
    created_at: Time
    changed_at: Time
    due_at: Time
    wake_at: Time

    @property
    def lane(self) -> Lane:
        """The lane of the task."""
        return self.kind, self.owner

    @property
    def values(self) -> dict[str, Any]:
        """The data."""
        values: dict[str, Any] = from_json(self.data)
        return values

    @property
    def due(self) -> datetime:
        """The time at which it is due."""
        return from_micros(self.due_at)

    def moved(
        self,
        now: datetime,
        state: str = WAITING,
        reason: str = "",
        due_at: datetime | None = None,
        wake_at: datetime | None = None,
    ) -> Task:
        """Return it in a state. `due_at` is by default as before, and `wake_at` is by default that."""
        due = self.due_at if due_at is None else to_micros(due_at)
        wake = due if wake_at is None else to_micros(wake_at)
        return self._replace(state=state, reason=reason, changed_at=to_micros(now), due_at=due, wake_at=wake)


_TASKS: dict[str, Any] = {"people": "owner root", "place": "owner thread", "state": "state"}

tasks = _table(
    "tasks",
    Task,
    (
        Kept(
            **_TASKS,
            name="notifications",
            only=("kind", NOTIFICATION),
            count="notifications",
            days=("changed_at", 7),
            waiting=WAITING,
            shown="notification_id=key person=owner thread state reason created_at due_at changed_at content=data.content",
        ),
        Kept(
            **_TASKS,
            name="schedules",
            only=("kind", SCHEDULE),
            count="schedules",
            shown="schedule_id=key kind=data.kind thread state cron=data.cron zone=data.zone created_at due_at"
            " payload=data.request.payload",
        ),
        Kept(
            people="owner root",
            place="owner thread",
            only=("kind", ""),
            shown="kind person=owner thread state reason created_at due_at changed_at data",
        ),
    ),
    UniqueConstraint("agent", "kind", "key"),
    _index_while("state = 'waiting'", "tasks_by_time", "agent", "wake_at"),
    Index("tasks_by_owner", "agent", "owner", "created_at"),
)


class ParkedRequest(NamedTuple):
    """A request that waits for the answer of a person.

    The id is that of the row in the inbox, which is answered and closed as any other; its key is found there, and its steps
    stay with it. `request` is JSON, as in the inbox. `owner` is the sender there; `root` is the person behind it, "" if that is
    the owner or not known. `message_ids` are JSON: by these it is taken back. The row is deleted in the transaction that puts
    the request into the inbox again.
    """

    id: int
    agent: str
    key: bytes
    owner: str
    root: str
    thread: str | None
    request: Json
    digest: bytes
    channel: str
    message_ids: Json
    parked_at: Time


parked_requests = _table(
    "parked_requests",
    ParkedRequest,
    Kept(people="owner root", listed="", erasure="is special", state="agent", shown="parked_at request"),
    Index("parked_requests_by_owner", "agent", "owner"),
)


class StoredQuestion(NamedTuple):
    """A question to people.

    `request` is the row of the parked request, and `step` and `number` are its step that gets the answer. `thread` is that of
    the conversation in which the person is asked, and `reference` begins the ids of the messages there. `requester` is the
    person behind the request, who never approves. `form` (choices or a schema) and `answer` are JSON. A task has its due time:
    half of its time, then `expires_at`. A row stays for seven days after its last change.
    """

    id: int
    agent: str
    question_id: str
    request: int
    kind: str
    step: str
    number: Small
    thread: str | None
    requester: str
    text: str
    form: Json
    code: str
    reference: str
    state: str
    answer: Json | None
    decided_by: str
    created_at: Time
    expires_at: Time
    changed_at: Time
    shown_at: Time | None = None
    """The time at which it was handed to the stream or to the client of a door; None before."""
    approvers: str | None = None
    """The group that may decide an approval; None for the one that is configured."""

    @property
    def is_open(self) -> bool:
        """True while it waits for an answer."""
        return self.state == QuestionState.OPEN.value

    @property
    def notice_name(self) -> str:
        """The name from which the ids of its notifications are derived: an approval is asked anew with each code."""
        return self.question_id + self.code if self.kind == "approval" else self.question_id

    @property
    def choices(self) -> list[str]:
        """The choices; none if any text or value is an answer."""
        return list(json.loads(self.form).get("choices", ()))

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the answer, or None."""
        schema: dict[str, Any] | None = json.loads(self.form).get("schema")
        return schema


questions = _table(
    "questions",
    StoredQuestion,
    Kept(people="requester", erasure="is special", days=("changed_at", 7), waiting="open", state="state"),
    UniqueConstraint("agent", "question_id"),
    _index_while("state = 'open'", "questions_open", "agent"),
    Index("questions_by_request", "request"),
)


class AskedRow(NamedTuple):
    """A person (a bare JID) who may answer a question.

    One who `waits` (true) is asked once they have a place for it. It is NULL for others who may answer a question, and false
    for those who may decide an approval.
    """

    question: int
    agent: str
    person: str
    waits: bool | None


asked_people = _table(
    "asked_people",
    AskedRow,
    Kept(people="person", erasure="is special"),
    Index("asked_people_by_person", "agent", "person"),
    _index_while("waits IS NOT NULL", "people_with_rights", "agent"),
    key=("question", "person"),
    parents={"question": questions},
)


class StoredKey(NamedTuple):
    """A key with which programs reach agents by a door.

    Rows are never deleted: a name is used once, so that its conversations do not pass on. `agents` and `withdrawn` are JSON,
    lists of bare JIDs: the agents that the key may ask, and those that have withdrawn it for good. `account` is the bare JID
    for whom it stands, "" if it stands for itself. `users` is "header" if each request names the person for whom a front end
    asks, else "". Secrets are stored as SHA-256; the one before the last rotation counts until `previous_until`. `issued_at` is
    the time of the present secret, and `last_used_at` is up to a minute old.
    """

    id: int
    name: str
    agents: str
    withdrawn: str
    account: str
    users: str
    secret_hash: bytes
    previous_hash: bytes | None
    previous_until: Time | None
    created_at: Time
    created_by: str
    issued_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None

    @property
    def agent_jids(self) -> list[str]:
        """The agents (bare JIDs) that the key may ask, in the order of its creation."""
        return list(json.loads(self.agents))

    @property
    def withdrawn_jids(self) -> list[str]:
        """The agents (bare JIDs) that have withdrawn the key for good."""
        return list(json.loads(self.withdrawn))

    def is_expired(self, now: datetime) -> bool:
        """Return True if its time is over."""
        return self.expires_at is not None and self.expires_at <= to_micros(now)

    def is_live(self, now: datetime) -> bool:
        """Return True if its secret is accepted."""
        return self.revoked_at is None and not self.is_expired(now)

    def revoked(self, now: datetime) -> StoredKey:
        """Return it revoked. The first time counts."""
        revoked_at = to_micros(now) if self.revoked_at is None else self.revoked_at
        return self._replace(revoked_at=revoked_at, previous_hash=None, previous_until=None)

    def until(self, end: datetime) -> StoredKey:
        """Return it with an end."""
        return self._replace(expires_at=to_micros(end))

    @property
    def lifetime(self) -> timedelta | None:
        """The time from the last secret to the end of the key; None for a key without an end."""
        return None if self.expires_at is None else from_micros(self.expires_at) - from_micros(self.issued_at)


api_keys = _table(
    "api_keys",
    StoredKey,
    Kept(people="account", listed="", erasure="keeps"),
    UniqueConstraint("name"),
    UniqueConstraint("secret_hash"),
)

WebhookKind: TypeAlias = Literal["standard", "github"]
"""The form of a signature: that of Standard Webhooks, or that of GitHub."""


class StoredWebhook(NamedTuple):
    """A webhook: an address at which a signed POST starts a turn of an agent (a bare JID). Rows are never deleted.

    The secrets are stored as they are, because a signature cannot be checked with a hash of them; they are "" once the webhook
    is revoked. `secret_number` counts them, and the one before counts until `previous_until`. `answer_key` signs the addresses
    of answers.
    """

    id: int
    name: str
    agent: str
    kind: WebhookKind
    thread: str | None
    secret: str
    secret_number: Small
    previous_secret: str | None
    previous_until: Time | None
    answer_key: bytes
    created_at: Time
    created_by: str
    issued_at: Time
    revoked_at: Time | None

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"StoredWebhook({self.name!r}, {self.agent!r}, {self.kind!r})"

    def accepts_previous(self, now: datetime) -> bool:
        """Return True if the secret before the present one is accepted too."""
        return self.previous_until is not None and to_micros(now) < self.previous_until

    def revoked(self, now: datetime) -> StoredWebhook:
        """Return it revoked, without its secrets. The first time counts."""
        revoked_at = to_micros(now) if self.revoked_at is None else self.revoked_at
        return self._replace(revoked_at=revoked_at, secret="", previous_secret=None, previous_until=None)


webhooks = _table("webhooks", StoredWebhook, _PART, UniqueConstraint("name"))


class WebhookBody(NamedTuple):
    """A body that a webhook of GitHub's kind has accepted, as a keyed hash, for as long as its secret is accepted.

    A signature of that kind has no time in it, so a body is known again by this only.
    """

    webhook: int
    secret_number: Small
    body: bytes
    accepted_at: Time


webhook_bodies = _table(
    "webhook_bodies", WebhookBody, _PART, key=("webhook", "secret_number", "body"), parents={"webhook": webhooks}
)


class DoorThreadRow(NamedTuple):
    """A conversation of a caller of the OpenAI-compatible door, by what a client has of it.

    `digest` is the SHA-256 of the messages so far, of the id of a response, or of the id of a request that answers a question.
    `thread` is NULL if it may be one of several. `request` is the id of the request that is meant, and `body` the digest of
    what was asked under its id.
    """

    agent: str
    owner: str
    digest: bytes
    thread: str | None
    request: str | None
    body: bytes | None
    used_at: Time
    question: str | None


door_threads = _table(
    "door_threads", DoorThreadRow, Kept(people="owner", listed="", days=("used_at", 90)), key=("agent", "owner", "digest")
)


class FileRow(NamedTuple):
    """A file that a caller of a door has sent with a request, for seven days. The token is all that is needed to fetch it.

    `digest` is the SHA-256 of its name, type and data, so that a request that is sent again has the same links.
    """

    id: int
    agent: str
    owner: str
    request: str
    digest: bytes
    token: str
    name: str
    type: str
    size: int
    data: bytes
    created_at: Time


door_files = _table(
    "door_files",
    FileRow,
    Kept(people="owner", listed="", days=("created_at", FILE_DAYS)),
    UniqueConstraint("token"),
    Index("door_files_by_owner", "agent", "owner", "request"),
)


class LoginRow(NamedTuple):
    """A login of a person to the page in the browser: a link, which is used once, or the session that it begins.

    `secret_hash` is a SHA-256. A backup has none of them, so a restore ends all sessions.
    """

    id: int
    secret_hash: bytes
    person: str
    is_link: bool
    created_at: Time
    expires_at: Time


logins = _table(
    "logins",
    LoginRow,
    Kept(people="person", listed="", erasure="keeps", is_backed_up=False),
    UniqueConstraint("secret_hash"),
    Index("logins_by_person", "person"),
)


class MemoryEntryRow(NamedTuple):
    """An entry of an interaction memory, on PostgreSQL only.

    On SQLite memories are files, and the table has rows in backups at most. Entries are in the order of the row ids. `entry` is
    the JSON of the seed's file, on one line. `conversation_id` is escaped as in JSON, without the quotes: PostgreSQL stores no
    NUL. It may be too long for an index, which therefore has its hash.
    """

    id: int
    agent: str
    conversation_id: str
    entry: str


interaction_memory = _table(
    "interaction_memory",
    MemoryEntryRow,
    Kept(erasure="is special"),
    Index("interaction_memory_by_conversation", "agent", text("hashtext(conversation_id)"), "id").ddl_if(dialect="postgresql"),
)


class SequenceRow(NamedTuple):
    """The sequence from which the row ids of all tables come, in blocks (see sequences.py). `next_id` is the first free one."""

    name: str
    next_id: int


sequences = _table("sequences", SequenceRow, _PLATFORM, key=("name",))


class WorkerRow(NamedTuple):
    """A worker that shares the agents, on PostgreSQL: a row from the start of a platform to its end.

    `expires_at` is a time of the database's clock. A worker that has not renewed it by then is taken for dead, and another one
    deletes the row. `snapshot` is JSON, for the status. While `is_leaving`, it gives its agents away. `is_away` while it does
    not reach the XMPP server, but another one does. `reaches_server` is what it found last, between two times; NULL if it has
    not looked yet. `channel` is that of its bell (mailbox.py).
    """

    id: int
    name: str
    started_at: Time
    expires_at: Time
    is_leaving: bool
    is_away: bool
    reaches_server: bool | None
    reach_began_at: Time | None
    reach_ended_at: Time | None
    snapshot: str | None
    channel: str | None


workers = _table("workers", WorkerRow, _PLATFORM, defaults={"is_leaving": false(), "is_away": false()})


class LeaseRow(NamedTuple):
    """The worker that serves an agent; NULL if it is free.

    `reason` is that of the last change, at `changed_at`. `was_handed_over` if its last worker gave it back, and did not die.
    `lost_worker` is the name of the worker from which it was last taken over, with the time and the reason. `card` is what
    other workers know of the agent, as JSON, since `card_at`. `manifest` is its manifest as doors show it, as JSON, if it is
    behind one; it has changed `manifest_version` times.
    """

    agent: str
    worker: int | None
    changed_at: Time
    reason: str
    was_handed_over: bool
    lost_worker: str | None
    lost_at: Time | None
    lost_reason: str | None
    card: str | None
    card_at: Time | None
    manifest: str | None
    manifest_version: int


leases = _table(
    "leases",
    LeaseRow,
    _PLATFORM,
    ForeignKeyConstraint(["worker"], [workers.c.id], ondelete="SET NULL"),
    Index("leases_by_worker", "worker"),
    key=("agent",),
    defaults={"manifest_version": text("0")},
)


class WorkerCall(NamedTuple):
    """A call between workers (calls.py): `caller` asks `worker` to do something with an agent of it, or with itself ("").

    The caller deletes the row once it has the answer. A call ends with either of them. `arguments` and `answer` are JSON.
    """

    id: int
    caller: int
    worker: int
    agent: str
    method: str
    arguments: str
    is_stopped: bool
    answer: str | None


worker_calls = _table(
    "worker_calls",
    WorkerCall,
    _PLATFORM,
    Index("worker_calls_by_caller", "caller"),
    Index("worker_calls_by_worker", "worker"),
    parents={"caller": workers, "worker": workers},
    defaults={"is_stopped": false()},
)


class CompatibilityRow(NamedTuple):
    """The one row that says which programs may run on the schema (`OLDEST_REVISIONS` of that which created or migrated it)."""

    oldest_revision: str


compatibility = _table("compatibility", CompatibilityRow, _PLATFORM, key=("oldest_revision",))

KEPT = tuple(_ALL_KEPT)
"""All tables with the meaning of their rows."""
_BACKED_UP = {table for table, kept in KEPT if kept.is_backed_up}
DATA_TABLES = [table for table in metadata.sorted_tables if table in _BACKED_UP]
"""The tables with stored data, each after those that it refers to."""
