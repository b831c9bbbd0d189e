"""What lasts of one agent: its conversations with their turns and variables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Row, Select, func, select, union, update

from ..contracts import ConversationState
from ..contracts.base import utc_now
from ..domain.identifiers import choose_conversation_id
from ..domain.preferences import PREFERENCES
from ..exceptions import StoreError
from .audit import AuditTrail
from .database import Database, QueryGenerator
from .erasure import PERSON_SCOPES, REFUSED_SCOPE, delete_everything, delete_person_copies, delete_refusal
from .inbox import Inbox
from .knowledge import KnowledgeRepository
from .records import (
    ConversationColumns,
    DeletionReport,
    LoadedConversation,
    StoredConversation,
    conversation_columns,
    conversation_from_row,
)
from .retention import RetentionRepository
from .schema import audit, conversations, from_micros, inbox, interactions, shelves, to_micros, variables
from .statements import FIND_CONVERSATIONS, LOAD_HISTORY, LOAD_VARIABLES, MAX_CANDIDATE_IDS, SAVE_CONVERSATION, SAVE_VARIABLE

_CONVERSATION_PAGE = 50  # are looked through for a turn
_TURN_PAGE = 500
_AGENT_SCOPE = "agent"  # the scope of what is neither a person's nor a conversation's


async def list_stored_agents(database: Database) -> list[str]:
    """The agents (bare JIDs) of whom anything is kept but requests, in alphabetical order."""
    tables = (conversations, variables, shelves, audit)
    found = union(*(select(table.c.agent) for table in tables)).order_by("agent")
    return await database.read(lambda connection: list(connection.execute(found).scalars()))


class AgentRepository:
    """The view of one agent (a bare JID) on the database."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self.agent = agent
        self.inbox = Inbox(database, agent)
        """The requests of the agent, in the same database."""
        self.audit_trail = AuditTrail(database, agent)
        """What the agent audited, in the same database."""

    @property
    def is_failing(self) -> bool:
        """Whether nothing can be stored at the moment."""
        return self._database.is_failing

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be stored at the moment; None while it can."""
        return self._database.failure

    # Conversations

    def next_conversation_row_id(self) -> int:
        """An id for a conversation that is new."""
        return self._database.next_id("conversations")

    def save_conversation(self, record: StoredConversation) -> asyncio.Future[bool]:
        """Stores a conversation; the future is done when it is durable."""
        return self._database.submit([(SAVE_CONVERSATION, conversation_columns(self.agent, record))])

    async def find_conversations(self, ids: Iterable[str]) -> dict[str, StoredConversation]:
        """Those of the conversations that exist, by their ids."""
        rows = await self._load_conversations(
            self._select_conversations().where(conversations.c.conversation_id.in_(list(ids)))
        )
        return {row.conversation_id: row for row in rows}

    def load(self, candidate_ids: Sequence[str], sender: str, max_turns: int) -> asyncio.Future[LoadedConversation]:
        """What a message of `sender` needs, at most `max_turns` of its history. `candidate_ids` are up to three ids."""
        ids = [*candidate_ids, *[candidate_ids[0]] * (MAX_CANDIDATE_IDS - len(candidate_ids))]

        def questions() -> QueryGenerator[LoadedConversation]:
            rows: dict[str, StoredConversation] = {}
            for found in (yield FIND_CONVERSATIONS, (self.agent, *ids)):
                row = conversation_from_row(ConversationColumns(*found))
                rows[row.conversation_id] = row
            name = choose_conversation_id(candidate_ids, sender, {name: row.owner for name, row in rows.items()})
            own = rows.get(name) if name is not None else None
            history: list[str] = []
            values: dict[str, str] = {}
            if own is not None:
                turns = min(max_turns, own.turns - own.window_start + 1)
                if turns > 0:
                    history = [body for (body,) in (yield LOAD_HISTORY, (own.id, turns))][::-1]
                if own.turns:
                    values = dict((yield LOAD_VARIABLES, (self.agent, "conversation", own.conversation_id)))
            person = dict((yield LOAD_VARIABLES, (self.agent, "person", sender)))
            preferences = dict((yield LOAD_VARIABLES, (self.agent, PREFERENCES, sender)))
            return LoadedConversation(rows, history, values, person, preferences)

        return self._database.run_queries(questions())

    async def list_conversations(
        self, owner: str | None = None, state: ConversationState | None = None, limit: int = 100, id_prefix: str = ""
    ) -> list[StoredConversation]:
        """Conversations, the newest first; their ids `id_prefix` so."""
        query = self._select_conversations().order_by(conversations.c.last_interaction.desc()).limit(limit)
        if owner is not None:
            query = query.where(conversations.c.owner == owner)
        if state is not None:
            query = query.where(conversations.c.state == str(state))
        if id_prefix:
            query = query.where(func.substr(conversations.c.conversation_id, 1, len(id_prefix)) == id_prefix)
        return await self._load_conversations(query)

    async def list_active(self) -> dict[str, datetime]:
        """The active conversations, and when something was said last in each: first in the one that is silent for longest."""
        query = select(conversations.c.conversation_id, conversations.c.last_interaction).where(*self._active_conditions())
        rows = await self._fetch_rows(query.order_by(conversations.c.last_interaction))
        return {row.conversation_id: from_micros(row.last_interaction) for row in rows}

    @property
    def retention(self) -> RetentionRepository:
        """What has been kept for long enough, in the same database."""
        return RetentionRepository(self._database, self.agent)

    @property
    def knowledge(self) -> KnowledgeRepository:
        """What the agent knows, in the same database."""
        return KnowledgeRepository(self._database, self.agent)

    async def list_people(self) -> list[str]:
        """Everybody (bare JIDs) of whom there is anything."""
        owners = select(conversations.c.owner).where(conversations.c.agent == self.agent)
        holders = select(variables.c.holder).where(variables.c.agent == self.agent, variables.c.scope.in_(PERSON_SCOPES))
        senders = select(inbox.c.sender).where(inbox.c.agent == self.agent, inbox.c.sender != "")
        known = select(shelves.c.holder).where(shelves.c.agent == self.agent, shelves.c.scope == "person")
        audited = select(audit.c.person).where(audit.c.agent == self.agent, audit.c.person != "")
        return list(await self._fetch_scalars(owners.union(holders, senders, known, audited)))

    async def count_conversations(self) -> tuple[int, int]:
        """How many conversations are active, and how many there are."""
        is_own, is_active = self._active_conditions()
        counts: Any = select(func.count().filter(is_active).label("active"), func.count().label("kept")).where(is_own)
        [found] = await self._fetch_rows(counts)
        return found.active, found.kept

    async def delete_conversation(self, record: StoredConversation, *, with_copies: bool = False) -> DeletionReport:
        """Deletes a conversation with everything under its id; `with_copies`, what its owner has the same of it too."""

        def work(connection: Connection) -> DeletionReport:
            if with_copies:
                delete_person_copies(connection, self.agent, record)
            return delete_everything(connection, self.agent, [record])

        return await self._database.erase(work)

    async def erase_person(self, person: str) -> DeletionReport:
        """Deletes everything about a person (a bare JID): conversations, turns, variables, and requests that wait."""
        rows = await self._load_conversations(self._select_conversations().where(conversations.c.owner == person))
        return await self._database.erase(lambda connection: delete_everything(connection, self.agent, rows, person))

    # Turns and variables

    async def find_conversation_id(self, interaction_id: str, owner: str) -> str | None:
        """In which of the owner's conversations a turn is; None where it is in none. Looked for as by `save_feedback`."""
        found = await self._find_turn(interaction_id, owner)
        return str(found.conversation_id) if found is not None else None

    async def _find_turn(self, interaction_id: str, owner: str) -> Row[Any] | None:
        """Without an index: it would cost every turn a third of its writing, for what is seldom asked."""
        theirs = select(conversations.c.id).where(conversations.c.agent == self.agent, conversations.c.owner == owner)
        page = theirs.order_by(conversations.c.id.desc()).limit(_CONVERSATION_PAGE)
        turn = (
            select(interactions.c.id, interactions.c.body, conversations.c.conversation_id)
            .join(conversations, conversations.c.id == interactions.c.conversation)
            .where(interactions.c.interaction_id == interaction_id)
        )
        among = await self._fetch_scalars(page)
        while among:
            found = await self._fetch_rows(turn.where(interactions.c.conversation.in_(among)))
            if found:
                return found[0]
            among = await self._fetch_scalars(page.where(conversations.c.id < among[-1]))
        return None

    async def save_feedback(
        self, interaction_id: str, owner: str, reactions: Sequence[str], nickname: str = ""
    ) -> tuple[str, str] | None:
        """Records what the owner of a turn's conversation feels about it; none takes back what they felt before.

        In a room it is one of many who feels so: `meta["feedback_of"]` has it by nickname, `meta["feedback"]` that of all.
        The conversation's id and the turn as JSON; None where no such turn is theirs. Looked for in all their conversations,
        the latest first, some at a time, so that other reading has its turn.
        """
        row = await self._find_turn(interaction_id, owner)
        if row is None:
            return None
        turn = json.loads(row.body)
        meta = turn.setdefault("meta", {})
        if nickname:
            meta["feedback_of"] = felt = {**meta.get("feedback_of", {}), nickname: list(reactions)}
            reactions = [reaction for theirs in felt.values() for reaction in theirs]
        meta["feedback"] = list(reactions)
        body = json.dumps(turn, ensure_ascii=False)
        changed = update(interactions).where(interactions.c.id == row.id).values(body=body)
        await self._database.write(lambda connection: connection.execute(changed))
        return str(row.conversation_id), body

    async def load_history(self, conversation: int, limit: int, offset: int = 0) -> list[str]:
        """The newest `limit` turns, `offset` turns back, as JSON, in chronological order.

        Costs what it gives, however far back: turns are numbered without gaps, and only the oldest are ever deleted.
        """
        newest = select(conversations.c.turns - offset).where(conversations.c.id == conversation).scalar_subquery()
        query = (
            select(interactions.c.body)
            .where(
                interactions.c.conversation == conversation,
                interactions.c.number <= newest,
                interactions.c.number > newest - limit,
            )
            .order_by(interactions.c.number)
        )
        return list(await self._fetch_scalars(query))

    async def iterate_turns(self, conversation: int) -> AsyncIterator[str]:
        """Every turn as JSON, oldest first, also those that end meanwhile."""
        after = 0
        while True:
            page = (
                select(interactions.c.number, interactions.c.body)
                .where(interactions.c.conversation == conversation, interactions.c.number > after)
                .order_by(interactions.c.number)
                .limit(_TURN_PAGE)
            )
            rows = await self._fetch_rows(page)
            for row in rows:
                yield row.body
            if len(rows) < _TURN_PAGE:
                return
            after = rows[-1].number

    async def load_turns(self, conversation: int, first: int, last: int) -> list[tuple[int, str]]:
        """Those turns of a conversation that are stored, from one number to another: number and JSON."""
        query = (
            select(interactions.c.number, interactions.c.body)
            .where(interactions.c.conversation == conversation, interactions.c.number.between(first, last))
            .order_by(interactions.c.number)
        )
        return [(row.number, row.body) for row in await self._fetch_rows(query)]

    async def load_variables(self, scope: str, holder: str) -> dict[str, str]:
        """All variables of a holder, as JSON texts."""
        query = select(variables.c.name, variables.c.value).where(
            variables.c.agent == self.agent, variables.c.scope == scope, variables.c.holder == holder
        )
        return {row.name: row.value for row in await self._fetch_rows(query)}

    async def load_variable_of_all(self, scope: str, name: str) -> dict[str, str]:
        """The variables of one name of all holders, as JSON texts."""
        query = select(variables.c.holder, variables.c.value).where(
            variables.c.agent == self.agent, variables.c.scope == scope, variables.c.name == name
        )
        return {row.holder: row.value for row in await self._fetch_rows(query)}

    def save_variable(self, scope: str, holder: str, name: str, value: str) -> asyncio.Future[bool]:
        """Stores one variable (JSON) beside the turns; the future is done when it is durable."""
        return self._database.submit([(SAVE_VARIABLE, (self.agent, scope, holder, name, value, to_micros(utc_now())))])

    # Who was refused

    async def list_refused(self) -> list[str]:
        """Who (bare JIDs) was told that they may not talk to the agent, the latest last."""
        query = select(variables.c.holder).where(variables.c.agent == self.agent, variables.c.scope == REFUSED_SCOPE)
        return list(await self._fetch_scalars(query.order_by(variables.c.updated_at)))

    def save_refusal(self, person: str) -> asyncio.Future[bool]:
        """Keeps that somebody was; the future is done when it is durable."""
        return self.save_variable(REFUSED_SCOPE, person, REFUSED_SCOPE, "true")

    def delete_refusal(self, person: str) -> asyncio.Future[None]:
        """Forgets it."""
        return self._database.run(lambda connection: delete_refusal(connection, self.agent, person))

    # What the agent itself keeps, on whichever server

    async def load_agent_value(self, name: str) -> Any:
        """A value (JSON) that the platform keeps of this agent; None where it keeps none."""
        values = await self.load_variables(_AGENT_SCOPE, self.agent)
        return json.loads(values[name]) if name in values else None

    def save_agent_value(self, name: str, value: Any) -> asyncio.Future[bool]:
        """Keeps such a value; the future is done when it is durable."""
        return self.save_variable(_AGENT_SCOPE, self.agent, name, json.dumps(value))

    # Helpers

    def _select_conversations(self) -> Select[Any]:
        return select(conversations).where(conversations.c.agent == self.agent)

    def _active_conditions(self) -> tuple[Any, Any]:
        return conversations.c.agent == self.agent, conversations.c.state == str(ConversationState.ACTIVE)

    async def _load_conversations(self, query: Select[Any]) -> list[StoredConversation]:
        return [conversation_from_row(row) for row in await self._fetch_rows(query)]

    async def _fetch_rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return await self._database.read(lambda connection: connection.execute(query).all())

    async def _fetch_scalars(self, query: Select[Any] | CompoundSelect[Any]) -> Sequence[Any]:
        return await self._database.read(lambda connection: connection.execute(query).scalars().all())
