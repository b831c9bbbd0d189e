"""Full-text search in passages: FTS5 on SQLite, tsvector on PostgreSQL. Both find the same words.

`domain.text` finds the words and their stems. The databases' own stemmers would not do: that of FTS5 knows English only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log

from sqlalchemy import Connection, text

from ...domain.texts.text import search_forms

_SQLITE = (
    # The collection (`shelf`) is indexed as a word too, so that a search does not read passages of others.
    "CREATE VIRTUAL TABLE passage_words USING fts5(shelf, words, content='passages', content_rowid='id',"
    ' tokenize="unicode61 remove_diacritics 0")',
    "CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN"
    " INSERT INTO passage_words (rowid, shelf, words) VALUES (new.id, new.shelf, new.words); END",
    "CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN"
    " INSERT INTO passage_words (passage_words, rowid, shelf, words)"
    " VALUES ('delete', old.id, old.shelf, old.words); END",
    "CREATE TRIGGER passage_words_changed AFTER UPDATE OF words ON passages BEGIN"
    " INSERT INTO passage_words (passage_words, rowid, shelf, words)"
    " VALUES ('delete', old.id, old.shelf, old.words);"
    " INSERT INTO passage_words (rowid, shelf, words) VALUES (new.id, new.shelf, new.words); END",
)
_POSTGRESQL = (
    "ALTER TABLE passages ADD COLUMN found_by tsvector GENERATED ALWAYS AS (to_tsvector('simple', words)) STORED",
    "CREATE INDEX passages_by_words ON passages USING gin (found_by)",
)

_FIND_SQLITE = text(
    "SELECT rowid FROM passage_words WHERE passage_words MATCH :query ORDER BY bm25(passage_words, 0.0, 1.0) LIMIT :most"
)
_FIND_POSTGRESQL = text(
    "SELECT id, words, length(text) AS size FROM passages, to_tsquery('simple', :query) AS query"
    " WHERE shelf = ANY(:collections) AND found_by @@ query"
    # 1: a longer passage with the same number of matches ranks lower.
    " ORDER BY ts_rank(found_by, query, 1) DESC, id LIMIT :most"
)
_SIZES = text("SELECT sum(passages) AS passages, sum(characters) AS characters FROM documents WHERE shelf = ANY(:collections)")
_FREQUENCIES = text(
    "SELECT form,"
    " (SELECT count(*) FROM passages WHERE shelf = ANY(:collections) AND found_by @@ to_tsquery('simple', form)) AS passages"
    " FROM unnest(CAST(:forms AS text[])) AS form"
)
_RANKING_FACTOR = 4
"""The number of candidates for each wanted passage on PostgreSQL.

PostgreSQL selects candidates by a rank of its own, and `_bm25` ranks them again.
"""
_K1, _B = 1.2, 0.75
"""The constants of BM25, with the values of FTS5."""


def create(connection: Connection) -> None:
    """Create the search indexes. The tables must exist."""
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


def find_passages(connection: Connection, collections: Sequence[int], keywords: Sequence[str], limit: int) -> list[int]:
    """Return the ids of at most `limit` passages of collections that contain any of `keywords`, the best by BM25 first."""
    if not keywords or not collections:
        return []
    forms = [form for word in keywords for form in search_forms(word)]
    if connection.dialect.name == "sqlite":
        # Words are letters and digits; quotes keep FTS5 from reading them as operators.
        terms = " OR ".join(f'"{form[:-1]}"*' if form.endswith("*") else f'"{form}"' for form in forms)
        query = f"shelf : ({' OR '.join(map(str, collections))}) AND words : ({terms})"
        return list(connection.scalars(_FIND_SQLITE, {"query": query, "most": limit}))
    collection_ids, queries = list(collections), [form.replace("*", ":*") for form in forms]
    parameters = {"query": " | ".join(queries), "collections": collection_ids, "most": limit * _RANKING_FACTOR}
    candidates = connection.execute(_FIND_POSTGRESQL, parameters).all()
    if not candidates:
        return []
    words = {row.id: Counter(row.words.split()) for row in candidates}
    occurring = set().union(*words.values())
    counted = [
        query
        for form, query in zip(forms, queries, strict=True)
        if form in occurring or (form.endswith("*") and any(word.startswith(form[:-1]) for word in occurring))
    ]
    counts = connection.execute(_FREQUENCIES, {"forms": counted, "collections": collection_ids})
    frequencies = {row.form.replace(":*", "*"): row.passages for row in counts}
    sizes = connection.execute(_SIZES, {"collections": collection_ids}).one()
    weights = {form: max(log((sizes.passages - n + 0.5) / (n + 0.5)), 1e-6) for form, n in frequencies.items()}
    average = sizes.characters / sizes.passages
    scores = {row.id: _bm25(words[row.id], row.size / average, weights) for row in candidates}
    return sorted(scores, key=lambda id_: -scores[id_])[:limit]


def _bm25(words: Mapping[str, int], length: float, weights: Mapping[str, float]) -> float:
    """Return the Okapi BM25 score of a passage.

    `words` counts its words and `length` is its length divided by the average length. `weights` holds the weight of each form
    of a word.
    """
    score = 0.0
    for form, weight in weights.items():
        if form.endswith("*"):
            beginning = form.removesuffix("*")
            frequency = sum(count for word, count in words.items() if word.startswith(beginning))
        else:
            frequency = words.get(form, 0)
        score += weight * frequency * (_K1 + 1) / (frequency + _K1 * (1 - _B + _B * length))
    return score


def purge_deleted_words(connection: Connection) -> None:
    """Remove the words of deleted passages from the file. FTS5 only marks them as deleted until it merges its segments."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO passage_words (passage_words) VALUES ('optimize')")
