"""SQL: a database with group commit on SQLite or PostgreSQL, repositories, inbox, audit trail, backups."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "audit": ["AuditRow", "Verdict"],
        "backup": ["About", "Progress", "back_up", "restore"],
        "database": ["Database", "Then"],
        "dedup": ["DUPLICATE_DAYS"],
        "health": ["examine"],
        "inbox": ["Inbox"],
        "knowledge": ["Document", "KnowledgeStore", "Lacking", "NewDocument", "Shelf", "VectorRow", "turn_name"],
        "lock": ["lock_database", "lock_directory"],
        "open": ["open_database"],
        "records": ["ConversationRow", "ForgetReport", "InboxRow", "Turn", "Variable"],
        "repository": ["AgentStore", "stored_agents"],
        "window": ["NOTHING", "WINDOW", "Window"],
    },
)
