"""The errors as tables: exceptions, error codes and exit codes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module

from spade_coreason.cli.errors import exit_code
from spade_coreason.contracts import ErrorCode
from spade_coreason.exceptions import CoReasonError
from tests.docs.cli_reference import exit_codes

# The packages that add errors of their own to the tree.
_FURTHER_MODULES = (
    "agents.a2a.errors",
    "app.workers.calls",
    "llm.budget",
    "llm.context",
    "llm.guardrails.decisions",
    "xmpp.servers.process",
)


def exceptions() -> Iterator[tuple[int, type[CoReasonError]]]:
    """Yield each exception of the package with its depth in the tree, a base class before its subclasses."""
    for module in _FURTHER_MODULES:
        import_module(f"spade_coreason.{module}")
    yield from _with_subclasses(CoReasonError, 0)


def _with_subclasses(error: type[CoReasonError], depth: int) -> Iterator[tuple[int, type[CoReasonError]]]:
    yield depth, error
    found = [
        subclass
        for subclass in error.__subclasses__()
        if subclass.__module__.startswith("spade_coreason.") and not subclass.__name__.startswith("_")
    ]
    own = [subclass for subclass in found if subclass.__module__ == CoReasonError.__module__]
    for subclass in [*own, *sorted(set(found) - set(own), key=lambda subclass: subclass.__name__)]:
        yield from _with_subclasses(subclass, depth + 1)


def exceptions_table() -> str:
    """Return the table of the exceptions."""
    rows = []
    for depth, error in exceptions():
        summary = " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split())
        base = f"`{error.__base__.__name__}`" if depth and error.__base__ else ""
        rows.append(f"| `{error.__name__}` | {base} | {exit_code(error.__new__(error))} | {summary} |")
    return "\n".join(["| exception | base | exit code | meaning |", "|---|---|---|---|", *rows])


def codes_table() -> str:
    """Return the table of the codes of events."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(ErrorCode))).body
    assert isinstance(tree, ast.ClassDef)
    texts = [str(node.value.value) for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    rows = [
        f"| {code.value} | `{code.name}` | {text} | {'yes' if code.may_retry else 'no'} |"
        for code, text in zip(ErrorCode, texts[1:], strict=True)  # the first text is that of the class
    ]
    return "\n".join(["| code | name | meaning | the same request may succeed later |", "|---|---|---|---|", *rows])


def exit_codes_table() -> str:
    """Return the table of the exit codes."""
    rows = [f"| {code} | {meaning[0].upper()}{meaning[1:]}. |" for code, meaning in exit_codes().items()]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows])
