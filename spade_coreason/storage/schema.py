"""The tables. Times are integers, microseconds since 1970 in UTC; JSON is text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

REVISION = "0005"
"""The newest migration; what `metadata` describes."""

metadata = MetaData()

# SQLite knows one kind of integer, and a row id has to be called INTEGER; microseconds need 64 bits on PostgreSQL.
BigInt = BigInteger().with_variant(Integer, "sqlite")

# A conversation and its session are one row: they are made, changed and deleted together. No index has what every turn
# changes: it would be a page more to write each time, for what is seldom asked.
conversations = Table(
    "conversations",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("interaction_count", Integer, nullable=False),
    Column("max_interactions", Integer, nullable=False),
    Column("created_at", BigInt, nullable=False),
    Column("last_interaction", BigInt, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("quiet_until", BigInt),  # 0, or NULL as it was written once, is none
    Column("window_start", BigInt, nullable=False),
    Column("turns", BigInt, nullable=False),
    UniqueConstraint("agent", "conversation_id"),
    Index("conversations_by_owner", "agent", "owner"),
)

interactions = Table(
    "interactions",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("conversation", BigInt, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("number", BigInt, nullable=False),
    Column("interaction_id", Text, nullable=False),
    Column("timestamp", BigInt, nullable=False),
    Column("body", Text, nullable=False),
    Index("interactions_by_number", "conversation", "number"),
)

# `holder` is the conversation id in the scope "conversation", the owner's bare JID in the scope "person", and the agent's
# own in the scope "agent" (where it is in its archive, which rooms it was invited to).
variables = Table(
    "variables",
    metadata,
    Column("agent", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("updated_at", BigInt, nullable=False),
    PrimaryKeyConstraint("agent", "scope", "holder", "name"),
)

RECEIVED, ANSWERED, CLOSED = range(3)
"""The states of a request in the inbox."""

# A closed row stays for seven days, to know a duplicate by. There is no index of the keys, which are random: each would be a
# page to write, half of all that a turn writes (known.py); and none of the rows that are open, which whoever writes knows too.
inbox = Table(
    "inbox",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("sender", Text, nullable=False),
    Column("received_at", BigInt, nullable=False),
    Column("state", Integer, nullable=False),
    Column("request", Text),
    Column("answer", Text),
)

# What agents know. A shelf is what an agent knows for itself (scope "agent", holder ""), of a person or of a conversation;
# nobody looks into another's.
shelves = Table(
    "shelves",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("holder", Text, nullable=False),
    UniqueConstraint("agent", "scope", "holder"),
)

documents = Table(
    "documents",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("shelf", BigInt, ForeignKey("shelves.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("passages", Integer, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("added_at", BigInt, nullable=False),
    UniqueConstraint("shelf", "name"),
    Index("documents_by_digest", "shelf", "digest"),
)

# `words` are those of the text as `spade_coreason.domain.text` finds them, with spaces between: what full text looks at.
passages = Table(
    "passages",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("shelf", BigInt, ForeignKey("shelves.id", ondelete="CASCADE"), nullable=False),
    Column("document", BigInt, ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("words", Text, nullable=False),
    Index("passages_by_document", "document", "number"),
    Index("passages_by_shelf", "shelf"),
)

# float32 in the order of bytes of x86, of length 1. `model` made it; vectors of two models say nothing about each other.
vectors = Table(
    "vectors",
    metadata,
    Column("passage", BigInt, ForeignKey("passages.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("model", Text, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("vector", LargeBinary, nullable=False),
)

# Audit trails. A row is numbered from 1 on within that of its agent; `entry` is NULL where it was forgotten.
audit = Table(
    "audit",
    metadata,
    Column("agent", Text, nullable=False),
    Column("number", BigInt, nullable=False),
    Column("person", Text, nullable=False),
    Column("integrity_hash", Text, nullable=False),
    Column("entry", Text),
    PrimaryKeyConstraint("agent", "number"),
    Index("audit_by_person", "agent", "person"),
)
audit_heads = Table(
    "audit_heads",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("number", BigInt, nullable=False),
    Column("integrity_hash", Text, nullable=False),
)

NUMBERED = (inbox, interactions, conversations, shelves, documents, passages)
"""The tables whose row ids are made by the one process that owns the database."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    """A time as the tables hold it."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds  # to divide timedeltas takes longer


def from_micros(micros: int) -> datetime:
    """A time as everybody else holds it."""
    return _EPOCH + timedelta(microseconds=micros)
