"""The same runner without a network, for tests of agents.

async def test_it_remembers_the_city():
    async with AgentTester(weather) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from .access import Access
from .codec.xml import attribute, escape
from .contracts import AgentInterface, AgentRequest, ConversationRecord
from .contracts.base import utc_now
from .door import Door
from .embedding import Embedder
from .ends import OnConversationEnd
from .files import Fetched, Files
from .knowledge import Knowledge
from .loading import AgentParts, build_agent
from .local_network import LocalFiles, LocalNetwork, LocalUser
from .peers import Answer, OpenRequests, PeerEvent, Peers, as_request, collect, write_request
from .runner import Policy, Runner
from .stores import AgentStore, Database
from .stores.knowledge import KnowledgeStore
from .stores.memory import AgentInteractionMemory
from .summaries import Summariser
from .tokens import TokenCounter
from .usage import Usage

_RESOURCE = "agent"


class AgentTester:
    """Runs agents as a platform does, with inbox, sessions and memory, in a temporary directory and without a network.

    `agent` is a class, a factory or an instance; its constructor parameters are filled as in a configuration, and what is
    wrong with them is a ConfigError. `peers` are further agents by JID or name; `options` are keyword arguments for the
    constructor of `agent`. `embedder`, `summariser` and `count` are those of all agents; by default they need no model.
    `user` is who asks where no other is named; who may ask is `allow`, as in a configuration, by default the domain of the
    agent. `clock` is the time of conversations, turns and memories; the waits within a turn are real. `database` is the
    address of an empty one (`storage.url`), by default an SQLite file in the temporary directory.
    """

    def __init__(
        self,
        agent: Any,
        *,
        jid: str = "agent@localhost",
        peers: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        policy: Policy | None = None,
        user: str = "tester@localhost",
        allow: tuple[str, ...] | None = None,
        clock: Callable[[], datetime] = utc_now,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        embedder: Embedder | None = None,
        summariser: Summariser | None = None,
        count: TokenCounter | None = None,
        database: str | None = None,
    ) -> None:
        self.jid = jid
        self._url = database
        self._embedder, self._summariser, self._count = embedder, summariser, count
        own_domain = jid.rpartition("@")[2]
        named = {peer if "@" in peer else f"{peer}@{own_domain}": there for peer, there in (peers or {}).items()}
        self._agents = {jid: agent, **named}
        self._options = {jid: dict(options or {})}
        self._policy = policy or Policy()
        self._user = user
        self._allow = allow
        self._clock = clock
        self._on_end = on_conversation_end
        self._users: dict[str, LocalUser] = {}
        self._stack = AsyncExitStack()
        self._directory = Path()
        self._network = LocalNetwork()
        self._files = LocalFiles()
        self._database: Database | None = None
        self._memories: dict[str, AgentInteractionMemory] = {}
        self.runners: dict[str, Runner] = {}
        self.doors: dict[str, Door] = {}
        self.built: dict[str, AgentInterface] = {}

    async def __aenter__(self) -> AgentTester:
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tester-")))
        try:
            await self._open()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close(grace_s=1.0)
        finally:
            await self._stack.aclose()

    @property
    def agent(self) -> AgentInterface:
        """The agent under test."""
        return self.built[self.jid]

    async def ask(
        self,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        user: str | None = None,
        to: str | None = None,
        timeout: float = 10.0,
    ) -> Answer:
        """Asks as a program, and waits for the whole answer. Raises PeerTimeout, PeerRefused or PeerFailed."""
        to = to or self.jid
        return collect(to, [e async for e in self.stream(request, thread=thread, user=user, to=to, timeout=timeout)])

    async def stream(
        self,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        user: str | None = None,
        to: str | None = None,
        timeout: float = 10.0,
    ) -> AsyncIterator[PeerEvent]:
        """Asks as a program, and gives the events of the answer as they come. Raises as `ask` does."""
        asker = self._as(user)
        asked = as_request(request)
        stanza = write_request(asker.jid, to or self.jid, asked, thread)
        waiting = asker.requests.events(to or self.jid, str(asked.request_id), timeout, lambda: asker.send([stanza]))
        async for event in waiting:
            yield event

    async def say(
        self, text: str, *, thread: str | None = None, user: str | None = None, to: str | None = None, timeout: float = 10.0
    ) -> list[str]:
        """Writes as a person does, and gives the texts of the answer when its turn is over; none for silence.

        TimeoutError after `timeout` seconds.
        """
        person, to = self._as(user), to or self.jid
        said = f"<thread>{escape(thread)}</thread>" if thread else ""
        self.send_stanza(
            f"<message to='{attribute(to)}' type='chat' id='{uuid4()}'><body>{escape(text)}</body>{said}</message>", user=user
        )
        async with asyncio.timeout(timeout):
            await self._network.carried()
            if to in self.runners:
                await self.runners[to].settled(person.jid, thread)
            await self._network.carried()
        return person.take(to, thread)

    def send_stanza(self, stanza: str, *, user: str | None = None) -> None:
        """Sends any `<message/>`, as it is, from a user."""
        self._as(user).send([stanza])

    def unread(self, user: str | None = None) -> list[str]:
        """The texts that came to a person and that no `say` has given, in the order of their arrival."""
        return self._as(user).take()

    async def settled(self) -> None:
        """Waits until no turn runs or waits, everything that was said has arrived, and what left a window is taken in."""
        while self._network.under_way or any(runner.turns_in_flight for runner in self.runners.values()):
            for runner in self.runners.values():
                await runner.settled()
            await self._network.carried()
        for runner in self.runners.values():
            await runner.governance.settled()

    @property
    def uploaded(self) -> dict[str, Fetched]:
        """What the agents uploaded, by link."""
        return self._files.kept

    async def conversations(self) -> list[ConversationRecord]:
        """The conversations of the agent, the newest first."""
        return [row.record for row in await self.runners[self.jid].store.conversations()]

    async def restart(self, grace_s: float = 1.0) -> None:
        """Stops, as a platform does, and starts again over what was stored. Classes and factories make new agents."""
        await self._close(grace_s)
        await self._open()

    def _as(self, user: str | None) -> LocalUser:
        jid = user or self._user
        if jid not in self._users:
            self._users[jid] = LocalUser(jid, self._network)
        return self._users[jid]

    async def _open(self) -> None:
        url = self._url or f"sqlite+aiosqlite:///{self._directory}/platform.db"
        self._database = await Database.open(url, "off")
        for jid, what in self._agents.items():
            self._make(jid, what, self._database)
        for jid, runner in self.runners.items():
            await self.doors[jid].admissions.load()
            await runner.open(self._network.sender(f"{jid}/{_RESOURCE}"))
        for jid, runner in self.runners.items():
            self._network.attach(jid, self.doors[jid].deliver)
            runner.send_unsent()

    def _make(self, jid: str, what: Any, database: Database) -> None:
        send = self._network.sender(f"{jid}/{_RESOURCE}")
        requests = OpenRequests()
        files = Files(self._files.put, self._files.get)
        peers = Peers(jid, requests, send, self._policy.stanza_bytes)
        knowledge = Knowledge(KnowledgeStore(database, jid), self._embedder, clock=self._clock)
        store = AgentStore(database, jid)
        usage = Usage(store, self._clock)
        parts = AgentParts(
            peers=lambda: peers,
            memory=partial(self._memory, jid),
            knowledge=lambda: knowledge,
            files=lambda: files,
            usage=lambda: usage,
        )
        agent = self.built[jid] = build_agent(what, parts=parts, options=self._options.get(jid, {}))
        policy = replace(self._policy, memory=agent.manifest.config.memory or self._policy.memory)
        ends = self._on_end if jid == self.jid else ()
        self.runners[jid] = Runner(
            agent,
            jid,
            store,
            policy,
            clock=self._clock,
            on_conversation_end=ends,
            memory=partial(self._memory, jid),
            files=files,
            knowledge=knowledge,
            summariser=self._summariser,
            count=self._count,
            usage=usage,
        )
        access = Access(jid, self._allow, operators=policy.operators)
        self.doors[jid] = Door(self.runners[jid], requests, access, send)
        self._network.detach(jid)

    def _memory(self, jid: str) -> AgentInteractionMemory:
        if jid not in self._memories:
            directory = self._directory / "memory"
            self._memories[jid] = AgentInteractionMemory(jid, directory, clock=self._clock, durability="normal")
        return self._memories[jid]

    async def _close(self, grace_s: float) -> None:
        runners, self.runners = self.runners, {}
        await asyncio.gather(*(runner.drain(grace_s) for runner in runners.values()))
        for jid in runners:
            self._network.detach(jid)
        for runner in runners.values():
            await runner.close()
        if self._database is not None:
            await self._database.close()
        memories, self._memories = self._memories, {}
        for memory in memories.values():
            await memory.aclose()
