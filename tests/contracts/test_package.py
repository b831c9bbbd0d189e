"""The package `contracts`: its exports, its imports, and what importing it loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import spade_coreason
import spade_coreason.contracts as contracts

PACKAGE_DIR = Path(contracts.__file__).parent
MODULES = sorted(path for path in PACKAGE_DIR.glob("*.py"))


def test_a_name_means_the_same_here_and_in_the_package_itself() -> None:
    shared = set(contracts.__all__) & set(spade_coreason.__all__)
    assert {"AgentInterface", "AgentRequest", "SessionHandle", "ResponseHandler", "StreamHandle"} <= shared
    assert all(getattr(spade_coreason, name) is getattr(contracts, name) for name in shared)


@pytest.mark.parametrize("name", contracts.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    assert getattr(contracts, name) is not None


def test_every_name_of_the_contract_is_public() -> None:
    named = """
    CoReasonBaseModel AgentInterface SessionHandle EventSink ResponseHandler StreamHandle LifecycleInterface
    Identity AgentRequest ClientCapabilities LineageMetadata MultiModalInput ContentPart AttachedFile Interaction SessionState
    MemoryStrategy MemoryConfig ConversationState ConversationRecord
    AgentDefinition AgentMetadata AgentCapability AgentRuntimeConfig AgentDependencies ToolRequirement InlineToolDefinition
    PolicyConfig ObservabilityConfig
    ThinkingBlock DataBlock MarkdownBlock UserErrorBlock CloudEvent GraphEvent ErrorCode ErrorDomain AuditEntry
    """
    assert set(named.split()) <= set(contracts.__all__)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_opens_with_a_sentence_and_imports_nothing_of_ours_but_the_errors(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert (ast.get_docstring(tree) or "").splitlines()[0].endswith(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1 or (node.level, node.module) == (2, "exceptions"), f"line {node.lineno}"
            assert node.level or not (node.module or "").startswith("spade"), f"line {node.lineno}"
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith(("spade", "slixmpp")) for name in node.names), f"line {node.lineno}"


def test_importing_the_contracts_brings_no_server_no_database_and_nothing_slow() -> None:
    program = "import spade_coreason.contracts, sys, json; print(json.dumps(list(sys.modules)))"
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", program], text=True)))
    assert not loaded & {"spade", "slixmpp", "sqlalchemy", "jsonschema", "yaml", "asyncio"}
