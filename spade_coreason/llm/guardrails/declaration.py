"""Guardrails as they are declared: what a text is checked by, and what becomes of one that is not let through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, field_validator

from ...exceptions import ConfigError
from ..options import StrictOptions, parse_options

Action: TypeAlias = Literal["block", "redact", "replace", "warn"]
Stage: TypeAlias = Literal["input", "name", "tool", "output", "call", "reasoning"]
"""Which text it is: what was asked, who asks in a room, what a tool gave, what the model says, what it calls a tool with, and
what it thinks."""

CHECKS = ("keywords", "regex", "length", "json_schema", "judge", "function")


class Length(StrictOptions):
    """Characters that a text must have at least and at most."""

    min: int = Field(default=0, ge=0)
    max: int | None = Field(default=None, ge=0)


class Guardrail(StrictOptions):
    """One check, and what is done with a text that does not pass it. Exactly one of these says what is checked:

    `keywords`: words and phrases that must not be in it, in any case; `regex`: one or more expressions that must match nothing
    in it; `length`: characters, `{min, max}` or the most; `json_schema`: it must be JSON that fits; `judge`: a rule in plain
    words that a model applies, `judge_model` or that of the agent; `function`: yours, sync or async, or "module:function":
    of a text it gives True or None where it passes, False where not, or the text that takes its place.

    `action` "block" ends the turn with `message`; "redact" puts `replacement` in the place of each match of `keywords` or
    `regex`; "replace" puts it in the place of the whole text; "warn" lets it through. Whatever is done is in the audit trail.
    `stages` says which texts are checked. On input: what was asked ("input", the default), what tools gave and what was found
    for the question ("tool"), or both. On output: what is said ("output"), what tools are called with ("call"), or both; by
    default `keywords` and `regex` look at both, others at what is said.

    `per: sentence` checks each sentence of an answer as it is complete, where otherwise a check of the whole text holds the
    answer back until there is all of it. A check that fails or takes longer than `timeout_s` seconds blocks; `on_error: allow`
    lets the text through.

    A match of `regex` is found in a stream where it has at most `span` characters: so many are held back.
    """

    name: str = ""
    keywords: tuple[str, ...] | None = None
    regex: tuple[str, ...] | None = None
    length: Length | None = None
    json_schema: dict[str, Any] | None = None
    judge: str | None = None
    judge_model: str | None = None
    function: Callable[[str], Any] | str | None = None
    action: Action = "block"
    message: str | None = None
    replacement: str | None = None
    stages: tuple[Literal["input", "tool", "output", "call"], ...] = ()  # YAML takes the word "on" for True
    per: Literal["answer", "sentence"] = "answer"
    on_error: Literal["block", "allow"] = "block"
    timeout_s: float = Field(default=30.0, gt=0)
    span: int = Field(default=200, ge=1, le=10_000)

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
        """Which check it is, such as "keywords"; "" where it is none or several."""
        named = [name for name in CHECKS if getattr(self, name) is not None]
        return named[0] if len(named) == 1 else ""

    @property
    def has_patterns(self) -> bool:
        """Whether it looks for something in a text, and needs not all of it."""
        return self.check in ("keywords", "regex")


GuardrailSpec: TypeAlias = Guardrail | Mapping[str, Any] | Callable[[str], Any]
"""A guardrail as people write it: itself, a mapping with its fields, or a function."""


def parse_guardrails(specs: Sequence[GuardrailSpec], place: str, *, are_for_output: bool) -> list[Guardrail]:
    """Guardrails as given, from mappings, or of functions. Each has a name that no other has; ConfigError names the key."""
    found: list[Guardrail] = []
    for number, one in enumerate(specs):
        at = f"{place}[{number}]"
        declared = {"function": one} if callable(one) and not isinstance(one, Guardrail | Mapping) else one
        if not isinstance(declared, Guardrail | Mapping):
            raise ConfigError(at, "is a mapping such as {keywords: [password], action: redact}")
        guardrail = parse_options(Guardrail, declared, at)
        problem = _find_problem(guardrail, is_for_output=are_for_output)
        if problem is not None:
            raise ConfigError(".".join(filter(None, (at, problem[0]))), problem[1])
        name = guardrail.name or _unused_name(guardrail.check, [other.name for other in found])
        if any(other.name == name for other in found):
            raise ConfigError(f"{at}.name", f'there are two called "{name}"; rename one')
        found.append(
            guardrail.model_copy(update={"name": name, "stages": _effective_stages(guardrail, is_for_output=are_for_output)})
        )
    return found


def _effective_stages(guardrail: Guardrail, *, is_for_output: bool) -> tuple[str, ...]:
    if guardrail.stages:
        return guardrail.stages
    if not is_for_output:
        return ("input",)
    return ("output", "call") if guardrail.has_patterns else ("output",)


def _find_problem(guardrail: Guardrail, *, is_for_output: bool) -> tuple[str, str] | None:
    """What is wrong, and with which key."""
    check, given = guardrail.check, guardrail.model_fields_set
    if not check:
        return "", f"says what it checks by exactly one of {', '.join(CHECKS)}"
    if check in ("keywords", "regex") and not all(one.strip() for one in getattr(guardrail, check) or ("",)):
        return check, "is a list of texts that are not empty"
    if check == "length" and guardrail.length == Length():
        return check, "needs min, max or both"
    if guardrail.action == "redact" and not guardrail.has_patterns:
        return "action", f"redact needs keywords or regex; {check} can block, replace or warn"
    if guardrail.action == "replace" and guardrail.replacement is None:
        return "replacement", "is missing: the text that takes the place of the whole"
    if guardrail.replacement is not None and guardrail.action not in ("redact", "replace"):
        return "replacement", f"means nothing for {guardrail.action}; it is for redact and replace"
    if guardrail.message is not None and guardrail.action != "block":
        return "message", "is what is said where it blocks; leave it out"
    if guardrail.judge_model is not None and check != "judge":
        return "judge_model", "is for a judge; leave it out"
    possible = ("output", "call") if is_for_output else ("input", "tool")
    if "stages" in given and not (guardrail.stages and set(guardrail.stages) <= set(possible)):
        return "stages", f"is {possible[0]}, {possible[1]} or both"
    if guardrail.per == "sentence" and not (is_for_output and check in ("judge", "function")):
        return "per", "sentence is for a judge or a function in output_guardrails; leave it out"
    return None


def _unused_name(name: str, used_names: Sequence[str]) -> str:
    number = sum(other == name or other.startswith(f"{name} ") for other in used_names)
    return name if not number else f"{name} {number + 1}"
