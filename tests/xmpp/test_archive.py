"""Messages that were sent while an agent was offline are read from the server's archive (XEP-0313), each once."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from spade.behaviour import CyclicBehaviour
from spade.template import Template

from spade_coreason.contracts.times import utc_now
from spade_coreason.testing import PlatformLimits, Policy, Rules
from spade_coreason.xmpp.archive import POSITION_KEY
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.timings import ConnectionTimings
from tests.support.hosting import UNLIMITED, Echo, OnlineAgent, Tunnel, envelope, run_agent, run_platform
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import SERVER_KINDS, GetServer, kinds_ejabberd_in_release
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.test_live_messages import CORRECTION_PLUGINS, StreamController, wait_until_known

MARK = "<answer xmlns='urn:spade-coreason:answer:0'/>"


@pytest.fixture(params=kinds_ejabberd_in_release)
def archive_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server with offline storage and an archive."""
    return get_server(request.param, archive=True)


@pytest.fixture(params=kinds_ejabberd_in_release)
def archive_only_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server without offline storage: messages for an account that is offline are in the archive only."""
    return get_server(request.param, archive=True, offline=False)


@pytest.fixture(
    params=[
        pytest.param((kind, offline), marks=[pytest.mark.release] if kind == "ejabberd" else [])
        for kind in SERVER_KINDS
        for offline in (True, False)
    ],
    ids=str,
)
def any_archive_server(request: pytest.FixtureRequest, get_server: GetServer) -> XmppServer:
    """A server with an archive; the test runs on each, with offline storage and without."""
    kind, offline = request.param
    return get_server(kind, archive=True) if offline else get_server(kind, archive=True, offline=False)


def queries_of(agent: OnlineAgent) -> list[str]:
    return [request.payload["query"] for request in agent.agent.requests]


async def wait_until_caught_up(agent: OnlineAgent) -> None:
    """Wait until the agent has read its archive to the end."""
    await eventually(lambda: agent.host.archive.is_caught_up)


@asynccontextmanager
async def connect_client(server: XmppServer) -> AsyncIterator[StockClient]:
    async with StockClient(*await server.account(), server, plugins=("xep_0199",)) as client:
        yield client


async def wait_until_sent(client: StockClient) -> None:
    """Wait until the server has everything that the client sent."""
    await client.xmpp.plugin["xep_0199"].ping(client.xmpp.boundjid.domain, timeout=TIMEOUT_S)


async def texts_before_last(client: StockClient, agent: OnlineAgent) -> list[str]:
    """Ask "last" and return the sorted texts that come before its answer."""
    client.send("last", agent.jid)
    texts: list[str] = []
    while (text := str((await client.answer())["body"])) != "last":
        texts.append(text)
    return sorted(texts)


def set_small_pages(host: HostedAgent) -> None:
    host.archive.page_size = 3


async def test_messages_only_in_the_archive_are_answered_once_and_none_from_before_the_first_start(
    archive_only_server: XmppServer, tmp_path: Path
) -> None:
    url, echo = f"sqlite+aiosqlite:///{tmp_path}/agent.db", Echo()
    agent = OnlineAgent(
        await archive_only_server.account(),
        archive_only_server,
        url,
        lambda peers: echo,
        UNLIMITED,
        None,
        prepare=set_small_pages,
    )
    async with connect_client(archive_only_server) as alice:
        alice.send("before its first start", agent.jid)
        await wait_until_sent(alice)
        await agent.start()
        await wait_until_caught_up(agent)
        assert await texts_before_last(alice, agent) == []
        await agent.stop()
        late = [f"late {number}" for number in range(7)]
        for text in late:
            alice.send(text, agent.jid, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
        alice.send("without an id", agent.jid, id="")
        alice.send("a friend's greeting", agent.jid, extra_xml=MARK)
        await wait_until_sent(alice)
        await agent.start()
        await wait_until_caught_up(agent)
        assert await texts_before_last(alice, agent) == [*late, "without an id"]
        assert "delayed_since" in echo.requests[1].metadata
        assert agent.host.archive.received_count >= 8
        for end in (agent.stop, agent.crash):  # in the second one the place is not kept
            await end()
            await agent.start()
            await wait_until_caught_up(agent)
            assert await texts_before_last(alice, agent) == []
        await agent.stop()


@pytest.mark.parametrize("archive_server", SERVER_KINDS, indirect=True)
async def test_messages_in_offline_storage_and_archive_run_once(archive_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_client(archive_server) as alice,
        run_agent(Echo(), archive_server, tmp_path, prepare=set_small_pages) as agent,
    ):
        await wait_until_caught_up(agent)
        await agent.stop()
        late = [f"late {number}" for number in range(5)]
        for text in late:
            alice.send(text, agent.jid)
        alice.send("without an id", agent.jid, id="")
        alice.send(None, agent.jid, type="normal", extra_xml=envelope({"query": "of a program"}))  # no archive holds it
        await wait_until_sent(alice)
        await agent.start()
        await wait_until_caught_up(agent)
        await eventually(lambda: len(agent.agent.requests) == 7)
        assert set(late) <= set(await texts_before_last(alice, agent))
        assert sorted(queries_of(agent)) == sorted([*late, "without an id", "of a program", "last"])


async def test_a_file_without_a_text_that_comes_while_the_agent_is_away_is_answered_once(
    any_archive_server: XmppServer, tmp_path: Path
) -> None:
    url = "https://example.org/cat.png"
    file = f"<x xmlns='jabber:x:oob'><url>{url}</url></x><store xmlns='urn:xmpp:hints'/>"  # without the hint, no archive has it
    async with connect_client(any_archive_server) as alice, run_agent(Echo(), any_archive_server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        await agent.stop()
        alice.send(None, agent.jid, extra_xml=file)
        alice.send(url, agent.jid, extra_xml=file)
        await wait_until_sent(alice)
        for end in (agent.stop, agent.crash):
            await agent.start()
            await wait_until_caught_up(agent)
            await eventually(lambda: len(agent.agent.requests) >= 2)
            await end()
        await agent.start()
        await wait_until_caught_up(agent)
        assert set(await texts_before_last(alice, agent)) == {url}
        files, [last] = agent.agent.requests[:-1], agent.agent.requests[-1:]
        assert [[one["url"] for one in request.payload["attachments"]] for request in files] == [[url]] * 2
        assert last.payload == {"query": "last"}


async def test_messages_that_another_device_of_the_account_received_are_answered(
    archive_server: XmppServer, tmp_path: Path
) -> None:
    async with connect_client(archive_server) as alice, run_agent(Echo(), archive_server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        await agent.stop()
        async with StockClient(*agent.account, archive_server, resource="desk", priority=5) as desk:
            alice.send("is anybody there?", agent.jid)
            assert (await desk.answer())["body"] == "is anybody there?"
            desk.send("a word from the desk", alice.jid)
            assert (await alice.answer())["body"] == "a word from the desk"
        await agent.start()
        assert (await alice.answer())["body"] == "is anybody there?"
        await wait_until_caught_up(agent)
        assert await texts_before_last(alice, agent) == []


async def test_after_an_outage_longer_than_the_resumption_nothing_is_lost(
    any_archive_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        Tunnel(any_archive_server) as tunnel,
        connect_client(any_archive_server) as alice,
        run_agent(Echo(), any_archive_server, tmp_path, port=tunnel.port) as agent,
    ):
        await wait_until_caught_up(agent)
        assert await alice.ask("before", agent.jid) == "before"
        await agent.settled()
        tunnel.dropped_direction = "to the agent"
        alice.send("on its way", agent.jid)
        await wait_until_sent(alice)
        tunnel.is_open = False
        tunnel.cut()
        await eventually(lambda: not agent.host.is_alive())
        alice.send("while it is away", agent.jid)
        await wait_until_sent(alice)
        agent.host.connection.client.stream_management.sm_id = None  # the session is not to be had any more
        tunnel.dropped_direction = ""
        tunnel.is_open = True
        await eventually(lambda: agent.host.archive.is_caught_up and agent.host.connection.session_count == 2)
        await eventually(lambda: len(agent.agent.requests) == 3)
        assert await texts_before_last(alice, agent) == ["on its way", "while it is away"]
        assert queries_of(agent) == ["before", "on its way", "while it is away", "last"]


async def test_a_live_message_waits_for_older_ones_of_the_archive(archive_only_server: XmppServer, tmp_path: Path) -> None:
    def set_tiny_pages(host: HostedAgent) -> None:
        host.archive.page_size = 1

    async with (
        connect_client(archive_only_server) as alice,
        run_agent(Echo(), archive_only_server, tmp_path, prepare=set_tiny_pages) as agent,
    ):
        await wait_until_caught_up(agent)
        await agent.stop()
        late = [f"late {number:02}" for number in range(30)]
        for text in late:
            alice.send(text, agent.jid)
        await wait_until_sent(alice)
        await agent.start()
        alice.send("live", agent.jid)
        alice.send("live, too", agent.jid)
        await alice.xmpp.plugin["xep_0199"].ping(f"{agent.jid}/agent", timeout=TIMEOUT_S)
        assert agent.host.archive.is_reading
        await eventually(lambda: len(agent.agent.requests) == 32)
        assert queries_of(agent) == [*late, "live", "live, too"]


@pytest.mark.parametrize("archive_server", SERVER_KINDS, indirect=True)
async def test_messages_not_on_disk_at_kill_9_are_not_lost(archive_server: XmppServer, tmp_path: Path) -> None:
    """Prosody delivers nothing again to a client that reads the archive. The stored position is never ahead of the disk."""
    async with (
        run_platform(archive_server, tmp_path, options={"journal": str(tmp_path / "journal")}) as (child, jid),
        connect_client(archive_server) as alice,
    ):
        assert await alice.ask("before", jid) == "noted: before"
        with closing(sqlite3.connect(tmp_path / "data" / "platform.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("hold this", jid)
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=TIMEOUT_S)
            await alice.xmpp.plugin["xep_0199"].ping(f"{jid}/agent", timeout=TIMEOUT_S)
            assert await child.signal(signal.SIGKILL) == -signal.SIGKILL
        await child.start()
        while (text := (await alice.answer())["body"]) != "noted: hold this":
            assert text == "noted: before"


async def test_more_messages_than_the_queue_holds_are_read_as_there_is_room(
    archive_only_server: XmppServer, tmp_path: Path
) -> None:
    policy = Policy(limits=PlatformLimits(queue=3), rules=Rules(max_interactions=0))
    async with (
        connect_client(archive_only_server) as alice,
        run_agent(Echo(), archive_only_server, tmp_path, policy=policy) as agent,
    ):
        await wait_until_caught_up(agent)
        await agent.stop()
        late = [f"late {number:02}" for number in range(30)]
        for text in late:
            alice.send(text, agent.jid)
        await wait_until_sent(alice)
        await agent.start()
        assert [(await alice.answer())["body"] for _ in late] == late


async def test_a_position_that_the_archive_has_deleted_is_found_by_its_time(
    archive_only_server: XmppServer, tmp_path: Path
) -> None:
    async with connect_client(archive_only_server) as alice, run_agent(Echo(), archive_only_server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        assert await alice.ask("before", agent.jid) == "before"
        # ejabberd's ids are times, and never unknown.
        unknown_id = "1000" if archive_only_server.kind == "ejabberd" else "of-a-message-that-is-gone"
        await agent.repository.save_agent_value(POSITION_KEY, [unknown_id, utc_now().isoformat()])
        await agent.stop()
        alice.send("late", agent.jid)
        await wait_until_sent(alice)
        await agent.start()
        assert (await alice.answer())["body"] == "late"
        await wait_until_caught_up(agent)
        assert queries_of(agent) == ["before", "late"]


async def test_messages_older_than_the_inbox_remembers_are_ignored(get_server: GetServer, tmp_path: Path) -> None:
    server = get_server("prosody", archive=True, offline=False)
    async with connect_client(server) as alice, run_agent(Echo(), server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        await agent.stop()
        for text in ("of last week", "of today"):
            alice.send(text, agent.jid)
        await wait_until_sent(alice)
        with closing(sqlite3.connect(server.directory / "data" / "archive.sqlite")) as archive, archive:
            make_older = (
                'UPDATE prosodyarchive SET "when" = "when" - 7 * 86400 WHERE user = ? AND value LIKE \'%of last week%\''
            )
            assert archive.execute(make_older, (agent.jid.partition("@")[0],)).rowcount == 1
        await agent.start()
        await wait_until_caught_up(agent)
        assert await texts_before_last(alice, agent) == ["of today"]


async def test_the_position_in_the_archive_is_never_ahead_of_the_disk(archive_server: XmppServer, tmp_path: Path) -> None:
    timings = ConnectionTimings(archive_position_interval_s=0.05)
    async with connect_client(archive_server) as alice, run_agent(Echo(), archive_server, tmp_path, timings=timings) as agent:
        await wait_until_caught_up(agent)
        archive = agent.host.archive
        before = archive._position
        assert await alice.ask("one", agent.jid) == "one"
        await eventually(lambda: archive._position != before)
        position = archive._position
        with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            alice.send("two", agent.jid)
            await eventually(lambda: len(archive._received) == 1)
            await asyncio.sleep(0.2)  # four times it could have gone on
            assert archive._position == position
        assert (await alice.answer())["body"] == "two"
        await eventually(lambda: archive._position != position)


async def test_the_position_waits_in_a_new_session_until_the_archive_is_read(
    archive_only_server: XmppServer, tmp_path: Path
) -> None:
    async with connect_client(archive_only_server) as alice, run_agent(Echo(), archive_only_server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        agent.host.connection.client.stream_management.sm_id = None
        agent.cut()
        async with asyncio.timeout(TIMEOUT_S):
            while agent.host.connection.session_count < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
        assert not agent.host.archive.is_caught_up
        await wait_until_caught_up(agent)
        assert await alice.ask("hello", agent.jid) == "hello"


async def test_a_message_that_comes_while_the_archive_is_read_is_not_read_again(
    archive_only_server: XmppServer, tmp_path: Path
) -> None:
    async with connect_client(archive_only_server) as alice, run_agent(Echo(), archive_only_server, tmp_path) as agent:
        await wait_until_caught_up(agent)
        agent.host.connection.client.stream_management.sm_id = None
        with closing(sqlite3.connect(agent.url.partition(":///")[2], isolation_level=None)) as database:
            agent.cut()
            alice.send("while away", agent.jid)
            await wait_until_sent(alice)
            database.execute("BEGIN IMMEDIATE")
            archive = agent.host.archive
            await eventually(lambda: agent.host.connection.session_count == 2 and archive.received_count == 1)
            assert not archive.is_caught_up  # it waits for the database
            alice.send("while reading", agent.jid)
            await eventually(lambda: len(archive._received) == 1)
        assert {(await alice.answer())["body"] for _ in range(2)} == {"while away", "while reading"}
        await wait_until_caught_up(agent)
        await agent.restart()
        await wait_until_caught_up(agent)
        assert agent.host.archive.received_count == 0


async def test_without_an_archive_nothing_is_read_or_stored(
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
            assert (await agent.repository.load_agent()).get_value(POSITION_KEY) is None
    assert [record.getMessage() for record in caplog.records if "archive" in record.getMessage()] == []


async def test_strangers_get_no_reply_to_old_messages(archive_only_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_client(archive_only_server) as mallory,
        run_agent(Echo(), archive_only_server, tmp_path, access=["example.org"]) as agent,
    ):
        await wait_until_caught_up(agent)
        await agent.stop()
        mallory.send("let me in", agent.jid)
        mallory.send(
            None, agent.jid, type="normal", extra_xml="<json xmlns='urn:xmpp:json:0'>{</json><store xmlns='urn:xmpp:hints'/>"
        )
        await wait_until_sent(mallory)
        await agent.start()
        await wait_until_caught_up(agent)
        assert agent.host.archive.received_count >= 1
        assert agent.gateway.dropped["no request"] >= 1
        mallory.send("let me in now", agent.jid)
        assert "You don't have access to me yet" in (await mallory.answer())["body"]
        assert mallory.messages.empty()
        assert queries_of(agent) == []


async def test_forged_archive_results_and_carbons_are_ignored(archive_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_client(archive_server) as mallory,
        connect_client(archive_server) as alice,
        run_agent(Echo(), archive_server, tmp_path) as agent,
    ):
        await wait_until_caught_up(agent)
        attributes = f"from='{alice.jid}/x' to='{agent.jid}' type='chat' id='1'"
        inner = f"<message xmlns='jabber:client' {attributes}><body>lies</body></message>"
        forwarded = f"<forwarded xmlns='urn:xmpp:forward:0'>{inner}</forwarded>"
        mallory.send(
            "mine", agent.jid, extra_xml=f"<stanza-id xmlns='urn:xmpp:sid:0' by='{agent.jid}' id='99999999999999999'/>"
        )
        assert (await mallory.answer())["body"] == "mine"
        query_ids: list[str] = []  # what the agent asks under, which does not reach the server, and mallory knows

        def drop_query(stanza: Any) -> Any:
            query = stanza.xml.find("{urn:xmpp:mam:2}query")
            if query is None:
                return stanza
            query_ids.append(query.get("queryid", ""))
            return None

        agent.host.connection.client.add_filter("out", drop_query)
        agent.host.archive.start(agent.repository)
        await eventually(lambda: bool(query_ids))
        result = f"<result xmlns='urn:xmpp:mam:2' queryid='{query_ids[0]}' id='9'>{forwarded}</result>"
        mallory.send(None, agent.jid, extra_xml=result)
        for kind in ("received", "sent"):
            mallory.send(None, agent.jid, extra_xml=f"<{kind} xmlns='urn:xmpp:carbons:2'>{forwarded}</{kind}>")
        assert await mallory.ask("and this", agent.jid) == "and this"
        assert agent.host.archive._page == []
        await agent.restart()
        await wait_until_caught_up(agent)
        assert await texts_before_last(alice, agent) == []
        assert queries_of(agent) == ["mine", "and this", "last"]


async def test_carbons_of_its_own_account_are_no_requests(archive_server: XmppServer, tmp_path: Path) -> None:
    """The agent does not request carbons; the test switches them on for it."""
    async with (
        connect_client(archive_server) as alice,
        run_agent(Echo(), archive_server, tmp_path) as agent,
        StockClient(*agent.account, archive_server, resource="desk", priority=5) as desk,
    ):
        enable = agent.host.client.make_iq_set(sub=Element("{urn:xmpp:carbons:2}enable"))
        await enable.send(timeout=TIMEOUT_S)
        alice.send("for the desk", f"{agent.jid}/desk")
        assert (await desk.answer())["body"] == "for the desk"
        desk.send("from the desk", alice.jid)
        assert (await alice.answer())["body"] == "from the desk"
        alice.send("for the agent", f"{agent.jid}/agent")
        assert (await alice.answer())["body"] == "for the agent"
        assert agent.gateway.dropped["no request"] >= 2
        assert queries_of(agent) == ["for the agent"]


async def test_a_behaviour_gets_archived_messages_once(archive_only_server: XmppServer, tmp_path: Path) -> None:
    received: list[str] = []
    received_by_all: list[str] = []

    class MatchingBehaviour(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            if (message := await self.receive(timeout=1)) is not None:
                received.append(message.body)

    class CatchAllBehaviour(CyclicBehaviour):  # type: ignore[misc]  # likewise
        async def run(self) -> None:
            if (message := await self.receive(timeout=1)) is not None:
                received_by_all.append(message.body)

    def prepare(host: HostedAgent) -> None:
        host.add_behaviour(MatchingBehaviour(), Template(body="for the behaviour"))
        host.add_behaviour(CatchAllBehaviour())

    async with (
        connect_client(archive_only_server) as alice,
        run_agent(Echo(), archive_only_server, tmp_path, prepare=prepare) as agent,
    ):
        await wait_until_caught_up(agent)
        alice.send("for the behaviour", agent.jid)
        await eventually(lambda: received == ["for the behaviour"])
        agent.host.connection.client.stream_management.sm_id = None
        agent.cut()
        await eventually(lambda: agent.host.archive.is_caught_up and agent.host.connection.session_count == 2)
        assert await texts_before_last(alice, agent) == []
        assert received == ["for the behaviour"]
        await agent.stop()
        alice.send("for the behaviour", agent.jid)
        await wait_until_sent(alice)
        await agent.start()
        await eventually(lambda: len(received) == 2)
        assert queries_of(agent) == ["last"]
        await eventually(lambda: received_by_all == ["for the behaviour", "last", "for the behaviour"])


# What is said by an agent


async def test_the_archive_holds_the_last_version_and_nothing_else(archive_server: XmppServer, tmp_path: Path) -> None:
    controller = StreamController()
    async with (
        run_agent(controller.agent, archive_server, tmp_path) as agent,
        StockClient(*await archive_server.account(), archive_server, plugins=(*CORRECTION_PLUGINS, "xep_0313")) as alice,
    ):
        await wait_until_known(alice, agent)
        alice.send("go", agent.jid)
        controller.write("It ")
        await alice.answer()
        controller.write("is ")
        await alice.answer()
        controller.write("sunny", None)
        assert (await alice.answer())["body"] == "It is sunny"

        async def archived() -> list[str]:
            found = await alice.xmpp.plugin["xep_0313"].retrieve(with_jid=agent.jid, timeout=TIMEOUT_S)
            return [m["mam_result"]["forwarded"]["stanza"]["body"] for m in found["mam"]["results"]]

        async with asyncio.timeout(TIMEOUT_S):
            while (texts := await archived()) != ["go", "It is sunny"]:
                assert len(texts) < 2, texts
                await asyncio.sleep(0.1)
