"""The composition root: the platform and what it is built of."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "factories": ["counter_of", "embedder_of", "memory_limits"],
        "gc": ["settle_collector"],
        "knowledge_socket": ["Librarian", "SOCKET"],
        "platform": ["Platform"],
        "status_socket": ["read_status"],
    },
)
