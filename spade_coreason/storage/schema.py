"""The tables of the database. Times are integers: microseconds since 1970 in UTC. JSON is text."""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
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
    event,
    false,
    text,
)

REVISION = "0028"
"""The newest migration. `metadata` describes the tables after it."""
OLDEST_REVISIONS = {"sqlite": "0017", "postgresql": "0023"}
"""The oldest revision whose program may run on this schema, by the kind of the database. A migration that only adds things
leaves it as it is.

A program of a revision between the two uses the tables and columns that it knows. On PostgreSQL an older one than 0023 would
look for the interaction memories in files.
"""

metadata = MetaData()

# SQLite has one kind of integer, and the type of a row id must be INTEGER. On PostgreSQL microseconds need 64 bits.
BigInt = BigInteger().with_variant(Integer, "sqlite")

# A conversation and its session are one row, because they are created, changed and deleted together. No index contains a
# column that every turn changes: it would cost another page of writing per turn, for queries that are rare.
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
    Column("quiet_until", BigInt),  # 0 means none
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

ERASED_TURN = ""
"""The body of a turn that was erased from a conversation of others. Its row stays, so that the numbers have no gaps."""

# `holder` depends on the scope: the conversation id for "conversation", the owner's bare JID for "person", and the agent's own
# bare JID for "agent" (its position in the archive, the rooms it was invited to) and "shared" (what it stores for everybody).
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
NO_TURN, COMMAND, PARKED = 0, -1, -2
"""In place of the turn that answered a request: there was none, it was a command, or it waits for a person (`questions`)."""

# A closed row stays for seven days, so that duplicates are recognised. The keys are random and have no index: each would cost a
# page of writing, half of all writes of a turn (see dedup.py). Open rows have no index either: the one process that writes
# knows them (`Database.open_inbox_rows`). Both are loaded when an agent opens, on PostgreSQL by an index of the agents. SQLite
# writes whole pages, so such an index would cost 7 to 80 per cent more there; one process reads all rows once instead.
# `digest` is a hash of what a program's request asks, empty for other requests. `interaction` is the stored turn (its row id),
# `NO_TURN` or `COMMAND`: the answer to a repeated request is made from it. `evidence` tells a message from others with the same
# id and content. `message_key` is the key of these, if an earlier request has taken it; then `key` is another one. `channel` is
# the name of the channel by which the request came, and by which its reply goes; NULL means XMPP.
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
    Column("digest", LargeBinary),
    Column("interaction", BigInt),
    Column("evidence", Text),
    Column("message_key", LargeBinary),
    Column("channel", Text),
    # An index of the hash writes 2 to 4 per cent more at a turn; one of the name and the id would write 4 to 6.
    Index("inbox_by_agent", text("hashtext(agent)")).ddl_if(dialect="postgresql"),
)
# A row is updated twice. With free space in its page, an update writes no index.
_leave_space = DDL("ALTER TABLE inbox SET (fillfactor = 50)")  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
event.listen(inbox, "after_create", _leave_space.execute_if(dialect="postgresql"))

