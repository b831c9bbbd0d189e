"""In a room: replies, reactions, corrections and retractions by the room's ids, and commands in private."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.runtime.mailboxes.mailbox import QueuedRequest
from tests.support.hosting import FunctionAgent, OnlineAgent, run_agent
from tests.support.records import query_of
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import GetServer, kinds_ejabberd_in_release
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person, new_room, wait_until_joined

STANZA_ID = "{urn:xmpp:sid:0}stanza-id"
REPLY = "{urn:xmpp:reply:0}reply"


@pytest.fixture(params=kinds_ejabberd_in_release)
def archive_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server whose rooms give every message an id, as those with an archive do."""
    return get_server(request.param, archive=True)


class Table(FunctionAgent):
    """Answers with the earlier questions of the same thread; "wait" waits for `release`. Records the reactions."""

    def __init__(self) -> None:
        super().__init__(self.answer, "table")
        self.release = asyncio.Event()
        self.queries: list[str] = []
        self.feedback_calls: list[tuple[str, ...]] = []

    async def answer(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self.queries.append(query)
        if query in ("wait", "wait, now"):
            await self.release.wait()
        before = ", ".join(query_of(turn) for turn in await session.history(100))
        await response.markdown(f"{query} after {before}" if before else query)

    async def feedback(self, interaction: Any, reactions: tuple[str, ...]) -> None:
        self.feedback_calls.append((interaction.input["query"], *reactions))


def room_id_of(message: Any, room: str) -> str:
    """Return the id that the room gave a message."""
    [ident] = [entry.get("id") for entry in message.xml.iter(STANZA_ID) if entry.get("by") == room]
    return str(ident)


async def enter_archived(client: StockClient, room: str, nick: str) -> Person:
    """Join a room and turn its archive on, because ejabberd's rooms give ids only with one."""
    person = Person(client, room, nick)
    return await person.enter(mam="1")


async def say_and_get_id(person: Person, text: str, inner: str = "") -> str:
    """Send a message to the agent and return the id that the room gave it."""
    person.say(f"Table: {text}", inner)
    return room_id_of(await person.receive_from(person.nick), person.room)


def reply(message_id: str) -> str:
    return f"<reply xmlns='urn:xmpp:reply:0' id='{message_id}'/>"


def reactions(message_id: str, *emojis: str) -> str:
    elements = "".join(f"<reaction>{emoji}</reaction>" for emoji in emojis)
    return f"<reactions xmlns='urn:xmpp:reactions:0' id='{message_id}'>{elements}</reactions>"


def retraction(message_id: str) -> str:
    return f"<retract xmlns='urn:xmpp:message-retract:1' id='{message_id}'/>"


async def stored_feedback(agent: OnlineAgent, room: str) -> list[Any]:
    [row] = await agent.repository.list_conversations(owner=room)
    turns = [json.loads(text) for text in await agent.repository.turns.load_history(row.id, 100)]
    return [turn["meta"].get("feedback_of") for turn in turns if turn["meta"].get("feedback") is not None]


async def receive_own(person: Person, text: str) -> Any:
    """Return the person's own message with this text, as the room sent it back."""
    while (message := await person.receive_from(person.nick))["body"] != text:
        pass
    return message


def queued_questions(agent: OnlineAgent, room: str) -> list[str]:
    """Return the questions of a room that are queued."""
    queued = [request for mailbox in agent.runner.mailboxes.of_sender(room) for request in mailbox.queue]
    return [request.incoming.payload["query"] for request in queued if isinstance(request, QueuedRequest)]


async def test_answers_and_replies_in_a_room_refer_by_its_ids(archive_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        StockClient(*await archive_server.account(), archive_server) as a,
        StockClient(*await archive_server.account(), archive_server) as b,
    ):
        alice, bob = await enter_archived(a, room, "Alice"), await enter_archived(b, room, "Bob")
        async with run_agent(Table(), archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            asked = await say_and_get_id(alice, "green?", "<thread parent='drinks'>tea</thread>")
            answer = await alice.receive_from("Table")
            assert answer.xml.find("{jabber:client}thread").get("parent") == "drinks"
            reply_element = answer.xml.find(REPLY)
            assert (reply_element.get("id"), reply_element.get("to")) == (asked, f"{room}/Alice")
            assert answer["thread"] == "tea"
            bob.say("Table: elsewhere")
            assert (await bob.receive_from("Table"))["body"] == "Alice: green?"
            assert (await bob.receive_from("Table"))["body"] == "Bob: elsewhere"
            bob.say("> green?\nand black?", reply(room_id_of(answer, room)) + QUOTE)  # it need not be named in a reply to it
            continued = await bob.receive_from("Table")
            assert (continued["body"], continued["thread"]) == ("Bob: and black? after green?", "tea")


QUOTE = "<fallback xmlns='urn:xmpp:fallback:0' for='urn:xmpp:reply:0'><body start='0' end='9'/></fallback>"


async def test_everybody_in_a_room_may_react_to_an_answer_and_each_for_themselves(
    archive_server: XmppServer, tmp_path: Path
) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await archive_server.account(), archive_server) as a,
        StockClient(*await archive_server.account(), archive_server) as b,
        StockClient(*await archive_server.account(), archive_server) as m,
    ):
        alice, bob = await enter_archived(a, room, "Alice"), await enter_archived(b, room, "Bob")
        async with run_agent(table, archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            asked = await say_and_get_id(alice, "green?")
            answer = room_id_of(await alice.receive_from("Table"), room)
            for person, emojis in ((alice, ("👍",)), (bob, ("👎", "🎉")), (alice, ())):
                person.client.send(None, room, type="groupchat", extra_xml=reactions(answer, *emojis))
                await eventually(lambda e=emojis: table.feedback_calls[-1:] == [("green?", *e)])  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            assert await stored_feedback(agent, room) == [{"Alice": [], "Bob": ["👎", "🎉"]}]
            # To a question of somebody's, to nothing, and from outside: as if there were no such message.
            for target in (asked, "unknown", ""):
                b.send(None, room, type="groupchat", extra_xml=reactions(target, "😡"))
            m.send(None, agent.jid, extra_xml=reactions(answer, "😡"))
            assert await m.ask("hello", agent.jid) == "hello"
            await say_and_get_id(bob, "hello")
            assert (await bob.receive_from("Table"))["body"] == "Bob: hello after green?"
            assert len(table.feedback_calls) == 3


async def test_only_its_sender_retracts_or_corrects_a_question_in_a_room(archive_server: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await archive_server.account(), archive_server) as a,
        StockClient(*await archive_server.account(), archive_server) as b,
    ):
        alice, bob = await enter_archived(a, room, "Alice"), await enter_archived(b, room, "Bob")
        async with run_agent(table, archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            waiting = await say_and_get_id(alice, "wait")
            await eventually(lambda: table.queries == ["wait"])
            second = alice.say("Table: whta")
            alice.say("Table: never")
            never = room_id_of(await receive_own(alice, "Table: never"), room)
            bob.say("Bob takes it back", retraction(waiting))
            bob.say("Table: mine", f"<replace xmlns='urn:xmpp:message-correct:0' id='{second}'/>")
            alice.say("gone", retraction(never))
            await eventually(lambda: queued_questions(agent, room)[-1:] == ["mine"])
            alice.say("Table: what", f"<replace xmlns='urn:xmpp:message-correct:0' id='{second}'/>")
            await eventually(lambda: queued_questions(agent, room) == ["mine", "what"])
            table.release.set()
            assert [(await alice.receive_from("Table"))["body"] for _ in range(3)] == [
                "Alice: wait",
                "Bob: mine after wait",
                "Alice: what after wait, mine",
            ]
            table.release.clear()
            again = await say_and_get_id(alice, "wait")
            await eventually(lambda: table.queries[-1] == "wait")
            alice.say("gone", retraction(again))
            await agent.runner.mailboxes.wait_until_idle()
            assert await bob.receive_until("end") != []
            assert table.queries == ["wait", "mine", "what", "wait"]


def correction(message_id: str) -> str:
    return f"<replace xmlns='urn:xmpp:message-correct:0' id='{message_id}'/>"


async def test_in_a_room_only_the_latest_version_of_a_question_counts(archive_server: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    async with StockClient(*await archive_server.account(), archive_server) as a:
        alice = await enter_archived(a, room, "Alice")
        async with run_agent(table, archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            # In a burst, each correction names the first version.
            first = alice.say("Table: wait")
            for text in ("wait", "wait, now", "which"):
                alice.say(f"Table: {text}", correction(first))
            assert (await alice.receive_from("Table"))["body"] == "Alice: which"
            # It is answered. Of its further corrections, the latest counts.
            for text in ("wait", "wait, now", "wait"):
                alice.say(f"Table: {text}", correction(first))
            await eventually(lambda: table.queries[-1] == "wait")
            # A correction that is not for the agent any more takes the question back.
            alice.say("Bob: wait", correction(first))
            await agent.runner.mailboxes.wait_until_idle()
            # One that is for the agent, of a message that was not, asks. The room's id of that message names it too.
            other = alice.say("wait")
            room_id = room_id_of(await receive_own(alice, "wait"), room)
            alice.say("Table: wait", correction(other))
            await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
            alice.say("Table: green?", correction(other))
            assert (await alice.receive_from("Table"))["body"] == "Alice: green? after which"
            alice.say("Table: wait", correction(other))
            await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
            alice.say("gone", retraction(room_id))
            await agent.runner.mailboxes.wait_until_idle()
            alice.say("Table: the end")
            assert (await alice.receive_from("Table"))["body"] == "Alice: the end after which, green?"


@pytest.mark.parametrize("how", ["corrected", "no longer addressed", "retracted"])
async def test_after_a_restart_an_occupant_still_corrects_their_question(
    archive_server: XmppServer, tmp_path: Path, how: str
) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await archive_server.account(), archive_server) as a,
        StockClient(*await archive_server.account(), archive_server) as b,
    ):
        alice = await Person(a, room, "Alice").enter(mam="1", muc__roomconfig_whois="anyone")
        bob = await Person(b, room, "Bob").enter()
        async with run_agent(table, archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            first = alice.say("Table: waits")
            answered = room_id_of(await receive_own(alice, "Table: waits"), room)
            await alice.receive_from("Table")
            alice.say("Table: wait", correction(first))
            await eventually(lambda: table.queries == ["waits", "wait"])
            await agent.stop(0.0)
            await agent.start()
            await wait_until_joined(agent, room)
            await eventually(lambda: table.queries == ["waits", "wait", "wait"])
            bob.say("Bob takes it back", retraction(answered))
            bob.say("never mind", correction(first))
            bob.say("Table: mine", correction(first))
            await eventually(lambda: queued_questions(agent, room) == ["mine"])
            assert agent.runner.mailboxes.busy_count == 1
            text, reference = {
                "corrected": ("Table: better", correction(first)),
                "no longer addressed": ("better", correction(first)),
                "retracted": ("gone", retraction(answered)),
            }[how]
            alice.say(text, reference)
            answers = ["Bob: mine after waits"] + (["Alice: better after waits, mine"] if how == "corrected" else [])
            assert [(await alice.receive_from("Table"))["body"] for _ in answers] == answers
            await agent.runner.mailboxes.wait_until_idle()
            assert not [text for text in await alice.receive_until("end") if text.startswith("Table|")]


async def test_a_moderator_retracts_a_question(archive_server: XmppServer, tmp_path: Path) -> None:
    """No server here supports moderation (XEP-0425), so the room's message is built by hand."""
    room, table = new_room(), Table()
    async with StockClient(*await archive_server.account(), archive_server) as a:
        alice = await enter_archived(a, room, "Alice")
        async with run_agent(table, archive_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            waiting = await say_and_get_id(alice, "wait")
            await eventually(lambda: table.queries == ["wait"])
            from xml.etree.ElementTree import fromstring

            moderated = (
                "<moderated xmlns='urn:xmpp:message-moderate:0'><retract xmlns='urn:xmpp:message-retract:0'/></moderated>"
            )
            fastened = f"<apply-to xmlns='urn:xmpp:fasten:0' id='{waiting}'>{moderated}</apply-to>"
            agent.host.on_message(
                fromstring(f"<message xmlns='jabber:client' from='{room}' type='groupchat'>{fastened}</message>")
            )
            await agent.runner.mailboxes.wait_until_idle()
            assert await alice.receive_until("end") == []


# In private


@pytest.mark.parametrize("is_shown", [True, False], ids=["who shows JIDs", "who hides them"])
async def test_commands_about_a_person_need_their_jid(real_server: XmppServer, tmp_path: Path, is_shown: bool) -> None:
    room = new_room()
    async with StockClient(*await real_server.account(), real_server) as a:
        alice = Person(a, room, "Alice")
        await alice.enter(muc__roomconfig_whois="anyone" if is_shown else "moderators")
        async with run_agent(Table(), real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent:
            await wait_until_joined(agent, room)
            if is_shown:
                assert await a.ask("from home", agent.jid) == "from home"
            for command, answer in {
                "hello": "hello after from home" if is_shown else "hello",
                "/status": "This conversation is active: 2" if is_shown else "This conversation is active: 1",
                "/history": "> from home" if is_shown else "This room does not show me who you are. Send /history",
                "/conversations": "active   no thread" if is_shown else "This room does not show me who you are.",
                "/memory": "Nothing." if is_shown else "This room does not show me who you are.",
                "/forget me yes": "Deleted: " if is_shown else "This room does not show me who you are.",
                "/new": "Your next message starts a new conversation.",
                "/cancel": "There is nothing to stop.",
            }.items():
                alice.whisper("Table", command)
                assert answer in (await alice.receive_from("Table"))["body"]


async def test_in_private_a_question_is_retracted_and_an_answer_gets_a_reaction(
    real_server: XmppServer, tmp_path: Path
) -> None:
    room, table = new_room(), Table()
    async with (
        StockClient(*await real_server.account(), real_server) as a,
        StockClient(*await real_server.account(), real_server) as b,
        run_agent(table, real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice, bob = await Person(a, room, "Alice").enter(), await Person(b, room, "Bob").enter()
        alice.whisper("Table", "green?")
        answer = await alice.receive_from("Table")
        private = "<x xmlns='http://jabber.org/protocol/muc#user'/>"
        for client, emoji in ((b, "😡"), (a, "👍")):
            client.send(None, f"{room}/Table", extra_xml=reactions(answer["id"], emoji) + private)
            bob.whisper("Table", "hello")
            await bob.receive_from("Table")
        await eventually(lambda: table.feedback_calls == [("green?", "👍")])
        asked = alice.whisper("Table", "wait")
        await eventually(lambda: table.queries[-1] == "wait")
        b.send("x", f"{room}/Table", extra_xml=retraction(asked) + private)
        bob.whisper("Table", "hello")
        await bob.receive_from("Table")
        assert agent.runner.mailboxes.busy_count == 1
        a.send("x", f"{room}/Table", extra_xml=retraction(asked) + private)
        await agent.runner.mailboxes.wait_until_idle()
        assert await alice.receive_until("end") == []


async def test_nobody_in_a_room_gets_a_receipt_or_sees_typing(real_server: XmppServer, tmp_path: Path) -> None:
    room, table = new_room(), Table()
    extensions = (
        "<request xmlns='urn:xmpp:receipts'/><markable xmlns='urn:xmpp:chat-markers:0'/>"
        "<active xmlns='http://jabber.org/protocol/chatstates'/>"
    )
    async with (
        StockClient(*await real_server.account(), real_server) as a,
        run_agent(table, real_server, tmp_path, rooms=[RoomConfig(room, "Table")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(a, room, "Alice").enter()
        alice.say("Table: wait", extensions)
        await eventually(lambda: table.queries == ["wait"])
        await asyncio.sleep(0.4)  # typing would be shown by now
        table.release.set()
        message = await a.message()
        while message["from"].resource != "Table" or not message["body"]:
            assert message["from"].resource != "Table", message
            message = await a.message()
        tags = {child.tag for child in message.xml}
        assert not any("receipts" in tag or "chatstates" in tag or "chat-markers" in tag for tag in tags)
