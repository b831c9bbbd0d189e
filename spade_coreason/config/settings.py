"""The settings as frozen values: every key with its type and its default."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    SecretStr,
    field_serializer,
    model_validator,
)

from ..domain.channel_kinds import PAGE_CHANNEL
from ..domain.jid import bare_jid
from ..domain.policy import (
    EMBEDDING_BATCH,
    MODEL_TIMEOUT_S,
    REQUESTS_PER_ROOT,
    Count,
    CountOrZero,
    NotBool,
    PlatformLimits,
    Policy,
    RetentionStates,
    Rules,
    Seconds,
    Section,
)
from ..domain.questions import MAX_TIMEOUT
from ..domain.quotas import Quota, Quotas, Role
from ..domain.rooms import RoomAnswers, RoomConfig
from .setting_types import (
    SQLITE_PREFIX,
    Address,
    AgentName,
    ApiUrl,
    DatabaseUrl,
    Domain,
    ImportName,
    Jid,
    ListenAddress,
    NetworkText,
    Nick,
    Person,
    ProjectPath,
    QuietHoursText,
    RoomJid,
    Tokenizer,
    WebOrigin,
    WebUrl,
    Zone,
)

_POLICY = Policy()
_QUOTAS, _MEMORY = _POLICY.quotas, _POLICY.memory
_ROOM = RoomConfig("", "")
_MAX_APPROVAL_H = MAX_TIMEOUT.total_seconds() / 3600
DIRECTORY_AGENT = "spade_coreason.app.directory_agent:DirectoryAgent"
"""The code of an agent with `directory: true`."""
Mode = Literal["auto", "embedded", "prosody", "external"]


SectionT = TypeVar("SectionT", bound=Section)


class TlsSettings(Section):
    """The verification of the server's certificate. Local servers are verified by their own certificate."""

    verify: bool = True
    """Verify that the certificate of an external server is trusted and names the domain of the JIDs. Leave this on. For your
    own certificate, set `ca_file`. If it is off, the password leaves by SCRAM only, or by PLAIN to this machine.
    """
    required: bool = True
    """Require TLS. No login and no message is sent to an external server before it. `false` permits plain text to a loopback
    address, such as 127.0.0.1, if the server offers no TLS.
    """
    ca_file: ProjectPath | None = None
    """A PEM file with the authority that signed the server's certificate, or with several. Default: the authorities of the
    system. Files on HTTPS servers are trusted by these and by those of the system.
    """


class ServerSettings(Section):
    """The XMPP server of the agents."""

    mode: Mode = "auto"
    """The kind of server.

    - auto: a private Prosody if the program is installed, else the embedded server
    - embedded: a small server for demonstrations, on this machine only
    - prosody: a private Prosody, which the platform starts and configures, on this machine only
    - external: any XMPP server that runs already
    """
    domain: Domain = "localhost"
    """The domain of the agents. Local servers always serve `localhost`. Default with `mode: external`: the domain of the first
    agent's JID.
    """
    host: Annotated[str, AfterValidator(lambda host: host.strip("[]"))] | None = Field(None, min_length=1)
    """The host to connect to. Default: for an external server the address of the domain, for a local one 127.0.0.1."""
    port: Annotated[int, NotBool, Field(ge=1, le=65535)] | None = None
    """The port to connect to. Default: for an external server the one in the domain's SRV record, or 5222; for a local server
    any free port.
    """
    tls: TlsSettings = TlsSettings()
    people: tuple[Person, ...] = ()
    """The accounts of people on a local server, besides the guest's: `spade-coreason chat AGENT --jid boss@localhost` uses one.
    Their passwords are in the file `people.json` of `data_dir`, which only you can read.
    """

    @property
    def is_local(self) -> bool:
        """True if the platform starts the server itself (embedded or managed)."""
        return self.mode != "external"


