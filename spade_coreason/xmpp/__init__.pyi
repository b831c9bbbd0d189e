from .client import (
    AgentClient as AgentClient,
)
from .connection.endpoint import (
    Endpoint as Endpoint,
)
from .connection.probe import (
    probe as probe,
)
from .host import (
    HostedAgent as HostedAgent,
)
from .muc.room import (
    RoomPlan as RoomPlan,
)
from .servers.process import (
    AddressInUse as AddressInUse,
)
from .servers.selection import (
    choose as choose,
    local_server as local_server,
)
from .servers.server import (
    LocalServer as LocalServer,
    require_free as require_free,
)
