"""What an agent knows: documents, and turns that left a window, found by their meaning and by their words."""

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
from ...contracts.base import utc_now
from ...domain.history import turn_text
from ...domain.text import coverage, keywords
from ...exceptions import ConfigError, KnowledgeError, ModelError, unquoted
from ...storage import Document, KnowledgeStore, Lacking, NewDocument, Shelf, VectorRow, turn_name
from .chunking import split
from .embeddings import Embedder
from .loaders import FileText, read_document

if TYPE_CHECKING:
    from .vectors import Vectors

log = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""How many passages have their vectors, of how many."""

_CANDIDATES = 50
_INDEXED_AT_ONCE = 64
_CACHED_BYTES = 256 * 1024 * 1024
_KNOWN_SHELVES = 10_000
_IN_THE_LOOP = 20_000
_LONGEST_NAME = 1000
_NEEDS_NUMPY = 'vectors need numpy: pip install "spade-coreason[embeddings]"'


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that answers a question. `score` is 0 to 1; see `Knowledge.search`."""

    text: str
    score: float
    document: str
    passage: int


Hits: TypeAlias = list[Found]
Documents: TypeAlias = list[Document]


class Knowledge:
    """The knowledge of one agent: its own documents, and what belongs to a person or a conversation, found for them alone.

    Where a call names a `person` (a bare JID) or a `conversation` (its id), it is about what belongs to them. Without an
    `embedder` it is found by words. One object an agent in a process: it holds the vectors that were searched.
    """

    def __init__(
        self, store: KnowledgeStore, embedder: Embedder | None = None, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        if embedder is not None:
            try:
                from . import vectors as vectors  # numpy takes a tenth of a second, and is an extra
            except ImportError as error:
                raise ConfigError("knowledge.embedder", _NEEDS_NUMPY) from error
        self.store = store
        self.embedder = embedder
        self._clock = clock
        self._vectors: OrderedDict[int, Vectors] = OrderedDict()
        self._ids: dict[Shelf, int | None] = {}
        self._changes = 0
        self._indexing = asyncio.Lock()
        self._checked: set[int] = set()
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
        progress: Progress | None = None,
    ) -> str:
        """Keeps a text under a name, cut into passages; "new", "changed" or "same" (then there is nothing to do).

        A text that is there under another name is the same. ModelError where the embedder fails: then it is found by its words,
        and added again, or reindexed, it gets the vectors that are missing.
        """
        if not name.strip() or len(name) > _LONGEST_NAME or _storable(name) != name:
            raise KnowledgeError(
                f"{name[:100]!r} is no name of a document: 1 to {_LONGEST_NAME} characters that can be written"
            )
        text = _storable(text)
        parts = await asyncio.to_thread(split, text, is_markdown=is_markdown)  # 0.3 s a megabyte
        if not parts:
            raise KnowledgeError(f"{name}: has no text")
        shelf = _shelf(person, conversation)
        [done] = await self.store.put(shelf, [NewDocument(name, _digest(text.encode()), parts)], self._clock())
        if done != "same":
            await self._forget_vectors([shelf])
        await self._index(Lacking(shelf), progress)
        return done

    async def add_file(
        self,
        path: Path | str,
        name: str | None = None,
        *,
        person: str | None = None,
        conversation: str | None = None,
        progress: Progress | None = None,
    ) -> str:
        """As `add`, for a file: text, Markdown or PDF. By default its absolute path is its name.

        KnowledgeError where it cannot be read.
        """
        path, found = await asyncio.to_thread(_read, Path(path))
        whose = {"person": person, "conversation": conversation}
        return await self.add(found.text, name or str(path), **whose, is_markdown=found.is_markdown, progress=progress)

    async def remove(self, name: str, *, person: str | None = None, conversation: str | None = None) -> bool:
        """Deletes a document; False where there is none of this name."""
        shelf = _shelf(person, conversation)
        count = await self.store.remove(shelf, [name])
        await self._forget_vectors([shelf])
        return count > 0

    async def list(self, *, person: str | None = None, conversation: str | None = None) -> Documents:
        """The documents, by name."""
        return await self.store.documents(_shelf(person, conversation))

    # Searching

    async def search(
        self, query: str, limit: int = 5, threshold: float = 0.7, *, person: str | None = None, conversation: str | None = None
    ) -> Hits:
        """The passages about `query`, best first, of the agent's own documents, and of the person's and the conversation's.

        The score, 0 to 1, without an embedder: the share of the question's words (the commonest of the language excepted,
        forms of a word counting as the word) that a passage has; equal ones in the order of full text (BM25). With one:
        1 - (1 - s) * (1 - w * w / 2), where s = (1 + cosine) / 2 and w is that share. docs/memory.md has measured examples.
        """
        own = [
            Shelf(),
            *([Shelf("person", person)] if person else []),
            *([Shelf("conversation", conversation)] if conversation else []),
        ]
        wanted = keywords(query)
        if limit <= 0 or not query.strip():
            return []
        ids = [id_ for id_ in (await self._ids_of(own)).values() if id_ is not None]
        if not ids:
            return []
        most = max(_CANDIDATES, 4 * limit)
        near = await self._near(ids, query, most)
        rows = await self.store.candidates(ids, wanted, near.nearest, most)
        cosines = near.cosines([row.id for row in rows])
        scored = [(_score(coverage(wanted, row.words), cosines.get(row.id)), row) for row in rows]
        scored.sort(key=lambda found: -found[0])  # stable: equal ones stay in the order of full text
        good = [(score, row) for score, row in scored if score > 0 and score >= threshold]
        return [Found(row.text, round(score, 4), row.document, row.number) for score, row in good[:limit]]

    async def _near(self, shelves: Sequence[int], query: str, most: int) -> _Near:
        near = _Near()
        if self.embedder is None:
            return near
        try:
            [vector] = await self.embedder.embed([query])
            asked = _packed(self.embedder, vector)
        except ModelError as error:
            if not self._is_failing:
                log.error("%s: searches by words alone: %s", self.store.agent, unquoted(error))
            self._is_failing = True
            return near
        self._is_failing = False
        await self._check(len(vector))
        for shelf in shelves:
            vectors = await self._vectors_of(shelf, len(vector))
            if len(vectors) > _IN_THE_LOOP:
                await asyncio.to_thread(near.add, vectors, asked, most)
            else:
                near.add(vectors, asked, most)
        return near

    async def _vectors_of(self, shelf: int, dimension: int) -> Vectors:
        from .vectors import Vectors

        assert self.embedder is not None
        found = self._vectors.get(shelf)
        if found is None or found.dimension != dimension:  # another model may have taken the name
            changes = self._changes
            rows = await self.store.vectors(shelf, self.embedder.model)
            found = await asyncio.to_thread(Vectors, rows, dimension)
            if changes != self._changes:
                return found
            self._vectors[shelf] = found
            while len(self._vectors) > 1 and sum(vectors.size for vectors in self._vectors.values()) > _CACHED_BYTES:
                self._vectors.popitem(last=False)
        self._vectors.move_to_end(shelf)
        return found

    async def _forget_vectors(self, shelves: Sequence[Shelf]) -> None:
        """After every change of what is on them."""
        self._changes += 1
        for shelf in shelves:
            self._ids.pop(shelf, None)
        for id_ in (await self._ids_of(shelves)).values():
            if id_ is not None:
                self._vectors.pop(id_, None)

    async def _ids_of(self, wanted: Sequence[Shelf]) -> dict[Shelf, int | None]:
        """The numbers of shelves; None where there is nothing. They are asked for once: nobody else puts anything there."""
        known = {shelf: self._ids[shelf] for shelf in wanted if shelf in self._ids}
        unknown = [shelf for shelf in wanted if shelf not in known]
        if not unknown:
            return known
        changes = self._changes
        asked = await self.store.shelf_ids(unknown)
        found = {shelf: asked.get(shelf) for shelf in unknown}
        if changes == self._changes:  # else they may be what was there before
            self._ids = found if len(self._ids) > _KNOWN_SHELVES else self._ids | found
        return known | found

    # Indexing

    async def reindex(self, progress: Progress | None = None) -> int:
        """Makes the vectors that are missing or of another model, in all knowledge of the agent; how many.

        Each batch is kept at once: interrupted, it goes on where it was. ModelError where the embedder fails.
        """
        if self.embedder is None:
            return 0
        [vector] = await self.embedder.embed(["dimension"])
        count = await self._index(Lacking(kind=(self.embedder.model, len(vector))), progress)
        self.let_go()
        self._checked.clear()
        return count

    async def missing(self) -> dict[str, int]:
        """How many passages have no vector of the embedder, by the model that they have one of ("" for none)."""
        if self.embedder is None:
            return {}
        found: dict[str, int] = {}
        for key, count in (await self.store.models()).items():
            name = key[0] if key is not None else ""
            if name != self.embedder.model:
                found[name] = found.get(name, 0) + count
        return found

    async def _index(self, lacking: Lacking, progress: Progress | None = None) -> int:
        """Makes the vectors that are lacking; how many."""
        embedder = self.embedder
        if embedder is None:
            return 0
        done = after = 0
        async with self._indexing:
            total = await self.store.count_lacking(lacking) if progress is not None else 0
            while batch := await self.store.lacking(lacking, after, _INDEXED_AT_ONCE):
                found = await embedder.embed([text for _, text in batch])
                rows = [
                    VectorRow(id_, embedder.model, len(vector), _packed(embedder, vector))
                    for (id_, _), vector in zip(batch, found, strict=True)
                ]
                await self.store.save_vectors(rows)
                if lacking.shelf is not None:
                    await self._forget_vectors([lacking.shelf])
                after = batch[-1][0]
                done += len(batch)
                if progress is not None:
                    progress(done, max(total, done))
        return done

    async def _check(self, dimension: int) -> None:
        """Says once, of vectors of this length, where passages have vectors that cannot be searched."""
        if dimension in self._checked or self.embedder is None:
            return
        self._checked.add(dimension)
        current = (self.embedder.model, dimension)
        models = await self.store.models()
        others = {key: count for key, count in models.items() if key != current}
        if others:
            said = ", ".join(f"{count} {f'by {key[0]} ({key[1]} values)' if key else 'none'}" for key, count in others.items())
            log.warning(
                "%s: of %d passages not all have a vector by %s (%d values): %s. Those are found by their words alone;"
                " `spade-coreason knowledge reindex %s` mends it",
                self.store.agent,
                sum(models.values()),
                *current,
                said,
                self.store.agent,
            )

    # Turns that left a window

    async def take_turns(self, conversation: str, turns: Iterable[tuple[int, Interaction]]) -> None:
        """Keeps turns, by their numbers, as knowledge of their conversation. Taken twice they are there once.

        Where the embedder fails they are there all the same, found by their words, until it works.
        """
        new = []
        for number, turn in turns:
            text = _storable(turn_text(turn))
            digest = _digest(turn.interaction_id.bytes + text.encode())
            new.append(NewDocument(turn_name(number), digest, split(text)))
        shelf = Shelf("conversation", conversation)
        await self.store.put(shelf, new, self._clock())
        await self._forget_vectors([shelf])
        try:
            await self._index(Lacking(shelf))
        except ModelError as error:
            if not self._is_failing:
                log.error("%s: turns are kept without vectors: %s", self.store.agent, unquoted(error))
            self._is_failing = True

    def let_go(self) -> None:
        """Frees what is held in memory, after something was forgotten in the store."""
        self._changes += 1
        self._ids.clear()
        self._vectors.clear()

    async def close(self) -> None:
        """Closes the embedder."""
        if self.embedder is not None:
            await self.embedder.close()


