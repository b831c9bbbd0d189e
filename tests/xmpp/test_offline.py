"""Messages that a server withholds from an online agent are fetched (XEP-0013)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from slixmpp.exceptions import IqError

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import StoreError
from spade_coreason.runtime import OutboundMessage
from spade_coreason.storage import Commit
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


async def list_offline_nodes(agent: OnlineAgent) -> list[str]:
    """Return the server's names of the messages that it withholds from the agent."""
    disco = agent.host.client.plugin["xep_0030"]
    reply = await disco.get_items(jid=agent.jid, node=OFFLINE, local=False, timeout=TIMEOUT_S)
    return [node for item in reply["disco_items"].xml if (node := item.get("node"))]


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
        offline_messages.batch_size = 3
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
        assert (fetched, await offline_messages.fetch()) == (len(withheld), 0)
        agent.host.connection.send([OutboundMessage("", "<presence/>")])
        assert await agent.host.connection.wait_until_acknowledged(TIMEOUT_S)  # else the next message may be withheld too
        assert await alice.ask("after", agent.jid) == "after"
        assert runs == ["before", *withheld, "after"]


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
        offline_messages.record_received = lambda stored: record_received(refused)  # type: ignore[method-assign]  # what is durable is told to it
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