class StorageSettings(Section):
    """The storage of data. A password in `url` is hidden in texts and dumps of the settings."""

    url: DatabaseUrl = Field(f"{SQLITE_PREFIX}data/platform.db", repr=False)
    """The database of sessions, variables and messages. Default: the SQLite file `platform.db` in `data_dir`. For PostgreSQL
    install the extra `postgres` (`pip install '/path/to/the/checkout[postgres]'`) and write
    `postgresql+asyncpg://user:${DB_PASSWORD}@host:5432/database`.
    In a user and a password write `@ / ? # %` as `%40 %2F %3F %23 %25`.
    """
    memory_dir: ProjectPath = Path("data/memory")
    """The directory of the interaction memories: a JSON file and a journal for each agent. Default: `memory` in `data_dir`.

    With PostgreSQL they are in the database. Files in this directory move there at the start, and are then deleted; those of
    spade_llm are renamed.
    """
    durability: Literal["full", "normal"] = "full"
    """The failures that stored data survives. Stored data are acknowledged messages, answers, and what was remembered for them.

    - full: a power cut
    - normal: a crash of the program; this is faster. On PostgreSQL it sets `synchronous_commit` off, and a crash of the
      database server can lose the last half second.
    """

    @property
    def shown_url(self) -> str:
        """`url` with its password hidden."""
        return self._hide_password(self.url)

    @field_serializer("url")
    def _hide_password(self, url: str) -> str:
        return re.sub(r"\A([^:]*://[^/@:]*):.*@", r"\1:**********@", url, flags=re.DOTALL)


class SummariserSettings(Section):
    """The language model that writes summaries: any server with OpenAI's API (OpenAI, Ollama, vLLM, LM Studio).

    It needs the extra `llm`. Without a `url`, a summary is made of the most telling sentences of the turns.
    """

    url: ApiUrl | None = None
    """The address of the API, such as `http://127.0.0.1:11434/v1`."""
    model: str | None = Field(None, min_length=1)
    """The name of the model at that address."""
    api_key: SecretStr | None = None
    """The key of the API, if it needs one: `"${OPENAI_API_KEY}"`. An agent with another `url` needs a key of its own."""
    timeout_s: Annotated[Seconds, Field(gt=0)] = 60
    """Seconds that one summary may take; with retries twice as many."""
    unopened_thinking: bool = False
    """The summaries begin with thoughts that end with `</think>` and have no `<think>`, as with chat templates of DeepSeek-R1.
    The thoughts are left out.
    """

    @model_validator(mode="after")
    def _require_url_and_model(self) -> SummariserSettings:
        if (self.url is None) != (self.model is None):
            raise ValueError("url and model must be set together; add the other one")
        return self


class MemorySettings(Section):
    """The turns of a conversation that a language model sees, for agents whose manifest does not set them."""

    strategy: Literal["all", "sliding_window", "token_buffer", "summary", "vector_store"] = _MEMORY.strategy.value
    """The choice of the turns. Turns that leave the window stay stored.

    - sliding_window: the last `limit` turns
    - token_buffer: the newest turns that have at most `limit` tokens together
    - summary: a summary of all older turns, and the last `limit` turns
    - vector_store: the last `limit` turns; older ones become knowledge of the conversation, and `session.recall` finds them
    - all: every turn
    """
    limit: Count = _MEMORY.limit
    """The number of turns in the window; for `token_buffer` the number of tokens."""
    summary_prompt: str = Field(
        "Summarise this conversation in at most 150 words: facts, names, dates, decisions, wishes, and what is still open.",
        min_length=1,
    )
    """The instruction for the language model that writes a summary."""
    tokenizer: Tokenizer = "auto"
    """The way to count tokens.

    - auto: o200k if it is installed, else estimate
    - o200k, cl100k: as OpenAI's models count (install the extra `tokens`)
    - estimate: a rule of thumb
    - `module:function`: a function of your own that returns the number of tokens of a text
    """
    summariser: SummariserSettings = SummariserSettings()


class KnowledgeSettings(Section):
    """The search in the knowledge of agents: in documents, and in turns under `vector_store`."""

    embedder: Literal["none", "openai", "local"] = "none"
    """The search by meaning. After a change, run `spade-coreason knowledge reindex AGENT`.

    - none: search by words only
    - openai: also by meaning, with vectors from any server with `/v1/embeddings`; set `url` and `model`
    - local: also by meaning, with a sentence-transformers model on this machine; `model` is its name or directory
    """
    url: ApiUrl | None = None
    """The address of the API, such as `http://127.0.0.1:11434/v1`."""
    model: str | None = Field(None, min_length=1)
    """The name of the model, such as `nomic-embed-text`, or its directory."""
    api_key: SecretStr | None = None
    """The key of the API, if it needs one."""
    batch: Count = EMBEDDING_BATCH
    """The number of texts in one request."""
    timeout_s: Annotated[Seconds, Field(gt=0)] = MODEL_TIMEOUT_S
    """Seconds that one request may take; with retries twice as many."""

    @model_validator(mode="after")
    def _require_embedder_keys(self) -> KnowledgeSettings:
        needed = {"none": (), "openai": ("url", "model"), "local": ("model",)}[self.embedder]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(
                f"embedder: {self.embedder} needs {' and '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}"
            )
        return self


