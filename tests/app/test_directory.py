"""Two platforms on a real server find each other's agents by a directory, whose presence shows when its list changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentCard, Capability, Peers, Platform, Settings, load_settings
from spade_coreason.exceptions import PeerRefusedError, PeerUnavailableError
from spade_coreason.runtime.peers.directory import AgentFinder
from tests.support.servers.clients import StockClient
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import TIMEOUT_S, eventually

ECHO, NOTES = "spade_coreason.agents.echo:EchoAgent", "spade_coreason.agents.notes:NotesAgent"


class Account:
    """An account on the server, with the line of an agent in a configuration."""

    def __init__(self, jid: str, password: str) -> None:
        self.jid, self.password = jid, password

    def agent(self, keys: str) -> str:
        return f"{{jid: '{self.jid}', password: '{self.password}', {keys}}}"


async def account(server: XmppServer, domain: str | None = None) -> Account:
    return Account(*await server.account(domain=domain))


def settings_for(server: XmppServer, directory: Path, agents: tuple[str, ...], more: str) -> Settings:
    directory.mkdir(exist_ok=True)
    configuration = directory / "platform.yaml"
    configuration.write_text(
        f"server: {{mode: external, domain: {server.domain}, host: {server.host}, port: {server.port},"
        f" tls: {{ca_file: '{server.ca_file}'}}}}\n{more}\nagents: [{', '.join(agents)}]\n"
    )
    return load_settings(configuration, directory, {})


@asynccontextmanager
async def running(server: XmppServer, directory: Path, *agents: str, more: str = "") -> AsyncIterator[Platform]:
    """Run a platform with agents on the server. Two of them in one process know nothing of each other."""
    async with Platform(settings_for(server, directory, agents, more)) as platform:
        yield platform


def peers_of(platform: Platform, who: Account) -> Peers:
    return platform.agents[who.jid].runtime.parts.peers


def finder_of(platform: Platform, who: Account) -> AgentFinder:
    return platform.agents[who.jid].runtime.parts.peers.finder


def jids(cards: list[AgentCard]) -> set[str]:
    return {card.jid for card in cards}


def record_asked(platform: Platform, who: Account) -> list[Any]:
    """Record the payloads of the requests to the agent from now on."""
    agent: Any = platform.agents[who.jid].runtime.agent
    assist, payloads = agent.assist, list[Any]()

    async def recording(request: Any, session: Any, response: Any) -> None:
        payloads.append(request.payload)
        await assist(request, session, response)

    agent.assist = recording
    return payloads


def shown_version(platform: Platform, who: Account, directory: Account) -> str:
    """Return the version of the directory's list that the agent saw in its presence."""
    return finder_of(platform, who)._directories[directory.jid]._shown_version


