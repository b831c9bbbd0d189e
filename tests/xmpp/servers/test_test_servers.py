"""The test servers have the properties that other tests rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers.clients import StockClient
from tests.support.servers.ejabberd import ejabberd, installed as ejabberd_installed
from tests.support.servers.processes import listening_addresses, remaining_members
from tests.support.servers.prosody import installed as prosody_installed, prosody
from tests.support.servers.requirements import require
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S

StartServer = Callable[[XmppServer], XmppServer]


@pytest.mark.parametrize("name", ["prosody", "prosody_large", "prosody_archive", "ejabberd", "embedded"])
async def test_two_stock_clients_talk(name: str, request: pytest.FixtureRequest) -> None:
    server: XmppServer = request.getfixturevalue(name)
    accounts = await asyncio.gather(server.account(), server.account())
    async with StockClient(*accounts[0], server) as a, StockClient(*accounts[1], server) as b:
        b.send("I am here", b.jid)
        await b.answer()
        ident = a.send("<hé> & \N{ROCKET}", b.jid, thread="t1", extra_xml="<x xmlns='urn:x'/>")
        message = await b.answer()
        assert (message["body"], message["thread"], message["id"]) == ("<hé> & \N{ROCKET}", "t1", ident)
        assert message.xml.find("{urn:x}x") is not None
        assert message["from"].bare == a.jid
        a.send(None, b.full_jid, extra_xml="<active xmlns='http://jabber.org/protocol/chatstates'/>")
        assert not (await b.message())["body"]


async def test_nothing_but_loopback_can_reach_them(real_server: XmppServer) -> None:
    assert {address for address, _ in listening_addresses(real_server.pid)} == {"127.0.0.1"}


async def test_a_stranger_of_another_domain_reaches_agents_without_federation(real_server: XmppServer) -> None:
    accounts = [await real_server.account(), await real_server.account(domain=OTHER_DOMAIN)]
    async with StockClient(*accounts[0], real_server) as resident, StockClient(*accounts[1], real_server) as stranger:
        stranger.send("hello", resident.full_jid)
        assert (await resident.answer())["from"].domain == OTHER_DOMAIN


async def test_a_wrong_password_is_refused(local_server: XmppServer) -> None:
    jid, _ = await local_server.account()
    with pytest.raises(PermissionError):
        await StockClient(jid, "wrong", local_server).connect()


async def test_default_limits_end_the_stream_that_exceeds_them(
    prosody: XmppServer, prosody_large: XmppServer, ejabberd: XmppServer
) -> None:
    for server, passes in ((prosody, False), (ejabberd, False), (prosody_large, True)):
        async with StockClient(*await server.account(), server) as client:
            client.send("x" * 1_000_000, client.full_jid)
            if passes:
                assert len((await client.answer())["body"]) == 1_000_000
            else:
                await asyncio.wait_for(client.disconnected.wait(), TIMEOUT_S)


@pytest.mark.servers
async def test_a_killed_prosody_starts_again_on_the_same_port_with_the_same_accounts(
    start_server: StartServer, tmp_path: Path
) -> None:
    require("Prosody", prosody_installed())
    server = start_server(prosody(tmp_path))
    await _assert_restarts(server, server.kill)


@pytest.mark.servers
@pytest.mark.release
async def test_a_stopped_ejabberd_starts_again_on_the_same_port_with_the_same_accounts(
    start_server: StartServer, tmp_path: Path
) -> None:
    require("ejabberd", ejabberd_installed())
    server = start_server(ejabberd(tmp_path))
    await _assert_restarts(server, server.stop)


async def _assert_restarts(server: XmppServer, end: Callable[[], None]) -> None:
    account = await server.account()
    pid, port = server.pid, server.port
    await asyncio.to_thread(end)
    assert remaining_members(pid) == []
    await asyncio.to_thread(server.start)
    assert (server.pid != pid, server.port) == (True, port)
    async with StockClient(*account, server):
        pass


@pytest.mark.servers
def test_where_a_program_is_missing_the_test_is_skipped_or_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("SPADE_COREASON_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Prosody is not installed; `make servers` enables this test"):
        require("Prosody", False)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make servers"):
        require("Prosody", False)
    require("Prosody", True)
