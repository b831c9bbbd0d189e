"""The settings as frozen values: every key, its default and what it may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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

from .types import (
    SQLITE_PREFIX,
    Address,
    AgentName,
    ApiUrl,
    Count,
    CountOrZero,
    DatabaseUrl,
    Domain,
    Jid,
    Nick,
    NotBool,
    Person,
    ProjectPath,
    RoomJid,
    Seconds,
    Tokenizer,
)

Mode = Literal["auto", "embedded", "prosody", "external"]


class Section(BaseModel):
    """A part of the settings. A key without a value is as good as absent; an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in keys_of(cls)}


class TlsSettings(Section):
    """How the server's certificate is verified. Local servers are verified by their own certificate."""

    verify: bool = True
    ca_file: ProjectPath | None = None


class ServerSettings(Section):
    """The XMPP server. `auto` is a managed Prosody where the program is there, else the embedded server."""

    mode: Mode = "auto"
    domain: Domain = "localhost"
    host: Annotated[str, AfterValidator(lambda host: host.strip("[]"))] | None = Field(None, min_length=1)
    """None: external, what the domain resolves to; local, the loopback address."""
    port: Annotated[int, NotBool, Field(ge=1, le=65535)] | None = None
    """None: external, 5222 or what the domain's SRV record says; local, any free one."""
    tls: TlsSettings = TlsSettings()

    @property
    def is_local(self) -> bool:
        """Whether the server is ours to start (embedded or managed)."""
        return self.mode != "external"


class StorageSettings(Section):
    """Where what lasts is kept. `durability` full survives a power cut, normal a crash of the program.

    `url` may hold a password; no text or dump of the settings does.
    """

    url: DatabaseUrl = Field(f"{SQLITE_PREFIX}data/platform.db", repr=False)
    memory_dir: ProjectPath = Path("data/memory")
    durability: Literal["full", "normal"] = "full"

    @field_serializer("url")
    def _hide_password(self, url: str) -> str:
        return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:**********@", url)


class RetentionLimits(Section):
    """For how many days a turn is kept, and how many of a conversation. 0: for ever, and all."""

    days: Annotated[float, NotBool, Field(ge=0, le=36500, allow_inf_nan=False)] = 0
    turns: CountOrZero = 0


class RetentionStates(Section):
    """What is kept of conversations in a state; None: as of all others."""

    active: RetentionLimits | None = None
    completed: RetentionLimits | None = None
    error: RetentionLimits | None = None
    timeout: RetentionLimits | None = None
    max_interactions_reached: RetentionLimits | None = None


class RetentionSettings(RetentionLimits):
    """What is deleted for good, and when."""

    states: RetentionStates = RetentionStates()


class ConversationSettings(Section):
    """The rules of conversations, for all agents or for one. 0: `max_interactions` no limit, `timeout_s` never."""

    max_interactions: CountOrZero = 100
    cooldown_s: Seconds = 300
    timeout_s: Seconds = 3600
    assist_timeout_s: Annotated[Seconds, Field(gt=0)] = 120
    lifecycle: Literal["eager", "on_demand"] = "eager"
    idle_shutdown_s: Seconds = 300
    on_restart: Literal["rerun", "report"] = "rerun"
    max_failures: Count = 3
    commands: bool = True
    thoughts: bool = False
    retention: RetentionSettings = RetentionSettings()


class SummariserSettings(Section):
    """A language model with `/v1/chat/completions`. Without a `url` summaries are made of the sentences themselves."""

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
    """Which turns of a conversation are in view, where an agent's manifest does not say. `limit` counts turns, or tokens."""

    strategy: Literal["all", "sliding_window", "token_buffer", "summary", "vector_store"] = "sliding_window"
    limit: Count = 20
    summary_prompt: str = Field(
        "Summarise this conversation in at most 150 words: facts, names, dates, decisions, wishes, and what is still open.",
        min_length=1,
    )
    tokenizer: Tokenizer = "auto"
    summariser: SummariserSettings = SummariserSettings()