class AccessSettings(Section):
    """The senders who may talk to an agent."""

    allow: tuple[Address, ...] | None = None
    """The people and domains that are admitted: a list of JIDs and domains, or `["*"]` for everyone. Other senders
    are refused. Default: everyone on the agent's own domain.
    """
    roster: bool = False
    """Also admit everyone in the roster of the agent's account at the server. The administrator of that account adds and
    removes people there. With `allow: []` only these people are admitted. People whom the agent itself has added do not count.
    """
    ask: bool = False
    """Ask the operators about all other people. Each operator gets a message, and replies to the agent with `/admit` or
    `/reject`. The decision is stored. It counts while there are operators.
    """
    strangers: Literal["refuse", "silent"] = "refuse"
    """The answer to people and programs without access.

    - refuse: they are told so, people once
    - silent: none, as from an account that is offline; presence requests are not answered either. They are counted as refused,
      and with `ask` the operators are asked.
    """
    operators: tuple[Person, ...] = ()
    """The people who may run operator commands, a list of JIDs. These commands show, end and reset all conversations, pause
    agents, change the log level and admit people. Operators are always admitted. Their server must verify
    who they are, which the embedded server does not do.
    """
    rooms: tuple[Address, ...] = ()
    """The chat rooms that may invite the agents: JIDs of rooms, domains of room services, or `["*"]`. An agent always joins the
    rooms in its own configuration.

    If a room shows the JIDs of its occupants, `allow` applies to them too. A private message belongs to the
    occupant's own conversation if the room or its domain is named here, or in the agent's configuration; `"*"` does not name
    it. The password of an invitation is stored in the database as it is.
    """
    groups: Mapping[str, tuple[Address, ...]] = Field({})
    """Named groups of people, which may have a quota of their own (`quotas.person.groups`), such as `{staff:
    [alice@example.org, example.com]}`. A group does not admit its members.
    """
    trusted_domains: tuple[Domain, ...] = ()
    """The domains whose agents may name the person behind a request that they pass on. The quota of that person then applies,
    not that of the agent. The agents of this platform are always trusted.
    """


class QuotaLimits(Section):
    """One quota: messages and bytes a minute and a day (UTC), and turns at once. 0 means no limit."""

    messages_per_minute: CountOrZero = 0
    """Messages within a minute."""
    messages_per_day: CountOrZero = 0
    """Messages within a day, from midnight UTC."""
    bytes_per_minute: CountOrZero = 0
    """Bytes within a minute: those of a text, or of the JSON of a program."""
    bytes_per_day: CountOrZero = 0
    """Bytes within a day."""
    turns: CountOrZero | None = 0
    """Turns of one agent that run at once. Where the default is null, it means a quarter of `limits.concurrency`."""

    def override(self, quota: Quota) -> Quota:
        """Return `quota` with the values that are given here."""
        return replace(quota, **{key: getattr(self, key) for key in self.model_fields_set})


class OwnerQuota(QuotaLimits):
    """The quota of one person or one room."""

    messages_per_minute: CountOrZero = _QUOTAS.user.messages_per_minute
    messages_per_day: CountOrZero = _QUOTAS.user.messages_per_day
    bytes_per_minute: CountOrZero = _QUOTAS.user.bytes_per_minute
    bytes_per_day: CountOrZero = _QUOTAS.user.bytes_per_day
    turns: CountOrZero | None = _QUOTAS.user.turns