class _Near:
    """What the vectors of some shelves say about one question."""

    def __init__(self) -> None:
        self.nearest: list[int] = []
        self._similar: list[tuple[Vectors, Any]] = []

    def add(self, vectors: Vectors, asked: bytes, most: int) -> None:
        if not len(vectors):
            return
        similarities = vectors.similarities(asked)
        self.nearest += vectors.nearest(similarities, most)
        self._similar.append((vectors, similarities))

    def cosines(self, ids: Sequence[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for vectors, similarities in self._similar:
            found |= vectors.of(similarities, ids)
        return found


def _score(share: float, cosine: float | None) -> float:
    if cosine is None:
        return share
    meaning = (1 + min(1.0, max(-1.0, cosine))) / 2
    return 1 - (1 - meaning) * (1 - share * share / 2)  # one word of three says little, all of them much


def _packed(embedder: Embedder, vector: Sequence[float]) -> bytes:
    from .vectors import packed

    try:
        return packed(vector)
    except ValueError as error:
        raise ModelError(embedder.model, f"gives {error}; see to knowledge.model") from error


def _shelf(person: str | None, conversation: str | None) -> Shelf:
    if person is not None and conversation is not None:
        raise ValueError("a document belongs to a person or to a conversation, not to both")
    if person is not None:
        return Shelf("person", person)
    return Shelf() if conversation is None else Shelf("conversation", conversation)


def _storable(text: str) -> str:
    """Without what PostgreSQL (NUL) or UTF-8 (half a character) has no room for."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _read(path: Path) -> tuple[Path, FileText]:
    return path.absolute(), read_document(path)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
