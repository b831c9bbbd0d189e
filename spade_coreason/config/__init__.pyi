from .files import (
    read_secret_file as read_secret_file,
)
from .importer import (
    describe_error as describe_error,
    load_attribute as load_attribute,
    suggest_agent_name as suggest_agent_name,
)
from .loader import (
    load_data_dir as load_data_dir,
    load_server_settings as load_server_settings,
    load_settings as load_settings,
)
from .manifest_file import (
    load_manifest as load_manifest,
)
from .mistakes import (
    describe_mistakes as describe_mistakes,
    format_key as format_key,
)
from .runfile import (
    RunFile as RunFile,
    is_platform_running as is_platform_running,
    list_worker_directories as list_worker_directories,
    read_run_file as read_run_file,
    write_private_json as write_private_json,
    write_run_file as write_run_file,
)
from .settings import (
    AccessSettings as AccessSettings,
    AgentSettings as AgentSettings,
    ApprovalSettings as ApprovalSettings,
    KeyDoor as KeyDoor,
    MemorySettings as MemorySettings,
    MetricsSettings as MetricsSettings,
    NotificationSettings as NotificationSettings,
    PageSettings as PageSettings,
    ServerSettings as ServerSettings,
    Settings as Settings,
    WebLimits as WebLimits,
    WebSettings as WebSettings,
)
from .validation import (
    find_approver_problem as find_approver_problem,
    find_ca_file_problem as find_ca_file_problem,
)
