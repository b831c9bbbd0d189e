"""What an agent knows, in SQL: documents cut into passages, on shelves of their own, with the vectors of the passages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, Select, delete, func, insert, select, tuple_

from ..domain.text import split_words
from . import full_text
from .database import Database
from .schema import conversations, documents, from_micros, passages, shelves, to_micros, vectors

ShelfScope: TypeAlias = Literal["agent", "person", "conversation"]
_BATCH = 500


class Shelf(NamedTuple):
    """Whose knowledge: the agent's own (holder ""), a person's (a bare JID) or a conversation's (its id)."""

    scope: ShelfScope = "agent"
    holder: str = ""


class MissingVectors(NamedTuple):
    """Passages on one shelf, or on all, without a vector of a `model_and_dimension`, a model and a length; None: without any."""

    shelf: Shelf | None = None
    model_and_dimension: tuple[str, int] | None = None


class NewDocument(NamedTuple):
    """A document to be kept. `digest` says whether it is the same as another."""

    name: str
    digest: bytes
    passages: Sequence[str]


@dataclass(frozen=True, slots=True)
class Document:
    """A document that is known. `indexed` of its passages have a vector."""

    name: str
    passages: int
    characters: int
    added_at: datetime
    indexed: int = 0


class PassageRecord(NamedTuple):
    """A passage, and the document that it is of. `words` have spaces between them."""

    id: int
    document: str
    number: int
    text: str
    words: str


class VectorRecord(NamedTuple):
    """The vector of a passage: float32 values, by which model."""

    passage: int
    model: str
    dimension: int
    vector: bytes


