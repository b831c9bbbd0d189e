"""Agents on the test servers: in this process with `run_agent`, or in a child process that can be killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self
from xml.sax.saxutils import escape

from spade_coreason import People, ResponseHandler, Session, SessionHandle
from spade_coreason.app.loop_watch import BLOCKED_S
from spade_coreason.app.platform import Platform
from spade_coreason.config.loader import load_settings
from spade_coreason.contracts import AgentDefinition, AgentRequest, Interceptor
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.access import AccessPolicy, TrustedAgents
from spade_coreason.domain.avatar import Avatar
from spade_coreason.domain.jid import bare_jid
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.exceptions import CoReasonError
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.runtime import PeerOptions, UploadWarnings
from spade_coreason.runtime.assembly import AgentParts, AgentRules, AgentRuntime
from spade_coreason.runtime.channels import AgentNetwork
from spade_coreason.runtime.conversations.expiry import OnConversationEnd
from spade_coreason.runtime.files import Files, UploadFile
from spade_coreason.runtime.intake.gateway import InboundGateway
from spade_coreason.runtime.peers.open_requests import OpenRequests
from spade_coreason.runtime.peers.peers import Peers
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import find_database_file, open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
from spade_coreason.xmpp.connection.login import Login
from spade_coreason.xmpp.host import HostedAgent
from spade_coreason.xmpp.local_exchange import LocalExchange
from spade_coreason.xmpp.servers.process import find_free_ports
from spade_coreason.xmpp.timings import DEFAULT_TIMINGS, ConnectionTimings
from tests.support.errors import check_errors, errors_in
from tests.support.line_log import append_line, read_lines
from tests.support.loopback_server import LoopbackServer
from tests.support.records import query_of
from tests.support.servers.processes import wait_until_ended
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.support.warm import WarmProcess

PROJECT = Path(__file__).parents[2]
UNLIMITED = Policy(rules=Rules(max_interactions=0))
DEFAULT_STORE_TIMINGS = StoreTimings()

Assist = Callable[[AgentRequest, Any, Any], Awaitable[None]]
AgentFactory = Callable[[Peers], Any]


class FunctionAgent:
    """An agent made of one coroutine: `FunctionAgent(assist)`."""

    def __init__(self, assist: Assist, name: str = "by") -> None:
        self.assist = assist
        self.manifest = AgentDefinition.simple(name)


class Echo:
    """An agent that repeats each query and records its requests."""

    def __init__(self, name: str = "echo", prefix: str = "") -> None:
        self.manifest = AgentDefinition.simple(name)
        self.prefix = prefix
        self.requests: list[AgentRequest] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.requests.append(request)
        await response.markdown(f"{self.prefix}{request.payload.get('query', '')}")


@dataclass(eq=False)
class OnlineAgent:
    """One agent on a server, with its database, runner and connection."""

    account: tuple[str, str]
    server: XmppServer
    url: str
    make_agent: AgentFactory
    policy: Policy
    allow: Sequence[str] | None
    on_end: tuple[OnConversationEnd, ...] = ()
    prepare: Callable[[HostedAgent], None] = field(default=lambda host: None)
    port: int | None = None
    rooms: Sequence[RoomConfig] = ()
    invited_by: Sequence[str] = ()
    admission: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], datetime] = utc_now
    agent: Any = None
    timings: ConnectionTimings = DEFAULT_TIMINGS
    store_timings: StoreTimings = DEFAULT_STORE_TIMINGS
    avatar: Avatar | None = None
    interceptors: Sequence[Interceptor] = ()
    local_exchange: LocalExchange | None = None
    trusted_domains: Sequence[str] = ()

    database: Database = field(init=False)
    requests: OpenRequests = field(init=False)
    runner: Runner = field(init=False)
    gateway: InboundGateway = field(init=False)
    host: HostedAgent = field(init=False)
    peers: Peers = field(init=False)
    people: People = field(init=False)
    files: Files = field(init=False)

    @property
    def jid(self) -> str:
        """The bare JID of the agent."""
        return bare_jid(self.account[0])

    @property
    def repository(self) -> AgentRepository:
        """The repository of the agent."""
        return AgentRepository(self.database, self.jid)

    async def start(self) -> None:
        """Bring the agent online; it resumes the work that an earlier run left."""
        self.database = await open_database(self.url, "normal", timings=self.store_timings)
        try:
            endpoint = endpoint_of(self.server, self.port)
            self.host = HostedAgent(
                Login(*self.account),
                endpoint,
                self._build,
                stanza_bytes=self.policy.limits.stanza_bytes,
                avatar=self.avatar,
                rooms=self.rooms,
                local_exchange=self.local_exchange,
                timings=self.timings,
            )
            parts, self.runner, self.gateway = self.host.runtime.parts, self.host.runtime.runner, self.host.runtime.gateway
            self.requests, self.peers, self.files = parts.open_requests, parts.peers, parts.files
            self.people = parts.people
            self.prepare(self.host)
            await self.host.start()
        except BaseException:
            await self.database.close()
            raise

    def _build(self, network: AgentNetwork, upload: UploadFile) -> AgentRuntime:
        peer_options = PeerOptions(trusted_agents=TrustedAgents(domains=self.trusted_domains))
        file = find_database_file(self.url)
        memory = AgentInteractionMemory(self.jid, file.parent / "memory") if file is not None else None
        access = AccessPolicy(self.jid, self.allow, self.invited_by, operators=self.policy.operators, **self.admission)
        parts = AgentParts(
            self.repository,
            network,
            Files(upload, warnings=UploadWarnings()),
            peer_options,
            AgentRules(access, self.policy),
            memory=None if memory is None else lambda: memory,
            clock=self.clock,
        )
        self.agent = self.make_agent(parts.peers)
        return parts.build_runtime(self.agent, on_conversation_end=self.on_end, interceptors=self.interceptors)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Stop the agent cleanly."""
        await self.host.stop(grace_s)
        await self.database.close()

    async def restart(self) -> None:
        """Stop cleanly and start again on the same database; a factory builds a new agent."""
        await self.stop()
        await self.start()

    async def crash(self) -> None:
        """Cut the connection for good and finish no turn: to the server this looks like `kill -9`."""
        connection = self.host.connection
        connection.drop()
        await self.runner.drain(0)
        await self.runner.close()
        await connection.close()
        await self.database.close()

    def cut(self) -> None:
        """Cut the TCP connection without closing the stream."""
        self.host.connection.client.abort()

    async def reconnected(self, cut: Callable[[], None]) -> None:
        """Call `cut`, and wait until the agent has its next session. It may be back before a poll sees that it is away."""
        connection = self.host.connection
        before = connection.session_count + connection.resumption_count
        cut()
        await eventually(lambda: connection.session_count + connection.resumption_count > before and self.host.is_alive())

    async def settled(self) -> None:
        """Wait until the server has acknowledged everything and the database has stored that."""
        assert await self.host.connection.wait_until_acknowledged(5.0)
        await self.database.write(lambda connection: None)


