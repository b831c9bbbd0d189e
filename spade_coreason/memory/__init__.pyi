from .conversation import (
    ActiveConversation as ActiveConversation,
    ActivePerson as ActivePerson,
    Variables as Variables,
)
from .erasure import (
    cut_conversation as cut_conversation,
    delete_turns_of_person as delete_turns_of_person,
    erase_conversation as erase_conversation,
    erase_person as erase_person,
    find_person_records as find_person_records,
    is_all_erased as is_all_erased,
)
from .export import (
    export_cut as export_cut,
    export_person as export_person,
    export_waiting as export_waiting,
)
from .history_windows import (
    HistoryWindows as HistoryWindows,
)
from .interaction.file import (
    MemoryLimits as MemoryLimits,
)
from .interaction.moving import (
    import_all_memory_files as import_all_memory_files,
    import_memory_files as import_memory_files,
    move_files_to_rows as move_files_to_rows,
    move_rows_to_files as move_rows_to_files,
    require_imported as require_imported,
)
from .interaction.rows import (
    MemoryRows as MemoryRows,
)
from .interaction.store import (
    AgentInteractionMemory as AgentInteractionMemory,
)
from .interaction.tools import (
    CONTROL_CHARACTERS as CONTROL_CHARACTERS,
    MemoryTool as MemoryTool,
)
from .interaction.turn_sync import (
    CURRENT_DEFERRED_SYNCS as CURRENT_DEFERRED_SYNCS,
    DeferredSyncs as DeferredSyncs,
)
from .knowledge.embeddings import (
    Embedder as Embedder,
    LocalEmbedder as LocalEmbedder,
    OpenAIEmbedder as OpenAIEmbedder,
)
from .knowledge.knowledge import (
    Knowledge as Knowledge,
    SearchHit as SearchHit,
)
from .knowledge.loaders import (
    find_files as find_files,
    read_document as read_document,
)
from .openai_api import (
    OpenAIApi as OpenAIApi,
    build_client as build_client,
    check_key as check_key,
)
from .session import (
    SessionChanges as SessionChanges,
    TurnSession as TurnSession,
)
from .summaries import (
    ExtractiveSummariser as ExtractiveSummariser,
    ModelSummariser as ModelSummariser,
    Summariser as Summariser,
)
from .tokens import (
    TokenCounter as TokenCounter,
    Tokenizer as Tokenizer,
    counter_for as counter_for,
    estimate_tokens as estimate_tokens,
    guard_counter as guard_counter,
)
from .usage import (
    USAGE_EVENT as USAGE_EVENT,
    Usage as Usage,
    find_token_counts as find_token_counts,
    sum_usage as sum_usage,
)
