"""An extension of the documentation: an awaitable method that is made from another one is shown as a method."""

from __future__ import annotations

import re
from typing import Any

import griffe

_MADE = re.compile(r"_make_awaitable\((\w+)\)")


class AwaitableMethods(griffe.Extension):
    """Show `aget = _make_awaitable(get)` as `async def aget`, with the parameters of `get`."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Replace the attributes of a class that are such methods."""
        for name, member in list(cls.members.items()):
            if not isinstance(member, griffe.Attribute) or (made := _MADE.fullmatch(str(member.value))) is None:
                continue
            source = cls.members[made[1]]
            assert isinstance(source, griffe.Function)
            method = griffe.Function(
                name,
                lineno=member.lineno,
                endlineno=member.endlineno,
                parameters=source.parameters,
                returns=source.returns,
                docstring=member.docstring,
            )
            method.labels.add("async")
            cls.set_member(name, method)
