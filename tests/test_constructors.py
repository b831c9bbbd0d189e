"""The number of parameters of constructors: a constructor with many does many jobs, or lacks a noun."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "spade_coreason"
MAX_PARAMETERS = 8
PUBLIC = {"AgentTester", "LLMAgent"}
"""Constructors for users of the library, whose parameters are options."""


def find_constructors(source: str) -> Iterator[tuple[str, int]]:
    """Iterate over the written constructors of a module: the class, and the number of parameters. Dataclasses write none."""
    for kind in ast.walk(ast.parse(source)):
        if isinstance(kind, ast.ClassDef):
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name in ("__init__", "__new__"):
                    arguments = function.args
                    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
                    yield kind.name, len([argument for argument in named if argument is not None]) - 1


def find_made_parts(source: str) -> Iterator[tuple[str, str]]:
    """Iterate over the parts that constructors make themselves if none is given: `x or Part()`."""
    for kind in ast.walk(ast.parse(source)):
        if isinstance(kind, ast.ClassDef):
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name in ("__init__", "__post_init__"):
                    for node in ast.walk(function):
                        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
                            given, made = node.values[0], node.values[-1]
                            if isinstance(given, ast.Name) and isinstance(made, ast.Call) and ast.unparse(made)[0].isupper():
                                yield kind.name, ast.unparse(made.func)


def test_no_constructor_makes_a_part_that_was_not_given() -> None:
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    found = [pair for source in sources for pair in find_made_parts(source)]
    assert [pair for pair in found if pair[0] not in PUBLIC] == []
    assert list(find_made_parts("class A:\n def __init__(self, b=None):\n  self.b = b or B()")) == [("A", "B")]


def test_no_constructor_has_more_than_eight_parameters() -> None:
    constructors = [found for path in PACKAGE.rglob("*.py") for found in find_constructors(path.read_text(encoding="utf-8"))]
    assert {name for name, count in constructors if count > MAX_PARAMETERS} == PUBLIC


def test_all_kinds_of_parameters_are_counted() -> None:
    source = "class A:\n def __init__(self, a, /, b, *c, d=1, **e): ...\nclass B:\n def __new__(cls, a): ..."
    assert list(find_constructors(source)) == [("A", 5), ("B", 1)]
