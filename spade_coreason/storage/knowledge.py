"""Knowledge in SQL: collections of documents, cut into passages, with the vectors of the passages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, tuple_, update

from ..domain.texts.text import index_words, word_rules
from .backends import full_text
from .backends.database import Database
from .backends.sequences import take_row_ids
from .records import (
    Document,
    DocumentCollection,
    MissingVectors,
    NewDocument,
    PassageRecord,
    VectorRecord,
    from_micros,
    to_micros,
    turn_document_name,
)
from .schema import CollectionRow, DocumentRow, PassageRow, conversations, documents, passages, shelves, vectors

log = logging.getLogger(__name__)

_BATCH = 500
_INDEX_BATCH = 100
"""The number of passages that one transaction indexes anew: other writes wait for it."""


class KnowledgeRepository:
    """The knowledge of one agent (a bare JID). Every call is one transaction."""

    def __init__(self, database: Database, agent: str) -> None:
        self.agent = agent
        self._database = database

    # Documents

    async def save_documents(self, collection: DocumentCollection, new: Sequence[NewDocument], now: datetime) -> list[str]:
        """Store documents. Return for each: "new", "changed" (it replaced one of the same name) or "same".

        A document whose content is in the collection already, under any name, is "same" and changes nothing.
        """
        words = await asyncio.to_thread(lambda: [index_words(document.passages) for document in new])

        def work(connection: Connection) -> list[str]:
            # Not those of the process: a large document has more passages than a block has row ids.
            ids = iter(take_row_ids(connection, 1 + sum(1 + len(document.passages) for document in new)))
            existing_id = connection.scalar(self._select_collection_id(collection))
            if existing_id is None:
                existing_id = next(ids)
                connection.execute(insert(shelves).values(CollectionRow(existing_id, self.agent, *collection)))
            outcomes = (
                self._save_document(connection, existing_id, document, document_words, ids, now)
                for document, document_words in zip(new, words, strict=True)
            )
            return list(outcomes)

        return await self._database.write(work)

    async def find_outcome(self, collection: DocumentCollection, name: str, digest: bytes) -> str:
        """Return what `save_documents` makes of a document: "new", "changed" or "same"."""

        def work(connection: Connection) -> str:
            found = self._select_collection_id(collection).scalar_subquery()
            return _find_previous(connection, found, name, digest)[0]

        return await self._database.read(work)

    def _save_document(
        self,
        connection: Connection,
        collection: int,
        new: NewDocument,
        words: Sequence[str],
        ids: Iterator[int],
        now: datetime,
    ) -> str:
        outcome, previous_id = _find_previous(connection, collection, new.name, new.digest)
        if outcome == "same":
            return outcome
        if previous_id is not None:
            _delete_documents(connection, [previous_id])
        id_ = next(ids)
        size = len(new.passages), sum(map(len, new.passages))
        connection.execute(insert(documents).values(DocumentRow(id_, collection, new.name, new.digest, *size, to_micros(now))))
        rows = [
            PassageRow(next(ids), collection, id_, number, text, passage_words, word_rules())._asdict()
            for number, (text, passage_words) in enumerate(zip(new.passages, words, strict=True), 1)
        ]
        if rows:
            connection.execute(insert(passages), rows)
        return outcome

    async def list_documents(self, collection: DocumentCollection) -> list[Document]:
        """Return the documents of a collection, ordered by name."""
        indexed = (
            select(func.count())
            .select_from(passages.join(vectors, vectors.c.passage == passages.c.id))
            .where(passages.c.document == documents.c.id)
            .scalar_subquery()
        )
        query = (
            select(documents, indexed.label("indexed"))
            .where(documents.c.shelf == self._select_collection_id(collection).scalar_subquery())
            .order_by(documents.c.name)
        )
        rows = await self._database.fetch(query)
        return [Document(row.name, row.passages, row.characters, from_micros(row.added_at), row.indexed) for row in rows]

    async def delete_documents(self, collection: DocumentCollection, names: Collection[str] | None) -> int:
        """Delete documents of a collection by name, or all of them with None. Return the number of deleted documents."""

        def work(connection: Connection) -> int:
            query = select(documents.c.id).where(documents.c.shelf == self._select_collection_id(collection).scalar_subquery())
            if names is not None:
                query = query.where(documents.c.name.in_(list(names)))
            return _erase_documents(connection, list(connection.scalars(query)))

        return await self._database.erase(work)

    async def load_texts(self, targets: Sequence[DocumentCollection]) -> list[tuple[DocumentCollection, str, datetime, str]]:
        """Return all documents of some collections in the order of their ids: collection, name, time of storage and text."""
        query = (
            select(shelves.c.scope, shelves.c.holder, documents.c.name, documents.c.added_at, passages.c.text)
            .join(documents, documents.c.shelf == shelves.c.id)
            .join(passages, passages.c.document == documents.c.id)
            .where(shelves.c.agent == self.agent, tuple_(shelves.c.scope, shelves.c.holder).in_(list(map(tuple, targets))))
            .order_by(documents.c.id, passages.c.number)
        )
        rows = await self._database.fetch(query)
        texts: dict[tuple[DocumentCollection, str], tuple[datetime, list[str]]] = {}
        for row in rows:
            _, parts = texts.setdefault((DocumentCollection(row.scope, row.holder), row.name), (from_micros(row.added_at), []))
            parts.append(row.text)
        return [(collection, name, added_at, "\n".join(parts)) for (collection, name), (added_at, parts) in texts.items()]

    # Searching

    async def find_collection_ids(self, targets: Sequence[DocumentCollection]) -> dict[DocumentCollection, int]:
        """Return the row ids of those collections that ever had a document."""
        query = select(shelves.c.id, shelves.c.scope, shelves.c.holder).where(
            shelves.c.agent == self.agent, tuple_(shelves.c.scope, shelves.c.holder).in_(list(map(tuple, targets)))
        )
        rows = await self._database.fetch(query)
        return {DocumentCollection(row.scope, row.holder): row.id for row in rows}

    async def find_candidates(
        self, collection_ids: Collection[int], keywords: Sequence[str], further_ids: Iterable[int], limit: int
    ) -> list[PassageRecord]:
        """Return at most `limit` passages of collections by full-text search, the best first, then those of `further_ids`."""
        extra_ids = list(further_ids)

        def work(connection: Connection) -> list[PassageRecord]:
            ids = list(dict.fromkeys([*full_text.find_passages(connection, list(collection_ids), keywords, limit), *extra_ids]))
            query = (
                select(passages.c.id, documents.c.name, passages.c.number, passages.c.text, passages.c.words)
                .join(documents, documents.c.id == passages.c.document)
                .where(passages.c.id.in_(ids), passages.c.shelf.in_(list(collection_ids)))
            )
            rows = {row.id: PassageRecord(*row) for row in connection.execute(query)}
            return [rows[id_] for id_ in ids if id_ in rows]

        return await self._database.read(work)

    # Vectors

    async def load_vectors(self, collection: int, model: str) -> list[tuple[int, bytes]]:
        """Return the vectors of a collection that `model` computed: id of the passage and float32 values."""
        query = (
            select(vectors.c.passage, vectors.c.vector)
            .join(passages, passages.c.id == vectors.c.passage)
            .where(passages.c.shelf == collection, vectors.c.model == model)
            .order_by(vectors.c.passage)
        )
        return [(passage, vector) for passage, vector in await self._database.fetch(query)]

    async def find_missing(self, missing: MissingVectors, after: int, limit: int) -> list[tuple[int, str]]:
        """Return passages without a vector whose id is above `after`, in the order of their ids: id and text."""
        query = self._select_missing(missing, passages.c.id, passages.c.text)
        query = query.where(passages.c.id > after).order_by(passages.c.id).limit(limit)
        return [(passage, text) for passage, text in await self._database.fetch(query)]

    async def count_missing(self, missing: MissingVectors) -> int:
        """Return the number of passages without a vector."""
        query = self._select_missing(missing, func.count())
        [count] = await self._database.fetch_scalars(query)
        return int(count)

    def _select_missing(self, missing: MissingVectors, *columns: Any) -> Select[Any]:
        has_vector = vectors.c.passage == passages.c.id
        if missing.model_and_dimension is not None:
            has_vector &= (vectors.c.model == missing.model_and_dimension[0]) & (
                vectors.c.dimension == missing.model_and_dimension[1]
            )
        joined = passages.join(shelves, shelves.c.id == passages.c.shelf).outerjoin(vectors, has_vector)
        query = select(*columns).select_from(joined).where(shelves.c.agent == self.agent, vectors.c.passage.is_(None))
        if missing.collection is not None:
            query = query.where(shelves.c.scope == missing.collection.scope, shelves.c.holder == missing.collection.holder)
        return query

    async def count_by_model(self) -> dict[tuple[str, int] | None, int]:
        """Count the passages of the agent by the model and length of their vectors; None stands for passages without one."""
        query = (
            select(vectors.c.model, vectors.c.dimension, func.count())
            .select_from(passages.join(shelves, shelves.c.id == passages.c.shelf))
            .outerjoin(vectors, vectors.c.passage == passages.c.id)
            .where(shelves.c.agent == self.agent)
            .group_by(vectors.c.model, vectors.c.dimension)
        )
        rows = await self._database.fetch(query)
        return {None if model is None else (model, dimension): count for model, dimension, count in rows}

    async def save_vectors(self, rows: Sequence[VectorRecord]) -> None:
        """Store vectors, which replace earlier vectors of the same passages. Skip passages that do not exist any more."""

        def work(connection: Connection) -> None:
            ids = [row.passage for row in rows]
            connection.execute(delete(vectors).where(vectors.c.passage.in_(ids)))
            existing_ids = set(connection.scalars(select(passages.c.id).where(passages.c.id.in_(ids))))
            values: list[dict[str, Any]] = [row._asdict() for row in rows if row.passage in existing_ids]
            if values:
                connection.execute(insert(vectors), values)

        await self._database.write(work)

    def _select_collection_id(self, collection: DocumentCollection) -> Any:
        return select(shelves.c.id).filter_by(agent=self.agent, **collection._asdict())


async def has_outdated_passages(database: Database) -> bool:
    """Return True if words of passages were made by the rules of another version."""
    return await database.read(_find_outdated_rules, is_background=True) is not None


async def index_outdated_passages(database: Database) -> int:
    """Index the passages anew whose words were made by the rules of another version. Return how many.

    Until then they are found by the rules of that version. Each batch is stored at once, so that an interrupted call continues
    where it stopped.
    """
    count = 0
    while (rules := await database.read(_find_outdated_rules, is_background=True)) is not None:
        if not count:
            log.info("%s: adding word forms to the search index of passages from an older version", database.name)
        texts = await database.read(partial(_load_outdated, rules=rules), is_background=True)
        words = await asyncio.to_thread(_index_all, texts)
        rows = [
            {"passage": id_, "new_words": new_words, "new_rules": word_rules()}
            for part, part_words in zip(texts, words, strict=True)
            for (id_, _), new_words in zip(part, part_words, strict=True)
        ]
        for start in range(0, len(rows), _INDEX_BATCH):
            batch = rows[start : start + _INDEX_BATCH]
            await database.write(partial(_update_words, batch=batch))
        count += len(rows)
    if count:
        log.info("%s: the search index has the word forms of all passages (%d added)", database.name, count)
    return count


_UPDATE_WORDS = (
    update(passages)
    .where(passages.c.id == bindparam("passage"))
    .values(words=bindparam("new_words"), word_rules=bindparam("new_rules"))
)


def _find_outdated_rules(connection: Connection) -> str | None:
    """Return the name of rules by which passages were indexed and that are not those of today."""
    for function in (func.min, func.max):  # of an index, without reading the passages
        rules = connection.scalar(select(function(passages.c.word_rules)))
        if rules is not None and rules != word_rules():
            return str(rules)
    return None


def _index_all(texts: list[list[tuple[int, str]]]) -> list[list[str]]:
    """Return the indexed words of the passages of each document."""
    return [index_words([text for _, text in part]) for part in texts]


def _update_words(connection: Connection, batch: list[dict[str, Any]]) -> None:
    """Store the words of some passages."""
    connection.execute(_UPDATE_WORDS, batch)


def _load_outdated(connection: Connection, rules: str) -> list[list[tuple[int, str]]]:
    """Return the ids and texts of the passages of some documents that were indexed by `rules`."""
    outdated = select(passages.c.document).where(passages.c.word_rules == rules).limit(_BATCH)
    texts, count = [], 0
    for document in dict.fromkeys(connection.scalars(outdated)):
        query = select(passages.c.id, passages.c.text).where(passages.c.document == document).order_by(passages.c.number)
        texts.append([(row.id, row.text) for row in connection.execute(query)])
        count += len(texts[-1])
        if count >= _BATCH:
            break
    return texts


def delete_collections(connection: Connection, agent: str, targets: Iterable[DocumentCollection]) -> int:
    """Delete collections with their documents, inside a transaction of the writer. Return the number of deleted documents."""
    keys, count = list(map(tuple, targets)), 0
    for start in range(0, len(keys), _BATCH):
        part = tuple_(shelves.c.scope, shelves.c.holder).in_(keys[start : start + _BATCH])
        collection_ids = list(connection.scalars(select(shelves.c.id).where(shelves.c.agent == agent, part)))
        document_ids = select(documents.c.id).where(documents.c.shelf.in_(collection_ids))
        count += _erase_documents(connection, list(connection.scalars(document_ids)))
        connection.execute(delete(shelves).where(shelves.c.id.in_(collection_ids)))
    return count


def delete_turn_documents(connection: Connection, conversation: int, numbers: Iterable[int]) -> None:
    """Delete turns of a conversation (its row id) from its knowledge, inside a transaction of the writer."""
    collection = (
        select(shelves.c.id)
        .join(conversations, (conversations.c.agent == shelves.c.agent) & (conversations.c.conversation_id == shelves.c.holder))
        .where(conversations.c.id == conversation, shelves.c.scope == "conversation")
    )
    if (collection_id := connection.scalar(collection)) is not None:
        names = list(map(turn_document_name, numbers))
        query = select(documents.c.id).where(documents.c.shelf == collection_id, documents.c.name.in_(names))
        _erase_documents(connection, list(connection.scalars(query)))


def _find_previous(connection: Connection, collection: Any, name: str, digest: bytes) -> tuple[str, int | None]:
    """Return what is made of a document, and the id of the one that it replaces."""
    own = documents.c.shelf == collection
    if connection.scalar(select(documents.c.id).where(own, documents.c.digest == digest)):
        return "same", None
    previous_id = connection.scalar(select(documents.c.id).where(own, documents.c.name == name))
    return "new" if previous_id is None else "changed", previous_id


def delete_documents_added_between(
    connection: Connection, agent: str, conversation_id: str, is_deleted: Callable[[int], bool]
) -> int:
    """Delete what was added to the knowledge of a conversation at some times (in microseconds), which a function chooses.

    Run this inside a transaction of the writer. Return the number of documents.
    """
    query = (
        select(documents.c.id, documents.c.added_at)
        .join(shelves, shelves.c.id == documents.c.shelf)
        .where(shelves.c.agent == agent, shelves.c.scope == "conversation", shelves.c.holder == conversation_id)
        .where(documents.c.name.not_like("turn %"))
    )
    return _erase_documents(connection, [row.id for row in connection.execute(query).all() if is_deleted(row.added_at)])


def _erase_documents(connection: Connection, ids: Sequence[int]) -> int:
    """Delete documents, and their words from the index of full text search. Return their number."""
    _delete_documents(connection, ids)
    if ids:
        full_text.purge_deleted_words(connection)
    return len(ids)


def _delete_documents(connection: Connection, ids: Sequence[int]) -> None:
    for start in range(0, len(ids), _BATCH):
        part = ids[start : start + _BATCH]
        passage_ids = select(passages.c.id).where(passages.c.document.in_(part))
        connection.execute(delete(vectors).where(vectors.c.passage.in_(passage_ids)))
        connection.execute(delete(passages).where(passages.c.document.in_(part)))
        connection.execute(delete(documents).where(documents.c.id.in_(part)))
