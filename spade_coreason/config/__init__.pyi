from .environment import (
    expand as expand,
)
from .files import (
    read_file as read_file,
)
from .importer import (
    describe as describe,
    find_attribute as find_attribute,
    how_to_name as how_to_name,
    nearest as nearest,
)
from .loader import (
    load_settings as load_settings,
)
from .manifest_file import (
    load_manifest as load_manifest,
)
from .runfile import (
    RunFile as RunFile,
    is_owned as is_owned,
    read_run_file as read_run_file,
    write_private as write_private,
    write_run_file as write_run_file,
)
from .settings import (
    AgentSettings as AgentSettings,
    KeepSettings as KeepSettings,
    MemorySettings as MemorySettings,
    RetentionSettings as RetentionSettings,
    Settings as Settings,
)
