"""Values: objects that are made once, read often, and never changed."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Makes a class of values of its fields, as `dataclass` does. Whoever sets a field of one is told so by the type checker.

    At run time nothing is in the way: a frozen dataclass pays a call for every field of every object, a NamedTuple one for
    every look at a field.
    """
    return dataclasses.dataclass(slots=True)(cls)


def replace(instance: T, **changes: Any) -> T:
    """The same value but for these fields. TypeError for one that it does not have."""
    return cast(T, dataclasses.replace(cast(Any, instance), **changes))
