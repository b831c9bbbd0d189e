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
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import Element, fromstring

from .access import Access
from .codec import Bounce, Reply, decode
from .codec.xml import attribute, escape
from .contracts import AgentInterface, AgentRequest, ConversationRecord
from .contracts.base import utc_now
from .door import Door
from .exceptions import CoReasonError
from .loading import AgentParts, build_agent
from .names import bare, domain
from .peers import Answer, OpenRequests, PeerEvent, Peers, as_request, collect, write_request
from .runner import OnConversationEnd, Policy, Runner
from .stores import AgentStore, Database
from .stores.memory import AgentInteractionMemory
from .tracked import Tracked

_RESOURCE = "agent"


class _Network:
    """Carries stanzas between the doors of one process, as a server would: it knows who sent what."""

    def __init__(self) -> None:
        self._receivers: dict[str, Callable[[Element], object]] = {}

    def attach(self, jid: str, receive: Callable[[Element], object]) -> None:
        """From now on `receive` gets what is sent to the bare JID."""
        self._receivers[jid] = receive

    def sender(self, jid: str) -> Callable[[list[str]], None]:
        """What the full JID sends through."""

        def send(stanzas: list[str]) -> None:
            for stanza in stanzas:
                asyncio.get_running_loop().call_soon(self._carry, jid, str(stanza))
                if isinstance(stanza, Tracked):
                    stanza.acknowledge()

        return send

    def _carry(self, sender: str, stanza: str) -> None:
        message = fromstring(stanza.replace("<message ", "<message xmlns='jabber:client' ", 1))
        message.set("from", sender)
        receive = self._receivers.get(bare(message.get("to", "")))
        if receive is not None:
            receive(message)
        elif message.get("type") != "error":
            self._bounce(message)

    def _bounce(self, message: Element) -> None:
        error = (
            "<message xmlns='jabber:client' type='error'><error type='cancel'>"
            "<service-unavailable xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error></message>"
        )
        bounce = fromstring(error)
        bounce.set("from", message.get("to", ""))
        bounce.set("id", message.get("id", ""))
        receive = self._receivers.get(bare(message.get("from", "")))
        if receive is not None:
            receive(bounce)


class AgentTester:
    """Runs agents as a platform does, with inbox, sessions and memory, in a temporary directory and without a network.

    `agent` is a class, a factory or an instance; its constructor parameters are filled as in a configuration. `peers` are
    further agents by JID; `options` are keyword arguments for the constructor of `agent`.
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
    ) -> None:
        self.jid = jid
        self._agents = {jid: agent, **(peers or {})}
        self._options = {jid: dict(options or {})}
        self._policy = policy or Policy()
        self._user = user
        self._allow = allow
        self._clock = clock
        self._on_end = on_conversation_end
        self._users: dict[str, _User] = {}
        self._stack = AsyncExitStack()
        self._directory = Path()
        self._network = _Network()
        self._database: Database | None = None
        self.runners: dict[str, Runner] = {}
        self.doors: dict[str, Door] = {}
        self.built: dict[str, AgentInterface] = {}

    async def __aenter__(self) -> AgentTester:
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tester-")))
        await self._open()
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
        self, text: str, *, thread: str | None = None, user: str | None = None, timeout: float = 10.0, answers: int = 1
    ) -> list[str]:
        """Writes as a person does, and waits for `answers` messages of text. TimeoutError if they do not come."""
        person = self._as(user)
        self.send_stanza(
            f"<message to='{attribute(self.jid)}' type='chat' id='{uuid4()}'><body>{escape(text)}</body>"
            + (f"<thread>{escape(thread)}</thread>" if thread else "")
            + "</message>",
            user=user,
        )
        async with asyncio.timeout(timeout):
            return [await person.texts.get() for _ in range(answers)]

    def send_stanza(self, stanza: str, *, user: str | None = None) -> None:
        """Sends any `<message/>`, as it is, from a user."""
        self._as(user).send([stanza])

    def texts_of(self, user: str | None = None) -> asyncio.Queue[str]:
        """The texts that a user got and nobody waited for."""
        return self._as(user).texts

    async def conversations(self) -> list[ConversationRecord]:
        """The conversations of the agent, the newest first."""
        return [row.record for row in await self.runners[self.jid].store.conversations()]

    async def settled(self) -> None:
        """Waits until no turn runs or waits."""
        while any(runner.turns_in_flight for runner in self.runners.values()):
            workers = [lane.worker for r in self.runners.values() for lane in r._lanes.values() if lane.worker]
            await asyncio.wait(workers)

    async def restart(self, grace_s: float = 1.0) -> None:
        """Stops, as a platform does, and starts again over what was stored. Classes and factories make new agents."""
        await self._close(grace_s)
        await self._open()

    def _as(self, user: str | None) -> _User:
        jid = user or self._user
        if jid not in self._users:
            self._users[jid] = _User(jid, self._network)
        return self._users[jid]

    async def _open(self) -> None:
        self._database = await Database.open(f"sqlite+aiosqlite:///{self._directory}/platform.db", "off")
        for jid, what in self._agents.items():
            send = self._network.sender(f"{jid}/{_RESOURCE}")
            requests = OpenRequests()
            self.built[jid] = self._build(jid, what, Peers(jid, requests, send))
            store = AgentStore(self._database, jid)
            ends = self._on_end if jid == self.jid else ()
            runner = Runner(self.built[jid], jid, store, self._policy, clock=self._clock, on_conversation_end=ends)
            allow = self._allow if self._allow is not None else (domain(jid),)
            self.runners[jid] = runner
            self.doors[jid] = Door(runner, requests, Access(jid, allow), send)
            self._network.attach(jid, self.doors[jid].deliver)
        for jid, runner in self.runners.items():
            await runner.open(self._network.sender(f"{jid}/{_RESOURCE}"))
            runner.send_unsent()

    def _build(self, jid: str, what: Any, peers: Peers) -> AgentInterface:
        parts = AgentParts(peers=lambda: peers, memory=lambda: AgentInteractionMemory(jid, self._directory / "memory"))
        return build_agent(what, parts=parts, options=self._options.get(jid, {}))

    async def _close(self, grace_s: float) -> None:
        for runner in self.runners.values():
            await runner.drain(grace_s)
        for runner in self.runners.values():
            await runner.close()
        if self._database is None:
            raise CoReasonError("use the tester in `async with`")
        await self._database.close()


class _User:
    """Somebody who talks to agents: a program's open requests and a person's texts."""

    def __init__(self, jid: str, network: _Network) -> None:
        self.jid = jid
        self.requests = OpenRequests()
        self.texts: asyncio.Queue[str] = asyncio.Queue()
        self.send = network.sender(f"{jid}/test")
        network.attach(jid, self._receive)

    def _receive(self, stanza: Element) -> None:
        message = decode(stanza)
        if isinstance(message, Reply):
            self.requests.deliver(message)
        elif isinstance(message, Bounce):
            self.requests.bounce(message)
        elif (text := stanza.findtext("{jabber:client}body")) is not None:
            self.texts.put_nowait(text)
