"""Full text over the passages: FTS5 on SQLite, tsvector on PostgreSQL, with the same words found on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from sqlalchemy import Connection, text

from ..domain.text import search_forms

_SQLITE = (
    # The shelf is a word, too: what is on another's is not even looked at.
    "CREATE VIRTUAL TABLE passage_words USING fts5(shelf, words, content='passages', content_rowid='id',"
    ' tokenize="unicode61 remove_diacritics 0")',
    "CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN"
    " INSERT INTO passage_words (rowid, shelf, words) VALUES (new.id, new.shelf, new.words); END",
    "CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN"
    " INSERT INTO passage_words (passage_words, rowid, shelf, words)"
    " VALUES ('delete', old.id, old.shelf, old.words); END",
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
    " WHERE shelf = ANY(:shelves) AND found_by @@ query"
    # 1: a longer passage with as many of the words is less about them.
    " ORDER BY ts_rank(found_by, query, 1) DESC, id LIMIT :most"
)
_SIZES = text("SELECT sum(passages) AS passages, sum(characters) AS characters FROM documents WHERE shelf = ANY(:shelves)")
_FREQUENCIES = text(
    "SELECT form,"
    " (SELECT count(*) FROM passages WHERE shelf = ANY(:shelves) AND found_by @@ to_tsquery('simple', form)) AS passages"
    " FROM unnest(CAST(:forms AS text[])) AS form"
)
_RANKING_FACTOR = 4
"""So many times the passages that are wanted are ranked by BM25 on PostgreSQL, which finds them by a measure of its own."""
_K1, _B = 1.2, 0.75
"""The constants of BM25, as FTS5 has them."""


def create(connection: Connection) -> None:
    """Makes what searching needs, after the tables."""
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


def drop(connection: Connection) -> None:
    """Takes away what has no table of its own."""
    if connection.dialect.name == "sqlite":
        for statement in ("DROP TRIGGER passage_added", "DROP TRIGGER passage_removed", "DROP TABLE passage_words"):
            connection.exec_driver_sql(statement)


def find_passages(connection: Connection, shelves: Sequence[int], keywords: Sequence[str], limit: int) -> list[int]:
    """The passages on these shelves with any of the words `keywords`, the best by BM25 first."""
    if not keywords or not shelves:
        return []
    forms = [form for word in keywords for form in search_forms(word)]
    if connection.dialect.name == "sqlite":
        # Words are letters and digits; in quotes they are no operators of FTS5.
        some = " OR ".join(f'"{form[:-1]}"*' if form.endswith("*") else f'"{form}"' for form in forms)
        query = f"shelf : ({' OR '.join(map(str, shelves))}) AND words : ({some})"
        return list(connection.scalars(_FIND_SQLITE, {"query": query, "most": limit}))
    on, queries = list(shelves), [form.replace("*", ":*") for form in forms]
    asked = {"query": " | ".join(queries), "shelves": on, "most": limit * _RANKING_FACTOR}
    found = connection.execute(_FIND_POSTGRESQL, asked).all()
    if not found:
        return []
    counted = connection.execute(_FREQUENCIES, {"forms": queries, "shelves": on})
    frequencies = {row.form.replace(":*", "*"): row.passages for row in counted}
    sizes = connection.execute(_SIZES, {"shelves": on}).one()
    weights = {form: max(log((sizes.passages - n + 0.5) / (n + 0.5)), 1e-6) for form, n in frequencies.items()}
    average = sizes.characters / sizes.passages
    return [row.id for row in sorted(found, key=lambda row: -_bm25(row.words.split(), row.size / average, weights))][:limit]


def _bm25(words: Sequence[str], length: float, weights: Mapping[str, float]) -> float:
    """Okapi BM25 of a passage; `length` is that of an average one times so many, `weights` are those of the forms of words."""
    score = 0.0
    for form, weight in weights.items():
        stem = form.removesuffix("*")
        often = sum(word.startswith(stem) for word in words) if form.endswith("*") else words.count(form)
        score += weight * often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * length))
    return score


def purge_deleted_words(connection: Connection) -> None:
    """Takes the words of what was deleted out of the file as well: FTS5 marks them as gone, and keeps them until it merges."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO passage_words (passage_words) VALUES ('optimize')")
