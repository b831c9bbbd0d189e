"""Print as JSON what does not work without optional packages.

Run it as `python -I optional_packages.py [NAME ...]`, in an empty directory, with any Python that has the package. It hides
the top-level modules with these names, as if they were not installed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spade_coreason import Settings

PROGRAMS = {"__main__", "migrations"}
"""Modules that are run, not imported: by `python -m` and by Alembic."""
URL = "http://127.0.0.1:9/v1"
AGENT = '{jid: echo@localhost, agent: "spade_coreason.agents.echo:EchoAgent"'


class HidingFinder(PathFinder):
    """Finds all modules but the hidden ones."""

    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module."""
        return None if fullname.partition(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


def module_names() -> list[str]:
    """List the modules of the package, and of the ready-made agents, which are a directory of their own in a checkout."""
    [root] = importlib.import_module("spade_coreason").__path__
    found = []
    for directory, _, files in os.walk(root, followlinks=True):
        parts = ["spade_coreason", *Path(directory).relative_to(root).parts]
        found += [".".join([*parts, name[:-3]]).removesuffix(".__init__") for name in files if name.endswith(".py")]
    return sorted(name for name in found if not PROGRAMS & set(name.split(".")))


def find_error(act: Callable[[], object]) -> str | None:
    """Return the kind and the text of the error that it raises."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the test judges all of them
        return f"{type(error).__name__}: {error}"
    return None


def load(text: str) -> Settings:
    """Load a configuration."""
    from spade_coreason import load_settings

    Path("platform.yaml").write_text(text, encoding="utf-8")
    return load_settings(Path("platform.yaml"), Path(), {})


def make_uses() -> dict[str, Callable[[], object]]:
    """Make the uses of optional packages. The first word of a name is the extra."""
    from spade_coreason import AgentDefinition
    from spade_coreason.agents.a2a import RemoteA2AAgent
    from spade_coreason.app.factories import build_embedder, build_summariser
    from spade_coreason.cli.reload import supervise
    from spade_coreason.domain.environment.proxies import find_proxy
    from spade_coreason.llm import LLMAgent
    from spade_coreason.llm.guardrails.declaration import Guardrail
    from spade_coreason.llm.guardrails.patterns import compile_patterns
    from spade_coreason.llm.mcp.servers import MCPServers
    from spade_coreason.memory.knowledge.loaders import read_document
    from spade_coreason.memory.tokens import counter_for
    from spade_coreason.storage import open_database

    manifest = AgentDefinition.simple("helper")
    unread: Any = None
    knowledge = f"agents: [{AGENT}}}]\nknowledge: {{model: small, embedder: "
    summariser = f"agents: [{AGENT}}}]\nmemory: {{summariser: {{model: small, url: {URL}}}}}\n"

    def build(text: str, builder: Callable[[Any], object]) -> Callable[[], object]:
        return lambda: builder(load(text))

    def read_pdf() -> object:
        path = Path("document.pdf")
        path.write_bytes(b"%PDF-1.4")
        return read_document(path)

    return {
        "postgres": lambda: asyncio.run(open_database("postgresql+asyncpg://127.0.0.1:9/database")),
        "tokens": lambda: counter_for("o200k"),
        "embeddings": build(f"{knowledge}openai, url: {URL}}}\n", build_embedder),
        "local": build(f"{knowledge}local}}\n", build_embedder),
        "pdf": read_pdf,
        "llm agent": lambda: LLMAgent(manifest, model="small", endpoint={"url": URL}),
        "llm summaries": build(summariser, lambda settings: build_summariser(settings.memory)),
        "llm guardrail": lambda: compile_patterns(Guardrail(regex=["x"]), "options.output_guardrails[0]"),
        "mcp servers": lambda: MCPServers({"files": {"command": ["x"]}}, manifest),
        "web": lambda: load(f"web: {{}}\nagents: [{AGENT}}}]\n"),
        "web door": lambda: load(f"web: {{}}\nagents: [{AGENT}, doors: [openai]}}]\n"),
        "metrics": lambda: load(f"metrics: {{}}\nagents: [{AGENT}}}]\n"),
        "a2a agent": lambda: RemoteA2AAgent(url="https://agent.example"),
        "socks": lambda: find_proxy("http://model.example", {"ALL_PROXY": "socks5h://127.0.0.1:1080"}),
        "reload": lambda: asyncio.run(supervise(unread)),
        "otel": lambda: load(f"tracing: {{enabled: true}}\nagents: [{AGENT}}}]\n"),
    }


if __name__ == "__main__":
    HidingFinder.hidden = frozenset(sys.argv[1:])
    sys.meta_path[sys.meta_path.index(PathFinder)] = HidingFinder
    # A module that has failed is imported anew by the next one that needs it, so that no failure hides another.
    modules = {name: find_error(lambda name=name: importlib.import_module(name)) for name in module_names()}  # type: ignore[misc]
    uses = {name: find_error(use) for name, use in make_uses().items()}
    from spade_coreason.domain.environment.installation import install_hint

    hints = {extra: install_hint(extra) for extra in {name.split()[0] for name in uses}}
    print(json.dumps({"modules": modules, "uses": uses, "hints": hints}))
