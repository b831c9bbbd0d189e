"""What was sent to an agent while it was away is taken from the server's archive (XEP-0313), each message once."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element

import pytest
from spade.behaviour import CyclicBehaviour
from spade.template import Template

from spade_coreason.contracts.base import utc_now
from spade_coreason.domain.conversation import Rules
from spade_coreason.runtime.policy import Policy
from spade_coreason.xmpp.archive import POSITION_KEY
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.hosting import UNLIMITED, Echo, OnlineAgent, Tunnel, envelope, run_agent, run_platform
from tests.support.servers import ejabberd as ejabberd_server, prosody as prosody_server
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S, eventually
from tests.xmpp.test_live_messages import CORRECTS, Pen, met

MARK = "<answer xmlns='urn:spade-coreason:answer:0'/>"
SERVERS = {
    "prosody": (prosody_server.prosody, "Prosody", prosody_server.installed),
    "ejabberd": (ejabberd_server.ejabberd, "ejabberd", ejabberd_server.installed),
}


Pool: TypeAlias = Callable[[str, bool], XmppServer]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Servers with an archive: of a kind, with offline mail or without, each started when it is wanted first."""
    with ExitStack() as stack:

        @cache
        def server(kind: str, offline: bool) -> XmppServer:
            make, name, installed = SERVERS[kind]
            require(name, installed())
            directory = tmp_path_factory.mktemp(f"{kind}-archive")
            return stack.enter_context(make(directory, archive=True, offline=offline))

        yield server


@pytest.fixture(params=list(SERVERS))
def both(request: pytest.FixtureRequest, pool: Pool) -> XmppServer:
    """A server that keeps mail for who is away, and an archive."""
    return pool(request.param, True)


@pytest.fixture(params=list(SERVERS))
def archive_only(request: pytest.FixtureRequest, pool: Pool) -> XmppServer:
    """A server on which nothing waits: what comes for somebody who is away is in the archive alone."""
    return pool(request.param, False)


@pytest.fixture(params=[(kind, offline) for kind in SERVERS for offline in (True, False)], ids=str)
def archiving(request: pytest.FixtureRequest, pool: Pool) -> XmppServer:
    """Each of them."""
    return pool(*request.param)


def asked(agent: OnlineAgent) -> list[str]:
    return [request.payload["query"] for request in agent.agent.requests]


async def current(agent: OnlineAgent) -> None:
    """The agent has read its archive to the end."""
    await eventually(lambda: agent.host.archive.is_caught_up)


@asynccontextmanager
async def alice_on(server: XmppServer) -> AsyncIterator[StockClient]:
    async with StockClient(*await server.account(), server, plugins=("xep_0199",)) as client:
        yield client


async def sent(client: StockClient) -> None:
    """The server has everything that the client sent."""
    await client.xmpp.plugin["xep_0199"].ping(client.xmpp.boundjid.domain, timeout=PATIENCE_S)


async def until_last(client: StockClient, agent: OnlineAgent) -> list[str]:
    """What was said until the answer to a question that is asked now, sorted."""
    client.send("last", agent.jid)
    said: list[str] = []
    while (text := str((await client.answer())["body"])) != "last":
        said.append(text)
    return sorted(said)


def small_pages(host: HostedAgent) -> None:
    host.archive.page_size = 3


