"""What lasts: sessions in SQL, interaction memory in JSON."""

from .database import Database
from .lock import lock_directory
from .sessions import AgentStore, ConversationRow, ForgetReport, InboxRow, PendingRow, Stored, Turn, Variable

__all__ = [
    "AgentStore",
    "ConversationRow",
    "Database",
    "ForgetReport",
    "InboxRow",
    "PendingRow",
    "Stored",
    "Turn",
    "Variable",
    "lock_directory",
]