class DomainQuota(QuotaLimits):
    """The quota of all accounts of one domain together."""

    messages_per_minute: CountOrZero = _QUOTAS.domain.messages_per_minute
    messages_per_day: CountOrZero = _QUOTAS.domain.messages_per_day
    bytes_per_minute: CountOrZero = _QUOTAS.domain.bytes_per_minute
    bytes_per_day: CountOrZero = _QUOTAS.domain.bytes_per_day


class TotalQuota(QuotaLimits):
    """The quota of all senders together."""

    messages_per_minute: CountOrZero = _QUOTAS.total.messages_per_minute
    messages_per_day: CountOrZero = _QUOTAS.total.messages_per_day
    bytes_per_minute: CountOrZero = _QUOTAS.total.bytes_per_minute
    bytes_per_day: CountOrZero = _QUOTAS.total.bytes_per_day


class PersonQuotas(Section):
    """The quota of a person, by role: operators, the people in a group of `access.groups`, and all others."""

    user: OwnerQuota = OwnerQuota()
    """The quota of each person who is neither an operator nor in a group below."""
    operator: QuotaLimits = QuotaLimits()
    """The quota of each operator. The quotas of their domain and of all senders do not apply to them."""
    groups: Mapping[str, QuotaLimits] = Field({})
    """The quotas of the groups in `access.groups`, such as `{staff: {messages_per_day: 5000}}`. A key that a group
    omits has the value of `user`.
    """


class QuotaSettings(Section):
    """The quotas of an agent: for one person, one room and one domain, and for all of them together. 0 means no limit."""

    person: PersonQuotas = PersonQuotas()
    room: OwnerQuota = OwnerQuota()
    """The quota of all people in one chat room together."""
    domain: DomainQuota = DomainQuota()
    """The quota of all people of one domain together."""
    total: TotalQuota = TotalQuota()
    """The quota of all senders together."""

    def override(self, quotas: Quotas, members: Mapping[str, tuple[str, ...]]) -> Quotas:
        """Return `quotas` with the values that are given here. `members` are the people in each group."""
        user, own = self.person.user.override(quotas.user), self.person.groups
        known = {role.name: role.quota for role in quotas.groups}
        return Quotas(
            user=user,
            operator=self.person.operator.override(quotas.operator),
            groups=tuple(
                Role(name, frozenset(members[name]), own.get(name, QuotaLimits()).override(known.get(name, user)))
                for name in members
                if name in own or name in known  # people in the others are users
            ),
            room=self.room.override(quotas.room),
            domain=self.domain.override(quotas.domain),
            total=self.total.override(quotas.total),
        )


class NotificationSettings(Section):
    """The messages that an agent sends without being asked, by `people.notify`."""

    per_day: Count = _POLICY.notifications.per_day
    """The number of notifications that one person gets from an agent in a day. More are refused. Those that other people cause
    take at most half of them, and at least one.
    """
    quiet: QuietHoursText = "none"
    """The hours in which no notification is sent, such as `"22:00-07:00"`; they are sent afterwards. none: no such hours."""
    zone: Zone = _POLICY.notifications.zone
    """The time zone of `quiet` and of schedules, such as `Europe/Berlin`. Each person can choose their own with
    `/settings zone`.
    """


class ApprovalSettings(Section):
    """The approvals of calls by people: of tool calls of language models, and of `session.run_approved`.

    On the embedded server, where senders can be forged, they are decided only in the page in the browser (`web`).
    """

    approvers: str | None = Field(None, min_length=1)
    """The group of `access.groups` whose members approve, where the agent names no group. Each member is a JID with access to
    the agent. The person behind a request never approves it. Default: the operators.
    """
    timeout_h: Annotated[float, NotBool, Field(ge=1 / 60, le=_MAX_APPROVAL_H)] = (
        _POLICY.approvals.timeout.total_seconds() / 3600
    )
    """Hours that an approval waits, from a minute to a week. Then the call is not run."""
    per_requester: Count = _POLICY.approvals.per_requester
    """The open questions and approvals of one requester that a person is asked at once, if others have asked within a week.
    Further ones wait for a place, in their order.
    """
    from_risk: Literal["safe", "standard", "critical", "never"] = "critical"
    """The risk from which a tool call of a language model needs an approval: `safe`, `standard` or `critical`. With `never`,
    only the tools in the manifest's `human_in_the_loop` need one.
    """


