"""The agents of docs/how-to/coming-from-langgraph.md that need packages of others; skipped where a package is missing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from spade_coreason import AgentTester
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
