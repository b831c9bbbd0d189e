"""Languages of texts: their commonest words, their detection, and stems of words (Snowball)."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

_COMMON_WORDS = {
    "en": """a about all also am an and any are as at be been but by can could did do does for from had has have he her him
        his how i if in into is it its just me might more must my no not of on or our please shall she should so some tell
        than that the their them then there these they this those to too us was we were what when where which who whom whose
        why will with would you your""",
    "de": """aber als am an auch auf aus bei bin bis da das dass dem den der des die doch du ein eine einem einen einer er es
        fur gibt habe haben habt hat ich ihr im in ist ja kann konnen mein mich mir mit nach nicht nur oder sein sich sie
        sind so und uns vom von wann war warum was welche welcher welches wer wie wir wird wo zu zum zur""",
    "es": """a al como con cual cuando cuanto de del donde el ella en entre es esta este hay la las le lo los mas me mi no o
        para pero por porque puede puedo que quien se si sin sobre son su sus te tiene tienen tu un una y ya yo""",
    "fr": """a au aux avec ce ces cette comment dans de des du elle en est et il ils je la le les leur lui ma mais me mon ne
        nous on ou par pas pour pourquoi quand que quel quelle qui quoi sa se ses si son sur te tu un une vous y""",
}
LANGUAGES = tuple(_COMMON_WORDS)
"""The languages whose words are stemmed, as ISO 639-1 codes."""

_ALGORITHMS = {"en": "english", "de": "german", "es": "spanish", "fr": "french"}

_STOP_WORDS = {language: frozenset(words.split()) for language, words in _COMMON_WORDS.items()}

STOP_WORDS = frozenset().union(*_STOP_WORDS.values())
"""Words that belong to the form of a question and not to its subject, of all languages, without accents."""

_LANGUAGES_OF = {
    word: tuple(language for language in LANGUAGES if word in _STOP_WORDS[language]) for word in sorted(STOP_WORDS)
}

_MIN_STEMMED_CHARACTERS = 3


def detect_languages(words: Iterable[str]) -> tuple[str, ...]:
    """Return the language most of whose commonest words occur, several if they are equal, and none if no such word occurs."""
    counts = dict.fromkeys(LANGUAGES, 0)
    for word in words:
        for language in _LANGUAGES_OF.get(word, ()):
            counts[language] += 1
    most = max(counts.values())
    return tuple(language for language, count in counts.items() if count == most) if most else ()


def stem_term(word: str, language: str) -> str | None:
    """Return the search term of a word's stem in a language: `en0park` for parking.

    The code in front keeps stems of different languages, and whole words, apart. Short words, words with digits, words in
    other scripts and the commonest words of the language have none.
    """
    if len(word) < _MIN_STEMMED_CHARACTERS or not (word.isascii() and word.isalpha()) or word in _STOP_WORDS[language]:
        return None
    return f"{language}0{_stemmer(language).stemWord(word)}"


def stemmer_version() -> str:
    """Return the version of the stemming algorithms. Another version may give other stems."""
    import Stemmer

    return str(Stemmer.version())


class _SnowballStemmer(Protocol):
    def stemWord(self, word: str, /) -> str: ...  # the name of the library


_stemmers = threading.local()  # a stemmer must not be used by two threads at once


def _stemmer(language: str) -> _SnowballStemmer:
    stemmer: _SnowballStemmer | None = getattr(_stemmers, language, None)
    if stemmer is None:
        import Stemmer  # a megabyte, for platforms that search only

        stemmer = Stemmer.Stemmer(_ALGORITHMS[language], 0)
        setattr(_stemmers, language, stemmer)
    return stemmer
