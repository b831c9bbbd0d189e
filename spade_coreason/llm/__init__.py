"""An agent that thinks: a language model with tools and memory, as an AgentInterface (the extra `llm`)."""

from .agent import LLMAgent as LLMAgent
from .budgets import Budgets as Budgets
from .guardrails import Guardrail as Guardrail
from .guardrails import Length as Length
from .options import Endpoint as Endpoint
from .options import Limits as Limits
from .tools import Tool as Tool

__all__ = ["Budgets", "Endpoint", "Guardrail", "LLMAgent", "Length", "Limits", "Tool"]
