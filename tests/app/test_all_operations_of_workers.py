"""All operations, for an agent of another worker and for one that no worker serves, with their effect where it is served."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from uuid import uuid4

import httpx
import pytest

from spade_coreason import AgentInteractionMemory, Knowledge, ResponseHandler, Session, load_settings
from spade_coreason.app.shared_host import open_command_host
from spade_coreason.app.stored_host import StoredHost
from spade_coreason.contracts import AgentDefinition, AgentRequest, MarkdownBlock, NotificationState
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.jid import bare_jid
from spade_coreason.doors.webhooks.signatures import sign_standard
from spade_coreason.exceptions import ApprovalDeniedError, ConfigError, StoreError
from spade_coreason.operations.access import admit_person
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.sessions import OfPerson
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage import addition_of, decode_webhook_secret
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.databases import execute
from tests.support.hosting import write_settings
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S, TIMEOUT_S
from tests.support.workers import Workers, run_workers

Place: TypeAlias = Literal["here", "elsewhere", "free"]
"""The operations come from a machine with a worker that does not serve the agent, from one with the configuration alone, or
from there while no worker serves any agent."""
OF_MACHINE_USER = {name for name, one in OPERATIONS.items() if CallerKind.MACHINE_USER in one.callers}
"""Others are called by a person in a chat, where the agent is served."""
MAX_INTERACTIONS = 3


class ManyAgent:
    """An agent that does what the text says, and otherwise answers with the number of its turn."""

    manifest = AgentDefinition.simple("many")

    def __init__(self, memory: AgentInteractionMemory, knowledge: Knowledge) -> None:
        self._memory, self._knowledge = memory, knowledge

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        verb, _, rest = str(request.payload["query"]).partition(" ")
        conversation = request.metadata["conversation_id"]
        match verb:
            case "wait":
                await asyncio.Event().wait()
            case "fail":
                raise ValueError("told to fail")
            case "level":
                level = logging.getLogger("spade_coreason").getEffectiveLevel()
                await response.markdown(logging.getLevelName(level).lower())
            case "remember":
                await self._memory.aadd_information(conversation, rest)
                await response.markdown("remembered")
            case "recall":
                await response.markdown(f"known: {await self._memory.aget_information(conversation)}")
            case "find":
                found = await self._knowledge.search(rest, threshold=0)
                await response.markdown(f"found: {[hit.document for hit in found]}")
            case "remind":
                await session.remind("0 8 * * *", "morning")
                await response.markdown("reminded")
            case "morning":
                await response.markdown("good morning")
            case "pay":
                try:
                    await response.markdown(await session.run_approved("pay", lambda: "it is paid"))
                except ApprovalDeniedError:
                    await response.markdown("it is not paid")
            case _:
                count = await session.get("count", 0) + 1
                await session.store("count", count, scope="conversation")
                await response.markdown(str(count))


@dataclass
class Scene:
    """Two workers with an agent each, and the operations that were performed so far from a place."""

    workers: Workers
    server: XmppServer
    directory: Path
    ports: list[int]
    clients: AsyncExitStack
    place: Place = "here"
    far: str = ""
    """The agent that the operations are about: the one that the worker on this machine does not serve."""
    host: StoredHost | None = None
    """The stored data, as a command elsewhere has it."""
    performed: dict[Place, set[str]] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        """True unless no worker runs."""
        return self.place != "free"

    async def start(self) -> None:
        """Start both workers, with an HTTP server each, and find out who serves which agent."""
        file = self.directory / "platform.yaml"
        started = []
        for port in self.ports:
            file.write_text(json.dumps(json.loads(file.read_text()) | {"web": {"port": port}}))
            started.append(await self.workers.start())
        await self.workers.wait_for(1, 1)
        [row] = execute(
            self.workers.url,
            f"SELECT agent FROM leases JOIN workers ON workers.id = worker WHERE name NOT LIKE '%:{started[0].pid}'",
        )
        self.far = self.far or row["agent"]

    async def stop(self) -> None:
        """Stop both workers."""
        for worker in self.workers.processes:
            await worker.signal(signal.SIGTERM)
        self.workers.processes.clear()

    async def perform(self, name: str, /, **arguments: Any) -> Any:
        """Perform an operation as the user of the machine."""
        operation = OPERATIONS[name]
        self.performed.setdefault(self.place, set()).add(name)
        wanted = operation.read_arguments(arguments)
        if self.place == "here":
            return await self._call_here(operation, wanted)
        assert self.host is not None
        assert self.host.is_running is self.is_served
        return await operation(Call(self.host, Actor(CallerKind.MACHINE_USER, "user tester")), wanted)

    @asynccontextmanager
    async def open_elsewhere(self) -> AsyncIterator[None]:
        """Open the stored data as a command elsewhere does."""
        settings = load_settings(self.directory / "elsewhere.yaml", self.directory, {})
        async with open_command_host(settings, [], is_exclusive=True) as self.host:
            yield

    async def _call_here(self, operation: Any, arguments: Any) -> Any:
        return (await asyncio.to_thread(call_platform, self.directory / "data", operation, arguments))[0]

    async def new_person(self, *, is_admitted: bool = True) -> Person:
        """Log in as a new person, to whom the agents answer if they are admitted."""
        client = await self.clients.enter_async_context(StockClient(*await self.server.account(), self.server))
        person = Person(client, self.far, bare_jid(client.full_jid))
        for agent in self.workers.agents if is_admitted else ():
            await self._call_here(admit_person, OfPerson(agent=agent, person=person.jid))
            await person.wait_for("You may talk to many now")
        return person

    async def new_people(self) -> tuple[Person, Person]:
        """Log in as two new people."""
        return await self.new_person(), await self.new_person()


class Person:
    """Someone who talks with the agent."""

    def __init__(self, client: StockClient, agent: str, jid: str) -> None:
        self._client = client
        self._agent = agent
        self.jid = jid

    def send(self, text: str) -> None:
        """Send a message to the agent."""
        self._client.send(text, self._agent)

    async def answer(self) -> str:
        """Return the next message of the agent."""
        return str((await self._client.answer(ANSWER_S))["body"])

    async def ask(self, text: str, agent: str = "", thread: str | None = None) -> str:
        """Send a message, and return the answer."""
        return await self._client.ask(text, agent or self._agent, timeout_s=ANSWER_S, thread=thread)

    async def wait_for(self, part: str) -> None:
        """Wait for a message with a text."""
        while part not in await self.answer():
            pass


Story: TypeAlias = Callable[[Scene], AsyncIterator[None]]
"""The agent is served before the first yield and after the second; in between only if the scene says so."""


async def access(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_person(), await scene.new_person(is_admitted=False)
    assert await alice.ask("hi") == "1"
    yield
    rejected = await scene.perform("access.reject", agent=scene.far, person=alice.jid)
    admitted = await scene.perform("access.admit", agent=scene.far, person=bob.jid)
    assert (rejected.is_allowed, admitted.is_allowed) == ((False, True) if scene.is_served else (None, None))
    listed = {entry.person: entry.state for entry in await scene.perform("access.list", agent=scene.far)}
    assert (listed[alice.jid], listed[bob.jid]) == ("rejected", "admitted")
    yield
    bob.send("hi")
    await bob.wait_for("1")
    assert not (await alice.ask("hi")).isdigit()


async def conversations(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    for person in (alice, bob):
        for number in range(MAX_INTERACTIONS):
            assert await person.ask("hi") == str(number + 1)
    assert not (await bob.ask("hi")).isdigit()
    [ended], [paused] = [await scene.perform("sessions.list", agent=scene.far, person=one.jid) for one in (alice, bob)]
    yield
    assert (await scene.perform("conversations.end", agent=scene.far, conversation=ended.conversation_id)).is_changed
    await scene.perform("conversations.reset", agent=scene.far, conversation=paused.conversation_id)
    states = {one.conversation_id: one.state for one in await scene.perform("sessions.list", agent=scene.far)}
    assert states[ended.conversation_id] == "completed"
    yield
    # A worker shows what it has in its memory.
    shown = await scene.perform("sessions.show", agent=scene.far, conversation=ended.conversation_id)
    assert shown.summary.state == "completed"
    for person in (alice, bob):  # their limits begin anew
        assert await person.ask("hi") == str(MAX_INTERACTIONS + 1)


async def sessions(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    assert [await alice.ask("hi") for _ in range(2)] == ["1", "2"]
    yield
    [listed] = await scene.perform("sessions.list", agent=scene.far, person=alice.jid)
    assert alice.jid in {one.person for one in await scene.perform("people.list", agent=scene.far)}
    shown = await scene.perform("sessions.show", agent=scene.far, conversation=listed.conversation_id)
    assert (shown.summary.turns, shown.variables) == (2, {"count": 2})
    exported = await scene.perform("sessions.export", agent=scene.far, person=alice.jid)
    assert exported["person"] == alice.jid
    targets = await scene.perform("sessions.find_targets", agent=scene.far, conversation=listed.conversation_id)
    assert (targets.agents, targets.owner) == ([scene.far], alice.jid)
    [cleared] = (await scene.perform("sessions.clear", agent=scene.far, person=alice.jid)).erasures
    assert (cleared.agent, cleared.report.interactions) == (scene.far, 2)
    yield
    assert await alice.ask("hi") == "1"


async def people(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    for agent in scene.workers.agents:
        assert await alice.ask("hi", agent) == "1"
    yield
    exported = await scene.perform("people.export", person=alice.jid)
    assert {one["agent"] for one in exported["agents"]} >= set(scene.workers.agents)
    deleted = await scene.perform("people.delete", person=alice.jid)
    counts = {one.agent: one.report.interactions for one in deleted.erasures}
    assert counts == dict.fromkeys(scene.workers.agents, 1)
    assert {(one.agent, one.reason) for one in deleted.kept} == {(agent, "access") for agent in scene.workers.agents}
    yield
    for agent in scene.workers.agents:
        assert await alice.ask("hi", agent) == "1"


async def memory(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    file, again = scene.directory / f"{uuid4()}.json", scene.directory / f"{uuid4()}.json"
    for person in (alice, bob):
        assert await person.ask("remember tea") == "remembered"
    assert (await scene.perform("memory.export", agent=scene.far, target=str(file))).entries >= 2
    [ours], [theirs] = [await scene.perform("sessions.list", agent=scene.far, person=one.jid) for one in (alice, bob)]
    await scene.perform("memory.clear", agent=scene.far, conversation=theirs.conversation_id)
    assert await bob.ask("recall") == "known: []"
    yield
    assert (await scene.perform("memory.import", agent=scene.far, source=str(file))).entries == 1
    await scene.perform("memory.export", agent=scene.far, target=str(again))
    conversation = {"agent": scene.far, "conversation": ours.conversation_id}
    for name in ("memory.show", "memory.list"):
        found = await scene.perform(name, **(conversation if name == "memory.show" else {"agent": scene.far}))
        assert "tea" in str(found)
    assert (await scene.perform("memory.recall", person=alice.jid, **conversation)).facts != []
    assert (await scene.perform("memory.find_targets", **conversation)).conversation_ids == [ours.conversation_id]
    assert [one.path for one in await scene.perform("memory.compact", agent=scene.far)] == [""]
    assert (await scene.perform("memory.clear", **conversation)).conversation_ids == [ours.conversation_id]
    yield
    assert await alice.ask("recall") == "known: []"
    assert again.exists()
    assert "tea" in await bob.ask("recall")


async def knowledge(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    word = uuid4().hex
    old, new = f"old-{word}.txt", f"new-{word}.txt"
    await scene.perform("knowledge.add", agent=scene.far, name=old, text=f"giraffe{word}")
    assert old in await alice.ask(f"find giraffe{word}")
    yield
    assert (await scene.perform("knowledge.add", agent=scene.far, name=new, text=f"zebra{word}")).outcome == "new"
    assert (await scene.perform("knowledge.remove", agent=scene.far, names=[old])).documents == [old]
    documents = (await scene.perform("knowledge.list", agent=scene.far)).documents
    assert {document.document for document in documents} & {old, new} == {new}
    [passage] = await scene.perform("knowledge.search", agent=scene.far, query=f"zebra{word}")
    assert passage.document == new
    with pytest.raises(ConfigError, match="no vectors"):
        await scene.perform("knowledge.reindex", agent=scene.far)
    yield
    assert old not in await alice.ask(f"find giraffe{word}")
    assert new in await alice.ask(f"find zebra{word}")


async def requests(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    [paused] = await scene.perform("agents.pause", agent=scene.far)
    assert paused.is_changed
    for person in (alice, bob):
        assert (await person.ask("hi")).startswith("I am paused")
    columns = "id, agent, sender, received_at, request"
    execute(
        scene.workers.url,
        f"INSERT INTO crashed_requests ({columns}, crashes, failed_at, stops, channel) "
        f"SELECT {columns}, 3, received_at, 0, channel FROM inbox WHERE sender IN ('{alice.jid}', '{bob.jid}') RETURNING id",
    )
    [resumed] = await scene.perform("agents.resume", agent=scene.far)
    assert resumed.is_changed
    assert [await person.answer() for person in (alice, bob)] == ["1", "1"]
    yield
    failed = {one.sender: one.id for one in await scene.perform("requests.list", agent=scene.far)}
    assert (await scene.perform("requests.show", id=failed[alice.jid])).payload == {"query": "hi"}
    assert (await scene.perform("requests.drop", id=failed[bob.jid])).sender == bob.jid
    assert (await scene.perform("requests.retry", id=failed[alice.jid])).runs_now is scene.is_served
    yield
    assert await alice.answer() == "2"
    assert await scene.perform("requests.list", agent=scene.far) == []
    assert await bob.ask("hi") == "2"


async def pauses(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    yield
    [paused] = await scene.perform("agents.pause", agent=scene.far)
    if is_served := scene.is_served:
        assert (await alice.ask("hi")).startswith("I am paused")
    [resumed] = await scene.perform("agents.resume", agent=scene.far)
    assert (paused.is_changed, resumed.is_changed) == (True, True)
    yield
    assert (await alice.answer() if is_served else await alice.ask("hi")) == "1"


async def quotas(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    assert await alice.ask("hi") == "1"
    yield
    [usage] = await scene.perform("quotas.list", agent=scene.far, person=alice.jid)
    assert usage.messages == 1
    yield


async def notifications(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    idents = {person: str(uuid4()) for person in (alice, bob)}
    assert scene.host is not None
    stored, content = scene.host.repository(scene.far), dump_blocks([MarkdownBlock(content="the news")])
    for person, ident in idents.items():
        bounced = stored.notifications.make_notification(ident, person.jid, None, "", content, utc_now()).moved(
            utc_now(), NotificationState.BOUNCED.value, "gone"
        )
        await stored.database.writes.submit([addition_of(bounced)])
    yield
    assert set(idents.values()) <= {one.id for one in await scene.perform("notifications.list", agent=scene.far)}
    assert (await scene.perform("notifications.retry", id=idents[alice])).id == idents[alice]
    assert (await scene.perform("notifications.drop", id=idents[bob])).id == idents[bob]
    yield
    await alice.wait_for("the news")
    assert idents[bob] not in {one.id for one in await scene.perform("notifications.list", agent=scene.far)}


async def schedules(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    for person in (alice, bob):
        assert await person.ask("remind") == "reminded"
    yield
    [first], [second] = [await scene.perform("schedules.list", owner=one.jid) for one in (alice, bob)]
    if is_served := scene.is_served:
        await scene.perform("schedules.run", id=first.id)
    assert (await scene.perform("schedules.cancel", id=second.id)).owner == bob.jid
    yield
    if is_served:
        await alice.wait_for("good morning")
    assert await scene.perform("schedules.list", owner=bob.jid) == []


async def approvals(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    found: dict[str, str] = {}
    for person in (alice, bob):
        person.send("pay")
    async with asyncio.timeout(ANSWER_S):
        while not {alice.jid, bob.jid} <= set(found):
            found = {one.requester: one.id for one in await scene.perform("approvals.list", agent=scene.far)}
    yield
    assert {alice.jid, bob.jid} <= {one.requester for one in await scene.perform("approvals.list", agent=scene.far)}
    assert (await scene.perform("approvals.show", id=found[alice.jid])).state == "open"
    if scene.is_served:
        assert (await scene.perform("approvals.reassign", id=found[alice.jid])).state == "open"
    assert (await scene.perform("approvals.approve", id=found[alice.jid])).state == "approved"
    assert (await scene.perform("approvals.deny", id=found[bob.jid])).state == "denied"
    yield
    await alice.wait_for("it is paid")
    await bob.wait_for("it is not paid")


async def incidents(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    alice.send("fail")
    await alice.wait_for("incident")
    yield
    [listed] = [one for one in await scene.perform("incidents.list", agent=scene.far) if one.person == alice.jid]
    assert (await scene.perform("incidents.show", id=listed.id)).agent_id == scene.far
    assert "told to fail" in str((await scene.perform("incidents.messages", id=listed.id)).errors)
    yield


async def keys(scene: Scene) -> AsyncIterator[None]:
    rotated, revoked = new_name(), new_name()
    old = [(await scene.perform("keys.create", name=name, agents=[scene.far])).secret for name in (rotated, revoked)]
    for secret in old:
        await wait_for_answers(scene, secret, 200)
    yield
    new = [(await scene.perform("keys.rotate", name=rotated, keep_s=0)).secret]
    new.append((await scene.perform("keys.create", name=new_name(), agents=[scene.far])).secret)
    assert (await scene.perform("keys.revoke", name=revoked)).state == "revoked"
    listed = {one.name: one.state for one in await scene.perform("keys.list")}
    assert (listed[rotated], listed[revoked]) == ("live", "revoked")
    yield
    for secret in new:
        await wait_for_answers(scene, secret, 200)
    for secret in old:
        await wait_for_answers(scene, secret, 401)


def new_name() -> str:
    """Return a name for a key or a webhook."""
    return uuid4().hex[:8]


async def wait_for_answers(scene: Scene, secret: str, status: int) -> None:
    """Wait until the doors of both workers answer a question with a key with a status."""
    body = {"model": scene.far.partition("@")[0], "messages": [{"role": "user", "content": "level"}]}
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=TIMEOUT_S, trust_env=False) as http:
        for port in scene.ports:
            async with asyncio.timeout(TIMEOUT_S):
                while (await http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)).status_code != status:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)


async def webhooks(scene: Scene) -> AsyncIterator[None]:
    rotated, revoked = new_name(), new_name()
    old = {name: (await scene.perform("webhooks.create", name=name, agent=scene.far)).secret for name in (rotated, revoked)}
    for name, secret in old.items():
        await wait_for_events(scene, name, secret, 202)
    yield
    new = {rotated: (await scene.perform("webhooks.rotate", name=rotated, keep_s=0)).secret}
    added = new_name()
    new[added] = (await scene.perform("webhooks.create", name=added, agent=scene.far)).secret
    assert (await scene.perform("webhooks.revoke", name=revoked)).state == "revoked"
    listed = {one.name: one.state for one in await scene.perform("webhooks.list")}
    assert (listed[rotated], listed[revoked]) == ("live", "revoked")
    yield
    for name, secret in new.items():
        await wait_for_events(scene, name, secret, 202)
    for name, secret in old.items():
        await wait_for_events(scene, name, secret, 401)


async def wait_for_events(scene: Scene, name: str, secret: str, status: int) -> None:
    """Wait until the doors of both workers answer a signed event with a status."""
    body = json.dumps({"query": "level"}).encode()
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
        for port in scene.ports:
            reply = None
            async with asyncio.timeout(TIMEOUT_S):
                while reply is None or reply.status_code != status:
                    ident, timestamp = f"msg_{uuid4().hex}", str(int(utc_now().timestamp()))
                    signature = sign_standard(decode_webhook_secret("standard", secret), ident, timestamp, body)
                    signed = {"webhook-id": ident, "webhook-timestamp": timestamp, "webhook-signature": signature}
                    headers = {"Content-Type": "application/json", **signed}
                    reply = await http.post(f"http://127.0.0.1:{port}/webhooks/{name}", content=body, headers=headers)
                    await asyncio.sleep(0.05)


async def logins(scene: Scene) -> AsyncIterator[None]:
    alice, bob = await scene.new_people()
    links = [await alice.ask("/web"), await bob.ask("/web")]
    assert all("/login#" in link for link in links)
    yield
    assert await scene.perform("logins.revoke", person=alice.jid) == 1
    assert await scene.perform("logins.revoke", person=alice.jid) == 0
    if scene.is_served:
        assert "/login#" in await scene.perform("logins.create", person=alice.jid)
    else:
        with pytest.raises(StoreError, match="needs a running platform"):
            await scene.perform("logins.create", person=alice.jid)
    yield


async def running(scene: Scene) -> AsyncIterator[None]:
    alice = await scene.new_person()
    yield
    if not scene.is_served:
        for name in ("status", "agents.list", "turns.list", "platform.drain"):
            with pytest.raises(StoreError, match="needs a running platform"):
                await scene.perform(name)
        with pytest.raises(StoreError, match="needs a running platform"):
            await scene.perform("log.set", level="debug")
        for name in ("schedules.run", "approvals.reassign"):
            with pytest.raises(StoreError, match="needs a running platform"):
                await scene.perform(name, id=str(uuid4()))
        yield
        return
    status = await scene.perform("status")
    assert [(agent.jid, agent.state) for agent in status.agents] == [(agent, "online") for agent in scene.workers.agents]
    assert {agent.jid for agent in await scene.perform("agents.list")} == set(scene.workers.agents)
    before = await scene.perform("log.set")
    assert {await alice.ask("level", agent, thread=str(uuid4())) for agent in scene.workers.agents} == {before}
    for level in ("error", before):
        assert before != "error"
        assert await scene.perform("log.set", level=level) == level
        assert {await alice.ask("level", agent, thread=str(uuid4())) for agent in scene.workers.agents} == {level}
        assert await scene.perform("log.set") == level
    alice.send("wait")
    async with asyncio.timeout(ANSWER_S):
        while [(turn.agent, turn.person) for turn in await scene.perform("turns.list")] != [(scene.far, alice.jid)]:
            pass
    await alice.ask("/cancel")
    if scene.place == "elsewhere":
        with pytest.raises(StoreError, match="on its own machine"):
            await scene.perform("platform.drain")
    yield


async def trails(scene: Scene) -> AsyncIterator[None]:
    yield
    assert await scene.perform("topics.list") == []
    entries = await scene.perform("audit.list", limit=1000)
    actions = {entry.entry["action"] for entry in entries if entry.entry is not None}
    assert actions >= {"agents.pause", "conversations.end", "notifications.retry", "webhooks.revoke"}
    assert [verdict.problems for verdict in await scene.perform("audit.verify")] == [()] * 3
    yield


STORIES: list[Story] = [
    access,
    conversations,
    sessions,
    people,
    memory,
    knowledge,
    requests,
    pauses,
    quotas,
    notifications,
    schedules,
    approvals,
    incidents,
    keys,
    webhooks,
    logins,
    running,
    trails,
]


@pytest.mark.release
async def test_all_operations_reach_an_agent_of_another_worker_and_one_that_is_free(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    agent, limit = f"{__name__}:ManyAgent", {"max_interactions": MAX_INTERACTIONS}
    boss, _ = await prosody.account()
    further = {"conversation": limit, "access": {"allow": [], "operators": [bare_jid(boss)]}}
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2, agent=agent, further=further) as workers,
        AsyncExitStack() as clients,
    ):
        file = tmp_path / "platform.yaml"
        settings = json.loads(file.read_text())
        for one in settings["agents"]:
            one["doors"] = ["openai", "webhook"]
        ports = find_free_ports(2)
        write_settings(file, settings)
        write_settings(
            tmp_path / "elsewhere.yaml", settings | {"web": {"port": ports[0]}, "data_dir": str(tmp_path / "elsewhere")}
        )
        scene = Scene(workers, prosody, tmp_path, ports, clients)
        await scene.start()
        async with scene.open_elsewhere():
            for scene.place in ("here", "elsewhere"):
                for story in STORIES:
                    async for _ in story(scene):
                        pass
            begun = [story(scene) for story in STORIES]
            for told in begun:
                await anext(told)
        await scene.stop()
        scene.place = "free"
        async with scene.open_elsewhere():
            for told in begun:
                await anext(told)
        await scene.start()
        scene.place = "elsewhere"
        async with scene.open_elsewhere():
            for told in begun:
                assert await anext(told, "ended") == "ended"
        scene.place = "here"
        drained = await scene.perform("platform.drain")
        assert (drained.turns, drained.is_complete) == (0, True)
        await workers.wait_for(2)
        assert scene.performed == dict.fromkeys(get_args(Place), OF_MACHINE_USER)
