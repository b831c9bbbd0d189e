"""State that an agent has of people: sessions, history windows, summaries, interaction memory, knowledge, export, erasure."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "conversation": ["ActiveConversation", "ActivePerson", "Variables"],
        "erasure": [
            "cut_conversation",
            "delete_turns_of_person",
            "erase_conversation",
            "is_all_erased",
            "erase_person",
            "find_person_records",
        ],
        "export": ["export_cut", "export_person", "export_waiting"],
        "history_windows": ["HistoryWindows"],
        "interaction.file": ["MemoryLimits"],
        "interaction.moving": [
            "import_all_memory_files",
            "import_memory_files",
            "move_files_to_rows",
            "move_rows_to_files",
            "require_imported",
        ],
        "interaction.store": ["AgentInteractionMemory"],
        "interaction.rows": ["MemoryRows"],
        "interaction.tools": ["CONTROL_CHARACTERS", "MemoryTool"],
        "interaction.turn_sync": ["CURRENT_DEFERRED_SYNCS", "DeferredSyncs"],
        "knowledge.embeddings": ["Embedder", "LocalEmbedder", "OpenAIEmbedder"],
        "knowledge.knowledge": ["Knowledge", "SearchHit"],
        "knowledge.loaders": ["find_files", "read_document"],
        "openai_api": ["OpenAIApi", "build_client", "check_key"],
        "session": ["SessionChanges", "TurnSession"],
        "summaries": ["ExtractiveSummariser", "ModelSummariser", "Summariser"],
        "tokens": ["TokenCounter", "Tokenizer", "counter_for", "guard_counter", "estimate_tokens"],
        "usage": ["USAGE_EVENT", "Usage", "find_token_counts", "sum_usage"],
    },
)
