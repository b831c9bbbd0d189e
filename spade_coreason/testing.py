"""The same runner without a network, for tests of agents.

async def test_it_remembers_the_city():
    async with AgentTester(weather) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text

What a person's client can do beyond texts:

async def test_a_reply_goes_on_where_the_answer_was():
    async with AgentTester(weather, client_features={"replies"}) as t:
        question = t.send("Berlin?", thread="travel")
        answer = await t.message()  # a ReceivedMessage: id, text, thread, reply_to, …
        assert answer.reply_to == question
        t.send("and tomorrow?", reply_to=answer.id)
        assert (await t.message()).thread == "travel"
        t.react(answer.id, "👍")
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias
from urllib.parse import quote
from uuid import uuid4
from xml.etree.ElementTree import Element, fromstring

from .codec import (
    BODY,
    CHAT_STATES,
    CORRECTION_NAMESPACE,
    DISPLAYED,
    OOB,
    OOB_URL,
    REACTIONS_NAMESPACE,
    REPLACE,
    REPLY,
    REPLY_NAMESPACE,
    RETRACT_NAMESPACE,
    THREAD,
    decode,
    escape,
    escape_attribute,
)
from .contracts import AgentInterface, AgentRequest, ConversationRecord
from .contracts.base import utc_now
from .domain.access import AccessPolicy
from .domain.jid import bare_jid
from .domain.messages import Bounce, ReplyEvent
from .memory import AgentInteractionMemory, Embedder, Knowledge, Summariser, TokenCounter, Usage
from .runtime import (
    FetchedFile,
    Files,
    InboundGateway,
    Injectables,
    OnConversationEnd,
    OpenRequests,
    OutboundStanza,
    PeerAnswer,
    PeerEvent,
    Peers,
    Policy,
    Progress,
    Runner,
    UnknownClientFeatures,
    UploadFile,
    as_request,
    build_agent,
    collect,
    encode_request,
    fetch,
)
from .storage import AgentRepository, Database, KnowledgeRepository, open_database


class LocalNetwork:
    """Carries stanzas in the order in which they are sent. It says who sent what, and keeps it for the absent."""

    def __init__(self) -> None:
        self._receivers: dict[str, Callable[[Element], object]] = {}
        self._undelivered: dict[str, list[Element]] = {}
        self.in_flight_count = 0
        """How many stanzas were sent and have not arrived."""

    def attach(self, jid: str, receive: Callable[[Element], object]) -> None:
        """From now on `receive` gets what is sent to the bare JID, and first what came while it was away."""
        self._receivers[jid] = receive
        for message in self._undelivered.pop(jid, []):
            receive(message)

    def detach(self, jid: str) -> None:
        """Keeps what is sent to the bare JID until it is attached again."""
        self._receivers.pop(jid, None)
        self._undelivered.setdefault(jid, [])

    def build_sender(self, jid: str) -> Callable[[list[str]], None]:
        """What the full JID sends through."""

        def send(stanzas: list[str]) -> None:
            for stanza in stanzas:
                self.in_flight_count += 1
                asyncio.get_running_loop().call_soon(self._deliver, jid, str(stanza))
                if isinstance(stanza, OutboundStanza):
                    stanza.acknowledge()

        return send

    async def wait_until_delivered(self) -> None:
        """Waits until everything that was sent before has arrived."""
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.call_soon(arrived.set_result, None)  # stanzas are carried in the order in which they were sent
        await arrived

    def _deliver(self, sender: str, stanza: str) -> None:
        self.in_flight_count -= 1
        message = fromstring(stanza.replace("<message ", "<message xmlns='jabber:client' ", 1))
        message.set("from", sender)
        to = bare_jid(message.get("to", ""))
        if (receive := self._receivers.get(to)) is not None:
            receive(message)
        elif to in self._undelivered:
            self._undelivered[to].append(message)
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
        receive = self._receivers.get(bare_jid(message.get("from", "")))
        if receive is not None:
            receive(bounce)


ClientFeature: TypeAlias = Literal["corrections", "replies"]

"""What a person's client shows: corrections (XEP-0308), so that a streamed answer grows; replies (XEP-0461)."""


