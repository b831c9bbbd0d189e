from .agent import (
    LLMAgent as LLMAgent,
)
from .budget import (
    Budgets as Budgets,
)
from .fake import (
    FakeFailure as FakeFailure,
    FakeModel as FakeModel,
    FakeReply as FakeReply,
    FakeToolCall as FakeToolCall,
    ModelRequest as ModelRequest,
    Reply as Reply,
    error as error,
    stream as stream,
    tool_call as tool_call,
)
from .guardrails.declaration import (
    Guardrail as Guardrail,
    Length as Length,
)
from .mcp.offers import (
    Offer as Offer,
)
from .options import (
    Endpoint as Endpoint,
    Limits as Limits,
    Pictures as Pictures,
    ToolApprovals as ToolApprovals,
)
from .script import (
    MODEL_NAME as MODEL_NAME,
    REMEDY as REMEDY,
)
from .tools.function import (
    Tool as Tool,
    tool as tool,
)
