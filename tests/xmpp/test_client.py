"""A program gets its answer even if its own session was lost while it waited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spade_coreason import AgentClient, AgentRequest, ResponseHandler, SessionHandle
from tests.support.hosting import FunctionAgent, Tunnel, endpoint_of, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


@pytest.mark.parametrize("answered", ["when it is there again", "while it is away"])
async def test_an_answer_arrives_after_the_programs_session_was_lost(
    real_server: XmppServer, tmp_path: Path, answered: str
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        started.set()
        await release.wait()
        await response.markdown("here you are")

    async with Tunnel(real_server) as tunnel, run_agent(FunctionAgent(assist), real_server, tmp_path) as agent:
        endpoint = endpoint_of(real_server, tunnel.port)
        jid, password = await real_server.account()
        async with AgentClient(jid, password, endpoint) as client:
            ask_task = asyncio.create_task(client.ask(agent.jid, "please", timeout=TIMEOUT_S))
            await asyncio.wait_for(started.wait(), TIMEOUT_S)
            connection = client._connection
            assert connection is not None
            connection.client.stream_management.sm_id = None  # no resumption: the server was started again, say
            tunnel.is_open = False
            tunnel.cut()
            await eventually(lambda: not client.is_online)
            if answered == "while it is away":
                release.set()
                await agent.settled()
            tunnel.is_open = True
            await eventually(lambda: client.is_online)
            release.set()
            assert (await ask_task).text == "here you are"
            assert connection.session_count == 2


async def test_a_logout_that_is_cancelled_ends_the_session_all_the_same(real_server: XmppServer) -> None:
    jid, password = await real_server.account()
    async with StockClient(jid, password, real_server) as other:
        client = AgentClient(f"{jid}/leaving", password, endpoint_of(real_server), on_text=print)
        await client.__aenter__()
        logout = asyncio.create_task(client.__aexit__(None, None, None))
        await asyncio.sleep(0)  # it has begun
        logout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await logout
        async with asyncio.timeout(TIMEOUT_S):
            while (presence := await other.presences.get())["type"] != "unavailable":
                pass
        assert presence["from"] == f"{jid}/leaving"