@asynccontextmanager
async def run_agent(
    agent: Any,
    server: XmppServer,
    tmp_path: Path,
    *,
    name: str | None = None,
    policy: Policy = UNLIMITED,
    access: Sequence[str] | None = None,
    on_end: tuple[OnConversationEnd, ...] = (),
    prepare: Callable[[HostedAgent], None] = lambda host: None,
    port: int | None = None,
    rooms: Sequence[RoomConfig] = (),
    invited_by: Sequence[str] = (),
    admission: Mapping[str, Any] | None = None,
    timings: ConnectionTimings = DEFAULT_TIMINGS,
    store_timings: StoreTimings = DEFAULT_STORE_TIMINGS,
    avatar: Avatar | None = None,
    clock: Callable[[], datetime] = utc_now,
    local_exchange: LocalExchange | None = None,
    trusted_domains: Sequence[str] = (),
) -> AsyncIterator[OnlineAgent]:
    """Run an agent on `server` with a fresh account. `agent` is the agent itself or a factory: `agent(peers)`.

    prepare        Called with the `HostedAgent` before it starts.
    port           The port of a tunnel to the server.
    rooms          Rooms that the agent joins at the start.
    invited_by     JIDs that may invite the agent into rooms.
    admission      The other rules of its `AccessPolicy`.
    timings        The timings of its connection.
    store_timings  The timings of its database.
    clock          The time of its conversations.
    local_exchange The agents with which it exchanges messages directly.
    trusted_domains Domains whose agents are believed about the person behind a request, and are told that person.
    """
    make_agent: AgentFactory = (lambda peers: agent) if hasattr(agent, "assist") else agent
    account = await server.account(name)
    url = f"sqlite+aiosqlite:///{tmp_path}/{bare_jid(account[0])}.db"
    online_agent = OnlineAgent(
        account, server, url, make_agent, policy, access, on_end, prepare, port, rooms, invited_by, admission or {}, clock
    )
    online_agent.timings, online_agent.store_timings, online_agent.avatar = timings, store_timings, avatar
    online_agent.local_exchange, online_agent.trusted_domains = local_exchange, trusted_domains
    await online_agent.start()
    try:
        yield online_agent
    finally:
        await online_agent.stop()


