"""Words of a text with their stems, and a full-text score that is the same on every database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from .languages import LANGUAGES, STOP_WORDS, detect_languages, stem_term, stemmer_version

FENCE = "```"
"""The line before and after a block of code, in Markdown and in Message Styling (XEP-0393)."""

_JOINER = "\u200d"

_FLAG_HALVES = "\U0001f1e6\U0001f1ff"

_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def join_surrogates(text: str) -> str:
    r"""Join the two halves of a character, such as `\ud83d` and `\ude00`: JSON in pieces may have them in two pieces."""
    return _SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def hold_open_character(text: str) -> str:
    """Return a text that still grows, without what is no whole emoji yet at its end: half a flag, or a joiner."""
    if text[-1:] == _JOINER:
        return text[:-1]
    if text[-1:] < _FLAG_HALVES[0] or text[-1] > _FLAG_HALVES[1]:
        return text
    from wcwidth import grapheme_boundary_before

    begin = grapheme_boundary_before(text, len(text))
    return text[:begin] if begin and len(text) - begin == 1 else text


class SurrogateJoiner:
    """Join the characters of a text in pieces whose halves are in two of them."""

    half = ""
    """The half of a character that waits for the other one."""

    def feed(self, piece: str) -> str:
        """Add a piece, and return it with the half before it, and without the half of a character at its end."""
        if not self.half and piece.isascii():
            return piece
        text = self.half + piece
        self.half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return join_surrogates(text.removesuffix(self.half))


def replace_lone_surrogates(value: Any) -> Any:
    """Replace lone surrogates in the texts of a JSON value, because UTF-8 cannot encode them. Join those that are a pair."""
    if isinstance(value, str):
        return value if value.isascii() else join_surrogates(value).encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {replace_lone_surrogates(name): replace_lone_surrogates(item) for name, item in value.items()}
    return [replace_lone_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


# Chinese, Japanese and Korean are written without spaces: there each character counts as a word.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)

_ACCENT = re.compile(r"[\u0300-\u036f]")

_MAX_WORD_CHARACTERS = 64

_BEGINNING_CHARACTERS = 5

_MAX_ENDING_CHARACTERS = 3

_MAX_WORDS_OF_UNKNOWN_LANGUAGE = 40

_RULES = 1  # raise it when `index_words` gives other words


def split_words(text: str) -> list[str]:
    """Split a text into its words, in order, in lower case and without accents."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFKD", text)))
    return [word[:_MAX_WORD_CHARACTERS] for word in _WORD.findall(text.casefold())]


def extract_keywords(query: str) -> list[str]:
    """Return the words of a question that name its subject, each once. If none would remain, return all of its words."""
    words = list(dict.fromkeys(split_words(query)))
    return [word for word in words if word not in STOP_WORDS] or words


def word_rules() -> str:
    """Return a name of the rules of `index_words`. Words made by other rules may not be found until they are made anew."""
    return f"{_RULES} {stemmer_version()}"


def index_words(passages: Sequence[str]) -> list[str]:
    """Return the words of each passage of a document, separated by spaces, each followed by its stem.

    The stem is that of the passage's language, else that of the document's. A short document of unknown language gets the stems
    of every language, a longer one none: it is in none of them.
    """
    words = [split_words(passage) for passage in passages]
    common = _languages_of([word for part in words for word in part])
    return [" ".join(_add_stems(part, detect_languages(part) or common)) for part in words]


def _languages_of(words: Sequence[str]) -> tuple[str, ...]:
    return detect_languages(words) or (LANGUAGES if len(words) <= _MAX_WORDS_OF_UNKNOWN_LANGUAGE else ())


def _add_stems(words: Iterable[str], languages: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield word
        for language in languages:
            term = stem_term(word, language)
            if term is not None:
                yield term


@lru_cache(maxsize=4096)
def search_forms(word: str) -> tuple[str, ...]:
    """Return the search terms that match all forms of a word: words, a beginning followed by an asterisk, and stems.

    A word with digits matches itself only. `index_words` gives the words that are searched.
    """
    if len(word) < 3 or not word.isalpha():
        return (word,)
    stems = [term for language in LANGUAGES if (term := stem_term(word, language)) is not None]
    if len(word) < _BEGINNING_CHARACTERS:
        singular = _to_singular(word)
        return singular, f"{singular}s", *stems
    return word, f"{_beginning(word)}*", *stems


def keyword_coverage(keywords: Sequence[str], spaced_words: str) -> float:
    """Return the share (0 to 1) of `keywords` that occur in a text; see `extract_keywords`.

    `spaced_words` are the words of the text, separated by spaces. Other forms of a word count as the word: by its beginning,
    and by its stem if the words are those of `index_words`.
    """
    if not keywords:
        return 0.0
    spaced_words = f" {spaced_words} "
    return sum(_has_form(spaced_words, word) for word in keywords) / len(keywords)


def text_coverage(keywords: Sequence[str], text: str) -> float:
    """Return the share (0 to 1) of `keywords` that occur in a text that is not indexed."""
    words = split_words(text)
    initials = {word[0] for word in keywords}  # forms of a word begin with the same letter
    candidates = [word for word in words if word[0] in initials]
    return keyword_coverage(keywords, " ".join(_add_stems(candidates, _languages_of(words))))


def _has_form(spaced_words: str, word: str) -> bool:
    for form in search_forms(word):
        if form.endswith("*"):
            if _ending_pattern(word).search(spaced_words) is not None:
                return True
        elif f" {form} " in spaced_words:
            return True
    return False


@lru_cache(maxsize=4096)
def _ending_pattern(word: str) -> re.Pattern[str]:
    beginning = _beginning(word)
    return re.compile(rf" {beginning}\S{{0,{len(word) + _MAX_ENDING_CHARACTERS - len(beginning)}}} ")


def _beginning(word: str) -> str:
    """Return the beginning that forms of a word share in most languages: `deliv` for deliver and delivery."""
    return word if len(word) <= _BEGINNING_CHARACTERS else word[: max(_BEGINNING_CHARACTERS, len(word) - 2)]


def _to_singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word  # cat, cats; but gas