# The journal of durable steps. `number` counts the uses of a name within the turn of the request, from 1. `result` is JSON
# text, and NULL while a step is only intended. The rows of a request are deleted when it is answered or closed.
steps = Table(
    "steps",
    metadata,
    Column("request", BigInt, ForeignKey("inbox.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("arguments_hash", Text, nullable=False),
    Column("result", Text),
    PrimaryKeyConstraint("request", "name", "number"),
)

# Requests whose turns ran when the process died. The id is that of the row in the inbox, which loses its text at the end.
crashed_requests = Table(
    "crashed_requests",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("received_at", BigInt, nullable=False),
    Column("request", Text, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("failed_at", BigInt),
    Column("stops", Integer, nullable=False, server_default="0"),
    Column("channel", Text),
    Column("runs_alone", Boolean, nullable=False, server_default=false()),
)

# Failures that people were told of by a number. `errors` is the chain of exceptions as JSON, and `texts` are their texts, which
# may quote a person: they are read only for a command that says so in the audit trail.
incidents = Table(
    "incidents",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("conversation_id", Text),
    Column("occurred_at", BigInt, nullable=False),
    Column("errors", Text, nullable=False),
    Column("texts", Text, nullable=False),
    Index("incidents_by_agent", "agent", "id"),
    Index("incidents_by_person", "agent", "person", "id"),
)

# Knowledge. The table and the columns of a document collection keep their old name, shelf. A collection belongs to an agent
# itself (scope "agent", holder ""), to a person or to a conversation. A search never reads those of other people or
# conversations.
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

# `words` holds the words of the text and their stems, separated by spaces, as `spade_coreason.domain.texts.text` finds them.
# Full text searches it. `word_rules` names the rules that made them. Passages of other rules are indexed anew in the
# background.
passages = Table(
    "passages",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("shelf", BigInt, ForeignKey("shelves.id", ondelete="CASCADE"), nullable=False),
    Column("document", BigInt, ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("words", Text, nullable=False),
    Column("word_rules", Text, nullable=False, server_default=""),
    Index("passages_by_word_rules", "word_rules"),
    Index("passages_by_document", "document", "number"),
    Index("passages_by_shelf", "shelf"),
)

# A vector is float32 in little-endian order and has the length 1. Vectors of different models cannot be compared.
vectors = Table(
    "vectors",
    metadata,
    Column("passage", BigInt, ForeignKey("passages.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("model", Text, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("vector", LargeBinary, nullable=False),
)

# Audit trails. Rows are numbered from 1 in the trail of each agent. `entry` is NULL if it was erased.
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

# Topics. `agent` is the broker. An item and its deliveries are written in one transaction, and a delivery is deleted when its
# subscriber has accepted the item. `dead_letter` is JSON: which delivery failed, and why.
topic_subscriptions = Table(
    "topic_subscriptions",
    metadata,
    Column("agent", Text, nullable=False),
    Column("subscriber", Text, nullable=False),
    Column("pattern", Text, nullable=False),
    PrimaryKeyConstraint("agent", "subscriber", "pattern"),
)

topic_items = Table(
    "topic_items",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("publisher", Text, nullable=False),
    Column("published_at", BigInt, nullable=False),
    Column("hops", Integer, nullable=False),
    Column("payload", Text, nullable=False),
    Column("dead_letter", Text),
    Column("root", Text),
    UniqueConstraint("agent", "item_id"),
    Index("topic_items_by_topic", "agent", "topic", "id"),
)

topic_deliveries = Table(
    "topic_deliveries",
    metadata,
    Column("item", BigInt, ForeignKey("topic_items.id", ondelete="CASCADE"), nullable=False),
    Column("subscriber", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("parked", Integer),
    PrimaryKeyConstraint("item", "subscriber"),
    Index("topic_deliveries_by_subscriber", "agent", "subscriber", "item"),
)

# What an agent sends without being asked. A row is its own outbox: `content` is JSON, the blocks; `messages` are what the
# server gets, in the form of the network, once the turn of the notification is stored. `root` is the person behind the turn
# that made it, "" if there is none. A row stays for seven days after its last change.
_is_waiting = text("state = 'waiting'")
notifications = Table(
    "notifications",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("notification_id", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("thread", Text),
    Column("root", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("content", Text, nullable=False),
    Column("messages", Text),
    Column("created_at", BigInt, nullable=False),
    Column("changed_at", BigInt, nullable=False),
    Column("due_at", BigInt, nullable=False),
    UniqueConstraint("agent", "notification_id"),
    Index("notifications_by_due_time", "agent", "due_at", sqlite_where=_is_waiting, postgresql_where=_is_waiting),
    Index("notifications_by_person", "agent", "person", "created_at"),
)

# Requests that come at a time. `owner` and `thread` are those of the conversation in which it is due, `origin` is JSON: the
# rest of where the reply goes. `cron` is "" for a time that comes once. `due_at` is the next due time; `wake_at` is when it is
# looked at, which is later if a quota is used up. A row whose last due time has come is deleted in the transaction that puts
# its request into the inbox.
schedules = Table(
    "schedules",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("schedule_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("root", Text, nullable=False),
    Column("thread", Text),
    Column("origin", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("cron", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("missed", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInt, nullable=False),
    Column("due_at", BigInt, nullable=False),
    Column("wake_at", BigInt, nullable=False),
    UniqueConstraint("agent", "schedule_id"),
    Index("schedules_by_due_time", "agent", "wake_at", sqlite_where=_is_waiting, postgresql_where=_is_waiting),
    Index("schedules_by_owner", "agent", "owner"),
)

# Requests that wait for the answer of a person. The id is that of the row in the inbox, which is answered and closed as any
# other; its key is found there, and its steps stay with it. `request` is JSON, as in the inbox. `owner` is the sender there;
# `root` is the person behind it, "" if that is the owner or not known. `message_ids` are JSON: by these it is taken back. The
# row is deleted in the transaction that puts the request into the inbox again.
parked_requests = Table(
    "parked_requests",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("root", Text, nullable=False),
    Column("thread", Text),
    Column("request", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("channel", Text, nullable=False),
    Column("message_ids", Text, nullable=False),
    Column("parked_at", BigInt, nullable=False),
    Index("parked_requests_by_owner", "agent", "owner"),
)

# Questions to people. `request` is the row of the parked request, and `step` and `number` are its step that gets the answer.
# `thread` is that of the conversation in which the person is asked, and `reference` begins the ids of the messages there.
# `requester` is the person behind the request, who never approves. `form` (choices or a schema) and `answer` are JSON.
# `wake_at` is when the clock looks at it: to remind, and at `expires_at` to end it. A row stays for seven days after its last
# change.
_is_open = text("state = 'open'")
questions = Table(
    "questions",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("question_id", Text, nullable=False),
    Column("request", BigInt, nullable=False),
    Column("kind", Text, nullable=False),
    Column("step", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("thread", Text),
    Column("requester", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("form", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("answer", Text),
    Column("decided_by", Text, nullable=False),
    Column("created_at", BigInt, nullable=False),
    Column("expires_at", BigInt, nullable=False),
    Column("wake_at", BigInt, nullable=False),
    Column("changed_at", BigInt, nullable=False),
    Column("shown_at", BigInt),
    Column("approvers", Text),
    UniqueConstraint("agent", "question_id"),
    Index("questions_by_time", "agent", "wake_at", sqlite_where=_is_open, postgresql_where=_is_open),
    Index("questions_by_request", "request"),
)

# The people (bare JIDs) who may answer a question. One who `waits` (true) is asked once they have a place for it. It is NULL
# for others who may answer a question, and false for those who may decide an approval.
_has_right = text("waits IS NOT NULL")
asked_people = Table(
    "asked_people",
    metadata,
    Column("question", BigInt, ForeignKey("questions.id", ondelete="CASCADE"), nullable=False),
    Column("agent", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("waits", Boolean),
    PrimaryKeyConstraint("question", "person"),
    Index("asked_people_by_person", "agent", "person"),
    Index("people_with_rights", "agent", sqlite_where=_has_right, postgresql_where=_has_right),
)

# The keys with which programs reach agents by a door. Rows are never deleted: a name is used once, so that its conversations do
# not pass on. `agents` and `withdrawn` are JSON, lists of bare JIDs: the agents that the key may ask, and those that have
# withdrawn it for good. `account` is the bare JID for whom it stands, "" if it stands for itself. `users` is "header" if each
# request names the person for whom a front end asks, else "". Secrets are stored as SHA-256; the one before the last rotation
# counts until `previous_until`. `issued_at` is the time of the present secret, and `last_used_at` is up to a minute old.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False, unique=True),
    Column("agents", Text, nullable=False),
    Column("withdrawn", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("users", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False, unique=True),
    Column("previous_hash", LargeBinary),
    Column("previous_until", BigInt),
    Column("created_at", BigInt, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("issued_at", BigInt, nullable=False),
    Column("expires_at", BigInt),
    Column("revoked_at", BigInt),
    Column("last_used_at", BigInt),
)

# Webhooks: addresses at which a signed POST starts a turn. Rows are never deleted, as those of keys. `kind` is "standard" or
# "github". The secrets are stored as they are, because a signature cannot be checked with a hash of them; they are "" once the
# webhook is revoked. `secret_number` counts them, and the one before counts until `previous_until`. `answer_key` signs the
# addresses of answers.
webhooks = Table(
    "webhooks",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False, unique=True),
    Column("agent", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("thread", Text),
    Column("secret", Text, nullable=False),
    Column("secret_number", Integer, nullable=False),
    Column("previous_secret", Text),
    Column("previous_until", BigInt),
    Column("answer_key", LargeBinary, nullable=False),
    Column("created_at", BigInt, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("issued_at", BigInt, nullable=False),
    Column("revoked_at", BigInt),
)

# The bodies that webhooks of GitHub's kind have accepted, as keyed hashes, for as long as their secret is accepted. A signature
# of that kind has no time in it, so a body is known again by this only.
webhook_bodies = Table(
    "webhook_bodies",
    metadata,
    Column("webhook", BigInt, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("secret_number", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("accepted_at", BigInt, nullable=False),
    PrimaryKeyConstraint("webhook", "secret_number", "body"),
)

# The conversations of callers of the OpenAI-compatible door, by what a client has of them: `digest` is the SHA-256 of the
# messages so far, of the id of a response, or of the id of a request that answers a question. `thread` is NULL if it may be one
# of several. `request` is the id of the request that is meant, and `body` the digest of what was asked under its id.
door_threads = Table(
    "door_threads",
    metadata,
    Column("agent", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("thread", Text),
    Column("request", Text),
    Column("body", LargeBinary),
    Column("used_at", BigInt, nullable=False),
    Column("question", Text),
    PrimaryKeyConstraint("agent", "owner", "digest"),
)

# The files that callers of doors have sent with a request, for seven days. Whoever has the token may fetch one. `digest` is the
# SHA-256 of its name, type and data, so that a request that is sent again has the same links.
door_files = Table(
    "door_files",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("token", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("size", BigInt, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", BigInt, nullable=False),
    Index("door_files_by_owner", "agent", "owner", "request"),
)

# Interaction memories, on PostgreSQL only: on SQLite they are files, and this table has rows in backups at most. A row is one
# entry, in the order of the row ids. `entry` is the JSON of the seed's file, on one line. `conversation_id` is escaped as in
# JSON, without the quotes: PostgreSQL stores no NUL. It may be too long for an index, which therefore has its hash.
interaction_memory = Table(
    "interaction_memory",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("agent", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Index("interaction_memory_by_conversation", "agent", text("hashtext(conversation_id)"), "id").ddl_if(dialect="postgresql"),
)

# The row ids of all tables come from one sequence, in blocks (see sequences.py). `next_id` is the first one that is free.
sequences = Table(
    "sequences",
    metadata,
    Column("name", Text, primary_key=True),
    Column("next_id", BigInt, nullable=False),
)

# The workers that share the agents, on PostgreSQL: a row from the start of a platform to its end. `expires_at` is a time of the
# database's clock. A worker that has not renewed it by then is taken for dead, and another one deletes the row. `snapshot` is
# JSON, for the status. While `is_leaving`, it gives its agents away. `is_away` while it does not reach the XMPP server, but
# another one does. `reaches_server` is what it found last, between two times; NULL if it has not looked yet. `channel` is
# that of its bell (mailbox.py).
workers = Table(
    "workers",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("started_at", BigInt, nullable=False),
    Column("expires_at", BigInt, nullable=False),
    Column("is_leaving", Boolean, nullable=False, server_default=false()),
    Column("is_away", Boolean, nullable=False, server_default=false()),
    Column("reaches_server", Boolean),
    Column("reach_began_at", BigInt),
    Column("reach_ended_at", BigInt),
    Column("snapshot", Text),
    Column("channel", Text),
)

# Which worker serves an agent; NULL if it is free. `reason` is that of the last change, at `changed_at`. `was_handed_over` if
# its last worker gave it back, and did not die. `lost_worker` is the name of the worker from which it was last taken over, with
# the time and the reason. `card` is what other workers know of the agent, as JSON, since `card_at`. `manifest` is its manifest
# as doors show it, as JSON, if it is behind one; it has changed `manifest_version` times.
leases = Table(
    "leases",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("worker", BigInt, ForeignKey("workers.id", ondelete="SET NULL")),
    Column("changed_at", BigInt, nullable=False),
    Column("reason", Text, nullable=False),
    Column("was_handed_over", Boolean, nullable=False),
    Column("lost_worker", Text),
    Column("lost_at", BigInt),
    Column("lost_reason", Text),
    Column("card", Text),
    Column("card_at", BigInt),
    Column("manifest", Text),
    Column("manifest_version", BigInt, nullable=False, server_default=text("0")),
    Index("leases_by_worker", "worker"),
)

# The calls between workers (calls.py): `caller` asks `worker` to do something with an agent of it, or with itself (""),
# and deletes the row once it has the answer. A call ends with either of them. `arguments` and `answer` are JSON.
worker_calls = Table(
    "worker_calls",
    metadata,
    Column("id", BigInt, primary_key=True, autoincrement=False),
    Column("caller", BigInt, ForeignKey("workers.id", ondelete="CASCADE"), nullable=False),
    Column("worker", BigInt, ForeignKey("workers.id", ondelete="CASCADE"), nullable=False),
    Column("agent", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("is_stopped", Boolean, nullable=False, server_default=false()),
    Column("answer", Text),
    Index("worker_calls_by_caller", "caller"),
    Index("worker_calls_by_worker", "worker"),
)

# One row: which programs may run on the schema (`OLDEST_REVISIONS` of the program that has created or migrated it).
compatibility = Table("compatibility", metadata, Column("oldest_revision", Text, primary_key=True))

DATA_TABLES = [
    table for table in metadata.sorted_tables if table not in (sequences, compatibility, workers, leases, worker_calls)
]
"""The tables with stored data, each after those that it refers to."""
