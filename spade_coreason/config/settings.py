"""The settings as frozen values: every key with its type and its default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_serializer,
    model_validator,
)

from ..domain.quotas import Quota, Quotas, Role
from .setting_types import (
    SQLITE_PREFIX,
    Address,
    AgentName,
    ApiUrl,
    CommandPrefixes,
    Count,
    CountOrZero,
    DatabaseUrl,
    Domain,
    ImportName,
    Jid,
    Nick,
    NotBool,
    Person,
    ProjectPath,
    RoomJid,
    Seconds,
    Tokenizer,
)

_QUOTAS = Quotas()
Mode = Literal["auto", "embedded", "prosody", "external"]


class Section(BaseModel):
    """Base class of the sections. A key without a value counts as absent; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in section_keys(cls)}


class TlsSettings(Section):
    """The verification of the server's certificate. Local servers are verified by their own certificate."""

    verify: bool = True
    ca_file: ProjectPath | None = None


class ServerSettings(Section):
    """The XMPP server. `auto` starts a managed Prosody if the program is installed, else the embedded server."""

    mode: Mode = "auto"
    domain: Domain = "localhost"
    host: Annotated[str, AfterValidator(lambda host: host.strip("[]"))] | None = Field(None, min_length=1)
    """Default: for an external server the address of the domain, for a local server the loopback address."""
    port: Annotated[int, NotBool, Field(ge=1, le=65535)] | None = None
    """Default: for an external server the port in the domain's SRV record or 5222, for a local server any free port."""
    tls: TlsSettings = TlsSettings()

    @property
    def is_local(self) -> bool:
        """True if the platform starts the server itself (embedded or managed)."""
        return self.mode != "external"


class StorageSettings(Section):
    """The storage of data. `durability` full survives a power cut; normal survives a crash of the program only.

    `url` may hold a password, which texts and dumps of the settings hide.
    """

    url: DatabaseUrl = Field(f"{SQLITE_PREFIX}data/platform.db", repr=False)
    memory_dir: ProjectPath = Path("data/memory")
    durability: Literal["full", "normal"] = "full"

    @field_serializer("url")
    def _hide_password(self, url: str) -> str:
        return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:**********@", url)


class RetentionLimits(Section):
    """The limits for stored turns: their age in days, and their number in a conversation. 0 means no limit."""

    days: Annotated[float, NotBool, Field(ge=0, le=36500, allow_inf_nan=False)] = 0
    turns: CountOrZero = 0


class RetentionStates(Section):
    """The limits for conversations in one state. None: the limits of all other conversations apply."""

    active: RetentionLimits | None = None
    completed: RetentionLimits | None = None
    error: RetentionLimits | None = None
    timeout: RetentionLimits | None = None
    max_interactions_reached: RetentionLimits | None = None


class RetentionSettings(RetentionLimits):
    """The retention of turns: turns beyond these limits are deleted for good."""

    states: RetentionStates = RetentionStates()


class ConversationSettings(Section):
    """The rules of conversations, for all agents or for one agent.

    `max_interactions` 0 means no limit, and `timeout_s` 0 means that a conversation never times out.
    """

    max_interactions: CountOrZero = 100
    cooldown_s: Seconds = 300
    timeout_s: Seconds = 3600
    assist_timeout_s: Annotated[Seconds, Field(gt=0)] = 120
    lifecycle: Literal["eager", "on_demand"] = "eager"
    idle_shutdown_s: Seconds = 300
    on_restart: Literal["rerun", "report"] = "rerun"
    max_failures: Count = 3
    commands: bool = True
    command_prefixes: CommandPrefixes = ("/",)
    thoughts: bool = False
    retention: RetentionSettings = RetentionSettings()


class SummariserSettings(Section):
    """The language model that writes summaries, through `/v1/chat/completions`.

    Without a `url`, summaries are made of sentences of the conversation itself.
    """

    url: ApiUrl | None = None
    model: str | None = Field(None, min_length=1)
    api_key: SecretStr | None = None
    timeout_s: Annotated[Seconds, Field(gt=0)] = 60

    @model_validator(mode="after")
    def _require_url_and_model(self) -> SummariserSettings:
        if (self.url is None) != (self.model is None):
            raise ValueError("url and model go together; add the other one")
        return self


