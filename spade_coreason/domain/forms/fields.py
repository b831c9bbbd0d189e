"""The fields of a command's form, and the values of the texts that people enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ..texts.translation import translate

FieldKind: TypeAlias = Literal["text", "number", "yes or no", "choice"]
FieldValue: TypeAlias = str | int | bool | None

MAX_TEXT_CHARACTERS = 10_000
CONVERSATION_FIELD = "conversation"
"""The name of the field that selects a conversation."""
_YES = frozenset({"yes", "y", "true", "1", "on"})
_NO = frozenset({"no", "n", "false", "0", "off"})


class FieldError(ValueError):
    """A field does not accept the entered text; the message names the values that it accepts."""


class Choice(NamedTuple):
    """One of several values, with the label that people read."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form. An optional field that is left empty has the default."""

    name: str
    label: str
    kind: FieldKind = "text"
    is_required: bool = False
    default: FieldValue = None
    choices: tuple[Choice, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def parse(self, text: str | None) -> FieldValue:
        """Parse the text that was entered; None means that the field was left out. Raise FieldError with the mistake."""
        text = (text or "").strip()
        if not text:
            if self.is_required:
                raise FieldError(translate("{name} is missing: {label}.", name=self.name, label=translate(self.label)))
            return self.default
        if self.kind == "number":
            return self._parse_number(text)
        if self.kind == "yes or no":
            answer = text.casefold()
            is_yes = answer in _YES or answer == translate("Yes").casefold()
            if not (is_yes or answer in _NO or answer == translate("No").casefold()):
                raise FieldError(translate('{name} must be yes or no, not "{text}".', name=self.name, text=_shorten(text)))
            return is_yes
        if self.kind == "choice":
            return self._parse_choice(text)
        if len(text) > MAX_TEXT_CHARACTERS:
            raise FieldError(
                translate(
                    "{name} has {number} characters. At most {limit} are accepted.",
                    name=self.name,
                    number=len(text),
                    limit=MAX_TEXT_CHARACTERS,
                )
            )
        return text

    def format_value(self, value: FieldValue) -> str:
        """Format a value for a form (XEP-0004)."""
        return str(int(value)) if isinstance(value, bool) else "" if value is None else str(value)

    def _parse_number(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
            raise FieldError(translate('{name} must be a number, not "{text}".', name=self.name, text=_shorten(text)))
        number = int(text)
        if self.minimum is not None and number < self.minimum:
            raise FieldError(
                translate(
                    "{name} must be {minimum} or more, not {number}.", name=self.name, minimum=self.minimum, number=number
                )
            )
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
        listed = ", ".join(choice.value for choice in self.choices[:_MAX_LISTED_CHOICES]) + (
            ", …" if len(self.choices) > _MAX_LISTED_CHOICES else ""
        )
        raise FieldError(
            translate('{name} must be one of {values}, not "{text}".', name=self.name, values=listed, text=_shorten(text))
        )


_MAX_LISTED_CHOICES = 10
_MAX_QUOTED_CHARACTERS = 40


def _shorten(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= _MAX_QUOTED_CHARACTERS else f"{shown[:_MAX_QUOTED_CHARACTERS]}…"
