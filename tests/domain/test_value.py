"""Values: compared by their fields, and never changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spade_coreason.domain.value import value


@value
class Place:
    town: str
    street: str = ""


def test_values_are_equal_where_their_fields_are() -> None:
    assert Place("Ulm") == Place(town="Ulm", street="")
    assert Place("Ulm") != Place("Bonn")


def test_a_replaced_field_makes_another_value() -> None:
    before = Place("Ulm", "Hafengasse")
    assert replace(before, town="Bonn") == Place("Bonn", "Hafengasse")
    assert before == Place("Ulm", "Hafengasse")


def test_a_field_that_is_not_there_cannot_be_replaced() -> None:
    with pytest.raises(TypeError, match="country"):
        replace(Place("Ulm"), country="DE")  # type: ignore[call-arg]  # the point of the test


def test_a_value_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Place("Ulm").country = "DE"  # type: ignore[attr-defined]  # the point of the test
