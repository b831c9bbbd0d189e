"""The options of an LLMAgent beside its manifest: the endpoint of its model, and the limits of a turn."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from ..config import describe_mistakes, format_key
from ..contracts import RiskLevel
from ..domain.questions import MAX_TIMEOUT
from ..exceptions import ConfigError
from ..memory import check_key


class StrictOptions(BaseModel):
    """A frozen model. An unknown key is an error, and no error quotes a value, which may be a secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


OptionsT = TypeVar("OptionsT", bound=BaseModel)


def _check_networks(value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
    for text in () if isinstance(value, bool) else value:
        ip_network(text)
    return value


PrivateNetworks: TypeAlias = Annotated[bool | tuple[str, ...], AfterValidator(_check_networks)]
"""Private networks to which requests may go, or True for all."""


class Endpoint(StrictOptions):
    """A server with OpenAI's API. `url` is its base, with the version, such as http://127.0.0.1:11434/v1

    Without `url` the agent uses OPENAI_BASE_URL, else OpenAI. The key is `api_key`, else the text of `api_key_file`, else
    OPENAI_API_KEY. That variable is used only if the URL also comes from the environment: a key for one server never goes to
    another.

    - `timeout_s`: seconds without anything new after which a request fails.
    - `connect_timeout_s`: seconds to connect.
    - `tries`: attempts, the first included.
    - `first_pause_s`: seconds before the second attempt. Each further pause is four times as long, unless the server sets it.
    - `longest_pause_s`: a longer pause is not waited for; the request fails at once.
    - `stream: false` is for servers that only send whole answers.
    - `usage: false` is for servers that refuse `stream_options`.
    - `unopened_thinking: true` is for chat templates that begin the thinking themselves (DeepSeek-R1's), so that an answer has
      `</think>` and no `<think>`. The answer is held back up to `</think>`, or to its end.
    - `merge_messages: true` is for chat templates that want roles to alternate (Mistral's, Gemma's). Adjacent messages of the
      system's role, or of the user's, become one.
    """

    url: str | None = None
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    timeout_s: float = Field(default=60.0, gt=0)
    connect_timeout_s: float = Field(default=10.0, gt=0)
    tries: int = Field(default=3, ge=1)
    first_pause_s: float = Field(default=0.5, ge=0)
    longest_pause_s: float = Field(default=20.0, ge=0)
    stream: bool = True
    usage: bool = True
    merge_messages: bool = False
    unopened_thinking: bool = False

    def find_url(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the base URL that the endpoint or the environment names, else an empty text."""
        return self.url or environment.get("OPENAI_BASE_URL") or ""

    def resolve(self, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
        """Return the base URL and the key. ConfigError if no server is named, or if the file of the key cannot be read."""
        url = self.find_url(environment)
        key = self._read_key()
        if key is not None:
            check_key(key, f"options.endpoint.{'api_key' if self.api_key is not None else 'api_key_file'}")
        if key is None and self.url is None:
            key = environment.get("OPENAI_API_KEY")
        if not url and not key:
            problem = (
                "no server of a language model is named; set OPENAI_BASE_URL or OPENAI_API_KEY, or name its url here; "
                "the model name `script` uses a local script instead"
            )
            raise ConfigError("options.endpoint", problem)
        if url and not re.fullmatch(r"https?://[^\s/?#@]+[^\s?#@]*", url):
            problem = "is not the address of an API; write it like http://127.0.0.1:11434/v1, and the key as api_key"
            raise ConfigError("options.endpoint.url" if self.url else "OPENAI_BASE_URL", problem)
        return url or "https://api.openai.com/v1", key or "none"  # the package needs a key even where the server does not

    def _read_key(self) -> str | None:
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        if self.api_key_file is None:
            return None
        try:
            return self.api_key_file.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"{self.api_key_file} cannot be read: {error}"
            raise ConfigError("options.endpoint.api_key_file", problem) from error


class Limits(StrictOptions):
    """Limits of one turn.

    - `context_tokens`: tokens that the model is shown.
    - `answer_tokens`: tokens of a completion. None means the server's own limit.
    - `reply_characters`: characters of one completion with its reasoning, even where the server's limit is higher.
    - `rounds`: rounds with tool calls.
    - `calls`: tool calls in one round.
    - `tool_timeout_s` and `result_characters`: seconds and characters of a tool's result.
    - `repairs`: requests to correct invalid data.
    - `passages`: passages that `session.recall` adds to a question.
    """

    context_tokens: int = Field(default=16_000, ge=1024)
    answer_tokens: int | None = Field(default=None, ge=1)
    reply_characters: int = Field(default=200_000, ge=100)
    rounds: int = Field(default=8, ge=1)
    calls: int = Field(default=16, ge=1)
    tool_timeout_s: float = Field(default=30.0, gt=0)
    result_characters: int = Field(default=16_000, ge=100)
    repairs: int = Field(default=2, ge=0)
    passages: int = Field(default=3, ge=0)


class ToolApprovals(StrictOptions):
    """The approvals of tool calls by people. What is not given is that of the settings (`approvals`).

    - `from_risk`: the risk from which a tool call needs an approval: "safe", "standard" or "critical". With "never", only the
      tools in the manifest's `human_in_the_loop` need one.
    - `approvers`: the group of `access.groups` whose members approve.
    - `timeout_h`: hours that an approval waits, at most 168. Then the tool is not called.
    """

    from_risk: RiskLevel | Literal["never"] | None = None
    approvers: str | None = Field(default=None, min_length=1)
    timeout_h: float | None = Field(default=None, ge=1 / 60, le=MAX_TIMEOUT.total_seconds() / 3600)

    @property
    def timeout(self) -> timedelta | None:
        """The time that an approval waits; None for that of the settings."""
        return None if self.timeout_h is None else timedelta(hours=self.timeout_h)


class Pictures(StrictOptions):
    """The pictures of people that a model is shown, if it takes images: PNG, JPEG, WebP and GIF.

    - `number`: the most pictures in a request. Those of the message come first, then the newest before it.
    - `max_bytes`: the most bytes of all of them together.
    - `timeout_s`: seconds to fetch all of them.
    - `turns`: turns after that of a picture in which it is shown again.
    - `tokens`: tokens that a picture counts in `limits.context_tokens`.
    - `allow_private`: private networks from which pictures are fetched, such as ["10.1.0.0/16"], or true for all.
    """

    number: int = Field(default=4, ge=1, le=20)
    max_bytes: int = Field(default=5_000_000, ge=1, le=20_000_000)
    timeout_s: float = Field(default=20.0, gt=0)
    turns: int = Field(default=3, ge=0)
    tokens: int = Field(default=1_100, ge=0)
    allow_private: PrivateNetworks = False


def parse_options(kind: type[OptionsT], options: OptionsT | Mapping[str, Any] | None, place: str) -> OptionsT:
    """Return options as given, or read them from a mapping. ConfigError names the key; further mistakes are its `others`."""
    if isinstance(options, kind):
        return options
    try:
        return kind.model_validate({} if options is None else options)
    except ValidationError as error:
        mistakes = describe_mistakes(error, kind)
        raise ConfigError.combine(
            ConfigError(format_key((place, *key)), problem) for key, problem in mistakes.items()
        ) from error


def require_list(value: Any, place: str) -> list[Any]:
    """Return a list as given. ConfigError for anything else."""
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ConfigError(place, "must be a list")
    return list(value)


def require_texts(value: Any, place: str) -> tuple[str, ...]:
    """Return a list of texts that are not empty. ConfigError for anything else."""
    texts = require_list(value, place)
    if not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(place, "must be a list of texts")
    return tuple(texts)
