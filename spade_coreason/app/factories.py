"""What settings name for memories: what embeds, what summarises, what counts tokens, how much there may be."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import SecretStr

from ..config import AgentSettings, MemorySettings, RetentionLimits, RetentionSettings, Settings, describe_error, load_attribute
from ..contracts import ConversationState, MemoryConfig, MemoryStrategy
from ..domain.access import AccessPolicy
from ..domain.avatar import Avatar, read_avatar
from ..domain.conversation import Rules
from ..domain.jid import bare_jid, local_part
from ..exceptions import ConfigError
from ..memory import (
    Embedder,
    ExtractiveSummariser,
    LocalEmbedder,
    MemoryLimits,
    ModelSummariser,
    OpenAIApi,
    OpenAIEmbedder,
    Summariser,
    TokenCounter,
    Tokenizer,
    counter_for,
    guard_counter,
)
from ..runtime import Keep, Policy, Retention
from ..xmpp import RoomConfig


def build_policy(settings: Settings, agent: AgentSettings, memory: MemoryConfig | None) -> Policy:
    """How an agent is run: its own keys where it has some, the common ones elsewhere; of memory what its manifest says."""
    rules = settings.conversation_of(agent)
    return Policy(
        rules=Rules(
            max_interactions=rules.max_interactions,
            cooldown=timedelta(seconds=rules.cooldown_s),
            timeout=timedelta(seconds=rules.timeout_s),
            max_failures=rules.max_failures,
        ),
        memory=build_memory_config(settings.memory, agent.memory, memory),
        retention=_build_retention(rules.retention),
        assist_timeout_s=rules.assist_timeout_s,
        lifecycle=rules.lifecycle,
        idle_shutdown_s=rules.idle_shutdown_s,
        on_restart=rules.on_restart,
        commands=rules.commands,
        operators=frozenset(settings.access_of(agent).operators),
        thoughts=rules.thoughts,
        concurrency=settings.limits.concurrency,
        queue=settings.limits.queue,
        stanza_bytes=settings.limits.stanza_bytes,
        file_over_bytes=settings.limits.file_over_bytes,
    )


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
    )


def build_room_configs(agent: AgentSettings) -> list[RoomConfig]:
    """Build the chat rooms of an agent, in the order of its settings. Its nickname is by default the local part of its JID."""
    return [
        RoomConfig(
            room.jid,
            room.nick or local_part(agent.jid),
            room.password.get_secret_value() if room.password is not None else None,
            room.answers,
            room.agent_turns,
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
    """The embedder of all agents, or none."""
    knowledge = settings.knowledge
    if knowledge.embedder == "openai" and knowledge.url and knowledge.model:
        api = OpenAIApi(knowledge.url, _reveal_secret(knowledge.api_key), knowledge.timeout_s)
        return OpenAIEmbedder(api, knowledge.model, batch=knowledge.batch)
    if knowledge.embedder == "local" and knowledge.model:
        return LocalEmbedder(knowledge.model)
    return None


def build_summariser(memory: MemorySettings) -> Summariser:
    """A language model where one is named, else the sentences themselves."""
    model = memory.summariser
    if model.url and model.model:
        return ModelSummariser(OpenAIApi(model.url, _reveal_secret(model.api_key), model.timeout_s), model.model)
    return ExtractiveSummariser()


def build_memory_config(common: MemorySettings, own: MemorySettings | None, manifest: MemoryConfig | None) -> MemoryConfig:
    """What an agent's own settings say, else its manifest, else the common settings."""
    policy = manifest or MemoryConfig(
        strategy=MemoryStrategy(common.strategy), limit=common.limit, summary_prompt=common.summary_prompt
    )
    said: dict[str, Any] = policy.model_dump()
    said["summary_prompt"] = policy.summary_prompt or common.summary_prompt  # a manifest need not have one for other strategies
    for key in ("strategy", "limit", "summary_prompt"):
        if own is not None and key in own.model_fields_set:
            said[key] = getattr(own, key)
    return MemoryConfig.model_validate(said)


def build_memory_limits(settings: Settings) -> MemoryLimits:
    """How much the interaction memory of each agent may hold."""
    limits = settings.limits
    return MemoryLimits(limits.memory_entry_bytes, limits.memory_conversation_bytes, limits.memory_journal_bytes)


def build_token_counter(memory: MemorySettings, project: Path, place: str) -> TokenCounter:
    """The counter of tokens that is named, or a function of somebody's own. ConfigError at `place` where it is none."""
    name = memory.tokenizer
    try:
        if name in get_args(Tokenizer):
            return counter_for(cast(Tokenizer, name))
    except ConfigError as error:
        raise ConfigError(place, error.problem) from error
    count = load_attribute(name, project, place)
    try:
        found = count("How many tokens has this?")
    except Exception as error:  # it is somebody else's code
        raise ConfigError(place, f"{name} cannot count a text: {describe_error(error, project)}; correct it there") from error
    if not isinstance(found, int) or found < 1:
        raise ConfigError(
            place, f"{name} says that a text has {found!r} tokens; a function is needed that gives a whole number"
        )
    return guard_counter(count, name)


def _build_retention(settings: RetentionSettings) -> Retention:
    def keep(rule: RetentionLimits) -> Keep:
        return Keep(timedelta(days=rule.days) if rule.days else None, rule.turns or None)

    own = {ConversationState(state): keep(rule) for state, rule in settings.states if rule is not None}
    return Retention(keep(settings), own)


def _reveal_secret(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
