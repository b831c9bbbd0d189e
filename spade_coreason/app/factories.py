"""Factories: they build the parts of the platform from its settings."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import SecretStr

from ..config import (
    AccessSettings,
    AgentSettings,
    ApprovalSettings,
    MemorySettings,
    NotificationSettings,
    Settings,
    describe_error,
    load_attribute,
)
from ..contracts import MemoryConfig, MemoryStrategy, RiskLevel
from ..domain.access import AccessPolicy, TrustedAgents
from ..domain.avatar import Avatar, read_avatar
from ..domain.initiative.notifications import NotificationPolicy, QuietHours
from ..domain.jid import bare_jid, local_part
from ..domain.observability.tracing import Tracing
from ..domain.policy import MemoryLimits, Policy
from ..domain.questions import ApprovalPolicy
from ..domain.rooms import RoomConfig
from ..exceptions import ConfigError
from ..memory import (
    AgentInteractionMemory,
    Embedder,
    ExtractiveSummariser,
    LocalEmbedder,
    ModelSummariser,
    OpenAIApi,
    OpenAIEmbedder,
    Summariser,
    TokenCounter,
    Tokenizer,
    counter_for,
    guard_counter,
)
from ..runtime import FanOutLimit, PeerOptions, PlatformDirectory
from ..storage import Database

log = logging.getLogger(__name__)

_FORGERY = (
    "approvals are decided in the browser only on the embedded server, where senders can be forged; add `web: {}`, install"
    " Prosody (`apt install prosody`), or use a server of your own (server.mode: external)"
)


def build_policy(settings: Settings, agent: AgentSettings, memory: MemoryConfig | None, *, has_forgery: bool = False) -> Policy:
    """Build the policy of an agent from its own settings, else from the common ones.

    `memory` is the memory configuration of its manifest, if there is one. With `has_forgery`, senders can be forged.
    """
    access, web = settings.access_of(agent), settings.web
    page = web.public_url if web is not None and web.page else ""
    return Policy(
        rules=settings.conversation_of(agent),
        limits=settings.limits,
        memory=build_memory_config(settings.memory, agent.memory, memory),
        operators=frozenset(access.operators),
        quotas=settings.quotas_of(agent),
        notifications=_build_notification_policy(settings.notifications_of(agent)),
        approvals=_build_approval_policy(settings.approvals_of(agent), access, page, has_forgery=has_forgery),
        has_page=bool(page),
    )


def _build_notification_policy(settings: NotificationSettings) -> NotificationPolicy:
    quiet = None if settings.quiet == "none" else QuietHours.parse(settings.quiet)
    return NotificationPolicy(settings.per_day, quiet, settings.zone)


def _build_approval_policy(
    settings: ApprovalSettings, access: AccessSettings, page: str, *, has_forgery: bool
) -> ApprovalPolicy:
    return ApprovalPolicy(
        approvers=settings.approvers,
        from_risk=None if settings.from_risk == "never" else RiskLevel(settings.from_risk),
        groups=access.groups,
        operators=access.operators,
        timeout=timedelta(hours=settings.timeout_h),
        per_requester=settings.per_requester,
        refusal=_FORGERY if has_forgery and not page else "",
        page=page if has_forgery else "",
    )


def build_peer_options(
    settings: Settings, agent: AgentSettings, platform: PlatformDirectory, fan_out: FanOutLimit
) -> PeerOptions:
    """Build the relations of an agent to others.

    It trusts those of this platform, and of some domains, to name the person they ask for. A directory of this platform needs
    no request: its agents are in `platform`.
    """
    own = {bare_jid(other.jid) for other in settings.agents}
    return PeerOptions(
        platform,
        tuple(jid for jid in settings.peers.directories if jid not in own),
        TrustedAgents(own, settings.access_of(agent).trusted_domains),
        fan_out,
        settings.peers.topics,
        is_directory=agent.directory,
    )


def build_tracing(settings: Settings) -> Tracing | None:
    """Build the traces of the platform. OpenTelemetry is imported here, and not without `tracing.enabled`."""
    if not settings.tracing.enabled:
        return None
    from ..runtime import OpenTelemetryTracing

    tracing = OpenTelemetryTracing(takes_texts=settings.tracing.texts)
    if not tracing.has_sdk:
        remedy = "start with opentelemetry-instrument, or set a tracer provider before the platform starts"
        log.warning("tracing is on, but there is no SDK that records spans; %s", remedy)
    return tracing


def build_access_policy(settings: Settings, agent: AgentSettings) -> AccessPolicy:
    """Build the access rules of an agent from its own settings, else from the common ones."""
    access = settings.access_of(agent)
    return AccessPolicy(
        bare_jid(agent.jid),
        access.allow,
        access.rooms,
        operators=access.operators,
        roster=access.roster,
        ask=access.ask,
        is_silent=access.strangers == "silent",
    )


def build_room_configs(settings: Settings, agent: AgentSettings) -> list[RoomConfig]:
    """Build the chat rooms of an agent, in the order of its settings. The default nickname is the local part of its JID."""
    command_prefixes = settings.conversation_of(agent).command_prefixes
    return [
        RoomConfig(
            room.jid,
            room.nick or local_part(agent.jid),
            room.password.get_secret_value() if room.password is not None else None,
            room.answers,
            room.agent_turns,
            command_prefixes,
        )
        for room in agent.rooms
    ]


def load_avatar(settings: AgentSettings, place: str) -> Avatar | None:
    """Read the avatar of an agent, if it has one. Raise ConfigError at `place` if the file cannot be used."""
    try:
        return None if settings.avatar is None else read_avatar(settings.avatar)
    except ValueError as error:  # the file was there when the settings were read
        raise ConfigError(f"{place}.avatar", str(error)) from error


def build_embedder(settings: Settings) -> Embedder | None:
    """Build the embedder that all agents share. Return None if none is configured."""
    knowledge = settings.knowledge
    if knowledge.embedder == "openai" and knowledge.url and knowledge.model:
        api = OpenAIApi(knowledge.url, _reveal_secret(knowledge.api_key), knowledge.timeout_s, "embeddings")
        return OpenAIEmbedder(api, knowledge.model, batch=knowledge.batch)
    if knowledge.embedder == "local" and knowledge.model:
        return LocalEmbedder(knowledge.model)
    return None


def build_summariser(memory: MemorySettings) -> Summariser:
    """Build the summariser: a language model if one is configured, else one that extracts sentences."""
    model = memory.summariser
    if model.url and model.model:
        api = OpenAIApi(model.url, _reveal_secret(model.api_key), model.timeout_s)
        return ModelSummariser(api, model.model, has_unopened_thinking=model.unopened_thinking)
    return ExtractiveSummariser()


def build_memory_config(common: MemorySettings, own: MemorySettings | None, manifest: MemoryConfig | None) -> MemoryConfig:
    """Build the memory configuration from the agent's own settings, else its manifest, else the common settings."""
    policy = manifest or MemoryConfig(
        strategy=MemoryStrategy(common.strategy), limit=common.limit, summary_prompt=common.summary_prompt
    )
    fields: dict[str, Any] = policy.model_dump()
    # A manifest may lack the prompt if its own strategy needs none.
    fields["summary_prompt"] = policy.summary_prompt or common.summary_prompt
    for key in ("strategy", "limit", "summary_prompt"):
        if own is not None and key in own.model_fields_set:
            fields[key] = getattr(own, key)
    return MemoryConfig.model_validate(fields)


