"""SQL storage: the database (SQLite or PostgreSQL, group commit), repositories, inbox, audit trail and backups."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "audit": ["AuditRecord", "AuditVerification"],
        "backup": ["BackupInfo", "ProgressCallback", "back_up", "count_memories", "restore"],
        "erasure": ["MESSAGE_COUNT_SCOPES", "SHARED_SCOPE"],
        "compaction": ["COMPACTION_VARIABLE", "CompactionState", "NO_COMPACTION"],
        "crashes": [
            "CrashedRequest",
            "RunningRequests",
            "SPARE_SLOT",
            "drop_failed_request",
            "load_failed_requests",
            "record_crash",
            "retry_failed_request",
        ],
        "database": ["Commit", "Database"],
        "dedup": ["DUPLICATE_DAYS"],
        "factory": ["open_database"],
        "health": ["check_health"],
        "inbox": ["Inbox"],
        "incidents": ["Incident", "load_incident_with_texts", "load_incidents", "load_newest_incidents"],
        "knowledge": [
            "Document",
            "DocumentCollection",
            "KnowledgeRepository",
            "MissingVectors",
            "NewDocument",
            "VectorRecord",
            "index_outdated_passages",
            "turn_document_name",
        ],
        "lock": ["lock_database", "lock_directory"],
        "records": [
            "EarlierRequest",
            "InboxRecord",
            "MessageCount",
            "PendingRequest",
            "StorageErasureReport",
            "StoredConversation",
            "StoredStep",
            "TurnRecord",
            "Variable",
        ],
        "repository": ["AgentRepository", "list_stored_agents"],
        "topics": ["SubscriberSummary", "TopicDelivery", "TopicItem", "TopicRepository", "TopicSummary", "is_dead_letter"],
    },
)