class LocalClientFeatures(UnknownClientFeatures):
    """The devices of all people: they show `features`, which may change."""

    def __init__(self, features: Set[ClientFeature]) -> None:
        self.features = features

    def has_corrections(self, person: str) -> bool:
        """Return the same for all people."""
        return "corrections" in self.features

    def has_replies(self, device: str) -> bool:
        """Return the same for all devices."""
        return "replies" in self.features


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as it came to a person. What it does not have is None."""

    id: str
    sender: str
    """A bare JID."""
    thread: str | None
    text: str | None
    """None for one that shows typing only, or is a receipt or a marker."""
    reply_to: str | None
    """The id of the person's message that it replies to (XEP-0461)."""
    corrects: str | None
    """The id of the agent's message whose text it replaces (XEP-0308)."""
    link: str | None
    """The file that clients show it as (XEP-0066)."""
    state: str | None
    """A chat state (XEP-0085): "active", "composing", "paused", "inactive" or "gone"."""
    displayed: str | None
    """The id of the person's message that the agent has begun to work on (XEP-0333)."""
    xml: Element = field(repr=False, compare=False)

    @classmethod
    def read(cls, xml: Element) -> ReceivedMessage:
        """Reads a `<message/>`."""
        reply, replaced, displayed = (xml.find(tag) for tag in (REPLY, REPLACE, DISPLAYED))
        return cls(
            id=xml.get("id", ""),
            sender=bare_jid(xml.get("from", "")),
            thread=xml.findtext(THREAD),
            text=xml.findtext(BODY),
            reply_to=reply.get("id") if reply is not None else None,
            corrects=replaced.get("id") if replaced is not None else None,
            link=xml.findtext(f"{OOB}/{OOB_URL}"),
            state=next((child.tag.rpartition("}")[2] for child in xml if child.tag in CHAT_STATES), None),
            displayed=displayed.get("id") if displayed is not None else None,
            xml=xml,
        )


class LocalUser:
    """A user who talks to agents: a program's open requests and a person's messages."""

    def __init__(self, jid: str, network: LocalNetwork) -> None:
        self.jid = jid
        self.requests = OpenRequests()
        self.send = network.build_sender(f"{jid}/test")
        self.messages: list[ReceivedMessage] = []
        """All that came, in the order of its arrival."""
        self._unread: list[ReceivedMessage] = []
        self._arrival = asyncio.Event()
        network.attach(jid, self._receive)

    def pop_texts(self, *source: str | None) -> list[str]:
        """The texts that nobody took: all, or those `source` a sender and a thread."""
        taken = [one for one in self._unread if not source or source == (one.sender, one.thread)]
        self._unread = [one for one in self._unread if one not in taken]
        return [one.text for one in taken if one.text is not None]

    async def next(self) -> ReceivedMessage:
        """Takes the first message with a text that nobody took; waits for it."""
        while not self._unread:
            self._arrival.clear()
            await self._arrival.wait()
        return self._unread.pop(0)

    def _receive(self, stanza: Element) -> None:
        received = ReceivedMessage.read(stanza)
        self.messages.append(received)
        message = decode(stanza)
        if isinstance(message, ReplyEvent):
            self.requests.receive(message)
        elif isinstance(message, Bounce):
            self.requests.receive_bounce(message)
        elif received.text is not None:
            self._unread.append(received)
            self._arrival.set()


class LocalFiles:
    """What agents uploaded, by link. Such a link is fetched from here, every other from where it leads."""

    def __init__(self) -> None:
        self.files: dict[str, FetchedFile] = {}

    async def upload(self, name: str, data: bytes, type: str, progress: Progress | None) -> str:
        """Keeps it."""
        url = f"https://files.localhost/{len(self.files) + 1}/{quote(name, safe='')}"
        self.files[url] = FetchedFile(url, name, type, data)
        if progress is not None:
            progress(len(data), len(data))
        return url

    async def fetch(self, url: str, **limits: Any) -> FetchedFile:
        """As `fetch`."""
        return self.files[url] if url in self.files else await fetch(url, **limits)


__all__ = ["AgentTester", "ClientFeature", "ReceivedMessage"]

_AGENT_RESOURCE = "agent"


