"""The composition root: the platform, the factories of its parts, and what operations work on."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "factories": ["build_embedder", "build_summariser", "build_token_counter", "import_memories"],
        "malloc": ["trim_malloc_periodically", "tune_malloc"],
        "metrics.server": ["check_metrics_address"],
        "platform": ["Platform"],
        "shared_host": ["is_shared", "open_command_host"],
        "supervision": ["Supervision", "find_directory_problems", "lock_data", "start_local_server"],
        "web_server": ["find_used_doors"],
    },
)