class MemorySettings(Section):
    """The memory strategy of agents whose manifest has none. `limit` counts turns, or tokens for token_buffer."""

    strategy: Literal["all", "sliding_window", "token_buffer", "summary", "vector_store"] = "sliding_window"
    limit: Count = 20
    summary_prompt: str = Field(
        "Summarise this conversation in at most 150 words: facts, names, dates, decisions, wishes, and what is still open.",
        min_length=1,
    )
    tokenizer: Tokenizer = "auto"
    summariser: SummariserSettings = SummariserSettings()


class KnowledgeSettings(Section):
    """The search for knowledge by meaning: none, a server with `/v1/embeddings`, or a local sentence-transformers model."""

    embedder: Literal["none", "openai", "local"] = "none"
    url: ApiUrl | None = None
    model: str | None = Field(None, min_length=1)
    api_key: SecretStr | None = None
    batch: Count = 64
    timeout_s: Annotated[Seconds, Field(gt=0)] = 30

    @model_validator(mode="after")
    def _require_embedder_keys(self) -> KnowledgeSettings:
        needed = {"none": (), "openai": ("url", "model"), "local": ("model",)}[self.embedder]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(
                f"embedder: {self.embedder} needs {' and '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}"
            )
        return self


class LimitSettings(Section):
    """The limits of a platform.

    `concurrency` limits the turns of one agent that run at once, and `queue` the messages that wait in one conversation. A
    reply to a person that is longer than `file_over_bytes` is sent as a file; 0 disables this. The keys `memory_…` limit
    interaction memories (`MemoryLimits`).
    """

    stanza_bytes: Annotated[int, NotBool, Field(ge=10_000)] = 65536
    file_over_bytes: CountOrZero = 262144
    concurrency: Count = 256
    queue: Count = 1000
    grace_s: Seconds = 10
    memory_entry_bytes: Count = 65_536
    memory_conversation_bytes: Count = 16_777_216
    memory_journal_bytes: Count = 1_048_576


class AccessSettings(Section):
    """The senders who may talk to an agent.

    `allow` lists JIDs, domains or `*` for everyone; None is the agent's own domain. `roster` also allows everyone in the
    roster of the agent's account. `ask` lets the `operators` decide about all other people. `operators` may talk to the
    agent and run the commands that concern everyone; by default there are none. `rooms` are the rooms that may invite the
    agent; by default there are none. The agent always joins the rooms in its own configuration.
    """

    allow: tuple[Address, ...] | None = None
    roster: bool = False
    ask: bool = False
    operators: tuple[Person, ...] = ()
    rooms: tuple[Address, ...] = ()
    groups: Mapping[str, tuple[Address, ...]] = Field({})
    """Named groups of people, which may have a quota of their own (`quotas.person.groups`). They admit nobody."""
    trusted_domains: tuple[Domain, ...] = ()
    """The domains whose agents are believed about the person whose request they pass on."""


class QuotaLimits(Section):
    """One quota: messages and bytes a minute and a day (UTC), and turns at once. 0 means no limit."""

    messages_per_minute: CountOrZero = 0
    messages_per_day: CountOrZero = 0
    bytes_per_minute: CountOrZero = 0
    bytes_per_day: CountOrZero = 0
    turns: CountOrZero | None = 0
    """None is a quarter of `limits.concurrency`."""

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
    """The quota of everybody together."""

    messages_per_minute: CountOrZero = _QUOTAS.total.messages_per_minute
    messages_per_day: CountOrZero = _QUOTAS.total.messages_per_day
    bytes_per_minute: CountOrZero = _QUOTAS.total.bytes_per_minute
    bytes_per_day: CountOrZero = _QUOTAS.total.bytes_per_day


class PersonQuotas(Section):
    """The quota of a person, by role: operators, the people in a group of `access.groups`, and all others."""

    user: OwnerQuota = OwnerQuota()
    operator: QuotaLimits = QuotaLimits()
    groups: Mapping[str, QuotaLimits] = Field({})
    """A key that a group leaves out is that of `user`."""


class QuotaSettings(Section):
    """The quotas of an agent: for one person, one room and one domain, and for all of them together."""

    person: PersonQuotas = PersonQuotas()
    room: OwnerQuota = OwnerQuota()
    domain: DomainQuota = DomainQuota()
    total: TotalQuota = TotalQuota()

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


