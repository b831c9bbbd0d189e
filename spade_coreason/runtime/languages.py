"""The languages in which an agent writes to people: the one that a person has set, else the one of the message."""

from __future__ import annotations

from ..domain.jid import bare_jid
from ..domain.messages import InboundRequest
from ..domain.preferences import PREFERENCES_SCOPE, Preferences
from ..domain.texts.translation import is_translated
from ..storage import StoredAgent


class PersonLanguages:
    """The languages that people have set for one agent (`/settings language`). All are in memory: a refusal cannot wait."""

    def __init__(self) -> None:
        self.by_person: dict[str, str] = {}
        """The languages that are set, by the bare JID of the person."""

    def load(self, stored: StoredAgent) -> None:
        """Take the stored languages, before the agent goes online."""
        for person, text in stored.get_by_holder(PREFERENCES_SCOPE, PREFERENCES_SCOPE).items():
            self.set(person, Preferences.from_stored({PREFERENCES_SCOPE: text}).language)

    def set(self, person: str, language: str | None) -> None:
        """Remember the language of a person (a bare JID); None if they have set none any more."""
        if language is None:
            self.by_person.pop(person, None)
        else:
            self.by_person[person] = language

    def of_person(self, person: str, default: str | None = None) -> str | None:
        """Return the language that a person (a bare JID) has set, else the default."""
        return self.by_person.get(person, default)

    def of_request(self, incoming: InboundRequest) -> str | None:
        """Return the language of the answer to a request: a setting, else its `xml:lang`. None for English.

        A language without a catalogue counts as English.
        In a room it is the setting of the occupant who asks, if the room shows their JID.
        """
        metadata = incoming.metadata
        if self.by_person:
            occupant = metadata.get("occupant")
            person = bare_jid(occupant) if isinstance(occupant, str) else incoming.root_sender or incoming.owner
            if (language := self.by_person.get(person)) is not None:
                return language
        tag = metadata.get("language_tag")  # clients and servers add one, nearly always "en"
        return tag if tag is not None and is_translated(tag) else None
