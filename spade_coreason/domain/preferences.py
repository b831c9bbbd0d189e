"""What a person prefers of an agent: the language, whether its thoughts are shown, whether its answers grow."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

log = logging.getLogger(__name__)

PREFERENCES = "preferences"
"""The scope, and the one name in it, under which a store keeps them; the holder is the person."""

_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_MAX_TAG_CHARACTERS = 35


def is_language_tag(text: str) -> bool:
    """Whether it has the form of a language tag (BCP 47, RFC 5646, 2.1): "de", "pt-BR", "zh-Hant-TW". At most 35 characters."""
    return len(text) <= _MAX_TAG_CHARACTERS and _is_tag(text)


@lru_cache(maxsize=256)  # asked for the same few, at every message
def _is_tag(text: str) -> bool:
    return _LANGUAGE_TAG.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Preferences:
    """What one person prefers of one agent; None is what is usual for the agent. `ValueError` says what cannot be preferred.

    `language` is a language tag (BCP 47), `thoughts` whether they are said beside "typing…", `streaming` whether an answer
    may be shown before it is whole.
    """

    language: str | None = None
    thoughts: bool | None = None
    streaming: bool | None = None

    def __post_init__(self) -> None:
        if self.language is not None and not (isinstance(self.language, str) and is_language_tag(self.language)):
            raise ValueError(f'{self.language!r} is no language tag; write it as "en", "de" or "pt-BR" (BCP 47)')
        for name in ("thoughts", "streaming"):
            if (value := getattr(self, name)) is not None and not isinstance(value, bool):
                raise ValueError(f"{name} is True, False or None, not {value!r}")

    def to_json(self) -> str:
        """For the store; `from_stored` reads it again."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def from_stored(cls, stored: Mapping[str, str]) -> Preferences:
        """From what a store has in the scope. What cannot be read is as if it were not there, and the log says so."""
        text = stored.get(PREFERENCES)
        if text is None:
            return DEFAULTS
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:  # of a newer version, which knows more of them
            log.error("preferences that cannot be read are left aside: %s", error)
            return DEFAULTS


DEFAULTS = Preferences()
