from .factories import (
    build_embedder as build_embedder,
    build_summariser as build_summariser,
    build_token_counter as build_token_counter,
    import_memories as import_memories,
)
from .malloc import (
    trim_malloc_periodically as trim_malloc_periodically,
    tune_malloc as tune_malloc,
)
from .metrics.server import (
    check_metrics_address as check_metrics_address,
)
from .platform import (
    Platform as Platform,
)
from .shared_host import (
    is_shared as is_shared,
    open_command_host as open_command_host,
)
from .supervision import (
    Supervision as Supervision,
    find_directory_problems as find_directory_problems,
    lock_data as lock_data,
    start_local_server as start_local_server,
)
from .web_server import (
    find_used_doors as find_used_doors,
)
