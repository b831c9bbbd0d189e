"""Translation of the texts for people: gettext catalogues (`translations/*.po`), and the language of the current turn.

The source text in the code is English. `translate` looks it up in the catalogue of `LANGUAGE`, which the runner sets for each
request, or returns it as it is. A catalogue is read when a text is first needed in its language. Another language is one file.
"""

from __future__ import annotations

import gettext
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path

log = logging.getLogger(__name__)

LANGUAGE: ContextVar[str | None] = ContextVar("LANGUAGE", default=None)
"""The language tag (BCP 47) of the person whom the current code writes to; None for English.

It is a context variable because texts are made deep in the platform and in agents, far from the request. Tasks inherit it. Code
that writes to another person than the sender of the request says so with `use_language`.
"""

DIRECTORY = Path(__file__).parents[2] / "translations"


class Text(str):
    """A text in English that `translate` can still translate: it knows its message and the values of its placeholders."""

    __slots__ = ("message", "values")
    message: str
    values: dict[str, object]


def N_(message: str, /, **values: object) -> str:
    """Mark a message for the catalogues without translating it. `translate` does so where the language is known."""
    if not values:
        return message
    text = Text(_fill(message, values, ","))
    text.message, text.values = message, values
    return text


def translate(message: str, /, **values: object) -> str:
    """Return a message in `LANGUAGE`, with its placeholders (`{name}`) filled in. English if there is no translation.

    An `int` is written with separators of thousands as the language has them. A number that is to stay as it is, such as a
    port, is passed as text.
    """
    if (tag := LANGUAGE.get()) is None:
        return _fill(message, values, ",") if values else message
    if isinstance(message, Text):
        values = message.values
        message = message.message
    if (catalogue := _find_catalogue(tag)) is None:
        return _fill(message, values, ",") if values else message
    return _fill_translated(catalogue, catalogue.gettext(message) if message else "", message, values)


def translate_plural(singular: str, plural: str, number: int, /, **values: object) -> str:
    """Return the form of a message for a number, which is also the value of `{number}`; otherwise as `translate`."""
    values["number"] = number
    source = singular if number == 1 else plural
    tag = LANGUAGE.get()
    catalogue = None if tag is None else _find_catalogue(tag)
    if catalogue is None:
        return _fill(source, values, ",")
    return _fill_translated(catalogue, catalogue.ngettext(singular, plural, number), source, values)


@contextmanager
def use_language(language: str | None) -> Iterator[None]:
    """Set `LANGUAGE` for a block of code."""
    token = LANGUAGE.set(language)
    try:
        yield
    finally:
        LANGUAGE.reset(token)


class Catalogues:
    """The catalogues of a directory, each in a file named by its language: `de.po`, `pt-BR.po`."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self._names = {path.stem.lower(): path.stem for path in directory.glob("*.po")}
        self._loaded: dict[str, gettext.GNUTranslations | None] = {}

    @property
    def languages(self) -> list[str]:
        """The languages with a catalogue."""
        return sorted(self._names.values())

    def find(self, tag: str) -> gettext.GNUTranslations | None:
        """Return the catalogue for a language tag: `pt` for `pt-BR` if that has none. None if there is none for either."""
        name = self.find_name(tag)
        if name is None:
            return None
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def find_name(self, tag: str) -> str | None:
        """Return the language of the catalogue for a language tag, without reading it; None if there is none."""
        name = tag.lower()
        while name not in self._names:
            name, separator, _ = name.rpartition("-")
            if not separator:
                return None
        return self._names[name]

    def _load(self, name: str) -> gettext.GNUTranslations | None:
        import polib  # the first person with another language needs it

        path = self._directory / f"{name}.po"
        try:
            return gettext.GNUTranslations(io.BytesIO(polib.pofile(str(path), encoding="utf-8").to_binary()))
        except (OSError, ValueError, SyntaxError) as error:
            log.error("%s: cannot be read, so texts in this language are in English: %s", path, error)
            return None


@lru_cache(maxsize=128)  # a message may have any tag, and nearly each has one
def is_translated(tag: str) -> bool:
    """Return True if there is a catalogue for a language tag. Without one, people read English."""
    return _shipped().find_name(tag) is not None


@lru_cache(maxsize=128)
def _find_catalogue(tag: str) -> gettext.GNUTranslations | None:
    return _shipped().find(tag)


@cache
def _shipped() -> Catalogues:
    return Catalogues()


def _fill_translated(catalogue: gettext.GNUTranslations, text: str, source: str, values: dict[str, object]) -> str:
    if not values:
        return text
    separator = catalogue.gettext(N_("1,000"))[1:-3]  # the thousand of the language shows its separator
    try:
        return _fill(text, values, separator)
    except (KeyError, IndexError, ValueError) as error:
        log.error("the translation %r has a wrong placeholder: %s", text, error)
        return _fill(source, values, ",")


def _fill(text: str, values: dict[str, object], separator: str) -> str:
    return text.format(**{name: _format(value, separator) for name, value in values.items()})


def _format(value: object, separator: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", separator)
    return translate(value) if isinstance(value, Text) else str(value)
