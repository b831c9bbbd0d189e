"""Asking other agents: which events count as an answer, and what an agent that asks gets of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    PeerError,
    PeerFailed,
    PeerRefused,
    Peers,
    PeerTimeout,
    PeerUnavailable,
    agent,
)
from spade_coreason.codec import Bounce, Incoming, Reply, decode
from spade_coreason.codec.cloud_events import EventWriter
from spade_coreason.current import CURRENT_REQUEST
from spade_coreason.exceptions import RequestTooLong
from spade_coreason.names import derived_thread
from spade_coreason.peers import OpenRequests, PeerEvent, collect

ME = "me@localhost"
PEER = "peer@localhost"
OTHER = "other@localhost"


def reply(
    kind: str,
    data: Mapping[str, Any] | None = None,
    *,
    sender: str = f"{PEER}/agent",
    request_id: str = "r",
    event_id: str = "",
) -> Reply:
    return Reply(sender, request_id, kind, event_id or str(uuid4()), data or {})


def said(content: str, block_id: str = "", **where: str) -> Reply:
    return reply("block.markdown", {"id": block_id or str(uuid4()), "content": content}, **where)


def chunk(seq: int, text: str, stream_id: str = "s") -> Reply:
    return reply("stream.chunk", {"stream_id": stream_id, "seq": seq, "chunk": text})


def completed(**where: str) -> Reply:
    return reply("request.completed", {"conversation_id": "c", "state": "active"}, **where)


async def answered(
    requests: OpenRequests, *arrivals: Reply | Bounce, jid: str = PEER, request_id: str = "r", timeout_s: float = 0.05
) -> list[PeerEvent]:
    """Asks, and as soon as the request has left `arrivals` come in."""
    return [event async for event in requests.events(jid, request_id, timeout_s, lambda: come_in(requests, *arrivals))]


def come_in(requests: OpenRequests, *arrivals: Reply | Bounce) -> None:
    for arrival in arrivals:
        if isinstance(arrival, Bounce):
            requests.bounce(arrival)
        else:
            requests.deliver(arrival)


def texts(events: list[PeerEvent]) -> list[str]:
    return [event.data["content"] for event in events if event.type == "block.markdown"]


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
@pytest.mark.parametrize("make", [said, completed, lambda *_, **where: reply("request.failed", **where)])
async def test_only_the_jid_that_was_asked_answers_an_open_request(where: dict[str, str], make: Any) -> None:
    requests = OpenRequests()
    forged = make("forged", **where) if make is said else make(**where)
    assert texts(await answered(requests, forged, said("true"), completed())) == ["true"]
    assert requests.dropped == 1


@pytest.mark.parametrize("asked", [PEER, f"{PEER}/agent", f"{PEER}/elsewhere", "Peer@LocalHost"])
async def test_every_resource_of_the_jid_that_was_asked_answers(asked: str) -> None:
    requests = OpenRequests()
    assert texts(await answered(requests, said("true"), completed(), jid=asked)) == ["true"]
    assert requests.dropped == 0


async def test_what_comes_after_the_end_is_dropped() -> None:
    requests = OpenRequests()
    await answered(requests, completed())
    come_in(requests, said("late"), completed(), Bounce(PEER, "r", "gone", ""))
    assert requests.dropped == 3
    assert texts(await answered(requests, said("new"), completed())) == ["new"]


@pytest.mark.parametrize("end", [reply("request.refused"), reply("request.failed"), Bounce(PEER, "r", "gone", ""), None])
async def test_what_comes_after_a_bad_end_is_dropped(end: Reply | Bounce | None) -> None:
    requests = OpenRequests()
    with pytest.raises(PeerError):
        await answered(requests, *([end] if end else []))
    come_in(requests, said("late"))
    assert requests.dropped == 1


async def test_an_event_that_comes_twice_is_given_once() -> None:
    requests = OpenRequests()
    twice = said("once", event_id="e")
    assert texts(await answered(requests, twice, twice, completed())) == ["once"]
    assert requests.dropped == 1


async def test_who_stops_listening_leaves_nothing_open() -> None:
    requests = OpenRequests()
    events = requests.events(PEER, "r", 1, lambda: come_in(requests, said("first"), said("second")))
    async for _ in events:
        break
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    come_in(requests, completed())
    assert requests.dropped == 1


async def test_who_is_cancelled_leaves_nothing_open() -> None:
    requests, asked = OpenRequests(), asyncio.Event()

    async def ask() -> None:
        async for _ in requests.events(PEER, "r", 10, asked.set):
            pass

    asking = asyncio.create_task(ask())
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    come_in(requests, completed())
    assert requests.dropped == 1


async def test_what_cannot_be_sent_leaves_nothing_open() -> None:
    requests = OpenRequests()

    def broken() -> None:
        raise OSError("no wire")

    with pytest.raises(OSError, match="no wire"):
        [event async for event in requests.events(PEER, "r", 1, broken)]
    come_in(requests, completed())
    assert requests.dropped == 1


# How a request ends


async def test_every_event_is_given_in_order_the_last_included() -> None:
    arrivals = [
        reply("stream.start", {"stream_id": "s"}),
        chunk(0, "a"),
        said("between"),
        chunk(1, "b"),
        reply("stream.end", {"stream_id": "s"}),
        reply("block.thought"),
        reply("of.a.later.version"),
        completed(),
    ]
    events = await answered(OpenRequests(), *arrivals)
    assert events == [PeerEvent(arrival.type, arrival.data) for arrival in arrivals]


@pytest.mark.parametrize(
    ("end", "error", "line"),
    [
        (reply("request.refused", {"message": "not now"}), PeerRefused, f"{PEER} refuses: not now"),
        (reply("request.refused"), PeerRefused, f"{PEER} refuses: no reason given"),
        (reply("request.failed", {"message": "it broke", "code": 500}), PeerFailed, f"{PEER} reports: it broke"),
        (Bounce(f"{PEER}/agent", "r", "service-unavailable", ""), PeerUnavailable, f"{PEER} is not there: service unavailable"),
        (Bounce(PEER, "r", "gone", "moved away"), PeerUnavailable, f"{PEER} is not there: moved away"),
        (said("and then nothing"), PeerTimeout, f"{PEER} did not finish its answer in 0.05 s"),
    ],
)
async def test_a_bad_end_is_an_error_that_names_the_peer(end: Reply | Bounce, error: type[PeerError], line: str) -> None:
    requests, given = OpenRequests(), []

    async def listen() -> None:
        async for event in requests.events(f"{PEER}/x", "r", 0.05, lambda: come_in(requests, said("before"), end)):
            given.append(event)

    with pytest.raises(error) as caught:
        await listen()
    assert (type(caught.value), str(caught.value), caught.value.jid) == (error, line, PEER)
    assert texts(given)[0] == "before"
    if isinstance(end, Reply):
        assert given[-1].type == end.type


@pytest.mark.parametrize(("code", "expected"), [(503, 503), ("503", None), (None, None)])
async def test_the_code_of_a_failure_is_a_number_or_none(code: Any, expected: int | None) -> None:
    with pytest.raises(PeerFailed) as caught:
        await answered(OpenRequests(), reply("request.failed", {"message": "x", "code": code}))
    assert caught.value.code == expected


async def test_events_do_not_prolong_the_time() -> None:
    requests, loop = OpenRequests(), asyncio.get_running_loop()

    def talk() -> None:
        if requests.dropped == 0:
            come_in(requests, chunk(0, "blah"))
            loop.call_later(0.005, talk)

    with pytest.raises(PeerTimeout):
        [event async for event in requests.events(PEER, "r", 0.03, talk)]


@pytest.mark.parametrize("bounce", [Bounce(OTHER, "r", "gone", ""), Bounce(PEER, "another", "gone", "")])
async def test_a_bounce_of_somebody_else_or_of_something_else_ends_nothing(bounce: Bounce) -> None:
    requests = OpenRequests()
    assert texts(await answered(requests, bounce, said("true"), completed())) == ["true"]
    assert requests.dropped == 1


async def test_one_request_may_be_asked_of_two_at_once() -> None:
    requests, sent = OpenRequests(), asyncio.Semaphore(0)
    peers = Peers(ME, requests, lambda stanzas: sent.release())
    request = AgentRequest(session_id=uuid4(), payload={})
    both = asyncio.gather(*(peers.ask(jid, request, 1) for jid in (PEER, OTHER)))
    for _ in (PEER, OTHER):
        await sent.acquire()
    for jid in (OTHER, PEER):
        where = {"sender": jid, "request_id": str(request.request_id)}
        come_in(requests, said(f"from {jid}", **where), completed(**where))
    assert [answer.text for answer in await both] == [f"from {PEER}", f"from {OTHER}"]
    assert requests.dropped == 0


async def test_a_request_that_has_no_answer_yet_is_not_asked_of_the_same_peer_again() -> None:
    requests = OpenRequests()
    first = requests.events(PEER, "r", 1, lambda: come_in(requests, said("first")))
    await anext(first)
    with pytest.raises(ValueError, match=f"the request r to {PEER} has no answer yet; ask it twice with create_child"):
        await answered(requests, jid=f"{PEER}/x")
    come_in(requests, completed())
    assert [event.type async for event in first] == ["request.completed"]
    assert texts(await answered(requests, said("again"), completed())) == ["again"]


# Fragments

LONG = 'He said "no\\", <and> é🎈\n' * 120


def stanzas(*events: tuple[str, dict[str, Any]], prefix: str = "answer") -> list[list[Reply]]:
    """What a peer sends for its events: one stanza each, or its fragments."""
    writer = EventWriter(to=ME, source=f"xmpp:{PEER}", thread=None, id_prefix=prefix, request_id="r", stanza_bytes=4096)
    return [[received(stanza) for stanza in writer.write(*event)] for event in events]


def received(stanza: str) -> Reply:
    message = fromstring(stanza.replace("<message ", f"<message xmlns='jabber:client' from='{PEER}/agent' ", 1))
    decoded = decode(message)
    assert isinstance(decoded, Reply)
    return decoded


def fragments(content: str = LONG, prefix: str = "answer") -> list[Reply]:
    (parts,) = stanzas(("block.markdown", {"id": prefix, "content": content}), prefix=prefix)
    assert len(parts) > 5
    assert {part.type for part in parts} == {"fragment"}
    return parts


@pytest.mark.parametrize("order", ["in order", "backwards", "shuffled", "twice", "each twice"])
async def test_fragments_make_one_event_in_whatever_order_they_come(order: str) -> None:
    parts = fragments()
    arrivals = {
        "in order": parts,
        "backwards": parts[::-1],
        "shuffled": random.Random(7).sample(parts, len(parts)),
        "twice": [*parts, *parts],
        "each twice": [part for part in parts for _ in range(2)],
    }[order]
    requests = OpenRequests()
    events = await answered(requests, *arrivals, completed())
    assert [event.type for event in events] == ["block.markdown", "request.completed"]
    assert texts(events) == [LONG]
    assert requests.dropped == len(arrivals) - len(parts)


@pytest.mark.parametrize("missing", [0, 3, -1])
async def test_of_an_event_with_a_missing_fragment_nothing_is_given(missing: int) -> None:
    parts = fragments()
    del parts[missing]
    assert texts(await answered(OpenRequests(), *parts, said("whole"), completed())) == ["whole"]


async def test_fragments_of_two_events_may_mix() -> None:
    one, two = fragments(prefix="one"), fragments(LONG.upper(), prefix="two")
    mixed = random.Random(7).sample([*one, *two], len(one) + len(two))
    assert sorted(texts(await answered(OpenRequests(), *mixed, completed()))) == sorted([LONG, LONG.upper()])


async def test_a_fragment_of_somebody_else_completes_nothing() -> None:
    parts = fragments()
    forged = parts.pop()._replace(sender=OTHER)
    requests = OpenRequests()
    assert texts(await answered(requests, *parts, forged, completed())) == []
    assert requests.dropped == 1


def fragment(text: str, **other: Any) -> dict[str, Any]:
    return {"event_id": "e", "index": 0, "count": 1, "chunk": text, **other}


EVENT = json.dumps({"type": "ai.coreason.block.markdown", "data": {"content": "x"}})


async def test_a_fragment_that_is_all_of_its_event_is_the_event() -> None:
    assert texts(await answered(OpenRequests(), reply("fragment", fragment(EVENT)), completed())) == ["x"]


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
    events = await answered(OpenRequests(), reply("fragment", data), said("whole"), completed())
    assert [event.type for event in events] == ["block.markdown", "request.completed"]
    assert texts(events) == ["whole"]


# The whole answer


async def test_an_answer_is_its_blocks_and_streams_in_the_order_in_which_they_began() -> None:
    events = await answered(
        OpenRequests(),
        said("first\n"),
        chunk(0, "sec", "one"),
        chunk(0, "thi", "two"),
        reply("block.data", {"id": "d", "data": {"a": 1}}),
        chunk(1, "rd", "two"),
        said("fourth"),
        chunk(1, "ond", "one"),
        reply("block.thought", {"content": "hm"}),
        completed(),
    )
    answer = collect(f"{PEER}/agent", events)
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
async def test_a_turn_that_was_broken_off_and_says_something_else_counts_from_where_it_differs(
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
    events = await answered(OpenRequests(), *(stanza for event in (*first, *again) for stanza in event))
    assert collect(PEER, events).text == whole + ("\n\nend" if last == "block.markdown" else "")


async def test_a_turn_that_runs_again_and_says_the_same_is_heard_once() -> None:
    script: list[tuple[str, dict[str, Any]]] = [
        ("block.markdown", {"id": "1", "content": "a"}),
        ("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "b"}),
        ("block.markdown", {"id": "2", "content": LONG}),
        ("request.completed", {}),
    ]
    first, again = stanzas(*script[:-1]), stanzas(*script)
    requests = OpenRequests()
    events = await answered(requests, *(stanza for event in (*first, *again) for stanza in event))
    assert [event.type for event in events] == [kind for kind, _ in script]
    assert requests.dropped == sum(len(event) for event in first)


async def test_another_thought_makes_no_other_answer() -> None:
    def run(thought: str) -> list[list[Reply]]:
        chunks = (("stream.chunk", {"stream_id": "s", "seq": n, "chunk": c}) for n, c in enumerate("abc"))
        return stanzas(("block.thought", {"id": "t", "content": thought}), *chunks, ("request.completed", {}))

    arrivals = [stanza for event in (*run("0.1 s")[:-1], *run("0.2 s")) for stanza in event]
    events = await answered(OpenRequests(), *arrivals)
    assert [event.data["chunk"] for event in events if event.type == "stream.chunk"] == ["a", "b", "c"]


# What leaves


def outgoing(stanza: str) -> Incoming:
    """A request as its addressee reads it."""
    decoded = decode(fromstring(stanza.replace("<message ", f"<message xmlns='jabber:client' from='{ME}/agent' ", 1)))
    assert isinstance(decoded, Incoming)
    return decoded


async def told(request: AgentRequest | Mapping[str, Any] | str, jid: str = PEER) -> tuple[str, Incoming]:
    sent: list[str] = []
    await Peers(ME, OpenRequests(), sent.extend).tell(jid, request)
    (stanza,) = sent
    return stanza, outgoing(stanza)


@pytest.mark.parametrize("how", ["ask", "tell"])
async def test_a_request_that_no_server_would_take_is_not_sent(how: str) -> None:
    sent: list[str] = []
    peers = Peers(ME, OpenRequests(), sent.extend, 10_000)
    with pytest.raises(
        RequestTooLong, match=r"was not asked: the request has 3\d,\d{3} bytes .* and 10,000 are the most"
    ) as error:
        await (peers.ask(PEER, '"' * 5_000 + "<" * 5_000) if how == "ask" else peers.tell(PEER, '"' * 5_000 + "<" * 5_000))
    assert error.value.jid == PEER
    assert sent == []
    await peers.tell(PEER, "x" * 9_000)
    assert len(sent[0].encode()) < 10_000


async def test_telling_waits_for_nothing_and_its_answer_is_dropped() -> None:
    sent: list[str] = []
    requests = OpenRequests()
    await Peers(ME, requests, sent.extend).tell(PEER, "x")
    request_id = str(outgoing(sent[0]).request_id)
    come_in(requests, said("y", request_id=request_id), completed(request_id=request_id), Bounce(PEER, request_id, "gone", ""))
    assert requests.dropped == 3


@pytest.mark.parametrize(
    ("request_", "payload"),
    [("a <text>", {"query": "a <text>"}), ({"a": [1, None]}, {"a": [1, None]}), ("", {"query": ""}), ({}, {})],
)
async def test_a_text_is_a_query_and_a_payload_is_itself(request_: Mapping[str, Any] | str, payload: Any) -> None:
    stanza, request = await told(request_, f"{PEER}/agent")
    assert request.payload == payload
    assert fromstring(stanza).get("to") == f"{PEER}/agent"
    assert request.parent_request_id is None
    assert request.root_request_id == request.request_id


async def test_a_request_leaves_with_its_id_and_without_its_session() -> None:
    asked = AgentRequest(session_id=uuid4(), payload={"a": 1}, metadata={"mine": "yes"})
    stanza, request = await told(asked)
    assert request.request_id == asked.request_id
    assert fromstring(stanza).get("id") == str(asked.request_id)
    assert request.metadata == {"mine": "yes"}
    assert str(asked.session_id) not in stanza


SESSIONS = [UUID(int=1), UUID(int=2)]


@pytest.mark.parametrize("resource", ["", "/agent", "/other"])
async def test_the_thread_is_of_the_calling_conversation_and_the_peer(resource: str) -> None:
    threads: dict[tuple[UUID, str], set[str | None]] = {}
    for session in SESSIONS:
        for jid in (PEER, OTHER):
            asked = AgentRequest(session_id=session, payload={})
            for request in (asked, asked.create_child({}), asked.create_child({}).create_child({})):
                threads.setdefault((session, jid), set()).add((await told(request, f"{jid}{resource}"))[1].thread)
    assert threads == {(session, jid): {derived_thread(session, jid)} for session, jid in threads}
    assert len(set.union(*threads.values())) == 4


async def test_a_peer_in_capital_letters_is_the_same_peer() -> None:
    asked = AgentRequest(session_id=SESSIONS[0], payload={})
    assert (await told(asked, "Peer@LocalHost"))[1].thread == derived_thread(SESSIONS[0], PEER)


@pytest.mark.parametrize("how", ["text", "payload", "child"])
async def test_what_is_asked_in_a_turn_is_a_child_of_its_request(how: str) -> None:
    root = AgentRequest(session_id=uuid4(), payload={})
    turn = root.create_child({})
    token = CURRENT_REQUEST.set(turn)
    try:
        ways: dict[str, AgentRequest | Mapping[str, Any] | str] = {
            "text": "x",
            "payload": {"query": "x"},
            "child": turn.create_child({"query": "x"}),
        }
        _, request = await told(ways[how])
    finally:
        CURRENT_REQUEST.reset(token)
    assert request.payload == {"query": "x"}
    assert (request.root_request_id, request.parent_request_id) == (root.request_id, turn.request_id)
    assert request.request_id not in (root.request_id, turn.request_id)
    assert request.thread == derived_thread(root.session_id, PEER)


# Between agents

ALICE, BOB = "alice@localhost", "bob@localhost"


@agent
async def witness(request: Any, session: Any, response: Any) -> None:
    past = [turn.input.get("query") for turn in await session.history()]
    await response.data({"request": request.dump(), "history": past, "who": session.identity.id})


@agent
async def relay(request: Any, session: Any, response: Any, peers: Peers, to: str = "witness@localhost") -> None:
    answer = await peers.ask(to, request.create_child(request.payload))
    await response.data({"own": request.dump(), "next": answer.data[0]["data"]})


async def test_lineage_goes_through_a_chain_of_agents() -> None:
    @agent
    async def first(request: Any, session: Any, response: Any, peers: Peers) -> None:
        answer = await peers.ask("relay@localhost", request.create_child({"query": "x"}))
        await response.data({"own": request.dump(), "next": answer.data[0]["data"]})

    async with AgentTester(first, peers={"relay@localhost": relay, "witness@localhost": witness}) as t:
        asked = AgentRequest(session_id=uuid4(), payload={})
        one = (await t.ask(asked)).data[0]["data"]
        two = one["next"]
        three = two["next"]["request"]
        chain = [one["own"], two["own"], three]
        assert {request["root_request_id"] for request in chain} == {str(asked.request_id)}
        assert [request.get("parent_request_id") for request in chain[1:]] == [request["request_id"] for request in chain[:2]]
        assert len({request["session_id"] for request in chain} | {str(asked.session_id)}) == 4


async def test_two_people_behind_one_agent_are_two_conversations_at_the_next_and_stay_so() -> None:
    async with AgentTester(relay, peers={"witness@localhost": witness}) as t:
        seen: dict[str, list[Any]] = {}
        for text, user, thread in (("a", ALICE, None), ("b", BOB, None), ("c", ALICE, "t"), ("d", ALICE, None)):
            answer = await t.ask(text, user=user, thread=thread)
            seen[text] = [answer.data[0]["data"]["next"][key] for key in ("request", "history", "who")]
        await t.restart()
        after = (await t.ask("e", user=ALICE)).data[0]["data"]["next"]
    conversations = {text: request["metadata"]["conversation_id"] for text, (request, _, _) in seen.items()}
    assert len({conversations[text] for text in "abc"}) == 3
    assert conversations["d"] == conversations["a"] == after["request"]["metadata"]["conversation_id"]
    assert [history for _, history, _ in seen.values()] == [[], [], [], ["a"]]
    assert after["history"] == ["a", "d"]
    assert {who for _, _, who in seen.values()} == {"agent@localhost"}


@agent
async def broken(request: Any, session: Any, response: Any) -> None:
    raise ZeroDivisionError("a secret")


@agent
async def complaining(request: Any, session: Any, response: Any) -> None:
    await response.error("out of paper", {"tray": 2})


@agent
async def asking(request: Any, session: Any, response: Any, peers: Peers) -> None:
    jid = request.payload["query"]
    try:
        await response.markdown(str(await peers.ask(jid, "x", 0.05 if "hanging" in jid else 10)))
    except PeerError as error:
        await response.data({"type": type(error).__name__, "jid": error.jid, "text": str(error)})


@pytest.mark.parametrize(
    ("jid", "error", "text"),
    [
        ("broken@localhost", PeerFailed, "broken@localhost reports: Something went wrong on my side (incident "),
        ("complaining@localhost", PeerFailed, "complaining@localhost reports: out of paper"),
        ("hanging@localhost", PeerTimeout, "hanging@localhost did not answer in 0.05 s"),
        ("nobody@localhost", PeerUnavailable, "nobody@localhost is not there: service unavailable"),
        ("elsewhere@closed.example", PeerRefused, "elsewhere@closed.example refuses: I may not talk with you."),
    ],
)
async def test_a_peer_without_a_good_answer_is_named_and_the_agent_goes_on(jid: str, error: type[PeerError], text: str) -> None:
    release = asyncio.Event()

    @agent
    async def hanging(request: Any, session: Any, response: Any) -> None:
        await release.wait()

    others = {
        "broken@localhost": broken,
        "complaining@localhost": complaining,
        "hanging@localhost": hanging,
        "elsewhere@closed.example": witness,
    }
    async with AgentTester(asking, peers=others) as t:
        raised = (await t.ask(jid)).data[0]["data"]
        assert (raised["type"], raised["jid"]) == (error.__name__, jid)
        assert raised["text"].startswith(text)
        assert "secret" not in raised["text"]
        assert (await t.ask("nobody@localhost")).data[0]["data"]["type"] == "PeerUnavailable"
        release.set()


async def test_many_questions_at_once_get_each_its_own_answer() -> None:
    @agent
    async def echo(request: Any, session: Any, response: Any) -> None:
        await response.markdown(request.payload["query"])

    @agent
    async def many(request: Any, session: Any, response: Any, peers: Peers) -> None:
        asked = [(jid, f"{jid} {n}") for n in range(20) for jid in ("one@localhost", "two@localhost")]
        answers = await asyncio.gather(*(peers.ask(jid, text) for jid, text in asked))
        await response.data({"equal": [answer.text for answer in answers] == [text for _, text in asked]})
        assert {answer.jid for answer in answers} == {"one@localhost", "two@localhost"}

    async with AgentTester(many, peers={"one@localhost": echo, "two@localhost": echo}) as t:
        assert (await t.ask("x")).data[0]["data"] == {"equal": True}


async def test_a_stream_is_passed_on_piece_by_piece() -> None:
    heard = asyncio.Event()

    @agent
    async def source(request: Any, session: Any, response: Any) -> None:
        stream = await response.create_stream("title")
        await stream.write("one ")
        await heard.wait()  # the next piece is not written before this one was passed on
        await stream.write("two")
        await stream.close()
        await response.markdown("three")

    @agent
    async def passing(request: Any, session: Any, response: Any, peers: Peers) -> None:
        stream = await response.create_stream()
        kinds = []
        async for event in peers.stream("source@localhost", "x"):
            kinds.append(event.type)
            if event.type == "stream.chunk":
                await stream.write(event.data["chunk"].upper())
        await response.data({"kinds": kinds})

    async with AgentTester(passing, peers={"source@localhost": source}) as t:
        seen = []
        async for event in t.stream("go"):
            seen.append(event)
            if event.type == "stream.chunk":
                heard.set()
    answer = collect("x", seen)
    assert answer.text == "ONE TWO"
    assert answer.data[0]["data"]["kinds"] == [
        "stream.start",
        "stream.chunk",
        "stream.chunk",
        "stream.end",
        "block.markdown",
        "request.completed",
    ]


async def test_telling_starts_a_turn_and_ends_nothing() -> None:
    done = asyncio.Event()

    @agent
    async def worker(request: Any, session: Any, response: Any) -> None:
        await response.markdown("nobody hears this")
        done.set()

    @agent
    async def boss(request: Any, session: Any, response: Any, peers: Peers) -> None:
        await peers.tell("worker@localhost", "work")
        await response.markdown("told")

    async with AgentTester(boss, peers={"worker@localhost": worker}) as t:
        assert (await t.ask("x")).text == "told"
        await t.settled()
        assert done.is_set()
        assert t.unread() == []


async def test_who_cancels_stops_the_work_of_every_agent_that_was_asked_for_it() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @agent
    async def last(request: AgentRequest, session: Any, response: Any) -> None:
        if request.payload["query"] == "go":
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        await response.markdown("done")

    def passing_on(to: str) -> Any:
        class Passing:
            manifest = AgentDefinition.simple("passing")

            def __init__(self, peers: Peers) -> None:
                self.peers = peers

            async def assist(self, request: AgentRequest, session: Any, response: Any) -> None:
                await response.markdown((await self.peers.ask(to, request.payload["query"])).text)

        return Passing

    async with AgentTester(passing_on(OTHER), peers={OTHER: passing_on(PEER), PEER: last}) as t:
        t.send_stanza("<message to='agent@localhost' type='chat' id='q1'><body>go</body></message>")
        await asyncio.wait_for(begun.wait(), 5)
        await t.say("/cancel")
        await asyncio.wait_for(stopped.wait(), 5)
        await t.settled()
        assert await t.say("and now?") == ["done"]
        kept = [await t.runners[jid].store.conversations() for jid in (OTHER, PEER)]
    assert [[row.turns for row in rows] for rows in kept] == [[1], [1]]  # of what was cancelled nothing