class PeerSettings(Section):
    """Requests between agents."""

    local: Literal["direct", "wire"] = "direct"
    """The way of messages between agents of this platform.

    - direct: from one agent to the other, as soon as both are online
    - wire: over the server, as all other messages
    """
    requests_per_root: Annotated[int, NotBool, Field(ge=1)] = REQUESTS_PER_ROOT
    """The number of requests between agents to which one request of a person or a program may lead."""
    topics: Person | None = None
    """The topic broker of the agents, for `@subscribe` and `peers.publish`: an agent of this platform or of another one."""
    directories: tuple[Person, ...] = ()
    """The directory agents of other platforms, a list of JIDs. `peers.find` asks them for their agents, besides those of this
    platform.
    """


class TracingSettings(Section):
    """The traces of requests by OpenTelemetry. They need the extra `otel`, and an SDK of your choice."""

    enabled: bool = False
    """Make a span for each turn, model call, tool call, request to another agent, commit and delivery."""
    texts: bool = False
    """Put into the spans what people, agents and models wrote: payloads, messages, arguments and results of tools."""


class WebTlsSettings(Section):
    """The certificate with which the HTTP server proves who it is. Then its address begins with `https://`."""

    certificate: ProjectPath
    """A PEM file with the certificate of the server, and after it those that lead to its authority."""
    key: ProjectPath
    """A PEM file with the key of the certificate, without a password."""

    def load(self) -> ssl.SSLContext:
        """Read the files. Raise ssl.SSLError or another OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Without a password, OpenSSL would ask for one in the terminal.
        context.load_cert_chain(self.certificate, self.key, password="")
        return context


class WebLimits(Section):
    """The limits of the HTTP server. A client beyond one gets 408, 413, 429, 431 or 503, or its connection is closed."""

    body_bytes: Annotated[int, NotBool, Field(ge=1024)] = 12 * 2**20
    """The size in bytes of the largest body of a request. The default is enough for a picture of 8 MiB."""
    webhook_bytes: Annotated[int, NotBool, Field(ge=1024)] = 2**20
    """The size in bytes of the largest body that a webhook accepts."""
    values: Count = 50_000
    """The number of values in the largest JSON body: texts, numbers, keys of objects and the like; a list counts twice.
    While a body is parsed, other clients wait. Files and long texts take no time.
    """
    a2a_values: Count = 10_000
    """The same for A2A, whose library takes some microseconds for each value."""
    header_bytes: Annotated[int, NotBool, Field(ge=1024)] = 32 * 2**10
    """The size in bytes of the first line and the headers of a request."""
    header_s: Annotated[Seconds, Field(gt=0)] = 10
    """Seconds that a client may take to send the headers of a request, and for TLS."""
    body_s: Annotated[Seconds, Field(gt=0)] = 60
    """Seconds that a client may take to send a whole request."""
    unread_s: Annotated[Seconds, Field(gt=0)] = 30
    """Seconds after which the connection of a client is closed that reads nothing of its answer."""
    idle_s: Annotated[Seconds, Field(gt=0)] = 75
    """Seconds after which a connection without a request is closed."""
    connections: Count = 1000
    """The number of connections at once. It is lowered if the system permits fewer open files. A quarter is kept for keys, and
    for addresses that have shown one within the hour.
    """
    connections_per_address: Count = 200
    """The number of connections of one address at once; behind a proxy, the number of its requests. Those that have shown a key
    do not count.
    """
    requests_per_key: Count = 200
    """The number of requests with one key that are answered at once, such as open streams, and of connections for it."""


class PageSettings(Section):
    """The page in the browser, in which people chat with the agents."""

    approvals_h: Annotated[Seconds, Field(gt=0, le=12)] = 1
    """The hours after a login in which a person may decide approvals in the page."""


class OpenAISettings(Section):
    """The OpenAI-compatible door."""

    system_prompt: Literal["ignore", "refuse"] = "ignore"
    """The answer to a request with a system prompt. An agent has its own.

    - ignore: the request is answered without it
    - refuse: the request is refused with 400
    """


class WebSettings(Section):
    """The HTTP server, by which agents are reached that list `doors`.

    It runs only if this section is in the configuration: `web: {port: 8080}`.
    """

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen at. Another one than that of this machine needs `tls` or `proxies`. `0.0.0.0` means all IPv4
    addresses, and `"::"` also those of IPv6.
    """
    port: Annotated[int, NotBool, Field(ge=1, le=65535)] = 8080
    """The port to listen at."""
    url: WebUrl | None = None
    """The public address, for links and the cards of agents, such as `https://agents.example.org`. Requests for other hosts are
    refused. Default: made of `host` and `port`.
    """
    tls: WebTlsSettings | None = None
    """The certificate of the server and its key: `{certificate: cert.pem, key: key.pem}`. Default: no TLS."""
    proxies: tuple[NetworkText, ...] = ()
    """The addresses or networks of your reverse proxies, such as `[10.0.0.2, 172.16.0.0/12]`. Only these are believed when they
    name the address of a client (`X-Forwarded-For`), the scheme and the host. Without `tls`, only these and this machine are
    served.
    """
    cors_origins: tuple[WebOrigin, ...] = ()
    """The web sites whose pages may send requests from a browser, such as `[https://chat.example.org]`. Default: none."""
    limits: WebLimits = WebLimits()
    """The limits of requests and connections."""
    openai: OpenAISettings = OpenAISettings()
    """The OpenAI-compatible door."""
    page: PageSettings | Literal[False] = PageSettings()
    """The chat in the browser, for all agents. `false` takes it away."""

    @property
    def public_url(self) -> str:
        """The public address, without a slash at its end."""
        if self.url is not None:
            return self.url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


