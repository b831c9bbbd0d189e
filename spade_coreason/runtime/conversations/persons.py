"""The people who talk with one agent: their variables and preferences, loaded once while a conversation uses them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from ...domain.preferences import DEFAULT_PREFERENCES, PREFERENCES_SCOPE, Preferences
from ...memory import ActivePerson, Variables
from ...storage import AgentRepository
from ..languages import PersonLanguages


class Persons:
    """The people of one agent, by bare JID. Methods that read or write raise `StoreError`."""

    def __init__(self, repository: AgentRepository, languages: PersonLanguages) -> None:
        self._repository = repository
        self._languages = languages
        self._active: weakref.WeakValueDictionary[str, ActivePerson] = weakref.WeakValueDictionary()

    def add(self, person: str, variables: dict[str, str], preferences: Mapping[str, str]) -> ActivePerson:
        """Return a person with these stored values, or as another conversation has them already."""
        known = self._active.get(person)
        if known is None:
            known = ActivePerson(Variables("person", person, variables), Preferences.from_stored(preferences))
            self._active[person] = known
        return known

    async def load(self, person: str) -> ActivePerson:
        """Return a person, loaded if no conversation has them."""
        if (known := self._active.get(person)) is not None:
            return known
        variables = await self._repository.load_variables("person", person)
        return self.add(person, variables, await self._repository.load_variables(PREFERENCES_SCOPE, person))

    def forget(self, person: str) -> None:
        """Forget the variables and preferences of a person, whose stored data were deleted."""
        self._languages.set(person, None)
        if (known := self._active.get(person)) is not None:
            known.variables.values.clear()
            known.preferences = DEFAULT_PREFERENCES

    def forget_copies(self, person: str, values: Mapping[str, str], remaining: Mapping[str, str]) -> None:
        """Forget the variables of a person that were copies of `values`, and are not among the `remaining` stored ones."""
        if (known := self._active.get(person)) is None:
            return
        for name, text in values.items():
            if name not in remaining and known.variables.values.get(name) == text:
                del known.variables.values[name]

    async def get_preferences(self, person: str) -> Preferences:
        """Return the preferences of a person for the agent."""
        if (known := self._active.get(person)) is not None:
            return known.preferences
        return Preferences.from_stored(await self._repository.load_variables(PREFERENCES_SCOPE, person))

    async def set_preferences(self, person: str, preferences: Preferences) -> None:
        """Store the preferences of a person, for the next turn on."""
        await self._repository.save_variable(PREFERENCES_SCOPE, person, PREFERENCES_SCOPE, preferences.to_json())
        if (known := self._active.get(person)) is not None:
            known.preferences = preferences
        self._languages.set(person, preferences.language)
