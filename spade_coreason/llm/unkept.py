"""What a manifest asks for that nothing here keeps to, so that nobody relies on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..contracts import AgentDefinition, InlineToolDefinition

_REMEDIES = {
    "budget_caps": "its budgets are the option budgets",
    "allowed_domains": "whom it may ask are the options agents and mcp",
    "human_in_the_loop": "nobody is asked before a tool is called",
}


def unkept(manifest: AgentDefinition, tools: Collection[str]) -> Iterator[str]:
    """A line for each part of `policy`, and each tool of `dependencies.tools` that is described and none of `tools`."""
    for name, remedy in _REMEDIES.items():
        if manifest.policy is not None and getattr(manifest.policy, name):
            yield f"policy.{name} of the manifest is not kept to; {remedy}"
    for number, one in enumerate(manifest.dependencies.tools):
        if isinstance(one, InlineToolDefinition) and one.name not in tools:
            yield f"dependencies.tools[{number}] of the manifest: no tool is called {one.name}; give a function of this name"
