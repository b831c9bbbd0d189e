"""The preferences of a person for an agent: the language, what is shown, notifications and the time zone."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .initiative.schedules import check_zone

log = logging.getLogger(__name__)

PREFERENCES_SCOPE = "preferences"
"""The scope, and the only name in it, under which preferences are stored; their holder is the person."""

LANGUAGE_TAG = re.compile(r"(?=.{2,35}$)[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
"""The form of a language tag, such as "de", "pt-BR" or "zh-Hant-TW" (BCP 47; RFC 5646, 2.1), with at most 35 characters."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences of one person for one agent; None means the agent's default. An invalid value is a ValueError.

    `language` is a language tag (BCP 47). If `thoughts` is true, thoughts are shown beside "typing…". If `streaming` is true,
    a reply may be shown before it is complete. If `notifications` is false, the agent sends none. `zone` is the IANA name of a
    time zone, such as "Europe/Berlin".
    """

    language: str | None = None
    thoughts: bool | None = None
    streaming: bool | None = None
    notifications: bool | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.language is not None and not (isinstance(self.language, str) and LANGUAGE_TAG.fullmatch(self.language)):
            raise ValueError(f'{self.language!r} is no language tag; write it as "en", "de" or "pt-BR" (BCP 47)')
        for name in ("thoughts", "streaming", "notifications"):
            if (value := getattr(self, name)) is not None and not isinstance(value, bool):
                raise ValueError(f"{name} is True, False or None, not {value!r}")
        if self.zone is not None:
            if not isinstance(self.zone, str):
                raise ValueError(f'zone is an IANA name, such as "Europe/Berlin", or None, not {self.zone!r}')
            check_zone(self.zone)

    def to_json(self) -> str:
        """Return the JSON text for storage; `from_stored` reads it."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    @classmethod
    def from_stored(cls, stored: Mapping[str, str]) -> Preferences:
        """Read the preferences from the values stored in their scope.

        Preferences that cannot be read are logged as an error, and the defaults apply.
        """
        text = stored.get(PREFERENCES_SCOPE)
        if text is None:
            return DEFAULT_PREFERENCES
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:  # stored by a newer version, which has more preferences
            log.error("stored preferences cannot be read and are ignored: %s", error)
            return DEFAULT_PREFERENCES


DEFAULT_PREFERENCES = Preferences()
