"""What a command asks for: fields, and what the texts that people write into them mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["text", "number", "yes or no", "choice"]
Value: TypeAlias = str | int | bool | None

LONGEST_TEXT = 10_000
CONVERSATION = "conversation"
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
    kind: Kind = "text"
    is_required: bool = False
    default: Value = None
    choices: tuple[Choice, ...] = ()
    least: int | None = None
    most: int | None = None

    def read(self, text: str | None) -> Value:
        """What a text means; None is a field that was not filled. FieldError says what is wrong with it."""
        text = (text or "").strip()
        if not text:
            if self.is_required:
                raise FieldError(f"{self.name} is missing: {self.label}.")
            return self.default
        if self.kind == "number":
            return self._number(text)
        if self.kind == "yes or no":
            if text.lower() not in _YES | _NO:
                raise FieldError(f'{self.name} is yes or no, not "{_short(text)}".')
            return text.lower() in _YES
        if self.kind == "choice":
            return self._choice(text)
        if len(text) > LONGEST_TEXT:
            raise FieldError(f"{self.name} has {len(text):,} characters; {LONGEST_TEXT:,} are the most.")
        return text

    def written(self, value: Value) -> str:
        """A value as it stands in a form (XEP-0004)."""
        return str(int(value)) if isinstance(value, bool) else "" if value is None else str(value)

    def _number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            raise FieldError(f'{self.name} is a number, not "{_short(text)}".')
        number = int(text)
        if self.least is not None and number < self.least:
            raise FieldError(f"{self.name} is {self.least} or more, not {number}.")
        return number if self.most is None else min(number, self.most)

    def _choice(self, text: str) -> str:
        for choice in self.choices:
            if text == choice.value:
                return choice.value
        alike = [
            choice.value for choice in self.choices if text.casefold() in (choice.value.casefold(), choice.label.casefold())
        ]
        if len(alike) == 1:
            return alike[0]
        there = ", ".join(choice.value for choice in self.choices[:_NAMED]) + (", …" if len(self.choices) > _NAMED else "")
        raise FieldError(f'{self.name} is one of {there}; not "{_short(text)}".')


_NAMED = 10
_SHORT = 40


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _SHORT else f"{shown[:_SHORT]}…"
