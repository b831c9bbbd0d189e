"""What lasts: sessions in SQL, interaction memory in JSON."""

from .database import Database, StoreTimings
from .lock import lock_database, lock_directory
from .rows import ConversationRow, ForgetReport, InboxRow, PendingRow, Stored, Turn, Variable
from .sessions import AgentStore, stored_agents

__all__ = [
    "AgentStore",
    "ConversationRow",
    "Database",
    "ForgetReport",
    "InboxRow",
    "PendingRow",
    "StoreTimings",
    "Stored",
    "Turn",
    "Variable",
    "lock_database",
    "lock_directory",
    "stored_agents",
]
