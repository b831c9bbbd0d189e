"""The base of every model: how it is read and written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict


def utc_now() -> datetime:
    """The time in UTC, which every timestamp here is in."""
    return datetime.now(UTC)


class CoReasonBaseModel(BaseModel):
    """A frozen value. Fields may be given by name or alias; unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def dump(self, **options: Any) -> dict[str, Any]:
        """`model_dump` in mode "json", by alias, without None; each of it may be overridden."""
        return self.model_dump(**{"mode": "json", "by_alias": True, "exclude_none": True, **options})

    def to_json(self, **options: Any) -> str:
        """`model_dump_json` by alias, without None; each of it may be overridden."""
        return self.model_dump_json(**{"by_alias": True, "exclude_none": True, **options})


class StrictModel(CoReasonBaseModel):
    """A frozen value in which an unknown field is an error."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid")
