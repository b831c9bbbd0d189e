"""An agent with a language model, its tools and guardrails, as an AgentInterface (the extra `llm`)."""

import lazy_loader

# `__init__.pyi` lists the same names for type checkers.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "agent": ["LLMAgent"],
        "budget": ["Budgets"],
        "fake": [
            "FakeFailure",
            "FakeModel",
            "FakeReply",
            "FakeToolCall",
            "ModelRequest",
            "Reply",
            "error",
            "stream",
            "tool_call",
        ],
        "guardrails.declaration": ["Guardrail", "Length"],
        "mcp.offers": ["Offer"],
        "options": ["Endpoint", "Limits", "Pictures", "ToolApprovals"],
        "script": ["MODEL_NAME", "REMEDY"],
        "tools.function": ["Tool", "tool"],
    },
)
