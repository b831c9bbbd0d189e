"""Value classes: their objects are built once, read often and never changed."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields must not be set again. The type checker reports code that sets one.

    A frozen dataclass would also prevent it at run time, at the cost of a call for every field of every new object. A
    NamedTuple costs more for every access to a field. `dataclasses.replace` makes a copy with other fields.
    """
    return dataclasses.dataclass(slots=True)(cls)
