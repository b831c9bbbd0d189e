from .factories import (
    counter_of as counter_of,
    embedder_of as embedder_of,
    memory_limits as memory_limits,
)
from .gc import (
    settle_collector as settle_collector,
)
from .knowledge_socket import (
    SOCKET as SOCKET,
    Librarian as Librarian,
)
from .platform import (
    Platform as Platform,
)
from .status_socket import (
    read_status as read_status,
)
