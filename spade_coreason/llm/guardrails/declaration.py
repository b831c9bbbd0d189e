"""Guardrails as they are declared: the check of a text, and the action if it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from ...exceptions import ConfigError
from ..options import StrictOptions, parse_options

Stage: TypeAlias = Literal["input", "name", "tool", "output", "call", "reasoning"]
"""The text that is checked.

In this order: a request, the sender's name in a room, the result of a tool, an answer, the arguments of a tool call, the
reasoning.
"""

CHECKS = ("keywords", "regex", "length", "json_schema", "judge", "function")


class Length(StrictOptions):
    """Characters that a text must have at least (`min`) and at most (`max`)."""

    min: int = Field(default=0, ge=0)
    max: int | None = Field(default=None, ge=0)


class Guardrail(StrictOptions):
    """One check, and the action on a text that fails it.

    Exactly one of these fields is the check:

    - `keywords`: words and phrases that the text must not contain, in any case.
    - `regex`: one or more expressions that must not match anywhere.
    - `length`: characters, as `{min, max}` or as the maximum.
    - `json_schema`: the text must be JSON that fits.
    - `judge`: a rule in plain words that a model applies: `judge_model`, or that of the agent.
    - `function`: a function, sync or async, or "module:function". It receives the text and returns True or None if it passes,
      False if not, or a text that replaces it.

    `action` is one of:

    - "block" ends the turn with `message`.
    - "redact" puts `replacement` in the place of each match of `keywords` or `regex`.
    - "replace" puts `replacement` in the place of the whole text.

    Each action is in the audit trail.

    `stages` selects the texts. For input: requests ("input", the default), the results of tools and recalled passages ("tool"),
    or both. For output: answers ("output"), the arguments of tool calls ("call"), or both. By default `keywords` and `regex`
    check both, and other checks only answers.

    A check of the whole text holds an answer back until it is complete. A check that fails, or takes longer than `timeout_s`
    seconds, blocks; `on_error: allow` lets the text through.

    In a stream, `span` characters are held back. A longer match of `regex` is not found there.
    """

    name: str = ""
    keywords: tuple[str, ...] | None = None
    regex: tuple[str, ...] | None = None
    length: Length | None = None
    json_schema: dict[str, Any] | None = None
    judge: str | None = None
    judge_model: str | None = None
    function: Callable[[str], Any] | str | None = None
    action: Literal["block", "redact", "replace"] = "block"
    message: str | None = None
    replacement: str | None = None
    stages: tuple[Literal["input", "tool", "output", "call"], ...] = ()  # YAML takes the word "on" for True
    on_error: Literal["block", "allow"] = "block"
    timeout_s: float = Field(default=30.0, gt=0)
    span: int = Field(default=200, ge=1, le=10_000)

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, options: Any) -> Any:
        if isinstance(options, Mapping):
            if options.get("action") == "warn":
                raise ValueError("action: warn is gone; use a function that logs and returns True")
            if "per" in options:
                raise ValueError("per is gone; remove it, or use a function that checks each sentence of the text")
        return options

    @field_validator("keywords", "regex", "stages", mode="before")
    @classmethod
    def _wrap_single(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("length", mode="before")
    @classmethod
    def _wrap_max_length(cls, value: Any) -> Any:
        return {"max": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @property
    def check(self) -> str:
        """The name of the check, such as "keywords"; empty for none or several."""
        checks = [name for name in CHECKS if getattr(self, name) is not None]
        return checks[0] if len(checks) == 1 else ""

    @property
    def has_patterns(self) -> bool:
        """True if the check searches a text, and does not need the whole of it."""
        return self.check in ("keywords", "regex")


GuardrailSpec: TypeAlias = Guardrail | Mapping[str, Any] | Callable[[str], Any]
"""A guardrail as people write it: a Guardrail, a mapping with its fields, or a function."""


def parse_guardrails(specs: Sequence[GuardrailSpec], place: str, *, are_for_output: bool) -> list[Guardrail]:
    """Return guardrails as given, from mappings, or of functions. Each gets a unique name. ConfigError names the key."""
    guardrails: list[Guardrail] = []
    for number, spec in enumerate(specs):
        path = f"{place}[{number}]"
        options = {"function": spec} if callable(spec) and not isinstance(spec, Guardrail | Mapping) else spec
        if not isinstance(options, Guardrail | Mapping):
            raise ConfigError(path, "must be a mapping such as {keywords: [password], action: redact}")
        guardrail = parse_options(Guardrail, options, path)
        problem = _find_problem(guardrail, is_for_output=are_for_output)
        if problem is not None:
            raise ConfigError(".".join(filter(None, (path, problem[0]))), problem[1])
        name = guardrail.name or _unused_name(guardrail.check, [other.name for other in guardrails])
        if any(other.name == name for other in guardrails):
            raise ConfigError(f"{path}.name", f'the name "{name}" is used twice; rename one')
        guardrails.append(
            guardrail.model_copy(update={"name": name, "stages": _effective_stages(guardrail, is_for_output=are_for_output)})
        )
    return guardrails


def _effective_stages(guardrail: Guardrail, *, is_for_output: bool) -> tuple[str, ...]:
    if guardrail.stages:
        return guardrail.stages
    if not is_for_output:
        return ("input",)
    return ("output", "call") if guardrail.has_patterns else ("output",)


def _find_problem(guardrail: Guardrail, *, is_for_output: bool) -> tuple[str, str] | None:
    """Return the wrong key and its error, or None."""
    check, given_fields = guardrail.check, guardrail.model_fields_set
    if not check:
        return "", f"needs exactly one of {', '.join(CHECKS)}"
    if check in ("keywords", "regex") and not all(text.strip() for text in getattr(guardrail, check) or ("",)):
        return check, "must be a list of texts that are not empty"
    if check == "length" and guardrail.length == Length():
        return check, "needs min, max or both"
    if guardrail.action == "redact" and not guardrail.has_patterns:
        return "action", f"redact needs keywords or regex; {check} can block or replace"
    if guardrail.action == "replace" and guardrail.replacement is None:
        return "replacement", "is missing; set the text that replaces the whole answer or message"
    if guardrail.replacement is not None and guardrail.action not in ("redact", "replace"):
        return "replacement", f"has no effect with {guardrail.action}, only with redact and replace; remove it"
    if guardrail.message is not None and guardrail.action != "block":
        return "message", "has an effect only with block; remove it"
    if guardrail.judge_model is not None and check != "judge":
        return "judge_model", "has an effect only with judge; remove it"
    possible = ("output", "call") if is_for_output else ("input", "tool")
    if "stages" in given_fields and not (guardrail.stages and set(guardrail.stages) <= set(possible)):
        return "stages", f"must be {possible[0]}, {possible[1]} or both"
    return None


def _unused_name(name: str, used_names: Sequence[str]) -> str:
    number = sum(other == name or other.startswith(f"{name} ") for other in used_names)
    return name if not number else f"{name} {number + 1}"