class RoomSettings(Section):
    """A room (XEP-0045) that an agent joins, and the messages that it answers there."""

    jid: RoomJid
    nick: Nick | None = None
    """Default: the part of the agent's JID before the @."""
    password: SecretStr | None = None
    answers: Literal["mention", "command", "all"] = "mention"
    agent_turns: CountOrZero = 6
    """The number of messages of other agents that it answers in a row before a person has spoken."""


class AgentSettings(Section):
    """One agent: its account, its class and the arguments of its constructor."""

    jid: Jid
    agent: AgentName
    """`module:attribute`: a class, a factory or an instance."""
    password: SecretStr | None = None
    """The password, also one read from `password_file`. Default on a local server: the platform generates one."""
    password_file: ProjectPath | None = None
    register_account: bool = Field(False, alias="register")
    options: Annotated[Mapping[str, Any], AfterValidator(MappingProxyType)] = Field({}, repr=False)
    """Further keyword arguments of the constructor. They may hold secrets and so are never shown."""
    manifest: ProjectPath | None = None
    avatar: ProjectPath | None = None
    """A picture (PNG, JPEG, WebP; at most 40 KiB). Default: a pattern drawn from the agent's name."""
    conversation: ConversationSettings | None = None
    """Only the keys that differ for this agent; see `Settings.conversation_of`."""
    access: AccessSettings | None = None
    quotas: QuotaSettings | None = None
    """Only the keys that differ for this agent; see `Settings.quotas_of`."""
    memory: MemorySettings | None = None
    """Only the keys that differ for this agent. They take precedence over its manifest."""
    rooms: tuple[RoomSettings, ...] = ()
    interceptors: tuple[ImportName, ...] = ()
    """`module:attribute` of each interceptor of this agent. They follow those of all agents."""
    isolation: Literal["none", "process"] = "none"
    """`process`: the agent's code runs in a process of its own, which is started again when it ends."""
    memory_mb: Annotated[int, NotBool, Field(ge=128)] | None = None
    """The memory in MiB above which that process is ended. Default: no limit."""

    @model_validator(mode="after")
    def _require_process_for_memory(self) -> AgentSettings:
        if self.memory_mb is not None and self.isolation != "process":
            raise ValueError("memory_mb limits an agent's own process; add isolation: process")
        return self

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
    storage: StorageSettings = Field(default_factory=StorageSettings)
    conversation: ConversationSettings = ConversationSettings()
    memory: MemorySettings = MemorySettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    limits: LimitSettings = LimitSettings()
    access: AccessSettings = AccessSettings()
    quotas: QuotaSettings = QuotaSettings()
    interceptors: tuple[ImportName, ...] = ()
    """`module:attribute` of each interceptor of all agents: a class, a function that makes one, or an instance."""
    agents: tuple[AgentSettings, ...] = ()

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
        """The directory for imports of user code and for relative paths."""
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

    def conversation_of(self, agent: AgentSettings) -> ConversationSettings:
        """Return the rules of an agent's conversations: its own keys, and the common ones for the rest."""
        own = agent.conversation
        if own is None:
            return self.conversation
        return self.conversation.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    def memory_of(self, agent: AgentSettings) -> MemorySettings:
        """Return the memory settings of an agent: its own keys, and the common ones for the rest."""
        own = agent.memory
        if own is None:
            return self.memory
        return self.memory.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    def access_of(self, agent: AgentSettings) -> AccessSettings:
        """Return the access settings of an agent: its own keys, and the common ones for the rest."""
        own = agent.access
        if own is None:
            return self.access
        return self.access.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    def quotas_of(self, agent: AgentSettings) -> Quotas:
        """Return the quotas of an agent: its own keys, the common ones for the rest, and the defaults for what is left."""
        groups = self.access_of(agent).groups
        quotas = self.quotas.override(_QUOTAS, groups)
        return quotas if agent.quotas is None else agent.quotas.override(quotas, groups)


def section_keys(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a section as they are written, each with its annotation."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def find_section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that an annotation contains: itself, an item of a list, or an optional section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, UnionType, Annotated):
        return next(filter(None, map(find_section, get_args(annotation))), None)
    return None
