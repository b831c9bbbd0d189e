"""What settings name for memories: what embeds, what summarises, what counts tokens, how much there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

from pydantic import SecretStr

from ..config import MemorySettings, Settings, describe_error, load_attribute
from ..contracts import MemoryConfig, MemoryStrategy
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


def _reveal_secret(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
