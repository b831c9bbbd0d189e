"""The repository of one agent: conversations with their turns and variables."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from ..contracts import ConversationState
from ..contracts.times import utc_now
from ..domain.callers import caller_address
from ..domain.identifiers import choose_conversation_id
from ..domain.preferences import PREFERENCES_SCOPE
from . import kept
from .audit import AuditTrail
from .backends.database import Database
from .backends.group_commit import Commit, QueryGenerator
from .backends.statements import (
    FIND_CONVERSATIONS,
    FIND_DUE,
    LIST_ACTIVE,
    LOAD_HISTORY,
    LOAD_SCOPES,
    LOAD_VARIABLES,
    MAX_CANDIDATE_IDS,
    OPENING_SCOPES,
    SAVE_CONVERSATION,
    SAVE_VARIABLE,
)
from .doors.api_keys import KeyRepository, find_keys, withdraw_keys
from .doors.callers import CallerRepository
from .erasure import (
    delete_everything,
    delete_person_copies,
    delete_refusal,
)
from .inbox import Inbox
from .incidents import IncidentRepository
from .knowledge import KnowledgeRepository
from .people import (
    CutReport,
    FoundConversation,
    FoundTurn,
    TimeSpans,
    cut_turns,
    load_variables_of,
)
from .questions import QuestionRepository
from .records import (
    ACCESS_SCOPE,
    ADMITTED,
    AGENT_SCOPE,
    MESSAGE_COUNT_SCOPES,
    PAUSED,
    PLATFORM_SCOPE,
    REFUSED_SCOPE,
    ErasureReport,
    LoadedConversation,
    OwnTurn,
    StoredAgent,
    StoredConversation,
    conversation_columns,
    conversation_from_row,
    from_micros,
    from_micros_or_none,
    to_micros,
)
from .retention import RetentionRepository
from .row_repository import RowRepository
from .schema import (
    ERASED_TURN,
    NOTIFICATION,
    QUESTION,
    SCHEDULE,
    ConversationRow,
    conversations,
    interactions,
    variables,
)
from .tasks import TaskQueue
from .topics import TopicRepository

_CONVERSATION_PAGE = 50
"""The number of conversations that one query searches for a turn."""
_TURN_PAGE = 500


async def list_stored_agents(database: Database) -> list[str]:
    """Return the agents (bare JIDs) with any stored data besides requests, in alphabetical order. The platform is none."""
    return await database.fetch_scalars(kept.select_agents())


class ConversationRows(RowRepository[ConversationRow]):
    """The conversations of one agent (a bare JID), or of all."""

    table, row, ident, time = conversations, ConversationRow, "conversation_id", "last_interaction"

    async def find_last(self, ident: str, **values: object) -> list[ConversationRow]:
        """Return the last row of a page by its id. The id of a conversation may begin that of another one."""
        return await self.load(self._has(ident), limit=2, **values)


class TurnRepository:
    """The stored turns of one agent (a bare JID), by the row ids of their conversations."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    async def find_conversation_id(self, interaction_id: str, owner: str) -> str | None:
        """Return the id of the owner's conversation that contains a turn; None if there is none."""
        row = await self._find_turn(interaction_id, owner)
        return str(row.conversation_id) if row is not None else None

    async def _find_turn(self, interaction_id: str, owner: str, *, is_background: bool = False) -> Row[Any] | None:
        """Search all conversations of the owner, the latest first. They are searched in pages, so that other reads can run.

        Interaction ids have no index: it would add a third to the writes of every turn, for a rare query.
        """
        owned = select(conversations.c.id).where(conversations.c.agent == self._agent, conversations.c.owner == owner)
        page = owned.order_by(conversations.c.id.desc()).limit(_CONVERSATION_PAGE)
        turn = (
            select(interactions.c.id, interactions.c.body, conversations.c.conversation_id)
            .join(conversations, conversations.c.id == interactions.c.conversation)
            .where(interactions.c.interaction_id == interaction_id)
        )
        page_ids = await self._database.fetch_scalars(page, is_background=is_background)
        while page_ids:
            rows: Sequence[Row[Any]] = await self._database.fetch(
                turn.where(interactions.c.conversation.in_(page_ids)), is_background=is_background
            )
            if rows:
                return rows[0]
            page_ids = await self._database.fetch_scalars(
                page.where(conversations.c.id < page_ids[-1]), is_background=is_background
            )
        return None

    async def save_feedback(
        self, interaction_id: str, owner: str, reactions: Sequence[str], nickname: str = ""
    ) -> tuple[str, str] | None:
        """Store the reactions of the owner of a conversation to one of its turns.

        They replace earlier reactions; an empty sequence removes them. In a room, `nickname` names the occupant:
        `meta["feedback_of"]` holds the reactions by nickname, and `meta["feedback"]` those of all occupants.

        Return the id of the conversation and the turn as JSON, or None if the owner has no such turn.
        """
        row = await self._find_turn(interaction_id, owner, is_background=True)
        if row is None:
            return None
        turn = json.loads(row.body)
        meta = turn.setdefault("meta", {})
        if nickname:
            meta["feedback_of"] = by_nickname = {**meta.get("feedback_of", {}), nickname: list(reactions)}
            reactions = [reaction for others in by_nickname.values() for reaction in others]
        meta["feedback"] = list(reactions)
        body = json.dumps(turn, ensure_ascii=False)
        # Not if the turn was erased meanwhile.
        is_there = interactions.c.id == row.id, interactions.c.interaction_id == interaction_id
        statement = update(interactions).where(*is_there).values(body=body)
        await self._database.execute(statement)
        return str(row.conversation_id), body

    async def load_history(self, conversation: int, limit: int, offset: int = 0) -> list[str]:
        """Return the newest `limit` turns as JSON in chronological order, after skipping the `offset` newest.

        The cost does not depend on `offset`: turns are numbered without gaps. Only the oldest are ever deleted; others that are
        erased count, and are left out.
        """
        newest = select(conversations.c.turns - offset).where(conversations.c.id == conversation).scalar_subquery()
        query = _select_turns(conversation).where(interactions.c.number <= newest, interactions.c.number > newest - limit)
        return [row.body for row in await self._database.fetch(query)]

    async def list_own(
        self, owner: str, id_prefix: str, since: datetime, limit: int, before_row: int | None = None, ids: Sequence[str] = ()
    ) -> list[OwnTurn]:
        """Return at most `limit` turns in the conversations of an owner (a bare JID), those that ended last first.

        `id_prefix` is the beginning of the ids of these conversations, and `ids`, if there are any, name them. Turns that began
        before `since` are left out, and those from the row `before_row` on.
        """
        query = (
            select(interactions.c.id, conversations.c.conversation_id, interactions.c.body)
            .join(conversations, conversations.c.id == interactions.c.conversation)
            .where(*self._own(owner, id_prefix, since, ids))
            # Without the sums, the database could read all turns of the agent in their order.
            .order_by((interactions.c.id + 0).desc())
            .limit(limit)
        )
        if before_row is not None:
            query = query.where(interactions.c.id + 0 < before_row)
        return [OwnTurn._make(row) for row in await self._database.fetch(query)]

    async def count_own(self, owner: str, id_prefix: str, since: datetime, ids: Sequence[str] = ()) -> int:
        """Return the number of the turns that `list_own` finds."""
        query = (
            select(func.count())
            .select_from(interactions)
            .join(conversations, conversations.c.id == interactions.c.conversation)
            .where(*self._own(owner, id_prefix, since, ids))
        )
        [count] = await self._database.fetch_scalars(query)
        return int(count)

    def _own(self, owner: str, id_prefix: str, since: datetime, ids: Sequence[str]) -> list[Any]:
        is_own = conversations.c.agent == self._agent, conversations.c.owner == owner
        has_prefix = func.substr(conversations.c.conversation_id, 1, len(id_prefix)) == id_prefix
        is_recent = conversations.c.last_interaction >= to_micros(since), interactions.c.timestamp >= to_micros(since)
        conditions = [*is_own, has_prefix, *is_recent, interactions.c.body != ERASED_TURN]
        return [*conditions, conversations.c.conversation_id.in_(ids)] if ids else conditions

    async def iterate(self, conversation: int) -> AsyncIterator[str]:
        """Yield every turn as JSON, oldest first, including turns that end during the iteration."""
        after = 0
        while True:
            page = _select_turns(conversation).where(interactions.c.number > after).limit(_TURN_PAGE)
            rows = await self._database.fetch(page)
            for row in rows:
                yield row.body
            if len(rows) < _TURN_PAGE:
                return
            after = rows[-1].number

    async def load(self, conversation: int, first: int, last: int) -> list[tuple[int, str]]:
        """Return the stored turns of a conversation from number `first` to `last`: number and JSON."""
        query = _select_turns(conversation).where(interactions.c.number.between(first, last))
        return [(row.number, row.body) for row in await self._database.fetch(query)]


