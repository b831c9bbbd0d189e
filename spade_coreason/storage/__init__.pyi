from .audit import (
    AuditRow as AuditRow,
    Verdict as Verdict,
)
from .backup import (
    About as About,
    Progress as Progress,
    back_up as back_up,
    restore as restore,
)
from .database import (
    Database as Database,
    Then as Then,
)
from .dedup import (
    DUPLICATE_DAYS as DUPLICATE_DAYS,
)
from .health import (
    examine as examine,
)
from .inbox import (
    Inbox as Inbox,
)
from .knowledge import (
    Document as Document,
    KnowledgeStore as KnowledgeStore,
    Lacking as Lacking,
    NewDocument as NewDocument,
    Shelf as Shelf,
    VectorRow as VectorRow,
    turn_name as turn_name,
)
from .lock import (
    lock_database as lock_database,
    lock_directory as lock_directory,
)
from .open import (
    open_database as open_database,
)
from .records import (
    ConversationRow as ConversationRow,
    ForgetReport as ForgetReport,
    InboxRow as InboxRow,
    Turn as Turn,
    Variable as Variable,
)
from .repository import (
    AgentStore as AgentStore,
    stored_agents as stored_agents,
)
from .window import (
    NOTHING as NOTHING,
    WINDOW as WINDOW,
    Window as Window,
)
