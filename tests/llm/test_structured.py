"""The JSON in the text of a model."""

from __future__ import annotations

from typing import Any

import pytest

from spade_coreason.llm.structured import parse_data, parse_fenced_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('\n ```json \r\n\n{"a": 1}\r\n\n ``` \n', {"a": 1}),
        ("```\n[1]```", [1]),
        ('```\n"```"\n```', "```"),
    ],
)
def test_json_may_stand_in_a_fence(text: str, value: Any) -> None:
    assert parse_fenced_json(text) == value


@pytest.mark.parametrize("text", ["```", "``````", "```json```", "``` {} ```", "```json\n{}", "{}\n```", "```python\n{}\n```"])
def test_another_text_with_back_ticks_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match="at line"):
        parse_fenced_json(text)


@pytest.mark.timeout(30)  # the pattern was cubic: this text took half an hour
async def test_a_fence_that_does_not_end_costs_little() -> None:
    assert (await parse_data("```" + "\n" * 10_000, {}))[0] is None
