from .audit import (
    AuditRecord as AuditRecord,
    AuditTrail as AuditTrail,
)
from .backends.database import (
    Database as Database,
)
from .backends.factory import (
    open_database as open_database,
    review_server as review_server,
)
from .backends.group_commit import (
    Commit as Commit,
    Row as Row,
    Rows as Rows,
    StoreTimings as StoreTimings,
)
from .backends.health import (
    check_health as check_health,
)
from .backends.lock import (
    find_database_file as find_database_file,
    lock_database as lock_database,
    lock_directory as lock_directory,
)
from .backup import (
    BackupInfo as BackupInfo,
    ProgressCallback as ProgressCallback,
    back_up as back_up,
    count_memories as count_memories,
    restore as restore,
)
from .crashes import (
    SPARE_SLOT as SPARE_SLOT,
    FailedRequestRows as FailedRequestRows,
    ParkedRequestRows as ParkedRequestRows,
    RunningRequests as RunningRequests,
    WaitingRequestRows as WaitingRequestRows,
    drop_failed_request as drop_failed_request,
    load_crashed as load_crashed,
    mark_alone as mark_alone,
    record_crash as record_crash,
    restore_kept as restore_kept,
    retry_failed_request as retry_failed_request,
)
from .doors.api_keys import (
    USERS_BY_HEADER as USERS_BY_HEADER,
    KeyRepository as KeyRepository,
    hash_secret as hash_secret,
    make_secret as make_secret,
)
from .doors.callers import (
    CallerRepository as CallerRepository,
    DoorThread as DoorThread,
    NewFile as NewFile,
    StoredFile as StoredFile,
    TooManyFilesError as TooManyFilesError,
    find_file as find_file,
)
from .doors.logins import (
    SESSION_LIFETIME as SESSION_LIFETIME,
    LoginRepository as LoginRepository,
    PageSession as PageSession,
)
from .doors.news import (
    ConversationTitle as ConversationTitle,
    News as News,
    load_asked as load_asked,
    load_news as load_news,
    load_titles as load_titles,
)
from .doors.webhooks import (
    WebhookRepository as WebhookRepository,
    decode_webhook_secret as decode_webhook_secret,
    make_webhook_secret as make_webhook_secret,
)
from .inbox import (
    Inbox as Inbox,
)
from .incidents import IncidentRepository as IncidentRepository
from .interaction_memory import (
    MemoryRepository as MemoryRepository,
    MemoryRow as MemoryRow,
    UnpackedMemories as UnpackedMemories,
    can_wait as can_wait,
    run_waiting as run_waiting,
    wait_for as wait_for,
)
from .kept import (
    CountsByState as CountsByState,
    count_stored as count_stored,
)
from .knowledge import (
    KnowledgeRepository as KnowledgeRepository,
    has_outdated_passages as has_outdated_passages,
    index_outdated_passages as index_outdated_passages,
)
from .people import (
    CutOffTurn as CutOffTurn,
    FoundConversation as FoundConversation,
    FoundRequest as FoundRequest,
    PersonSearch as PersonSearch,
    TimeSpans as TimeSpans,
    UnknownTurns as UnknownTurns,
    erase_behind_others as erase_behind_others,
    erase_trail as erase_trail,
    find_acts as find_acts,
    find_requests as find_requests,
    find_spans as find_spans,
    is_emptied as is_emptied,
    is_shared as is_shared,
    list_owners as list_owners,
    load_bodies as load_bodies,
    search_person as search_person,
)
from .questions import (
    EndedQuestion as EndedQuestion,
    NewQuestion as NewQuestion,
    QuestionRepository as QuestionRepository,
    Settled as Settled,
)
from .records import (
    ACCESS_SCOPE as ACCESS_SCOPE,
    COMPACTION_VARIABLE as COMPACTION_VARIABLE,
    INTERNAL_VARIABLES as INTERNAL_VARIABLES,
    INTRODUCED_VARIABLE as INTRODUCED_VARIABLE,
    MESSAGE_COUNT_SCOPES as MESSAGE_COUNT_SCOPES,
    NO_COMPACTION as NO_COMPACTION,
    SHARED_SCOPE as SHARED_SCOPE,
    TOKENS_VARIABLE as TOKENS_VARIABLE,
    CompactionState as CompactionState,
    Document as Document,
    DocumentCollection as DocumentCollection,
    EarlierRequest as EarlierRequest,
    ErasureReport as ErasureReport,
    InboxRecord as InboxRecord,
    KnownRequest as KnownRequest,
    MessageCount as MessageCount,
    MissingVectors as MissingVectors,
    NewDocument as NewDocument,
    OwnTurn as OwnTurn,
    PendingRequest as PendingRequest,
    StoredAgent as StoredAgent,
    StoredConversation as StoredConversation,
    StoredStep as StoredStep,
    TurnRecord as TurnRecord,
    Variable as Variable,
    VectorRecord as VectorRecord,
    conversation_from_row as conversation_from_row,
    from_micros as from_micros,
    from_micros_or_none as from_micros_or_none,
    to_micros as to_micros,
    turn_document_name as turn_document_name,
)
from .repository import (
    AgentRepository as AgentRepository,
    ConversationRows as ConversationRows,
    list_stored_agents as list_stored_agents,
)
from .row_repository import RowRepository as RowRepository
from .schema import (
    DELIVERY as DELIVERY,
    DUPLICATE_DAYS as DUPLICATE_DAYS,
    NOTIFICATION as NOTIFICATION,
    QUESTION as QUESTION,
    SCHEDULE as SCHEDULE,
    SUSPENDED as SUSPENDED,
    WAITING as WAITING,
    CrashedRequest as CrashedRequest,
    Incident as Incident,
    Lane as Lane,
    ParkedRequest as ParkedRequest,
    StoredKey as StoredKey,
    StoredQuestion as StoredQuestion,
    StoredWebhook as StoredWebhook,
    Task as Task,
    WebhookKind as WebhookKind,
    WorkerCall as WorkerCall,
)
from .tasks import (
    MAX_OF_LANE as MAX_OF_LANE,
    SaveStep as SaveStep,
    ScheduleRows as ScheduleRows,
    TaskQueue as TaskQueue,
    addition_of as addition_of,
    deletion_of as deletion_of,
    send_again as send_again,
    to_notification as to_notification,
    update_of as update_of,
)
from .topics import (
    MAX_ERROR_CHARACTERS as MAX_ERROR_CHARACTERS,
    FindRefusal as FindRefusal,
    Publication as Publication,
    RemovedSubscription as RemovedSubscription,
    SubscriberSummary as SubscriberSummary,
    TopicDelivery as TopicDelivery,
    TopicItem as TopicItem,
    TopicRepository as TopicRepository,
    TopicSummary as TopicSummary,
    is_dead_letter as is_dead_letter,
    make_dead_letter as make_dead_letter,
)
from .workers.calls import (
    OTHER_WORKER as OTHER_WORKER,
    CallRepository as CallRepository,
)
from .workers.leases import (
    Leases as Leases,
    LeaseState as LeaseState,
    Reach as Reach,
    Worker as Worker,
    WorkerTerms as WorkerTerms,
    find_last_takeover as find_last_takeover,
)
from .workers.mailbox import (
    ALL_DOORS as ALL_DOORS,
    MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES,
    WorkerMailbox as WorkerMailbox,
)
from .workers.renewal import (
    LeaseHandlers as LeaseHandlers,
    LeaseRenewal as LeaseRenewal,
)