class AgentTester:
    """Runs agents as a platform does, with inbox, sessions and memory, in a temporary directory and without a network.

    `agent` is a class, a factory or an instance; its constructor parameters are filled as in a configuration, and what is
    wrong with them is a ConfigError. `peers` are further agents by JID or name; `options` are keyword arguments for the
    constructor of `agent`. `embedder`, `summariser` and `count` are those of all agents; by default they need no model.
    `user` is who asks where no other is named; who may ask is `allow`, as in a configuration, by default the domain of the
    agent. `clock` is the time of conversations, turns and memories; the waits within a turn are real. `database` is the
    address of an empty one (`storage.url`), by default an SQLite file in the temporary directory. `client_features` is what
    the clients of all people show: "corrections" (a streamed answer grows), "replies"; by default texts only. `upload(name,
    data, type, progress)` keeps what agents upload and returns its link, or raises UploadError; by default it is kept in
    `uploaded`.

    A program uses `ask` and `stream`. A person uses `say`, or `send`, `retract` and `react`, which do not wait; what came to a
    person is in `messages`, and `message` waits for the next.
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
        client_features: Set[ClientFeature] = frozenset(),
        upload: UploadFile | None = None,
    ) -> None:
        self.jid = jid
        self._database_url = database
        self._embedder, self._summariser, self._count_tokens = embedder, summariser, count
        own_domain = jid.rpartition("@")[2]
        named = {peer if "@" in peer else f"{peer}@{own_domain}": there for peer, there in (peers or {}).items()}
        self._agent_specs = {jid: agent, **named}
        self._options = {jid: dict(options or {})}
        self._policy = policy or Policy()
        self._user = user
        self._allow = allow
        self._clock = clock
        self._on_conversation_end = on_conversation_end
        self._users: dict[str, LocalUser] = {}
        self._stack = AsyncExitStack()
        self._directory = Path()
        self._network = LocalNetwork()
        self._files = LocalFiles()
        self._put = upload or self._files.upload
        self._devices = LocalClientFeatures(client_features)
        self._database: Database | None = None
        self._memories: dict[str, AgentInteractionMemory] = {}
        self.runners: dict[str, Runner] = {}
        self.gateways: dict[str, InboundGateway] = {}
        self.built_agents: dict[str, AgentInterface] = {}

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
        return self.built_agents[self.jid]

    async def ask(
        self,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        user: str | None = None,
        to: str | None = None,
        timeout: float = 10.0,
    ) -> PeerAnswer:
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
        asker = self._local_user(user)
        asked = as_request(request)
        stanza = encode_request(asker.jid, to or self.jid, asked, thread)
        waiting = asker.requests.events(to or self.jid, str(asked.request_id), timeout, lambda: asker.send([stanza]))
        async for event in waiting:
            yield event

    async def say(
        self, text: str, *, thread: str | None = None, user: str | None = None, to: str | None = None, timeout: float = 10.0
    ) -> list[str]:
        """Writes as a person does, and gives the texts of the answer when its turn is over; none for silence.

        TimeoutError after `timeout` seconds.
        """
        person, to = self._local_user(user), to or self.jid
        self.send(text, thread=thread, user=user, to=to)
        async with asyncio.timeout(timeout):
            await self._network.wait_until_delivered()
            if to in self.runners:
                await self.runners[to].wait_until_idle(person.jid, thread)
            await self._network.wait_until_delivered()
        return person.pop_texts(to, thread)

    def send(
        self,
        text: str,
        *,
        id: str | None = None,
        thread: str | None = None,
        reply_to: str | None = None,
        corrects: str | None = None,
        extra: str = "",
        user: str | None = None,
        to: str | None = None,
    ) -> str:
        """Writes as a person does, without waiting, and gives the id of the message: `id` ("" for none), or a new one.

        `reply_to` is the id of the message that this one replies to (XEP-0461), `corrects` that of a message of the same
        person, which it replaces (XEP-0308). `extra` is further elements of the message, as XML.
        """
        to, id = to or self.jid, str(uuid4()) if id is None else id
        inner = f"<body>{escape(text)}</body>"
        if thread:
            inner += f"<thread>{escape(thread)}</thread>"
        if reply_to is not None:
            inner += f"<reply xmlns='{REPLY_NAMESPACE}' to='{escape_attribute(to)}' id='{escape_attribute(reply_to)}'/>"
        if corrects is not None:
            inner += f"<replace xmlns='{CORRECTION_NAMESPACE}' id='{escape_attribute(corrects)}'/>"
        self._send(f"{inner}{extra}", id, user, to)
        return id

    def retract(self, id: str, *, user: str | None = None, to: str | None = None) -> None:
        """Takes back the person's message of that id (XEP-0424)."""
        # Clients put a text beside it for those that do not know what it is.
        retracted = (
            f"<retract xmlns='{RETRACT_NAMESPACE}' id='{escape_attribute(id)}'/><body>This person took a message back</body>"
        )
        self._send(retracted, str(uuid4()), user, to)

    def react(self, id: str, *emojis: str, user: str | None = None, to: str | None = None) -> None:
        """Reacts to the agent's message of that id (XEP-0444); none takes earlier reactions back."""
        felt = "".join(f"<reaction>{escape(emoji)}</reaction>" for emoji in emojis)
        reacted = f"<reactions xmlns='{REACTIONS_NAMESPACE}' id='{escape_attribute(id)}'>{felt}</reactions>"
        self._send(reacted, str(uuid4()), user, to)

    def _send(self, inner: str, id: str, user: str | None, to: str | None) -> None:
        named = f" id='{escape_attribute(id)}'" if id else ""
        self.send_stanza(f"<message to='{escape_attribute(to or self.jid)}' type='chat'{named}>{inner}</message>", user=user)

    def send_stanza(self, stanza: str, *, user: str | None = None) -> None:
        """Sends any `<message/>`, as it is, from a user."""
        self._local_user(user).send([stanza])

    def unread(self, user: str | None = None) -> list[str]:
        """The texts that came to a person and that no `say` has given, in the order of their arrival."""
        return self._local_user(user).pop_texts()

    async def message(self, user: str | None = None, *, timeout: float = 10.0) -> ReceivedMessage:
        """Waits for the next message with a text that came to a person; it is read then. TimeoutError after `timeout`."""
        async with asyncio.timeout(timeout):
            return await self._local_user(user).next()

    def messages(self, user: str | None = None) -> list[ReceivedMessage]:
        """Everything that came to a person until now, read or not, typing and corrections included; the oldest first."""
        return list(self._local_user(user).messages)

    async def delivered(self) -> None:
        """Waits until everything that was sent before has arrived; turns may still run."""
        await self._network.wait_until_delivered()

    async def settled(self) -> None:
        """Waits until no turn runs or waits, everything that was said has arrived, and what left a window is taken in."""
        while self._network.in_flight_count or any(runner.turns_in_flight for runner in self.runners.values()):
            for runner in self.runners.values():
                await runner.wait_until_idle()
            await self._network.wait_until_delivered()
        for runner in self.runners.values():
            await runner.history_window.wait_until_idle()

    @property
    def uploaded(self) -> dict[str, FetchedFile]:
        """What the agents uploaded, by link."""
        return self._files.files

    async def conversations(self) -> list[ConversationRecord]:
        """The conversations of the agent, the newest first."""
        return [row.contract_record for row in await self.runners[self.jid].store.list_conversations()]

    @property
    def client_features(self) -> Set[ClientFeature]:
        """What the clients of all people show; it may be set at any time."""
        return self._devices.features

    @client_features.setter
    def client_features(self, features: Set[ClientFeature]) -> None:
        self._devices.features = features

    async def restart(self, grace_s: float = 1.0, *, policy: Policy | None = None) -> None:
        """Stops, as a platform does, and starts again over what was stored, with another `policy` where one is given.

        Classes and factories make new agents.
        """
        await self._close(grace_s)
        self._policy = policy or self._policy
        await self._open()

    def _local_user(self, user: str | None) -> LocalUser:
        jid = user or self._user
        if jid not in self._users:
            self._users[jid] = LocalUser(jid, self._network)
        return self._users[jid]

    async def _open(self) -> None:
        url = self._database_url or f"sqlite+aiosqlite:///{self._directory}/platform.db"
        self._database = await open_database(url, "off")
        for jid, what in self._agent_specs.items():
            self._build_runner(jid, what, self._database)
        for jid, runner in self.runners.items():
            await self.gateways[jid].access_requests.load()
            await runner.open(self._network.build_sender(f"{jid}/{_AGENT_RESOURCE}"), self._devices)
        for jid, runner in self.runners.items():
            self._network.attach(jid, self.gateways[jid].receive_stanza)
            runner.send_unsent()

    def _build_runner(self, jid: str, agent_spec: Any, database: Database) -> None:
        send = self._network.build_sender(f"{jid}/{_AGENT_RESOURCE}")
        requests = OpenRequests()
        files = Files(self._put, self._files.fetch)
        peers = Peers(jid, requests, send, self._policy.stanza_bytes)
        knowledge = Knowledge(KnowledgeRepository(database, jid), self._embedder, clock=self._clock)
        store = AgentRepository(database, jid)
        usage = Usage(store, self._clock)
        parts = Injectables(
            peers=lambda: peers,
            memory=partial(self._get_memory, jid),
            knowledge=lambda: knowledge,
            files=lambda: files,
            usage=lambda: usage,
        )
        agent = self.built_agents[jid] = build_agent(agent_spec, injectables=parts, options=self._options.get(jid, {}))
        policy = replace(self._policy, memory=agent.manifest.config.memory or self._policy.memory)
        ends = self._on_conversation_end if jid == self.jid else ()
        self.runners[jid] = Runner(
            agent,
            jid,
            store,
            policy,
            clock=self._clock,
            on_conversation_end=ends,
            interaction_memory=partial(self._get_memory, jid),
            files=files,
            knowledge=knowledge,
            summariser=self._summariser,
            count_tokens=self._count_tokens,
            usage=usage,
        )
        access = AccessPolicy(jid, self._allow, operators=policy.operators)
        self.gateways[jid] = InboundGateway(self.runners[jid], requests, access, send)
        self._network.detach(jid)

    def _get_memory(self, jid: str) -> AgentInteractionMemory:
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