def record_sent(agent: OnlineAgent) -> list[str]:
    """Record the data that the agent's connection sends from now on; an item may hold several stanzas."""
    client, sent = agent.host.connection.client, list[str]()
    send_raw = client.send_raw

    def record(data: Any) -> None:
        sent.append(str(data))
        send_raw(data)

    client.send_raw = record
    return sent


def count_bodies(sent: list[str]) -> int:
    """Count the bodies in the recorded data."""
    return sum(data.count("<body") for data in sent)


def endpoint_of(server: XmppServer, port: int | None = None) -> ServerEndpoint:
    """Return the endpoint of a test server; the embedded one sometimes needs several attempts."""
    if server.kind == "embedded":
        port = port or server.port
        return ServerEndpoint(server.host, port, ca_file=server.ca_file, timeout_s=TIMEOUT_S / 5, attempts=5)
    return ServerEndpoint(server.host, port or server.port, ca_file=server.ca_file, timeout_s=TIMEOUT_S)


class Address(Protocol):
    """The address of a server, such as an `XmppServer`."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Tunnel(LoopbackServer):
    """A network to a server that can fail: `async with Tunnel(server) as tunnel`."""

    def __init__(self, server: Address) -> None:
        super().__init__()
        self.target = server
        """The server to which new connections lead."""
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_open = True
        """True while new connections are accepted."""
        self.refused_count = 0
        self.dropped_direction: Literal["", "to the server", "to the agent", "both"] = ""
        """The direction in which all data is lost while the connection seems open."""
        self.edit: Callable[[bytes], bytes] = lambda data: data
        """What somebody on the path makes of the data to the agent."""
        self.pause_s = 0.0
        """The pause before each kilobyte."""

    async def __aexit__(self, *exc_info: object) -> None:
        self.cut()
        await super().__aexit__(*exc_info)

    @property
    def is_idle(self) -> bool:
        """True while nobody is connected."""
        return not self._writers

    def cut(self) -> None:
        """Cut every connection without closing its stream."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes from both sides."""
        if not self.is_open:
            self.refused_count += 1
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(self.target.host, self.target.port)
        self._writers |= {writer, server_writer}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(reader, server_writer, "to the server"))
            group.create_task(self._pump(server_reader, writer, "to the agent"))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
        try:
            with suppress(ConnectionError):  # either side may leave at any point
                while data := await source.read(1024 if self.pause_s else 65_536):
                    if self.pause_s:
                        await asyncio.sleep(self.pause_s)
                    if self.dropped_direction not in (name, "both"):
                        sink.write(self.edit(data) if name == "to the agent" else data)
                        await sink.drain()
        finally:
            self._writers.discard(sink)
            sink.close()


def container(event: Any) -> str:
    """Build a JSON container (XEP-0335) by hand; a string is inserted as it is."""
    text = event if isinstance(event, str) else json.dumps(event)
    return f"<json xmlns='urn:xmpp:json:0'>{escape(text)}</json>"


def envelope(payload: Any = None, kind: str = "request", **data: Any) -> str:
    """Build the container of a request by hand; any `data` goes beside the payload."""
    content = data if payload is None else {"payload": payload, **data}
    return container({"specversion": "1.0", "type": f"ai.coreason.{kind}", "source": "by hand", "id": "1", "data": content})


def parse_event(message: Any) -> dict[str, Any]:
    """Parse the CloudEvent in a message."""
    event: dict[str, Any] = json.loads(message.xml.findtext("{urn:xmpp:json:0}json"))
    return event


