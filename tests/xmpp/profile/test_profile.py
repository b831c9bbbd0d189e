"""The profile of an agent: identity, card, presence, subscriptions, its introduction."""

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
from spade_coreason.memory.erasure import erase_person
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from spade_coreason.runtime.event_emitter import EventEmitter
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.testing import PlatformLimits, Policy, Rules
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, OnlineAgent, Tunnel, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S, eventually

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
        self.manifest_changed: EventEmitter[[]] = EventEmitter()


class GatedAgent(Echo):
    """Starts and answers when the test lets it."""

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
async def connect_person(server: XmppServer, domain: str | None = None, kind: str = "pc") -> AsyncIterator[StockClient]:
    """A person whose client approves every subscription, as slixmpp does by itself."""
    async with StockClient(*await server.account(domain=domain), server, plugins=PLUGINS, priority=None) as client:
        # slixmpp says that it is a bot where it says nothing else.
        client.xmpp.plugin["xep_0030"].add_identity("client", kind, "somebody's client")
        # Prosody tells of subscriptions only those who have asked for the roster.
        await client.xmpp.get_roster(timeout=TIMEOUT_S)
        client.xmpp.send_presence()
        yield client


async def next_presence(client: StockClient, sender: str, matches: Callable[[Any], bool] = lambda stanza: True) -> Any:
    """Return the next presence of `sender` that matches."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            stanza = await client.presences.get()
            if stanza["from"].bare == sender and matches(stanza):
                return stanza


def is_presence(kind: str, status: str | None = None) -> Callable[[Any], bool]:
    return lambda stanza: stanza["type"] == kind and (status is None or stanza["status"] == status)


async def subscribe(client: StockClient, agent: str) -> str:
    """Subscribe to the agent and return its introduction."""
    client.xmpp.send_presence(pto=agent, ptype="subscribe")
    await next_presence(client, agent, is_presence("available"))
    return str((await client.answer())["body"])


async def assert_nothing_else_came(client: StockClient, agent: str) -> None:
    """Check that nothing comes before the answer to a new question."""
    assert await client.ask("anything?", agent) == "anything?"


async def request_disco_info(client: StockClient, agent: str) -> Any:
    """Request the agent's disco#info."""
    result = await client.xmpp.plugin["xep_0030"].get_info(jid=f"{agent}/agent", timeout=TIMEOUT_S)
    return result["disco_info"]


async def published_item(client: StockClient, agent: str, node: str) -> Element:
    """Return the one item that the agent has published at a node."""
    result = await client.xmpp.plugin["xep_0060"].get_items(agent, node, timeout=TIMEOUT_S)
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


async def wait_until_published(agent: OnlineAgent) -> None:
    """Wait until the agent has published its whole profile."""
    await eventually(lambda: agent.host._profile is not None and agent.host._profile._is_published)


# What it is