async def test_agents_of_another_platform_are_found_and_asked_by_capability(real_server: XmppServer, tmp_path: Path) -> None:
    directory, echo, notes, asker = [await account(real_server) for _ in range(4)]
    listed = [directory.agent("directory: true"), echo.agent(f"agent: '{ECHO}'"), notes.agent(f"agent: '{NOTES}'")]
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with (
        running(real_server, tmp_path / "one", *listed),
        running(real_server, tmp_path / "two", asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform,
        StockClient(*await real_server.account(), real_server) as alice,
    ):
        peers = peers_of(platform, asker)
        assert jids(await peers.find()) == {echo.jid, notes.jid}
        assert jids(await peers.find(text="Who repeats what I say?")) == {echo.jid}
        [card] = await peers.find(text="echo")
        assert (card.name, card.is_online) == ("EchoAgent", True)
        answer = await peers.ask(Capability(card.capabilities[0].name), "hello")
        assert answer.jid in {echo.jid, notes.jid}
        assert "found 1 agent" in await alice.ask("echo", directory.jid)


async def test_the_list_is_used_until_the_presence_of_its_directory_changes(real_server: XmppServer, tmp_path: Path) -> None:
    directory, echo, notes, asker = [await account(real_server) for _ in range(4)]
    one = directory.agent("directory: true"), echo.agent(f"agent: '{ECHO}'")
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with running(real_server, tmp_path / "two", asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform:
        peers = peers_of(platform, asker)
        async with running(real_server, tmp_path / "one", *one) as listing:
            payloads = record_asked(listing, directory)
            assert jids(await peers.find()) == {echo.jid}
            version = listing._builder.directory.version
            await eventually(lambda: shown_version(platform, asker, directory) == version)
            assert jids(await peers.find()) == {echo.jid}
            assert payloads == [{}]
        await eventually(lambda: shown_version(platform, asker, directory) == "")
        with pytest.raises(PeerUnavailableError, match=directory.jid):
            await peers.find()
        async with running(real_server, tmp_path / "one", *one, notes.agent(f"agent: '{NOTES}'")) as listing:
            await eventually(lambda: shown_version(platform, asker, directory) == listing._builder.directory.version)
            assert jids(await peers.find()) == {echo.jid, notes.jid}


async def test_an_admitted_stranger_finds_the_agent_as_soon_as_the_presence_says_so(
    real_server: XmppServer, tmp_path: Path
) -> None:
    directory, echo, asker, operator = [await account(real_server) for _ in range(4)]
    access = f"access: {{allow: [], ask: true, operators: ['{operator.jid}']}}"
    listed = directory.agent("directory: true"), echo.agent(f"agent: '{ECHO}', {access}")
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with (
        running(real_server, tmp_path / "one", *listed) as listing,
        running(real_server, tmp_path / "two", asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform,
    ):
        peers = peers_of(platform, asker)
        assert await peers.find() == []  # a stranger does not find it
        with pytest.raises(PeerUnavailableError, match="chat is a capability of no agent"):
            await peers.ask(Capability("chat"), "hello")
        with pytest.raises(PeerRefusedError):
            await peers.ask(echo.jid, "hello")
        await eventually(lambda: shown_version(platform, asker, directory) != "")
        before = shown_version(platform, asker, directory)
        await listing.agents[echo.jid].runtime.gateway.access_requests.decide(asker.jid, True)
        await eventually(lambda: shown_version(platform, asker, directory) != before)
        assert jids(await peers.find()) == {echo.jid}
        assert (await peers.ask(Capability("chat"), "hello")).text == "hello"


async def test_a_directory_that_has_not_yet_approved_the_subscription_is_asked(prosody: XmppServer, tmp_path: Path) -> None:
    """Prosody answers the request for a subscription with "unavailable" at once, and the directory counted as offline."""
    directory, asker = [await account(prosody) for _ in range(2)]
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with (
        StockClient(directory.jid, directory.password, prosody) as undecided,
        running(prosody, tmp_path, asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform,
    ):
        for _ in range(2):
            finding = asyncio.create_task(peers_of(platform, asker).find())
            assert (await undecided.message())["from"].bare == asker.jid
            await eventually(lambda: any(presence["type"] == "subscribe" for presence in undecided.presences.unread()))
            await platform.agents[asker.jid].connection.wait_until_acknowledged(TIMEOUT_S)
            finding.cancel()
            with suppress(asyncio.CancelledError):
                await finding


async def test_the_next_agent_is_asked_after_a_bounce(real_server: XmppServer, tmp_path: Path) -> None:
    directory, asker, nobody, echo = [await account(real_server) for _ in range(4)]
    missing = f"aaa-{nobody.jid}"  # there is no such account, so the server sends the request back
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with (
        running(real_server, tmp_path / "one", directory.agent("directory: true"), echo.agent(f"agent: '{ECHO}'")) as listing,
        running(real_server, tmp_path / "two", asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform,
    ):
        runtime = listing.agents[echo.jid].runtime
        listing._builder.directory.add(
            missing, runtime.agent.manifest, runtime.gateway.access_requests, lambda: True, lambda: 0
        )
        peers = peers_of(platform, asker)
        assert {missing, echo.jid} == jids(await peers.find())
        answer = await peers.ask(Capability("chat"), "hello")
        assert (answer.jid, answer.text) == (echo.jid, "hello")


async def test_on_another_domain_only_an_open_directory_answers_and_it_hides_the_closed_agents(
    real_server: XmppServer, tmp_path: Path
) -> None:
    other = OTHER_DOMAIN
    directory, closed, open_one = [await account(real_server) for _ in range(3)]
    asker = await account(real_server, other)
    everyone = "access: {allow: ['*']}"
    listed = (
        directory.agent(f"directory: true, {everyone}"),
        closed.agent(f"agent: '{ECHO}'"),
        open_one.agent(f"agent: '{ECHO}', {everyone}"),
    )
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with (
        running(real_server, tmp_path / "one", *listed) as listing,
        running(real_server, tmp_path / "two", asker.agent(f"agent: '{ECHO}'"), more=peers_key) as platform,
    ):
        assert jids(await peers_of(platform, asker).find()) == {open_one.jid}
        await eventually(lambda: shown_version(platform, asker, directory) == listing._builder.directory.version)


async def test_a_directory_in_the_same_platform_is_not_asked(prosody: XmppServer, tmp_path: Path) -> None:
    directory, echo, asker = [await account(prosody) for _ in range(3)]
    agents = [directory.agent("directory: true"), echo.agent(f"agent: '{ECHO}'"), asker.agent(f"agent: '{ECHO}'")]
    peers_key = f"peers: {{directories: ['{directory.jid}']}}"
    async with running(prosody, tmp_path / "one", *agents, more=peers_key) as platform:
        payloads = record_asked(platform, directory)
        cards = await peers_of(platform, asker).find()
        assert jids(cards) == {echo.jid}
        assert all(card.is_online for card in cards)
        platform.runners[echo.jid].control.set_paused(True)
        [card] = await peers_of(platform, asker).find()
        assert not card.is_online
    assert payloads == []
