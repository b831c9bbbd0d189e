from .app import (
    Platform as Platform,
)
from .config import (
    Settings as Settings,
    load_manifest as load_manifest,
    load_settings as load_settings,
)
from .contracts import (
    AgentDefinition as AgentDefinition,
    AgentInterface as AgentInterface,
    AgentRequest as AgentRequest,
    Identity as Identity,
    Interaction as Interaction,
    LifecycleInterface as LifecycleInterface,
    MemoryConfig as MemoryConfig,
    MemoryStrategy as MemoryStrategy,
    Response as Response,
    ResponseHandler as ResponseHandler,
    Session as Session,
    SessionHandle as SessionHandle,
    Stream as Stream,
    StreamHandle as StreamHandle,
)
from .domain.cards import (
    AgentCard as AgentCard,
    Capability as Capability,
)
from .exceptions import (
    ConfigError as ConfigError,
    CoReasonError as CoReasonError,
    FileError as FileError,
    ModelError as ModelError,
    PeerError as PeerError,
    StoreError as StoreError,
)
from .memory import (
    AgentInteractionMemory as AgentInteractionMemory,
    Knowledge as Knowledge,
    MemoryLimits as MemoryLimits,
    SearchHit as SearchHit,
    Usage as Usage,
)
from .runtime import (
    Files as Files,
    PeerAnswer as PeerAnswer,
    PeerEvent as PeerEvent,
    Peers as Peers,
    People as People,
    Retry as Retry,
    agent as agent,
    command as command,
    every as every,
    subscribe as subscribe,
)
from .testing import (
    AgentTester as AgentTester,
)
from .xmpp import (
    AgentClient as AgentClient,
)

__all__: list[str]
__version__: str
