from .factories import (
    build_embedder as build_embedder,
    build_memory_limits as build_memory_limits,
    build_summariser as build_summariser,
    build_token_counter as build_token_counter,
)
from .incident_socket import (
    read_incident_texts as read_incident_texts,
    request_incident_texts as request_incident_texts,
)
from .knowledge_socket import (
    KNOWLEDGE_SOCKET as KNOWLEDGE_SOCKET,
    RemoteKnowledge as RemoteKnowledge,
)
from .malloc import (
    trim_malloc_periodically as trim_malloc_periodically,
    tune_malloc as tune_malloc,
)
from .platform import (
    Platform as Platform,
)
from .status_socket import (
    read_status as read_status,
)
from .supervision import (
    Supervision as Supervision,
    find_directory_problems as find_directory_problems,
    lock_data as lock_data,
    start_local_server as start_local_server,
)
