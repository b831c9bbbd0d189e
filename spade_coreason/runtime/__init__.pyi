from .access_requests import (
    Admissions as Admissions,
)
from .agent_factory import (
    AgentParts as AgentParts,
    build_agent as build_agent,
    find_agents as find_agents,
    load_agent as load_agent,
)
from .client_features import (
    UnknownDevices as UnknownDevices,
)
from .commands.decorator import (
    command as command,
)
from .commands.dialogs import (
    Dialogues as Dialogues,
)
from .commands.model import (
    Outcome as Outcome,
)
from .expiry import (
    OnConversationEnd as OnConversationEnd,
)
from .files import (
    Fetched as Fetched,
    Files as Files,
    Progress as Progress,
    Put as Put,
    connection_problem as connection_problem,
    fetch as fetch,
    status_in_words as status_in_words,
)
from .function_agent import (
    agent as agent,
)
from .gateway import (
    Door as Door,
)
from .metrics import (
    Recent as Recent,
)
from .outbound import (
    Tracked as Tracked,
)
from .peers import (
    MOST_BYTES as MOST_BYTES,
    Answer as Answer,
    OpenRequests as OpenRequests,
    PeerEvent as PeerEvent,
    Peers as Peers,
    as_request as as_request,
    collect as collect,
    command_request as command_request,
    write_request as write_request,
)
from .policy import (
    Policy as Policy,
)
from .retention import (
    Keep as Keep,
    Retention as Retention,
)
from .runner import (
    Runner as Runner,
)
from .status import (
    AgentCondition as AgentCondition,
    AgentStatus as AgentStatus,
    PlatformStatus as PlatformStatus,
)
