"""Keys of a running platform: each change has effect at once, for the HTTP server and for the agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.domain.callers import caller_address
from spade_coreason.doors.agents import DoorAgent
from spade_coreason.doors.caller import Caller
from spade_coreason.exceptions import ConfigError
from spade_coreason.storage import KeyRepository, hash_secret
from tests.support.door_agents import read_all, texts_of
from tests.support.doors import ask
from tests.support.hosting import RunningPlatform
from tests.support.servers.clients import StockClient
from tests.support.wait import TIMEOUT_S

DESK, ECHO, BOSS, CAROL = "desk@localhost", "echo@localhost", "boss@localhost", "carol@localhost"


class Desk:
    """Answer; "wait" waits for ever."""

    waiting = asyncio.Event()

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("desk")
        Desk.waiting = asyncio.Event()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "wait":
            Desk.waiting.set()
            await asyncio.Event().wait()
        await response.markdown(f"done for {session.identity.id}")


class Running(RunningPlatform):
    """A running platform with an HTTP server, and two agents behind a door."""

    async def accepts(self, secret: str) -> bool:
        """Return True if the HTTP server accepts a secret."""
        assert self.platform.settings.web is not None
        reply = await ask(self.platform.settings.web, "/nothing", key=secret)
        assert reply.status in (401, 404)
        return reply.status == 404

    def agent(self, name: str = "desk") -> DoorAgent:
        """Return an agent as its doors see it."""
        found = self.platform.door_agents.find("openai", self.caller("any"), name)
        assert found is not None
        return found

    def caller(self, key: str, account: str = "") -> Caller:
        """Return the caller with a key as a request had it that came while the key was live."""
        return Caller(key, caller_address(key), account, frozenset({DESK, ECHO}), names_users=False)

    async def is_admitted(self, caller: Caller, name: str = "desk") -> bool:
        """Return True if an agent answers a caller."""
        events = await read_all(await self.agent(name).ask(caller, {"query": "hello"}))
        assert events[-1].type in ("request.completed", "request.failed", "request.refused")
        return events[-1].type == "request.completed"


def run_platform(directory: Path) -> AbstractAsyncContextManager[Running]:
    agents = [
        {"jid": DESK, "agent": "tests.app.test_keys:Desk", "doors": ["openai"]},
        {"jid": ECHO, "agent": "spade_coreason.agents.echo:EchoAgent", "doors": ["openai"]},
    ]
    return Running.start(directory, agents, access={"allow": [CAROL, "guest@localhost"], "operators": [BOSS]})


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_platform(tmp_path) as running:
        yield running


async def test_a_key_has_effect_from_its_creation_to_its_revocation(running: Running) -> None:
    website = running.caller("website")
    assert not await running.is_admitted(website)
    first = (await running.call("keys.create", name="website", agents=["desk"])).secret
    assert await running.accepts(first)
    assert texts_of(await read_all(await running.agent().ask(website, {"query": "hello"}))) == [
        "done for website@callers.invalid"
    ]
    assert not await running.is_admitted(website, "echo")
    second = (await running.call("keys.rotate", name="website")).secret
    assert await running.accepts(first)
    third = (await running.call("keys.rotate", name="website", keep_s=0)).secret
    assert [await running.accepts(secret) for secret in (first, second, third)] == [False, False, True]
    await running.call("keys.revoke", name="website")
    assert not await running.accepts(third)
    assert not await running.is_admitted(website)


async def test_changes_of_one_key_at_once_leave_the_server_with_what_is_stored(running: Running) -> None:
    await running.call("keys.create", name="website", agents=["desk"])
    secrets = [key.secret for key in await asyncio.gather(*(running.call("keys.rotate", name="website") for _ in range(8)))]
    assert running.platform.database is not None
    stored = await KeyRepository(running.platform.database).find("website")
    assert stored is not None
    accepted = {hash_secret(secret) for secret in secrets if await running.accepts(secret)}
    assert accepted == {stored.secret_hash, stored.previous_hash}


async def test_a_revoked_key_ends_what_its_callers_ask(running: Running) -> None:
    await running.call("keys.create", name="website", agents=["desk"])
    reply = await running.agent().ask(running.caller("website"), {"query": "wait"})
    await asyncio.wait_for(Desk.waiting.wait(), TIMEOUT_S)
    await running.call("keys.revoke", name="website")
    assert (await read_all(reply))[-1].type in ("request.failed", "request.refused", "request.cancelled")


async def test_the_rejection_of_a_person_ends_their_keys_and_admitting_them_brings_none_back(running: Running) -> None:
    secret = (await running.call("keys.create", name="editor", agents=["desk", "echo"], account=CAROL)).secret
    editor = running.caller("editor", CAROL)
    assert await running.is_admitted(editor)
    reply = await running.agent().ask(editor, {"query": "wait"})
    await asyncio.wait_for(Desk.waiting.wait(), TIMEOUT_S)
    # The configuration allows Carol, who stays admitted. Her keys are gone all the same.
    decision = await running.call("access.reject", person=CAROL, agent="desk")
    assert decision.is_allowed
    assert (await read_all(reply))[-1].type in ("request.failed", "request.refused", "request.cancelled")
    assert not await running.is_admitted(editor)
    assert await running.is_admitted(editor, "echo")
    assert await running.accepts(secret)
    await running.call("access.admit", person=CAROL, agent="desk")
    assert not await running.is_admitted(editor)
    await running.call("keys.rotate", name="editor")
    assert not await running.is_admitted(editor)
    await running.call("access.reject", person=CAROL, agent="echo")
    assert not await running.accepts(secret)
    with pytest.raises(ConfigError, match="revoked for good"):
        await running.call("keys.rotate", name="editor")


async def test_a_key_asks_only_while_its_person_has_access(running: Running) -> None:
    stranger = "stranger@elsewhere.example"
    await running.call("keys.create", name="editor", agents=["desk"], account=stranger)
    editor = running.caller("editor", stranger)
    assert not await running.is_admitted(editor)
    await running.call("access.admit", person=stranger, agent="desk")
    assert await running.is_admitted(editor)


async def test_the_address_of_a_key_is_rejected_at_one_agent(running: Running) -> None:
    await running.call("keys.create", name="website", agents=["desk", "echo"])
    await running.call("access.reject", person="website@callers.invalid", agent="desk")
    website = running.caller("website")
    assert not await running.is_admitted(website)
    assert await running.is_admitted(website, "echo")


async def test_a_person_is_told_of_their_key_at_once_also_without_notifications(running: Running) -> None:
    assert running.platform.guest is not None
    assert running.platform.server is not None
    guest, password = running.platform.guest
    async with StockClient(guest, password, running.platform.server) as client:
        client.send("/settings notifications off", DESK)
        await client.answer()
        secret = (await running.call("keys.create", name="editor", agents=["desk"], account=guest)).secret
        told = await client.answer()
        assert str(told["from"].bare) == DESK
        assert f"made the key editor, which asks {DESK} in your name." in told["body"]
        assert "`spade-coreason keys revoke editor`" in told["body"]
        assert secret[:11] not in str(told)


async def test_keys_are_as_they_were_after_a_restart(tmp_path: Path) -> None:
    async with run_platform(tmp_path) as running:
        secrets = [(await running.call("keys.create", name=name, agents=["desk"])).secret for name in ("one", "two", "three")]
        secrets.append((await running.call("keys.rotate", name="one")).secret)
        await running.call("keys.revoke", name="two")
        await running.call("access.reject", person="three@callers.invalid", agent="desk")
        before = [await running.accepts(secret) for secret in secrets]
    async with run_platform(tmp_path) as running:
        assert before == [await running.accepts(secret) for secret in secrets] == [True, False, False, True]
        assert await running.is_admitted(running.caller("one"))
        assert not await running.is_admitted(running.caller("two"))
        assert not await running.is_admitted(running.caller("three"))
