"""Values are checked against the JSON Schemas of others in limited time and memory, and nothing else waits meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spade_coreason.contracts.json_schema import check_for, find_problem, find_problems
from tests.support.processes import schema_programs

MAIL = r"^([a-zA-Z0-9]+[._-]?)+@[a-z]+[.]com$"
"""An ordinary pattern for addresses. It backtracks for hours on a text such as `NO_MAIL`."""
NO_MAIL = "a" * 40
LEVELS = 40


def _multiplied(keyword: str) -> dict[str, Any]:
    """Return a schema that refers twice to the next of 40 levels."""
    definitions: dict[str, Any] = {
        f"level{level}": {keyword: [{"$ref": f"#/$defs/level{level + 1}"}, {"$ref": f"#/$defs/level{level + 1}"}]}
        for level in range(LEVELS)
    }
    return {"$ref": "#/$defs/level0", "$defs": {**definitions, f"level{LEVELS}": {"const": keyword == "allOf"}}}


ENDLESS: dict[str, tuple[Any, dict[str, Any]]] = {
    "pattern": (NO_MAIL, {"pattern": MAIL}),
    "pattern in a list": ([{"mail": NO_MAIL}], {"items": {"properties": {"mail": {"pattern": MAIL}}}}),
    "patternProperties": ({NO_MAIL: 1}, {"patternProperties": {MAIL: True}}),
    "additionalProperties": ({NO_MAIL: 1}, {"patternProperties": {MAIL: True}, "additionalProperties": False}),
    "unevaluatedProperties": ({NO_MAIL: 1}, {"patternProperties": {MAIL: True}, "unevaluatedProperties": False}),
    "propertyNames": ({NO_MAIL: 1}, {"propertyNames": {"pattern": MAIL}}),
    "a pattern of an older draft": (NO_MAIL, {"$schema": "http://json-schema.org/draft-04/schema#", "pattern": MAIL}),
    "a pattern that takes long to compile": ("x", {"pattern": "(?i)" + "[\u0000-\U0010ffff]" * 2000}),
    "anyOf": (1, _multiplied("anyOf")),
    "oneOf": (1, _multiplied("oneOf")),
    "allOf": (True, _multiplied("allOf")),
    "uniqueItems": ([{"number": number} for number in range(20_000)], {"uniqueItems": True}),
    "errors without number": ([[2] * 1000] * 1000, {"items": {"items": {"const": 1}}}),
}


OF_EACH_KIND = ("pattern in a list", "errors without number")
"""Without end in time, and in memory."""


@pytest.mark.parametrize("names", [OF_EACH_KIND, pytest.param(tuple(ENDLESS), marks=pytest.mark.release)], ids=["some", "all"])
async def test_what_cannot_be_checked_in_time_does_not_fit_and_the_event_loop_goes_on(names: tuple[str, ...]) -> None:
    checks = {name: asyncio.create_task(find_problems([ENDLESS[name][0]], ENDLESS[name][1])) for name in names}
    await asyncio.sleep(0)  # all of them begin
    assert not any(check.done() for check in checks.values())
    problems = {name: problem for name, check in checks.items() for problem in await check}
    too_long = "payload: it cannot be checked against its JSON Schema within 2 s and 256 MB"
    assert problems == dict.fromkeys(names, too_long)


async def test_the_limit_is_for_all_values_together_and_the_next_values_are_told_apart() -> None:
    problems = await find_problems([NO_MAIL] * 100, {"pattern": MAIL}, "data")
    assert problems == ["data: it cannot be checked against its JSON Schema within 2 s and 256 MB"] * 100
    assert find_problem("ada@example.com", {"pattern": MAIL}) is None
    assert find_problem("ada", {"pattern": MAIL}) == f"payload: 'ada' does not match {MAIL!r}"


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        (1, {"$schema": {}}, "its JSON Schema cannot be used: TypeError: "),
        (1, {"$ref": "#/" + "x" * 10_000}, 'its JSON Schema refers to "/xxx'),
        (json.loads("[" * 300 + "]" * 300), {"items": {"$ref": "#"}}, "nested without end"),
        ({(1, 2): 3}, {}, "payload: it cannot be written as JSON (keys must be str"),
    ],
)
def test_what_jsonschema_cannot_do_is_one_short_sentence(value: Any, schema: dict[str, Any], problem: str) -> None:
    found = find_problem(value, schema)
    assert found is not None
    assert problem in found
    assert len(found) < 400


def _end_programs() -> None:
    for pid in schema_programs():
        os.kill(pid, signal.SIGKILL)


def test_a_program_that_was_killed_is_replaced() -> None:
    assert find_problem(1, {"type": "integer"}) is None
    killed = schema_programs()
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert find_problem("1", {"type": "integer"}) == "payload: '1' is not of type 'integer'"
    assert find_problem(1, {"type": "integer"}) is None
    assert not set(killed) & set(schema_programs())


def test_more_calls_than_programs_wait_for_one() -> None:
    """Also where threads call it that are not those of the pool: the second burst starts none."""
    _end_programs()
    with ThreadPoolExecutor(24) as threads:
        for _ in range(2):
            assert list(threads.map(lambda _: find_problem(1, {"type": "integer"}), range(48))) == [None] * 48
            programs = set(schema_programs())
            assert len(programs) <= 4
        assert list(threads.map(lambda _: find_problem(1, {"type": "integer"}), range(48))) == [None] * 48
    assert set(schema_programs()) == programs


async def test_a_burst_of_one_caller_starts_one_program() -> None:
    _end_programs()
    await asyncio.gather(*(check_for("ada", find_problem, number, {"type": "integer"}) for number in range(20)))
    assert len(schema_programs()) == 1


async def test_checks_of_one_caller_that_take_long_do_not_delay_those_of_others() -> None:
    value, schema = ENDLESS["pattern"]
    slow = [asyncio.create_task(check_for("eve", find_problem, value, schema)) for _ in range(8)]
    await asyncio.sleep(0)
    assert await check_for("ada", find_problem, 1, {"type": "integer"}) is None
    assert sum(task.done() for task in slow) < 4
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
