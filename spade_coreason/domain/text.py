"""Words of a text, and a full-text score that is the same on every database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

FENCE = "```"
"""The line before and after a block of code, in Markdown and in Message Styling (XEP-0393)."""


def replace_lone_surrogates(value: Any) -> Any:
    """Replace lone surrogates in the texts of a JSON value, because UTF-8 cannot encode them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {replace_lone_surrogates(name): replace_lone_surrogates(item) for name, item in value.items()}
    return [replace_lone_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


# Chinese, Japanese and Korean are written without spaces: there each character counts as a word.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)

_ACCENT = re.compile(r"[\u0300-\u036f]")

_MAX_WORD_CHARACTERS = 64

_STEM_CHARACTERS = 5

_MAX_ENDING_CHARACTERS = 3

# Words that belong to the form of a question and not to its subject.
_STOP_WORDS = frozenset(
    """
    a about all also am an and any are as at be been but by can could did do does for from had has have he her him his how i
    if in into is it its just me might more must my no not of on or our please shall she should so some tell than that the
    their them then there these they this those to too us was we were what when where which who whom whose why will with
    would you your aber als auch auf aus bei bin bis da das dass dem den der des die doch du ein eine einem einen einer er
    es fur gibt hat ich ihr im ist ja kann mein mich mir mit nach nicht nur oder sein sich sie sind und uns vom von wann war
    warum wer wie wir wird wo zu zum zur al como con cual cuando de del donde el ella en entre esta este hay la las le lo
    los mas mi o para pero por porque que quien se si sin sobre son su sus te tu un una y ya yo au aux avec ce ces cette
    comment dans elle est et il ils je les leur ma mais mon ne nous ou par pas pour pourquoi quand quel quelle qui quoi sa
    ses sur une vous
    """.split()
)


def split_words(text: str) -> list[str]:
    """Split a text into its words, in order, in lower case and without accents."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFKD", text)))
    return [word[:_MAX_WORD_CHARACTERS] for word in _WORD.findall(text.casefold())]


def extract_keywords(query: str) -> list[str]:
    """Return the words of a question that name its subject, each once. If none would remain, return all of its words."""
    words = list(dict.fromkeys(split_words(query)))
    return [word for word in words if word not in _STOP_WORDS] or words


def stem(word: str) -> str:
    """Return the beginning that the forms of a word share: `polic` for policy and for policies."""
    return word if len(word) <= _STEM_CHARACTERS else word[: max(_STEM_CHARACTERS, len(word) - 2)]


def search_forms(word: str) -> tuple[str, ...]:
    """Return the search terms that match all forms of a word: whole words, or a stem followed by an asterisk."""
    if len(word) < 3:
        return (word,)
    if len(word) < _STEM_CHARACTERS:
        singular = _to_singular(word)
        return singular, f"{singular}s"
    return (f"{stem(word)}*",)


def keyword_coverage(keywords: Sequence[str], spaced_words: str) -> float:
    """Return the share (0 to 1) of `keywords` that occur in a text; see `extract_keywords`.

    `spaced_words` are the words of the text, separated by spaces. Other forms of a word count as the word.
    """
    if not keywords:
        return 0.0
    spaced_words = f" {spaced_words} "
    return sum(_forms_pattern(word).search(spaced_words) is not None for word in keywords) / len(keywords)


@lru_cache(maxsize=4096)
def _forms_pattern(word: str) -> re.Pattern[str]:
    if len(word) < 3:
        return re.compile(f" {word} ")
    if len(word) < _STEM_CHARACTERS:
        return re.compile(f" {_to_singular(word)}s? ")
    beginning = stem(word)
    return re.compile(rf" {beginning}\S{{0,{len(word) + _MAX_ENDING_CHARACTERS - len(beginning)}}} ")


def _to_singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word  # cat, cats; but gas
