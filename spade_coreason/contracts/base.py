"""The base class of every model, with its JSON form and the type of its times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict


def _to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the time is outside the years 1 to 9999 in UTC") from error


UtcDatetime = Annotated[datetime, AfterValidator(_to_utc)]
"""A time in UTC. Times in other zones are converted; a time without a zone counts as UTC."""


class CoReasonBaseModel(BaseModel):
    """Base class of all models: a frozen value. Fields may be given by name or alias; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def dump(self, **options: Any) -> dict[str, Any]:
        """Return the JSON object as a dict: by alias, and without fields that are None.

        `options` are those of pydantic's `model_dump` and override the defaults `mode="json"`, `by_alias` and
        `exclude_none`.
        """
        return self.model_dump(**{"mode": "json", "by_alias": True, "exclude_none": True, **options})

    def to_json(self, **options: Any) -> str:
        """Return the JSON text: by alias, and without fields that are None.

        `options` are those of pydantic's `model_dump_json` and override the defaults `by_alias` and `exclude_none`.
        """
        return self.model_dump_json(**{"by_alias": True, "exclude_none": True, **options})


class StrictModel(CoReasonBaseModel):
    """Base class of the models in which an unknown field is an error."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid")
