from .a2a.routes import (
    make_a2a_routes as make_a2a_routes,
)
from .addresses import (
    LOOPBACK_NAMES as LOOPBACK_NAMES,
    split_host as split_host,
)
from .agents import (
    DoorAgents as DoorAgents,
)
from .authentication import (
    FindCaller as FindCaller,
)
from .backend import (
    CallerRequests as CallerRequests,
    LocalAgentBackend as LocalAgentBackend,
)
from .caller import (
    TRACEPARENT as TRACEPARENT,
    Caller as Caller,
)
from .channel import (
    NOT_STORED as NOT_STORED,
    DoorEvent as DoorEvent,
    DoorReply as DoorReply,
)
from .files import (
    make_file_routes as make_file_routes,
    upload_to_page as upload_to_page,
)
from .keys import (
    KeyRing as KeyRing,
)
from .mcp.routes import (
    make_mcp_routes as make_mcp_routes,
)
from .openai.routes import (
    make_openai_routes as make_openai_routes,
)
from .page.routes import (
    make_page_routes as make_page_routes,
)
from .server import (
    DoorRoutes as DoorRoutes,
    WebServer as WebServer,
    check_address as check_address,
)
from .webhooks.ring import (
    WebhookRing as WebhookRing,
)
from .webhooks.routes import (
    make_webhook_routes as make_webhook_routes,
)
