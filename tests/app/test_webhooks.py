"""Webhooks of a running platform: each change has effect at once, and the data of one are deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import Platform
from spade_coreason.contracts.times import utc_now
from spade_coreason.exceptions import ConfigError
from spade_coreason.storage import StoredWebhook, WebhookRepository
from tests.support.databases import SQLITE, execute
from tests.support.doors import Reply, ask
from tests.support.hosting import RunningPlatform
from tests.support.wait import TIMEOUT_S
from tests.support.webhooks import sign

ECHO, QUIET, HOOK = "echo@localhost", "quiet@localhost", "hook-ci@callers.invalid"


class Running(RunningPlatform):
    """A running platform with an HTTP server, and two agents, of which one is behind the door."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self.url = f"{SQLITE}{platform.settings.data_dir}/platform.db"

    async def find(self, name: str, secret: str) -> StoredWebhook:
        """Return a webhook with one of its secrets."""
        assert self.platform.database is not None
        stored = await WebhookRepository(self.platform.database).find(name)
        assert stored is not None
        return stored._replace(secret=secret)

    async def send(self, webhook: StoredWebhook, body: dict[str, Any], message_id: str) -> Reply:
        """Send an event."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **sign(webhook, data, message_id, utc_now())}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return await self.ask(f"/webhooks/{webhook.name}", *lines, method="POST", body=data)

    async def ask(self, path: str, *headers: str, **options: Any) -> Reply:
        """Send a request to the server."""
        assert self.platform.settings.web is not None
        return await ask(self.platform.settings.web, path, *headers, key=None, **options)

    async def answer(self, url: str) -> dict[str, Any]:
        """Wait for an answer, and return it."""
        path = "/" + url.split("/", 3)[3]
        async with asyncio.timeout(TIMEOUT_S):
            while (reply := await self.ask(path)).status == 202:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        found: dict[str, Any] = json.loads(reply.body)
        return found


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    agents = [
        {"jid": ECHO, "agent": "spade_coreason.agents.echo:EchoAgent", "doors": ["webhook"]},
        {"jid": QUIET, "agent": "spade_coreason.agents.echo:EchoAgent"},
    ]
    async with Running.start(tmp_path, agents) as running:
        yield running


@pytest.mark.embedded
@pytest.mark.parametrize("kind", ["standard", "github"])
async def test_a_webhook_has_effect_from_its_creation_to_its_revocation(running: Running, kind: str) -> None:
    created = await running.call("webhooks.create", name="ci", agent="echo", kind=kind)
    assert (created.webhook.agent, created.webhook.address, created.webhook.path) == (ECHO, HOOK, "/webhooks/ci")
    first = await running.find("ci", created.secret)
    address = (await running.send(first, {"query": "hello"}, "1")).headers["location"]
    assert (await running.answer(address))["text"] == "hello"
    second = await running.find("ci", (await running.call("webhooks.rotate", name="ci")).secret)
    assert [(await running.send(each, {"query": each.secret[-5:]}, each.secret[-5:])).status for each in (first, second)] == [
        202,
        202,
    ]
    third = await running.find("ci", (await running.call("webhooks.rotate", name="ci", keep_s=0)).secret)
    sent = [
        (await running.send(each, {"query": "3"}, f"3{number}")).status for number, each in enumerate((first, second, third))
    ]
    assert sent == [401, 401, 202]
    [listed] = await running.call("webhooks.list")
    assert (listed.state, listed.bodies) == ("live", 1 if kind == "github" else 0)
    assert not {first.secret, second.secret, third.secret} & set(str(listed).split("'"))
    await running.call("webhooks.revoke", name="ci")
    assert (await running.send(third, {"query": "4"}, "4")).status == 401
    assert (await running.ask("/" + address.split("/", 3)[3])).status == 404
    assert execute(running.url, "SELECT secret, previous_secret FROM webhooks") == [{"secret": "", "previous_secret": None}]
    assert execute(running.url, "SELECT * FROM webhook_bodies") == []
    with pytest.raises(ConfigError, match="is, or was, the name of another webhook"):
        await running.call("webhooks.create", name="ci", agent="echo")


@pytest.mark.embedded
async def test_an_agent_that_does_not_list_the_door_gets_nothing(running: Running) -> None:
    created = await running.call("webhooks.create", name="ci", agent="quiet")
    assert (await running.send(await running.find("ci", created.secret), {"query": "x"}, "1")).status == 503


@pytest.mark.embedded
async def test_a_webhook_and_a_key_have_no_name_in_common(running: Running) -> None:
    with pytest.raises(ConfigError, match="names that begin with hook-"):
        await running.call("keys.create", name="hook-ci", agents=["echo"])
    await running.call("webhooks.create", name="ci", agent="echo")
    for operation in ("access.reject", "access.admit"):
        with pytest.raises(ConfigError):
            await running.call(operation, person=HOOK, agent="echo")


@pytest.mark.embedded
async def test_all_that_a_webhook_left_is_deleted_and_it_goes_on(running: Running) -> None:
    body = {"query": "a secret of the sender"}
    webhooks = [
        await running.find(name, (await running.call("webhooks.create", name=name, agent="echo", kind=kind)).secret)
        for name, kind in (("ci", "standard"), ("repo", "github"))
    ]
    addresses = [(await running.send(webhook, body, "1")).headers["location"] for webhook in webhooks]
    for address in addresses:
        await running.answer(address)
    exported = await running.call("people.export", person=HOOK)
    assert "a secret of the sender" in json.dumps(exported)
    for name in ("ci", "repo"):
        assert (await running.call("people.delete", person=f"hook-{name}@callers.invalid")).is_complete
    for address in addresses:
        assert (await running.ask("/" + address.split("/", 3)[3])).status == 404
    for table in ("interactions", "conversations", "inbox", "variables"):
        assert "a secret of the sender" not in str(execute(running.url, f"SELECT * FROM {table}"))
    # A replay starts no turn, although nothing is stored of what it asked.
    assert (await running.send(webhooks[1], body, "1")).headers["location"] == addresses[1]
    assert "a secret of the sender" not in str(execute(running.url, "SELECT * FROM interactions"))
    answer = await running.answer((await running.send(webhooks[0], {"query": "more"}, "2")).headers["location"])
    assert answer["text"] == "more"