class WorkerSettings(Section):
    """The workers: platforms that share the agents of one PostgreSQL, with `server.mode: external`."""

    lease_s: Annotated[float, NotBool, Field(ge=1, le=60)] = 5
    """The seconds for which each renewal of a worker's lease holds. A worker that fails is replaced after up to so many seconds
    and a quarter. All workers need the same.
    """
    together: tuple[tuple[Jid, ...], ...] = ()
    """Groups of agents that talk much with each other: `[[a@example.org, b@example.org]]`. One worker serves a whole group."""


class MetricsSettings(Section):
    """The metrics for Prometheus. They need the extra `metrics`.

    They are served only if this section is in the configuration: `metrics: {listen: 127.0.0.1:9464}`.
    """

    listen: ListenAddress = "127.0.0.1:9464"
    """The address and the port to listen at, by HTTP without a password. All who reach it can read the JIDs of the agents and
    their numbers, and no texts or names of people. Let your firewall admit Prometheus alone if it is not an address of this
    machine. `0.0.0.0:9464` means all IPv4 addresses, and `"[::]:9464"` those of IPv6.
    """
    hosts: tuple[Domain, ...] = ()
    """The names by which the metrics are read, such as `[metrics.example.org]`. Requests for others are refused, so that no web
    site reads them by a name of its own. Loopback names and the address of `listen` are always served. Default: every name,
    unless `listen` is an address of this machine itself.
    """

    @property
    def address(self) -> tuple[str, int]:
        """The host, without brackets, and the port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def url(self) -> str:
        """The address of the metrics."""
        return f"http://{self.listen}/metrics"


class RoomSettings(Section):
    """A room (XEP-0045) that an agent joins, and the messages that it answers there."""

    jid: RoomJid
    """The address of the room."""
    nick: Nick | None = None
    """The nickname of the agent in the room. If it is taken, the agent adds a number: echo-2. Default: the part of the agent's
    JID before the @.
    """
    password: SecretStr | None = None
    """The password of the room, if it needs one: `"${ROOM_PASSWORD}"`."""
    answers: RoomAnswers = _ROOM.answers
    """The messages that the agent answers.

    - mention: messages that address it (`echo: …`, `@echo …`), and replies to its own messages
    - command: also messages that begin with /
    - all: every message of a person
    """
    agent_turns: CountOrZero = _ROOM.agent_turns
    """The number of messages of other agents that it answers in a row. Then it is silent until a person writes."""


KeyDoor: TypeAlias = Literal["openai", "a2a", "mcp"]
"""A door that a key opens."""


class AgentSettings(Section):
    """One agent: its account, its class and the arguments of its constructor."""

    MISTAKES: ClassVar = {
        "missing": "is missing; every agent needs it",
        **dict.fromkeys(
            ("isolation", "memory_mb"),
            "is gone; remove it. An agent that blocks or crashes gets a platform and a configuration of its own",
        ),
    }

    jid: Jid
    """The address of the agent. With a resource (`echo@localhost/desk`) the agent always uses that one."""
    agent: AgentName
    """The code of the agent, as `module:attribute`: a class, a function that makes the agent, or the agent itself."""
    directory: bool = False
    """Make this the directory of the platform, without a key `agent`. It tells people and other platforms which agents they may
    talk to.
    """
    password: SecretStr | None = None
    """The password of the account, from the environment: `"${ECHO_PASSWORD}"`. Default on a local server: the platform
    generates one.
    """
    password_file: ProjectPath | None = None
    """A file that contains only the password. Use it instead of `password`."""
    register_account: bool = Field(False, alias="register")
    """Register the account if it does not exist. The server must permit this."""
    options: Annotated[Mapping[str, Any], AfterValidator(MappingProxyType)] = Field({}, repr=False)
    """Further keyword arguments of the constructor. They may hold secrets and so are never shown."""
    manifest: ProjectPath | None = None
    """A YAML or JSON file with the agent's manifest. Default: one made from the name and the docstring of the class."""
    avatar: ProjectPath | None = None
    """A picture for contact lists (PNG, JPEG or WebP; at most 40 KiB). Default: a pattern drawn from the agent's name."""
    conversation: Rules | None = None
    """The keys of `conversation` that differ for this agent."""
    access: AccessSettings | None = None
    """The keys of `access` that differ for this agent."""
    quotas: QuotaSettings | None = None
    """The keys of `quotas` that differ for this agent."""
    notifications: NotificationSettings | None = None
    """The keys of `notifications` that differ for this agent."""
    approvals: ApprovalSettings | None = None
    """The keys of `approvals` that differ for this agent."""
    memory: MemorySettings | None = None
    """The keys of `memory` that differ for this agent. They take precedence over its manifest."""
    rooms: tuple[RoomSettings, ...] = ()
    """The chat rooms (XEP-0045) that the agent joins, such as `[{jid: room@conference.example.org}]`."""
    interceptors: tuple[ImportName, ...] = ()
    """The interceptors of this agent, as `module:attribute`. They follow those of all agents."""
    doors: tuple[Literal[KeyDoor, "webhook"], ...] = ()
    """The doors by which the agent is reached over HTTP, with a key: `[openai, a2a, mcp, webhook]`. None by default."""

    @model_validator(mode="before")
    @classmethod
    def _set_directory_agent(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("directory") is not True:
            return values
        given = [key for key in ("agent", "options", "manifest") if values.get(key) is not None]
        if given == ["agent"] and values["agent"] == DIRECTORY_AGENT:
            return values
        if given:
            raise ValueError(f"directory: true needs no {given[0]}; remove it, or remove directory: true")
        return {**values, "agent": DIRECTORY_AGENT}

    @field_serializer("options")
    def _hide_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        return dict.fromkeys(options, "**********")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of settings: the project directory, the file as a person would write it, and the warnings."""

    project: Path
    file: str | None = None
    warnings: tuple[str, ...] = ()


class Settings(Section):
    """The complete settings. All paths are absolute; no text or dump of the settings contains a secret.

    `load_settings` reads them, and also checks keys that depend on each other.
    """

    server: ServerSettings = ServerSettings()
    data_dir: ProjectPath = Path("data")
    """The directory of stored data: database, memories, local servers and `run.json`. One running platform owns it. Default:
    `data` in the directory in which you start, or in `--project DIR`.
    """
    storage: StorageSettings = Field(default_factory=StorageSettings)
    conversation: Rules = Rules()
    memory: MemorySettings = MemorySettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    limits: PlatformLimits = PlatformLimits()
    access: AccessSettings = AccessSettings()
    quotas: QuotaSettings = QuotaSettings()
    notifications: NotificationSettings = NotificationSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    peers: PeerSettings = PeerSettings()
    web: WebSettings | None = None
    workers: WorkerSettings = WorkerSettings()
    metrics: MetricsSettings | None = None
    tracing: TracingSettings = TracingSettings()
    interceptors: tuple[ImportName, ...] = ()
    """The interceptors of all agents, as `module:attribute`, in their order: classes, functions that make one, or instances."""
    agents: tuple[AgentSettings, ...] = ()
    """The agents of the platform."""

    _origin: Origin = PrivateAttr(default_factory=lambda: Origin(Path.cwd()))

    @model_validator(mode="before")
    @classmethod
    def _default_storage_to_data_dir(cls, values: Any) -> Any:
        # A person who sets `data_dir` means all stored data.
        if not isinstance(values, Mapping) or not isinstance(values.get("storage"), Mapping | None):
            return values
        directory = Path(str(values.get("data_dir") or "data")).expanduser()
        storage = {"url": f"{SQLITE_PREFIX}{directory}/platform.db", "memory_dir": directory / "memory"}
        explicit = {key: value for key, value in (values.get("storage") or {}).items() if value is not None}
        return {**values, "storage": {**storage, **explicit}}

    @property
    def project(self) -> Path:
        """The directory for imports of user code, and for relative paths of options and the environment."""
        return self._origin.project

    @property
    def file(self) -> str | None:
        """The configuration file; None if all settings come from options and the environment."""
        return self._origin.file or None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about settings that work but should be changed, one line each, to be shown to the person."""
        return self._origin.warnings

    def place(self, key: str) -> str:
        """Return the file and the key for an error message: `config/platform.yaml: agents[2].agent`."""
        return f"{self._origin.file}: {key}" if self._origin.file else key

    def conversation_of(self, agent: AgentSettings) -> Rules:
        """Return the rules of an agent's conversations: its own keys, and the common ones for the rest."""
        return _override(self.conversation, agent.conversation)

    def doors_of(self, agent: AgentSettings) -> tuple[str, ...]:
        """Return the doors of an agent, and the page if that is on."""
        return (*agent.doors, PAGE_CHANNEL) if self.web is not None and self.web.page else agent.doors

    def notifications_of(self, agent: AgentSettings) -> NotificationSettings:
        """Return the notification settings of an agent: its own keys, and the common ones for the rest."""
        return _override(self.notifications, agent.notifications)

    def approvals_of(self, agent: AgentSettings) -> ApprovalSettings:
        """Return the approval settings of an agent: its own keys, and the common ones for the rest."""
        return _override(self.approvals, agent.approvals)

    def memory_of(self, agent: AgentSettings) -> MemorySettings:
        """Return the memory settings of an agent: its own keys, and the common ones for the rest.

        The common `api_key` is only for the common `url`.
        """
        memory = _override(self.memory, agent.memory)
        if agent.memory is None or memory.summariser.url == self.memory.summariser.url:
            return memory
        key = agent.memory.summariser.api_key
        return memory.model_copy(update={"summariser": memory.summariser.model_copy(update={"api_key": key})})

    def access_of(self, agent: AgentSettings | None) -> AccessSettings:
        """Return the access settings of an agent: its own keys, and the common ones for the rest."""
        return _override(self.access, None if agent is None else agent.access)

    def quotas_of(self, agent: AgentSettings | None) -> Quotas:
        """Return the quotas of an agent: its own keys, the common ones for the rest, and the defaults for what is left."""
        access = self.access_of(agent)
        quotas = self.quotas.override(_QUOTAS, access.groups)
        if agent is not None and agent.quotas is not None:
            quotas = agent.quotas.override(quotas, access.groups)
        return replace(quotas, operators=frozenset(access.operators))

    def quotas_of_jid(self, jid: str) -> Quotas:
        """Return the quotas of the agent with a bare JID: the common ones if it is not configured."""
        return self.quotas_of(next((agent for agent in self.agents if bare_jid(agent.jid) == jid), None))


def _override(common: SectionT, own: SectionT | None) -> SectionT:
    """Return `common` with the keys that `own` sets, in inner sections too. Mappings and `states` are replaced as a whole."""
    if own is None:
        return common
    update: dict[str, Any] = {}
    for key in own.model_fields_set:
        before, value = getattr(common, key), getattr(own, key)
        is_merged = isinstance(value, Section) and not isinstance(value, RetentionStates)
        update[key] = _override(before, value) if is_merged else value
    return common.model_copy(update=update)


def find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that an annotation contains: itself, an item of a list, or an optional section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, UnionType, Annotated):
        return next(filter(None, map(find_section, get_args(annotation))), None)
    return None
