from .agent import (
    LLMAgent as LLMAgent,
)
from .budget import (
    Budgets as Budgets,
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
)
from .scripted import (
    MODEL_NAME as MODEL_NAME,
    REMEDY as REMEDY,
    ScriptedModel as ScriptedModel,
)
from .tools.function import (
    Tool as Tool,
)
