"""Who an agent is for its contacts: identity, card, presence, subscriptions, its introduction."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from slixmpp import Iq
from slixmpp.exceptions import IqError

from spade_coreason import ResponseHandler, SessionHandle, __version__
from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from spade_coreason.contracts import AgentDefinition, AgentRequest
from spade_coreason.domain.avatar import MAX_AVATAR_BYTES, Avatar, draw_avatar
from spade_coreason.domain.conversation import Rules
from spade_coreason.memory.erasure import erase_person
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from spade_coreason.runtime.policy import Policy
from spade_coreason.storage.database import StoreTimings
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import PATIENCE_S, eventually

PUBSUB = "{http://jabber.org/protocol/pubsub}"
CARD = "urn:spade-coreason:card:0"
CAPS = "{http://jabber.org/protocol/caps}c"
PHOTO = "{vcard-temp:x:update}x/{vcard-temp:x:update}photo"
MARKER = "{urn:spade-coreason:answer:0}answer"
PLUGINS = ("xep_0030", "xep_0004", "xep_0054", "xep_0060", "xep_0092", "xep_0115")

MANIFEST: dict[str, Any] = {
    "metadata": {"name": "weather & co", "version": "2.1.0", "author": "secret author"},
    "capabilities": [
        {
            "name": "forecast",
            "description": "Says what the weather will be.",
            "inputs": {"type": "object", "properties": {"place": {"type": "string"}}},
            "outputs": {"type": "string"},
        },
        {"name": "warn", "description": "Warns of storms."},
        {"name": "help"},
    ],
    "config": {"system_prompt": "secret prompt"},
    "custom_metadata": {"internal": "secret metadata"},
}


class Weather(Echo):
    """An agent with a manifest that has public and other parts."""

    def __init__(self) -> None:
        super().__init__()
        self.manifest = AgentDefinition.model_validate(MANIFEST)


class Held(Echo):
    """Starts and answers when it is told to."""

    def __init__(self) -> None:
        super().__init__("held")
        self.may_start = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def startup(self) -> None:
        await self.may_start.wait()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await self.may_answer.wait()
        await super().assist(request, session, response)


@asynccontextmanager
async def person(server: XmppServer, domain: str | None = None, kind: str = "pc") -> AsyncIterator[StockClient]:
    """Somebody whose client approves who asks, as slixmpp does by itself."""
    async with StockClient(*await server.account(domain=domain), server, plugins=PLUGINS, priority=None) as client:
        # slixmpp says that it is a bot where it says nothing else.
        client.xmpp.plugin["xep_0030"].add_identity("client", kind, "somebody's client")
        # Prosody tells of subscriptions only those who have asked for the roster.
        await client.xmpp.get_roster(timeout=PATIENCE_S)
        client.xmpp.send_presence()
        yield client


async def presence(client: StockClient, sender: str, says: Callable[[Any], bool] = lambda stanza: True) -> Any:
    """The next presence of `sender` that says so."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stanza = await client.presences.get()
            if stanza["from"].bare == sender and says(stanza):
                return stanza


def of(kind: str, status: str | None = None) -> Callable[[Any], bool]:
    return lambda stanza: stanza["type"] == kind and (status is None or stanza["status"] == status)


def says(show: str, status: str) -> Callable[[Any], bool]:
    return lambda stanza: (stanza["type"], stanza["status"]) == (show, status)


async def befriended(client: StockClient, agent: str) -> str:
    """Subscribes, and gives the words of introduction."""
    client.xmpp.send_presence(pto=agent, ptype="subscribe")
    await presence(client, agent, of("available"))
    return str((await client.answer())["body"])


async def silence(client: StockClient, agent: str) -> None:
    """Nothing came before the answer to a question that was asked after all the rest."""
    assert await client.ask("anything?", agent) == "anything?"


async def info(client: StockClient, agent: str) -> Any:
    """What the agent says of itself."""
    result = await client.xmpp.plugin["xep_0030"].get_info(jid=f"{agent}/agent", timeout=PATIENCE_S)
    return result["disco_info"]


async def item(client: StockClient, agent: str, node: str) -> Element:
    """The one item that the agent has published at a node."""
    result = await client.xmpp.plugin["xep_0060"].get_items(agent, node, timeout=PATIENCE_S)
    found: Element = result.xml.find(".//{http://jabber.org/protocol/pubsub}item")[0]
    return found