async def test_its_client_is_a_bot_with_the_name_of_the_manifest(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        disco = await request_disco_info(alice, agent.jid)
        assert disco["identities"] == {("client", "bot", None, "weather & co")}
        features = disco["features"]
        assert {"jabber:iq:version", "urn:xmpp:ping", "urn:xmpp:receipts", "http://jabber.org/protocol/caps"} <= features
        assert "urn:xmpp:http:upload:0" not in features
        version = (await alice.xmpp.plugin["xep_0092"].get_version(f"{agent.jid}/agent", timeout=TIMEOUT_S))["software_version"]
        assert (version["name"], version["version"], version["os"]) == ("spade_coreason", __version__, "")


async def test_the_short_card_is_in_its_disco_info_and_its_caps_fit(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        disco = await request_disco_info(alice, agent.jid)
        assert form_of(disco) == {
            "FORM_TYPE": [CARD],
            "name": ["weather & co"],
            "version": ["2.1.0"],
            "description": ["Says what the weather will be."],
            "capabilities": ["forecast", "warn", "help"],
        }
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        caps = (await next_presence(alice, agent.jid, is_presence("available"))).xml.find(CAPS)
        expected = alice.xmpp.plugin["xep_0115"].generate_verstring(disco, "sha-1")
        assert (caps.get("hash"), caps.get("ver")) == ("sha-1", expected)
        node = f"{caps.get('node')}#{caps.get('ver')}"
        by_node = await alice.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", node=node, timeout=TIMEOUT_S)
        assert form_of(by_node["disco_info"]) == form_of(disco)
        with pytest.raises(IqError):
            await alice.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", node="urn:of:another", timeout=TIMEOUT_S)


@on_both_servers
async def test_a_contact_finds_its_vcard_nickname_picture_and_card(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        picture = draw_avatar("weather & co")
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        vcard = (await alice.xmpp.plugin["xep_0054"].get_vcard(agent.jid, timeout=TIMEOUT_S)).xml
        assert vcard.findtext(".//{vcard-temp}FN") == "weather & co"
        assert vcard.findtext(".//{vcard-temp}NICKNAME") == "weather & co"
        assert base64.b64decode(vcard.findtext(".//{vcard-temp}BINVAL")) == picture.data
        description = vcard.findtext(".//{vcard-temp}DESC") or vcard.findtext(".//{vcard-temp}NOTE")  # as Prosody has it
        assert description == "Says what the weather will be."
        vcard4 = await published_item(alice, agent.jid, "urn:xmpp:vcard4")
        vcard4_fields = {entry.tag.rpartition("}")[2]: "".join(entry.itertext()) for entry in vcard4}
        assert vcard4.tag == "{urn:ietf:params:xml:ns:vcard-4.0}vcard"
        assert vcard4_fields == {
            "kind": "application",
            "fn": "weather & co",
            "nickname": "weather & co",
            "note": "Says what the weather will be.",
            "impp": f"xmpp:{agent.jid}",
        }
        assert (await published_item(alice, agent.jid, "http://jabber.org/protocol/nick")).text == "weather & co"
        metadata = (await published_item(alice, agent.jid, "urn:xmpp:avatar:metadata"))[0]
        assert (metadata.get("id"), metadata.get("type")) == (picture.hash, "image/png")
        data = (await published_item(alice, agent.jid, "urn:xmpp:avatar:data")).text
        assert base64.b64decode(data or "") == picture.data
        card = (await published_item(alice, agent.jid, CARD)).text or ""
        assert json.loads(card)["capabilities"][0] == MANIFEST["capabilities"][0]
        assert "secret" not in card


async def test_a_manifest_that_changes_is_shown_and_published_again(real_server: XmppServer, tmp_path: Path) -> None:
    weather = Weather()
    async with run_agent(weather, real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        weather.manifest = AgentDefinition.simple("storms", description="Knows storms")
        weather.manifest_changed.emit()
        disco = await request_disco_info(alice, agent.jid)
        assert (form_of(disco) or {})["name"] == ["storms"]
        expected = alice.xmpp.plugin["xep_0115"].generate_verstring(disco, "sha-1")
        await next_presence(alice, agent.jid, lambda stanza: any(caps.get("ver") == expected for caps in stanza.xml.iter(CAPS)))
        async with asyncio.timeout(TIMEOUT_S):
            while "storms" not in ((await published_item(alice, agent.jid, CARD)).text or ""):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)


async def test_its_presence_has_the_hash_of_its_picture(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await wait_until_published(agent)
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        shown = await next_presence(alice, agent.jid, lambda stanza: bool(stanza.xml.findtext(PHOTO)))
        assert shown.xml.findtext(PHOTO) == draw_avatar("weather & co").hash


async def test_the_same_is_not_published_again_after_a_restart(real_server: XmppServer, tmp_path: Path) -> None:
    sent: list[str] = []

    def record_sent(host: HostedAgent) -> None:
        def record(stanza: Any) -> Any:
            if isinstance(stanza, Iq) and stanza["type"] == "set":
                sent.extend(element.get("node") for element in stanza.xml.iter(f"{PUBSUB}publish"))
                sent.extend("vCard" for _ in stanza.xml.iter("{vcard-temp}vCard"))
            return stanza

        host.connection.client.add_filter("out", record)

    everything = {"vCard", CARD, "http://jabber.org/protocol/nick"}  # Prosody makes the picture's items of the vCard itself
    async with (
        run_agent(lambda peers: Weather(), real_server, tmp_path, prepare=record_sent) as agent,
        connect_person(real_server) as alice,
    ):
        await wait_until_published(agent)
        assert everything <= set(sent)
        before = len(sent)
        alice.xmpp.plugin["xep_0030"].add_feature(f"{CARD}+notify")
        await alice.xmpp.plugin["xep_0115"].update_caps()
        await subscribe(alice, agent.jid)
        await agent.restart()
        await wait_until_published(agent)
        assert sent[before:] == []
        await agent.stop()
        agent.make_agent = lambda peers: Echo("another")
        await agent.start()
        await wait_until_published(agent)
        assert everything <= set(sent[before:])
        async with asyncio.timeout(TIMEOUT_S):
            messages = [str(await alice.message())]
            while "another" not in messages[-1] or CARD not in messages[-1]:
                messages.append(str(await alice.message()))
        assert await alice.ask("all?", agent.jid) == "all?"


async def test_after_a_restart_nothing_is_published_twice(real_server: XmppServer, tmp_path: Path) -> None:
    """Prosody keeps a vCard4, and gives another vCard back than it got: it was set again, and with it the picture."""
    sent_elements: list[Element] = []

    def record_published(host: Any) -> None:
        def record(stanza: Any) -> Any:
            sent_elements.extend(stanza.xml.iter("{http://jabber.org/protocol/pubsub}publish"))
            if stanza.xml.get("type") == "set":
                sent_elements.extend(stanza.xml.iter("{vcard-temp}vCard"))
            return stanza

        host.connection.client.add_filter("out", record)

    async with run_agent(lambda peers: Weather(), real_server, tmp_path, prepare=record_published) as agent:
        await wait_until_published(agent)
        assert sent_elements
        sent_elements.clear()
        await agent.restart()
        await wait_until_published(agent)
        assert sent_elements == []


async def test_an_agent_that_leaves_while_it_is_published_does_not_come_back(real_server: XmppServer, tmp_path: Path) -> None:
    presence_types: list[str | None] = []
    async with run_agent(Weather(), real_server, tmp_path) as agent:
        profile = agent.host._profile
        assert profile is not None

        def record(stanza: Any) -> Any:
            if stanza.xml.tag == "{jabber:client}presence":
                presence_types.append(stanza.xml.get("type"))
            return stanza

        agent.host.connection.client.add_filter("out", record)
        await wait_until_published(agent)
        await agent.host.connection.wait_until_acknowledged(2)
        presence_types.clear()
        profile.announce_stopping()
        await profile._publish()
        await agent.host.connection.wait_until_acknowledged(2)
        assert presence_types == ["unavailable"]
        profile.announce()
        await profile._publish()
        await agent.host.connection.wait_until_acknowledged(2)
        assert presence_types == ["unavailable", None, None]


async def test_a_session_that_cannot_be_prepared_is_logged_with_what_it_means(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    async def fail() -> None:
        raise ValueError("no archive")

    async with run_agent(Weather(), prosody, tmp_path) as agent:
        profile = agent.host._profile
        assert profile is not None
        expected_errors(
            f"{agent.jid}: cannot prepare its new session: until the next one its contacts may see it as offline,"
            " and the messages that it missed are not read; restart the platform: ValueError: no archive"
        )
        profile.announce_new_session(fail, lambda: None)
        await eventually(lambda: not profile._tasks)


async def test_a_session_that_was_cut_before_it_was_announced_is_announced_once_it_goes_on(
    real_server: XmppServer, tmp_path: Path
) -> None:
    """It went on without a presence, so that the server stored all messages to the agent for its next session."""

    async def prepare() -> None:
        """Be ready at once, though the connection is lost: as one whose replies were not stored."""

    async with (
        Tunnel(real_server) as tunnel,
        run_agent(Weather(), real_server, tmp_path, port=tunnel.port) as agent,
        connect_person(real_server) as alice,
    ):
        host, connection = agent.host, agent.host.connection
        await eventually(lambda: host.is_reachable)
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: connection.state != "online")
        host.on_session(is_new=True)
        profile = host._profile
        assert profile is not None
        profile.announce_new_session(prepare, lambda: None)
        await asyncio.sleep(0)
        tunnel.is_open = True
        await eventually(lambda: connection.resumption_count == 1)
        await eventually(lambda: host.is_reachable)
        assert await alice.ask("Is it sunny?", agent.jid)


async def test_its_picture_comes_from_the_configuration(real_server: XmppServer, tmp_path: Path) -> None:
    picture = draw_avatar("somebody else")
    (tmp_path / "face.png").write_bytes(picture.data)
    jid, password = await real_server.account()
    text = {
        "server": real_server.settings,
        "agents": [{"jid": jid, "agent": "tests.support.hosting:Echo", "password": password, "avatar": "face.png"}],
    }
    (tmp_path / "platform.yaml").write_text(json.dumps(text))
    async with (
        Platform(load_settings(tmp_path / "platform.yaml", tmp_path, {})),
        connect_person(real_server) as alice,
    ):
        alice.xmpp.send_presence(pto=jid, ptype="subscribe")
        shown = await next_presence(alice, jid, lambda stanza: bool(stanza.xml.findtext(PHOTO)))
        assert shown.xml.findtext(PHOTO) == hashlib.sha1(picture.data).hexdigest()


async def test_data_too_long_for_a_stanza_are_cut_or_left_out(real_server: XmppServer, tmp_path: Path) -> None:
    talkative = Echo("talkative")
    text = "<&'" * 100_000
    capabilities = [{"name": f"talk {n}", "description": text, "inputs": {"description": text}} for n in range(60)]
    talkative.manifest = AgentDefinition.model_validate({**MANIFEST, "capabilities": capabilities})
    picture = Avatar(os.urandom(MAX_AVATAR_BYTES), "image/png")
    written: list[int] = []

    def prepare(host: HostedAgent) -> None:
        client = host.connection.client
        send = client.send_raw

        def record_size(data: str | bytes) -> None:
            written.append(len(data if isinstance(data, bytes) else data.encode()))
            send(data)

        client.send_raw = record_size

    async with (
        run_agent(talkative, real_server, tmp_path, prepare=prepare, avatar=picture) as agent,
        connect_person(real_server) as alice,
    ):
        await wait_until_published(agent)
        introduction = await subscribe(alice, agent.jid)
        assert introduction.startswith("Hello, I am ")
        disco = await request_disco_info(alice, agent.jid)
        form = form_of(disco)
        assert form is not None
        assert len(form["capabilities"]) == 50
        card = json.loads((await published_item(alice, agent.jid, CARD)).text or "")
        assert card["capabilities"][0].keys() == {"name"}
        data = (await published_item(alice, agent.jid, "urn:xmpp:avatar:data")).text
        assert base64.b64decode(data or "") == picture.data
        assert agent.host.connection.session_count == 1
        assert 50_000 < max(written) <= agent.runner.policy.limits.stanza_bytes


# What it is doing


@pytest.mark.parametrize(
    "timings",
    [ConnectionTimings(presence_interval_s=0.1), pytest.param(ConnectionTimings(), marks=pytest.mark.release)],
    ids=["quickly", "at its real pace"],
)
async def test_presence_shows_how_busy_the_agent_is(
    real_server: XmppServer, tmp_path: Path, timings: ConnectionTimings
) -> None:
    gated_agent = GatedAgent()
    gated_agent.may_start.set()
    policy = Policy(limits=PlatformLimits(concurrency=4), rules=Rules(max_interactions=0))
    async with (
        run_agent(gated_agent, real_server, tmp_path, policy=policy, timings=timings) as agent,
        connect_person(real_server) as alice,
    ):
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        for number in range(3):
            alice.send("work", agent.jid, thread=str(number))
        shown = await next_presence(alice, agent.jid, is_presence("dnd"))
        assert shown["status"] == "busy: 3 conversations"
        gated_agent.may_answer.set()
        shown = await next_presence(alice, agent.jid, is_presence("available"))
        assert shown["status"] == ""


async def test_presence_shows_that_the_agent_is_paused(prosody: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), prosody, tmp_path) as agent, connect_person(prosody) as alice:
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        agent.runner.control.set_paused(True)
        await next_presence(alice, agent.jid, is_presence("away", "paused"))
        agent.runner.control.set_paused(False)
        await next_presence(alice, agent.jid, is_presence("available", ""))


async def test_presence_shows_that_nothing_can_be_stored(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the file is missing (No such file or directory)", "cannot store received messages")
    timings, store_timings = ConnectionTimings(presence_interval_s=0.1), StoreTimings(retry_s=0.1)
    async with (
        run_agent(Weather(), prosody, tmp_path, timings=timings, store_timings=store_timings) as agent,
        connect_person(prosody) as alice,
    ):
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        path = agent.database.name
        await asyncio.to_thread(os.rename, path, f"{path}.aside")
        alice.send("Berlin", agent.jid)
        await next_presence(alice, agent.jid, is_presence("away", "cannot store anything at the moment"))
        await asyncio.to_thread(os.rename, f"{path}.aside", path)
        await next_presence(alice, agent.jid, is_presence("available", ""))


async def test_an_agent_is_away_while_it_starts_and_while_it_stops(real_server: XmppServer, tmp_path: Path) -> None:
    gated_agent = GatedAgent()
    gated_agent.may_start.set()
    async with run_agent(gated_agent, real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await subscribe(alice, agent.jid)
        alice.send("work", agent.jid)
        await eventually(lambda: agent.runner.mailboxes.busy_count == 1)
        stopping = asyncio.create_task(agent.stop())
        await next_presence(alice, agent.jid, is_presence("away", "stopping"))
        alice.send("while it stops", agent.jid)
        gated_agent.may_answer.set()
        assert (await alice.answer())["body"] == "work"
        await next_presence(alice, agent.jid, is_presence("unavailable"))
        await stopping
        alice.send("while it is gone", agent.jid)
        gated_agent.may_start.clear()
        starting = asyncio.create_task(agent.start())
        await next_presence(alice, agent.jid, is_presence("away", "starting"))
        gated_agent.may_start.set()
        await starting
        await next_presence(alice, agent.jid, is_presence("available", ""))
        answers = {(await alice.answer())["body"], (await alice.answer())["body"]}
        assert answers == {"while it stops", "while it is gone"}


async def test_an_agent_announces_itself_again_after_a_reconnect(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await subscribe(alice, agent.jid)
        await wait_until_published(agent)
        agent.host.connection.client.stream_management.sm_id = None  # so that the session is not resumed
        agent.cut()
        await eventually(lambda: agent.host.connection.session_count == 2)
        await next_presence(alice, agent.jid, is_presence("unavailable"))
        shown = await next_presence(alice, agent.jid, is_presence("available"))
        assert shown.xml.findtext(PHOTO) == draw_avatar("weather & co").hash
        assert shown.xml.find(CAPS) is not None


async def test_an_invalid_presence_does_no_harm(prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only on Prosody: ejabberd does not deliver such a presence."""
    async with run_agent(Echo(), prosody, tmp_path) as agent, connect_person(prosody) as alice:
        odd = "<show>lunch</show><show>xa</show><priority>very</priority><status/>"
        alice.send_xml(f"<presence xmlns='jabber:client' to='{agent.jid}'>{odd}</presence>")
        await assert_nothing_else_came(alice, agent.jid)
        await eventually(lambda: alice.jid in agent.host.presence.contacts)
        assert agent.host.presence.get_contact(alice.jid).is_available()
        assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# Who may see it


@on_both_servers
async def test_a_strangers_subscription_is_refused_and_gets_neither_presence_nor_card(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server, OTHER_DOMAIN) as mallory:
        await wait_until_published(agent)
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await next_presence(mallory, agent.jid, is_presence("unsubscribed"))
        with pytest.raises(IqError):
            await published_item(mallory, agent.jid, CARD)
        assert all(stanza["from"].bare != agent.jid for stanza in mallory.presences.unread())
        assert all(stanza["from"].bare != agent.jid for stanza in mallory.messages.unread())


@on_both_servers
async def test_strangers_get_the_same_errors_whether_the_agent_is_online_or_not(
    real_server: XmppServer, tmp_path: Path
) -> None:
    questions = (
        "<query xmlns='http://jabber.org/protocol/disco#info'/>",
        "<query xmlns='http://jabber.org/protocol/disco#items' node='http://jabber.org/protocol/commands'/>",
        "<query xmlns='jabber:iq:version'/>",
        "<ping xmlns='urn:xmpp:ping'/>",
        "<command xmlns='http://jabber.org/protocol/commands' node='help'/>",
    )
    async with (
        run_agent(lambda peers: Weather(), real_server, tmp_path) as agent,
        connect_person(real_server, OTHER_DOMAIN) as mallory,
    ):

        async def error_conditions() -> list[tuple[str, str]]:
            conditions = []
            for question in questions:
                for kind in ("get", "set"):
                    iq = mallory.xmpp.make_iq(ito=f"{agent.jid}/agent", itype=kind)
                    iq.xml.append(fromstring(question))
                    with pytest.raises(IqError) as refused:
                        await iq.send(timeout=TIMEOUT_S)
                    error = refused.value.iq["error"]
                    conditions.append((error["type"], error["condition"]))
            return conditions

        await wait_until_published(agent)
        online = await error_conditions()
        await agent.stop()
        assert online == await error_conditions()
        await agent.start()


async def test_people_who_are_no_longer_admitted_see_nothing_after_the_restart(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Weather(), real_server, tmp_path) as agent,
        connect_person(real_server) as alice,
        connect_person(real_server) as bob,
    ):
        await subscribe(alice, agent.jid)
        await subscribe(bob, agent.jid)
        await agent.stop()
        await next_presence(alice, agent.jid, is_presence("unavailable"))
        await next_presence(bob, agent.jid, is_presence("unavailable"))
        agent.allow = [bob.jid]
        await agent.start()
        await next_presence(bob, agent.jid, is_presence("available"))
        seen = [(await next_presence(alice, agent.jid))["type"]]
        while seen[-1] != "unsubscribed":
            seen.append((await next_presence(alice, agent.jid))["type"])
        assert "available" not in seen
        await wait_until_published(agent)
        unread = [stanza["type"] for stanza in alice.presences.unread() if stanza["from"].bare == agent.jid]
        assert set(unread) <= {"unavailable"}


@on_both_servers
async def test_an_admitted_person_is_approved_and_subscribed_back(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        alice.xmpp.roster.auto_authorize = None
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        kinds: set[str] = set()
        while not kinds >= {"subscribed", "subscribe", "available"}:
            kinds.add((await next_presence(alice, agent.jid))["type"])
        roster = alice.xmpp.client_roster
        await eventually(lambda: bool(roster[agent.jid]["to"]))
        alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
        await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])


async def test_a_person_who_unsubscribes_and_subscribes_at_once_sees_the_agent_again(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with run_agent(Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await subscribe(alice, agent.jid)
        for kind in ("unsubscribe", "subscribe"):
            alice.xmpp.send_presence(pto=agent.jid, ptype=kind)
        await next_presence(alice, agent.jid, is_presence("unavailable"))
        await next_presence(alice, agent.jid, is_presence("available"))
        await eventually(lambda: agent.host.client.client_roster[alice.jid]["from"])


# Its introduction


async def test_an_agent_introduces_itself_once_to_each_person(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(lambda peers: Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        introduction = await alice.answer()
        assert introduction["body"] == (
            "Hello, I am weather & co. Says what the weather will be.\n"
            "What I can do:\n- forecast: Says what the weather will be.\n- warn: Warns of storms.\n"
            "/help lists the commands. If your client shows its own help instead, write a space before the slash."
        )
        assert introduction["type"] == "chat"
        assert introduction["id"]
        assert introduction.xml.find(MARKER) is not None
        assert introduction.xml.find("{http://jabber.org/protocol/chatstates}active") is not None  # so that clients send theirs
        for _ in range(2):
            alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
            await next_presence(alice, agent.jid, is_presence("unavailable"))
            await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])
            alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            await next_presence(alice, agent.jid, is_presence("available"))
            await assert_nothing_else_came(alice, agent.jid)
            await agent.restart()
        memory = AgentInteractionMemory(agent.jid, tmp_path)
        assert (await erase_person(agent.repository, memory, alice.jid)).variables >= 1
        alice.xmpp.send_presence(pto=agent.jid, ptype="unsubscribe")
        await eventually(lambda: not agent.host.client.client_roster[alice.jid]["from"])
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        assert (await alice.answer())["body"].startswith("Hello, I am weather & co.")


async def test_an_introduction_is_in_the_language_of_the_person(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(lambda peers: Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        alice.send_xml(f"<presence to='{agent.jid}' type='subscribe' xml:lang='de-AT'/>")
        assert (await alice.answer())["body"] == (
            "Hallo, ich bin weather & co. Says what the weather will be.\n"
            "Das kann ich:\n- forecast: Says what the weather will be.\n- warn: Warns of storms.\n"
            "/help zeigt die Befehle. "
            "Zeigt Ihr Programm stattdessen seine eigene Hilfe, schreiben Sie ein Leerzeichen vor den Schrägstrich."
        )


async def test_an_introduction_is_in_the_language_that_the_person_has_set(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(lambda peers: Weather(), real_server, tmp_path) as agent, connect_person(real_server) as alice:
        await alice.ask("/settings language es", agent.jid)
        alice.send_xml(f"<presence to='{agent.jid}' type='subscribe' xml:lang='de'/>")
        assert (await alice.answer())["body"].startswith("Hola, soy weather & co. Says what the weather will be.\nEsto es")


async def test_agents_do_not_introduce_themselves_to_agents(real_server: XmppServer, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    async with run_agent(Weather(), real_server, tmp_path) as one, run_agent(Echo(), real_server, tmp_path / "b") as other:
        one.host.presence.subscribe(other.jid)
        for agent, peer in ((one, other), (other, one)):
            await eventually(lambda a=agent, p=peer: a.host.client.client_roster[p.jid]["subscription"] == "both")  # type: ignore[misc]  # mypy knows no type of a lambda with a default
        for agent in (one, other):
            profile = agent.host._profile
            assert profile is not None
            await eventually(lambda c=profile: not c._tasks)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            for peer in (one, other):
                assert await agent.repository.load_variables("person", peer.jid) == {}


async def test_an_agent_does_not_introduce_itself_to_other_bots(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), real_server, tmp_path) as agent, connect_person(real_server, kind="bot") as bot:
        bot.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await next_presence(bot, agent.jid, is_presence("available"))
        profile = agent.host._profile
        assert profile is not None
        await eventually(lambda: not profile._tasks)
        await assert_nothing_else_came(bot, agent.jid)


# Where the server knows nothing of all this


async def test_the_profile_does_no_harm_on_the_embedded_server(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: Weather(), embedded, tmp_path) as agent,
        StockClient(*await embedded.account(), embedded) as alice,
    ):
        assert await alice.ask("hello", agent.jid) == "hello"
        await agent.restart()
        assert await alice.ask("hello again", agent.jid) == "hello again"
        agent.cut()
        await eventually(lambda: agent.host.connection.session_count == 2)
        async with asyncio.timeout(TIMEOUT_S):
            while True:  # what comes before the new presence is lost there
                alice.send("and again", agent.jid)
                with suppress(TimeoutError):
                    assert (await alice.answer(0.5))["body"] == "and again"
                    break
