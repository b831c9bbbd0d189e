"""The agents of docs/how-to/coming-from-langgraph.md that need packages of others; skipped where a package is missing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spade_coreason import AgentTester
from spade_coreason.agents.echo import EchoAgent
from tests.docs.pages import DOCS, read_page


def import_block(title: str) -> ModuleType:
    """Run a file of the page as a module."""
    [block] = [block for block in read_page(DOCS / "how-to" / "coming-from-langgraph.md").blocks if block.title == title]
    module = ModuleType(Path(title).stem)
    exec(compile(block.text, title, "exec"), module.__dict__)
    return module


async def test_a_graph_answers_as_an_agent() -> None:
    pytest.importorskip("langgraph", reason="`pip install langgraph` enables this test")
    async with AgentTester(import_block("planner.py").Planner) as t:
        assert (await t.ask("Rome")).text == "Message 1: a plan for Rome"
        assert (await t.ask("Berlin")).text == "Message 3: a plan for Berlin"


async def test_a_turn_is_a_span_of_opentelemetry() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="`pip install opentelemetry-sdk` enables this test")
    exporters: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
    export: Any = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter, provider = exporters.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracing = import_block("tracing.py")
    tracing.__dict__["TRACER"] = provider.get_tracer("agents")
    async with AgentTester(EchoAgent, interceptors=[tracing.Tracing("echo@localhost")]) as t:
        await t.ask("hello", thread="trip")
    [span] = exporter.get_finished_spans()
    assert (span.name, span.attributes["agent"], span.attributes["conversation"]) == ("turn", "echo@localhost", "trip")
