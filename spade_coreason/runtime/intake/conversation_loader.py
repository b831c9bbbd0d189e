"""Conversations in memory: loaded from the database for the first turn, and held there while they are active."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from ...domain import conversation
from ...domain.history import RecentTurns, StoredTurn, parse_turns, reply_text
from ...domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_session_id
from ...domain.memory_strategies import max_cached_turns
from ...domain.messages import InboundRequest
from ...domain.preferences import DEFAULT_PREFERENCES, PREFERENCES_SCOPE, Preferences
from ...exceptions import StoreError
from ...memory import ActiveConversation, ActivePerson, Variables
from ...storage import SHARED_SCOPE, StoredConversation
from ..languages import PersonLanguages
from ..turns.turn_services import TurnServices
from .mailbox import Mailbox


class ConversationLoader:
    """The loader of one agent's conversations and preferences. Methods that read or write raise `StoreError`."""

    def __init__(self, services: TurnServices, languages: PersonLanguages) -> None:
        self._services = services
        self.languages = languages
        self._persons: weakref.WeakValueDictionary[str, ActivePerson] = weakref.WeakValueDictionary()
        self._shared: Variables | None = None
        self.cuts = 0
        """The number of deletions of turns. A conversation that is being loaded at one is loaded again."""

    async def load(self, mailbox: Mailbox) -> ActiveConversation:
        """Load the conversation of a mailbox from the database, or create it."""
        services, cuts = self._services, self.cuts
        sender, thread = mailbox.key
        candidates = candidate_conversation_ids(thread, sender, services.jid)
        stored = await services.repository.load(candidates, sender, max_cached_turns(services.policy.memory))
        owners = {conversation_id: record.owner for conversation_id, record in stored.conversations.items()}
        conversation_id = choose_conversation_id(
            candidates, sender, owners | services.mailboxes.conversations.find_owners(candidates)
        )
        if conversation_id is None:
            raise StoreError(f"no free conversation id for the thread {thread!r} of {sender}")
        services.mailboxes.conversations.assign(mailbox, conversation_id)
        # Without an await after the query, so that each later write of preferences finds the person here.
        person = self._persons.get(sender)
        if person is None:
            person = ActivePerson(
                Variables("person", sender, stored.person_variables), Preferences.from_stored(stored.preferences)
            )
            self._persons[sender] = person
        record = stored.conversations.get(conversation_id)
        if record is None:
            record = self._create(conversation_id, sender)
        variables = Variables("conversation", conversation_id, stored.conversation_variables)
        turns = RecentTurns([StoredTurn(text) for text in stored.history])
        active = ActiveConversation(record, turns, variables, person, await self._load_shared())
        if self.cuts != cuts:
            return await self.load(mailbox)
        # The policy may have changed since the last turn of the conversation.
        active.record = services.history_windows.with_current_window(record, active)
        if newest := parse_turns(turns[-1:]):
            active.last_reply = reply_text(newest[0]).strip()
        mailbox.active = active
        return active

    async def load_person(self, active: ActiveConversation, incoming: InboundRequest) -> ActivePerson | None:
        """Return the person whose variables a request may use. None if the agent that passed it on is not trusted.

        An agent asks for many people, whose variables must not mix.
        """
        person = incoming.person
        if person == active.record.owner:
            return active.person
        if not person:
            return None
        if active.root_person is not None and active.root_person.variables.holder == person:
            return active.root_person
        known = self._persons.get(person)
        if known is None:
            repository = self._services.repository
            variables = await repository.load_variables("person", person)
            preferences = Preferences.from_stored(await repository.load_variables(PREFERENCES_SCOPE, person))
            loaded = ActivePerson(Variables("person", person, variables), preferences)
            known = self._persons.setdefault(person, loaded)  # another turn may have loaded it meanwhile
        active.root_person = known
        return known

    async def _load_shared(self) -> Variables:
        """Load the variables that everybody shares, once for all conversations."""
        if self._shared is None:
            jid = self._services.jid
            values = await self._services.repository.load_variables(SHARED_SCOPE, jid)
            self._shared = self._shared or Variables(SHARED_SCOPE, jid, values)  # another conversation may have been faster
        return self._shared

    def _create(self, conversation_id: str, owner: str) -> StoredConversation:
        services = self._services
        session_id = str(derive_session_id(services.jid, owner, conversation_id))
        status = conversation.new_status(services.clock())
        limit = services.policy.rules.max_interactions
        record = StoredConversation(
            services.repository.database.row_ids.next(), conversation_id, owner, session_id, status, limit
        )
        # Before the turn, so that variables stored under this id belong to the owner even if the turn never ends: what is
        # written later is stored later, or in the same transaction. The end of the turn writes the conversation again.
        services.repository.save_conversation(record)
        services.expiry.on_activity(conversation_id, status.last_interaction)
        return record

    def current_record(self, record: StoredConversation) -> StoredConversation:
        """Return the newest record of a conversation: the one in memory, which may not be stored yet, or `record`."""
        mailbox = self._services.mailboxes.conversations.find(record.conversation_id)
        return mailbox.active.record if mailbox is not None and mailbox.active is not None else record

    def forget_person(self, owner: str) -> None:
        """Forget the variables and preferences of a person (a bare JID), whose stored data were deleted."""
        self.languages.set(owner, None)
        if (person := self._persons.get(owner)) is not None:
            person.variables.values.clear()
            person.preferences = DEFAULT_PREFERENCES

    def forget_copies(self, owner: str, values: Mapping[str, str], remaining: Mapping[str, str]) -> None:
        """Forget the variables of a person that were copies of `values`, and are not among the `remaining` stored ones."""
        if (person := self._persons.get(owner)) is None:
            return
        for name, text in values.items():
            if name not in remaining and person.variables.values.get(name) == text:
                del person.variables.values[name]

    async def get_preferences(self, owner: str) -> Preferences:
        """Return the preferences of a person (a bare JID) for the agent."""
        person = self._persons.get(owner)
        if person is not None:
            return person.preferences
        return Preferences.from_stored(await self._services.repository.load_variables(PREFERENCES_SCOPE, owner))

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Store the preferences of a person (a bare JID), for the next turn on."""
        await self._services.repository.save_variable(PREFERENCES_SCOPE, owner, PREFERENCES_SCOPE, preferences.to_json())
        if (person := self._persons.get(owner)) is not None:
            person.preferences = preferences
        self.languages.set(owner, preferences.language)
