"""No test patches the package: everything that a test has to set is a parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def package_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names under which a test knows modules, classes and functions of the package."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "spade_coreason":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or "spade_coreason" for alias in node.names if alias.name.startswith("spade_coreason")}
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_patch(node: ast.AST, names: set[str]) -> bool:
    """Return True if a node sets a name of ours by `setattr` or `patch`, or a private one of any other object by `=`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        function = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if function not in ("setattr", "delattr", "patch", "object") or not node.args:
            return False
        target, *rest = node.args
        if isinstance(target, ast.Constant):
            return str(target.value).startswith("spade_coreason")
        is_private_name = any(isinstance(name, ast.Constant) and is_private(str(name.value)) for name in rest[:1])
        return is_private_name or ast.unparse(target).partition(".")[0] in names
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return ast.unparse(node.value).partition(".")[0] in names or (is_private(node.attr) and not is_own)


def test_no_test_sets_a_constant_a_function_or_a_private_attribute_of_ours() -> None:
    assert [patch for path in sorted(TESTS.rglob("*.py")) for patch in find_patches(path)] == []


def find_patches(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = package_names(nodes)
    return [f"{path}:{node.lineno}: {ast.unparse(node)}" for node in nodes if is_patch(node, names)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "patch",
    [
        'monkeypatch.setattr("spade_coreason.runtime.conversations.expiry._CALLBACK_S", 0.05)',
        'monkeypatch.setattr(ends, "CALLBACK_S", 0.05)',
        'monkeypatch.setattr(database, "_take", held.append)',
        'mock.patch("spade_coreason.runtime.conversations.expiry._CALLBACK_S", 0.05)',
        'mock.patch.object(ends.Ends, "open")',
        "ends.CALLBACK_S = 0.05",
        "t.runner._lanes = None",
    ],
)
def test_a_patch_is_found(patch: str) -> None:
    tree = ast.parse(f"from spade_coreason import ends\n{patch}")
    assert any(is_patch(node, package_names(ast.walk(tree))) for node in ast.walk(tree))
