"""What the conversations of one agent hold in memory: loaded for the first turn, kept while they are active."""

from __future__ import annotations

import weakref

from ..domain import conversation
from ..domain.history import RecentTurns, StoredTurn, parse_turns, reply_text
from ..domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_session_id
from ..domain.preferences import PREFERENCES, Preferences
from ..domain.window import max_cached_turns
from ..exceptions import StoreError
from ..memory import ActiveConversation, ActivePerson, Variables
from ..storage import StoredConversation
from .mailbox import Mailbox
from .turn_services import TurnServices


class ConversationLoader:
    """For the conversations of one agent. `StoreError` from whatever reads or writes."""

    def __init__(self, services: TurnServices) -> None:
        self._services = services
        self._persons: weakref.WeakValueDictionary[str, ActivePerson] = weakref.WeakValueDictionary()

    async def load(self, mailbox: Mailbox) -> ActiveConversation:
        """The conversation of a lane: from the database, or new."""
        engine = self._services
        sender, thread = mailbox.key
        possible = candidate_conversation_ids(thread, sender, engine.jid)
        stored = await engine.store.load(possible, sender, max_cached_turns(engine.policy.memory))
        owners = {name: row.owner for name, row in stored.conversations.items()}
        name = choose_conversation_id(possible, sender, owners | engine.mailboxes.find_owners(possible))
        if name is None:
            raise StoreError(f"every id for the thread {thread!r} of {sender} belongs to others")
        engine.mailboxes.assign_conversation(mailbox, name)
        # At once after the look-up: what is written behind it finds the person here.
        person = self._persons.get(sender)
        if person is None:
            person = ActivePerson(
                Variables("person", sender, stored.person_variables), Preferences.from_stored(stored.preferences)
            )
            self._persons[sender] = person
        row = stored.conversations.get(name)
        if row is None:
            row = await self._create(name, sender)
        variables = Variables("conversation", name, stored.conversation_variables)
        turns = RecentTurns([StoredTurn(text) for text in stored.history])
        memory = ActiveConversation(row, turns, variables, person)
        memory.record = engine.history_window.with_current_window(
            row, memory
        )  # the policy may be another one than that of its last turn
        if newest := parse_turns(turns[-1:]):
            memory.last_reply = reply_text(newest[0]).strip()
        mailbox.conversation = memory
        return memory

    async def _create(self, conversation_id: str, owner: str) -> StoredConversation:
        engine = self._services
        session = str(derive_session_id(engine.jid, owner, conversation_id))
        life = conversation.new_status(engine.clock())
        limit = engine.policy.rules.max_interactions
        row = StoredConversation(engine.store.next_conversation_row_id(), conversation_id, owner, session, life, limit)
        # What the agent remembers under this id stays its owner's, also if this turn never ends.
        await engine.store.save_conversation(row)
        engine.expiry.on_activity(conversation_id, life.last_interaction)
        return row

    def current_record(self, record: StoredConversation) -> StoredConversation:
        """A conversation as it is, which may not be stored yet."""
        lane = self._services.mailboxes.find_by_conversation(record.conversation_id)
        return lane.conversation.record if lane is not None and lane.conversation is not None else record

    async def get_preferences(self, owner: str) -> Preferences:
        """What somebody (a bare JID) prefers of the agent."""
        person = self._persons.get(owner)
        if person is not None:
            return person.preferences
        return Preferences.from_stored(await self._services.store.load_variables(PREFERENCES, owner))

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Keeps what somebody prefers; it holds from the next turn on."""
        await self._services.store.save_variable(PREFERENCES, owner, PREFERENCES, preferences.to_json())
        if (person := self._persons.get(owner)) is not None:
            person.preferences = preferences
