"""Conversations in memory: loaded from the database for the first turn, and held there while they are active."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ...domain import conversation
from ...domain.history import RecentTurns, StoredTurn, parse_turns, reply_text
from ...domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_session_id
from ...domain.memory_strategies import max_cached_turns
from ...domain.messages import InboundRequest
from ...domain.policy import Rules
from ...exceptions import StoreError
from ...memory import ActiveConversation, ActivePerson, HistoryWindows, Variables
from ...storage import SHARED_SCOPE, AgentRepository, StoredConversation
from ..mailboxes.conversation_cache import ConversationCache
from ..mailboxes.mailbox import Mailbox
from .expiry import ConversationExpiry
from .persons import Persons


class ConversationLoader:
    """The loader of one agent's conversations. Methods that read or write raise `StoreError`."""

    def __init__(
        self,
        repository: AgentRepository,
        conversations: ConversationCache,
        expiry: ConversationExpiry,
        history_windows: HistoryWindows,
        persons: Persons,
        rules: Rules,
        clock: Callable[[], datetime],
    ) -> None:
        self._repository = repository
        self._conversations = conversations
        self._expiry = expiry
        self._history_windows = history_windows
        self.persons = persons
        self._max_interactions = rules.max_interactions
        self._max_turns = max_cached_turns(history_windows.policy)
        self._clock = clock
        self._shared: Variables | None = None
        self.cuts = 0
        """The number of deletions of turns. A conversation that is being loaded at one is loaded again."""

    async def load(self, mailbox: Mailbox) -> ActiveConversation:
        """Load the conversation of a mailbox from the database, or create it."""
        repository, conversations, cuts = self._repository, self._conversations, self.cuts
        sender, thread = mailbox.key
        candidates = candidate_conversation_ids(thread, sender, repository.agent)
        stored = await repository.load(candidates, sender, self._max_turns)
        owners = {conversation_id: record.owner for conversation_id, record in stored.conversations.items()}
        conversation_id = choose_conversation_id(candidates, sender, owners | conversations.find_owners(candidates))
        if conversation_id is None:
            raise StoreError(f"no free conversation id for the thread {thread!r} of {sender}")
        conversations.assign(mailbox, conversation_id)
        # Without an await after the query, so that each later write of preferences finds the person here.
        person = self.persons.add(sender, stored.person_variables, stored.preferences)
        record = stored.conversations.get(conversation_id)
        if record is None:
            record = self._create(conversation_id, sender)
        variables = Variables("conversation", conversation_id, stored.conversation_variables)
        turns = RecentTurns([StoredTurn(text) for text in stored.history])
        active = ActiveConversation(record, turns, variables, person, await self._load_shared())
        if self.cuts != cuts:
            return await self.load(mailbox)
        # The policy may have changed since the last turn of the conversation.
        active.record = self._history_windows.with_current_window(record, active)
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
        active.root_person = await self.persons.load(person)
        return active.root_person

    async def _load_shared(self) -> Variables:
        """Load the variables that everybody shares, once for all conversations."""
        if self._shared is None:
            jid = self._repository.agent
            values = await self._repository.load_variables(SHARED_SCOPE, jid)
            self._shared = self._shared or Variables(SHARED_SCOPE, jid, values)  # another conversation may have been faster
        return self._shared

    def _create(self, conversation_id: str, owner: str) -> StoredConversation:
        repository, status = self._repository, conversation.new_status(self._clock())
        session_id = str(derive_session_id(repository.agent, owner, conversation_id))
        row = repository.database.row_ids.next()
        record = StoredConversation(row, conversation_id, owner, session_id, status, self._max_interactions)
        # Before the turn, so that variables stored under this id belong to the owner even if the turn never ends: what is
        # written later is stored later, or in the same transaction. The end of the turn writes the conversation again.
        repository.save_conversation(record)
        self._expiry.on_activity(conversation_id, status.last_interaction)
        return record

    def current_record(self, record: StoredConversation) -> StoredConversation:
        """Return the newest record of a conversation: the one in memory, which may not be stored yet, or `record`."""
        mailbox = self._conversations.find(record.conversation_id)
        return mailbox.active.record if mailbox is not None and mailbox.active is not None else record
