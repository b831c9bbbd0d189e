from .client import (
    AgentClient as AgentClient,
)
from .connection.endpoint import (
    ServerEndpoint as ServerEndpoint,
)
from .connection.probe import (
    probe as probe,
)
from .host import (
    HostedAgent as HostedAgent,
)
from .muc.room import (
    RoomConfig as RoomConfig,
)
from .servers.process import (
    AddressInUseError as AddressInUseError,
)
from .servers.selection import (
    run_local_server as run_local_server,
    select_server as select_server,
)
from .servers.server import (
    LocalServer as LocalServer,
    require_free_port as require_free_port,
)
