"""The domain of callers of doors is nobody's on the wire: what claims to come from it is dropped, and nothing goes to it."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest
from slixmpp.exceptions import IqTimeout
from spade.message import Message

from spade_coreason import AgentRequest, Peers, Response, ResponseHandler, Session, SessionHandle
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.callers import is_caller
from spade_coreason.domain.channel_kinds import PERSON, PROGRAM, SPADE, ChannelKind
from spade_coreason.domain.messages import InboundRequest, MessageHeaders
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.exceptions import PeerError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.storage import count_stored
from spade_coreason.xmpp.client import AgentClient
from spade_coreason.xmpp.codec.archive import ArchivedMessage
from spade_coreason.xmpp.connection.caller_filter import FROM_CALLER, TO_CALLER, CallerFilter
from spade_coreason.xmpp.local_exchange import LocalExchange
from tests.support.callers import CALLERS, SHOP, USER, WEBSITE, admit_callers
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, container, endpoint_of, envelope, record_sent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.muc.test_rooms import MUC, Person, new_room, wait_until_joined

FORGED = f"{WEBSITE}/x"
SPELLINGS = [FORGED, USER, "callers.invalid", "website@CALLERS.Invalid./x", "a@shop.callers.invalid", "a@callers。invalid"]
STANZAS = {
    "text": "<message {ends} type='chat' id='1'><body>hello</body><request xmlns='urn:xmpp:receipts'/></message>",
    "request": "<message {ends} id='2'>" + envelope({"query": "hello"}) + "</message>",
    "malformed": "<message {ends} id='3'>" + container("no JSON") + "</message>",
    "encrypted": "<message {ends} id='4'><encrypted xmlns='eu.siacs.conversations.axolotl'/></message>",
    "reaction": "<message {ends} id='5'><reactions xmlns='urn:xmpp:reactions:0' id='1'/></message>",
    "bounce": "<message {ends} id='6' type='error'><error type='cancel'/></message>",
    "event": "<message {ends} type='headline'><event xmlns='http://jabber.org/protocol/pubsub#event'/></message>",
    "invitation": f"<message {{ends}}><x xmlns='{MUC}#user'><invite from='a@example.org'/></x></message>",
    "direct invitation": "<message {ends}><x xmlns='jabber:x:conference' jid='r@muc.localhost'/></message>",
    "presence": "<presence {ends}><c xmlns='http://jabber.org/protocol/caps' hash='sha-1' node='n' ver='v'/></presence>",
    "subscription": "<presence {ends} type='subscribe'/>",
    "probe": "<presence {ends} type='probe'/>",
    "ping": "<iq {ends} type='get' id='7'><ping xmlns='urn:xmpp:ping'/></iq>",
    "disco": "<iq {ends} type='get' id='8'><query xmlns='http://jabber.org/protocol/disco#info'/></iq>",
    "card": "<iq {ends} type='get' id='9'><vCard xmlns='vcard-temp'/></iq>",
    "command": "<iq {ends} type='set' id='10'><command xmlns='http://jabber.org/protocol/commands' node='status'/></iq>",
    "roster push": "<iq {ends} type='set' id='11'><query xmlns='jabber:iq:roster'><item jid='a@b'/></query></iq>",
    "unknown request": "<iq {ends} type='set' id='12'/>",
    "result": "<iq {ends} type='result' id='13'/>",
    "deep": f"<message {{ends}}>{'<a>' * 300}{'</a>' * 300}</message>",
}


def receive(agent: OnlineAgent, stanza: str) -> None:
    """Let the connection of an agent read a stanza, as if its server had sent it."""
    client = agent.host.connection.client
    handled = client.stream_management.config["handled"]
    client.data_received(stanza.encode())
    if client.stream_management.enabled_in:
        assert client.stream_management.config["handled"] == handled + 1
        client.stream_management.config["handled"] = handled  # the server did not send it, and must not be told of it


def record_received(agent: OnlineAgent) -> list[str]:
    """Record what the server sends to the agent from now on."""
    client: Any = agent.host.connection.client
    received: list[str] = []
    read = client.data_received

    def record(data: bytes) -> None:
        received.append(data.decode(errors="replace"))
        read(data)

    client.data_received = record
    return received


async def wait_for_server(agent: OnlineAgent) -> None:
    """Wait until the server has answered what was sent, so that all of it has left."""
    await agent.settled()
    await agent.host.connection.wait_until_acknowledged(TIMEOUT_S)


# What comes in


async def test_what_claims_to_come_from_a_caller_is_dropped_and_counted(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        run_agent(Echo(), real_server, tmp_path, access=["*"], invited_by=["*"], admission={"roster": True}) as agent,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        admit_callers(agent.gateway.access)
        sent = record_sent(agent)
        with caplog.at_level(logging.INFO, "spade_coreason"):
            for sender in SPELLINGS:
                for stanza in STANZAS.values():
                    receive(agent, stanza.replace("{ends}", f"from='{sender}' to='{agent.jid}/agent' xmlns='jabber:client'"))
            assert await alice.ask("still there?", agent.jid) == "still there?"
            await wait_for_server(agent)
        assert agent.host.connection.rejected == Counter({FROM_CALLER: len(SPELLINGS) * len(STANZAS)})
        status = agent.host.status(await count_stored(agent.repository.database))
        assert status.rejected == {FROM_CALLER: len(SPELLINGS) * len(STANZAS)}
        assert [record.levelname for record in caplog.records if "callers" in record.getMessage()] == ["WARNING"]
        assert [request.payload["query"] for request in agent.agent.requests] == ["still there?"]
        assert not [data for data in sent if "callers" in data.lower()]
        assert not [data for data in sent if "muc.localhost" in data]
        assert not [jid for jid in agent.host.client.client_roster if is_caller(jid)]
        assert not {"a@b", *CALLERS} & agent.gateway.access.contacts
        for caller in CALLERS:
            assert await agent.repository.list_conversations(caller) == []
        assert agent.host.connection.session_count == 1


async def test_a_client_of_the_embedded_server_cannot_write_as_a_caller(embedded: XmppServer, tmp_path: Path) -> None:
    """The embedded server lets its clients name any sender."""
    async with (
        run_agent(Echo(), embedded, tmp_path, access=["*"]) as agent,
        StockClient(*await embedded.account(), embedded) as mallory,
    ):
        admit_callers(agent.gateway.access)
        sent = record_sent(agent)
        for sender in (FORGED, "a@shop.callers.invalid"):
            mallory.send_xml(
                f"<message xmlns='jabber:client' from='{sender}' to='{agent.jid}' type='chat'><body>hello</body></message>"
            )
        await eventually(lambda: agent.host.connection.rejected[FROM_CALLER] == 2)
        assert await mallory.ask("and as myself?", agent.jid) == "and as myself?"
        assert [request.payload["query"] for request in agent.agent.requests] == ["and as myself?"]
        assert not [data for data in sent if "callers" in data]


async def test_an_archived_message_of_a_caller_is_dropped(prosody_archive: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), prosody_archive, tmp_path, access=["*"]) as agent:
        admit_callers(agent.gateway.access)
        await eventually(lambda: agent.host.archive.is_caught_up)
        text = f"<message xmlns='jabber:client' from='{FORGED}' to='{agent.jid}' type='chat' id='1'><body>hi</body></message>"
        await agent.host.archive._receive_page([ArchivedMessage("1", fromstring(text))])
        await agent.settled()
        assert agent.agent.requests == []
        assert agent.host.connection.rejected == {FROM_CALLER: 1}


async def test_an_occupant_whom_the_room_shows_as_a_caller_is_not_answered(prosody: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        StockClient(*await prosody.account(), prosody) as client,
        run_agent(Echo(), prosody, tmp_path, access=["*"], rooms=[RoomConfig(room, "Echo")]) as agent,
    ):
        admit_callers(agent.gateway.access)
        await wait_until_joined(agent, room)
        alice = await Person(client, room, "Alice").enter()
        sent = record_sent(agent)
        item = f"<x xmlns='{MUC}#user'><item jid='{FORGED}' role='participant' affiliation='none'/></x>"
        ends = f"xmlns='jabber:client' from='{room}/Mallory' to='{agent.jid}/agent'"
        receive(agent, f"<presence {ends}>{item}</presence>")
        receive(agent, f"<message {ends} type='groupchat' id='1'><body>Echo: one</body></message>")
        receive(agent, f"<message {ends} type='chat' id='2'><body>two</body><x xmlns='{MUC}#user'/></message>")
        receive(agent, f"<message {ends} type='groupchat' id='3'><reactions xmlns='urn:xmpp:reactions:0' id='1'/></message>")
        alice.say("Echo: three")
        assert (await alice.receive_from("Echo"))["body"] == "Alice: three"
        assert [request.payload["query"] for request in agent.agent.requests] == ["three"]
        assert agent.host.connection.rejected == {FROM_CALLER: 3}
        assert not [data for data in sent if "callers" in data]


async def test_an_invitation_to_a_room_of_callers_is_not_followed(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), prosody, tmp_path, access=["*"], invited_by=["*"]) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        sent = record_sent(agent)
        for room in ("room@callers.invalid", "room@muc.callers.invalid"):
            alice.send(None, agent.jid, extra_xml=f"<x xmlns='jabber:x:conference' jid='{room}'/>")
        assert await alice.ask("still there?", agent.jid) == "still there?"
        await wait_for_server(agent)
        assert agent.host.rooms.states == {}
        assert not [data for data in sent if "callers" in data]


async def test_a_caller_in_the_roster_of_the_account_is_no_contact(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), prosody, tmp_path, access=[], admission={"roster": True}) as agent:
        await agent.host.client.update_roster(SHOP)
        await agent.host.client.update_roster("ann@example.org")
        await eventually(lambda: "ann@example.org" in agent.gateway.access.contacts)
        assert agent.gateway.access.contacts == {"ann@example.org"}


# What goes out


async def favourite(request: AgentRequest, session: Session, response: Response) -> None:
    """Remember the city of a person. "?" asks for it."""
    city = await session.get("city", "nothing") if request.payload["query"] == "?" else request.payload["query"]
    await session.store("city", city)
    await response.markdown(f"{city} {request.metadata.get('root_sender')} {request.metadata.get('hides_person')}")


@pytest.mark.parametrize("way", ["over the server", "in the process"])
async def test_two_callers_behind_an_agent_are_two_unknown_people_at_the_next(
    prosody: XmppServer, tmp_path: Path, way: str
) -> None:
    answers: list[str] = []
    exchange = LocalExchange() if way == "in the process" else None
    async with run_agent(
        FunctionAgent(favourite), prosody, tmp_path, trusted_domains=["localhost"], local_exchange=exchange
    ) as last:

        def make_relay(peers: Peers) -> FunctionAgent:
            async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
                answers.append((await peers.ask(last.jid, request.payload["query"], separate=True)).text)

            return FunctionAgent(assist)

        async with run_agent(
            make_relay, prosody, tmp_path, trusted_domains=["localhost"], local_exchange=exchange, access=["*"]
        ) as relay:
            admit_callers(relay.gateway.access)
            sent = record_sent(relay)
            for caller in (WEBSITE, SHOP, USER):
                for query in ("Berlin", "?"):
                    relay.gateway.receive(request_of(caller, query, PROGRAM))
                    await eventually(lambda: not relay.runner.mailboxes.busy_count)
                assert answers[-2:] == ["Berlin None True", "nothing None True"]
            await wait_for_server(relay)
            for jid in (relay.jid, WEBSITE, SHOP, USER):
                assert await last.repository.load_variables("person", jid) == {}
            assert "callers" not in "".join(sent)
            if exchange is not None:
                assert exchange.delivered_count >= 6
            else:
                assert '"rootsender":"hidden"' in "".join(sent)


class Working:
    """An agent that answers in each form that it has: thoughts, a stream, a block, a question."""

    manifest = AgentDefinition.simple("working")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.thought("hm")
        stream = await response.create_stream("title")
        await stream.write("a text that grows")
        await stream.close()
        await response.data({"done": True})
        if request.payload["query"] == "ask me" and request.metadata["channel"] != SPADE.word:
            await response.ask_person("Which?", choices=["red", "blue"])


def request_of(caller: str, query: str, kind: ChannelKind) -> InboundRequest:
    return InboundRequest(
        kind,
        f"{caller}/{uuid4()}",
        str(uuid4()),
        None,
        {"query": query},
        query,
        headers=MessageHeaders(uses_chat_states=True, wants_receipt=True, wants_displayed_marker=True),
        request_id=uuid4() if kind.is_program else None,
        owner=caller,
    )


@pytest.mark.parametrize("kind", [PERSON, PROGRAM, SPADE], ids=lambda kind: kind.name)
async def test_no_stanza_with_the_domain_of_callers_is_on_the_wire(
    prosody: XmppServer, tmp_path: Path, kind: ChannelKind
) -> None:
    """Callers are answered, refused, notified, asked and erased as if XMPP were their channel, the worst case."""
    async with (
        run_agent(Working(), prosody, tmp_path, access=["*"]) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        admit_callers(agent.gateway.access)
        sent, received = record_sent(agent), record_received(agent)
        for caller in CALLERS:
            for query in ("hello", "/help", "/unknown", "ask me", "red", "/forget me yes", "hello again"):
                agent.gateway.receive(request_of(caller, query, kind))
                await agent.settled()
                await agent.runner.mailboxes.wait_until_idle()
            with pytest.raises(ValueError, match="is a caller of a door"):
                await agent.people.notify(caller, "hello")
            await agent.runner.control.notifications.notify(str(uuid4()), caller, None, "[]", "")
            with pytest.raises(PeerError, match="is the address of a caller of a door"):
                await agent.peers.ask(caller, "hello")
            agent.gateway.access.callers = {}
            agent.gateway.receive(request_of(caller, "am I a stranger?", kind))
            await agent.gateway.access_requests.decide(caller, is_admitted=True)
            await agent.gateway.access_requests.decide(caller, is_admitted=False)
            admit_callers(agent.gateway.access)
        assert await alice.ask("/help", agent.jid)
        await wait_for_server(agent)
        assert agent.host.connection.rejected[TO_CALLER] > 0
        for data in sent + received:
            assert "callers" not in data.lower(), data
        assert await agent.repository.inbox.load_pending() == []  # nothing waits for a caller
        await agent.restart()
        sent = record_sent(agent)
        assert await alice.ask("/help", agent.jid)
        assert not [data for data in sent if "callers" in data.lower()]


async def test_nothing_that_plugins_and_behaviours_send_reaches_a_caller(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), prosody, tmp_path) as agent:
        client, sent = agent.host.connection.client, record_sent(agent)
        for to in (WEBSITE, FORGED, "callers.invalid", "website@shop.callers.invalid"):
            for kind in ("subscribe", "subscribed", "unsubscribed", "unavailable", "probe", None):
                client.send_presence(pto=to, ptype=kind)
            client.send_message(mto=to, mbody="hello")
            with pytest.raises(IqTimeout):
                await client.plugin["xep_0030"].get_info(jid=to, timeout=0.01)
            with pytest.raises(IqTimeout):
                await client.make_iq_get(queryxmlns="vcard-temp", ito=to).send(timeout=0.01)
            client.send(Message(to=to, body="hello").prepare(client))
        await wait_for_server(agent)
        assert agent.host.connection.rejected == {TO_CALLER: 4 * 10}
        assert not [data for data in sent if "callers" in data]


async def test_a_message_to_a_caller_is_refused_and_not_waited_for(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), prosody, tmp_path) as agent:
        outcomes: list[str] = []
        first = OutboundMessage(WEBSITE, f"<message to='{WEBSITE}'/>", on_acknowledged=lambda: outcomes.append("first"))
        second = OutboundMessage(
            FORGED,
            f"<message to='{FORGED}'/>",
            on_acknowledged=lambda: outcomes.append("second"),
            on_refused=lambda reason: outcomes.append(reason),
        )
        other = OutboundMessage(agent.jid, f"<message to='{agent.jid}' id='own'/>")
        sent = record_sent(agent)
        agent.host.send([first, other, second])
        assert outcomes == ["first", "remote-server-not-found"]
        assert first.is_acknowledged
        assert second.is_acknowledged
        await wait_for_server(agent)
        assert other.is_acknowledged
        assert "id='own'" in "".join(sent)
        assert "callers" not in "".join(sent)


async def test_a_client_asks_no_caller(prosody: XmppServer) -> None:
    async with AgentClient(*await prosody.account(), endpoint_of(prosody)) as client:
        with pytest.raises(PeerError, match="this is the address of a caller of a door, which is no agent"):
            await client.ask(WEBSITE, "hello")


def test_the_log_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, dropped = 0.0, Counter[str]()
    callers = CallerFilter("echo@localhost", dropped, lambda: now)
    with caplog.at_level(logging.DEBUG, "spade_coreason"):
        for now in (0.0, 1.0, 59.9, 60.0, 61.0, 121.0):  # noqa: B007 - the clock reads it
            assert callers.drops_from(WEBSITE)
            assert callers.drops_to(SHOP)
            assert not callers.drops_from("ann@example.org")
    assert dropped == {FROM_CALLER: 6, TO_CALLER: 6}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 6
    assert caplog.messages[-1] == (
        "echo@localhost: dropped a stanza: a recipient in the domain of callers, shop@callers.invalid (6 so far)"
    )