async def test_what_only_the_archive_has_is_answered_once_and_nothing_from_before_the_first_start(
    archive_only: XmppServer, tmp_path: Path
) -> None:
    url, echo = f"sqlite+aiosqlite:///{tmp_path}/agent.db", Echo()
    agent = OnlineAgent(
        await archive_only.account(), archive_only, url, lambda peers: echo, UNLIMITED, None, prepare=small_pages
    )
    async with alice_on(archive_only) as alice:
        alice.send("before its first start", agent.jid)
        await sent(alice)
        await agent.start()
        await current(agent)
        assert await until_last(alice, agent) == []
        await agent.stop()
        late = [f"late {number}" for number in range(7)]
        for text in late:
            alice.send(text, agent.jid, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
        alice.send("without an id", agent.jid, id="")
        alice.send("a friend's greeting", agent.jid, extra_xml=MARK)
        await sent(alice)
        await agent.start()
        await current(agent)
        assert await until_last(alice, agent) == [*late, "without an id"]
        assert "delayed_since" in echo.requests[1].metadata
        assert agent.host.archive.received_count >= 8
        for end in (agent.stop, agent.vanish):  # in the second one the place is not kept
            await end()
            await agent.start()
            await current(agent)
            assert await until_last(alice, agent) == []
        await agent.stop()


async def test_what_waits_at_the_server_and_is_in_the_archive_too_runs_once(both: XmppServer, tmp_path: Path) -> None:
    async with alice_on(both) as alice, run_agent(Echo(), both, tmp_path, prepare=small_pages) as agent:
        await current(agent)
        await agent.stop()
        late = [f"late {number}" for number in range(5)]
        for text in late:
            alice.send(text, agent.jid)
        alice.send("without an id", agent.jid, id="")
        alice.send(None, agent.jid, type="normal", extra_xml=envelope({"query": "of a program"}))  # no archive holds it
        await sent(alice)
        await agent.start()
        await current(agent)
        await eventually(lambda: len(agent.agent.requests) == 7)
        assert set(late) <= set(await until_last(alice, agent))
        assert sorted(asked(agent)) == sorted([*late, "without an id", "of a program", "last"])


async def test_what_another_device_of_its_account_got_meanwhile_is_answered(both: XmppServer, tmp_path: Path) -> None:
    async with alice_on(both) as alice, run_agent(Echo(), both, tmp_path) as agent:
        await current(agent)
        await agent.stop()
        async with StockClient(*agent.account, both, resource="desk", priority=5) as desk:
            alice.send("is anybody there?", agent.jid)
            assert (await desk.answer())["body"] == "is anybody there?"
            desk.send("a word from the desk", alice.jid)
            assert (await alice.answer())["body"] == "a word from the desk"
        await agent.start()
        assert (await alice.answer())["body"] == "is anybody there?"
        await current(agent)
        assert await until_last(alice, agent) == []


async def test_after_an_outage_longer_than_the_resumption_nothing_is_missed(archiving: XmppServer, tmp_path: Path) -> None:
    async with (
        Tunnel(archiving) as tunnel,
        alice_on(archiving) as alice,
        run_agent(Echo(), archiving, tmp_path, port=tunnel.port) as agent,
    ):
        await current(agent)
        assert await alice.ask("before", agent.jid) == "before"
        await agent.settled()
        tunnel.dropped_direction = "to the agent"
        alice.send("on its way", agent.jid)
        await sent(alice)
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not agent.host.is_alive())
        alice.send("while it is away", agent.jid)
        await sent(alice)
        agent.host.connection.client.stream_management.sm_id = None  # the session is not to be had any more
        tunnel.dropped_direction = ""
        tunnel.is_open = True
        await eventually(lambda: agent.host.archive.is_caught_up and agent.host.connection.session_count == 2)
        await eventually(lambda: len(agent.agent.requests) == 3)
        assert await until_last(alice, agent) == ["on its way", "while it is away"]
        # What the server still held comes first, and only then what the archive alone has: now and then in another order.
        assert sorted(asked(agent)) == sorted(["before", "on its way", "while it is away", "last"])


async def test_what_was_not_on_disk_when_it_was_killed_is_not_lost(both: XmppServer, tmp_path: Path) -> None:
    """Prosody delivers nothing again to those who read the archive; and the place there is not ahead of the disk."""
    async with (
        run_platform(both, tmp_path, options={"journal": str(tmp_path / "journal")}) as (child, jid),
        alice_on(both) as alice,
    ):
        assert await alice.ask("before", jid) == "noted: before"
        with closing(sqlite3.connect(tmp_path / "data" / "platform.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("hold this", jid)
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=PATIENCE_S)
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=PATIENCE_S)
            assert await child.signal(signal.SIGKILL) == -signal.SIGKILL
        await child.start()
        while (heard := (await alice.answer())["body"]) != "noted: hold this":
            assert heard == "noted: before"


async def test_more_than_may_wait_is_taken_as_there_is_room(archive_only: XmppServer, tmp_path: Path) -> None:
    policy = Policy(rules=Rules(max_interactions=0), queue=3)
    async with alice_on(archive_only) as alice, run_agent(Echo(), archive_only, tmp_path, policy=policy) as agent:
        await current(agent)
        await agent.stop()
        late = [f"late {number:02}" for number in range(30)]
        for text in late:
            alice.send(text, agent.jid)
        await sent(alice)
        await agent.start()
        assert [(await alice.answer())["body"] for _ in late] == late