class KnowledgeSettings(Section):
    """What finds knowledge by its meaning: nothing, a server with `/v1/embeddings`, or a sentence-transformers model here."""

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
    """`concurrency` is how many turns of one agent run at once, `queue` how many messages wait per conversation.

    An answer to a person that is longer than `file_over_bytes` is a file; 0: never. What `memory_…` says is of interaction
    memories (`MemoryLimits`).
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
    """Who may talk to an agent: JIDs, domains or `*` for everybody. None is the agent's own domain.

    `roster` admits those whom the agent's account has in its roster, too; `ask` lets the `operators` decide about everybody
    else. `operators` may talk to it, and run the commands that concern everybody; none by default. `rooms` are those into
    which it may be invited; none by default. Those of its configuration it joins anyway.
    """

    allow: tuple[Address, ...] | None = None
    roster: bool = False
    ask: bool = False
    operators: tuple[Person, ...] = ()
    rooms: tuple[Address, ...] = ()


class RoomSettings(Section):
    """A room (XEP-0045) that an agent joins, and what it answers there."""

    jid: RoomJid
    nick: Nick | None = None
    """None: what stands before the @ of the agent's JID."""
    password: SecretStr | None = None
    answers: Literal["mention", "command", "all"] = "mention"
    agent_turns: CountOrZero = 6
    """How many messages of other agents it answers in a row before a person has spoken."""


class AgentSettings(Section):
    """One agent: its account, its class and what its constructor is given."""

    jid: Jid
    agent: AgentName
    """`module:attribute`: a class, a factory or an instance."""
    password: SecretStr | None = None
    """Also what `password_file` holds. None on a local server: the platform makes one up."""
    password_file: ProjectPath | None = None
    register_account: bool = Field(False, alias="register")
    options: Annotated[Mapping[str, Any], AfterValidator(MappingProxyType)] = Field({}, repr=False)
    """Further keyword arguments of the constructor. They may hold secrets and are never shown."""
    manifest: ProjectPath | None = None
    avatar: ProjectPath | None = None
    """A picture (PNG, JPEG, WebP; at most 40 KiB). None: one is drawn from the agent's name."""
    conversation: ConversationSettings | None = None
    """Only what differs for this agent; see `Settings.conversation_of`."""
    access: AccessSettings | None = None
    memory: MemorySettings | None = None
    """Only what differs for this agent; it goes before what its manifest says."""
    rooms: tuple[RoomSettings, ...] = ()

    @field_serializer("options")
    def _hide_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        return dict.fromkeys(options, "**********")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where settings come from. `file` is as a person would write it."""

    project: Path
    file: str | None = None
    warnings: tuple[str, ...] = ()


class Settings(Section):
    """Everything that is configured. All paths are absolute; a secret is in no text or dump of it.

    Read by `load_settings`, which also checks what concerns several keys at once.
    """

    server: ServerSettings = ServerSettings()
    data_dir: ProjectPath = Path("data")
    storage: StorageSettings = Field(default_factory=StorageSettings)
    conversation: ConversationSettings = ConversationSettings()
    memory: MemorySettings = MemorySettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    limits: LimitSettings = LimitSettings()
    access: AccessSettings = AccessSettings()
    agents: tuple[AgentSettings, ...] = ()

    _origin: Origin = PrivateAttr(default_factory=lambda: Origin(Path.cwd()))

    @model_validator(mode="before")
    @classmethod
    def _default_storage_to_data_dir(cls, values: Any) -> Any:
        # Who names a data directory means everything that is kept.
        if not isinstance(values, Mapping) or not isinstance(values.get("storage"), Mapping | None):
            return values
        directory = Path(str(values.get("data_dir") or "data")).expanduser()
        storage = {"url": f"{SQLITE_PREFIX}{directory}/platform.db", "memory_dir": directory / "memory"}
        given = {key: value for key, value in (values.get("storage") or {}).items() if value is not None}
        return {**values, "storage": {**storage, **given}}

    @property
    def project(self) -> Path:
        """The directory from which modules and relative paths are resolved."""
        return self._origin.project

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works and should be otherwise, one line each, for whoever talks to the person."""
        return self._origin.warnings

    def place(self, key: str) -> str:
        """Where a key stands, for an error: `config/platform.yaml: agents[2].agent`."""
        return f"{self._origin.file}: {key}" if self._origin.file else key

    def conversation_of(self, agent: AgentSettings) -> ConversationSettings:
        """The rules of an agent's conversations: its own where it has some, the common ones elsewhere."""
        own = agent.conversation
        if own is None:
            return self.conversation
        return self.conversation.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    def memory_of(self, agent: AgentSettings) -> MemorySettings:
        """What an agent's memory is: its own keys where it has some, the common ones elsewhere."""
        own = agent.memory
        if own is None:
            return self.memory
        return self.memory.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})

    def access_of(self, agent: AgentSettings) -> AccessSettings:
        """Who may talk to an agent, and invite it: its own keys where it has some, the common ones elsewhere."""
        own = agent.access
        if own is None:
            return self.access
        return self.access.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


def keys_of(model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a section as they are written, each with its annotation."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation speaks of: itself, one of a list, or one that may be absent."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, Union, UnionType, Annotated):
        return next(filter(None, map(section_of, get_args(annotation))), None)
    return None