def build_memory(settings: Settings, database: Database | None, jid: str) -> AgentInteractionMemory:
    """Build the interaction memory of an agent (a bare JID), over the database if it has memories, and over files otherwise.

    Raise StoreError if its file cannot be read, or is not in the database yet. Call this on the event loop of the database.
    """
    storage, limits = settings.storage, build_memory_limits(settings)
    if database is None or not database.backend.has_memories:
        return AgentInteractionMemory(jid, storage.memory_dir, limits=limits, durability=storage.durability)
    from ..memory import require_imported  # it needs SQLAlchemy, which a database that is open has loaded

    require_imported(storage.memory_dir, jid)
    return build_memory_table(settings, database, jid)


def build_memory_table(settings: Settings, database: Database, jid: str) -> AgentInteractionMemory:
    """Build the interaction memory of an agent (a bare JID) over a database that has memories."""
    from ..memory import MemoryRows

    limits = build_memory_limits(settings)
    store = MemoryRows(database, jid, limits)
    return AgentInteractionMemory(jid, limits=limits, durability=settings.storage.durability, store=store)


async def import_memories(settings: Settings, database: Database, without: Collection[str] = ()) -> None:
    """Move interaction memories from files to a database that has memories, but those of some agents."""
    if database.backend.has_memories:
        from ..memory import import_all_memory_files

        make = partial(build_memory_table, settings, database)
        await import_all_memory_files(settings.storage.memory_dir, make, database.backend.alone, without)


def build_memory_limits(settings: Settings) -> MemoryLimits:
    """Build the size limits of the interaction memory of each agent."""
    limits = settings.limits
    return MemoryLimits(limits.memory_entry_bytes, limits.memory_conversation_bytes, limits.memory_journal_bytes)


def build_token_counter(memory: MemorySettings, project: Path, place: str) -> TokenCounter:
    """Build the token counter: a built-in one or a function of the project. Raise ConfigError at `place` if it fails."""
    name = memory.tokenizer
    try:
        if name in get_args(Tokenizer):
            return counter_for(cast(Tokenizer, name))
    except ConfigError as error:
        raise ConfigError(place, error.problem) from error
    count = load_attribute(name, project, place)
    try:
        tokens = count("How many tokens has this?")
    except BaseException as error:  # the function is the user's code, and no cancellation arrives here
        raise ConfigError(
            place, f"{name} cannot count a text: {describe_error(error, project)}; correct the function"
        ) from error
    if not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(place, f"{name} returned {tokens!r} for a text; a token counter must return a whole number")
    return guard_counter(count, name)


def _reveal_secret(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
