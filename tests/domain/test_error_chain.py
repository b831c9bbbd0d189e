"""Exceptions as values: what led to them, where, and within limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from spade_coreason.domain.texts.error_chain import (
    MAX_CHAINED_ERRORS,
    MAX_TEXT_CHARACTERS,
    ErrorChain,
    describe_error_chain,
    dump_error_chain,
    find_frame,
    load_error_chain,
)
from spade_coreason.exceptions import ModelError


def chain_of(function: Callable[[], Any]) -> ErrorChain:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - described
        return describe_error_chain(error)
    raise AssertionError("nothing was raised")


def summary(chain: ErrorChain) -> list[tuple[str, str, str]]:
    return [(error.relation, error.type, error.text) for error in chain]


def raise_value_error() -> None:
    raise ValueError("first")


def raise_from_another() -> None:
    try:
        raise_value_error()
    except ValueError as error:
        raise LookupError("second") from error


def raise_while_handling() -> None:
    try:
        raise_from_another()
    except LookupError:
        raise KeyError("third")  # noqa: B904 - without a cause


def raise_instead() -> None:
    try:
        raise_value_error()
    except ValueError:
        raise LookupError("alone") from None


def raise_group() -> None:
    errors: list[Exception] = []
    for function in (raise_value_error, raise_from_another):
        try:
            function()
        except Exception as error:  # noqa: BLE001 - collected
            errors.append(error)
    raise ExceptionGroup("two", errors)


def test_a_chain_is_in_the_order_in_which_it_was_raised() -> None:
    assert summary(chain_of(raise_while_handling)) == [
        ("", "ValueError", "first"),
        ("cause", "LookupError", "second"),
        ("context", "KeyError", "'third'"),
    ]
    assert summary(chain_of(raise_instead)) == [("", "LookupError", "alone")]
    assert summary(chain_of(raise_group)) == [
        ("", "ValueError", "first"),
        ("beside", "ValueError", "first"),
        ("cause", "LookupError", "second"),
        ("group", "ExceptionGroup", "two (2 sub-exceptions)"),
    ]


def test_places_begin_with_the_own_code_and_the_last_own_one_is_found() -> None:
    chain = chain_of(lambda: asyncio.run(asyncio.wait_for(asyncio.Event().wait(), 0)))
    functions = [(place.function.rpartition(".")[2], place.is_own) for place in chain[-1].frames]
    assert functions[0] == ("chain_of", True)
    assert not functions[-1][1]
    place = find_frame(chain)
    assert place is not None
    assert (place.file, place.function.rpartition(".")[2]) == (__file__, "<lambda>")


def test_a_chain_without_own_code_has_its_last_place() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]  # that of this test
    place = find_frame(describe_error_chain(caught.value))
    assert place is not None
    assert (place.function, place.is_own) == ("JSONDecoder.raw_decode", False)
    assert find_frame(()) is None


def test_a_chain_has_limits() -> None:
    def recurse() -> None:
        recurse()

    error = chain_of(recurse)[-1]
    assert (error.type, len(error.frames)) == ("RecursionError", 40)
    assert error.omitted > 500
    assert error.frames[0].function == "chain_of"
    last = ValueError("0")
    for number in range(1, 100):
        following = ValueError(str(number) * MAX_TEXT_CHARACTERS)
        following.__cause__, last = last, following
    chain = describe_error_chain(last)
    assert len(chain) == MAX_CHAINED_ERRORS
    assert (chain[0].relation, chain[1].relation) == ("", "cause")
    assert all(len(each.text) == MAX_TEXT_CHARACTERS for each in chain)
    first = ValueError("a circle")
    first.__cause__ = ValueError("of two")
    first.__cause__.__cause__ = first
    assert len(describe_error_chain(first)) == 2
    group = ExceptionGroup("many", [last] * 100)
    assert len(describe_error_chain(group)) == MAX_CHAINED_ERRORS
    deep: Exception = ValueError("deep")
    for _ in range(5000):
        deep = ExceptionGroup("deeper", [deep])
    assert len(describe_error_chain(deep)) < MAX_CHAINED_ERRORS


def test_a_text_that_cannot_be_read_is_said_so() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    [error] = describe_error_chain(Unreadable())
    assert error.text == "<its text cannot be read>"
    assert error.short_type == "Unreadable"


def test_notes_are_part_of_the_text_and_words_of_a_model_server_are_not() -> None:
    noted = ValueError("first")
    noted.add_note("and more")
    assert describe_error_chain(noted)[0].text == "first\nand more"
    error = ModelError("http://model", "answers 400", server_message="what alice said")
    assert describe_error_chain(error)[0].text == "http://model: answers 400"


def test_a_chain_is_the_same_after_json() -> None:
    there = load_error_chain(json.loads(json.dumps(dump_error_chain(chain_of(raise_from_another)))))
    assert there == chain_of(raise_from_another)


def test_a_stored_chain_is_held_to_the_limits() -> None:
    fields = {"type": "x" * 10_000, "places": [["f" * 10_000, 1, "g", True]] * 1000, "relation": "friend", "omitted": 0}
    chain = load_error_chain([{**fields, "text": "t" * 10_000}] * 1000)
    assert len(chain) == MAX_CHAINED_ERRORS
    assert len(json.dumps(dump_error_chain(chain))) < 200_000
    assert chain[0].relation == ""
    with pytest.raises(Exception, match="places"):
        load_error_chain([{"type": "x"}])
