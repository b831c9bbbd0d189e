"""The header `traceparent` at each door: the trace of the caller continues in the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from spade_coreason.domain.observability import spans
from tests.support.all_doors import DOORS, run_all_doors
from tests.support.servers.server import XmppServer
from tests.support.spans import record_spans
from tests.support.wait import eventually

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_trace_continues_behind_each_door(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_all_doors(prosody, tmp_path, tracing={"enabled": True}) as running:
        for door in DOORS:
            with record_spans() as recorded:
                answer = await running.ask(door, "website", f"hello by {door}", traceparent=f"00-{TRACE}-{SPAN}-01")
                assert f"done: hello by {door}" in answer.text
                await eventually(lambda: bool(recorded.of(spans.DELIVER)) and bool(recorded.of(spans.INVOKE_AGENT)))
            received = recorded.get(spans.RECEIVE)
            assert received.parent is not None
            assert (f"{received.parent.trace_id:032x}", f"{received.parent.span_id:016x}") == (TRACE, SPAN)
            assert len(recorded.trace_ids) == 1, recorded.texts


@pytest.mark.parametrize("wrong", ["", "x" * 9000, f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01"])
async def test_a_malformed_header_counts_as_absent(prosody: XmppServer, tmp_path: Path, wrong: str) -> None:
    async with run_all_doors(prosody, tmp_path, tracing={"enabled": True}) as running:
        with record_spans() as recorded:
            assert (await running.ask("openai", "website", "hello", traceparent=wrong)).status == 200
            await eventually(lambda: bool(recorded.of(spans.RECEIVE)))
    assert recorded.get(spans.RECEIVE).parent is None
