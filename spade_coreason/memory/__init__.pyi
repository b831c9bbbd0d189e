from .active import (
    Memory as Memory,
    Person as Person,
    Variables as Variables,
)
from .export import (
    export_person as export_person,
)
from .forget import (
    Forgotten as Forgotten,
    forget_conversation as forget_conversation,
    forget_everybody as forget_everybody,
    forget_person as forget_person,
)
from .interaction.file import (
    MemoryLimits as MemoryLimits,
)
from .interaction.store import (
    AgentInteractionMemory as AgentInteractionMemory,
)
from .interaction.tools import (
    CONTROL as CONTROL,
    MemoryTool as MemoryTool,
)
from .interaction.turn_sync import (
    Syncs as Syncs,
)
from .knowledge.embeddings import (
    Embedder as Embedder,
    LocalEmbedder as LocalEmbedder,
    OpenAIEmbedder as OpenAIEmbedder,
)
from .knowledge.knowledge import (
    Found as Found,
    Knowledge as Knowledge,
    Progress as Progress,
)
from .knowledge.loaders import (
    files_in as files_in,
)
from .openai_api import (
    WebApi as WebApi,
)
from .session import (
    Session as Session,
)
from .summaries import (
    ExtractiveSummariser as ExtractiveSummariser,
    ModelSummariser as ModelSummariser,
    Summariser as Summariser,
)
from .tokens import (
    TokenCounter as TokenCounter,
    Tokenizer as Tokenizer,
    counter as counter,
    trusted as trusted,
)
from .usage import (
    TOKENS as TOKENS,
    USAGE as USAGE,
    Usage as Usage,
    usage_in as usage_in,
)
from .window import (
    Governance as Governance,
)