def form_of(disco: Any) -> dict[str, Any] | None:
    form = disco.xml.find("{jabber:x:data}x")
    if form is None:
        return None
    return {
        field.get("var"): [value.text for value in field.iter("{jabber:x:data}value")]
        for field in form.iter("{jabber:x:data}field")
    }


async def published(agent: OnlineAgent) -> None:
    """The agent has said all that it has to say of itself."""
    await eventually(lambda: agent.host._profile is not None and agent.host._profile._is_published)


# What it is


async def test_its_client_is_a_bot_with_the_name_of_the_manifest(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        disco = await info(alice, agent.jid)
        assert disco["identities"] == {("client", "bot", None, "weather & co")}
        features = disco["features"]
        assert {"jabber:iq:version", "urn:xmpp:ping", "urn:xmpp:receipts", "http://jabber.org/protocol/caps"} <= features
        assert "urn:xmpp:http:upload:0" not in features
        version = (await alice.xmpp.plugin["xep_0092"].get_version(f"{agent.jid}/agent", timeout=PATIENCE_S))[
            "software_version"
        ]
        assert (version["name"], version["version"], version["os"]) == ("spade_coreason", __version__, "")


async def test_the_short_card_is_in_its_disco_info_and_its_caps_fit(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        disco = await info(alice, agent.jid)
        assert form_of(disco) == {
            "FORM_TYPE": [CARD],
            "name": ["weather & co"],
            "version": ["2.1.0"],
            "description": ["Says what the weather will be."],
            "capabilities": ["forecast", "warn", "help"],
        }
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        caps = (await presence(alice, agent.jid, of("available"))).xml.find(CAPS)
        expected = alice.xmpp.plugin["xep_0115"].generate_verstring(disco, "sha-1")
        assert (caps.get("hash"), caps.get("ver")) == ("sha-1", expected)
        node = f"{caps.get('node')}#{caps.get('ver')}"
        by_node = await alice.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", node=node, timeout=PATIENCE_S)
        assert form_of(by_node["disco_info"]) == form_of(disco)
        with pytest.raises(IqError):
            await alice.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", node="urn:of:another", timeout=PATIENCE_S)


async def test_a_contact_finds_its_vcard_nickname_picture_and_card(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        picture = draw_avatar("weather & co")
        await befriended(alice, agent.jid)
        await published(agent)
        vcard = (await alice.xmpp.plugin["xep_0054"].get_vcard(agent.jid, timeout=PATIENCE_S)).xml
        assert vcard.findtext(".//{vcard-temp}FN") == "weather & co"
        assert vcard.findtext(".//{vcard-temp}NICKNAME") == "weather & co"
        assert base64.b64decode(vcard.findtext(".//{vcard-temp}BINVAL")) == picture.data
        described = vcard.findtext(".//{vcard-temp}DESC") or vcard.findtext(".//{vcard-temp}NOTE")  # as Prosody has it
        assert described == "Says what the weather will be."
        vcard4 = await item(alice, agent.jid, "urn:xmpp:vcard4")
        said = {entry.tag.rpartition("}")[2]: "".join(entry.itertext()) for entry in vcard4}
        assert vcard4.tag == "{urn:ietf:params:xml:ns:vcard-4.0}vcard"
        assert said == {
            "kind": "application",
            "fn": "weather & co",
            "nickname": "weather & co",
            "note": "Says what the weather will be.",
            "impp": f"xmpp:{agent.jid}",
        }
        assert (await item(alice, agent.jid, "http://jabber.org/protocol/nick")).text == "weather & co"
        metadata = (await item(alice, agent.jid, "urn:xmpp:avatar:metadata"))[0]
        assert (metadata.get("id"), metadata.get("type")) == (picture.hash, "image/png")
        data = (await item(alice, agent.jid, "urn:xmpp:avatar:data")).text
        assert base64.b64decode(data or "") == picture.data
        card = (await item(alice, agent.jid, CARD)).text or ""
        assert json.loads(card)["capabilities"][0] == MANIFEST["capabilities"][0]
        assert "secret" not in card


async def test_its_presence_has_the_hash_of_its_picture(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        await published(agent)
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        shown = await presence(alice, agent.jid, lambda stanza: bool(stanza.xml.findtext(PHOTO)))
        assert shown.xml.findtext(PHOTO) == draw_avatar("weather & co").hash


async def test_the_same_is_not_published_again_after_a_restart(real_server: XmppServer, tmp_path: Path) -> None:
    left: list[str] = []

    def watched(host: HostedAgent) -> None:
        def look(stanza: Any) -> Any:
            if isinstance(stanza, Iq) and stanza["type"] == "set":
                left.extend(element.get("node") for element in stanza.xml.iter(f"{PUBSUB}publish"))
                left.extend("vCard" for _ in stanza.xml.iter("{vcard-temp}vCard"))
            return stanza

        host.connection.client.add_filter("out", look)

    everything = {"vCard", CARD, "http://jabber.org/protocol/nick"}  # Prosody makes the picture's items of the vCard itself
    async with (
        run_agent(lambda peers: Weather(), real_server, tmp_path, prepare=watched) as agent,
        person(real_server) as alice,
    ):
        await published(agent)
        assert everything <= set(left)
        before = len(left)
        alice.xmpp.plugin["xep_0030"].add_feature(f"{CARD}+notify")
        await alice.xmpp.plugin["xep_0115"].update_caps()
        await befriended(alice, agent.jid)
        await agent.restart()
        await published(agent)
        assert left[before:] == []
        await agent.stop()
        agent.make = lambda peers: Echo("another")
        await agent.start()
        await published(agent)
        assert everything <= set(left[before:])
        async with asyncio.timeout(PATIENCE_S):
            told = [str(await alice.message())]
            while "another" not in told[-1] or CARD not in told[-1]:
                told.append(str(await alice.message()))
        assert await alice.ask("all?", agent.jid) == "all?"


async def test_after_a_restart_nothing_is_published_that_is_there(real_server: XmppServer, tmp_path: Path) -> None:
    """Prosody keeps a vCard4, and gives another vCard back than it got: it was set again, and with it the picture."""
    published_at: list[Element] = []

    def listen(host: Any) -> None:
        def keep(stanza: Any) -> Any:
            published_at.extend(stanza.xml.iter("{http://jabber.org/protocol/pubsub}publish"))
            if stanza.xml.get("type") == "set":
                published_at.extend(stanza.xml.iter("{vcard-temp}vCard"))
            return stanza

        host.connection.client.add_filter("out", keep)

    async with run_agent(lambda peers: Weather(), real_server, tmp_path, prepare=listen) as agent:
        await published(agent)
        assert published_at
        published_at.clear()
        await agent.restart()
        await published(agent)
        assert published_at == []


async def test_an_agent_that_leaves_while_it_is_published_does_not_come_back(real_server: XmppServer, tmp_path: Path) -> None:
    said: list[str | None] = []
    async with run_agent(Weather(), real_server, tmp_path) as agent:
        citizen = agent.host._profile
        assert citizen is not None

        def keep(stanza: Any) -> Any:
            if stanza.xml.tag == "{jabber:client}presence":
                said.append(stanza.xml.get("type"))
            return stanza

        agent.host.connection.client.add_filter("out", keep)
        await published(agent)
        await agent.host.connection.wait_until_acknowledged(2)
        said.clear()
        citizen.announce_stopping()
        await citizen._publish()
        await agent.host.connection.wait_until_acknowledged(2)
        assert said == ["unavailable"]
        citizen.announce()
        await citizen._publish()
        await agent.host.connection.wait_until_acknowledged(2)
        assert said == ["unavailable", None, None]


async def test_its_picture_comes_from_the_configuration(real_server: XmppServer, tmp_path: Path) -> None:
    picture = draw_avatar("somebody else")
    (tmp_path / "face.png").write_bytes(picture.data)
    jid, password = await real_server.account()
    server = {"mode": "external", "host": real_server.host, "port": real_server.port}
    text = {
        "server": {**server, "tls": {"ca_file": str(real_server.ca_file)}},
        "agents": [{"jid": jid, "agent": "tests.support.hosting:Echo", "password": password, "avatar": "face.png"}],
    }
    (tmp_path / "platform.yaml").write_text(json.dumps(text))
    async with (
        Platform(load_settings(tmp_path / "platform.yaml", tmp_path, {})),
        person(real_server) as alice,
    ):
        alice.xmpp.send_presence(pto=jid, ptype="subscribe")
        shown = await presence(alice, jid, lambda stanza: bool(stanza.xml.findtext(PHOTO)))
        assert shown.xml.findtext(PHOTO) == hashlib.sha1(picture.data).hexdigest()


async def test_what_is_too_long_for_a_stanza_is_cut_or_left_out(real_server: XmppServer, tmp_path: Path) -> None:
    talkative = Echo("talkative")
    text = "<&'" * 100_000
    capabilities = [{"name": f"talk {n}", "description": text, "inputs": {"description": text}} for n in range(60)]
    talkative.manifest = AgentDefinition.model_validate({**MANIFEST, "capabilities": capabilities})
    picture = Avatar(os.urandom(MAX_AVATAR_BYTES), "image/png")
    written: list[int] = []

    def prepare(host: HostedAgent) -> None:
        client = host.connection.client
        send = client.send_raw

        def measured(data: str | bytes) -> None:
            written.append(len(data if isinstance(data, bytes) else data.encode()))
            send(data)

        client.send_raw = measured

    async with (
        run_agent(talkative, real_server, tmp_path, prepare=prepare, avatar=picture) as agent,
        person(real_server) as alice,
    ):
        await published(agent)
        introduction = await befriended(alice, agent.jid)
        assert introduction.startswith("Hello, I am ")
        disco = await info(alice, agent.jid)
        form = form_of(disco)
        assert form is not None
        assert len(form["capabilities"]) == 50
        card = json.loads((await item(alice, agent.jid, CARD)).text or "")
        assert card["capabilities"][0].keys() == {"name"}
        data = (await item(alice, agent.jid, "urn:xmpp:avatar:data")).text
        assert base64.b64decode(data or "") == picture.data
        assert agent.host.connection.session_count == 1
        assert 50_000 < max(written) <= agent.runner.policy.stanza_bytes


# What it is doing


async def test_its_presence_says_how_busy_it_is(real_server: XmppServer, tmp_path: Path) -> None:
    # Once at its real pace.
    timings = ConnectionTimings(presence_interval_s=0.1) if real_server.kind == "ejabberd" else ConnectionTimings()
    held = Held()
    held.may_start.set()
    policy = Policy(rules=Rules(max_interactions=0), concurrency=4)
    async with (
        run_agent(held, real_server, tmp_path, policy=policy, timings=timings) as agent,
        person(real_server) as alice,
    ):
        await befriended(alice, agent.jid)
        await published(agent)
        for number in range(3):
            alice.send("work", agent.jid, thread=str(number))
        shown = await presence(alice, agent.jid, of("dnd"))
        assert shown["status"] == "busy: 3 conversations"
        held.may_answer.set()
        shown = await presence(alice, agent.jid, of("available"))
        assert shown["status"] == ""


async def test_its_presence_says_that_it_is_paused(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), prosody, tmp_path) as agent, person(prosody) as alice:
        await befriended(alice, agent.jid)
        await published(agent)
        agent.runner.pause()
        await presence(alice, agent.jid, says("away", "paused"))
        agent.runner.resume()
        await presence(alice, agent.jid, says("available", ""))


async def test_its_presence_says_that_nothing_can_be_stored(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("is gone (No such file or directory)", "what came in cannot be stored; it is not acknowledged")
    timings, store_timings = ConnectionTimings(presence_interval_s=0.1), StoreTimings(retry_s=0.1)
    async with (
        run_agent(Weather(), prosody, tmp_path, timings=timings, store_timings=store_timings) as agent,
        person(prosody) as alice,
    ):
        await befriended(alice, agent.jid)
        await published(agent)
        path = agent.database.name
        await asyncio.to_thread(os.rename, path, f"{path}.aside")
        alice.send("Berlin", agent.jid)
        await presence(alice, agent.jid, says("away", "cannot store anything at the moment"))
        await asyncio.to_thread(os.rename, f"{path}.aside", path)
        await presence(alice, agent.jid, says("available", ""))


async def test_it_is_away_while_it_starts_and_while_it_stops(real_server: XmppServer, tmp_path: Path) -> None:
    held = Held()
    held.may_start.set()
    async with run_agent(held, real_server, tmp_path) as agent, person(real_server) as alice:
        await befriended(alice, agent.jid)
        alice.send("work", agent.jid)
        await eventually(lambda: agent.runner.turns_in_flight == 1)
        stopping = asyncio.create_task(agent.stop())
        await presence(alice, agent.jid, says("away", "stopping"))
        alice.send("while it stops", agent.jid)
        held.may_answer.set()
        assert (await alice.answer())["body"] == "work"
        await presence(alice, agent.jid, of("unavailable"))
        await stopping
        alice.send("while it is gone", agent.jid)
        held.may_start.clear()
        starting = asyncio.create_task(agent.start())
        await presence(alice, agent.jid, says("away", "starting"))
        held.may_start.set()
        await starting
        await presence(alice, agent.jid, says("available", ""))
        answers = {(await alice.answer())["body"], (await alice.answer())["body"]}
        assert answers == {"while it stops", "while it is gone"}


async def test_after_a_reconnect_it_announces_itself_again(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        await befriended(alice, agent.jid)
        await published(agent)
        agent.host.connection.client.stream_management.sm_id = None  # so that the session is not resumed
        agent.cut()
        await eventually(lambda: agent.host.connection.session_count == 2)
        await presence(alice, agent.jid, of("unavailable"))
        shown = await presence(alice, agent.jid, of("available"))
        assert shown.xml.findtext(PHOTO) == draw_avatar("weather & co").hash
        assert shown.xml.find(CAPS) is not None


async def test_a_presence_that_says_what_no_presence_can_say_harms_nobody(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ejabberd lets none through."""
    async with run_agent(Echo(), prosody, tmp_path) as agent, person(prosody) as alice:
        odd = "<show>lunch</show><show>xa</show><priority>very</priority><status/>"
        alice.send_xml(f"<presence xmlns='jabber:client' to='{agent.jid}'>{odd}</presence>")
        await silence(alice, agent.jid)
        await eventually(lambda: alice.jid in agent.host.presence.contacts)
        assert agent.host.presence.get_contact(alice.jid).is_available()
        assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# Who may see it


async def test_a_strangers_subscription_is_refused_and_gets_neither_presence_nor_card(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server, OTHER_DOMAIN) as mallory:
        await published(agent)
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await presence(mallory, agent.jid, of("unsubscribed"))
        with pytest.raises(IqError):
            await item(mallory, agent.jid, CARD)
        assert all(stanza["from"].bare != agent.jid for stanza in mallory.presences._queue)  # type: ignore[attr-defined]  # asyncio.Queue shows nobody what waits in it
        assert all(stanza["from"].bare != agent.jid for stanza in mallory.messages._queue)  # type: ignore[attr-defined]  # asyncio.Queue shows nobody what waits in it


async def test_a_stranger_who_asks_hears_the_same_whether_it_is_online_or_not(real_server: XmppServer, tmp_path: Path) -> None:
    questions = (
        "<query xmlns='http://jabber.org/protocol/disco#info'/>",
        "<query xmlns='http://jabber.org/protocol/disco#items' node='http://jabber.org/protocol/commands'/>",
        "<query xmlns='jabber:iq:version'/>",
        "<ping xmlns='urn:xmpp:ping'/>",
        "<command xmlns='http://jabber.org/protocol/commands' node='help'/>",
    )
    async with run_agent(lambda peers: Weather(), real_server, tmp_path) as agent, person(real_server, OTHER_DOMAIN) as mallory:

        async def heard() -> list[tuple[str, str]]:
            conditions = []
            for question in questions:
                for kind in ("get", "set"):
                    iq = mallory.xmpp.make_iq(ito=f"{agent.jid}/agent", itype=kind)
                    iq.xml.append(fromstring(question))
                    with pytest.raises(IqError) as refused:
                        await iq.send(timeout=PATIENCE_S)
                    error = refused.value.iq["error"]
                    conditions.append((error["type"], error["condition"]))
            return conditions

        await published(agent)
        online = await heard()
        await agent.stop()
        assert online == await heard()
        await agent.start()


async def test_who_is_not_admitted_any_more_sees_nothing_after_the_restart(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Weather(), real_server, tmp_path) as agent,
        person(real_server) as alice,
        person(real_server) as bob,
    ):
        await befriended(alice, agent.jid)
        await befriended(bob, agent.jid)
        await agent.stop()
        await presence(alice, agent.jid, of("unavailable"))
        await presence(bob, agent.jid, of("unavailable"))
        agent.allow = [bob.jid]
        await agent.start()
        await presence(bob, agent.jid, of("available"))
        seen = [(await presence(alice, agent.jid))["type"]]
        while seen[-1] != "unsubscribed":
            seen.append((await presence(alice, agent.jid))["type"])
        assert "available" not in seen
        await published(agent)
        left = [stanza["type"] for stanza in alice.presences._queue if stanza["from"].bare == agent.jid]  # type: ignore[attr-defined]  # asyncio.Queue shows nobody what waits in it
        assert set(left) <= {"unavailable"}


async def test_an_admitted_person_is_approved_and_subscribed_back(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        alice.xmpp.roster.auto_authorize = None
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        kinds: set[str] = set()
        while not kinds >= {"subscribed", "subscribe", "available"}:
            kinds.add((await presence(alice, agent.jid))["type"])
        roster = alice.xmpp.client_roster
        await eventually(lambda: bool(roster[agent.jid]["to"]))
        alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
        await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])


async def test_who_leaves_and_comes_back_at_once_sees_it_again(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        await befriended(alice, agent.jid)
        for kind in ("unsubscribe", "subscribe"):
            alice.xmpp.send_presence(pto=agent.jid, ptype=kind)
        await presence(alice, agent.jid, of("unavailable"))
        await presence(alice, agent.jid, of("available"))
        await eventually(lambda: agent.host.client.client_roster[alice.jid]["from"])


# Its introduction


async def test_it_introduces_itself_once_to_each_person(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(lambda peers: Weather(), real_server, tmp_path) as agent, person(real_server) as alice:
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        hello = await alice.answer()
        assert hello["body"] == (
            "Hello, I am weather & co. Says what the weather will be.\n"
            "What I can do:\n- forecast: Says what the weather will be.\n- warn: Warns of storms.\n"
            "/help shows what you may ask the platform."
        )
        assert hello["type"] == "chat"
        assert hello["id"]
        assert hello.xml.find(MARKER) is not None
        assert hello.xml.find("{http://jabber.org/protocol/chatstates}active") is not None  # so that clients send theirs
        for _ in range(2):
            alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
            await presence(alice, agent.jid, of("unavailable"))
            await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])
            alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            await presence(alice, agent.jid, of("available"))
            await silence(alice, agent.jid)
            await agent.restart()
        memory = AgentInteractionMemory(agent.jid, tmp_path)
        assert (await erase_person(agent.store, memory, alice.jid)).variables >= 1
        alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
        await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        assert (await alice.answer())["body"].startswith("Hello, I am weather & co.")


async def test_agents_do_not_introduce_themselves_to_agents(real_server: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    async with run_agent(Weather(), real_server, tmp_path) as one, run_agent(Echo(), real_server, tmp_path / "b") as other:
        one.host.presence.subscribe(other.jid)
        for agent, peer in ((one, other), (other, one)):
            await eventually(lambda a=agent, p=peer: a.host.client.client_roster[p.jid]["subscription"] == "both")  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        for agent in (one, other):
            citizen = agent.host._profile
            assert citizen is not None
            await eventually(lambda c=citizen: not c._tasks)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            for peer in (one, other):
                assert await agent.store.load_variables("person", peer.jid) == {}


async def test_it_does_not_introduce_itself_to_somebody_elses_bot(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), real_server, tmp_path) as agent, person(real_server, kind="bot") as bot:
        bot.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await presence(bot, agent.jid, of("available"))
        citizen = agent.host._profile
        assert citizen is not None
        await eventually(lambda: not citizen._tasks)
        await silence(bot, agent.jid)


# Where the server knows nothing of all this


async def test_nothing_of_this_harms_the_embedded_server(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Weather(), embedded, tmp_path) as agent,
        StockClient(*await embedded.account(), embedded) as alice,
    ):
        assert await alice.ask("hello", agent.jid) == "hello"
        await agent.restart()
        assert await alice.ask("hello again", agent.jid) == "hello again"
        agent.cut()
        await eventually(lambda: agent.host.connection.session_count == 2)
        async with asyncio.timeout(PATIENCE_S):
            while True:  # what comes before the new presence is lost there
                alice.send("and again", agent.jid)
                with suppress(TimeoutError):
                    assert (await alice.answer(0.5))["body"] == "and again"
                    break
