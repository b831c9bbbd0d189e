"""Isolated agents that print without measure: nothing waits for it, and the rest is counted."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from io import StringIO
from typing import Any

import pytest

from spade_coreason import AgentTester
from tests.runtime.isolation.printing_agent import SIZE, WAYS, PrintingAgent
from tests.support.isolation import WARM_ISOLATION
from tests.support.wait import eventually

TIMEOUT_S = 60.0
NOTE = re.compile(r"agent@localhost: ([\d,]+) bytes \(([\d,]+) lines?\) of printed output are not shown")
MAX_SHOWN_BYTES = 4 * 2**20
"""More than what is shown in some minutes, with the name of the agent before each line."""


def numbers(notes: list[tuple[str, str]], column: int) -> int:
    return sum(int(note[column].replace(",", "")) for note in notes)


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_that_prints_megabytes_is_answered_and_so_is_another_one(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AgentTester(PrintingAgent, isolation=WARM_ISOLATION) as t:
        waiting = asyncio.create_task(t.ask("wait", user="bob@localhost", timeout=TIMEOUT_S))
        assert (await t.ask(way, timeout=TIMEOUT_S)).text == f"done: {way}"
        assert (await waiting).text == "done: wait"
        assert t.agent.process_status.restarts == 0  # type: ignore[attr-defined]
    shown = capsys.readouterr().err
    assert 0 < len(NOTE.sub("", shown)) < MAX_SHOWN_BYTES
    assert all(line.startswith("agent@localhost: ") for line in shown.splitlines())
    assert SIZE - MAX_SHOWN_BYTES < numbers(NOTE.findall(shown), 0) < SIZE


async def test_each_byte_that_is_printed_is_shown_or_counted(capsys: pytest.CaptureFixture[str]) -> None:
    async with AgentTester(PrintingAgent, isolation=WARM_ISOLATION) as t:
        await t.ask("print_one_line_without_an_end", timeout=TIMEOUT_S)
    shown = capsys.readouterr().err
    assert shown.count("x") + numbers(NOTE.findall(shown), 0) == SIZE


async def test_the_number_of_dropped_bytes_and_lines_comes_without_further_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with AgentTester(PrintingAgent, isolation=WARM_ISOLATION) as t:
        await t.ask("print_lines", timeout=TIMEOUT_S)
        shown = ""

        def is_all_counted() -> bool:
            nonlocal shown
            shown += capsys.readouterr().err
            return numbers(NOTE.findall(shown), 0) > SIZE - MAX_SHOWN_BYTES

        await eventually(is_all_counted)
        assert 0 < SIZE // 1024 - numbers(NOTE.findall(shown), 1) < MAX_SHOWN_BYTES // 1024


async def test_a_constructor_that_prints_megabytes_ends_too(capsys: pytest.CaptureFixture[str]) -> None:
    async with AgentTester(PrintingAgent, options={"prints_first": True}, isolation=WARM_ISOLATION) as t:
        assert (await t.ask("print_lines", timeout=TIMEOUT_S)).text == "done: print_lines"
    assert numbers(NOTE.findall(capsys.readouterr().err), 0) > 2 * (SIZE - MAX_SHOWN_BYTES)


async def test_printed_text_ends_no_turn_where_standard_error_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = StringIO()
    closed.close()
    async with AgentTester(PrintingAgent, isolation=WARM_ISOLATION) as t:
        monkeypatch.setattr(sys, "stderr", closed)
        assert (await t.ask("print_lines", timeout=TIMEOUT_S)).text == "done: print_lines"
        assert t.agent.process_status.restarts == 0  # type: ignore[attr-defined]


async def test_log_records_that_are_not_shown_are_counted_without_a_further_one(caplog: pytest.LogCaptureFixture) -> None:
    def counted() -> list[Any]:
        pattern = r"agent@localhost: ([\d,]+) log records are not shown; at most 500 in 5 s are"
        return [match[1] for record in caplog.records if (match := re.fullmatch(pattern, record.getMessage()))]

    with caplog.at_level(logging.WARNING):
        async with AgentTester(PrintingAgent, isolation=WARM_ISOLATION) as t:
            assert (await t.ask("log", timeout=TIMEOUT_S)).text == "done: log"
            await eventually(lambda: bool(counted()))
    shown = sum(record.getMessage().startswith("word ") for record in caplog.records)
    assert shown + sum(int(number.replace(",", "")) for number in counted()) == 2000
