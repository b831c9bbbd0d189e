"""A room that refuses what the agent says: without voice, after a kick, or for another reason."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.runtime import Metrics, OutboundMessage
from spade_coreason.runtime.observability.metrics import DAY_S
from spade_coreason.storage import count_stored
from spade_coreason.xmpp.muc.membership import BounceDecision, RoomState, decide_after_bounce
from spade_coreason.xmpp.muc.messages import RoomMessages
from spade_coreason.xmpp.muc.rooms import Rooms
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.xmpp.muc.test_rooms import Person, new_room, room_state, wait_until_joined

MODERATED = {"muc__roomconfig_moderatedroom": "1", "members_by_default": "0"}


async def count_pending(agent: OnlineAgent) -> int:
    return len(await agent.repository.inbox.load_pending())


async def set_role(owner: Person, nick: str, role: str) -> None:
    await owner.owner_query(f"<item nick='{nick}' role='{role}'/>", "admin")


def warnings_of(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if part in message]


@asynccontextmanager
async def run_in_room(
    agent: Any, server: XmppServer, tmp_path: Path, **fields: str
) -> AsyncIterator[tuple[Person, OnlineAgent]]:
    """Run an agent as Echo in a room with these fields of its form. Yield the owner of the room, and the agent."""
    room = new_room()
    async with StockClient(*await server.account(), server) as client:
        owner = await Person(client, room, "Owner").enter(**fields)
        async with run_agent(agent, server, tmp_path, rooms=[RoomConfig(room, "Echo")]) as online:
            await owner.presence("Echo", "available")
            yield owner, online


class Waiting(FunctionAgent):
    """Answers after `release`."""

    def __init__(self) -> None:
        super().__init__(self.answer, "waiting")
        self.release = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def answer(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.is_asked.set()
        await self.release.wait()
        await response.markdown(request.payload["query"])


async def test_a_visitor_of_a_moderated_room_answers_nobody_until_it_has_voice(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo()
    async with run_in_room(echo, real_server, tmp_path, **MODERATED) as (owner, agent):
        await set_role(owner, "Echo", "visitor")  # ejabberd makes everybody a participant
        await eventually(lambda: room_state(agent, owner.room) == "without voice")
        for text in ("Echo: one", "Echo: two"):
            owner.say(text)
        await eventually(lambda: agent.host.room_messages.dropped["no voice in the room"] == 2)
        assert await owner.receive_until("end") == []
        assert (echo.requests, await agent.repository.list_conversations(), await count_pending(agent)) == ([], [], 0)
        status = agent.host.status(await count_stored(agent.repository.database))
        assert (status.rooms, status.recent.answers, status.in_flight) == ({owner.room: "without voice"}, 0, 0)
        assert status.dropped["no voice in the room"] == 2
        [warning] = warnings_of(caplog, owner.room)
        assert warning.endswith("a moderator can grant voice to Echo")
        owner.whisper("Echo", "in private")
        assert (await owner.receive_from("Echo"))["body"] == "in private"

        await set_role(owner, "Echo", "participant")
        await eventually(lambda: room_state(agent, owner.room) == "joined")
        owner.say("Echo: three")
        assert (await owner.receive_from("Echo"))["body"] == "Owner: three"
        await eventually(lambda: agent.runner.metrics.snapshot().answers == 2)
        assert [request.payload["query"] for request in echo.requests] == ["in private", "three"]


async def test_an_answer_waits_for_voice_that_was_taken_while_it_was_made(real_server: XmppServer, tmp_path: Path) -> None:
    waiting = Waiting()
    async with run_in_room(waiting, real_server, tmp_path, **MODERATED) as (owner, agent):
        await set_role(owner, "Echo", "participant")
        await wait_until_joined(agent, owner.room)
        owner.say("Echo: tea?")
        await waiting.is_asked.wait()
        await set_role(owner, "Echo", "visitor")
        await eventually(lambda: room_state(agent, owner.room) == "without voice")
        waiting.release.set()
        await agent.runner.mailboxes.wait_until_idle()
        assert await owner.receive_until("end") == []
        assert await count_pending(agent) == 1
        assert agent.runner.metrics.snapshot().answers == 0

        await agent.restart()  # the answer is not lost with the process
        await eventually(lambda: room_state(agent, owner.room) in ("joined", "without voice"))
        await set_role(owner, "Echo", "participant")
        assert (await owner.receive_from("Echo"))["body"] == "Owner: tea?"
        await agent.settled()
        assert await count_pending(agent) == 0


async def test_a_room_that_refuses_without_warning_is_heard(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo()
    async with run_in_room(echo, prosody, tmp_path) as (owner, agent):
        await set_role(owner, "Echo", "visitor")  # in a room that is not moderated; Prosody refuses, ejabberd does not
        await owner.presence("Echo", "available")
        owner.say("Echo: one")
        await eventually(lambda: room_state(agent, owner.room) == "without voice")
        await agent.runner.mailboxes.wait_until_idle()
        owner.say("Echo: two")
        await eventually(lambda: agent.host.room_messages.dropped["no voice in the room"] == 1)
        assert (len(echo.requests), await count_pending(agent)) == (1, 1)
        assert agent.runner.metrics.snapshot().answers == 0
        assert len(warnings_of(caplog, "may not speak")) == 1
        await set_role(owner, "Echo", "participant")
        assert (await owner.receive_from("Echo"))["body"] == "Owner: one"
        await eventually(lambda: agent.runner.metrics.snapshot().answers == 1)
        await agent.settled()


@pytest.mark.parametrize("end", ["destroyed", "banned"])
async def test_an_answer_to_a_room_that_the_agent_has_lost_is_discarded_aloud(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    waiting = Waiting()
    async with run_in_room(waiting, real_server, tmp_path) as (owner, agent):
        owner.say("Echo: tea?")
        await waiting.is_asked.wait()
        if end == "destroyed":
            await owner.owner_query("<destroy/>")
        else:
            await owner.owner_query(f"<item jid='{agent.jid}' affiliation='outcast'/>", "admin")
        await eventually(lambda: room_state(agent, owner.room) == end)
        waiting.release.set()
        await agent.runner.mailboxes.wait_until_idle()
        [warning] = warnings_of(caplog, "not delivered")
        assert end in warning
        status = agent.host.status(await count_stored(agent.repository.database))
        assert (status.refused_by_rooms, status.recent.answers, status.recent.errors) == ({end: 1}, 0, 1)
        assert status.recent.last_error == f"an answer was not delivered in the room {owner.room}: {end}"
        await agent.settled()


async def test_an_answer_made_during_a_kick_is_said_after_it(real_server: XmppServer, tmp_path: Path) -> None:
    waiting = Waiting()
    async with run_in_room(waiting, real_server, tmp_path) as (owner, agent):
        agent.host.rooms.kick_pause_s = 0.05
        owner.say("Echo: tea?")
        await waiting.is_asked.wait()
        await set_role(owner, "Echo", "none")
        waiting.release.set()
        assert (await owner.receive_from("Echo"))["body"] == "Owner: tea?"
        await agent.settled()


async def test_a_refused_private_answer_is_no_secret(
    ejabberd: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting()
    async with run_in_room(waiting, ejabberd, tmp_path) as (owner, agent):
        owner.whisper("Echo", "tea?")
        await waiting.is_asked.wait()
        await owner.configure(allow_private_messages="0")
        waiting.release.set()
        await eventually(lambda: bool(agent.host.rooms.refused))
        [reason] = agent.host.rooms.refused
        assert reason.startswith("private message refused: ")
        assert warnings_of(caplog, reason)
        await agent.runner.mailboxes.wait_until_idle()
        assert agent.runner.metrics.snapshot().answers == 0
        await agent.settled()


@pytest.mark.parametrize(
    ("condition", "role", "is_temporary", "attempts", "decision"),
    [
        ("forbidden", "visitor", False, 1, BounceDecision.WAIT_FOR_VOICE),
        ("forbidden", "", False, 9, BounceDecision.WAIT_FOR_VOICE),
        ("forbidden", "participant", False, 1, BounceDecision.DISCARD),
        ("not-acceptable", "participant", False, 1, BounceDecision.JOIN_AGAIN),
        ("item-not-found", "participant", False, 2, BounceDecision.JOIN_AGAIN),
        ("gone", "participant", False, 3, BounceDecision.DISCARD),
        ("resource-constraint", "participant", True, 1, BounceDecision.SEND_LATER),
        ("policy-violation", "visitor", True, 2, BounceDecision.SEND_LATER),
        ("policy-violation", "participant", True, 3, BounceDecision.DISCARD),
        ("policy-violation", "participant", False, 1, BounceDecision.DISCARD),
        ("not-allowed", "participant", False, 1, BounceDecision.DISCARD),
        ("service-unavailable", "participant", False, 1, BounceDecision.DISCARD),
        ("no-such-condition", "participant", False, 1, BounceDecision.DISCARD),
    ],
)
def test_the_condition_of_a_bounce_decides_about_the_message(
    condition: str, role: str, is_temporary: bool, attempts: int, decision: BounceDecision
) -> None:
    assert decide_after_bounce(condition, role, is_temporary=is_temporary, attempts=attempts) is decision


ROOM = "tea@muc.example.org"
USER = "http://jabber.org/protocol/muc#user"


class RecordingConnection:
    """A connection that keeps what would be sent. Everything else comes from the test."""

    jid = "echo@example.org/agent"
    state = "online"

    def __init__(self) -> None:
        self.sent: list[OutboundMessage] = []

    def send(self, stanzas: Sequence[OutboundMessage]) -> bool:
        self.sent += stanzas
        return False

    def take_ids(self) -> list[str | None]:
        sent, self.sent = self.sent, []
        return [fromstring(stanza.content).get("id") for stanza in sent if stanza.content.startswith("<message")]


class JoinedRoom:
    """An agent in one room, and the stanzas of that room."""

    def __init__(self, role: str = "participant") -> None:
        self.connection = RecordingConnection()
        self.now_s = 0.0
        self.metrics = Metrics(lambda: self.now_s)
        configs = [RoomConfig(ROOM, "Echo")]
        self.rooms = Rooms(self.connection, configs, AccessPolicy("echo@example.org"), lambda owner: None, self.metrics)  # type: ignore[arg-type]
        self.messages = RoomMessages(self.connection, self.rooms, AccessPolicy("echo@example.org"))  # type: ignore[arg-type]
        self.messages.refusal_pause_s = 0
        self.closed: list[str] = []
        self.join(role)

    def join(self, role: str = "participant") -> None:
        item = f"<x xmlns='{USER}'><item role='{role}'/><status code='110'/></x>"
        self.rooms.handle_presence(fromstring(f"<presence xmlns='jabber:client' from='{ROOM}/Echo'>{item}</presence>"))

    def answer(self, message_id: str) -> None:
        """Send an answer of one message to the room."""
        content = f"<message to='{ROOM}' type='groupchat' id='{message_id}'><body>{message_id}</body></message>"
        message = OutboundMessage(ROOM, content, is_last=True, on_acknowledged=lambda: self.closed.append(message_id))
        self.metrics.record_reply(self.metrics.now())
        self.connection.send(self.rooms.route([message]))

    async def pause_is_over(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def receive(self, inner: str, kind: str, message_id: str, sender: str = ROOM) -> InboundRequest | None:
        text = f"<message xmlns='jabber:client' from='{sender}' type='{kind}' id='{message_id}'>{inner}</message>"
        return self.receive_stanza(fromstring(text))

    def receive_stanza(self, stanza: Element) -> InboundRequest | None:
        received = self.messages.read(stanza) if self.messages.is_from_room(stanza) else None
        assert received is None or isinstance(received, InboundRequest)
        return received

    def refuse(self, message_id: str, condition: str, kind: str = "cancel", sender: str = ROOM) -> None:
        error = f"<error type='{kind}'><{condition} xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
        self.receive(error, "error", message_id, sender)

    def reflect(self, message_id: str) -> None:
        self.receive(f"<body>{message_id}</body>", "groupchat", message_id, f"{ROOM}/Echo")


async def test_a_request_is_closed_when_the_room_has_passed_on_its_answer_not_when_the_server_has_it() -> None:
    room = JoinedRoom()
    room.answer("a1")
    room.connection.sent[-1].acknowledge()  # by the server, with XEP-0198
    assert room.closed == []
    room.reflect("a1")
    assert room.closed == ["a1"]
    assert room.metrics.snapshot().answers == 1
    room.answer("a2")
    room.receive("<body>a2</body><origin-id xmlns='urn:xmpp:sid:0' id='a2'/>", "groupchat", "another", f"{ROOM}/Echo")
    assert room.closed == ["a1", "a2"]


async def test_refused_answers_wait_for_voice_in_their_order_before_later_ones() -> None:
    room = JoinedRoom("visitor")
    for message_id in ("a1", "a2", "a3"):
        room.answer(message_id)
    assert room.connection.take_ids() == ["a1", "a2", "a3"]
    room.refuse("a1", "forbidden", "auth")
    assert room.rooms.states == {ROOM: RoomState.VOICELESS}
    room.answer("a4")
    room.refuse("a2", "forbidden", "auth")
    room.refuse("a3", "forbidden", "auth")
    assert (room.connection.take_ids(), room.closed, room.metrics.snapshot().answers) == ([], [], 0)
    room.join("participant")
    assert room.rooms.states == {ROOM: RoomState.JOINED}
    assert room.connection.take_ids() == ["a1", "a2", "a3", "a4"]
    for message_id in ("a1", "a2", "a3", "a4"):
        room.reflect(message_id)
    assert (room.closed, room.metrics.snapshot().answers) == (["a1", "a2", "a3", "a4"], 4)


@pytest.mark.parametrize("later_answers", [0, 1000])
async def test_an_answer_that_was_refused_counts_again_when_its_copy_can_come_no_more(later_answers: int) -> None:
    room = JoinedRoom()
    for made in range(0, 3 * (later_answers + 1), later_answers + 1):  # a room may refuse the same answer twice
        room.answer("a1")
        room.refuse("a1", "resource-constraint", "wait")
        assert room.metrics.snapshot().answers == made
        await room.pause_is_over()
        room.connection.sent[-1].acknowledge()
        for number in range(later_answers):
            room.answer(f"{made}.{number}")
        if not later_answers:
            await room.rooms.wait_until_reflected(0)  # as at a cut
        assert room.metrics.snapshot().answers == made + 1 + later_answers
    assert room.rooms.refused == {}


async def test_an_answer_that_a_room_takes_a_day_later_counts_from_then_on() -> None:
    room = JoinedRoom("visitor")
    room.answer("a1")
    room.refuse("a1", "forbidden", "auth")
    room.now_s += DAY_S - 1
    room.join("participant")
    room.reflect("a1")
    for later_s, answers in ((0, 1), (DAY_S / 2, 1), (DAY_S, 0)):
        room.now_s += later_s
        assert room.metrics.snapshot().answers == answers


async def test_a_room_with_too_many_messages_gets_an_answer_later_and_three_times_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = JoinedRoom()
    room.answer("a1")
    room.answer("a2")
    for _ in range(3):
        assert room.connection.take_ids()[:1] == ["a1"]
        room.refuse("a1", "resource-constraint", "wait")
        await room.pause_is_over()
    assert room.connection.take_ids() == []
    assert (room.closed, room.metrics.snapshot().errors) == (["a1"], 1)
    assert (room.rooms.refused, room.metrics.snapshot().answers) == ({"resource-constraint": 1}, 1)
    assert "not delivered in the room" in caplog.text
    room.reflect("a2")
    assert room.closed == ["a1", "a2"]


@pytest.mark.parametrize("condition", ["not-allowed", "service-unavailable", "policy-violation", "undefined-condition"])
async def test_an_answer_that_is_refused_for_good_is_counted_and_named_in_the_log(
    condition: str, caplog: pytest.LogCaptureFixture
) -> None:
    room = JoinedRoom()
    for number in range(5):
        room.answer(f"a{number}")
        room.refuse(f"a{number}", condition)
    assert room.rooms.refused == {condition: 5}
    assert (room.metrics.snapshot().answers, room.metrics.snapshot().errors) == (0, 5)
    assert len(warnings_of(caplog, condition)) == 1  # within a minute
    assert room.rooms.states == {ROOM: RoomState.JOINED}


async def test_an_occupant_cannot_refuse_what_the_agent_says_to_everybody() -> None:
    room = JoinedRoom()
    room.answer("a1")
    for condition in ("forbidden", "not-acceptable", "not-allowed"):
        room.refuse("a1", condition, sender=f"{ROOM}/Mallory")
        room.refuse("a1", condition, sender="mallory@example.org")
    assert (room.rooms.states, room.rooms.refused, room.closed) == ({ROOM: RoomState.JOINED}, {}, [])
    room.reflect("a1")
    assert room.closed == ["a1"]


async def test_an_error_for_an_unknown_message_changes_nothing_but_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    room = JoinedRoom()
    room.refuse("unknown", "not-allowed")
    room.refuse("", "forbidden")
    assert caplog.text.count("refuses a message") == 2
    assert room.rooms.states == {ROOM: RoomState.JOINED}


async def test_an_answer_that_a_stranger_may_not_send_is_said_after_the_agent_has_joined_again() -> None:
    room = JoinedRoom()
    room.answer("a1")
    assert room.connection.take_ids() == ["a1"]
    room.refuse("a1", "not-acceptable")
    assert room.rooms.states == {ROOM: RoomState.AWAY}
    assert (room.closed, room.rooms.refused) == ([], {})
    await room.rooms.close()


async def test_at_a_stop_what_the_server_has_counts_when_the_room_stays_silent() -> None:
    room = JoinedRoom()
    room.answer("a1")
    room.answer("a2")
    room.connection.sent[-2].acknowledge()
    await room.rooms.wait_until_reflected(0)
    assert room.closed == ["a1"]
