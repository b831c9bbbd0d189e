"""What a server keeps back from an agent that is there, it hands over when it is asked (XEP-0013)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from slixmpp.exceptions import IqError

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import StoreError
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S
from tests.xmpp.profile.test_profile import published


async def given_nothing(agent: OnlineAgent) -> None:
    """From here on its server keeps mail back, as in the moment of a login: the priority is negative (RFC 6121, 8.5.2.1.1)."""
    await published(agent)  # it shows itself once more then
    await agent.host.connection.wait_until_acknowledged(2)
    agent.host.connection.send(["<presence><priority>-1</priority></presence>"])
    await agent.host.connection.wait_until_acknowledged(2)


async def test_what_ejabberd_has_kept_back_is_answered_once_and_in_its_order(ejabberd: XmppServer, tmp_path: Path) -> None:
    runs: list[str] = []

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        runs.append(request.payload["query"])
        await response.markdown(request.payload["query"])

    async with (
        run_agent(FunctionAgent(assist), ejabberd, tmp_path) as agent,
        StockClient(*await ejabberd.account(), ejabberd) as alice,
    ):
        mail = agent.host.offline_messages
        await mail.close()  # it asks by itself, too
        mail.batch_size = 3
        assert await alice.ask("before", agent.jid) == "before"
        assert await mail.fetch() == 0
        await given_nothing(agent)
        kept = [f"kept {number}" for number in range(12)]
        for text in kept:
            alice.send(text, agent.jid)
        fetched = 0
        async with asyncio.timeout(PATIENCE_S):
            while fetched < len(kept):
                fetched += await mail.fetch()
        assert [str((await alice.answer())["body"]) for _ in kept] == kept
        assert (fetched, await mail.fetch()) == (len(kept), 0)
        agent.host.connection.send(["<presence/>"])
        assert await alice.ask("after", agent.jid) == "after"
        assert runs == ["before", *kept, "after"]


async def test_what_cannot_be_stored_stays_with_the_server(ejabberd: XmppServer, tmp_path: Path) -> None:
    async with run_agent(Echo(), ejabberd, tmp_path) as agent, StockClient(*await ejabberd.account(), ejabberd) as alice:
        mail = agent.host.offline_messages
        await mail.close()
        await given_nothing(agent)
        alice.send("kept", agent.jid)
        async with asyncio.timeout(PATIENCE_S):
            nodes = await mail._list_nodes()
            while not nodes:
                nodes = await mail._list_nodes()
        refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreError("the disk is full"))
        note = mail.record_received
        mail.record_received = lambda stored: note(refused)  # type: ignore[method-assign]  # what is durable is told to it
        assert await mail.fetch() == 0
        mail.record_received = note  # type: ignore[method-assign]  # what is durable is told to it
        assert await mail._list_nodes() == nodes
        assert await mail.fetch() == 1
        assert str((await alice.answer())["body"]) == "kept"


async def test_a_server_that_keeps_nothing_back_is_asked_in_vain(prosody: XmppServer, tmp_path: Path) -> None:
    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await response.markdown("here")

    async with (
        run_agent(FunctionAgent(assist), prosody, tmp_path) as agent,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        with pytest.raises(IqError):
            await agent.host.offline_messages.fetch()
        assert await alice.ask("still there?", agent.jid) == "here"