class KnowledgeRepository:
    """The shelves of one agent. Every call is a transaction."""

    def __init__(self, database: Database, agent: str) -> None:
        self.agent = agent
        self._database = database

    # Documents

    async def save_documents(self, shelf: Shelf, new: Sequence[NewDocument], now: datetime) -> list[str]:
        """Keeps documents; of each "new", "changed" (it is there under this name, with other content) or "same".

        One whose content is there already, under whatever name, changes nothing.
        """
        ids = [(self._database.next_id("documents"), self._next_passage_ids(len(document.passages))) for document in new]
        shelf_id = self._database.next_id("shelves")

        def work(connection: Connection) -> list[str]:
            there = connection.scalar(self._select_shelf_id(shelf))
            if there is None:
                values = {"id": shelf_id, "agent": self.agent, "scope": shelf.scope, "holder": shelf.holder}
                connection.execute(insert(shelves).values(values))
                there = shelf_id
            found = (
                self._save_document(connection, there, document, *id_, now) for document, id_ in zip(new, ids, strict=True)
            )
            return list(found)

        return await self._database.write(work)

    def _save_document(
        self, connection: Connection, shelf: int, new: NewDocument, id_: int, passage_ids: Sequence[int], now: datetime
    ) -> str:
        if connection.scalar(select(documents.c.id).where(documents.c.shelf == shelf, documents.c.digest == new.digest)):
            return "same"
        before = connection.scalar(select(documents.c.id).where(documents.c.shelf == shelf, documents.c.name == new.name))
        if before is not None:
            _delete_documents(connection, [before])
        values = {
            "id": id_,
            "shelf": shelf,
            "name": new.name,
            "digest": new.digest,
            "passages": len(new.passages),
            "characters": sum(map(len, new.passages)),
            "added_at": to_micros(now),
        }
        connection.execute(insert(documents).values(values))
        rows = [
            {
                "id": passage,
                "shelf": shelf,
                "document": id_,
                "number": number,
                "text": text,
                "words": " ".join(split_words(text)),
            }
            for number, (passage, text) in enumerate(zip(passage_ids, new.passages, strict=True), 1)
        ]
        if rows:
            connection.execute(insert(passages), rows)
        return "new" if before is None else "changed"

    def _next_passage_ids(self, count: int) -> list[int]:
        return [self._database.next_id("passages") for _ in range(count)]

    async def list_documents(self, shelf: Shelf) -> list[Document]:
        """What is on a shelf, by name."""
        indexed = (
            select(func.count())
            .select_from(passages.join(vectors, vectors.c.passage == passages.c.id))
            .where(passages.c.document == documents.c.id)
            .scalar_subquery()
        )
        query = (
            select(documents, indexed.label("indexed"))
            .where(documents.c.shelf == self._select_shelf_id(shelf).scalar_subquery())
            .order_by(documents.c.name)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [Document(row.name, row.passages, row.characters, from_micros(row.added_at), row.indexed) for row in rows]

    async def delete_documents(self, shelf: Shelf, names: Collection[str] | None) -> int:
        """Deletes documents by name, or all of a shelf; how many there were."""

        def work(connection: Connection) -> int:
            query = select(documents.c.id).where(documents.c.shelf == self._select_shelf_id(shelf).scalar_subquery())
            if names is not None:
                query = query.where(documents.c.name.in_(list(names)))
            found = list(connection.scalars(query))
            _delete_documents(connection, found)
            if found:
                full_text.purge_deleted_words(connection)
            return len(found)

        return await self._database.erase(work)

    async def load_texts(self, targets: Sequence[Shelf]) -> list[tuple[Shelf, str, datetime, str]]:
        """Everything on some shelves: whose, the document, when it was added, and its text, in order."""
        query = (
            select(shelves.c.scope, shelves.c.holder, documents.c.name, documents.c.added_at, passages.c.text)
            .join(documents, documents.c.shelf == shelves.c.id)
            .join(passages, passages.c.document == documents.c.id)
            .where(shelves.c.agent == self.agent, tuple_(shelves.c.scope, shelves.c.holder).in_(list(map(tuple, targets))))
            .order_by(documents.c.id, passages.c.number)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        found: dict[tuple[Shelf, str], tuple[datetime, list[str]]] = {}
        for row in rows:
            _, parts = found.setdefault((Shelf(row.scope, row.holder), row.name), (from_micros(row.added_at), []))
            parts.append(row.text)
        return [(shelf, name, added_at, "\n".join(parts)) for (shelf, name), (added_at, parts) in found.items()]

    # Searching

    async def find_shelf_ids(self, targets: Sequence[Shelf]) -> dict[Shelf, int]:
        """Those of the shelves on which there was ever anything, with their numbers."""
        query = select(shelves.c.id, shelves.c.scope, shelves.c.holder).where(
            shelves.c.agent == self.agent, tuple_(shelves.c.scope, shelves.c.holder).in_(list(map(tuple, targets)))
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {Shelf(row.scope, row.holder): row.id for row in rows}

    async def find_candidates(
        self, shelf_ids: Collection[int], keywords: Sequence[str], further_ids: Iterable[int], limit: int
    ) -> list[PassageRecord]:
        """The `limit` passages on these shelves that full text finds, the best first, and then those of `further_ids`."""
        numbers = list(further_ids)

        def work(connection: Connection) -> list[PassageRecord]:
            ids = list(dict.fromkeys([*full_text.find_passages(connection, list(shelf_ids), keywords, limit), *numbers]))
            query = (
                select(passages.c.id, documents.c.name, passages.c.number, passages.c.text, passages.c.words)
                .join(documents, documents.c.id == passages.c.document)
                .where(passages.c.id.in_(ids), passages.c.shelf.in_(list(shelf_ids)))
            )
            rows = {row.id: PassageRecord(*row) for row in connection.execute(query)}
            return [rows[id_] for id_ in ids if id_ in rows]

        return await self._database.read(work)

    # Vectors

    async def load_vectors(self, shelf: int, model: str) -> list[tuple[int, bytes]]:
        """The vectors of a shelf that a model made: passage and float32 values."""
        query = (
            select(vectors.c.passage, vectors.c.vector)
            .join(passages, passages.c.id == vectors.c.passage)
            .where(passages.c.shelf == shelf, vectors.c.model == model)
            .order_by(vectors.c.passage)
        )
        return await self._database.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])

    async def find_missing(self, missing: MissingVectors, after: int, limit: int) -> list[tuple[int, str]]:
        """Passages behind the number `after` that lack a vector: number and text."""
        query = self._select_missing(missing, passages.c.id, passages.c.text)
        query = query.where(passages.c.id > after).order_by(passages.c.id).limit(limit)
        return await self._database.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])

    async def count_missing(self, missing: MissingVectors) -> int:
        """How many there are of them."""
        query = self._select_missing(missing, func.count())
        return int(await self._database.read(lambda connection: connection.execute(query).scalar_one()))

    def _select_missing(self, missing: MissingVectors, *columns: Any) -> Select[Any]:
        fits = vectors.c.passage == passages.c.id
        if missing.model_and_dimension is not None:
            fits &= (vectors.c.model == missing.model_and_dimension[0]) & (
                vectors.c.dimension == missing.model_and_dimension[1]
            )
        found = passages.join(shelves, shelves.c.id == passages.c.shelf).outerjoin(vectors, fits)
        query = select(*columns).select_from(found).where(shelves.c.agent == self.agent, vectors.c.passage.is_(None))
        if missing.shelf is not None:
            query = query.where(shelves.c.scope == missing.shelf.scope, shelves.c.holder == missing.shelf.holder)
        return query

    async def count_by_model(self) -> dict[tuple[str, int] | None, int]:
        """How many passages of the agent have a vector of which model and length; None: of none."""
        query = (
            select(vectors.c.model, vectors.c.dimension, func.count())
            .select_from(passages.join(shelves, shelves.c.id == passages.c.shelf))
            .outerjoin(vectors, vectors.c.passage == passages.c.id)
            .where(shelves.c.agent == self.agent)
            .group_by(vectors.c.model, vectors.c.dimension)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {None if model is None else (model, dimension): count for model, dimension, count in rows}

    async def save_vectors(self, rows: Sequence[VectorRecord]) -> None:
        """Keeps vectors, each instead of what its passage had before. Of passages that are gone nothing is kept."""

        def work(connection: Connection) -> None:
            ids = [row.passage for row in rows]
            connection.execute(delete(vectors).where(vectors.c.passage.in_(ids)))
            there = set(connection.scalars(select(passages.c.id).where(passages.c.id.in_(ids))))
            kept: list[dict[str, Any]] = [row._asdict() for row in rows if row.passage in there]
            if kept:
                connection.execute(insert(vectors), kept)

        await self._database.write(work)

    def _select_shelf_id(self, shelf: Shelf) -> Any:
        return select(shelves.c.id).where(
            shelves.c.agent == self.agent, shelves.c.scope == shelf.scope, shelves.c.holder == shelf.holder
        )


def delete_shelves(connection: Connection, agent: str, targets: Iterable[Shelf]) -> int:
    """Deletes shelves with everything on them, in a transaction of others; how many documents there were."""
    wanted, count = list(map(tuple, targets)), 0
    for begin in range(0, len(wanted), _BATCH):
        part = tuple_(shelves.c.scope, shelves.c.holder).in_(wanted[begin : begin + _BATCH])
        numbers = list(connection.scalars(select(shelves.c.id).where(shelves.c.agent == agent, part)))
        found = list(connection.scalars(select(documents.c.id).where(documents.c.shelf.in_(numbers))))
        _delete_documents(connection, found)
        connection.execute(delete(shelves).where(shelves.c.id.in_(numbers)))
        count += len(found)
    if count:
        full_text.purge_deleted_words(connection)
    return count


def turn_document_name(number: int) -> str:
    """What a turn is called that is knowledge of its conversation."""
    return f"turn {number}"


def delete_turn_documents(connection: Connection, conversation: int, numbers: Iterable[int]) -> None:
    """Deletes turns of a conversation (its row) from its knowledge, in a transaction of others."""
    shelf = (
        select(shelves.c.id)
        .join(conversations, (conversations.c.agent == shelves.c.agent) & (conversations.c.conversation_id == shelves.c.holder))
        .where(conversations.c.id == conversation, shelves.c.scope == "conversation")
    )
    number = connection.scalar(shelf)
    if number is None:
        return
    names = list(map(turn_document_name, numbers))
    doomed = select(documents.c.id).where(documents.c.shelf == number, documents.c.name.in_(names))
    found = list(connection.scalars(doomed))
    _delete_documents(connection, found)
    if found:
        full_text.purge_deleted_words(connection)


def _delete_documents(connection: Connection, ids: Sequence[int]) -> None:
    for begin in range(0, len(ids), _BATCH):
        part = ids[begin : begin + _BATCH]
        theirs = select(passages.c.id).where(passages.c.document.in_(part))
        connection.execute(delete(vectors).where(vectors.c.passage.in_(theirs)))
        connection.execute(delete(passages).where(passages.c.document.in_(part)))
        connection.execute(delete(documents).where(documents.c.id.in_(part)))