async def test_a_place_that_the_archive_has_forgotten_is_found_by_its_time(archive_only: XmppServer, tmp_path: Path) -> None:
    async with alice_on(archive_only) as alice, run_agent(Echo(), archive_only, tmp_path) as agent:
        await current(agent)
        assert await alice.ask("before", agent.jid) == "before"
        # ejabberd's ids are times, and never unknown.
        gone = "1000" if archive_only.kind == "ejabberd" else "of-a-message-that-is-gone"
        await agent.store.save_agent_value(POSITION_KEY, [gone, utc_now().isoformat()])
        await agent.stop()
        alice.send("late", agent.jid)
        await sent(alice)
        await agent.start()
        assert (await alice.answer())["body"] == "late"
        await current(agent)
        assert asked(agent) == ["before", "late"]


async def test_what_is_older_than_the_inbox_remembers_is_left_alone(pool: Pool, tmp_path: Path) -> None:
    server = pool("prosody", False)
    async with alice_on(server) as alice, run_agent(Echo(), server, tmp_path) as agent:
        await current(agent)
        await agent.stop()
        for text in ("of last week", "of today"):
            alice.send(text, agent.jid)
        await sent(alice)
        with closing(sqlite3.connect(server.directory / "data" / "archive.sqlite")) as archive, archive:
            week = 'UPDATE prosodyarchive SET "when" = "when" - 7 * 86400 WHERE user = ? AND value LIKE \'%of last week%\''
            assert archive.execute(week, (agent.jid.partition("@")[0],)).rowcount == 1
        await agent.start()
        await current(agent)
        assert await until_last(alice, agent) == ["of today"]


async def test_its_place_is_never_ahead_of_the_disk(both: XmppServer, tmp_path: Path) -> None:
    timings = ConnectionTimings(archive_position_interval_s=0.05)
    async with alice_on(both) as alice, run_agent(Echo(), both, tmp_path, timings=timings) as agent:
        await current(agent)
        archive = agent.host.archive
        before = archive._position
        assert await alice.ask("one", agent.jid) == "one"
        await eventually(lambda: archive._position != before)
        place = archive._position
        with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("two", agent.jid)
            await eventually(lambda: len(archive._received) == 1)
            await asyncio.sleep(0.2)  # four times it could have gone on
            assert archive._position == place
        assert (await alice.answer())["body"] == "two"
        await eventually(lambda: archive._position != place)


