"""In a room: replies, reactions, corrections and retractions by the room's ids, and commands in private."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.runtime.mailbox import QueuedRequest
from spade_coreason.xmpp.muc.room import RoomConfig
from tests.support.hosting import FunctionAgent, OnlineAgent, run_agent
from tests.support.records import query_of
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person, is_in, new_room

STANZA_ID = "{urn:xmpp:sid:0}stanza-id"
REPLY = "{urn:xmpp:reply:0}reply"


@pytest.fixture(scope="module", params=["prosody", "ejabberd"])
def archived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[XmppServer]:
    """A server whose rooms give every message an id, as those with an archive do."""
    directory = tmp_path_factory.mktemp(f"{request.param}-rooms")
    if request.param == "prosody":
        require("Prosody", prosody_server.installed())
        server = prosody_server.prosody(directory, archive=True)
    else:
        require("ejabberd", ejabberd_server.installed())
        server = ejabberd_server.ejabberd(directory, archive=True)
    with server:
        yield server


class Table(FunctionAgent):
    """Answers with what was asked before on the same thread; "wait" waits. Keeps what was felt about it."""

    def __init__(self) -> None:
        super().__init__(self.answer, "table")
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.felt: list[tuple[str, ...]] = []

    async def answer(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.asked.append(query)
        if query == "wait":
            await self.may.wait()
        before = ", ".join(query_of(turn) for turn in await session.history(100))
        await response.markdown(f"{query} after {before}" if before else query)

    async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
        self.felt.append((interaction.input["query"], *reactions))


def id_in(message: Any, room: str) -> str:
    """The id that the room gave a message."""
    [ident] = [entry.get("id") for entry in message.xml.iter(STANZA_ID) if entry.get("by") == room]
    return str(ident)


async def enter(client: StockClient, room: str, nick: str) -> Person:
    """Joins; ejabberd's rooms have an archive, and so ids, where that is wished for."""
    person = Person(client, room, nick)
    return await person.enter(mam="1")


async def said_id(person: Person, text: str, inner: str = "") -> str:
    """Says something to the agent, and gives the id that the room gave it."""
    person.say(f"Table: {text}", inner)
    return id_in(await person.hears(person.nick), person.room)


def reply(to: str) -> str:
    return f"<reply xmlns='urn:xmpp:reply:0' id='{to}'/>"


def reactions(to: str, *emojis: str) -> str:
    felt = "".join(f"<reaction>{emoji}</reaction>" for emoji in emojis)
    return f"<reactions xmlns='urn:xmpp:reactions:0' id='{to}'>{felt}</reactions>"


def retraction(of: str) -> str:
    return f"<retract xmlns='urn:xmpp:message-retract:1' id='{of}'/>"


async def feedback_in(agent: OnlineAgent, room: str) -> list[Any]:
    [row] = await agent.store.list_conversations(owner=room)
    turns = [json.loads(text) for text in await agent.store.load_history(row.id, 100)]
    return [turn["meta"].get("feedback_of") for turn in turns if turn["meta"].get("feedback") is not None]


async def own(person: Person, text: str) -> Any:
    """What was said, as the room gave it back."""
    while (message := await person.hears(person.nick))["body"] != text:
        pass
    return message


def waiting_in(agent: OnlineAgent, room: str) -> list[str]:
    """The questions of a room that wait."""
    queued = [waiting for lane in agent.runner._mailboxes.of_sender(room) for waiting in lane.queue]
    return [waiting.incoming.payload["query"] for waiting in queued if isinstance(waiting, QueuedRequest)]


