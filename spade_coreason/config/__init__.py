"""Settings: YAML or TOML and the environment, read once into one frozen value; user code by name."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "environment": ["expand"],
        "files": ["read_file"],
        "importer": ["describe", "find_attribute", "how_to_name", "nearest"],
        "loader": ["load_settings"],
        "manifest_file": ["load_manifest"],
        "runfile": ["RunFile", "is_owned", "read_run_file", "write_private", "write_run_file"],
        "settings": ["AgentSettings", "KeepSettings", "MemorySettings", "RetentionSettings", "Settings"],
    },
)