async def test_where_there_is_no_archive_nothing_of_this_happens(
    real_server: XmppServer, embedded: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for server in (real_server, embedded):
        async with (
            StockClient(*await server.account(), server) as alice,
            run_agent(Echo(), server, tmp_path) as agent,
        ):
            if (task := agent.host.archive._task) is not None:
                await task
            assert await alice.ask("hello", agent.jid) == "hello"
            assert not agent.host.archive.is_caught_up
            assert await agent.store.load_agent_value(POSITION_KEY) is None
    assert [record.getMessage() for record in caplog.records if "archive" in record.getMessage()] == []


async def test_a_stranger_hears_nothing_about_what_is_old(archive_only: XmppServer, tmp_path: Path) -> None:
    async with alice_on(archive_only) as mallory, run_agent(Echo(), archive_only, tmp_path, access=["example.org"]) as agent:
        await current(agent)
        await agent.stop()
        mallory.send("let me in", agent.jid)
        mallory.send(
            None, agent.jid, type="normal", extra_xml="<json xmlns='urn:xmpp:json:0'>{</json><store xmlns='urn:xmpp:hints'/>"
        )
        await sent(mallory)
        await agent.start()
        await current(agent)
        assert agent.host.archive.received_count >= 1
        assert agent.gateway.dropped["no request"] >= 1
        mallory.send("let me in now", agent.jid)
        assert "may not talk with you" in (await mallory.answer())["body"]
        assert mallory.messages.empty()
        assert asked(agent) == []


async def test_what_pretends_to_be_of_the_archive_or_a_carbon_is_not_taken(both: XmppServer, tmp_path: Path) -> None:
    async with alice_on(both) as mallory, alice_on(both) as alice, run_agent(Echo(), both, tmp_path) as agent:
        await current(agent)
        who = f"from='{alice.jid}/x' to='{agent.jid}' type='chat' id='1'"
        inner = f"<message xmlns='jabber:client' {who}><body>lies</body></message>"
        forwarded = f"<forwarded xmlns='urn:xmpp:forward:0'>{inner}</forwarded>"
        mallory.send(
            "mine", agent.jid, extra_xml=f"<stanza-id xmlns='urn:xmpp:sid:0' by='{agent.jid}' id='99999999999999999'/>"
        )
        assert (await mallory.answer())["body"] == "mine"
        known: list[str] = []  # what the agent asks under, which does not reach the server, and mallory knows

        def swallow(stanza: Any) -> Any:
            query = stanza.xml.find("{urn:xmpp:mam:2}query")
            if query is None:
                return stanza
            known.append(query.get("queryid", ""))
            return None

        agent.host.connection.client.add_filter("out", swallow)
        agent.host.archive.start(agent.store)
        await eventually(lambda: bool(known))
        result = f"<result xmlns='urn:xmpp:mam:2' queryid='{known[0]}' id='9'>{forwarded}</result>"
        mallory.send(None, agent.jid, extra_xml=result)
        for kind in ("received", "sent"):
            mallory.send(None, agent.jid, extra_xml=f"<{kind} xmlns='urn:xmpp:carbons:2'>{forwarded}</{kind}>")
        assert await mallory.ask("and this", agent.jid) == "and this"
        assert agent.host.archive._page == []
        await agent.restart()
        await current(agent)
        assert await until_last(alice, agent) == []
        assert asked(agent) == ["mine", "and this", "last"]


async def test_carbons_of_its_own_account_are_no_requests(both: XmppServer, tmp_path: Path) -> None:
    """The agent does not ask for carbons; here they are switched on for it."""
    async with (
        alice_on(both) as alice,
        run_agent(Echo(), both, tmp_path) as agent,
        StockClient(*agent.account, both, resource="desk", priority=5) as desk,
    ):
        enable = agent.host.client.make_iq_set(sub=Element("{urn:xmpp:carbons:2}enable"))
        await enable.send(timeout=PATIENCE_S)
        alice.send("for the desk", f"{agent.jid}/desk")
        assert (await desk.answer())["body"] == "for the desk"
        desk.send("from the desk", alice.jid)
        assert (await alice.answer())["body"] == "from the desk"
        alice.send("for the agent", f"{agent.jid}/agent")
        assert (await alice.answer())["body"] == "for the agent"
        assert agent.gateway.dropped["no request"] >= 2
        assert asked(agent) == ["for the agent"]


async def test_a_behaviour_gets_what_is_in_the_archive_once(archive_only: XmppServer, tmp_path: Path) -> None:
    heard: list[str] = []
    overheard: list[str] = []

    class Listens(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            if (message := await self.receive(timeout=1)) is not None:
                heard.append(message.body)

    class Overhears(CyclicBehaviour):  # type: ignore[misc]  # likewise
        async def run(self) -> None:
            if (message := await self.receive(timeout=1)) is not None:
                overheard.append(message.body)

    def prepare(host: HostedAgent) -> None:
        host.add_behaviour(Listens(), Template(body="for the behaviour"))
        host.add_behaviour(Overhears())

    async with alice_on(archive_only) as alice, run_agent(Echo(), archive_only, tmp_path, prepare=prepare) as agent:
        await current(agent)
        alice.send("for the behaviour", agent.jid)
        await eventually(lambda: heard == ["for the behaviour"])
        agent.host.connection.client.stream_management.sm_id = None
        agent.cut()
        await eventually(lambda: agent.host.archive.is_caught_up and agent.host.connection.session_count == 2)
        assert await until_last(alice, agent) == []
        assert heard == ["for the behaviour"]
        await agent.stop()
        alice.send("for the behaviour", agent.jid)
        await sent(alice)
        await agent.start()
        await eventually(lambda: len(heard) == 2)
        assert asked(agent) == ["last"]
        await eventually(lambda: overheard == ["for the behaviour", "last", "for the behaviour"])


# What is said by an agent


async def test_the_archive_holds_the_last_version_and_nothing_else(both: XmppServer, tmp_path: Path) -> None:
    pen = Pen()
    async with (
        run_agent(pen.agent, both, tmp_path) as agent,
        StockClient(*await both.account(), both, plugins=(*CORRECTS, "xep_0313")) as alice,
    ):
        await met(alice, agent)
        alice.send("go", agent.jid)
        pen.write("It ")
        await alice.answer()
        pen.write("is ")
        await alice.answer()
        pen.write("sunny", None)
        assert (await alice.answer())["body"] == "It is sunny"

        async def archived() -> list[str]:
            found = await alice.xmpp.plugin["xep_0313"].retrieve(with_jid=agent.jid, timeout=PATIENCE_S)
            return [m["mam_result"]["forwarded"]["stanza"]["body"] for m in found["mam"]["results"]]

        async with asyncio.timeout(PATIENCE_S):
            while (texts := await archived()) != ["go", "It is sunny"]:
                assert len(texts) < 2, texts
                await asyncio.sleep(0.1)
