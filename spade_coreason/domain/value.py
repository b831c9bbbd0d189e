"""Value classes: their objects are built once, read often and never changed."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields must not be set again. The type checker reports code that sets one.

    Nothing prevents it at run time, because that would cost time: a frozen dataclass pays a call for every field of every
    object, and a NamedTuple pays one for every access to a field.
    """
    return dataclasses.dataclass(slots=True)(cls)


def replace(instance: T, **changes: Any) -> T:
    """Return a copy of a value with these fields changed. Raise TypeError for a field that it does not have."""
    return cast(T, dataclasses.replace(cast(Any, instance), **changes))
