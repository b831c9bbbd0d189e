"""The context of a turn: its session, history and lineage, which no sender can forge."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4
from xml.sax.saxutils import escape

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    Interaction,
    MemoryConfig,
    MemoryStrategy,
    Peers,
    Response,
    ResponseHandler,
    Session,
    SessionHandle,
    agent,
)
from spade_coreason.contracts import CloudEvent
from spade_coreason.domain.identifiers import derive_session_id
from spade_coreason.domain.messages import ReplyEvent, RequestContext
from spade_coreason.exceptions import PeerFailedError, PeerTimeoutError
from spade_coreason.testing import Policy
from spade_coreason.xmpp.codec.decode import decode
from tests.support.errors import ExpectedErrors
from tests.support.records import query_of
from tests.support.transports import request_stanza

ALICE = "alice@localhost"
BOB = "bob@localhost"
CAROL = "carol@localhost"
AGENT = "agent@localhost"


@agent
async def store_variables(request: AgentRequest, session: Session, response: ResponseHandler) -> None:
    """Store the variables of `set` in the given scope, and reply with the variables of `get`."""
    for key, value in request.payload.get("set", {}).items():
        await session.store(key, value, scope=request.payload.get("scope"))
    await response.data({key: await session.get(key, "nothing") for key in request.payload.get("get", [])})
    if request.payload.get("raise"):
        raise RuntimeError("as told")


async def read_variable(t: AgentTester, thread: str | None = None, user: str = ALICE) -> Any:
    return (await t.ask({"get": ["v"]}, thread=thread, user=user)).data[0]["data"]["v"]


async def test_a_variable_of_the_conversation_hides_that_of_the_person() -> None:
    async with AgentTester(store_variables) as t:
        await t.ask({"set": {"v": 1}}, thread="one", user=ALICE)
        assert await read_variable(t, "one") == 1
        assert await read_variable(t, "two") == 1
        await t.ask({"set": {"v": 2}}, thread="two", user=ALICE)
        assert await read_variable(t, "one") == 1
        assert await read_variable(t, "two") == 2
        assert await read_variable(t, "three") == 2
        assert await read_variable(t, "one", BOB) == await read_variable(t, None, BOB) == "nothing"
        await t.restart()
        assert [await read_variable(t, thread) for thread in ("one", "two", "three", None)] == [1, 2, 2, 2]
        assert await read_variable(t, "one", BOB) == "nothing"


@pytest.mark.parametrize(("scope", "elsewhere"), [("conversation", "nothing"), ("person", 1), (None, 1)])
async def test_a_scope_may_be_named(scope: str | None, elsewhere: Any) -> None:
    async with AgentTester(store_variables) as t:
        await t.ask({"set": {"v": 1}, "scope": scope}, thread="one", user=ALICE)
        assert await read_variable(t, "one") == 1
        assert await read_variable(t, "two") == elsewhere


async def test_everybody_shares_the_variables_of_the_agent() -> None:
    async with AgentTester(store_variables) as t:
        await t.ask({"set": {"v": 1}}, thread="one", user=BOB)
        await t.ask({"set": {"v": "of all"}, "scope": "agent"}, user=ALICE)
        assert await read_variable(t, "new") == await read_variable(t, "new", CAROL) == "of all"
        assert await read_variable(t, "one", BOB) == 1
        await t.say("/forget me yes", user=ALICE)
        assert await read_variable(t, "new") == "of all"
        assert "of all" not in "".join(await t.say("/export", user=BOB))
        await t.restart()
        assert await read_variable(t, "new", CAROL) == "of all"


async def test_an_agent_knows_its_operators_and_nobody_can_forge_it() -> None:
    @agent
    async def checking(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(str(request.metadata.get("operator")))

    async with AgentTester(checking, policy=Policy(operators=frozenset({ALICE}))) as t:
        assert await t.say("Who am I?", user=ALICE) == ["True"]
        assert await t.say("Who am I?", user=BOB) == ["None"]
        forged = AgentRequest(session_id=uuid4(), payload={"query": "hi"}, metadata={"operator": True})
        assert (await t.ask(forged, user=BOB)).text == "None"
        assert (await t.ask(forged, user=ALICE)).text == "True"


async def test_a_variable_is_read_in_the_turn_that_stores_it() -> None:
    async with AgentTester(store_variables) as t:
        assert (await t.ask({"set": {"v": None}, "get": ["v"]})).data[0]["data"] == {"v": None}


async def test_any_json_value_comes_back_as_it_was() -> None:
    values = {"text": "é🎈\0", "list": [1, 2.5, None, True], "nested": {"a": {"b": []}}, "": 0, "big": 10**30}
    async with AgentTester(store_variables) as t:
        await t.ask({"set": {"v": values}})
        await t.restart()
        assert (await t.ask({"get": ["v"]})).data[0]["data"]["v"] == values


@pytest.mark.parametrize("wrong", [object(), {1, 2}, float("nan"), b"bytes", "\ud800", {"a": object()}])
async def test_a_value_that_is_no_json_is_an_error_that_names_the_key_and_changes_nothing(wrong: Any) -> None:
    @agent
    async def storing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await session.store("v", "before")
        with pytest.raises(ValueError, match=r'variable "v".*only JSON values can be stored'):
            await session.store("v", wrong)
        await response.markdown(await session.get("v"))

    async with AgentTester(storing) as t:
        assert (await t.ask("x")).text == "before"


async def test_a_key_that_is_no_text_and_an_unknown_scope_are_errors() -> None:
    @agent
    async def storing(request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        keys: tuple[Any, ...] = (1, "", None)
        for key in keys:
            with pytest.raises(ValueError, match="the key of a variable must be a text"):
                await session.store(key, 1)
        scope: Any = "world"
        with pytest.raises(ValueError, match='scope must be "conversation", "person" or "agent"'):
            await session.store("v", 1, scope=scope)

    async with AgentTester(storing) as t:
        await t.ask("x")


async def test_a_change_of_a_value_after_it_was_stored_is_not_stored() -> None:
    @agent
    async def changing(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        stored = await session.get("v", [])
        stored.append("not stored")
        await response.markdown(str(await session.get("v", [])))
        await session.store("v", given := ["stored"])
        given.append("too late")

    async with AgentTester(changing) as t:
        assert (await t.ask("x")).text == "[]"
        assert (await t.ask("x")).text == "['stored']"


async def test_two_conversations_of_one_person_share_the_variables_of_the_person() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "wait":
            await release.wait()
            await response.markdown(str(await session.get("v")))
        else:
            await session.store("v", request.payload["query"])

    async with AgentTester(slow) as t:
        await t.ask("first", thread="one")
        waiting = asyncio.create_task(t.ask("wait", thread="two"))
        await t.ask("second", thread="one")
        release.set()
        assert (await waiting).text == "second"


# History


@agent
async def page_history(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    turns = await session.history(*request.payload.get("page", []))
    asked = [turn.input["query"] if isinstance(turn.input, dict) else None for turn in turns]
    await response.data({"turns": asked, "answers": [turn.output["text"] for turn in turns]})
    await response.markdown(f"answer to {request.payload['query']}")


@pytest.mark.parametrize(
    "policy",
    [MemoryConfig(limit=5), MemoryConfig(limit=100), MemoryConfig(strategy=MemoryStrategy.ALL)],
    ids=["a window of 5", "a window of 100", "all"],
)
@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
async def test_history_pages_through_everything_whatever_the_window(policy: MemoryConfig, restart: bool) -> None:
    async with AgentTester(page_history, policy=Policy(memory=policy)) as t:
        for number in range(30):
            await t.ask({"query": number})
        if restart:
            await t.restart()
        asked = 30

        async def page(*page: int) -> list[Any]:
            nonlocal asked
            found = (await t.ask({"query": asked, "page": list(page)})).data[0]["data"]
            assert found["answers"] == [f"answer to {number}" for number in found["turns"]]
            asked += 1
            turns: list[Any] = found["turns"]
            return turns

        assert await page() == list(range(20, 30))
        assert await page(3) == [28, 29, 30]
        assert await page(3, 2) == [27, 28, 29]
        assert await page(5, 4) == [24, 25, 26, 27, 28]
        assert await page(1000) == list(range(34))
        assert await page(10, 30) == [0, 1, 2, 3, 4]
        assert await page(10, 100) == []
        assert await page(0) == []
        assert await page(-1) == []
        assert await page(5, -1) == []


async def test_a_turn_records_what_was_asked_answered_and_logged() -> None:
    @agent
    async def full(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if past := await session.history():
            (turn,) = past
            assert turn.input == {"query": "x"}
            assert turn.output["text"] == "block\n\nstreamed"
            assert [block["data"] for block in turn.output["data"]] == [{"a": 1}]
            assert [event["type"] for event in turn.events] == ["ai.coreason.log", "ai.coreason.audit"]
            assert turn.lineage is not None
            assert turn.lineage.root_request_id == turn.meta["request_id"]
            await response.markdown("as it was")
            return
        await response.markdown("block")
        stream = await response.create_stream()
        await stream.write("stream")
        await stream.write("ed")
        await stream.close()
        await response.data({"a": 1})
        await response.log("INFO", "a line", {"k": "v"})
        await response.audit("me", "read", "it", True)

    async with AgentTester(full) as t:
        await t.ask("x")
        await t.restart()
        assert (await t.ask("y")).text == "as it was"


async def test_recall_finds_the_matching_turns_best_first() -> None:
    @agent
    async def recalling(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.data({"found": await session.recall(request.payload["query"], 2, 0.5)})

    async with AgentTester(recalling) as t:
        for text in ("my plane leaves on friday", "the train is late", "my plane is green", "the plane leaves"):
            await t.ask(text)
        found = (await t.ask("plane leaves")).data[0]["data"]["found"]
        assert [text.split("\n")[0] for text in found] == ["the plane leaves", "my plane leaves on friday"]
        assert (await t.ask("elephants")).data[0]["data"]["found"] == []


# Who asks, and for whom


@agent
async def describe_session(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
    assert isinstance(session, SessionHandle)
    await response.data(
        {
            "request": request.dump(),
            "session": session.session_id,
            "identity": session.identity.dump(),
        }
    )


async def test_the_session_id_depends_on_agent_owner_and_conversation() -> None:
    async with AgentTester(describe_session) as t:
        seen = (await t.ask({"a": 1}, user=ALICE, thread="t")).data[0]["data"]
        assert seen["session"] == seen["request"]["session_id"] == str(derive_session_id(AGENT, ALICE, "t"))
        assert seen["identity"] == {"id": ALICE, "name": "alice", "role": "agent"}
        assert seen["request"]["payload"] == {"a": 1}
        metadata = {"conversation_id": "t", "sender": f"{ALICE}/test", "thread": "t", "channel": "program"}
        assert seen["request"]["metadata"] == metadata
        await t.restart()
        assert (await t.ask({"a": 1}, user=ALICE, thread="t")).data[0]["data"]["session"] == seen["session"]


async def test_a_person_is_a_user() -> None:
    @agent
    async def roles(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(f"{session.identity} {session.identity.role} {request.metadata['channel']}")

    async with AgentTester(roles) as t:
        assert await t.say("x", user=ALICE) == [f"alice ({ALICE}) user person"]


async def test_lineage_goes_from_agent_to_agent() -> None:
    @agent
    async def middle(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        mine = request.create_child({"query": "x"})
        answer = await peers.ask("who@localhost", mine)
        seen = answer.data[0]["data"]["request"]
        assert seen["request_id"] == str(mine.request_id)
        by_text = (await peers.ask("who@localhost", "y")).data[0]["data"]["request"]
        await response.data({"child": seen, "by_text": by_text, "own": request.dump()})

    async with AgentTester(middle, peers={"who@localhost": describe_session}) as t:
        asked = AgentRequest(session_id=uuid4(), payload={}, root_request_id=uuid4(), parent_request_id=uuid4())
        seen = (await t.ask(asked)).data[0]["data"]
        assert seen["own"]["request_id"] == str(asked.request_id)
        assert seen["own"]["parent_request_id"] == str(asked.parent_request_id)
        for request in (seen["own"], seen["child"], seen["by_text"]):
            assert request["root_request_id"] == str(asked.root_request_id)
        for request in (seen["child"], seen["by_text"]):
            assert request["parent_request_id"] == str(asked.request_id)
            assert request["session_id"] != seen["own"]["session_id"]


# What nobody can forge


def envelope(data: dict[str, Any], thread: str | None = None) -> str:
    event = {"specversion": "1.0", "type": "ai.coreason.request", "source": "xmpp:x", "id": str(uuid4()), "data": data}
    said = f"<thread>{thread}</thread>" if thread else ""
    text = escape(json.dumps(event))
    return f"<message to='{AGENT}' id='{uuid4()}'><json xmlns='urn:xmpp:json:0'>{text}</json>{said}</message>"


async def test_a_forged_session_and_reserved_metadata_are_overwritten() -> None:
    seen: list[AgentRequest] = []

    @agent
    async def witness(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        seen.append(request)
        await session.store("secret", request.metadata["sender"])

    async with AgentTester(witness) as t:
        await t.ask("x", user=ALICE)
        forged = {
            "payload": {"query": "x"},
            "session_id": str(seen[0].session_id),
            "metadata": {
                "conversation_id": seen[0].metadata["conversation_id"],
                "sender": ALICE,
                "redelivered": True,
                "attachments": ["/etc/passwd"],
                "channel": "person",
                "thread": "t",
                "kept": "this",
            },
        }
        t.send_stanza(envelope(forged), user=BOB)
        await t.settled()
        assert seen[1].session_id == derive_session_id(AGENT, BOB, f"{BOB}_{AGENT}") != seen[0].session_id
        expected = {"conversation_id": f"{BOB}_{AGENT}", "sender": f"{BOB}/test", "channel": "program", "kept": "this"}
        assert seen[1].metadata == expected


async def test_the_request_id_of_another_person_reveals_and_blocks_nothing() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(f"for {request.metadata['sender']}")

    async with AgentTester(slow) as t:
        asked = AgentRequest(session_id=uuid4(), payload={"query": "x"})
        answers = [asyncio.create_task(t.ask(asked, user=who)) for who in (ALICE, BOB)]
        await asyncio.sleep(0)
        release.set()
        assert [answer.text for answer in await asyncio.gather(*answers)] == [f"for {who}/test" for who in (ALICE, BOB)]
        # The id is used up for those two. For anybody else it is new.
        assert (await t.ask(asked, user=CAROL)).text == f"for {CAROL}/test"


async def test_the_lineage_of_another_person_gives_no_rights() -> None:
    @agent
    async def keeping(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        past = len(await session.history())
        await response.markdown(f"{past} {await session.get('v')}")
        await session.store("v", "a secret")

    async with AgentTester(keeping) as t:
        asked = AgentRequest(session_id=uuid4(), payload={})
        await t.ask(asked, user=ALICE)
        assert (await t.ask(asked.create_child({}), user=BOB)).text == "0 None"


async def test_a_broken_lineage_is_refused_in_one_line() -> None:
    async with AgentTester(describe_session) as t:
        # Our own values cannot be made so; other people's programs may.
        broken = AgentRequest(session_id=uuid4(), payload={}).model_copy(
            update={"root_request_id": None, "parent_request_id": uuid4()}
        )
        with pytest.raises(PeerFailedError, match="Broken Trace: Root ID missing while Parent ID is present"):
            await t.ask(broken)


async def test_a_reply_from_a_third_jid_is_ignored() -> None:
    asked: asyncio.Queue[UUID] = asyncio.Queue()
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        asked.put_nowait(request.request_id)
        await release.wait()
        await response.markdown("the true one")

    @agent
    async def asking(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        await response.markdown(str(await peers.ask("slow@localhost", "x")))

    def forged(request_id: UUID, kind: str, data: dict[str, Any]) -> str:
        event = {"type": f"ai.coreason.{kind}", "id": str(uuid4()), "requestid": str(request_id), "data": data}
        return f"<message to='{AGENT}'><json xmlns='urn:xmpp:json:0'>{escape(json.dumps(event))}</json></message>"

    async with AgentTester(asking, peers={"slow@localhost": slow}) as t:
        answer = asyncio.create_task(t.ask("x", user=ALICE))
        request_id = await asked.get()
        for kind, data in (
            ("block.markdown", {"content": "a false one"}),
            ("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "a false one"}),
            ("request.failed", {"message": "a false one", "code": 500}),
            ("request.completed", {"conversation_id": "x", "state": "active"}),
        ):
            t.send_stanza(forged(request_id, kind, data), user=BOB)
        bounce = "<service-unavailable xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/>"
        t.send_stanza(f"<message to='{AGENT}' type='error' id='{request_id}'><error>{bounce}</error></message>", user=BOB)
        release.set()
        assert (await answer).text == "the true one"


async def test_a_late_reply_is_dropped() -> None:
    release = asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "first":
            await release.wait()
        await response.markdown(f"to {request.payload['query']}")

    @agent
    async def asking(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        with pytest.raises(PeerTimeoutError):
            await peers.ask("slow@localhost", "first", 0.02)
        release.set()
        await response.markdown(str(await peers.ask("slow@localhost", "second")))

    async with AgentTester(asking, peers={"slow@localhost": slow}) as t:
        assert (await t.ask("x")).text == "to second"


# What cannot be stored or read


class NotJson:
    """An object that is no JSON."""


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("wrong", [datetime.now(UTC), {1, 2}, NotJson(), CIRCLE, float], ids=lambda value: type(value).__name__)
async def test_changes_of_the_payload_by_an_agent_harm_no_turn(wrong: Any) -> None:
    @agent
    async def careless(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        request.payload["mine"] = wrong
        await response.markdown(request.payload["query"])

    async with AgentTester(careless) as t:
        assert [await t.say(text) for text in ("one", "two")] == [["one"], ["two"]]
        await t.restart()
        await t.settled()
        assert t.unread() == []
        assert await t.say("three") == ["three"]
        [record] = await t.conversations()
        assert record.interaction_count == 3


@pytest.mark.parametrize(
    "asked", [{"query": "x", "none": None, "n": [1, 2.5, {"a": None}]}, {"parts": [{"text": "x"}]}], ids=["JSON", "parts"]
)
async def test_a_turn_reads_the_same_before_and_after_a_restart(asked: dict[str, Any]) -> None:
    seen: list[Interaction] = []

    @agent
    async def looks(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        seen.extend((await session.history(10))[:1])
        await response.emit(CloudEvent(type="a.b", source="s", data={"none": None}))
        await response.data({"d": [None, 1]})
        await response.markdown("y")

    async with AgentTester(looks) as t:
        await t.ask(asked, user=ALICE)
        await t.ask("again", user=ALICE)
        await t.restart()
        await t.ask("and again", user=ALICE)
    before, after = seen
    assert before == after
    assert after.dump()["input"] == asked
    assert after.output["text"] == "y"


async def test_an_unreadable_turn_is_left_out_of_the_history(
    caplog: pytest.LogCaptureFixture,
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors("a stored turn cannot be read")
    deep: Any = "deep"
    for _ in range(220):
        deep = [deep]

    @agent
    async def digs(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "dig":
            await response.data({"x": deep})
        await response.markdown(", ".join(query_of(turn) for turn in await session.history(10)))

    async with AgentTester(digs) as t:
        for text in ("one", "dig", "two"):
            await t.say(text)
        await t.restart()
        assert await t.say("three") == ["one, two"]
        assert "a stored turn cannot be read" in caplog.text


async def test_storing_after_the_turn_is_an_error_of_the_agent() -> None:
    problems: list[str] = []
    stored = asyncio.Event()

    @agent
    async def leaves_a_task(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        async def late() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            try:
                while True:
                    await session.store("late", 1)
                    await asyncio.sleep(0)
            except RuntimeError as error:
                problems.append(str(error))
            stored.set()

        if request.payload["query"] == "go":
            tasks.append(asyncio.create_task(late()))
        await response.markdown(str(await session.get("late")))

    tasks: list[asyncio.Task[None]] = []
    async with AgentTester(leaves_a_task) as t:
        await t.say("go")
        await stored.wait()
        assert problems == ["nothing may be stored after assist has returned"]
        seen = await t.say("and now?")
        await t.restart()
        assert await t.say("and now?") == seen  # nobody saw what was not kept


OTHER_AGENT = "other@localhost"


@agent
async def favourite(request: AgentRequest, session: Session, response: Response) -> None:
    """Remember the last city, as the first agent of the README does. "?" asks for it."""
    query = request.payload["query"]
    city = await session.get("city", "nothing") if query == "?" else query
    await session.store("city", city)
    await response.markdown(str(city))


def passing_on(to: str) -> Any:
    @agent
    async def passing(request: AgentRequest, session: SessionHandle, response: ResponseHandler, peers: Peers) -> None:
        await response.markdown((await peers.ask(to, request.payload["query"])).text)

    return passing


async def test_people_behind_one_agent_have_variables_of_their_own_at_the_next() -> None:
    async with AgentTester(passing_on(OTHER_AGENT), peers={OTHER_AGENT: favourite}) as t:
        assert await t.say("Berlin", user=ALICE) == ["Berlin"]
        assert await t.say("?", user=BOB) == ["nothing"]
        assert await t.say("?", user=ALICE, thread="another") == ["Berlin"]  # her variable, in a new conversation
        assert await t.say("?", user=ALICE, to=OTHER_AGENT) == ["Berlin"]  # it is hers, whichever way she asks
        await t.restart()
        assert await t.say("?", user=ALICE, thread="a third") == ["Berlin"]
        stored = [await t.runners[OTHER_AGENT].repository.load_variables("person", jid) for jid in (ALICE, BOB, t.jid)]
        assert stored == [{"city": '"Berlin"'}, {"city": '"nothing"'}, {}]


async def test_forget_me_deletes_what_an_agent_stored_for_a_person_whom_another_one_asked_for() -> None:
    async with AgentTester(passing_on(OTHER_AGENT), peers={OTHER_AGENT: favourite}) as t:
        await t.say("Berlin", user=ALICE)
        await t.say("/forget me yes", user=ALICE, to=OTHER_AGENT)
        assert await t.say("?", user=ALICE, to=OTHER_AGENT) == ["nothing"]
        assert await t.say("?", user=ALICE, thread="another") == ["nothing"]


async def test_people_behind_an_agent_that_is_not_trusted_have_no_variables_beyond_their_conversation() -> None:
    foreign = "agent@elsewhere.example"
    async with AgentTester(favourite, allow=("*",)) as t:
        for thread, query, expected in (("a", "Berlin", "Berlin"), ("b", "?", "nothing"), ("a", "?", "Berlin")):
            request = AgentRequest(session_id=uuid4(), payload={"query": query})
            context = RequestContext(hops=1, root_sender=ALICE)
            stanza = request_stanza(t.jid, request.dump(), source="x", thread=thread, stanza_id=str(uuid4()), context=context)
            t.send_stanza(stanza, user=foreign)
            await t.settled()
            batch = [decode(message.xml) for message in t.messages(foreign)][-2:]
            assert [event.data["content"] for event in batch if isinstance(event, ReplyEvent) and "content" in event.data] == [
                expected
            ]
        assert await t.runners[t.jid].repository.load_variables("person", ALICE) == {}
        assert await t.runners[t.jid].repository.load_variables("person", foreign) == {}


async def test_an_agent_that_asks_for_itself_has_variables_as_a_person_has() -> None:
    class Asking:
        manifest = AgentDefinition.simple("asking")

        def __init__(self, peers: Peers) -> None:
            self.peers = peers

        async def startup(self) -> None:
            self.task = asyncio.create_task(self.ask())

        async def ask(self) -> list[str]:
            return [(await self.peers.ask(OTHER_AGENT, query)).text for query in ("Berlin", "?")]

        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None: ...

    async with AgentTester(Asking, peers={OTHER_AGENT: favourite}) as t:
        assert await t.agent.task == ["Berlin", "Berlin"]  # type: ignore[attr-defined]
