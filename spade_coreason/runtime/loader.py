"""What the conversations of one agent hold in memory: loaded for the first turn, kept while they are active."""

from __future__ import annotations

import weakref

from ..domain import conversation
from ..domain.history import HeldTurn, HeldTurns, answered_text, read
from ..domain.identifiers import choose, possible_ids, session_id
from ..domain.preferences import PREFERENCES, Preferences
from ..domain.window import most_held
from ..exceptions import StoreError
from ..memory import Memory, Person, Variables
from ..storage import ConversationRow
from .context import Engine
from .mailbox import Lane


class Memories:
    """For the conversations of one agent. `StoreError` from whatever reads or writes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._persons: weakref.WeakValueDictionary[str, Person] = weakref.WeakValueDictionary()

    async def load(self, lane: Lane) -> Memory:
        """The conversation of a lane: from the database, or new."""
        engine = self._engine
        sender, thread = lane.key
        possible = possible_ids(thread, sender, engine.jid)
        stored = await engine.store.load(possible, sender, most_held(engine.policy.memory))
        owners = {name: row.owner for name, row in stored.rows.items()}
        name = choose(possible, sender, owners | engine.lanes.owners(possible))
        if name is None:
            raise StoreError(f"every id for the thread {thread!r} of {sender} belongs to others")
        engine.lanes.name(lane, name)
        # At once after the look-up: what is written behind it finds the person here.
        person = self._persons.get(sender)
        if person is None:
            person = Person(Variables("person", sender, stored.person), Preferences.of(stored.preferences))
            self._persons[sender] = person
        row = stored.rows.get(name)
        if row is None:
            row = await self._begin(name, sender)
        variables = Variables("conversation", name, stored.variables)
        turns = HeldTurns([HeldTurn(text) for text in stored.history])
        memory = Memory(row, turns, variables, person)
        memory.row = engine.governance.pruned(row, memory)  # the policy may be another one than that of its last turn
        if newest := read(turns[-1:]):
            memory.last_answer = answered_text(newest[0]).strip()
        lane.memory = memory
        return memory

    async def _begin(self, name: str, owner: str) -> ConversationRow:
        engine = self._engine
        session = str(session_id(engine.jid, owner, name))
        life = conversation.begin(engine.clock())
        limit = engine.policy.rules.max_interactions
        row = ConversationRow(engine.store.new_conversation_row(), name, owner, session, life, limit)
        # What the agent remembers under this id stays its owner's, also if this turn never ends.
        await engine.store.save_conversation(row)
        engine.ends.begun(name, life.last_interaction)
        return row

    def row_now(self, row: ConversationRow) -> ConversationRow:
        """A conversation as it is, which may not be stored yet."""
        lane = self._engine.lanes.named(row.conversation_id)
        return lane.memory.row if lane is not None and lane.memory is not None else row

    async def preferences(self, owner: str) -> Preferences:
        """What somebody (a bare JID) prefers of the agent."""
        person = self._persons.get(owner)
        if person is not None:
            return person.preferences
        return Preferences.of(await self._engine.store.variables(PREFERENCES, owner))

    async def prefer(self, owner: str, preferences: Preferences) -> None:
        """Keeps what somebody prefers; it holds from the next turn on."""
        await self._engine.store.save_variable(PREFERENCES, owner, PREFERENCES, preferences.to_json())
        if (person := self._persons.get(owner)) is not None:
            person.preferences = preferences
