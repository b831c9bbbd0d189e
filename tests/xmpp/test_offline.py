"""Messages that a server withholds from an online agent are fetched (XEP-0013)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

import pytest
from slixmpp.exceptions import IqError

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import StoreError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.storage import Commit
from spade_coreason.testing import PlatformLimits, Policy, Rules
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.offline import OFFLINE
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S
from tests.xmpp.profile.test_profile import wait_until_published


async def withhold_messages(agent: OnlineAgent) -> None:
    """Make the server withhold messages, as in the moment of a login, by a negative priority (RFC 6121, 8.5.2.1.1)."""
    await wait_until_published(agent)  # it shows itself once more then
    await agent.host.connection.wait_until_acknowledged(2)
    agent.host.connection.send([OutboundMessage("", "<presence><priority>-1</priority></presence>")])
    await agent.host.connection.wait_until_acknowledged(2)


async def wait_until_routed(client: StockClient) -> None:
    """Wait until the server has handed over or stored what a client has sent: it handles the stanzas of one in order."""
    client.send("routed", client.full_jid)
    while str((await client.message())["body"]) != "routed":
        pass


async def list_offline_nodes(agent: OnlineAgent) -> list[str]:
    """Return the server's names of the messages that it withholds from the agent."""
    disco = agent.host.client.plugin["xep_0030"]
    reply = await disco.get_items(jid=agent.jid, node=OFFLINE, local=False, timeout=TIMEOUT_S)
    return [node for item in reply["disco_items"].xml if (node := item.get("node"))]


async def delete_offline_messages(agent: OnlineAgent) -> None:
    iq = agent.host.client.make_iq_set(sub=SubElement(Element("iq"), f"{{{OFFLINE}}}offline"))
    SubElement(iq.xml[0], f"{{{OFFLINE}}}purge")
    await iq.send(timeout=TIMEOUT_S)


async def test_messages_that_ejabberd_withheld_are_answered_once_and_in_order(ejabberd: XmppServer, tmp_path: Path) -> None:
    runs: list[str] = []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        runs.append(request.payload["query"])
        await response.markdown(request.payload["query"])

    async with (
        run_agent(FunctionAgent(assist), ejabberd, tmp_path) as agent,
        StockClient(*await ejabberd.account(), ejabberd) as alice,
    ):
        offline_messages = agent.host.offline_messages
        await offline_messages.close()  # it asks by itself, too
        assert await alice.ask("before", agent.jid) == "before"
        assert await offline_messages.fetch() == 0
        await withhold_messages(agent)
        withheld = [f"kept {number}" for number in range(12)]
        for text in withheld:
            alice.send(text, agent.jid)
        fetched = 0
        async with asyncio.timeout(TIMEOUT_S):
            while fetched < len(withheld):
                fetched += await offline_messages.fetch()
        assert [str((await alice.answer())["body"]) for _ in withheld] == withheld
        assert (fetched, await list_offline_nodes(agent)) == (len(withheld), [])
        agent.host.connection.send([OutboundMessage("", "<presence/>")])
        assert await agent.host.connection.wait_until_acknowledged(TIMEOUT_S)  # else the next message may be withheld too
        assert await alice.ask("after", agent.jid) == "after"
        assert runs == ["before", *withheld, "after"]


