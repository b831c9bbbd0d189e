"""The conversations of people with all agents: their news, their titles, and those that have a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from ...domain.history import parse_interactions, turn_text
from ..backends.database import Database
from ..records import to_micros
from ..schema import asked_people, conversations, interactions, questions
from .logins import find_live

_MAX_TITLE_CHARACTERS = 80
_MAX_SEARCHED = 2000
_ASKED = (
    select(asked_people.c.agent, asked_people.c.person, questions.c.code)
    .join(questions, questions.c.id == asked_people.c.question)
    .where(questions.c.state == "open")
    .order_by(questions.c.id)
)
"""The open questions: the agent, a person who was asked, and the code."""


class News(NamedTuple):
    """The numbers for a person at one agent that tell what is new. Two of them are equal if nothing is."""

    turns: int = 0
    """The number of turns in all conversations."""
    conversations: int = 0
    questions: tuple[str, ...] = ()
    """The codes of the open questions that the person was asked."""


class ConversationTitle(NamedTuple):
    """A conversation as a list shows it."""

    agent: str
    conversation_id: str
    turns: int
    title: str
    """The beginning of its first turn."""


async def load_news(
    database: Database, sessions: Mapping[str, str], agents: Sequence[str], now: datetime
) -> dict[str, dict[str, News]]:
    """Return what is new for people, by session and agent, in one read. Sessions that have ended are not in it.

    `sessions` are the bare JIDs of the people by the secrets of their sessions.
    """
    owner, people = conversations.c.owner, list(set(sessions.values()))
    turns = (
        select(owner, conversations.c.agent, func.sum(conversations.c.turns), func.count())
        .where(conversations.c.agent.in_(agents), owner.in_(people))
        .group_by(owner, conversations.c.agent)
    )
    asked = _ASKED.where(asked_people.c.agent.in_(agents), asked_people.c.person.in_(people))

    def read(connection: Connection) -> dict[str, dict[str, News]]:
        found: dict[str, dict[str, News]] = {person: {} for person in people}
        for person, agent, number, count in connection.execute(turns):
            found[person][agent] = News(int(number), count)
        for agent, person, code in connection.execute(asked):
            before = found[person].get(agent, News())
            found[person][agent] = before._replace(questions=(*before.questions, code))
        return {secret: found[sessions[secret]] for secret in find_live(connection, sessions, now)}

    return await database.read(read)


async def load_asked(database: Database, since: datetime) -> list[tuple[str, str, str]]:
    """Return the agents and people (bare JIDs) of open approvals that were asked since a time, with their codes."""
    asked = _ASKED.where(questions.c.kind == "approval", questions.c.created_at >= to_micros(since))
    return [(agent, person, code) for agent, person, code in await database.fetch(asked)]


async def load_titles(
    database: Database, person: str, agents: Sequence[str], limit: int, text: str = ""
) -> list[ConversationTitle]:
    """Return the conversations of a person (a bare JID) that have turns, newest first; with a text, those in which it stands.

    The newest 2,000 turns in which it may stand are read.
    """
    of_person = conversations.c.agent.in_(agents), conversations.c.owner == person, conversations.c.turns > 0
    listed = select(conversations).where(*of_person).order_by(conversations.c.last_interaction.desc())
    first = select(interactions.c.body).order_by(interactions.c.number).limit(1)
    body, wanted = interactions.c.body, text.casefold()
    found = (
        select(conversations.c.id, body)
        .join(interactions, interactions.c.conversation == conversations.c.id)
        .where(*of_person, *(body.icontains(word, autoescape=True) for word in text.split() if word.isalnum()))
        .order_by(interactions.c.id.desc())
        .limit(_MAX_SEARCHED)
    )

    def read(connection: Connection) -> list[ConversationTitle]:
        query = listed
        if wanted:
            rows = {row.id for row in connection.execute(found) if wanted in _spoken_text(row.body).casefold()}
            query = query.where(conversations.c.id.in_(rows))
        return [
            ConversationTitle(
                row.agent,
                row.conversation_id,
                row.turns,
                _title(connection.scalar(first.where(interactions.c.conversation == row.id))),
            )
            for row in connection.execute(query.limit(limit)).all()
        ]

    return await database.read(read)


def _title(body: str | None) -> str:
    text = " ".join(_spoken_text(body or "").split())
    return text if len(text) <= _MAX_TITLE_CHARACTERS else f"{text[: _MAX_TITLE_CHARACTERS - 1]}…"


def _spoken_text(body: str) -> str:
    return "\n".join(map(turn_text, parse_interactions([body])))
