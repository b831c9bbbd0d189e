"""What agents know of people: sessions, history windows, summaries, interaction memory, knowledge, export, erasure."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "active": ["Memory", "Person", "Variables"],
        "export": ["export_person"],
        "forget": ["Forgotten", "forget_conversation", "forget_everybody", "forget_person"],
        "interaction.file": ["MemoryLimits"],
        "interaction.store": ["AgentInteractionMemory"],
        "interaction.tools": ["CONTROL", "MemoryTool"],
        "interaction.turn_sync": ["Syncs"],
        "knowledge.embeddings": ["Embedder", "LocalEmbedder", "OpenAIEmbedder"],
        "knowledge.knowledge": ["Found", "Knowledge", "Progress"],
        "knowledge.loaders": ["files_in"],
        "openai_api": ["WebApi"],
        "session": ["Session"],
        "summaries": ["ExtractiveSummariser", "ModelSummariser", "Summariser"],
        "tokens": ["TokenCounter", "Tokenizer", "counter", "trusted"],
        "usage": ["TOKENS", "USAGE", "Usage", "usage_in"],
        "window": ["Governance"],
    },
)
