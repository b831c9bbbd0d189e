from .doors import (
    Doors as Doors,
)
from .server import (
    DoorRoutes as DoorRoutes,
    WebServer as WebServer,
)