async def receive_events(client: Any) -> list[dict[str, Any]]:
    """Receive events with a stock client, up to the last one of a request."""
    events = [parse_event(await client.message())]
    while not events[-1]["type"].startswith("ai.coreason.request."):
        events.append(parse_event(await client.message()))
    return events


# In a child process: the platform as users run it


class JournalAgent:
    """An agent that records every run, and stores each question in history, variables and interaction memory."""

    def __init__(self, memory: AgentInteractionMemory, journal: str, delay_s: float = 0.0) -> None:
        self.manifest = AgentDefinition.simple("diary")
        self._memory = memory
        self._journal = Path(journal)
        self._delay_s = delay_s

    def _note(self, phase: str, request: AgentRequest) -> None:
        append_line(self._journal, phase, request.payload["query"], bool(request.metadata.get("redelivered")))

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        query = request.payload["query"]
        self._note("begins", request)
        if query == "what do you know?":
            queries = [query_of(turn) for turn in await session.history(1000)]
            count = await session.get("count", 0)
            remembered = self._memory.get_information(request.metadata["conversation_id"])
            await response.markdown(json.dumps({"history": queries, "count": count, "memory": remembered}))
            return
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await session.store("count", await session.get("count", 0) + 1, scope="conversation")
        self._memory.add_information(request.metadata["conversation_id"], query)
        await response.markdown(f"noted: {query}")
        self._note("ends", request)


