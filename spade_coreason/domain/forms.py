"""What a command asks for: fields, and what the texts that people write into them mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

FieldKind: TypeAlias = Literal["text", "number", "yes or no", "choice"]
FieldValue: TypeAlias = str | int | bool | None

MAX_TEXT_CHARACTERS = 10_000
CONVERSATION_FIELD = "conversation"
"""The field that says which conversation is meant."""
_YES = frozenset({"yes", "y", "true", "1", "on"})
_NO = frozenset({"no", "n", "false", "0", "off"})


class FieldError(ValueError):
    """What was written into a field is not what it takes; the text says what is."""


class Choice(NamedTuple):
    """One of several values, and what a person reads for it."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field. Where it is not required and left empty, it has the default."""

    name: str
    label: str
    kind: FieldKind = "text"
    is_required: bool = False
    default: FieldValue = None
    choices: tuple[Choice, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def parse(self, text: str | None) -> FieldValue:
        """What a text means; None is a field that was not filled. FieldError says what is wrong with it."""
        text = (text or "").strip()
        if not text:
            if self.is_required:
                raise FieldError(f"{self.name} is missing: {self.label}.")
            return self.default
        if self.kind == "number":
            return self._parse_number(text)
        if self.kind == "yes or no":
            if text.lower() not in _YES | _NO:
                raise FieldError(f'{self.name} is yes or no, not "{_shorten(text)}".')
            return text.lower() in _YES
        if self.kind == "choice":
            return self._parse_choice(text)
        if len(text) > MAX_TEXT_CHARACTERS:
            raise FieldError(f"{self.name} has {len(text):,} characters; {MAX_TEXT_CHARACTERS:,} are the most.")
        return text

    def format_value(self, value: FieldValue) -> str:
        """A value as it stands in a form (XEP-0004)."""
        return str(int(value)) if isinstance(value, bool) else "" if value is None else str(value)

    def _parse_number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            raise FieldError(f'{self.name} is a number, not "{_shorten(text)}".')
        number = int(text)
        if self.minimum is not None and number < self.minimum:
            raise FieldError(f"{self.name} is {self.minimum} or more, not {number}.")
        return number if self.maximum is None else min(number, self.maximum)

    def _parse_choice(self, text: str) -> str:
        for choice in self.choices:
            if text == choice.value:
                return choice.value
        alike = [
            choice.value for choice in self.choices if text.casefold() in (choice.value.casefold(), choice.label.casefold())
        ]
        if len(alike) == 1:
            return alike[0]
        there = ", ".join(choice.value for choice in self.choices[:_MAX_LISTED_CHOICES]) + (
            ", …" if len(self.choices) > _MAX_LISTED_CHOICES else ""
        )
        raise FieldError(f'{self.name} is one of {there}; not "{_shorten(text)}".')


_MAX_LISTED_CHOICES = 10
_MAX_QUOTED_CHARACTERS = 40


def _shorten(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _MAX_QUOTED_CHARACTERS else f"{shown[:_MAX_QUOTED_CHARACTERS]}…"
