"""Agents in chat rooms (XEP-0045): the messages that they answer, the owners of conversations, joining and leaving."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring
from xml.sax.saxutils import quoteattr

import pytest

from spade_coreason import AgentRequest, ResponseHandler, Session, SessionHandle, command
from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.runtime import OutboundMessage
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.muc.membership import RoomState
from tests.support.hosting import PROJECT, Echo, FunctionAgent, OnlineAgent, Tunnel, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

MUC = "http://jabber.org/protocol/muc"
MARKER = "{urn:spade-coreason:answer:0}answer"
MARK = "<answer xmlns='urn:spade-coreason:answer:0'/>"
_numbers = itertools.count(1)


def new_room() -> str:
    return f"room{next(_numbers)}-{secrets.token_hex(3)}@muc.localhost"


class Person:
    """A person in a room with a stock client."""

    def __init__(self, client: StockClient, room: str, nick: str) -> None:
        self.client, self.room, self.nick = client, room, nick

    async def enter(self, **settings: str) -> Person:
        """Join the room. A new room is unlocked with `settings` (Prosody locks it until then)."""
        wish = f"<x xmlns='{MUC}'><history maxstanzas='0'/></x>"
        self.client.send_xml(f"<presence xmlns='jabber:client' to={quoteattr(f'{self.room}/{self.nick}')}>{wish}</presence>")
        own = await self.presence(self.nick)
        assert own["type"] != "error", own
        statuses = [status.get("code") for status in own.xml.iter(f"{{{MUC}#user}}status")]
        if "201" in statuses:
            await self.configure(**settings)
        return self

    async def configure(self, **settings: str) -> None:
        fields = {"FORM_TYPE": f"{MUC}#roomconfig", **{name.replace("__", "#"): value for name, value in settings.items()}}
        form = "".join(f"<field var='{name}'><value>{value}</value></field>" for name, value in fields.items())
        await self.owner_query(f"<x xmlns='jabber:x:data' type='submit'>{form if settings else ''}</x>")

    async def owner_query(self, inner: str, kind: str = "owner") -> None:
        iq = self.client.xmpp.make_iq_set(ito=self.room)
        query = f"<query xmlns='{MUC}#{kind}'>{inner}</query>"
        iq.append(fromstring(query))
        await iq.send(timeout=TIMEOUT_S)

    async def presence(self, nick: str, kind: str | None = None) -> Any:
        """Return the next presence of an occupant."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                presence = await self.client.presences.get()
                here = presence["from"].bare == self.room and presence["from"].resource == nick
                if here and (kind is None or presence.xml.get("type", "available") == kind):
                    return presence

    def say(self, text: str, extra_xml: str = "") -> str:
        return self.client.send(text, self.room, type="groupchat", extra_xml=extra_xml)

    def whisper(self, nick: str, text: str) -> str:
        return self.client.send(text, f"{self.room}/{nick}", extra_xml=f"<x xmlns='{MUC}#user'/>")

    async def receive_from(self, nick: str) -> Any:
        """Return the next message of `nick`."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                message = await self.client.messages.get()
                if message["body"] and message["from"].resource == nick:
                    return message

    async def receive_until(self, marker: str) -> list[str]:
        """Send `marker`; return the messages of others until it comes back."""
        self.say(marker)
        texts: list[str] = []
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                message = await self.client.messages.get()
                if message["body"] == marker:
                    return texts
                if message["body"] and message["from"].resource != self.nick:
                    texts.append(f"{message['from'].resource}| {message['body']}")


async def wait_until_joined(agent: OnlineAgent, room: str) -> None:
    await eventually(lambda: agent.host.rooms.states.get(room) == "joined")


def room_state(agent: OnlineAgent, room: str) -> str:
    return agent.host.rooms.states.get(room, "unknown")


@on_both_servers
async def test_the_agent_answers_only_people_who_address_it(real_server: XmppServer, tmp_path: Path) -> None:
    room, echo = new_room(), Echo()
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)  # which made the room, and unlocked it for others
        alice = await Person(client, room, "Alice").enter()
        alice.say("hello everybody")
        alice.say("what does Echo: say?")
        alice.say("Echoes: none")
        for text in ("Echo: one", "ECHO, two", "@echo three"):
            alice.say(text)
        for said in ("one", "two", "three"):
            answer = await alice.receive_from("Echo")
            assert (answer["type"], answer["from"].bare, answer["body"]) == ("groupchat", room, f"Alice: {said}")
            assert answer.xml.find(MARKER) is not None
        alice.say("and?", f"<reply xmlns='urn:xmpp:reply:0' to='{room}/Echo' id='{answer['id']}'/>")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: and?"
        assert [request.payload["query"] for request in echo.requests] == ["one", "two", "three", "and?"]
        metadata = echo.requests[0].metadata
        assert (metadata["room"], metadata["nickname"], metadata["sender"]) == (room, "Alice", f"{room}/Alice")
        assert [row.owner for row in await agent.repository.list_conversations()] == [room]


async def test_a_mention_as_converse_js_sends_it_addresses_the_agent(real_server: XmppServer, tmp_path: Path) -> None:
    room, echo = new_room(), Echo()
    mention = "<reference xmlns='urn:xmpp:reference:0' begin='{}' end='{}' type='mention' uri='xmpp:{}'/>"
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Écho Bot")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        alice.say("Alice tea?", mention.format(0, 5, f"{room}/Alice"))
        alice.say("Écho Bot tea?", mention.format(0, 8, f"{room}/%C3%89cho%20Bot"))
        alice.say("What says Écho Bot?", mention.format(10, 18, agent.jid))
        alice.say("\u200fE\u0301cho Bot\u200e： now")
        for text in ("tea?", "What says Écho Bot?", "now"):
            assert (await alice.receive_from("Écho Bot"))["body"] == f"Alice: {text}"
        assert len(echo.requests) == 3


@on_both_servers
async def test_history_its_own_messages_and_subjects_are_no_requests(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()

    async def to_itself(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown(request.payload["query"])
        await response.markdown("Echo: again")

    async with StockClient(*await real_server.account(), real_server) as client:
        alice = await Person(client, room, "Alice").enter()
        await alice.receive_until("Echo: before you came")
        async with run_agent(FunctionAgent(to_itself), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent:
            await wait_until_joined(agent, room)
            client.send(None, room, type="groupchat", extra_xml="<subject>Echo: news</subject>")
            alice.say("Echo: now")
            assert (await alice.receive_from("Echo"))["body"] == "Alice: now"
            assert (await alice.receive_from("Echo"))["body"] == "Echo: again"
            assert await alice.receive_until("end") == []
            assert [row.turns for row in await agent.repository.list_conversations()] == [1]


async def test_the_agent_answers_commands_or_everything_if_configured(prosody: XmppServer, tmp_path: Path) -> None:
    room, commands, everything = new_room(), Echo(), Echo()
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(commands, prosody, tmp_path, rooms=[RoomConfig(room, "cmd", answers="command")]) as one,
        run_agent(everything, prosody, tmp_path, rooms=[RoomConfig(room, "all", answers="all")]) as two,
    ):
        await wait_until_joined(one, room)
        await wait_until_joined(two, room)
        alice = await Person(client, room, "Alice").enter()
        for text in ("hi", "/weather", "cmd: three"):
            alice.say(text)
        await eventually(lambda: len(everything.requests) == 3)
        await eventually(lambda: len(commands.requests) == 2)
        assert [request.payload["query"] for request in commands.requests] == ["/weather", "three"]


class Checklist(Echo):
    """Has a command that stores a variable of the conversation."""

    @command("begin", "begin a list")
    async def begin(self, session: Session, title: str) -> str:
        before = await session.get("title", "nothing")
        await session.store("title", title)
        return f"{session.identity.name} begins {title} after {before}"


async def test_in_a_room_an_agents_own_commands_run_and_no_others(real_server: XmppServer, tmp_path: Path) -> None:
    room, checklist = new_room(), Checklist()
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(checklist, real_server, tmp_path, rooms=[RoomConfig(room, "List", answers="command")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        for text, answer in (
            ("/begin a cake", "Alice begins a cake after nothing"),
            ("List: /begin bread", "Alice begins bread after a cake"),
            ("/begin", "title is missing: title. Write `/begin TITLE`."),
            ("//begin", "/begin"),
            ("/forget yes", "/forget yes"),
            ("/cancel", "/cancel"),
            ("/begin rolls", "Alice begins rolls after bread"),
        ):
            alice.say(text)
            assert (await alice.receive_from("List"))["body"] == f"Alice: {answer}"


async def test_two_agents_talk_to_each_other_up_to_a_limit(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    room_configs = [RoomConfig(room, nick, agent_turns=3) for nick in ("One", "Two")]

    async def go_on(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("go on")

    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(FunctionAgent(go_on), real_server, tmp_path, rooms=room_configs[:1]) as one,
        run_agent(FunctionAgent(go_on), real_server, tmp_path, rooms=room_configs[1:]) as two,
    ):
        await wait_until_joined(one, room)
        await wait_until_joined(two, room)
        alice = await Person(client, room, "Alice").enter()
        for word in ("that's enough", "really"):  # when a person has spoken, they may go on
            # One addresses Two; the answer to an agent addresses that agent, and so on.
            one.host.send(
                [OutboundMessage(room, f"<message to='{room}' type='groupchat'><body>Two: ping</body>{MARK}</message>")]
            )
            texts = [str((await alice.receive_from("One"))["body"])]
            for _ in range(3):
                texts.append(str((await alice.receive_from("Two"))["body"]))
                texts.append(str((await alice.receive_from("One"))["body"]))
            assert texts == ["Two: ping", *["One: go on", "Two: go on"] * 3]
            assert await alice.receive_until(word) == []


async def test_a_taken_nickname_makes_the_agent_choose_another(real_server: XmppServer, tmp_path: Path) -> None:
    room, echo = new_room(), Echo()
    async with StockClient(*await real_server.account(), real_server) as client:
        other = await Person(client, room, "Echo").enter()
        async with run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent:
            await wait_until_joined(agent, room)
            assert agent.host.rooms.by_jid[room].nick == "Echo-2"
            other.say("Echo: not you")
            other.say("Echo-2: you")
            assert (await other.receive_from("Echo-2"))["body"] == "Echo: you"
            assert len(echo.requests) == 1


async def test_files_in_a_room_reach_the_agent_that_they_are_for(real_server: XmppServer, tmp_path: Path) -> None:
    room, echo, link = new_room(), Echo(), "https://example.org/cat.png"
    file = f"<x xmlns='jabber:x:oob'><url>{link}</url></x>"
    marked = "<fallback xmlns='urn:xmpp:fallback:0' for='jabber:x:oob'><body start='11' end='38'/></fallback>"
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        client.send(None, room, type="groupchat", extra_xml=file)  # for everybody, so not for the agent
        alice.say(f"Echo: look {link}", file + marked)
        answer = await alice.receive_from("Echo")
        assert answer["body"] == "Alice: look"
        reply = f"<reply xmlns='urn:xmpp:reply:0' to='{room}/Echo' id='{answer['id']}'/>"
        client.send(None, room, type="groupchat", extra_xml=file + reply)
        assert (await alice.receive_from("Echo"))["body"] == f"Alice: {link}"
        for text, said in (("look", "look"), (None, link)):
            client.send(text, f"{room}/Echo", extra_xml=f"{file}<x xmlns='{MUC}#user'/>")
            answer = await alice.receive_from("Echo")
            assert (answer["type"], answer["body"]) == ("chat", said)
        assert [[one["url"] for one in request.payload["attachments"]] for request in echo.requests] == [[link]] * 4


@on_both_servers
async def test_a_private_message_is_seen_only_by_its_occupant(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()

    async def note(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        said = await session.get("said", [])
        await session.store("said", [*said, request.payload["query"]])
        await response.markdown(f"{session.identity.name} said {', '.join(said) or 'nothing'}")

    async with (
        StockClient(*await real_server.account(), real_server) as a,
        StockClient(*await real_server.account(), real_server) as b,
        run_agent(FunctionAgent(note), real_server, tmp_path, rooms=[RoomConfig(room, "Notes")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice, bob = await Person(a, room, "Alice").enter(), await Person(b, room, "Bob").enter()
        alice.whisper("Notes", "my secret")
        answer = await alice.receive_from("Notes")
        assert (answer["type"], answer["body"]) == ("chat", "Alice said nothing")
        bob.whisper("Notes", "mine")
        assert (await bob.receive_from("Notes"))["body"] == "Bob said nothing"
        bob.say("Notes: and here?")
        assert (await bob.receive_from("Notes"))["body"] == "Bob: Bob said nothing"
        alice.whisper("Notes", "again")
        assert (await alice.receive_from("Notes"))["body"] in ("Bob: Bob said nothing", "Alice said my secret")
        assert await bob.receive_until("end") == []
        owners = {row.owner for row in await agent.repository.list_conversations()}
        assert len(owners) == 3
        assert room in owners


@on_both_servers
async def test_the_next_occupant_with_a_nickname_is_another_person(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    release = asyncio.Event()

    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        turns = len(await session.history())
        if request.payload["query"] == "wait":
            await release.wait()
        await response.markdown(f"{request.payload['query']} after {turns}")

    async with (
        StockClient(*await real_server.account(), real_server) as a,
        StockClient(*await real_server.account(), real_server) as b,
        run_agent(FunctionAgent(slow), real_server, tmp_path, rooms=[RoomConfig(room, "Notes")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(a, room, "Alice").enter()
        alice.whisper("Notes", "hello")
        assert (await alice.receive_from("Notes"))["body"] == "hello after 0"
        alice.whisper("Notes", "wait")
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        watcher = await Person(b, room, "Bob").enter()
        a.send_xml(f"<presence xmlns='jabber:client' type='unavailable' to='{room}/Alice'/>")
        await watcher.presence("Alice", "unavailable")
        b.send_xml(f"<presence xmlns='jabber:client' to='{room}/Alice'/>")  # a new name for Bob
        await watcher.presence("Alice", "available")
        mallory = Person(b, room, "Alice")
        mallory.whisper("Notes", "who am I?")
        assert (await mallory.receive_from("Notes"))["body"] == "who am I? after 0"
        release.set()
        await agent.runner.mailboxes.wait_until_idle()
        assert await mallory.receive_until("end") == []


@on_both_servers
async def test_the_agent_rejoins_once_after_a_kick_and_never_after_a_ban(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()

    def set_kick_pause(host: Any) -> None:
        host.rooms.kick_pause_s = 0.05

    async with StockClient(*await real_server.account(), real_server) as client:
        owner = await Person(client, room, "Owner").enter()
        async with run_agent(Echo(), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")], prepare=set_kick_pause) as agent:
            await owner.presence("Echo", "available")
            await owner.owner_query("<item nick='Echo' role='none'/>", "admin")
            await owner.presence("Echo", "unavailable")
            await owner.presence("Echo", "available")
            await wait_until_joined(agent, room)
            await owner.owner_query("<item nick='Echo' role='none'/>", "admin")
            await eventually(lambda: room_state(agent, room) == "kicked")
            await asyncio.sleep(0.2)
            assert room_state(agent, room) == "kicked"
            assert agent.host.is_alive()

        async with run_agent(Echo(), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")], prepare=set_kick_pause) as agent:
            await wait_until_joined(agent, room)
            await owner.owner_query(f"<item jid='{agent.jid}' affiliation='outcast'/>", "admin")
            await eventually(lambda: room_state(agent, room) == "banned")
            agent.cut()
            await agent.restart()
            await eventually(lambda: room_state(agent, room) == "banned")


@on_both_servers
async def test_a_room_that_is_destroyed_or_closed_is_left_alone(real_server: XmppServer, tmp_path: Path) -> None:
    gone, members, secret = new_room(), new_room(), new_room()
    async with StockClient(*await real_server.account(), real_server) as client:
        await Person(client, members, "Owner").enter(muc__roomconfig_membersonly="1")
        protected = {"muc__roomconfig_passwordprotectedroom": "1", "muc__roomconfig_roomsecret": "sesame"}
        await Person(client, secret, "Owner").enter(**protected)
        owner = await Person(client, gone, "Owner").enter()
        room_configs = [RoomConfig(gone, "Echo"), RoomConfig(members, "Echo"), RoomConfig(secret, "Echo", "wrong")]
        async with run_agent(Echo(), real_server, tmp_path, rooms=room_configs) as agent:
            await wait_until_joined(agent, gone)
            await eventually(lambda: room_state(agent, members) == "members only")
            await eventually(lambda: room_state(agent, secret) == "wrong password")
            await owner.owner_query("<destroy/>")
            await eventually(lambda: room_state(agent, gone) == "destroyed")
        async with run_agent(Echo(), real_server, tmp_path, rooms=[RoomConfig(secret, "Echo", "sesame")]) as agent:
            await wait_until_joined(agent, secret)


async def test_the_agent_rejoins_after_a_cut_and_sends_pending_answers(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    release = asyncio.Event()

    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(request.payload["query"])

    async with (
        Tunnel(real_server) as tunnel,
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(FunctionAgent(slow), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")], port=tunnel.port) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        alice.say("Echo: still there?")
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        agent.host.connection.client.stream_management.sm_id = None  # no resumption: a new session
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not agent.host.is_alive())
        release.set()
        await agent.runner.mailboxes.wait_until_idle()
        tunnel.is_open = True
        await wait_until_joined(agent, room)
        assert (await alice.receive_from("Echo"))["body"] == "Alice: still there?"
        alice.say("Echo: and now?")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: and now?"
        await agent.settled()


async def test_the_agent_accepts_invitations_from_allowed_rooms(real_server: XmppServer, tmp_path: Path) -> None:
    direct, mediated, other = new_room(), new_room(), new_room()
    async with (
        StockClient(*await real_server.account("ida" + secrets.token_hex(3)), real_server) as client,
        run_agent(Echo(), real_server, tmp_path, name="echo" + secrets.token_hex(3), invited_by=[direct, mediated]) as agent,
    ):
        people = {room: await Person(client, room, "Ida").enter() for room in (direct, mediated, other)}
        for room in (other, direct):
            client.send(None, agent.jid, type="normal", extra_xml=f"<x xmlns='jabber:x:conference' jid='{room}'/>")
        invite = f"<x xmlns='{MUC}#user'><invite to='{agent.jid}'/></x>"
        client.send_xml(f"<message xmlns='jabber:client' to='{mediated}'>{invite}</message>")
        nick = agent.jid.partition("@")[0]
        for room in (direct, mediated):
            await wait_until_joined(agent, room)
            people[room].say(f"{nick}: hi")
            assert (await people[room].receive_from(nick))["body"] == "Ida: hi"
        assert room_state(agent, other) == "unknown"


async def test_rooms_of_invitations_are_joined_again_after_a_restart(real_server: XmppServer, tmp_path: Path) -> None:
    kept, kicked, gone, _ = rooms = [new_room() for _ in range(4)]

    def set_kick_pause(host: Any) -> None:
        host.rooms.kick_pause_s = 30

    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(
            Echo(), real_server, tmp_path, name="echo" + secrets.token_hex(3), invited_by=rooms, prepare=set_kick_pause
        ) as agent,
    ):
        people = {room: await Person(client, room, "Ida").enter() for room in rooms}
        for room in rooms:
            client.send(None, agent.jid, type="normal", extra_xml=f"<x xmlns='jabber:x:conference' jid='{room}'/>")
            await wait_until_joined(agent, room)
        for end in (agent.stop, agent.crash):
            await end()
            await agent.start()
            for room in rooms:
                await wait_until_joined(agent, room)
        nick = agent.jid.partition("@")[0]
        await people[kicked].owner_query(f"<item nick='{nick}' role='none'/>", "admin")
        await people[gone].owner_query("<destroy/>")
        await eventually(lambda: (room_state(agent, kicked), room_state(agent, gone)) == ("kicked", "unknown"))
        agent.invited_by = [kept, kicked, gone]
        await agent.restart()
        await wait_until_joined(agent, kept)
        agent.invited_by = rooms
        await agent.restart()
        await wait_until_joined(agent, kept)
        assert list(agent.host.rooms.states) == [kept]
        people[kept].say(f"{nick}: hi")
        assert (await people[kept].receive_from(nick))["body"] == "Ida: hi"


async def test_rooms_that_the_agent_has_left_do_not_count_for_the_limit_of_invitations(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rooms = [new_room() for _ in range(4)]

    def set_limit(host: Any) -> None:
        host.rooms.max_invited_rooms = 2

    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(Echo(), prosody, tmp_path, invited_by=rooms, prepare=set_limit) as agent,
    ):
        people = {room: await Person(client, room, "Ida").enter() for room in rooms}

        def invite(room: str) -> None:
            client.send(None, agent.jid, type="normal", extra_xml=f"<x xmlns='jabber:x:conference' jid='{room}'/>")

        for room in rooms[:2]:
            invite(room)
            await wait_until_joined(agent, room)
        invite(rooms[2])
        await eventually(
            lambda: f"ignored an invitation to {rooms[2]}: invitations have brought it into 2 rooms" in caplog.text
        )
        await people[rooms[0]].owner_query("<destroy/>")
        await eventually(lambda: rooms[0] not in agent.host.rooms.states)
        invite(rooms[3])
        await wait_until_joined(agent, rooms[3])


async def remove_silently(agent: OnlineAgent, room: str, witness: Person) -> None:
    """Make the room remove the agent without the agent being told."""
    agent_room = agent.host.rooms.by_jid[room]
    agent_room.state = RoomState.LEFT
    agent.host.connection.send([OutboundMessage("", f"<presence to='{room}/{agent_room.nick}' type='unavailable'/>")])
    await witness.presence(agent_room.nick, "unavailable")
    agent_room.state = RoomState.JOINED


async def test_a_room_that_removed_the_agent_silently_is_joined_again(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()

    def set_short_silence(host: Any) -> None:
        host.rooms.ping.silence_s = 0.2

    async with StockClient(*await real_server.account(), real_server) as client:
        alice = await Person(client, room, "Alice").enter()
        async with run_agent(
            Echo(), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")], prepare=set_short_silence
        ) as agent:
            await alice.presence("Echo", "available")
            await wait_until_joined(agent, room)
            await asyncio.sleep(0.5)  # it asks, and is told that it is there
            assert client.presences.empty()
            await remove_silently(agent, room, alice)
            await alice.presence("Echo", "available")
        await alice.presence("Echo", "unavailable")
        async with run_agent(Echo(), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent:
            await alice.presence("Echo", "available")
            await wait_until_joined(agent, room)
            await remove_silently(agent, room, alice)
            agent.cut()
            await alice.presence("Echo", "available")
            assert (agent.host.connection.resumption_count, agent.host.connection.session_count) == (1, 1)
            alice.say("Echo: still there?")
            assert (await alice.receive_from("Echo"))["body"] == "Alice: still there?"


async def test_the_limit_of_a_conversation_is_shared_by_the_room(prosody: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    policy = Policy(rules=Rules(max_interactions=1))
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(Echo(), prosody, tmp_path, rooms=[RoomConfig(room, "Echo")], policy=policy) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        for number in range(4):
            alice.say(f"Echo: {number}")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: 0"
        assert "That is all for now" in (await alice.receive_from("Echo"))["body"]
        assert await alice.receive_until("end") == []


async def test_in_a_room_that_shows_jids_only_admitted_people_are_answered(real_server: XmppServer, tmp_path: Path) -> None:
    room, echo = new_room(), Echo()
    async with (
        StockClient(*await real_server.account(), real_server) as a,
        StockClient(*await real_server.account(), real_server) as b,
    ):
        alice = await Person(a, room, "Alice").enter(muc__roomconfig_whois="anyone")
        bob = await Person(b, room, "Bob").enter()
        async with run_agent(echo, real_server, tmp_path, rooms=[RoomConfig(room, "Echo")], access=[a.jid]) as agent:
            await wait_until_joined(agent, room)
            bob.say("Echo: me?")
            bob.whisper("Echo", "me?")
            alice.say("Echo: and me?")
            assert (await alice.receive_from("Echo"))["body"] == "Alice: and me?"
            alice.whisper("Echo", "in private")
            assert (await alice.receive_from("Echo"))["body"] == "in private"
            assert [request.metadata["occupant"] for request in echo.requests] == [a.jid, a.jid]
            assert {row.owner for row in await agent.repository.list_conversations()} == {room, a.jid}


async def test_the_room_is_joined_again_after_an_outage_of_the_network(prosody: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        Tunnel(prosody) as tunnel,
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(Echo(), prosody, tmp_path, rooms=[RoomConfig(room, "Echo")], port=tunnel.port) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        for number in range(3):
            await agent.reconnected(tunnel.cut)
            await wait_until_joined(agent, room)
            alice.say(f"Echo: {number}")
            assert (await alice.receive_from("Echo"))["body"] == f"Alice: {number}"


async def test_a_private_answer_finds_its_occupant_after_a_restart(prosody: XmppServer, tmp_path: Path) -> None:
    room, release = new_room(), asyncio.Event()

    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(request.payload["query"])

    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(FunctionAgent(slow), prosody, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        alice.whisper("Echo", "still there?")
        alice.say("Echo: and you?")
        await eventually(lambda: agent.runner.mailboxes.busy_count == 2)
        await agent.settled()
        await agent.crash()
        release.set()
        await agent.start()
        answers = [await alice.receive_from("Echo"), await alice.receive_from("Echo")]
        assert {(m["type"], m["body"]) for m in answers} == {("chat", "still there?"), ("groupchat", "Alice: and you?")}


async def test_an_answer_in_progress_at_the_stop_is_still_sent_to_the_room(real_server: XmppServer, tmp_path: Path) -> None:
    room, release = new_room(), asyncio.Event()

    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await release.wait()
        await response.markdown(request.payload["query"])

    async with (
        StockClient(*await real_server.account(), real_server) as client,
        run_agent(FunctionAgent(slow), real_server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        alice.say("Echo: wait for it")
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        stopping = asyncio.create_task(agent.stop())
        await asyncio.sleep(0.2)
        release.set()
        assert (await alice.receive_from("Echo"))["body"] == "Alice: wait for it"
        await stopping
        await alice.presence("Echo", "unavailable")
        await agent.start()
        await wait_until_joined(agent, room)
        assert await alice.receive_until("end") == []


async def test_the_data_of_an_anonymous_occupant_are_deleted_when_they_leave(ejabberd: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        StockClient(*await ejabberd.account(), ejabberd) as a,
        StockClient(*await ejabberd.account(), ejabberd) as b,
    ):
        await Person(b, room, "Owner").enter()
        async with run_agent(Echo(), ejabberd, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent:
            await wait_until_joined(agent, room)
            alice = await Person(a, room, "Alice").enter()
            alice.whisper("Echo", "hi")
            assert (await alice.receive_from("Echo"))["body"] == "hi"
            [row] = await agent.repository.list_conversations()
            assert row.owner.startswith(f"{room}/visit-")
            a.send_xml(f"<presence xmlns='jabber:client' type='unavailable' to='{room}/Alice'/>")
            async with asyncio.timeout(TIMEOUT_S):
                while await agent.repository.list_people():  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)


async def test_a_platform_joins_the_rooms_of_its_configuration(prosody: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    jid, password = await prosody.account()
    file = tmp_path / "platform.yaml"
    agent = {"jid": jid, "agent": "agents.echo:EchoAgent", "password": password, "rooms": [{"jid": room, "nick": "Parrot"}]}
    file.write_text(json.dumps({"server": prosody.settings, "data_dir": str(tmp_path / "data"), "agents": [agent]}))
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        Platform(load_settings(file, PROJECT, {})) as platform,
    ):
        await eventually(lambda: platform.agents[jid].rooms.states[room] == "joined")
        alice = await Person(client, room, "Alice").enter()
        alice.say("Parrot, hello")
        assert (await alice.receive_from("Parrot"))["body"] == "Alice: hello"


async def test_a_room_that_keeps_removing_the_agent_is_not_joined_in_a_loop(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = new_room()
    caplog.set_level(logging.INFO)
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(Echo(), prosody, tmp_path, rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        gone = f"<presence xmlns='jabber:client' from='{room}/Echo' type='unavailable'><x xmlns='{MUC}#user'>"
        for attempt, again in enumerate(("1 s", "5 s", "30 s")):
            agent.host.rooms.handle_presence(fromstring(f"{gone}<status code='110'/><status code='333'/></x></presence>"))
            assert room_state(agent, room) == "away"
            lines = [record.getMessage() for record in caplog.records if room in record.getMessage()]
            assert len(lines) >= attempt + 1
            assert lines[-1].endswith(f"it retries in {again}")
            agent.host.rooms.join_all()  # as if that time had passed
            await wait_until_joined(agent, room)
        alice.say("Echo: still there?")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: still there?"