class AgentRepository:
    """The stored data of one agent (a bare JID).

    All methods see the data of this agent only. They raise StoreError if the database fails.
    """

    def __init__(self, database: Database, agent: str) -> None:
        self.database = database
        self.agent = agent
        self.turns = TurnRepository(database, agent)
        """The turns of the agent, in the same database."""
        self.inbox = Inbox(database, agent)
        """The requests of the agent, in the same database."""
        self.audit_trail = AuditTrail(database, agent)
        """The audit trail of the agent, in the same database."""
        self.incidents = IncidentRepository(database, agent)
        """The incidents of the agent, in the same database."""
        self.tasks = TaskQueue(database, agent)
        """The tasks of the agent, in the same database, of all kinds."""
        self.notifications = TaskQueue(database, agent, NOTIFICATION)
        self.schedules = TaskQueue(database, agent, SCHEDULE)
        self.due_times = TaskQueue(database, agent, QUESTION)
        """The due times of questions."""
        self.questions = QuestionRepository(database, agent)
        """The questions of the agent to people, in the same database."""
        self.callers = CallerRepository(database, agent)
        """The data that doors store of the callers of the agent, in the same database."""
        self.topics = TopicRepository(database, agent)
        """The topics of the agent, if it is a topic broker, in the same database."""
        self.knowledge = KnowledgeRepository(database, agent)
        """The knowledge of the agent, in the same database."""
        self.retention = RetentionRepository(database, agent)
        """The retention queries of the agent, in the same database."""

    # Opening

    async def load_agent(self) -> StoredAgent:
        """Load the stored data that the agent needs when it opens, all in one read."""

        def work(connection: Connection) -> StoredAgent:
            queries = self.database.backend.queries
            by_name: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
            for scope, holder, name, value in connection.exec_driver_sql(queries[LOAD_SCOPES], (self.agent, *OPENING_SCOPES)):
                by_name[scope, name][holder] = value
            rows = connection.exec_driver_sql(queries[LIST_ACTIVE], (self.agent, str(ConversationState.ACTIVE)))
            active = {row[0]: from_micros(row[1]) for row in rows}
            [(due, *has)] = connection.exec_driver_sql(queries[FIND_DUE], (self.agent,) * 5)
            return StoredAgent(self.agent, by_name, active, from_micros_or_none(due), *map(bool, has))

        return await self.database.read(work)

    # Conversations

    def save_conversation(self, record: StoredConversation) -> Commit[bool]:
        """Store a conversation. Its commit is done when it is durable."""
        return self.database.writes.submit([(SAVE_CONVERSATION, conversation_columns(self.agent, record))])

    async def find_conversations(self, ids: Iterable[str]) -> dict[str, StoredConversation]:
        """Return those of the conversations that exist, by id."""
        records = await self._load_conversations(
            self._select_conversations().where(conversations.c.conversation_id.in_(list(ids)))
        )
        return {record.conversation_id: record for record in records}

    def load(self, candidate_ids: Sequence[str], sender: str, max_turns: int) -> asyncio.Future[LoadedConversation]:
        """Load the stored data that a message of `sender` needs.

        `candidate_ids` are the ids that its conversation may have, at most three. `max_turns` limits the history.
        """
        ids = [*candidate_ids, *[candidate_ids[0]] * (MAX_CANDIDATE_IDS - len(candidate_ids))]

        def queries() -> QueryGenerator[LoadedConversation]:
            records: dict[str, StoredConversation] = {}
            for row in (yield FIND_CONVERSATIONS, (self.agent, *ids)):
                record = conversation_from_row(ConversationRow._make(row))
                records[record.conversation_id] = record
            own_id = choose_conversation_id(candidate_ids, sender, {id_: record.owner for id_, record in records.items()})
            own = records.get(own_id) if own_id is not None else None
            history: list[str] = []
            values: dict[str, str] = {}
            if own is not None:
                turns = min(max_turns, own.turns - own.window_start + 1)
                if turns > 0:
                    history = [body for (body,) in (yield LOAD_HISTORY, (own.id, turns))][::-1]
                if own.turns:
                    values = dict((yield LOAD_VARIABLES, (self.agent, "conversation", own.conversation_id)))
            person = dict((yield LOAD_VARIABLES, (self.agent, "person", sender)))
            preferences = dict((yield LOAD_VARIABLES, (self.agent, PREFERENCES_SCOPE, sender)))
            return LoadedConversation(records, history, values, person, preferences)

        return self.database.backend.run_queries(queries())

    async def list_conversations(self, owner: str | None = None, limit: int = 100) -> list[StoredConversation]:
        """Return at most `limit` conversations, the latest first."""
        query = self._select_conversations().order_by(conversations.c.last_interaction.desc()).limit(limit)
        return await self._load_conversations(query if owner is None else query.where(conversations.c.owner == owner))

    async def list_people(self) -> list[str]:
        """Return everyone (bare JIDs) about whom the agent stores anything."""
        return await self.database.fetch_scalars(kept.select_people(self.agent))

    async def load_shown(self, person: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows about a person (a bare JID) that an export shows, by table, the oldest first."""
        return await self.database.read(lambda connection: kept.load_shown(connection, self.agent, person))

    async def delete_conversation(self, record: StoredConversation, *, with_copies: bool = False) -> ErasureReport:
        """Delete a conversation with everything under its id.

        `with_copies` also deletes its owner's copies of its variables (see `delete_person_copies`), and what is due in it.
        """

        def work(connection: Connection) -> ErasureReport:
            if with_copies:
                delete_person_copies(connection, self.agent, record)
            return delete_everything(connection, self.agent, [record], with_due=with_copies)

        return await self.database.erase(work)

    async def cut_turns(self, conversation: FoundConversation, turns: Sequence[FoundTurn], spans: TimeSpans) -> CutReport:
        """Erase some of the found turns from a conversation of others; see `storage.people`."""
        return await self.database.erase(lambda connection: cut_turns(connection, conversation, turns, spans))

    async def load_variables_of(self, scope: str, holder: str, is_found: Callable[[int], bool]) -> dict[str, str]:
        """Return the variables of a holder as JSON texts, by name, that were stored at times (in microseconds) of a choice."""
        agent = self.agent
        return await self.database.read(lambda connection: load_variables_of(connection, agent, scope, holder, is_found))

    async def erase_person(self, person: str) -> ErasureReport:
        """Delete everything about a person (a bare JID): conversations, turns, variables, pending requests, knowledge,
        and incidents.

        Entries of the audit trail are erased; their hashes stay.
        """
        records = await self._load_conversations(self._select_conversations().where(conversations.c.owner == person))
        return await self.database.erase(lambda connection: delete_everything(connection, self.agent, records, person))

    # Variables

    async def load_variables(self, scope: str, holder: str) -> dict[str, str]:
        """Return all variables of a holder as JSON texts, by name."""
        query = select(variables).filter_by(agent=self.agent, scope=scope, holder=holder)
        return {row.name: row.value for row in await self.database.fetch(query)}

    def save_variable(self, scope: str, holder: str, name: str, value: str) -> Commit[bool]:
        """Store one variable (JSON) outside of a turn. Its commit is done when it is durable."""
        return self.database.writes.submit([(SAVE_VARIABLE, (self.agent, scope, holder, name, value, to_micros(utc_now())))])

    # Counts of the messages of a day

    def delete_message_counts(self, before: datetime) -> Commit[int]:
        """Delete the counts that were stored before a time."""
        statement = delete(variables).where(
            variables.c.agent == self.agent,
            variables.c.scope.in_(MESSAGE_COUNT_SCOPES.values()),
            variables.c.updated_at < to_micros(before),
        )
        return self.database.execute(statement)

    # Refused people

    def save_refusal(self, person: str) -> Commit[bool]:
        """Store that the agent has told a person so. Its commit is done when it is durable."""
        return self.save_variable(REFUSED_SCOPE, person, REFUSED_SCOPE, "true")

    def delete_refusal(self, person: str) -> Commit[None]:
        """Delete the mark of `save_refusal`. Its commit is done when that is durable."""
        return self.database.run(lambda connection: delete_refusal(connection, self.agent, person))

    # Decisions of operators

    def save_pause(self, is_paused: bool) -> Commit[bool]:
        """Store that the agent is paused or not. Its commit is done when it is durable."""
        return self.save_variable(PLATFORM_SCOPE, self.agent, PAUSED, json.dumps(is_paused))

    def save_admission(self, person: str, is_admitted: bool) -> Commit[bool]:
        """Store the decision about a person (a bare JID). Its commit is done when it is durable.

        A rejection withdraws the keys that stand for them for good, in the same transaction.
        """
        if is_admitted:
            return self.save_variable(ACCESS_SCOPE, person, ADMITTED, json.dumps(True))
        now = utc_now()

        def reject(connection: Connection) -> bool:
            key = {"agent": self.agent, "scope": ACCESS_SCOPE, "holder": person, "name": ADMITTED}
            connection.execute(delete(variables).filter_by(**key))
            connection.execute(insert(variables).values({**key, "value": json.dumps(False), "updated_at": to_micros(now)}))
            withdraw_keys(connection, self.agent, person, now)
            return True

        return self.database.run(reject)

    async def find_callers_of(self, person: str) -> list[str]:
        """Return the addresses of the callers who stand, or stood, for a person (a bare JID) at this agent, by name."""
        keys = await KeyRepository(self.database).load_of(person) if person else []
        return [caller_address(key.name) for key in keys if self.agent in (*key.agent_jids, *key.withdrawn_jids)]

    async def find_keys(self, person: str) -> list[str]:
        """Return the names of the keys for this agent that stand for a person (a bare JID), or whose address that is."""
        return await self.database.read(lambda connection: find_keys(connection, self.agent, person))

    # Values of the agent itself

    def save_agent_value(self, name: str, value: Any) -> Commit[bool]:
        """Store a value for this agent. Its commit is done when it is durable."""
        return self.save_variable(AGENT_SCOPE, self.agent, name, json.dumps(value))

    # Helpers

    def _select_conversations(self) -> Select[Any]:
        return select(conversations).where(conversations.c.agent == self.agent)

    async def _load_conversations(self, query: Select[Any]) -> list[StoredConversation]:
        return [conversation_from_row(row) for row in await self.database.fetch(query)]


def _select_turns(conversation: int) -> Select[Any]:
    """Return the query of the turns of a conversation that are not erased, oldest first."""
    turns = select(interactions.c.number, interactions.c.body).where(interactions.c.conversation == conversation)
    return turns.where(interactions.c.body != ERASED_TURN).order_by(interactions.c.number)
