"""`traceparent` in requests of programs: read by its grammar, and no part of what a request is."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from spade_coreason.domain.messages import InboundRequest, RequestBatch, RequestContext
from spade_coreason.domain.observability.tracing import read_traceparent
from spade_coreason.runtime.intake.repeated_requests import identify
from spade_coreason.xmpp.codec.decode import decode
from tests.support.foreign_stanzas import AGENT, DEVICE, container, decode_request, message, parse_stanza
from tests.support.transports import request_stanza

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{TRACE[::-1]}-{SPAN[::-1]}-00"


def read(traceparent: Any, *, in_batch: bool = False, **data: Any) -> InboundRequest:
    event = {"type": "ai.coreason.request", "id": "e", "data": {"payload": {"query": "hi"}, **data}}
    if traceparent is not None:
        event["traceparent"] = traceparent
    if not in_batch:
        return decode_request(message(container(event)))
    decoded = decode(message(container([event])))
    assert isinstance(decoded, RequestBatch)
    [request] = decoded.requests
    assert isinstance(request, InboundRequest)
    return request


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_request_carries_the_span_of_its_sender(*, in_batch: bool) -> None:
    assert read(GIVEN, in_batch=in_batch).context.traceparent == GIVEN
    assert read(None, in_batch=in_batch).context.traceparent == ""


def test_what_an_agent_sends_is_what_its_peer_reads() -> None:
    ids = {"request_id": str(UUID(int=1)), "session_id": str(UUID(int=7))}
    context = RequestContext(hops=1, traceparent=GIVEN)
    parts: dict[str, Any] = {"source": f"xmpp:{DEVICE}", "thread": "t", "stanza_id": "s", "context": context}
    stanza = request_stanza(AGENT, {**ids, "payload": {"query": "hi"}}, **parts)
    assert f'"traceparent":"{GIVEN}"' in stanza
    assert decode_request(parse_stanza(stanza)).context == context


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        None,
        [GIVEN],
        "",
        GIVEN.upper(),
        f"{GIVEN}\n",
        f" {GIVEN}",
        f"{GIVEN}-more",
        f"01{GIVEN[2:]}",
        f"ff{GIVEN[2:]}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        "0" * 1_000_000,
    ],
)
def test_a_value_against_the_grammar_counts_as_absent(wrong: Any) -> None:
    assert read_traceparent(wrong) == ""
    assert read(wrong).context.traceparent == ""


@given(st.text() | st.binary() | st.integers())
def test_no_value_is_read_that_another_service_would_refuse(value: object) -> None:
    assert read_traceparent(value) in ("", value)


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("data", [{}, {"request_id": str(UUID(int=1))}])
def test_a_repeated_request_with_another_span_is_the_same(data: dict[str, Any], *, in_batch: bool) -> None:
    first, second = (read(traceparent, in_batch=in_batch, **data) for traceparent in (GIVEN, OTHER))
    assert identify(AGENT, first) == identify(AGENT, second)


def test_the_span_is_stored_with_the_request() -> None:
    request = read(GIVEN)
    stored = InboundRequest.from_json(request.to_json())
    assert stored.context.traceparent == GIVEN
    assert GIVEN not in json.dumps(dict(stored.metadata))
