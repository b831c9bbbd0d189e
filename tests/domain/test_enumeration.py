"""Names in a sentence."""

from __future__ import annotations

import pytest

from spade_coreason.domain.texts.enumeration import join_names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["weather"], "weather"),
        (["weather", "moody"], "weather and moody"),
        (["weather", "moody", "echo"], "weather, moody and echo"),
        (["weather", "moody", "echo", "notes"], "weather, moody, echo and notes"),
    ],
)
def test_only_the_last_two_names_have_an_and_between_them(names: list[str], text: str) -> None:
    assert join_names(iter(names)) == text


def test_a_choice_has_an_or() -> None:
    assert join_names(["a", "b", "c"], "or") == "a, b or c"
