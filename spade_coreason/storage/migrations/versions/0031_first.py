"""The first revision: the tables of version 0.1.0. Revisions after it change these, and leave this one as it is.

An empty database gets the tables of today from `schema.metadata`, without its revisions.
"""

from alembic import op

from spade_coreason.storage.backends import full_text
from spade_coreason.storage.backends.sequences import create_sequence

revision = "0031"
down_revision = None

_TABLES = """
CREATE TABLE conversations (
    id BIGINT NOT NULL, agent TEXT NOT NULL, conversation_id TEXT NOT NULL, owner TEXT NOT NULL, session_id TEXT NOT
    NULL, state TEXT NOT NULL, interaction_count INTEGER NOT NULL, max_interactions INTEGER NOT NULL, created_at BIGINT
    NOT NULL, last_interaction BIGINT NOT NULL, failures INTEGER NOT NULL, quiet_until BIGINT, window_start BIGINT NOT
    NULL, turns BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (agent, conversation_id)
);
CREATE INDEX conversations_by_owner ON conversations (agent, owner);
CREATE TABLE variables (
    agent TEXT NOT NULL, scope TEXT NOT NULL, holder TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, updated_at
    BIGINT NOT NULL, PRIMARY KEY (agent, scope, holder, name)
);
CREATE TABLE inbox (
    id BIGINT NOT NULL, agent TEXT NOT NULL, key BYTEA NOT NULL, sender TEXT NOT NULL, received_at BIGINT NOT NULL,
    state INTEGER NOT NULL, request TEXT, answer TEXT, digest BYTEA, interaction BIGINT, evidence TEXT, message_key
    BYTEA, channel TEXT, PRIMARY KEY (id)
);
CREATE TABLE crashed_requests (
    id BIGINT NOT NULL, agent TEXT NOT NULL, sender TEXT NOT NULL, received_at BIGINT NOT NULL, request TEXT NOT NULL,
    crashes INTEGER NOT NULL, failed_at BIGINT, stops INTEGER DEFAULT '0' NOT NULL, channel TEXT, runs_alone BOOLEAN
    DEFAULT false NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE incidents (
    id BIGINT NOT NULL, agent TEXT NOT NULL, incident TEXT NOT NULL, person TEXT NOT NULL, conversation_id TEXT,
    occurred_at BIGINT NOT NULL, errors TEXT NOT NULL, texts TEXT NOT NULL, PRIMARY KEY (id)
);
CREATE INDEX incidents_by_person ON incidents (agent, person, id);
CREATE INDEX incidents_by_agent ON incidents (agent, id);
CREATE TABLE shelves (
    id BIGINT NOT NULL, agent TEXT NOT NULL, scope TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (id), UNIQUE (agent,
    scope, holder)
);
CREATE TABLE audit (
    agent TEXT NOT NULL, number BIGINT NOT NULL, person TEXT NOT NULL, integrity_hash TEXT NOT NULL, entry TEXT, PRIMARY
    KEY (agent, number)
);
CREATE INDEX audit_by_person ON audit (agent, person);
CREATE TABLE audit_heads (
    agent TEXT NOT NULL, number BIGINT NOT NULL, integrity_hash TEXT NOT NULL, PRIMARY KEY (agent)
);
CREATE TABLE topic_subscriptions (
    agent TEXT NOT NULL, subscriber TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (agent, subscriber, pattern)
);
CREATE TABLE topic_items (
    id BIGINT NOT NULL, agent TEXT NOT NULL, item_id TEXT NOT NULL, topic TEXT NOT NULL, publisher TEXT NOT NULL,
    published_at BIGINT NOT NULL, hops INTEGER NOT NULL, payload TEXT NOT NULL, dead_letter TEXT, root TEXT, PRIMARY KEY
    (id), UNIQUE (agent, item_id)
);
CREATE INDEX topic_items_by_topic ON topic_items (agent, topic, id);
CREATE TABLE tasks (
    id BIGINT NOT NULL, agent TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, owner TEXT NOT NULL, root TEXT NOT
    NULL, thread TEXT, state TEXT NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL, data TEXT NOT NULL,
    created_at BIGINT NOT NULL, changed_at BIGINT NOT NULL, due_at BIGINT NOT NULL, wake_at BIGINT NOT NULL, PRIMARY KEY
    (id), UNIQUE (agent, kind, key)
);
CREATE INDEX tasks_by_time ON tasks (agent, wake_at) WHERE state = 'waiting';
CREATE INDEX tasks_by_owner ON tasks (agent, owner, created_at);
CREATE TABLE parked_requests (
    id BIGINT NOT NULL, agent TEXT NOT NULL, key BYTEA NOT NULL, owner TEXT NOT NULL, root TEXT NOT NULL, thread TEXT,
    request TEXT NOT NULL, digest BYTEA NOT NULL, channel TEXT NOT NULL, message_ids TEXT NOT NULL, parked_at BIGINT NOT
    NULL, PRIMARY KEY (id)
);
CREATE INDEX parked_requests_by_owner ON parked_requests (agent, owner);
CREATE TABLE questions (
    id BIGINT NOT NULL, agent TEXT NOT NULL, question_id TEXT NOT NULL, request BIGINT NOT NULL, kind TEXT NOT NULL,
    step TEXT NOT NULL, number INTEGER NOT NULL, thread TEXT, requester TEXT NOT NULL, text TEXT NOT NULL, form TEXT NOT
    NULL, code TEXT NOT NULL, reference TEXT NOT NULL, state TEXT NOT NULL, answer TEXT, decided_by TEXT NOT NULL,
    created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, changed_at BIGINT NOT NULL, shown_at BIGINT, approvers TEXT,
    PRIMARY KEY (id), UNIQUE (agent, question_id)
);
CREATE INDEX questions_by_request ON questions (request);
CREATE INDEX questions_open ON questions (agent) WHERE state = 'open';
CREATE TABLE api_keys (
    id BIGINT NOT NULL, name TEXT NOT NULL, agents TEXT NOT NULL, withdrawn TEXT NOT NULL, account TEXT NOT NULL, users
    TEXT NOT NULL, secret_hash BYTEA NOT NULL, previous_hash BYTEA, previous_until BIGINT, created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL, issued_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT, last_used_at BIGINT,
    PRIMARY KEY (id), UNIQUE (name), UNIQUE (secret_hash)
);
CREATE TABLE webhooks (
    id BIGINT NOT NULL, name TEXT NOT NULL, agent TEXT NOT NULL, kind TEXT NOT NULL, thread TEXT, secret TEXT NOT NULL,
    secret_number INTEGER NOT NULL, previous_secret TEXT, previous_until BIGINT, answer_key BYTEA NOT NULL, created_at
    BIGINT NOT NULL, created_by TEXT NOT NULL, issued_at BIGINT NOT NULL, revoked_at BIGINT, PRIMARY KEY (id), UNIQUE
    (name)
);
CREATE TABLE door_threads (
    agent TEXT NOT NULL, owner TEXT NOT NULL, digest BYTEA NOT NULL, thread TEXT, request TEXT, body BYTEA, used_at
    BIGINT NOT NULL, question TEXT, PRIMARY KEY (agent, owner, digest)
);
CREATE TABLE door_files (
    id BIGINT NOT NULL, agent TEXT NOT NULL, owner TEXT NOT NULL, request TEXT NOT NULL, digest BYTEA NOT NULL, token
    TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL, size BIGINT NOT NULL, data BYTEA NOT NULL, created_at BIGINT
    NOT NULL, PRIMARY KEY (id), UNIQUE (token)
);
CREATE INDEX door_files_by_owner ON door_files (agent, owner, request);
CREATE TABLE logins (
    id BIGINT NOT NULL, secret_hash BYTEA NOT NULL, person TEXT NOT NULL, is_link BOOLEAN NOT NULL, created_at BIGINT
    NOT NULL, expires_at BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (secret_hash)
);
CREATE INDEX logins_by_person ON logins (person);
CREATE TABLE interaction_memory (
    id BIGINT NOT NULL, agent TEXT NOT NULL, conversation_id TEXT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (id)
);
CREATE TABLE sequences (
    name TEXT NOT NULL, next_id BIGINT NOT NULL, PRIMARY KEY (name)
);
CREATE TABLE workers (
    id BIGINT NOT NULL, name TEXT NOT NULL, started_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, is_leaving BOOLEAN
    DEFAULT false NOT NULL, is_away BOOLEAN DEFAULT false NOT NULL, reaches_server BOOLEAN, reach_began_at BIGINT,
    reach_ended_at BIGINT, snapshot TEXT, channel TEXT, PRIMARY KEY (id)
);
CREATE TABLE compatibility (
    oldest_revision TEXT NOT NULL, PRIMARY KEY (oldest_revision)
);
CREATE TABLE interactions (
    id BIGINT NOT NULL, conversation BIGINT NOT NULL, number BIGINT NOT NULL, interaction_id TEXT NOT NULL, timestamp
    BIGINT NOT NULL, body TEXT NOT NULL, root TEXT DEFAULT '' NOT NULL, PRIMARY KEY (id), FOREIGN KEY(conversation)
    REFERENCES conversations (id) ON DELETE CASCADE
);
CREATE INDEX interactions_by_root ON interactions (root) WHERE root != '';
CREATE INDEX interactions_by_number ON interactions (conversation, number);
CREATE TABLE steps (
    request BIGINT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, arguments_hash TEXT NOT NULL, result TEXT,
    PRIMARY KEY (request, name, number), FOREIGN KEY(request) REFERENCES inbox (id) ON DELETE CASCADE
);
CREATE TABLE documents (
    id BIGINT NOT NULL, shelf BIGINT NOT NULL, name TEXT NOT NULL, digest BYTEA NOT NULL, passages INTEGER NOT NULL,
    characters INTEGER NOT NULL, added_at BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (shelf, name), FOREIGN KEY(shelf)
    REFERENCES shelves (id) ON DELETE CASCADE
);
CREATE INDEX documents_by_digest ON documents (shelf, digest);
CREATE TABLE topic_deliveries (
    item BIGINT NOT NULL, subscriber TEXT NOT NULL, agent TEXT NOT NULL, topic TEXT NOT NULL, failures INTEGER NOT NULL,
    error TEXT NOT NULL, parked INTEGER, PRIMARY KEY (item, subscriber), FOREIGN KEY(item) REFERENCES topic_items (id)
    ON DELETE CASCADE
);
CREATE INDEX topic_deliveries_by_topic ON topic_deliveries (agent, subscriber, topic, item);
CREATE TABLE asked_people (
    question BIGINT NOT NULL, agent TEXT NOT NULL, person TEXT NOT NULL, waits BOOLEAN, PRIMARY KEY (question, person),
    FOREIGN KEY(question) REFERENCES questions (id) ON DELETE CASCADE
);
CREATE INDEX asked_people_by_person ON asked_people (agent, person);
CREATE INDEX people_with_rights ON asked_people (agent) WHERE waits IS NOT NULL;
CREATE TABLE webhook_bodies (
    webhook BIGINT NOT NULL, secret_number INTEGER NOT NULL, body BYTEA NOT NULL, accepted_at BIGINT NOT NULL, PRIMARY
    KEY (webhook, secret_number, body), FOREIGN KEY(webhook) REFERENCES webhooks (id) ON DELETE CASCADE
);
CREATE TABLE leases (
    agent TEXT NOT NULL, worker BIGINT, changed_at BIGINT NOT NULL, reason TEXT NOT NULL, was_handed_over BOOLEAN NOT
    NULL, lost_worker TEXT, lost_at BIGINT, lost_reason TEXT, card TEXT, card_at BIGINT, manifest TEXT, manifest_version
    BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (agent), FOREIGN KEY(worker) REFERENCES workers (id) ON DELETE SET NULL
);
CREATE INDEX leases_by_worker ON leases (worker);
CREATE TABLE worker_calls (
    id BIGINT NOT NULL, caller BIGINT NOT NULL, worker BIGINT NOT NULL, agent TEXT NOT NULL, method TEXT NOT NULL,
    arguments TEXT NOT NULL, is_stopped BOOLEAN DEFAULT false NOT NULL, answer TEXT, PRIMARY KEY (id), FOREIGN
    KEY(caller) REFERENCES workers (id) ON DELETE CASCADE, FOREIGN KEY(worker) REFERENCES workers (id) ON DELETE CASCADE
);
CREATE INDEX worker_calls_by_worker ON worker_calls (worker);
CREATE INDEX worker_calls_by_caller ON worker_calls (caller);
CREATE TABLE passages (
    id BIGINT NOT NULL, shelf BIGINT NOT NULL, document BIGINT NOT NULL, number INTEGER NOT NULL, text TEXT NOT NULL,
    words TEXT NOT NULL, word_rules TEXT DEFAULT '' NOT NULL, PRIMARY KEY (id), FOREIGN KEY(shelf) REFERENCES shelves
    (id) ON DELETE CASCADE, FOREIGN KEY(document) REFERENCES documents (id) ON DELETE CASCADE
);
CREATE INDEX passages_by_word_rules ON passages (word_rules);
CREATE INDEX passages_by_shelf ON passages (shelf);
CREATE INDEX passages_by_document ON passages (document, number);
CREATE TABLE vectors (
    passage BIGINT NOT NULL, model TEXT NOT NULL, dimension INTEGER NOT NULL, vector BYTEA NOT NULL, PRIMARY KEY
    (passage), FOREIGN KEY(passage) REFERENCES passages (id) ON DELETE CASCADE
);
"""
_POSTGRESQL = """
CREATE INDEX inbox_by_agent ON inbox (hashtext(agent));
CREATE INDEX interaction_memory_by_conversation ON interaction_memory (agent, hashtext(conversation_id), id);
ALTER TABLE inbox SET (fillfactor = 50);
"""
_SQLITE_WORDS = {"BIGINT": "INTEGER", "BYTEA": "BLOB", "DEFAULT false": "DEFAULT 0"}


def upgrade() -> None:
    connection, statements = op.get_bind(), _TABLES
    if connection.dialect.name == "postgresql":
        statements += _POSTGRESQL
    else:
        for word, other in _SQLITE_WORDS.items():
            statements = statements.replace(word, other)
    for statement in statements.split(";")[:-1]:
        connection.exec_driver_sql(statement)
    full_text.create(connection)
    create_sequence(connection)