@dataclass(eq=False)
class PlatformProcess:
    """A platform in a process of its own."""

    configuration: Path
    other_agents: Sequence[str] = ()
    """The JIDs of the other agents."""
    blocked_s: float = BLOCKED_S
    is_strict: bool = True
    program: Path | None = None
    """The directory with another copy of the package to run."""
    clock_error_s: float = 0.0
    """The seconds by which its clock is wrong."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the process that runs."""
        assert self.process is not None
        return self.process.pid

    @property
    def error_log(self) -> Path:
        """The file with the errors of all its runs."""
        return _error_log(self.configuration)

    async def start(self) -> None:
        """Start the process; return when its agents are online, unless it is not strict."""
        command = ["-m", "tests.support.hosting", str(self.configuration), str(self.blocked_s)]
        command += [str(self.clock_error_s), *([] if self.is_strict else ["lenient"])]
        if self.program is None:
            self.process = WarmProcess[bytes]([sys.executable, *command], cwd=PROJECT, stdout=subprocess.PIPE)
        else:  # without -P Python finds the package of the project in its working directory
            self.process = _start_program(self.program, command)
        line = await asyncio.to_thread(_read_line, self.process)
        log = self.error_log.read_text()[-2000:] if line != b"ready\n" and self.error_log.exists() else ""
        assert line == b"ready\n", f"the platform did not start: {line!r} {log} {await self.wait()}"

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        assert await wait_until_ended(self.process.pid, TIMEOUT_S), "the platform goes on"
        with self.process:
            return self.process.wait()

    async def signal(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end and return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = await self.wait()
        self.process = None
        return code


class RunningPlatform:
    """A platform in this process."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path, agents: Sequence[object], **settings: Any) -> AsyncIterator[Self]:
        """Start a platform with an embedded server, and an HTTP server at a free port."""
        values = {"server": {"mode": "embedded"}, "data_dir": str(directory / "data"), "agents": agents, **settings}
        file = directory / "platform.yaml"
        file.write_text(json.dumps({**values, "web": {"port": find_free_ports(1)[0]}}))
        async with Platform(load_settings(file, directory, {})) as platform:
            yield cls(platform)

    async def call(self, operation_name: str, /, **arguments: Any) -> Any:
        """Call an operation of the platform, as a command does."""
        operation = OPERATIONS[operation_name]
        wanted = operation.read_arguments(arguments)
        return (await asyncio.to_thread(call_platform, self.platform.settings.data_dir, operation, wanted))[0]


def _start_program(program: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{program}{os.pathsep}{PROJECT}"}
    return subprocess.Popen([sys.executable, "-P", *command], cwd=PROJECT, env=environment, stdout=subprocess.PIPE)


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Read the only line that a platform prints; kill it if there is none in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], TIMEOUT_S)[0]:
        process.kill()
    return process.stdout.readline()


def write_settings(file: Path, settings: Mapping[str, Any]) -> Path:
    """Write the configuration of a platform. Return its file."""
    file.write_text(json.dumps(settings))
    file.chmod(0o600)
    return file


@asynccontextmanager
async def run_platform(
    server: XmppServer,
    tmp_path: Path,
    *,
    agent: str = "tests.support.hosting:JournalAgent",
    options: dict[str, Any] | None = None,
    conversation: dict[str, Any] | None = None,
    notifications: dict[str, Any] | None = None,
    access: dict[str, Any] | None = None,
    grace_s: float = 10,
    errors: Sequence[str] = (),
    other_agents: int = 0,
    port: int | None = None,
    blocked_s: float = BLOCKED_S,
) -> AsyncIterator[tuple[PlatformProcess, str]]:
    """Run a child process with one agent on `server`; yield it and the agent's JID. It is killed at the end, if it still runs.

    It has to log these `errors`, and no others. `other_agents` is the number of further agents of the same kind.
    `port` is the port of a tunnel to the server. `blocked_s` is that of `Platform`.
    """
    accounts = [await server.account() for _ in range(1 + other_agents)]
    jid, *others = [bare_jid(account) for account, _ in accounts]
    configuration = tmp_path / "platform.yaml"
    settings = {
        "server": {**server.settings, "port": port or server.port},
        "data_dir": str(tmp_path / "data"),
        "conversation": {"max_interactions": 0, **(conversation or {})},
        "notifications": notifications or {},
        "access": access or {},
        "limits": {"grace_s": grace_s},
        "agents": [
            {
                "jid": account,
                "agent": agent,
                "password": word,
                "options": options or {},
            }
            for account, word in accounts
        ],
    }
    platform_process = PlatformProcess(write_settings(configuration, settings), others, blocked_s)
    await platform_process.start()
    try:
        yield platform_process, jid
    finally:
        if platform_process.process is not None:
            await platform_process.signal(signal.SIGKILL)
    check_errors(errors_in(platform_process.error_log.read_text()), errors)


def read_journal(path: Path) -> list[tuple[str, str, bool]]:
    """Return the records of a JournalAgent: ("begins" or "ends", question, True if it was redelivered)."""
    return [(phase, query, is_redelivered) for phase, query, is_redelivered in read_lines(path)]


def texts(messages: Iterable[Any]) -> list[str]:
    """Return the bodies of messages."""
    return [str(message["body"]) for message in messages]


class _ErrorFormatter(logging.Formatter):
    """Format an error in one line with the text of its exception, as `errors_in` reads it."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        parts = ["error", record.getMessage(), *([type(error).__name__, str(error)] if error is not None else [])]
        return " ".join(": ".join(parts).split())


def _error_log(configuration: Path) -> Path:
    return configuration.with_suffix(".errors")


def _set_clock(error_s: float) -> None:
    """Let the clock of this process be wrong. That of a computer cannot be changed for one process."""
    read_time = time.time
    time.time = lambda: read_time() + error_s
    # Wherever it is imported. The method is not in the stubs.
    utc_now.__setstate__((lambda: datetime.now(UTC) + timedelta(seconds=error_s), (), {}, {}))  # type: ignore[attr-defined]


async def _serve(configuration: Path, blocked_s: float, *, is_strict: bool) -> None:
    errors = logging.FileHandler(_error_log(configuration))
    errors.setLevel(logging.ERROR)
    errors.setFormatter(_ErrorFormatter())
    logging.basicConfig(handlers=[logging.StreamHandler(), errors])
    settings = load_settings(configuration, PROJECT, os.environ)
    async with Platform(settings, blocked_s=blocked_s, is_strict=is_strict) as running:
        # Once `wait` handles signals: a SIGTERM before would end the process at once.
        asyncio.get_running_loop().call_soon(partial(print, "ready", flush=True))
        await running.wait()


if __name__ == "__main__":
    if clock_error_s := float(sys.argv[3]):
        _set_clock(clock_error_s)
    try:
        asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2]), is_strict=sys.argv[4:] != ["lenient"]))
    except CoReasonError as error:
        traceback.print_exc()
        sys.exit(error.exit_code)
