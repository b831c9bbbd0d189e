"""The events that count as a reply of a peer, and the end of a request."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from spade_coreason import PeerError
from spade_coreason.domain.messages import Bounce, ReplyBatch, ReplyEvent
from spade_coreason.exceptions import (
    AnswerTooLongError,
    PeerFailedError,
    PeerRefusedError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peer_answers import PeerEvent
from tests.support.peer_replies import (
    OTHER,
    PEER,
    chunk_reply,
    collect_events,
    completed_reply,
    deliver,
    markdown_reply,
    reply,
    texts,
)

# What counts as an answer


@pytest.mark.parametrize(
    "where",
    [
        {"sender": f"{OTHER}/agent"},
        {"sender": f"{PEER}.evil/agent"},
        {"sender": f"x{PEER}/agent"},
        {"sender": f"evil@elsewhere/{PEER}"},
        {"sender": "localhost"},
        {"request_id": "another"},
        {"request_id": ""},
    ],
    ids=lambda where: str(next(iter(where.values()))),
)
@pytest.mark.parametrize("make", [markdown_reply, completed_reply, lambda *_, **where: reply("request.failed", **where)])
async def test_only_the_jid_that_was_asked_answers_an_open_request(where: dict[str, str], make: Any) -> None:
    requests = OpenRequests()
    forged = make("forged", **where) if make is markdown_reply else make(**where)
    assert texts(await collect_events(requests, forged, markdown_reply("true"), completed_reply())) == ["true"]
    assert requests.dropped == 1


@pytest.mark.parametrize("asked", [PEER, f"{PEER}/agent", f"{PEER}/elsewhere", "Peer@LocalHost"])
async def test_every_resource_of_the_jid_that_was_asked_answers(asked: str) -> None:
    requests = OpenRequests()
    assert texts(await collect_events(requests, markdown_reply("true"), completed_reply(), jid=asked)) == ["true"]
    assert requests.dropped == 0


async def test_events_after_the_end_are_dropped() -> None:
    requests = OpenRequests()
    await collect_events(requests, completed_reply())
    deliver(requests, markdown_reply("late"), completed_reply(), Bounce(PEER, "r", "gone", ""))
    assert requests.dropped == 3
    assert texts(await collect_events(requests, markdown_reply("new"), completed_reply())) == ["new"]


@pytest.mark.parametrize("end", [reply("request.refused"), reply("request.failed"), Bounce(PEER, "r", "gone", ""), None])
async def test_events_after_a_failed_end_are_dropped(end: ReplyEvent | Bounce | None) -> None:
    requests = OpenRequests()
    with pytest.raises(PeerError):
        await collect_events(requests, *([end] if end else []), timeout_s=0.05)
    deliver(requests, markdown_reply("late"))
    assert requests.dropped == 1


async def test_an_event_that_comes_twice_is_given_once() -> None:
    requests = OpenRequests()
    twice = markdown_reply("once", event_id="e")
    assert texts(await collect_events(requests, twice, twice, completed_reply())) == ["once"]
    assert requests.dropped == 1


async def test_a_caller_that_stops_listening_leaves_no_open_request() -> None:
    requests = OpenRequests()
    events = requests.events(PEER, "r", 1, lambda: deliver(requests, markdown_reply("first"), markdown_reply("second")))
    async for _ in events:
        break
    await events.aclose()
    deliver(requests, completed_reply())
    assert requests.dropped == 1


async def test_a_cancelled_caller_leaves_no_open_request() -> None:
    requests, asked = OpenRequests(), asyncio.Event()

    async def ask() -> None:
        async for _ in requests.events(PEER, "r", 10, asked.set):
            pass

    asking = asyncio.create_task(ask())
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    deliver(requests, completed_reply())
    assert requests.dropped == 1


async def test_a_request_that_cannot_be_sent_leaves_no_open_request() -> None:
    requests = OpenRequests()

    def broken() -> None:
        raise OSError("no wire")

    with pytest.raises(OSError, match="no wire"):
        [event async for event in requests.events(PEER, "r", 1, broken)]
    deliver(requests, completed_reply())
    assert requests.dropped == 1


# How a request ends


async def test_every_event_is_given_in_order_the_last_included() -> None:
    arrivals = [
        reply("stream.start", {"stream_id": "s"}),
        chunk_reply(0, "a"),
        markdown_reply("between"),
        chunk_reply(1, "b"),
        reply("stream.end", {"stream_id": "s"}),
        reply("block.thought"),
        reply("of.a.later.version"),
        completed_reply(),
    ]
    events = await collect_events(OpenRequests(), *arrivals)
    assert events == [PeerEvent(arrival.type, arrival.data) for arrival in arrivals]


@pytest.mark.parametrize(
    ("end", "error", "line"),
    [
        (reply("request.refused", {"message": "not now"}), PeerRefusedError, f"{PEER} refuses: not now"),
        (reply("request.refused"), PeerRefusedError, f"{PEER} refuses: no reason given"),
        (reply("request.failed", {"message": "it broke", "code": 500}), PeerFailedError, f"{PEER} reports: it broke"),
        (
            Bounce(f"{PEER}/agent", "r", "service-unavailable", ""),
            PeerUnavailableError,
            f"{PEER} is not available: service unavailable",
        ),
        (Bounce(PEER, "r", "gone", "moved away"), PeerUnavailableError, f"{PEER} is not available: moved away"),
        (
            reply("request.refused", {"message": "It waited too long.", "code": 504}),
            PeerTimeoutError,
            f"{PEER} did not answer in 0.5 s",
        ),
        (markdown_reply("and then nothing"), PeerTimeoutError, f"{PEER} did not finish its answer in 0.5 s"),
    ],
)
async def test_a_failed_end_is_an_error_that_names_the_peer(
    end: ReplyEvent | Bounce, error: type[PeerError], line: str
) -> None:
    requests, given = OpenRequests(), []

    async def listen() -> None:
        async for event in requests.events(f"{PEER}/x", "r", 0.5, lambda: deliver(requests, markdown_reply("before"), end)):
            given.append(event)

    with pytest.raises(error) as caught:
        await listen()
    assert (type(caught.value), str(caught.value), caught.value.jid) == (error, line, PEER)
    assert texts(given)[0] == "before"
    if isinstance(end, ReplyEvent):
        assert given[-1].type == end.type


@pytest.mark.parametrize(("code", "expected"), [(503, 503), ("503", None), (None, None)])
async def test_the_code_of_a_failure_is_a_number_or_none(code: Any, expected: int | None) -> None:
    with pytest.raises(PeerFailedError) as caught:
        await collect_events(OpenRequests(), reply("request.failed", {"message": "x", "code": code}))
    assert caught.value.code == expected


async def test_events_do_not_extend_the_timeout() -> None:
    requests, loop = OpenRequests(), asyncio.get_running_loop()

    def talk() -> None:
        if requests.dropped == 0:
            deliver(requests, chunk_reply(0, "blah"))
            loop.call_later(0.005, talk)

    with pytest.raises(PeerTimeoutError):
        [event async for event in requests.events(PEER, "r", 0.03, talk)]


@pytest.mark.parametrize("bounce", [Bounce(OTHER, "r", "gone", ""), Bounce(PEER, "another", "gone", "")])
async def test_a_bounce_of_another_peer_or_request_ends_nothing(bounce: Bounce) -> None:
    requests = OpenRequests()
    assert texts(await collect_events(requests, bounce, markdown_reply("true"), completed_reply())) == ["true"]
    assert requests.dropped == 1


@pytest.mark.parametrize("ids", ["r s", "s r", "r s unknown", "r r s"])
async def test_the_bounce_of_a_batch_fails_each_ask_in_it_and_no_other(ids: str) -> None:
    requests = OpenRequests()

    async def ask(request_id: str) -> str:
        try:
            events = [event async for event in requests.events(PEER, request_id, 5, lambda: None)]
        except PeerUnavailableError as error:
            return str(error)
        return str(texts(events))

    asks = [asyncio.create_task(ask(request_id)) for request_id in ("r", "s", "t")]
    await asyncio.sleep(0)
    requests.receive_bounce(Bounce(OTHER, ids, "gone", ""))
    assert requests.dropped == len(ids.split())
    requests.receive_bounce(Bounce(PEER, ids, "recipient-unavailable", ""))
    deliver(requests, markdown_reply("here", request_id="t"), completed_reply(request_id="t"))
    problem = f"{PEER} is not available: recipient unavailable"
    assert await asyncio.gather(*asks) == [problem, problem, "['here']"]


async def test_a_bounce_names_64_requests_at_most() -> None:
    requests = OpenRequests()
    requests.receive_bounce(Bounce(PEER, "a " * 100_000, "gone", ""))
    assert requests.dropped == 64


# Too much

_MIB = 2**20


async def test_an_answer_of_fifty_megabytes_ends_its_ask_with_the_name_of_the_peer_and_no_other_ask() -> None:
    requests = OpenRequests()

    async def listen(request_id: str) -> list[PeerEvent]:
        return [event async for event in requests.events(PEER, request_id, 5, lambda: None)]

    long, short = asyncio.create_task(listen("long")), asyncio.create_task(listen("short"))
    await asyncio.sleep(0)
    chunks = [chunk_reply(number, "x")._replace(request_id="long", characters=_MIB) for number in range(50)]
    deliver(requests, *chunks, completed_reply(request_id="long"))
    [opened] = [opened for (request_id, _), opened in requests._open.items() if request_id == "long"]
    assert (opened.arrivals.qsize(), opened.seen_event_ids, opened.fragments) == (1, set(), {})
    assert requests.dropped == 50 - 33 + 1
    with pytest.raises(AnswerTooLongError, match=f"{PEER} sent more than 33,554,432 characters in answer to one request"):
        await long
    deliver(requests, markdown_reply("here", request_id="short"), completed_reply(request_id="short"))
    assert texts(await short) == ["here"]
    assert requests.open_count == 0


async def test_a_peer_that_floods_us_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    requests = OpenRequests()
    with caplog.at_level(logging.WARNING):
        deliver(requests, *[markdown_reply("x") for _ in range(1000)], *[markdown_reply("x", sender=OTHER)] * 10)
        assert caplog.messages == []
        deliver(requests, *[markdown_reply("x") for _ in range(1000)])
    assert caplog.messages == [
        f"{PEER} sent more than 1000 events within a minute that answer no open request, or came twice; they are dropped"
    ]
    assert requests.dropped == 2010


# Batches


async def test_a_peer_reads_batches_if_one_of_its_batches_answers_an_open_request() -> None:
    requests = OpenRequests()
    requests.route(ReplyBatch((markdown_reply("of no request"),)))
    assert not requests.reads_batches(PEER)

    def answer() -> None:
        requests.route(ReplyBatch((markdown_reply("forged", sender=OTHER), completed_reply(sender=OTHER))))
        requests.route(markdown_reply("alone"))
        assert not requests.reads_batches(PEER)
        requests.route(ReplyBatch((markdown_reply("together"), completed_reply())))

    events = [event async for event in requests.events(PEER, "r", 5, answer)]
    assert texts(events) == ["alone", "together"]
    assert [requests.reads_batches(jid) for jid in (PEER, f"{PEER}/agent", PEER.upper(), OTHER)] == [True, True, True, False]
