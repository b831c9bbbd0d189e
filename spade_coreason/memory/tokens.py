"""How many tokens of a language model a text is: counted by a tokenizer that works offline, or estimated."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

from ..exceptions import ConfigError

log = logging.getLogger(__name__)

TokenCounter: TypeAlias = Callable[[str], int]
"""The number of tokens of a text."""

Tokenizer: TypeAlias = Literal["auto", "o200k", "cl100k", "estimate"]


def estimate_tokens(text: str) -> int:
    """A number of tokens without a tokenizer: rather too many than too few.

    Four ASCII characters are a token, two others (Cyrillic, Arabic, accents), one where words have no spaces (Chinese,
    Japanese, Korean, emoji). Beside o200k: English prose 1.0 to 1.2 times as many, source code 0.8 to 1.1.
    """
    if text.isascii():
        return math.ceil(len(text) / 4)
    narrow = sum(c < "\x80" for c in text)
    wide = sum(c >= "\u2e80" for c in text)
    return math.ceil(narrow / 4 + (len(text) - narrow - wide) / 2 + wide)


def guard_counter(count: TokenCounter, name: str) -> TokenCounter:
    """A counter of somebody's own. A text at which it fails is estimated, and the log says so once: no turn is lost by it."""
    has_failed = False

    def checked(text: str) -> int:
        nonlocal has_failed
        try:
            return operator.index(count(text))
        except Exception:  # it is somebody else's code
            if not has_failed:
                log.exception("%s does not count the tokens of a text of %d characters; they are estimated", name, len(text))
            has_failed = True
            return estimate_tokens(text)

    return checked


def counter_for(name: Tokenizer) -> TokenCounter:
    """The counter of a name: `o200k` and `cl100k` are those of OpenAI's models, from the package rs-bpe.

    `auto` is o200k where that package is installed and the estimate elsewhere. ConfigError where it is named and missing.
    """
    if name == "estimate":
        return estimate_tokens
    try:
        vocabularies: Any = import_module("rs_bpe").openai
    except ImportError as error:
        if name == "auto":
            return estimate_tokens
        raise ConfigError("", f'{name} needs a tokenizer: pip install "spade-coreason[tokens]"') from error
    tokenizer = vocabularies.cl100k_base() if name == "cl100k" else vocabularies.o200k_base()

    def count(text: str) -> int:
        # A lone surrogate is no text to it.
        return int(tokenizer.count(text if text.isascii() else text.encode("utf-8", "replace").decode()))

    return count
