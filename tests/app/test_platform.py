"""A configured platform on an external server: accounts, and SPADE behaviours beside its agents."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from spade.behaviour import OneShotBehaviour
from spade.message import Message
from spade.template import Template

from spade_coreason import Platform, Settings, load_settings
from spade_coreason.app.workers.doors import RemoteDoorAgents
from spade_coreason.domain.jid import bare_jid
from spade_coreason.exceptions import ConfigError, LoginError
from spade_coreason.runtime import ChannelGateway
from tests.support.errors import ExpectedErrors
from tests.support.fetched_channel import NAME, FetchedChannel, texts_of
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.test_spade import run_plain_spade_agent

SPADE = Path(__file__).parents[2] / "docs" / "how-to" / "spade-behaviours.md"
ECHO = "spade_coreason.agents.echo:EchoAgent"
NOTES = "spade_coreason.agents.notes:NotesAgent"


def _settings(server: XmppServer, tmp_path: Path, agent: str) -> Settings:
    configuration = tmp_path / "platform.yaml"
    tls = f"{{ca_file: '{server.ca_file}'}}"
    configuration.write_text(
        f"server: {{mode: external, domain: {server.domain}, host: {server.host}, port: {server.port}, tls: {tls}}}\n"
        f"agents:\n  - {{agent: '{ECHO}', {agent}}}\n"
    )
    return load_settings(configuration, tmp_path, {"PASSWORD": "a password"})


async def test_an_account_is_registered_only_if_the_configuration_says_so(real_server: XmppServer, tmp_path: Path) -> None:
    jid = f"new{secrets.token_hex(4)}@{real_server.domain}"
    agent = f"jid: {jid}, password: '${{PASSWORD}}'"
    for _ in range(2):  # the first try has not made it
        with pytest.raises(LoginError, match="no such account"):
            async with Platform(_settings(real_server, tmp_path, agent)):
                pass
    for _ in range(2):  # that it is there already is no mistake
        async with (
            Platform(_settings(real_server, tmp_path, f"{agent}, register: true")),
            StockClient(*await real_server.account(), real_server) as alice,
        ):
            assert await alice.ask("hello", jid) == "hello"
    async with Platform(_settings(real_server, tmp_path, agent)) as platform:
        assert platform.agents[jid].is_alive()


async def test_a_further_channel_serves_the_agents_of_a_platform_beside_xmpp(prosody: XmppServer, tmp_path: Path) -> None:
    account, password = await prosody.account()
    made: list[tuple[str, FetchedChannel]] = []
    settings = _settings(prosody, tmp_path, f"jid: {account}, password: '{password}'")
    async with (
        Platform(settings, channels={NAME: _factory(made)}),
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        [(jid, channel)] = made
        program, request_id = f"program@{prosody.domain}", uuid4()
        events = [event async for event in channel.ask(program, "by a call", request_id)]
        assert "".join(texts_of(events)) == "by a call"  # as a stream
        assert await alice.ask("by XMPP", jid) == "by XMPP"
        assert texts_of([event async for event in channel.fetch(program, request_id)]) == ["by a call"]
    assert not channel.is_open


def _factory(made: list[tuple[str, FetchedChannel]]) -> Callable[[str], FetchedChannel]:
    def make(jid: str) -> FetchedChannel:
        made.append((jid, FetchedChannel()))
        return made[-1][1]

    return make


async def test_an_agent_that_is_built_again_has_the_same_channel(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("cannot be read: Is a directory")
    (account, password), (other, other_password) = await prosody.account(), await prosody.account()
    agents = f"jid: {other}, password: '{other_password}'}}\n  - {{agent: '{NOTES}', jid: {account}, password: '{password}'"
    settings, jid = _settings(prosody, tmp_path, agents), bare_jid(account)
    unreadable = settings.storage.memory_dir / f"{jid}.json"
    unreadable.mkdir(parents=True)
    made: list[tuple[str, FetchedChannel]] = []
    async with Platform(settings, channels={NAME: _factory(made)}, is_strict=False) as platform:
        assert jid not in platform.agents
        unreadable.rmdir()
        await eventually(lambda: jid in platform.agents and platform.agents[jid].is_alive())
        assert sorted(jid for jid, _ in made) == sorted([jid, bare_jid(other)])
        events = [event async for event in dict(made)[jid].ask(f"program@{prosody.domain}", "I like tea.", uuid4())]
        assert texts_of(events)


class UnopenedChannel(FetchedChannel):
    """A channel that cannot be opened before `is_ready`, and never be closed."""

    is_ready = False

    async def open(self, gateway: ChannelGateway) -> None:
        if not self.is_ready:
            raise OSError("the port is in use")
        await super().open(gateway)

    async def close(self) -> None:
        await super().close()
        raise OSError("it hangs")


async def test_an_agent_whose_channel_cannot_be_opened_starts_once_it_can(
    prosody: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("does not start: OSError: the port is in use", "the channel fetched does not close: OSError: it hangs")
    account, password = await prosody.account()
    settings = _settings(prosody, tmp_path, f"jid: {account}, password: '{password}'")
    first, channel = FetchedChannel(), UnopenedChannel()
    channels = {"first": lambda jid: first, NAME: lambda jid: channel}
    async with Platform(settings, channels=channels, is_strict=False) as platform:
        host = platform.agents[bare_jid(account)]
        await eventually(lambda: any("the port is in use" in line for line in expected_errors.logged))
        assert not first.is_open
        channel.is_ready = True
        await eventually(host.is_alive)
        events = [event async for event in channel.ask(f"program@{prosody.domain}", "hello", uuid4())]
        assert "".join(texts_of(events)) == "hello"
        assert first.is_open
    assert not first.is_open
    assert not channel.is_open


class _CallForProposals(OneShotBehaviour):  # type: ignore[misc]  # SPADE comes without types
    def __init__(self, to: str) -> None:
        super().__init__()
        self._to = to
        self.offer: Message | None = None

    async def run(self) -> None:
        while self.offer is None:  # until the behaviour is there, the agent itself answers
            await self.send(Message(to=self._to, body="who offers?", metadata={"performative": "cfp"}))
            self.offer = await self.receive(timeout=0.3)


async def test_the_behaviour_of_the_documentation_answers_beside_the_agent(
    prosody: XmppServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = re.findall(r'^```python title="market.py"\n(.*?)^```$', SPADE.read_text(encoding="utf-8"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PASSWORD", "a password")
    jid = f"new{secrets.token_hex(4)}@{prosody.domain}"
    _settings(prosody, tmp_path, f"jid: {jid}, password: '${{PASSWORD}}', register: true")
    module: dict[str, object] = {"__name__": "market"}
    exec(code, module)
    platform_task = asyncio.create_task(module["main"]("platform.yaml"))  # type: ignore[operator]  # it came from a text
    call = _CallForProposals(jid)
    try:
        async with (
            run_plain_spade_agent(prosody, call, Template(metadata={"performative": "propose"})),
            StockClient(*await prosody.account(), prosody) as alice,
        ):
            await asyncio.wait_for(call.join(), TIMEOUT_S)
            assert call.offer is not None
            assert call.offer.body == "7 euros"
            assert await alice.ask("and you?", jid) == "and you?"
    finally:
        platform_task.cancel()
        await asyncio.gather(platform_task, return_exceptions=True)


def test_the_first_error_is_raised_if_all_agents_of_this_worker_stay_offline(tmp_path: Path) -> None:
    settings = Settings.model_validate({"agents": [{"jid": jid, "agent": "none:None"} for jid in ("one@x.org", "two@x.org")]})
    hosted = Platform(settings)._hosted
    hosted.remote_agents = cast(RemoteDoorAgents, object())
    hosted.absent["two@x.org"] = ConfigError("agents[1]", "is of another worker")
    hosted.starts["one@x.org"] = cast("asyncio.Task[bool]", object())
    hosted.require_one()
    hosted.absent["one@x.org"] = ConfigError("agents[0]", "is not found")
    with pytest.raises(ConfigError):
        hosted.require_one()


async def test_a_worker_goes_on_if_the_agents_that_stay_offline_were_given_back_before_the_others_began(tmp_path: Path) -> None:
    async def fail() -> bool:
        return False

    hosted = Platform(Settings.model_validate({"agents": [{"jid": "one@x.org", "agent": "none:None"}]}))._hosted
    hosted.starts["one@x.org"] = asyncio.create_task(fail())
    await hosted.wait_until_online()