async def test_ejabberd_deletes_offline_messages_when_they_are_durable_and_newer_ones_wait(
    ejabberd: XmppServer, tmp_path: Path
) -> None:
    """It may delete a message that it is storing, if it hands all over by itself at the first presence."""
    stored_by_server: list[str] = []
    newer_is_sent = asyncio.Event()

    def ask_while_it_comes_online(host: HostedAgent) -> None:
        fetch = host.offline_messages.fetch

        async def fetch_late(*, is_present: bool = True) -> int:
            if not is_present:
                return 0  # as if there was no time before the presence
            if not stored_by_server:
                stored_by_server.extend(await list_offline_nodes(agent))
                alice.send("newer", agent.jid)
                await wait_until_routed(alice)
                newer_is_sent.set()
            return await fetch()

        host.offline_messages.fetch = fetch_late  # type: ignore[method-assign]  # a message comes just before

    async with (
        run_agent(Echo(), ejabberd, tmp_path) as agent,
        StockClient(*await ejabberd.account(), ejabberd) as alice,
    ):
        assert await alice.ask("before", agent.jid) == "before"
        await agent.stop()
        older = ["older", "older, too"]
        for text in older:
            alice.send(text, agent.jid)
        await wait_until_routed(alice)
        agent.prepare = ask_while_it_comes_online
        await agent.start()
        await newer_is_sent.wait()
        assert [str((await alice.answer())["body"]) for _ in range(3)] == [*older, "newer"]
        assert len(stored_by_server) == len(older)
        async with asyncio.timeout(TIMEOUT_S):
            while await list_offline_nodes(agent):
                pass


async def test_messages_to_an_agent_that_is_away_are_answered_once_and_in_order(any_server: XmppServer, tmp_path: Path) -> None:
    def limit(host: HostedAgent) -> None:
        host.offline_messages.batch_size = 5

    async with (
        run_agent(Echo(), any_server, tmp_path, prepare=limit) as agent,
        StockClient(*await any_server.account(), any_server) as alice,
    ):
        await agent.stop()
        texts = [f"kept {number}" for number in range(12)]
        for text in texts:
            alice.send(text, agent.jid)
        await wait_until_routed(alice)
        await agent.start()
        assert [str((await alice.answer())["body"]) for _ in texts] == texts
        await agent.restart()
        assert await alice.ask("after", agent.jid) == "after"
        assert len(agent.agent.requests) == len(texts) + 1


async def test_messages_that_ejabberd_stored_in_the_same_microsecond_are_all_answered(
    ejabberd: XmppServer, tmp_path: Path
) -> None:
    """They have one name, by which ejabberd returns one of them and deletes all."""
    policy = Policy(limits=PlatformLimits(queue=10_000), rules=Rules(max_interactions=0))
    async with run_agent(Echo(), ejabberd, tmp_path, policy=policy) as agent, AsyncExitStack() as stack:
        people = [await stack.enter_async_context(StockClient(*await ejabberd.account(), ejabberd)) for _ in range(8)]
        await agent.host.offline_messages.close()
        await withhold_messages(agent)
        texts = [str(number) for number in range(20)]
        async with asyncio.timeout(TIMEOUT_S):
            while len(nodes := await list_offline_nodes(agent)) == len(set(nodes)):
                await delete_offline_messages(agent)
                for text in texts:
                    for person in people:
                        person.send(text, agent.jid)
                for person in people:
                    await wait_until_routed(person)
        await agent.restart()
        for person in people:
            answers = [str((await person.answer())["body"]) for _ in texts]
            assert sorted(answers, key=int) == texts


async def test_messages_that_cannot_be_stored_stay_on_the_server(ejabberd: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), ejabberd, tmp_path) as agent, StockClient(*await ejabberd.account(), ejabberd) as alice:
        offline_messages = agent.host.offline_messages
        await offline_messages.close()
        await withhold_messages(agent)
        alice.send("kept", agent.jid)
        async with asyncio.timeout(TIMEOUT_S):
            while not (nodes := await list_offline_nodes(agent)):
                pass
        refused: Commit[bool] = Commit()
        refused.resolve(StoreError("the disk is full"))
        record_received = offline_messages.record_received
        offline_messages.record_received = lambda node, stored: record_received(node, refused)  # type: ignore[method-assign]  # what is durable is told to it
        assert await offline_messages.fetch() == 0
        offline_messages.record_received = record_received  # type: ignore[method-assign]  # what is durable is told to it
        assert await list_offline_nodes(agent) == nodes
        assert await offline_messages.fetch() == 1
        assert str((await alice.answer())["body"]) == "kept"


async def test_a_server_without_offline_retrieval_returns_an_error(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("here")

    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        with pytest.raises(IqError):
            await agent.host.offline_messages.fetch()
        assert await alice.ask("still there?", agent.jid) == "here"
