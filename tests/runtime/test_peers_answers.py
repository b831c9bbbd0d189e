"""Replies of peers: assembled from fragments, blocks and streams, also of turns that ran twice."""

from __future__ import annotations

import json
import random
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.domain.messages import ReplyEvent
from spade_coreason.exceptions import AnswerTooLongError
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peer_answers import collect_answer
from spade_coreason.xmpp.codec.cloud_events import EventStanzaWriter
from spade_coreason.xmpp.codec.decode import decode
from tests.support.peer_replies import (
    ME,
    OTHER,
    PEER,
    chunk_reply,
    collect_events,
    completed_reply,
    markdown_reply,
    reply,
    texts,
)

# Fragments

LONG = 'He said "no\\", <and> é🎈\n' * 120


def stanzas(*events: tuple[str, dict[str, Any]], prefix: str = "answer") -> list[list[ReplyEvent]]:
    """Encode the events of a peer: each as one stanza, or as fragments."""
    writer = EventStanzaWriter(to=ME, source=f"xmpp:{PEER}", thread=None, id_prefix=prefix, request_id="r", stanza_bytes=4096)
    return [[decode_event(stanza) for stanza in writer.add(*event) + writer.flush()] for event in events]


def decode_event(stanza: str) -> ReplyEvent:
    message = fromstring(stanza.replace("<message ", f"<message xmlns='jabber:client' from='{PEER}/agent' ", 1))
    decoded = decode(message)
    assert isinstance(decoded, ReplyEvent)
    return decoded


def fragments(content: str = LONG, prefix: str = "answer") -> list[ReplyEvent]:
    (parts,) = stanzas(("block.markdown", {"id": prefix, "content": content}), prefix=prefix)
    assert len(parts) > 5
    assert {part.type for part in parts} == {"fragment"}
    return parts


@pytest.mark.parametrize("order", ["in order", "backwards", "shuffled", "twice", "each twice"])
async def test_fragments_make_one_event_in_any_order(order: str) -> None:
    parts = fragments()
    arrivals = {
        "in order": parts,
        "backwards": parts[::-1],
        "shuffled": random.Random(7).sample(parts, len(parts)),
        "twice": [*parts, *parts],
        "each twice": [part for part in parts for _ in range(2)],
    }[order]
    requests = OpenRequests()
    events = await collect_events(requests, *arrivals, completed_reply())
    assert [event.type for event in events] == ["block.markdown", "request.completed"]
    assert texts(events) == [LONG]
    assert requests.dropped == len(arrivals) - len(parts)


@pytest.mark.parametrize("missing", [0, 3, -1])
async def test_an_event_with_a_missing_fragment_is_dropped(missing: int) -> None:
    parts = fragments()
    del parts[missing]
    assert texts(await collect_events(OpenRequests(), *parts, markdown_reply("whole"), completed_reply())) == ["whole"]


async def test_fragments_of_two_events_may_be_mixed() -> None:
    one, two = fragments(prefix="one"), fragments(LONG.upper(), prefix="two")
    mixed = random.Random(7).sample([*one, *two], len(one) + len(two))
    assert sorted(texts(await collect_events(OpenRequests(), *mixed, completed_reply()))) == sorted([LONG, LONG.upper()])


async def test_a_fragment_of_another_sender_completes_no_event() -> None:
    parts = fragments()
    forged = parts.pop()._replace(sender=OTHER)
    requests = OpenRequests()
    assert texts(await collect_events(requests, *parts, forged, completed_reply())) == []
    assert requests.dropped == 1


def long_fragments(count: int) -> list[ReplyEvent]:
    """Return the fragments of one event, each of about a MiB."""
    event = json.dumps({"type": "ai.coreason.block.markdown", "data": {"content": "x" * (count * 2**20 - 100)}})
    chunks = [event[begin : begin + 2**20] for begin in range(0, len(event), 2**20)]
    return [
        reply("fragment", {"event_id": f"long {count}", "index": index, "count": len(chunks), "chunk": chunk})
        for index, chunk in enumerate(chunks)
    ]


async def test_fragments_that_never_end_fail_the_ask_and_those_that_end_do_not() -> None:
    twelve, endless = long_fragments(12), long_fragments(60)[:8]
    with pytest.raises(AnswerTooLongError, match=f"{PEER} sent more than 16,777,216 characters"):
        await collect_events(OpenRequests(), *twelve[:-1], *endless, twelve[-1], completed_reply())
    events = await collect_events(OpenRequests(), *endless[:4], *twelve, *fragments(), completed_reply())
    assert list(map(len, texts(events))) == [12 * 2**20 - 100, len(LONG)]


def fragment(text: str, **other: Any) -> dict[str, Any]:
    return {"event_id": "e", "index": 0, "count": 1, "chunk": text, **other}


EVENT = json.dumps({"type": "ai.coreason.block.markdown", "data": {"content": "x"}})


