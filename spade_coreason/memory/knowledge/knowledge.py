"""The knowledge of an agent: documents, and turns that left a window. Search is by meaning and by words."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...contracts import Interaction
from ...contracts.times import utc_now
from ...domain.environment.installation import install_hint
from ...domain.history import turn_text
from ...domain.texts.text import extract_keywords, keyword_coverage
from ...exceptions import ConfigError, KnowledgeError, ModelError, describe_for_log
from ...storage import (
    Document,
    DocumentCollection,
    MissingVectors,
    NewDocument,
    VectorRecord,
    turn_document_name,
)
from .embeddings import Embedder
from .loaders import FileText, read_document
from .passages import split_passages

if TYPE_CHECKING:
    from ...storage import KnowledgeRepository
    from .vectors import VectorIndex

log = logging.getLogger(__name__)

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of passages that have their vectors, and the total."""

_MIN_CANDIDATES = 50
_INDEX_BATCH = 64
_MAX_CACHED_BYTES = 256 * 1024 * 1024
_MAX_CACHED_IDS = 10_000
_MAX_VECTORS_IN_LOOP = 20_000
_MAX_NAME_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A passage that matches a query.

    `score` is 0 to 1, see `Knowledge.search`. `document` is the name of the document, and `passage` the number of the
    passage in it, from 1.
    """

    text: str
    score: float
    document: str
    passage: int


Hits: TypeAlias = list[SearchHit]
Documents: TypeAlias = list[Document]


class Knowledge:
    """The knowledge of one agent: its own documents, and documents of a person or a conversation, found only for them.

    A call with a `person` (a bare JID) or a `conversation` (its id) is about their documents, else about the agent's own.
    Without an `embedder` search is by words only. Raises ConfigError if there is an embedder but no numpy.

    Use one object per agent in a process: it caches the vectors that were searched.
    """

    def __init__(
        self, repository: KnowledgeRepository, embedder: Embedder | None = None, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        if embedder is not None:
            try:
                from . import vectors as vectors  # the import of numpy takes a tenth of a second, and numpy is an extra
            except ImportError as error:
                raise ConfigError("knowledge.embedder", f"vectors need numpy: {install_hint('embeddings')}") from error
        self.repository = repository
        self.embedder = embedder
        self._clock = clock
        self._vector_cache: OrderedDict[int, VectorIndex] = OrderedDict()
        self._id_cache: dict[DocumentCollection, int | None] = {}
        self._change_count = 0
        self._index_lock = asyncio.Lock()
        self._checked_dimensions: set[int] = set()
        self._is_failing = False

    # Documents

    async def add(
        self,
        text: str,
        name: str,
        *,
        person: str | None = None,
        conversation: str | None = None,
        is_markdown: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Cut a text into passages and store it as a document.

        `name` has 1 to 1,000 characters. `is_markdown` lets passages begin with their headings. `progress` is called
        after each batch of vectors.

        Returns "new", "changed", or "same" if there is nothing to do. A text that is stored under another name is the same.

        Raises KnowledgeError for an invalid name or a text without content. Raises ModelError if the embedder fails: the
        document is stored, and found by its words. Adding it again, or `reindex`, makes the missing vectors.
        """
        _require_content(name, text)
        document = await asyncio.to_thread(_cut, name, text, is_markdown=is_markdown)  # 0.3 s per megabyte
        if not document.passages:
            raise KnowledgeError(f"{name}: has no text")
        collection = _collection_of(person, conversation)
        [outcome] = await self.repository.save_documents(collection, [document], self._clock())
        if outcome != "same":
            await self._invalidate_vectors([collection])
        await self._index_missing(MissingVectors(collection), progress)
        return outcome

    async def find_outcome(
        self, text: str, name: str, *, person: str | None = None, conversation: str | None = None
    ) -> str | None:
        """Return the outcome that `add` would have; None if it would store nothing, not even missing vectors.

        Raises KnowledgeError as it does.
        """
        _require_content(name, text)
        collection = _collection_of(person, conversation)
        digest = await asyncio.to_thread(lambda: _hash(_make_storable(text).encode()))
        outcome = await self.repository.find_outcome(collection, name, digest)
        if outcome == "same" and (self.embedder is None or not await self.repository.count_missing(MissingVectors(collection))):
            return None
        return outcome

    async def add_file(
        self,
        path: Path | str,
        name: str | None = None,
        *,
        person: str | None = None,
        conversation: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Read a file (text, Markdown or PDF) and store it like `add`.

        By default the name is the absolute path. Raises KnowledgeError if the file cannot be read.
        """
        path, document = await asyncio.to_thread(_read_document, Path(path))
        owner = {"person": person, "conversation": conversation}
        return await self.add(document.text, name or str(path), **owner, is_markdown=document.is_markdown, progress=progress)

    async def remove(self, name: str, *, person: str | None = None, conversation: str | None = None) -> bool:
        """Delete a document. Return False if there is none of this name."""
        collection = _collection_of(person, conversation)
        count = await self.repository.delete_documents(collection, [name])
        await self._invalidate_vectors([collection])
        return count > 0

    async def list(self, *, person: str | None = None, conversation: str | None = None) -> Documents:
        """Return the documents, sorted by name."""
        return await self.repository.list_documents(_collection_of(person, conversation))

    # Searching

    async def search(
        self, query: str, limit: int = 5, threshold: float = 0.7, *, person: str | None = None, conversation: str | None = None
    ) -> Hits:
        """Search the documents of the agent, of the person and of the conversation for passages about `query`, best first.

        `limit` is the maximum number of passages. Passages with a score below `threshold` are left out.

        The score is 0 to 1. Without an embedder it is the share w of the query's words that the passage contains. Forms of a
        word count as the word; stop words do not count. Equal scores are in the order of full-text search (BM25).

        With an embedder the score is 1 - (1 - s) * (1 - w * w / 2), where s = (1 + cosine) / 2. docs/explanation/memory.md has
        measured examples. If the embedder fails, search is by words, and the log has an error.
        """
        collections = [
            DocumentCollection(),
            *([DocumentCollection("person", person)] if person else []),
            *([DocumentCollection("conversation", conversation)] if conversation else []),
        ]
        keywords = extract_keywords(query)
        if limit <= 0 or not query.strip():
            return []
        ids = [id_ for id_ in (await self._load_collection_ids(collections)).values() if id_ is not None]
        if not ids:
            return []
        max_candidates = max(_MIN_CANDIDATES, 4 * limit)
        nearest = await self._find_nearest(ids, query, max_candidates)
        candidates = await self.repository.find_candidates(ids, keywords, nearest.ids, max_candidates)
        cosines = nearest.cosines([candidate.id for candidate in candidates])
        scored = [
            (_combine_score(keyword_coverage(keywords, candidate.words), cosines.get(candidate.id)), candidate)
            for candidate in candidates
        ]
        scored.sort(key=lambda pair: -pair[0])  # stable: equal scores stay in the order of full-text search
        hits = [(score, candidate) for score, candidate in scored if score > 0 and score >= threshold]
        return [
            SearchHit(candidate.text, round(score, 4), candidate.document, candidate.number)
            for score, candidate in hits[:limit]
        ]

    async def _find_nearest(self, collections: Sequence[int], query: str, limit: int) -> _NearestPassages:
        nearest = _NearestPassages()
        if self.embedder is None:
            return nearest
        try:
            [vector] = await self.embedder.embed([query])
            packed_query = _pack_vector(self.embedder, vector)
        except ModelError as error:
            if not self._is_failing:
                log.error(
                    "%s: searching by words only, because the embedder failed: %s",
                    self.repository.agent,
                    describe_for_log(error),
                )
            self._is_failing = True
            return nearest
        self._is_failing = False
        await self._warn_unsearchable(len(vector))
        for collection in collections:
            vectors = await self._load_vectors(collection, len(vector))
            if len(vectors) > _MAX_VECTORS_IN_LOOP:
                await asyncio.to_thread(nearest.add, vectors, packed_query, limit)
            else:
                nearest.add(vectors, packed_query, limit)
        return nearest

    async def _load_vectors(self, collection: int, dimension: int) -> VectorIndex:
        from .vectors import VectorIndex

        assert self.embedder is not None
        index = self._vector_cache.get(collection)
        if index is None or index.dimension != dimension:  # another model may use the same name
            change_count = self._change_count
            records = await self.repository.load_vectors(collection, self.embedder.model)
            index = await asyncio.to_thread(VectorIndex, records, dimension)
            if change_count != self._change_count:
                return index
            self._vector_cache[collection] = index
            while (
                len(self._vector_cache) > 1
                and sum(vectors.size_bytes for vectors in self._vector_cache.values()) > _MAX_CACHED_BYTES
            ):
                self._vector_cache.popitem(last=False)
        self._vector_cache.move_to_end(collection)
        return index

    async def _invalidate_vectors(self, collections: Sequence[DocumentCollection]) -> None:
        """Drop cached vectors and ids of collections. Call it after every change of their documents."""
        self._change_count += 1
        for collection in collections:
            self._id_cache.pop(collection, None)
        for id_ in (await self._load_collection_ids(collections)).values():
            if id_ is not None:
                self._vector_cache.pop(id_, None)

    async def _load_collection_ids(self, collections: Sequence[DocumentCollection]) -> dict[DocumentCollection, int | None]:
        """Return the ids of collections, None for an empty one.

        They are read once and cached, since only this process adds documents.
        """
        known = {collection: self._id_cache[collection] for collection in collections if collection in self._id_cache}
        unknown = [collection for collection in collections if collection not in known]
        if not unknown:
            return known
        change_count = self._change_count
        stored = await self.repository.find_collection_ids(unknown)
        ids = {collection: stored.get(collection) for collection in unknown}
        if change_count == self._change_count:  # otherwise they may be outdated
            self._id_cache = ids if len(self._id_cache) > _MAX_CACHED_IDS else self._id_cache | ids
        return known | ids

    # Indexing

    async def reindex(self, progress: ProgressCallback | None = None) -> int:
        """Make the vectors that are missing or of another model, in all knowledge of the agent. Return how many.

        Each batch is stored at once, so that an interrupted call continues where it stopped. Raises ModelError if the
        embedder fails.
        """
        if self.embedder is None:
            return 0
        count = await self._index_missing(await self._find_outdated(self.embedder), progress)
        self.clear_cache()
        self._checked_dimensions.clear()
        return count

    async def count_outdated(self) -> int:
        """Count the vectors that `reindex` would make. Raises ModelError as it does."""
        return 0 if self.embedder is None else await self.repository.count_missing(await self._find_outdated(self.embedder))

    async def _find_outdated(self, embedder: Embedder) -> MissingVectors:
        [vector] = await embedder.embed(["dimension"])
        return MissingVectors(model_and_dimension=(embedder.model, len(vector)))

    async def missing(self) -> dict[str, int]:
        """Count passages without a vector of the embedder, by the model of the vector that they have ("" for none)."""
        if self.embedder is None:
            return {}
        counts: dict[str, int] = {}
        for model_and_dimension, count in (await self.repository.count_by_model()).items():
            name = model_and_dimension[0] if model_and_dimension is not None else ""
            if name != self.embedder.model:
                counts[name] = counts.get(name, 0) + count
        return counts

    async def _index_missing(self, missing: MissingVectors, progress: ProgressCallback | None = None) -> int:
        """Make the missing vectors, and return how many."""
        embedder = self.embedder
        if embedder is None:
            return 0
        done = after_id = 0
        async with self._index_lock:
            total = await self.repository.count_missing(missing) if progress is not None else 0
            while batch := await self.repository.find_missing(missing, after_id, _INDEX_BATCH):
                vectors = await embedder.embed([text for _, text in batch])
                records = [
                    VectorRecord(id_, embedder.model, len(vector), _pack_vector(embedder, vector))
                    for (id_, _), vector in zip(batch, vectors, strict=True)
                ]
                await self.repository.save_vectors(records)
                if missing.collection is not None:
                    await self._invalidate_vectors([missing.collection])
                after_id = batch[-1][0]
                done += len(batch)
                if progress is not None:
                    progress(done, max(total, done))
        return done

    async def _warn_unsearchable(self, dimension: int) -> None:
        """Log once, for queries of this dimension, how many passages have vectors that cannot be searched."""
        if dimension in self._checked_dimensions or self.embedder is None:
            return
        self._checked_dimensions.add(dimension)
        current = (self.embedder.model, dimension)
        models = await self.repository.count_by_model()
        others = {key: count for key, count in models.items() if key != current}
        if others:
            summary = ", ".join(
                f"{count} {f'by {key[0]} ({key[1]} values)' if key else 'none'}" for key, count in others.items()
            )
            log.warning(
                "%s: not all of %d passages have a vector of %s (%d values): %s. The others are found by words only;"
                " run `spade-coreason knowledge reindex %s`",
                self.repository.agent,
                sum(models.values()),
                *current,
                summary,
                self.repository.agent,
            )

    # Turns that left a window

    async def add_turns(self, conversation: str, turns: Iterable[tuple[int, Interaction]]) -> None:
        """Store turns, by their numbers, as knowledge of their conversation. Turns that are added twice are stored once.

        If the embedder fails they are stored without vectors, and found by their words until it works again.
        """
        documents = []
        for number, turn in turns:
            text = _make_storable(turn_text(turn))
            digest = _hash(turn.interaction_id.bytes + text.encode())
            documents.append(NewDocument(turn_document_name(number), digest, split_passages(text)))
        collection = DocumentCollection("conversation", conversation)
        await self.repository.save_documents(collection, documents, self._clock())
        await self._invalidate_vectors([collection])
        try:
            await self._index_missing(MissingVectors(collection))
        except ModelError as error:
            if not self._is_failing:
                log.error(
                    "%s: turns are stored without vectors, because the embedder failed: %s",
                    self.repository.agent,
                    describe_for_log(error),
                )
            self._is_failing = True

    def clear_cache(self) -> None:
        """Clear the cache. Call it after documents were deleted from the database directly."""
        self._change_count += 1
        self._id_cache.clear()
        self._vector_cache.clear()

    async def close(self) -> None:
        """Close the embedder."""
        if self.embedder is not None:
            await self.embedder.close()


class _NearestPassages:
    """The passages nearest to one query, collected from the vectors of several collections."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._similarities: list[tuple[VectorIndex, Any]] = []

    def add(self, vectors: VectorIndex, query: bytes, limit: int) -> None:
        if not len(vectors):
            return
        similarities = vectors.similarities(query)
        self.ids += vectors.nearest(similarities, limit)
        self._similarities.append((vectors, similarities))

    def cosines(self, ids: Sequence[int]) -> dict[int, float]:
        cosines: dict[int, float] = {}
        for vectors, similarities in self._similarities:
            cosines |= vectors.similarities_by_id(similarities, ids)
        return cosines


def _combine_score(coverage: float, cosine: float | None) -> float:
    if cosine is None:
        return coverage
    similarity = (1 + min(1.0, max(-1.0, cosine))) / 2
    return 1 - (1 - similarity) * (1 - coverage * coverage / 2)  # squared: one word of three means little, all of them much


def _pack_vector(embedder: Embedder, vector: Sequence[float]) -> bytes:
    from .vectors import pack_vector

    try:
        return pack_vector(vector)
    except ValueError as error:
        raise ModelError(embedder.model, f"returned {error}; check knowledge.model") from error


def _collection_of(person: str | None, conversation: str | None) -> DocumentCollection:
    if person is not None and conversation is not None:
        raise ValueError("a document belongs to a person or to a conversation, not to both")
    if person is not None:
        return DocumentCollection("person", person)
    return DocumentCollection() if conversation is None else DocumentCollection("conversation", conversation)


def _require_content(name: str, text: str) -> None:
    if not name.strip() or len(name) > _MAX_NAME_CHARACTERS or _make_storable(name) != name:
        raise KnowledgeError(
            f"{name[:100]!r} is not a valid document name; use 1 to {_MAX_NAME_CHARACTERS} printable characters"
        )
    if not text.strip():
        raise KnowledgeError(f"{name}: has no text")


def _cut(name: str, text: str, *, is_markdown: bool) -> NewDocument:
    text = _make_storable(text)
    return NewDocument(name, _hash(text.encode()), split_passages(text, is_markdown=is_markdown))


def _make_storable(text: str) -> str:
    """Remove NUL, which PostgreSQL cannot store, and replace lone surrogates, which UTF-8 cannot encode."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _read_document(path: Path) -> tuple[Path, FileText]:
    return path.absolute(), read_document(path)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
