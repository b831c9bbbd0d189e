"""The operations as a table: what each does, who may call it, its arguments, and whether it is audited."""

from __future__ import annotations

from typing import Any

from spade_coreason.operations.definition import CallerKind, Operation
from spade_coreason.operations.table import OPERATIONS

_CALLERS = {CallerKind.MACHINE_USER: "user", CallerKind.OPERATOR: "operators", CallerKind.PERSON: "people"}


def to_markdown() -> str:
    """Return the table of docs/reference/operations.md."""
    head = [
        "| operation | what it does | arguments | callers | needs a running platform | audited |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, OPERATIONS.values())])


def _row(operation: Operation[Any, Any]) -> str:
    arguments = ", ".join(f"`{one.name}`" if one.is_required else f"`[{one.name}]`" for one in operation.arguments)
    callers = ", ".join(text for caller, text in _CALLERS.items() if caller in operation.callers)
    needs, is_audited = ("yes" if value else "no" for value in (operation.needs_platform, operation.is_change))
    return f"| `{operation.name}` | {operation.description} | {arguments} | {callers} | {needs} | {is_audited} |"
