"""Settings from YAML or TOML and the environment, read once into a frozen value, and user code loaded by name."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "files": ["read_secret_file"],
        "importer": ["describe_error", "load_attribute", "suggest_agent_name"],
        "loader": ["load_data_dir", "load_server_settings", "load_settings"],
        "manifest_file": ["load_manifest"],
        "mistakes": ["describe_mistakes", "format_key"],
        "runfile": [
            "RunFile",
            "is_platform_running",
            "list_worker_directories",
            "read_run_file",
            "write_private_json",
            "write_run_file",
        ],
        "settings": [
            "AccessSettings",
            "AgentSettings",
            "ApprovalSettings",
            "KeyDoor",
            "MemorySettings",
            "MetricsSettings",
            "NotificationSettings",
            "ServerSettings",
            "Settings",
            "WebLimits",
            "PageSettings",
            "WebSettings",
        ],
        "validation": ["find_approver_problem", "find_ca_file_problem"],
    },
)