async def test_a_single_fragment_is_its_event() -> None:
    assert texts(await collect_events(OpenRequests(), reply("fragment", fragment(EVENT)), completed_reply())) == ["x"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        fragment(EVENT, event_id=7),
        fragment(EVENT, index="0"),
        fragment(EVENT, index=5),
        fragment(EVENT, index=-1),
        fragment(EVENT, count="1"),
        fragment(EVENT, count=0),
        fragment(EVENT, chunk=None),
        fragment("{"),
        fragment('{"type": "ai.coreason.block.markdown", "data": {"content": "x", "content": "y"}}'),
        fragment('{"type": "ai.coreason.block.markdown", "data": {"content": "x", "n": 1e999}}'),
        fragment("[]"),
        fragment("null"),
        fragment('{"type": 1, "data": {}}'),
        fragment('{"type": "ai.coreason.block.markdown", "data": "x"}'),
        fragment('{"type": "ai.coreason.block.markdown"}'),
        fragment(json.dumps({"type": "ai.coreason.fragment", "data": fragment(EVENT)})),
    ],
    ids=str,
)
async def test_a_fragment_that_cannot_be_read_harms_nothing(data: dict[str, Any]) -> None:
    events = await collect_events(OpenRequests(), reply("fragment", data), markdown_reply("whole"), completed_reply())
    assert [event.type for event in events] == ["block.markdown", "request.completed"]
    assert texts(events) == ["whole"]


# The whole answer


async def test_an_answer_is_its_blocks_and_streams_in_the_order_in_which_they_began() -> None:
    events = await collect_events(
        OpenRequests(),
        markdown_reply("first\n"),
        chunk_reply(0, "sec", "one"),
        chunk_reply(0, "thi", "two"),
        reply("block.data", {"id": "d", "data": {"a": 1}}),
        chunk_reply(1, "rd", "two"),
        markdown_reply("fourth"),
        chunk_reply(1, "ond", "one"),
        reply("block.thought", {"content": "hm"}),
        completed_reply(),
    )
    answer = collect_answer(f"{PEER}/agent", events)
    assert answer.text == str(answer) == "first\n\nsecond\n\nthird\n\nfourth"
    assert [block["data"] for block in answer.data] == [{"a": 1}]
    assert (answer.jid, answer.conversation_id, answer.events) == (PEER, "c", tuple(events))


@pytest.mark.parametrize("last", ["block.markdown", "stream.end", None])
@pytest.mark.parametrize(
    ("broken_off", "whole"),
    [
        ("abc", "abcd"),
        ("abc", "aXcd"),  # the c of the second run is another c than that of the first
        ("abc", "Xbcd"),
        ("abcdef", "aX"),
        ("", "ab"),
    ],
)
async def test_a_rerun_that_says_something_else_counts_from_the_first_difference(
    broken_off: str, whole: str, last: str | None
) -> None:
    def run(text: str) -> list[tuple[str, dict[str, Any]]]:
        start = ("stream.start", {"stream_id": "s", "title": None})
        return [start, *(("stream.chunk", {"stream_id": "s", "seq": n, "chunk": c}) for n, c in enumerate(text))]

    end: list[tuple[str, dict[str, Any]]] = []
    if last:
        end.append((last, {"id": "b", "stream_id": "s", "content": "end"}))
    end.append(("request.completed", {}))
    first, again = stanzas(*run(broken_off)), stanzas(*run(whole), *end)
    events = await collect_events(OpenRequests(), *(stanza for event in (*first, *again) for stanza in event))
    assert collect_answer(PEER, events).text == whole + ("\n\nend" if last == "block.markdown" else "")


async def test_a_rerun_that_says_the_same_is_counted_once() -> None:
    script: list[tuple[str, dict[str, Any]]] = [
        ("block.markdown", {"id": "1", "content": "a"}),
        ("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "b"}),
        ("block.markdown", {"id": "2", "content": LONG}),
        ("request.completed", {}),
    ]
    first, again = stanzas(*script[:-1]), stanzas(*script)
    requests = OpenRequests()
    events = await collect_events(requests, *(stanza for event in (*first, *again) for stanza in event))
    assert [event.type for event in events] == [kind for kind, _ in script]
    assert requests.dropped == sum(len(event) for event in first)


async def test_a_rerun_with_another_thought_gives_the_same_reply() -> None:
    def run(thought: str) -> list[list[ReplyEvent]]:
        chunks = (("stream.chunk", {"stream_id": "s", "seq": n, "chunk": c}) for n, c in enumerate("abc"))
        return stanzas(("block.thought", {"id": "t", "content": thought}), *chunks, ("request.completed", {}))

    arrivals = [stanza for event in (*run("0.1 s")[:-1], *run("0.2 s")) for stanza in event]
    events = await collect_events(OpenRequests(), *arrivals)
    assert [event.data["chunk"] for event in events if event.type == "stream.chunk"] == ["a", "b", "c"]


@pytest.mark.parametrize("impossible", [7, [], {"id": "c"}, None])
async def test_an_impossible_id_of_a_conversation_is_none(impossible: object) -> None:
    end = reply("request.completed", {"conversation_id": impossible, "state": "active"})
    assert collect_answer(PEER, await collect_events(OpenRequests(), end)).conversation_id is None
