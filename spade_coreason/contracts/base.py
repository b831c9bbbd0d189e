"""The base of every model: how it is read and written, and what a time is."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict


def utc_now() -> datetime:
    """The time in UTC, which every timestamp here is in."""
    return datetime.now(UTC)


def format_rfc3339(moment: datetime) -> str:
    """A time as it stands in JSON (RFC 3339): that of UTC ends with Z, as pydantic writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def _to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is UTC:
        return moment
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("this time is outside of the years 1 to 9999 in UTC") from error


UtcDatetime = Annotated[datetime, AfterValidator(_to_utc)]
"""A time in UTC. Another zone is converted; a time without a zone is taken as UTC."""


class CoReasonBaseModel(BaseModel):
    """A frozen value. Fields may be given by name or alias; unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    def dump(self, **options: Any) -> dict[str, Any]:
        """`model_dump` in mode "json", by alias, without fields that are None; each of it may be overridden."""
        return self.model_dump(**{"mode": "json", "by_alias": True, "exclude_none": True, **options})

    def to_json(self, **options: Any) -> str:
        """`model_dump_json` by alias, without fields that are None; each of it may be overridden."""
        return self.model_dump_json(**{"by_alias": True, "exclude_none": True, **options})


class StrictModel(CoReasonBaseModel):
    """A frozen value in which an unknown field is an error."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid")


M = TypeVar("M", bound=CoReasonBaseModel)


def construct_valid(model: type[M], fields: dict[str, Any]) -> M:
    """A frozen value of fields that are known to be valid: all of them, and none is looked at.

    For what is made for every message; `model_construct`, which fills in what is missing, costs more than to validate.
    """
    value = object.__new__(model)
    object.__setattr__(value, "__dict__", fields)
    object.__setattr__(value, "__pydantic_fields_set__", _field_names(model))
    object.__setattr__(value, "__pydantic_extra__", None)
    object.__setattr__(value, "__pydantic_private__", None)
    return value


@cache
def _field_names(model: type[CoReasonBaseModel]) -> set[str]:
    """All values of a model that have all of its fields share this set: of a frozen one nobody changes it."""
    return set(model.model_fields)