async def test_answers_and_replies_in_a_room_refer_by_its_ids(archived: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        StockClient(*await archived.account(), archived) as a,
        StockClient(*await archived.account(), archived) as b,
    ):
        alice, bob = await enter(a, room, "Alice"), await enter(b, room, "Bob")
        async with run_agent(Table(), archived, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await is_in(agent, room)
            asked = await said_id(alice, "green?", "<thread parent='drinks'>tea</thread>")
            answer = await alice.hears("Table")
            assert answer.xml.find("{jabber:client}thread").get("parent") == "drinks"
            referred = answer.xml.find(REPLY)
            assert (referred.get("id"), referred.get("to")) == (asked, f"{room}/Alice")
            assert answer["thread"] == "tea"
            bob.say("Table: elsewhere")
            assert (await bob.hears("Table"))["body"] == "Alice: green?"
            assert (await bob.hears("Table"))["body"] == "Bob: elsewhere"
            bob.say("> green?\nand black?", reply(id_in(answer, room)) + QUOTE)  # it need not be named in a reply to it
            goes_on = await bob.hears("Table")
            assert (goes_on["body"], goes_on["thread"]) == ("Bob: and black? after green?", "tea")


QUOTE = "<fallback xmlns='urn:xmpp:fallback:0' for='urn:xmpp:reply:0'><body start='0' end='9'/></fallback>"


async def test_everybody_in_a_room_may_react_to_an_answer_and_each_for_themselves(archived: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await archived.account(), archived) as a,
        StockClient(*await archived.account(), archived) as b,
        StockClient(*await archived.account(), archived) as m,
    ):
        alice, bob = await enter(a, room, "Alice"), await enter(b, room, "Bob")
        async with run_agent(table, archived, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await is_in(agent, room)
            asked = await said_id(alice, "green?")
            answer = id_in(await alice.hears("Table"), room)
            for who, emojis in ((alice, ("👍",)), (bob, ("👎", "🎉")), (alice, ())):
                who.client.send(None, room, type="groupchat", extra_xml=reactions(answer, *emojis))
                await eventually(lambda e=emojis: table.felt[-1:] == [("green?", *e)])  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            assert await feedback_in(agent, room) == [{"Alice": [], "Bob": ["👎", "🎉"]}]
            # To a question of somebody's, to nothing, and from outside: as if there were no such message.
            for target in (asked, "unknown", ""):
                b.send(None, room, type="groupchat", extra_xml=reactions(target, "😡"))
            m.send(None, agent.jid, extra_xml=reactions(answer, "😡"))
            assert await m.ask("hello", agent.jid) == "hello"
            await said_id(bob, "hello")
            assert (await bob.hears("Table"))["body"] == "Bob: hello after green?"
            assert len(table.felt) == 3


async def test_only_who_asked_takes_a_question_back_in_a_room_or_corrects_it(archived: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await archived.account(), archived) as a,
        StockClient(*await archived.account(), archived) as b,
    ):
        alice, bob = await enter(a, room, "Alice"), await enter(b, room, "Bob")
        async with run_agent(table, archived, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await is_in(agent, room)
            waiting = await said_id(alice, "wait")
            await eventually(lambda: table.asked == ["wait"])
            second = alice.say("Table: whta")
            alice.say("Table: never")
            never = id_in(await own(alice, "Table: never"), room)
            bob.say("Bob takes it back", retraction(waiting))
            bob.say("Table: mine", f"<replace xmlns='urn:xmpp:message-correct:0' id='{second}'/>")
            alice.say("gone", retraction(never))
            await eventually(lambda: waiting_in(agent, room)[-1:] == ["mine"])
            alice.say("Table: what", f"<replace xmlns='urn:xmpp:message-correct:0' id='{second}'/>")
            await eventually(lambda: waiting_in(agent, room) == ["mine", "what"])
            table.may.set()
            assert [(await alice.hears("Table"))["body"] for _ in range(3)] == [
                "Alice: wait",
                "Bob: mine after wait",
                "Alice: what after wait, mine",
            ]
            table.may.clear()
            again = await said_id(alice, "wait")
            await eventually(lambda: table.asked[-1] == "wait")
            alice.say("gone", retraction(again))
            await agent.runner.wait_until_idle()
            assert await bob.heard_until("end") != []
            assert table.asked == ["wait", "mine", "what", "wait"]


async def test_a_moderator_takes_a_question_back(archived: XmppServer, tmp_path: Path) -> None:
    """No server here has moderation (XEP-0425): the room's word is put in by hand, as it comes with that."""
    room, table = new_room(), Table()
    async with StockClient(*await archived.account(), archived) as a:
        alice = await enter(a, room, "Alice")
        async with run_agent(table, archived, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await is_in(agent, room)
            waiting = await said_id(alice, "wait")
            await eventually(lambda: table.asked == ["wait"])
            from xml.etree.ElementTree import fromstring

            moderated = (
                "<moderated xmlns='urn:xmpp:message-moderate:0'><retract xmlns='urn:xmpp:message-retract:0'/></moderated>"
            )
            fastened = f"<apply-to xmlns='urn:xmpp:fasten:0' id='{waiting}'>{moderated}</apply-to>"
            agent.host._on_message(
                fromstring(f"<message xmlns='jabber:client' from='{room}' type='groupchat'>{fastened}</message>")
            )
            await agent.runner.wait_until_idle()
            assert await alice.heard_until("end") == []


# In private


@pytest.mark.parametrize("is_shown", [True, False], ids=["who shows JIDs", "who hides them"])
async def test_commands_about_a_person_need_to_know_who_that_is(
    real_server: XmppServer, tmp_path: Path, is_shown: bool
) -> None:
    room = new_room()
    async with StockClient(*await real_server.account(), real_server) as a:
        alice = Person(a, room, "Alice")
        await alice.enter(muc__roomconfig_whois="anyone" if is_shown else "moderators")
        async with run_agent(Table(), real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await is_in(agent, room)
            if is_shown:
                assert await a.ask("from home", agent.jid) == "from home"
            for command, answer in {
                "hello": "hello after from home" if is_shown else "hello",
                "/status": "This conversation is active: 2" if is_shown else "This conversation is active: 1",
                "/history": "> from home" if is_shown else "This room does not show me who you are. Send /history",
                "/conversations": "active   no thread" if is_shown else "This room does not show me who you are.",
                "/memory": "Nothing." if is_shown else "This room does not show me who you are.",
                "/forget me yes": "Forgotten: " if is_shown else "This room does not show me who you are.",
                "/new": "Your next message begins a new conversation.",
                "/cancel": "There is nothing to stop.",
            }.items():
                alice.whisper("Table", command)
                assert answer in (await alice.hears("Table"))["body"]


async def test_in_private_a_question_is_taken_back_and_an_answer_liked(real_server: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await real_server.account(), real_server) as a,
        StockClient(*await real_server.account(), real_server) as b,
        run_agent(table, real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent,
    ):
        await is_in(agent, room)
        alice, bob = await Person(a, room, "Alice").enter(), await Person(b, room, "Bob").enter()
        alice.whisper("Table", "green?")
        answer = await alice.hears("Table")
        private = "<x xmlns='http://jabber.org/protocol/muc#user'/>"
        for client, emoji in ((b, "😡"), (a, "👍")):
            client.send(None, f"{room}/Table", extra_xml=reactions(answer["id"], emoji) + private)
            bob.whisper("Table", "hello")
            await bob.hears("Table")
        await eventually(lambda: table.felt == [("green?", "👍")])
        asked = alice.whisper("Table", "wait")
        await eventually(lambda: table.asked[-1] == "wait")
        b.send("x", f"{room}/Table", extra_xml=retraction(asked) + private)
        bob.whisper("Table", "hello")
        await bob.hears("Table")
        assert agent.runner.turns_in_flight == 1
        a.send("x", f"{room}/Table", extra_xml=retraction(asked) + private)
        await agent.runner.wait_until_idle()
        assert await alice.heard_until("end") == []


async def test_nobody_in_a_room_gets_a_receipt_or_sees_typing(real_server: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    asks = (
        "<request xmlns='urn:xmpp:receipts'/><markable xmlns='urn:xmpp:chat-markers:0'/>"
        "<active xmlns='http://jabber.org/protocol/chatstates'/>"
    )
    async with (
        StockClient(*await real_server.account(), real_server) as a,
        run_agent(table, real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent,
    ):
        await is_in(agent, room)
        alice = await Person(a, room, "Alice").enter()
        alice.say("Table: wait", asks)
        await eventually(lambda: table.asked == ["wait"])
        await asyncio.sleep(0.4)  # typing would be shown by now
        table.may.set()
        said = await a.message()
        while said["from"].resource != "Table" or not said["body"]:
            assert said["from"].resource != "Table", said
            said = await a.message()
        tags = {child.tag for child in said.xml}
        assert not any("receipts" in tag or "chatstates" in tag or "chat-markers" in tag for tag in tags)
